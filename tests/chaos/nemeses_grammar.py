"""Pipelines that a grammar draws, with Spark as it ships, killed at random moments and at random
failpoints."""

from chaos import grammar, matrix
from chaos.arena import DEADLINE_S
from chaos.nemeses_siege import Siege
from onceforall.failpoints.catalogue import CATALOGUE
from support.waiting import Story, until

BATCHES_TO_REACH_IT = 4
MOST_HITS = 3
MODES = {"staged": "postgres-staged", "prepared": "postgres-prepared", "upsert": "postgres-upsert"}


def drawn_pipelines(arena):
    """Draw a pipeline, and kill its driver, its workers and its servers, now at a random moment and
    now at a random failpoint.

    A run may end with a failed task, a server that is away, a lost connection or ``FencedError``.
    With whatever was drawn, restarts alone let the query go on, and each value of each row is right.
    """
    rng = arena.rng
    drawn = grammar.draw(rng)
    arena.say(f"drawn: {drawn.said}")
    world = arena.world("drawn", arena.servers(), **drawn.config)
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    strikes = _strikes(siege)
    while arena.goes_on:
        siege.a_moment()
        rng.choices(list(strikes), list(strikes.values()))[0]()
        # Some faults meet the recovery from the one before them.
        if rng.random() < 0.3:
            siege.go_on()
        elif rng.random() < 0.6:
            siege.progress()
        siege.keep_running()
    siege.judge()


def _strikes(siege):
    """What is done to the query, by how often."""
    points = points_of(siege.world)
    found = {
        lambda: kill_at_a_failpoint(siege, siege.arena.rng.choice(points)): 6,
        siege.kill_driver: 2,
        siege.kill_driver_alone: 1,
        siege.kill_jvm: 1,
        siege.kill_workers: 3,
        siege.second_driver: 0.7,
        siege.freeze_driver: 0.7,
        siege.freeze_workers: 0.5,
    }
    if "kafka" in siege.world.sinks:
        found |= {siege.kill_broker: 0.5, siege.restart_broker: 0.5}
    if "postgres" in siege.world.sinks:
        found |= {siege.kill_backends: 1, siege.kill_postmaster: 0.5}
    return found


def points_of(world):
    """The names of the failpoints that a query with these sinks may pass."""
    mode = world.config.get("postgres", {}).get("mode", "staged")
    kinds = [MODES[mode] if sink == "postgres" else sink for sink in world.sinks]
    return [
        name
        for name, failpoint in CATALOGUE.items()
        if failpoint.where != "both"
        and "detach" not in {failpoint.needs, failpoint.recovery_needs}
        and any(matrix.reaches(failpoint, kind) for kind in kinds)
    ]


def kill_at_a_failpoint(siege, point):
    """Start a driver in which the process that comes to a failpoint is killed, the driver or a
    worker; it is no fault if nobody has come there after some batches."""
    world, rng = siege.world, siege.arena.rng
    siege.end_driver()
    plan = f"{point}=kill@{rng.randint(1, MOST_HITS)}"
    goal = world.spark_batches() + BATCHES_TO_REACH_IT
    # Armed behind a batch, a driver's point is met in mid-run; from the start on, in the recovery.
    is_armed = CATALOGUE[point].where == "driver" and rng.random() < 0.5
    siege.driver = driver = world.start(
        "" if is_armed else plan, **siege.config, **({"armed": plan} if is_armed else {})
    )
    until(
        lambda: (
            driver.acted(point)
            or driver.process.poll() is not None
            or world.spark_batches() >= goal
        ),
        DEADLINE_S,
        Story(lambda: f"{point}, or {BATCHES_TO_REACH_IT} batches\n{driver.tail()}"),
    )
    if not driver.acted(point):
        return
    if CATALOGUE[point].where == "worker" and driver.process.poll() is None:
        siege.struck("Python worker killed at a random failpoint", "worker")
        return
    driver.wait_for_end(DEADLINE_S)
    siege.struck("driver killed at a random failpoint", "driver")
