"""Systems that are not the ones that they were: a volume that isn't mounted, another cluster
under the same address."""

import contextlib
import uuid

from confluent_kafka import Producer

from chaos.arena import DEADLINE_S
from chaos.nemeses_siege import Siege, named
from chaos.nemeses_times import until_killed
from chaos.worlds import Servers
from onceforall.embedded import EmbeddedKafka
from support.waiting import Story, until

STRANGERS = 40
STRANGERS_RECORDS = 20_000


def unmounted(arena):
    """The volume of the files is away at a restart, its bare mount point remains, and it comes
    back.

    The start is refused: on the wrong disk nothing is completed. With the volume back, the query
    goes on.
    """
    arena.allow("CheckpointMismatchError")
    rng = arena.rng
    world = arena.world(rng.choice(["files", "all"]), arena.servers(), rows_per_batch=2000)
    siege = Siege(arena, world, arena.watch(world))
    siege.begin(2)
    while arena.goes_on:
        match rng.choice(["complete", "complete", "any", "decided"]):
            case "complete":
                # The last batch is, on every sink, and by the log.
                siege.keep_running()
                world.stop(siege.driver)
            case "any":
                siege.a_moment()
                siege.kill_driver()
            case "decided":
                siege.end_driver()
                siege.driver = world.start(
                    **siege.config, armed=f"append_commit.after=kill@{rng.randint(1, 3)}"
                )
                until_killed(siege)
        # Nothing looks at the sinks in here.
        with away(world.folder / "files"):
            siege.struck("the files' volume away at a start")
            _completes_nothing(siege, "on the bare mount point of a volume that is away")
        siege.go_on()
    siege.judge()


@contextlib.contextmanager
def away(folder):
    """A folder is another, empty one until the end of the block; what was put there stays beside
    it."""
    volume = folder.with_name(f"{folder.name}.volume")
    folder.rename(volume)
    folder.mkdir()
    try:
        yield
    finally:
        folder.rename(folder.with_name(f"{folder.name}.bare-{uuid.uuid4().hex[:8]}"))
        volume.rename(folder)


def swapped(arena):
    """Behind a decision the Kafka cluster is another one under the same address, with the same
    topic and strangers' transactions, and then itself again.

    What is decided may not be held for committed or lost because of what the other cluster says:
    the run stops, or waits. With the right
    cluster back, the batch is completed.
    """
    arena.allow("CheckpointMismatchError")
    rng = arena.rng
    kafka = arena.enter(EmbeddedKafka())
    world = arena.world("kafka", Servers(kafka, None), rows_per_batch=2000)
    siege = Siege(arena, world, arena.watch(world))
    siege.begin(2)
    while arena.goes_on:
        siege.end_driver()
        point = rng.choice(["append_commit.after", "append_commit.after", "kafka.end_txn.after"])
        siege.driver = world.start(**siege.config, armed=f"{point}=kill@{rng.randint(1, 3)}")
        until_killed(siege)
        with another_cluster(kafka, world.topic):
            siege.struck("another Kafka cluster under the same address behind a decision")
            _completes_nothing(siege, "on another Kafka cluster")
        siege.go_on()
    siege.judge()


@contextlib.contextmanager
def another_cluster(kafka, topic):
    """A cluster's place is another one's until the end of the block: its ids and offsets begin
    anew, and others have used them."""
    kafka.kill()
    stranger = EmbeddedKafka(port=kafka.port)
    try:
        stranger.start()
        stranger.create_topic(topic, partitions=2)
        _use(stranger, topic)
        yield
    finally:
        stranger.stop()
        kafka.restart()


def _use(kafka, topic):
    """Let others commit transactions, so that each producer id that the query knows has a commit
    behind any offset that it knows."""
    plain = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "queue.buffering.max.messages": 1_000_000}
    )
    for number in range(2 * STRANGERS_RECORDS):
        plain.produce(topic, "a stranger's", partition=number % 2)
    assert plain.flush(60) == 0
    for _ in range(STRANGERS):
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": uuid.uuid4().hex}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, "a stranger's", partition=partition)
        producer.commit_transaction(60)


def _completes_nothing(siege, where):
    """Start a plain driver, and see that its run ends, or waits, without a batch that it calls
    complete."""
    world = siege.world
    done, known = world.newest("DONE"), world.spark_batches()
    driver = siege.driver = world.start(**{**siege.config, "restarts": 0})
    waits = Story(lambda: f"an end, or a wait\n{driver.tail()}")

    def over():
        return (
            driver.process.poll() is not None
            or "is tried again" in driver.log()
            or world.newest("DONE") > done
        )

    until(over, DEADLINE_S, waits)
    siege.end_driver()
    if world.newest("DONE") > done or world.spark_batches() > known:
        siege.arena.violation(f"batch {world.newest('DONE')} was completed {where}")
    for error in driver.errors():
        siege.arena.say(f"refused: {named(error)}")
