"""A loss of power took Spark's entry of a decided batch, and not the plan behind it; Spark itself
then looks for the state."""

import pytest

import onceforall as ofa
from onceforall.operators.state import rocksdb_state

pytestmark = [pytest.mark.spark, pytest.mark.long]

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@pytest.fixture
def state_of_format(spark):
    """Set in which format Spark keeps state, which RocksDB does."""
    before = {name: spark.conf.get(name, None) for name in (*rocksdb_state(), FORMAT)}

    def choose(version):
        for name, value in {**rocksdb_state(), FORMAT: version}.items():
            spark.conf.set(name, value)

    yield choose
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_stateful_query_goes_on_behind_the_loss_of_an_entry_before_a_plan(
    source, run, state_of_format, tmp_path, version
):
    state_of_format(version)
    checkpoint = tmp_path / "cp"

    def written(transform=None):
        rows = source.stream().dropDuplicates(["value"])
        sink = ofa.FileSink(str(tmp_path / "out"))
        writer = ofa.write_stream(rows).to(sink, transform=transform)
        run(writer.option("checkpointLocation", str(checkpoint)))
        found = ofa.read_files(tmp_path / "out").to_arrow().to_pylist()
        return sorted(row["value"] for row in found)

    def refused(frame):
        raise RuntimeError("the batch is planned, and not decided")

    for value in ("a", "b"):
        source.add({"key": "k", "value": "always"}, {"key": "k", "value": value})
        assert written()
    source.add({"key": "k", "value": "always"}, {"key": "k", "value": "c"})
    with pytest.raises(Exception, match="planned, and not decided"):
        written(refused)
    assert (checkpoint / "offsets" / "2").exists()
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    assert written() == ["a", "always", "b", "c"]
