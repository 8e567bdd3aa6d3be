"""Kafka as the source: topics of one to twelve partitions, and transactions that are lost, so
that such a batch is written again."""

from chaos.arena import DEADLINE_S
from chaos.nemeses_siege import Siege
from chaos.nemeses_times import BROKER, OPTIONS, SHORT, until_killed
from support.reading import held_back
from support.waiting import until

MOST_PARTITIONS = 12
LOSE_AT = ("append_commit.after", "commit.before", "kafka.end_txn.after")
KILL_IN_REDO_AT = ("fence_lost.after", "append_commit.after", "kafka.end_txn.after")


def kafka_source(arena):
    """The input is one topic or several; drivers die behind a decision, some in the middle of its
    commit, and what is left of it times out.

    Spark's Kafka source gives the partitions of a replayed batch in another order than at first.
    The rows are the same, and the lost ones, whichever tasks have
    them now, are written again. No option is set: restarts alone must do.
    """
    rng = arena.rng
    servers = arena.servers(config=BROKER)
    partitions = _partitions(rng)
    world = arena.world(
        rng.choice(["kafka", "all"]),
        servers,
        sink_options=SHORT,
        options=OPTIONS,
        source={"partitions": partitions},
        trigger="500 milliseconds",
    )
    arena.say(f"topics with {', '.join(map(str, partitions))} partitions")
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.end_driver()
        siege.driver = world.start(
            **siege.config, armed=f"{rng.choice(LOSE_AT)}=kill@{rng.randint(1, 3)}"
        )
        until_killed(siege)
        until(
            lambda: held_back(servers.direct, world.topic) == 0,
            DEADLINE_S,
            "the brokers abort what has timed out",
        )
        siege.struck(
            f"transactions of a batch from {sum(partitions)} Kafka partitions timed out behind "
            "the decision"
        )
        if rng.random() < 0.3:
            batches = world.spark_batches()
            siege.driver = world.start(
                f"{rng.choice(KILL_IN_REDO_AT)}=kill",
                **{**siege.config, "restarts": 0, "sink_options": {}},
                until_batch=batches,
            )
            until(
                lambda: siege.driver.process.poll() is not None,
                DEADLINE_S,
                "an end, in the redo or behind it",
            )
        # A machine with much to do may need longer for a batch than the transactions live that are
        # to be lost.
        siege.go_on(sink_options={})
    siege.judge(sink_options={})


def _partitions(rng):
    """The numbers of partitions of one to three topics, twelve together at the most.

    Most often two to four together: Scala keeps so few in the order in which they were put into a
    map, and more in that of their hashes, which is the same in each run.
    """
    topics = rng.choice([1, 1, 2, 3])
    if rng.random() < 0.6:
        return (
            [rng.randint(2, 4)]
            if topics == 1
            else [rng.randint(1, 4 // topics) for _ in range(topics)]
        )
    return [rng.randint(1, MOST_PARTITIONS // topics) for _ in range(topics)]
