"""Random faults of every common kind, one after the other, on one query with all three sinks."""

from chaos.nemeses_siege import STATEFUL, Siege

ROWS_PER_BATCH = (2000, 5000, 10_000)


def storm(arena):
    """Kill and freeze whatever there is, at random moments, as often as the query gets on.

    Any run may end with a failed task, a server that is away, a lost connection or ``FencedError``.
    It is started again in the same process, or by the next driver. Rows are right in any case, and
    batches are completed again after each fault.
    """
    rng = arena.rng
    config = (
        STATEFUL
        if rng.random() < 0.2
        else {"postgres": {"mode": rng.choice(["staged", "staged", "prepared"])}}
    )
    sink_options = rng.choice([{}, {"socket.timeout.ms": 5000, "request.timeout.ms": 5000}])
    rows_per_batch = rng.choice(ROWS_PER_BATCH)
    world = arena.world(
        "all", arena.servers(), rows_per_batch=rows_per_batch, sink_options=sink_options, **config
    )
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    strikes = {
        # Most of the time goes into what a driver's end, and a server's, are followed by.
        siege.kill_workers: 14,
        siege.kill_backends: 10,
        siege.kill_driver: 2,
        siege.kill_driver_alone: 1,
        siege.kill_jvm: 1,
        siege.kill_broker: 1.5,
        siege.restart_broker: 0.7,
        siege.kill_postmaster: 1.5,
        siege.freeze_driver: 0.7,
        siege.second_driver: 0.7,
        siege.freeze_workers: 0.7,
    }
    while arena.goes_on:
        siege.a_moment()
        rng.choices(list(strikes), list(strikes.values()))[0]()
        # Some faults meet the recovery from the one before them.
        if rng.random() < 0.5:
            siege.progress()
        siege.keep_running()
    siege.judge()


def tasks_and_backends(arena):
    """SIGKILL to Python workers and PostgreSQL backends, as fast as the query gets on; it stays in
    one driver.

    A run ends with each of them, for a failed task isn't tried again by ``local[2]``.
    """
    world = arena.world("all", arena.servers(), rows_per_batch=arena.rng.choice([5000, 10_000]))
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.a_moment()
        arena.rng.choice([siege.kill_workers, siege.kill_backends])()
        if arena.rng.random() < 0.6:
            siege.progress()
        siege.keep_running()
    siege.judge()


def two_drivers(arena):
    """Two or three drivers on one checkpoint, each of which starts again whenever it is told that
    it isn't the one.

    Runs end with ``FencedError``, or with what Spark's own log says of a concurrent update, or
    because the other has aborted their transactions. While both live there may be no progress; when
    one is left, there is.
    """
    kind = arena.rng.choice(["all", "all", "postgres-prepared", "kafka"])
    world = arena.world(kind, arena.servers(), rows_per_batch=2000)
    siege = Siege(arena, world, arena.watch(world))
    siege.begin(2)
    while arena.goes_on:
        siege.a_moment()
        arena.rng.choice([siege.second_driver, siege.second_driver, siege.freeze_driver])()
        siege.progress()
    siege.judge()
