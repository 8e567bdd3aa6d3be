"""kill -9 after the decision, the prepared transactions gone, and kill -9 again in the redo:
each row is there exactly once."""

import signal

import pytest

from onceforall.embedded import EmbeddedKafka
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from support.driver import ROWS_PER_BATCH, UNTIL_BATCH, assert_exactly_once
from support.reading import held_back, values
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def lose(pipeline, count):
    """Abort transactions of the last decision, as their time-out does."""
    names = [
        c["name"] for c in pipeline.entries("COMMIT")[-1]["body"]["committables"]["out"][:count]
    ]
    assert len(names) == count
    client = CoordinatorClient(pipeline.bootstrap)
    try:
        assert not client.fence(names).missing
    finally:
        client.close()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("fence_lost.after", marks=pytest.mark.long),
        pytest.param("task.pre_commit.after", marks=pytest.mark.long),
        pytest.param("append_commit.before", marks=pytest.mark.long),
        pytest.param("append_commit.after", marks=pytest.mark.long),
        pytest.param("kafka.end_txn.after", marks=pytest.mark.long),
        pytest.param("commit.after", marks=pytest.mark.long),
    ],
)
def test_a_driver_killed_in_the_redo_of_a_lost_batch_neither_loses_nor_doubles(pipeline, step):
    pipeline.start("append_commit.after=kill@3").wait_until_killed()
    lose(pipeline, 2)
    driver = pipeline.start(f"{step}=kill")
    driver.wait_for_failpoint(step)
    driver.wait()
    pipeline.run()
    assert_exactly_once(pipeline)
    lost, *again = [e for e in pipeline.entries("COMMIT") if e["body"]["batch"] == 2]
    assert again, "the lost batch was not decided again; the test proves nothing"
    assert again[-1]["body"]["digests"] == lost["body"]["digests"]


@pytest.mark.long
@pytest.mark.parametrize("redo", ["replay", "durable"])
def test_transactions_that_time_out_between_decision_and_commit_are_written_again(
    tmp_path, pipeline_on, redo
):
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with EmbeddedKafka(config=settings) as broker:
        pipeline = pipeline_on(broker)
        short = {"transaction.timeout.ms": 20_000, "message.timeout.ms": 20_000}
        options = {"onceforall.redo": redo, "onceforall.decisionReserveMs": 100}
        pipeline.start(
            "append_commit.after=kill@3", sink_options=short, options=options
        ).wait_until_killed()
        assert held_back(broker.bootstrap_servers, pipeline.topic) >= ROWS_PER_BATCH
        until(
            lambda: held_back(broker.bootstrap_servers, pipeline.topic) == 0,
            60,
            "the brokers abort the transactions",
        )
        assert len(values(broker.bootstrap_servers, pipeline.topic)) == 2 * ROWS_PER_BATCH
        pipeline.run(options=options)
        assert_exactly_once(pipeline)


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("append_commit.before", "BatchTooSlowError"),
        ("append_commit.after", "TransactionLostError"),
    ],
)
def test_a_query_of_random_rows_heals_by_a_restart_when_its_driver_was_frozen_around_its_decision(
    tmp_path, pipeline_on, step, error
):
    """It wakes when its transactions have timed out: it decides nothing, or what it has decided
    is lost as a whole."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with EmbeddedKafka(config=settings) as broker:
        pipeline = pipeline_on(broker, random=True)
        short = {"transaction.timeout.ms": 20_000, "message.timeout.ms": 20_000}
        options = {"onceforall.redo": "replay"}
        driver = pipeline.start(f"{step}=freeze@3", sink_options=short, options=options)
        driver.wait_for_failpoint(step)
        assert held_back(broker.bootstrap_servers, pipeline.topic) >= ROWS_PER_BATCH
        until(
            lambda: held_back(broker.bootstrap_servers, pipeline.topic) == 0,
            60,
            "the brokers abort the transactions",
        )
        driver.signal(signal.SIGCONT)
        driver.wait()
        assert error in str(driver.status()["error"])
        pipeline.run(options=options)
        seen = [
            value.partition("/")[0] for value in values(broker.bootstrap_servers, pipeline.topic)
        ]
        assert sorted(seen) == sorted(
            str(row) for row in range(ROWS_PER_BATCH * pipeline.batches())
        )
        assert pipeline.batches() > UNTIL_BATCH
