"""State that a replaced run writes late, behind its successor: on a local disk, on S3 and on HDFS."""

import signal

import pytest

from onceforall.spark.remote_path import files_below
from support.driver import Pipeline
from support.places import remote_place
from support.reading import released, values
from support.waiting import Story, until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("hdfs", marks=pytest.mark.hdfs),
    ]
)
def pipeline(request, tmp_path, broker, topic):
    kind = request.param
    place, spark = (None, {}) if kind == "local" else remote_place(request, kind, stateful=True)
    made = Pipeline(
        tmp_path, broker.bootstrap_servers, topic(partitions=3), checkpoint=place, spark=spark
    )
    yield made
    made.close()


def state_of(pipeline):
    """The content of the state's files."""
    return {str(file): file.read_bytes() for file in files_below(pipeline.checkpoint / "state")}


SALTED = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [1, 2])
def test_state_that_a_replaced_run_writes_late_counts_only_where_its_files_have_no_names_of_their_own(
    tmp_path, pipeline, version
):
    """A driver is frozen while its batch hasn't come to the state yet, and wakes behind its
    successor. With ``checkpointFormatVersion=2`` nobody reads what it writes then. With 1 it stands
    in the place of its successor's, which the next start reads: the hazard that the pages name."""
    settings = {
        **pipeline.config["spark"],
        **SALTED,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": str(version),
    }

    def run(until_batch):
        pipeline.run(salt=1, until_batch=until_batch, spark=settings)

    run(2)
    hold = tmp_path / "hold"
    hold.touch()
    frozen = pipeline.start(salt=1000, holds=str(hold), until_batch=99, spark=settings)
    until((tmp_path / "hold.reached").exists, 150, Story(frozen.log))
    frozen.signal(signal.SIGSTOP)
    run(6)
    before = state_of(pipeline)
    hold.unlink()
    frozen.signal(signal.SIGCONT)
    frozen.wait()
    assert "FencedError" in frozen.log()
    assert state_of(pipeline) != before, "it wrote no state; the test proves nothing"
    run(12)
    released(pipeline.bootstrap, pipeline.topic)
    batches = pipeline.batches()
    assert batches > 12
    expected = sorted(f"{batch % 6}:{20 * (batch // 6 + 1)}" for batch in range(batches))
    seen = sorted(values(pipeline.bootstrap, pipeline.topic))
    assert len(seen) == batches
    assert (seen == expected) == (version == 2), seen


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [1, 2])
def test_the_state_of_an_attempt_that_was_never_decided_does_not_count(pipeline, version):
    """It stands in the place of the state that the replay of its batch comes to."""
    settings = {
        **pipeline.config["spark"],
        **SALTED,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": str(version),
    }
    pipeline.run(salt=1, until_batch=2, spark=settings)
    killed = pipeline.start("append_commit.before=kill", salt=1000, until_batch=99, spark=settings)
    killed.wait_until_killed()
    pipeline.run(salt=1, until_batch=6, spark=settings)
    pipeline.run(salt=1, until_batch=12, spark=settings)
    assert_counted_once(pipeline)


def assert_counted_once(pipeline):
    released(pipeline.bootstrap, pipeline.topic)
    batches = pipeline.batches()
    assert batches > 12
    expected = sorted(f"{batch % 6}:{20 * (batch // 6 + 1)}" for batch in range(batches))
    assert sorted(values(pipeline.bootstrap, pipeline.topic)) == expected
