"""Faults of time: processes that sleep past every timeout, and transactions that die between
decision and commit."""

import signal
import time

from chaos.arena import DEADLINE_S
from chaos.nemeses_siege import STATEFUL, Siege
from support.reading import held_back
from support.waiting import Story, until

SHORT = {"transaction.timeout.ms": 15_000, "message.timeout.ms": 15_000}
OPTIONS = {"onceforall.decisionReserveMs": 100}
BROKER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
FREEZE_AT = (
    "append_commit.before",
    "append_commit.after",
    "commit.before",
    "commit.after",
    "append_done.before",
    "write.job.after",
    "kafka.end_txn.before",
    "postgres.commit.before",
    "file.commit.renamed",
)
FREEZE_IN_APPEND_AT = (
    "append_commit.before",
    "append_commit.before",
    "store.create.before",
    "store.create.written",
)
KILL_IN_REDO_AT = (
    "fence_lost.after",
    "append_commit.before",
    "append_commit.after",
    "kafka.end_txn.after",
    "commit.after",
)


def frozen(arena):
    """A driver sleeps at some step (SIGSTOP) until the brokers have aborted its transactions, and
    wakes behind its successor, or without one.

    Without a successor it goes on, or its run ends and the next one writes the batch again. Behind
    a successor it ends with ``FencedError``, or because Spark's own log has moved on.
    ``TransactionLostError`` may end a run that slept behind its decision.
    """
    rng = arena.rng
    servers = arena.servers(config=BROKER)
    world = arena.world(
        "all", servers, sink_options=SHORT, options=_options(rng), rows_per_batch=2000
    )
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.end_driver()
        point = rng.choice(FREEZE_AT)
        sleeper = world.start(**siege.config, armed=f"{point}=freeze@{rng.randint(1, 3)}")
        siege.driver = sleeper
        _until_frozen(siege, sleeper, point)
        # Its JVM, too: it may be in a call to the Python driver that has timeouts of its own.
        sleeper.signal(signal.SIGSTOP)
        _sleep_through(servers, world)
        siege.struck(f"driver frozen past every timeout at {point}")
        if rng.random() < 0.7:
            known = len(sleeper.errors())
            siege.driver = None
            siege.progress()
            siege.wake(sleeper, "driver woken behind its successor")
            siege.until_ended(sleeper, known)
            siege.kill_driver()
            siege.driver = sleeper
        else:
            siege.wake(sleeper, "driver woken without a successor")
        siege.progress()
    siege.judge(sink_options={})


def _sleep_through(servers, world):
    """Wait until each time-out has passed, and the brokers have aborted what was open."""
    end = time.monotonic() + SHORT["transaction.timeout.ms"] / 1000 + 1
    until(lambda: time.monotonic() > end, DEADLINE_S, "the time-outs have passed")
    until(
        lambda: held_back(servers.direct, world.topic) == 0,
        DEADLINE_S,
        "the brokers abort what has timed out",
    )


def frozen_append(arena):
    """The driver freezes between its last look at the time that is left and the append of the
    decision, past the transactions' timeout, and wakes.

    It decides nothing, or its decision is for transactions that are dead, and their rows are
    written again: also those of a query whose replays differ. No
    person and no option is needed where rows are kept (``auto``), nor where all of a decision is
    lost (Kafka alone).
    """
    rng = arena.rng
    servers = arena.servers(config=BROKER)
    diverging, redo = rng.random() < 0.6, rng.choice(["auto", "replay"])
    alone = diverging and redo == "replay"
    world = arena.world(
        "kafka" if alone else rng.choice(["kafka", "all"]),
        servers,
        sink_options=SHORT,
        options={**OPTIONS, "onceforall.redo": redo},
        rows_per_batch=2000,
        diverging=diverging,
    )
    what = (
        f"redo={redo}, {'a query whose replays differ' if diverging else 'a deterministic query'}"
    )
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.end_driver()
        point = rng.choice(FREEZE_IN_APPEND_AT)
        # What is armed behind a batch meets DONE of that one, or COMMIT of the next.
        sleeper = siege.driver = world.start(
            **siege.config, armed=f"{point}=freeze@{rng.randint(1, 2)}"
        )
        _until_frozen(siege, sleeper, point)
        sleeper.signal(signal.SIGSTOP)
        _sleep_through(servers, world)
        known, batches = len(sleeper.errors()), world.spark_batches()
        siege.wake(sleeper, f"driver frozen past its timeout at {point} ({what})")
        story = Story(
            lambda d=sleeper: f"an end of the woken driver's run, or another batch\n{d.tail()}"
        )
        until(
            lambda d=sleeper, k=known, b=batches: (
                d.process.poll() is not None or len(d.errors()) > k or world.spark_batches() > b + 1
            ),
            DEADLINE_S,
            story,
        )
        siege.go_on(sink_options={})
    siege.judge(sink_options={})


def _until_frozen(siege, driver, point):
    story = Story(lambda: f"the driver reaches {point}\n{driver.errors()[-1:]}\n{driver.tail()}")
    until(lambda: driver.acted(point) or driver.process.poll() is not None, DEADLINE_S, story)
    assert driver.acted(point), str(story)
    siege.look()


def lost(arena):
    """Drivers are killed right behind a decision, and the brokers abort its transactions before the
    next driver comes; some die in the redo.

    The rows of the lost transactions are written again, with the same digests. A run may end with
    ``TransactionLostError``.
    """
    rng = arena.rng
    servers = arena.servers(config=BROKER)
    world = arena.world(
        "all",
        servers,
        sink_options=SHORT,
        options=_options(rng),
        rows_per_batch=2000,
        **(STATEFUL if rng.random() < 0.2 else {}),
    )
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.end_driver()
        siege.driver = world.start(
            **siege.config,
            armed=f"{rng.choice(['append_commit.after', 'commit.before'])}=kill@{rng.randint(1, 3)}",
        )
        until_killed(siege)
        assert world.is_in_doubt(), (
            "the driver was killed behind its decision, and nothing is in doubt"
        )
        until(
            lambda: held_back(servers.direct, world.topic) == 0,
            DEADLINE_S,
            "the brokers abort what has timed out",
        )
        siege.struck("transactions timed out between decision and commit")
        if rng.random() < 0.5:
            point, batch = rng.choice(KILL_IN_REDO_AT), world.newest("COMMIT")
            siege.driver = world.start(f"{point}=kill", **siege.config)
            until_killed(siege)
            # With DONE of the batch in the log, the redo was over.
            done = world.newest("DONE") >= batch
            siege.struck(
                f"driver killed behind the redo at {point}"
                if done
                else f"driver killed in the redo at {point}"
            )
        siege.progress()
    decided = [body["batch"] for _, body in world.entries("COMMIT")]
    arena.say(f"decisions that are there: {len(decided)}, of batches: {len(set(decided))}")
    siege.judge(sink_options={})


def until_killed(siege):
    """Wait until the driver has killed itself at its failpoint."""
    driver = siege.driver
    until(
        lambda: driver.process.poll() is not None,
        DEADLINE_S,
        Story(lambda: f"the driver kills itself\n{driver.tail()}"),
    )
    assert driver.was_killed, f"the driver ended by itself\n{driver.tail()}"
    siege.struck("driver killed", "driver")
    driver.kill()


def _options(rng):
    return {**OPTIONS, "onceforall.redo": rng.choice(["replay", "durable"])}
