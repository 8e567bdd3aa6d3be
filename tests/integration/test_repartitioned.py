"""Spark's offline repartitioning of a query's state adds a batch to its checkpoint that no sink sees
(SPARK-55146): the log goes on behind it, unless it passed over what was decided."""

import contextlib
import re

import pyspark
import pytest

import onceforall as ofa
from onceforall.failpoints import points as failpoints

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2),
        reason="offline repartitioning is new in Spark 4.2",
    ),
]
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CRASH = {"decided": "append_commit.after", "undecided": "append_commit.before"}


@pytest.fixture
def rocks_db(spark):
    """Repartitioning takes this one alone."""
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key)
    spark.conf.set(key, ROCKS_DB)
    yield
    spark.conf.set(key, before)


class Query:
    """A query that lets each key through once, with a source of one file per batch."""

    def __init__(self, spark, source, folder, run):
        self._spark, self._source, self._folder, self._run = spark, source, folder, run
        self.checkpoint = folder / "checkpoint"

    def run(self, *keys):
        """Read a file of these keys, to the end of the input."""
        if keys:
            self._source.add(*({"key": key} for key in keys))
        self.run_from(self._source.stream("key string"))

    def run_from(self, rows):
        writer = ofa.write_stream(rows.dropDuplicates(["key"]))
        writer = writer.to(ofa.FileSink(str(self._folder / "out"), format="json"))
        self._run(writer.option("checkpointLocation", str(self.checkpoint)))

    def crash(self, doubt, run):
        """Crash with the transaction prepared, before or behind the decision."""
        with pytest.MonkeyPatch.context() as patch:
            failing = failpoints._Failpoints(f"{CRASH[doubt]}=raise", None)
            patch.setattr(failpoints, "_failpoints", failing)
            with pytest.raises(Exception, match="FailpointError"):
                run()

    def repartition(self, partitions, *, skip=False):
        manager = self._spark._streamingCheckpointManager
        manager.repartition(str(self.checkpoint), partitions, not skip)

    def keys(self):
        rows = ofa.read_files(str(self._folder / "out")).to_spark(self._spark)
        return sorted(row.key for row in rows.collect())

    def committed(self):
        return sorted(int(f.name) for f in (self.checkpoint / "commits").glob("[0-9]*"))


@pytest.fixture
def query(spark, source, tmp_path, run, rocks_db):
    return Query(spark, source, tmp_path, run)


@pytest.mark.long
def test_the_query_goes_on_behind_repartitionings(query):
    query.run("a", "b")
    query.run("a", "c")
    query.repartition(3)
    query.run("a", "d")
    assert query.committed() == [0, 1, 2, 3]
    query.repartition(5)
    query.repartition(2)
    query.run("d", "e")
    query.run("e", "f")
    assert query.keys() == list("abcdef")


@pytest.mark.long
def test_an_undecided_batch_that_was_passed_over_is_aborted_and_read_again(spark, query):
    """Spark's source of files fails there by itself: it can't go back to an earlier batch."""
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=3, startTimestamp=0)

    def run():
        query.run_from(numbers.load().selectExpr("CAST(value AS STRING) AS key"))

    run()
    query.crash("undecided", run)
    query.repartition(3, skip=True)
    run()
    assert query.keys() == list("012345")


def test_a_decided_batch_that_was_passed_over_stops_the_start_until_it_is_put_back(query):
    query.run("a", "b")
    query.crash("decided", lambda: query.run("a", "c"))
    query.repartition(3, skip=True)
    for _ in range(2):
        with pytest.raises(ofa.CheckpointMismatchError, match="Batch 1 is decided") as refused:
            query.run()
    named = re.search(r"delete (\S+), (\S+) and (\S+) in", str(refused.value)).groups()
    assert set(named) == {"offsets/2", "commits/1", "commits/2"}
    for name in named:
        file = query.checkpoint / name
        file.unlink()
        with contextlib.suppress(FileNotFoundError):
            file.with_name(f".{file.name}.crc").unlink()
    query.run()
    query.repartition(3)
    query.run("c", "d")
    assert query.keys() == list("abcd")
