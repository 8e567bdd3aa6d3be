"""The Kafka sink keeps the contract of all sinks: the conformance suite on a real broker, read
at read_committed."""

import uuid

import pyarrow as pa
import pytest

from onceforall.sinks.kafka import KafkaSink
from onceforall.testing.conformance import SinkUnderTest, check_sink
from support.reading import held_back, values

pytestmark = pytest.mark.kafka

KILLED_INSIDE = {
    f"killed_while_{what}"
    for what in ("writing", "confirming", "committing", "aborting", "recovering")
}


@pytest.fixture
def under_test(broker, topic):
    made = []

    def make(**more):
        servers, name, prefix = (
            broker.bootstrap_servers,
            topic(partitions=2),
            f"conformance-{uuid.uuid4().hex[:8]}",
        )
        make_sink = lambda: KafkaSink(
            {"bootstrap.servers": servers}, topic=name, transactional_id_prefix=prefix
        )
        watching = make_sink()
        made.append(watching)

        def leftovers():
            left = [
                tid
                for tid in watching._connected().open_transactions()
                if tid.startswith(f"{prefix}:")
            ]
            return left or [
                f"{held} offsets held back" for held in [held_back(servers, name)] if held
            ]

        return SinkUnderTest(
            make_sink=make_sink,
            rows=lambda numbers: pa.RecordBatch.from_pydict(
                {"value": pa.array([b"%d" % n for n in numbers], pa.binary())}
            ),
            read=lambda: [int(value) for value in values(servers, name)],
            leftovers=leftovers,
            lose=watching.abort,
            preload=[
                "confluent_kafka",
                "kafka",
                "onceforall.sinks.kafka.driver.coordinator_client",
            ],
            **more,
        )

    yield make
    for sink in made:
        sink.close()


@pytest.mark.long
def test_the_kafka_sink_passes_the_conformance_suite(under_test):
    report = check_sink(under_test(crash_points=0))
    # That another cluster is told from this one: kafka/test_other_cluster.py.
    unseen = {
        "no_secret_is_shown",
        "another_target_has_another_identity",
        "missing_predecessor_is_noticed",
    }
    assert set(report.skipped) == {*unseen, *KILLED_INSIDE}
    assert len(report.passed) == 40


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_kafka_sink_passes_the_cases_with_kills_within_each_call(under_test):
    report = check_sink(under_test(crash_points=6), only=KILLED_INSIDE)
    assert set(report.passed) == KILLED_INSIDE
