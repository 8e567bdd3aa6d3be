"""What several jobs of a batch read is computed once, whoever persists, unpersists or clears
meanwhile."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame

import onceforall as ofa
from onceforall.driver import batch_writer
from onceforall.spark.connect.caches import PersistedRows
from onceforall.spark.determinism import Determinism
from onceforall.spark.shared_rows import SharedRows

pytestmark = pytest.mark.spark

COUNT = 400
DRAWN = "reflect('java.util.UUID', 'randomUUID')"
"""Another value each time that it is computed; no Python runs for it."""


@pytest.fixture
def stream(source):
    """The rows of one batch, each with a value that the query draws."""
    source.add(*({"key": f"k{n % 3}", "value": f"v{n}"} for n in range(COUNT)))
    return lambda: source.stream().withColumn("token", F.expr(DRAWN))


@pytest.fixture
def sinks(tmp_path):
    return {name: ofa.FileSink(tmp_path / name) for name in ("low", "high")}


@pytest.fixture
def split(tmp_path, sinks, run):
    """Run a function over the stream; then return what both sinks have, in order."""

    def start(function, frame, mode="append"):
        process = ofa.exactly_once(tmp_path / "cp", sinks=sinks)(function)
        writing = frame.writeStream.foreachBatch(process).outputMode(mode)
        run(writing.option("checkpointLocation", str(tmp_path / "cp")))
        return in_both(tmp_path)

    return start


def in_both(folder):
    return sorted(
        row["value"]
        for name in ("low", "high")
        for row in ofa.read_files(folder / name).to_arrow().to_pylist()
    )


def expected():
    return sorted(f"v{n}" for n in range(COUNT))


def low(frame):
    return frame.where("token < '8'").select("value")


def high(frame):
    return frame.where("token >= '8'").select("value")


@contextmanager
def behind_each_job(action):
    """Do something whenever a job of a batch has ended."""
    hit = batch_writer.failpoints.hit

    def noticed(name):
        if name == "write.job.after":
            action()
        hit(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_writer.failpoints, "hit", noticed)
        yield


@pytest.mark.parametrize("how", ["is kept", "is unpersisted", "is computed first"])
@pytest.mark.long
def test_the_batch_is_computed_once_where_a_part_of_it_is_persisted(split, stream, spark, how):
    """Spark plans a frame when it is persisted, by what is in the cache then."""
    before = spark.sparkContext._jsc.getPersistentRDDs().size()

    def process(batch, batch_id, transaction):
        part = high(batch).persist()
        if how == "is computed first":
            part.count()
        transaction.write("low", low(batch))
        transaction.write("high", part)
        if how == "is unpersisted":
            part.unpersist()

    assert split(process, stream()) == expected()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before + (how != "is unpersisted")
    spark.catalog.clearCache()


@pytest.mark.long
def test_a_part_that_only_a_subquery_reads_is_held_too(split, source, spark):
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))

    def process(batch, batch_id, transaction):
        drawn = batch.select("value", F.expr(DRAWN).alias("token")).persist()
        drawn.createOrReplaceTempView("drawn")
        batch.createOrReplaceTempView("all_of_it")
        for name, which in (("low", "token < '8'"), ("high", "token >= '8'")):
            chosen = (
                f"SELECT * FROM all_of_it WHERE value IN (SELECT value FROM drawn WHERE {which})"
            )
            transaction.write(name, batch.sparkSession.sql(chosen))
        drawn.unpersist()

    assert split(process, source.stream()) == expected()


def test_one_job_that_reads_the_batch_twice_gets_one_computation(split, source, stream):
    def process(batch, batch_id, transaction):
        transaction.write("low", low(batch).unionByName(high(batch)))

    # The first batch of a query is read once more, for the state that it may have.
    assert split(process, stream()) == expected()
    source.add(*({"key": "k", "value": f"w{n}"} for n in range(COUNT)))
    written = split(process, source.stream().withColumn("token", F.expr(DRAWN)))
    assert written == sorted([*expected(), *(f"w{n}" for n in range(COUNT))])


def in_a_cte(batch):
    batch.createOrReplaceTempView("batch")
    return batch.sparkSession.sql(
        "WITH t AS (SELECT * FROM batch) SELECT value FROM t WHERE token < '8' "
        "UNION ALL SELECT value FROM t WHERE token >= '8'"
    )


def through_its_rdd(batch):
    same = batch.sparkSession.createDataFrame(batch.rdd, batch.schema)
    return low(same).unionByName(high(same))


def behind_a_checkpoint_to_come(batch):
    return low(batch).unionByName(high(batch).localCheckpoint(eager=False))


def in_pairs(batch):
    """Each row with both halves, of which only one says yes, whatever the row was drawn as."""
    session = batch.sparkSession
    halves = session.range(8, numPartitions=4).selectExpr("id < 4 AS first", "id % 4 AS n")
    pairs = batch.hint("shuffle_replicate_nl").crossJoin(halves)
    return pairs.where("n = 0 AND (token < '8') = first").select("value")


@pytest.mark.parametrize("made", [in_a_cte, through_its_rdd, behind_a_checkpoint_to_come, in_pairs])
@pytest.mark.sample(2)
@pytest.mark.long
def test_one_job_that_reads_the_batch_twice_in_a_way_that_hides_it(split, source, made):
    def process(batch, batch_id, transaction):
        transaction.write("low", made(batch))

    def drawn():
        return source.stream().repartition(3).withColumn("token", F.expr(DRAWN))

    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    split(process, drawn())  # The first one of a query is read once more, for its state.
    source.add(*({"key": "k", "value": f"w{n}"} for n in range(COUNT)))
    assert split(process, drawn()) == sorted([*expected(), *(f"w{n}" for n in range(COUNT))])


@pytest.mark.parametrize("how", ["right", "full"])
@pytest.mark.sample(1)
@pytest.mark.long
def test_an_outer_join_without_keys_gets_one_computation(split, source, tmp_path, how):
    """Spark runs it twice: for the pairs, and for those that are in none."""
    drawn = "CAST(conv(substr(token, 1, 6), 16, 10) AS bigint)"

    def process(batch, batch_id, transaction):
        numbers = batch.sparkSession.range(COUNT).withColumnRenamed("id", "n")
        near = F.expr(f"n <= {drawn} % {COUNT} AND n >= {drawn} % {COUNT}")
        per_number = batch.join(numbers, near, how).groupBy("n")
        told = per_number.agg(F.expr("count(value) AS rows"), F.expr("count(*) AS lines"))
        transaction.write("low", told.selectExpr(f"'{batch_id}' AS value", "n", "rows", "lines"))

    for name in ("v", "w"):  # The first batch of a query is read once more, for its state.
        source.add(*({"key": "k", "value": f"{name}{n}"} for n in range(COUNT)))
        split(process, source.stream().withColumn("token", F.expr(DRAWN)))
    found = ofa.read_files(tmp_path / "low").to_arrow().to_pylist()
    second = [row for row in found if row["value"] == "1"]
    assert sorted(row["n"] for row in second) == list(range(COUNT))
    assert all(row["lines"] == max(row["rows"], 1) for row in second)


def test_a_job_that_joins_the_batch_with_something_else_reads_it_once(split, source, spark):
    """It would cost something to keep the rows for nothing."""
    before, seen = set(spark.sparkContext._jsc.getPersistentRDDs().keySet()), []

    def process(batch, batch_id, transaction):
        names = batch.sparkSession.createDataFrame([("k", "name")], "key string, name string")
        transaction.write("low", batch.join(names, "key").select("value"))

    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    split(process, source.stream())
    source.add({"key": "k", "value": "w"})
    kept = spark.sparkContext._jsc.getPersistentRDDs
    with behind_each_job(lambda: seen.append(set(kept().keySet()) - before)):
        assert split(process, source.stream()) == sorted([*expected(), "w"])
    assert seen == [set()]


@pytest.mark.parametrize("persists", [False, True])
def test_a_batch_that_one_job_reads_is_kept_if_the_function_asks_for_it(
    split, stream, spark, persists
):
    before, seen = spark.sparkContext._jsc.getPersistentRDDs().size(), []

    def process(batch, batch_id, transaction):
        if persists:
            batch.persist()
        transaction.write("low", batch)
        batch.unpersist()

    kept = spark.sparkContext._jsc.getPersistentRDDs
    with behind_each_job(lambda: seen.append(kept().size())):
        assert split(process, stream()) == expected()
    assert seen == [before + persists]
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


def test_what_the_function_has_computed_of_the_whole_batch_is_what_is_written(
    split, stream, tmp_path
):
    seen = {}

    def process(batch, batch_id, transaction):
        seen.update({row["value"]: row["token"] for row in batch.collect()})
        transaction.write("low", batch.select("value", "token"))

    split(process, stream())
    written = ofa.read_files(tmp_path / "low").to_arrow().to_pylist()
    assert {row["value"]: row["token"] for row in written} == seen
    assert len(seen) == COUNT


def test_whoever_clears_sparks_cache_between_two_jobs_changes_nothing_for_the_batch(
    stream, sinks, run, spark, tmp_path
):
    made = ofa.write_stream(stream()).option("checkpointLocation", str(tmp_path / "cp"))
    made.to(sinks["low"], name="low", transform=low).to(sinks["high"], name="high", transform=high)
    with behind_each_job(spark.catalog.clearCache):
        run(made)
    assert in_both(tmp_path) == expected()


def all_rdds(spark, _):
    """As one finds it on the web."""
    for rdd in spark.sparkContext._jsc.getPersistentRDDs().values():
        rdd.unpersist()


def another_view(spark, _):
    spark.range(1).createOrReplaceTempView("drawn")


GIVES_UP = {
    "unpersist": lambda spark, drawn: drawn.unpersist(blocking=True),
    "unpersist in the JVM": lambda spark, drawn: drawn._jdf.unpersist(True),
    "uncacheTable": lambda spark, _: spark.catalog.uncacheTable(tableName="drawn"),
    "UNCACHE TABLE": lambda spark, _: spark.sql("UNCACHE TABLE drawn -- for it is written"),
    "dropTempView": lambda spark, _: spark.catalog.dropTempView(viewName="drawn"),
    "DROP VIEW": lambda spark, _: spark.sql("DROP VIEW drawn"),
    "another view of the name": another_view,
    "clearCache": lambda spark, _: spark.catalog.clearCache(),
    "CLEAR CACHE": lambda spark, _: spark.sql("clear cache;").collect(),
}


def some_are_long(cases, *short):
    """Cases that differ little, of which some are enough for the short tests."""
    return [each if each in short else pytest.param(each, marks=pytest.mark.long) for each in cases]


@pytest.mark.parametrize(
    "how", some_are_long(GIVES_UP, "unpersist", "uncacheTable", "DROP VIEW", "clearCache")
)
@pytest.mark.sample(2)
def test_what_a_function_has_looked_at_is_what_is_written_though_it_gives_it_up(
    split, source, spark, how
):
    def cached(frame):
        frame.withColumn("token", F.expr(DRAWN)).createOrReplaceTempView("drawn")
        frame.sparkSession.catalog.cacheTable("drawn")
        return frame.sparkSession.table("drawn")

    def process(batch, batch_id, transaction):
        drawn = cached(batch)
        seen = [(row["value"],) for row in low(drawn).collect()]
        transaction.write("low", spark.createDataFrame(seen, "value string"))
        transaction.write("high", high(drawn))
        GIVES_UP[how](batch.sparkSession, drawn)
        assert drawn.storageLevel.useMemory == stays, "as the function has it"

    # In Spark 4.0 what a view caches outlives `DROP VIEW`.
    alone = cached(spark.range(1).withColumn("value", F.lit("v")))
    GIVES_UP[how](spark, alone)
    stays = alone.storageLevel.useMemory
    assert not stays or spark.version.startswith("4.0.")
    alone.unpersist()

    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    assert split(process, source.stream()) == expected()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() <= before + stays
    spark.catalog.clearCache()


def test_caches_of_caches_are_given_up_too(split, source, spark):
    def process(batch, batch_id, transaction):
        drawn = batch.withColumn("token", F.expr(DRAWN)).persist()
        lower = low(drawn).persist()
        lower.count()
        upper = high(drawn).persist()
        transaction.write("low", lower)
        transaction.write("high", upper)
        for frame in (drawn, lower, upper):
            frame.unpersist()

    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    assert split(process, source.stream()) == expected()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


@pytest.mark.long
def test_what_a_function_reads_anew_and_persists_again_stays_and_is_what_is_written(
    split, source, spark, tmp_path
):
    def names(name):
        spark.createDataFrame([("k", name)], "key string, name string").write.mode(
            "overwrite"
        ).parquet(str(tmp_path / "names"))
        return spark.read.parquet(str(tmp_path / "names")).persist()

    held = []

    def process(batch, batch_id, transaction):
        known = names("before")
        transaction.write("low", batch.join(known, "key").selectExpr("name AS value"))
        known.unpersist()
        held.append(names("behind"))
        transaction.write("high", batch.join(held[0], "key").selectExpr("name AS value"))

    source.add({"key": "k", "value": "v"})
    assert split(process, source.stream()) == ["before", "behind"]
    assert held[0].storageLevel.useMemory
    held[0].unpersist()


@pytest.mark.long
def test_a_table_is_persisted_and_given_up_for_each_write(split, source, spark, tmp_path):
    """As other queries of the application may do with the same one at the same time."""
    path = str(tmp_path / "names")
    spark.createDataFrame([("k", "name")], "key string, name string").write.parquet(path)
    names = spark.read.parquet(path)

    def process(batch, batch_id, transaction):
        drawn = batch.withColumn("token", F.expr(DRAWN)).persist()
        for sink, part in (("low", low(drawn)), ("high", high(drawn))):
            known = names.persist()
            if sink == "high":
                batch.sparkSession.newSession().read.parquet(path)._jdf.unpersist(True)
            transaction.write(sink, part.join(known, F.expr("name = 'name'")).select("value"))
            names.unpersist()
            joined = batch.join(names.persist(), "key").persist()
            joined.count()
            joined.unpersist()
        drawn.unpersist()
        batch.sparkSession.catalog.clearCache()
        transaction.write("low", drawn.join(names, F.expr("name = 'other'")).select("value"))

    for name in ("v", "w"):
        source.add(*({"key": "k", "value": f"{name}{n}"} for n in range(COUNT)))
        written = split(process, source.stream())
    assert written == sorted([*expected(), *(f"w{n}" for n in range(COUNT))])


@pytest.mark.parametrize("how", ["persist", "cache", "persist in a thread"])
@pytest.mark.long
def test_what_somebody_takes_away_before_the_first_write_fails_the_attempt(
    split, source, spark, tmp_path, how
):
    method, _, in_a_thread = how.partition(" ")

    def kept(frame):
        if not in_a_thread:
            return getattr(frame, method)()
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(getattr(frame, method)).result()

    def by_another_thread():
        clearing = threading.Thread(target=spark.newSession().catalog.clearCache)
        clearing.start()
        clearing.join()

    by_whom = [by_another_thread, lambda: None]
    methods = [DataFrame.persist, DataFrame.cache, DataFrame.unpersist]

    def process(batch, batch_id, transaction):
        given_up = batch.select("key").persist()
        given_up.unpersist()
        drawn = kept(batch.withColumn("token", F.expr(DRAWN)))
        drawn.count()
        by_whom.pop(0)()
        transaction.write("low", low(drawn))
        transaction.write("high", high(drawn))
        drawn.unpersist()

    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    with pytest.raises(Exception, match="Spark's cache was emptied"):
        split(process, source.stream())
    assert in_both(tmp_path) == []
    assert split(process, source.stream()) == expected()
    assert [DataFrame.persist, DataFrame.cache, DataFrame.unpersist] == methods


@pytest.mark.long
def test_a_frame_that_is_made_and_persisted_anew_for_each_batch_has_its_first_cache(
    split, source, spark, tmp_path
):
    path = str(tmp_path / "names")
    spark.createDataFrame([("k", "name")], "key string, name string").write.parquet(path)

    def process(batch, batch_id, transaction):
        for sink in ("low", "high"):
            # Spark finds out that it has it.
            names = batch.sparkSession.read.parquet(path).cache()
            drawn = batch.withColumn("token", F.expr(DRAWN)).cache()
            part = low(drawn) if sink == "low" else high(drawn)
            transaction.write(sink, part.join(names, F.expr("name = 'name'")).select("value"))

    for name in ("v", "w"):
        source.add(*({"key": "k", "value": f"{name}{n}"} for n in range(COUNT)))
        written = split(process, source.stream())
    assert written == sorted([*expected(), *(f"w{n}" for n in range(COUNT))])
    spark.catalog.clearCache()


def test_parts_that_are_persisted_and_given_up_one_after_the_other_are_written(split, stream):
    def process(batch, batch_id, transaction):
        session = batch.sparkSession
        for name, part in (("low", low(batch)), ("high", high(batch))):
            part.createTempView("part")
            session.catalog.cacheTable("part")
            transaction.write(name, session.table("part"))
            session.catalog.dropTempView("part")

    assert split(process, stream()) == expected()


def test_rows_that_a_function_has_looked_at_in_part_are_what_is_written(split, source, tmp_path):
    seen = []

    def process(batch, batch_id, transaction):
        seen.append(batch.first()["token"])
        transaction.write("low", batch.select("value", "token"))

    for name in ("v", "w"):  # The first batch of a query is read once more, for its state.
        source.add(*({"key": "k", "value": f"{name}{n}"} for n in range(COUNT)))
        split(process, source.stream().repartition(3).withColumn("token", F.expr(DRAWN)))
    written = ofa.read_files(tmp_path / "low").to_arrow().to_pylist()
    assert len(seen) == 2
    assert set(seen) <= {row["token"] for row in written}


def test_an_rdd_that_the_function_persists_stays_until_its_frames_are_written(split, source, spark):
    def process(batch, batch_id, transaction):
        rdd = batch.rdd.map(lambda row: (row["value"], uuid.uuid4().hex)).cache()
        drawn = batch.sparkSession.createDataFrame(rdd, "value string, token string")
        transaction.write("low", low(drawn))
        transaction.write("high", high(drawn))
        rdd.unpersist()

    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    before = set(spark.sparkContext._jsc.getPersistentRDDs())
    assert split(process, source.stream()) == expected()
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= before


def in_two_batches(source):
    """The two batches of a query, one run for each."""
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    yield 0
    source.add({"key": "k", "value": "of the second batch"})
    yield 1


@pytest.mark.parametrize(
    "how", some_are_long(["persist", "cacheTable", "CACHE TABLE", "RDD"], "persist", "RDD")
)
def test_what_a_function_keeps_for_the_next_batch_is_what_that_one_writes(
    split, source, spark, tmp_path, how
):
    kept, rdds = [], []

    def keep(batch):
        drawn = batch.withColumn("token", F.expr(DRAWN)).select("value", "token")
        session = batch.sparkSession
        if how == "persist":
            return drawn.persist()
        if how == "RDD":
            rdds.append(drawn.rdd.cache())
            return session.createDataFrame(rdds[0], drawn.schema)
        drawn.createOrReplaceTempView("kept")
        if how == "cacheTable":
            session.catalog.cacheTable("kept")
        else:
            session.sql("CACHE TABLE kept")
        return session.table("kept")

    def process(batch, batch_id, transaction):
        if not kept:
            kept.append(keep(batch))
            seen = kept[0].collect()
            transaction.write("low", batch.sparkSession.createDataFrame(seen, kept[0].schema))
        elif batch_id == 1:
            transaction.write("high", kept[0])
            (rdds or kept)[0].unpersist()

    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    for _ in in_two_batches(source):
        split(process, source.stream())
    first, second = (
        {
            row["value"]: row["token"]
            for row in ofa.read_files(tmp_path / name).to_arrow().to_pylist()
        }
        for name in ("low", "high")
    )
    assert len(first) == COUNT
    assert second == first
    assert spark.sparkContext._jsc.getPersistentRDDs().size() <= before
    spark.catalog.clearCache()


def test_the_batch_itself_stays_persisted_until_the_function_gives_it_up(
    split, source, spark, tmp_path
):
    kept, seen = [], []

    def process(batch, batch_id, transaction):
        kept.append(batch.persist())
        seen.append({row["value"]: row["token"] for row in batch.collect()})
        transaction.write("low", batch.select("value", "token"))
        if batch_id == 1:
            transaction.write("high", kept[0].select("value", "token"))
            assert {row["value"]: row["token"] for row in kept[0].collect()} == seen[0]
            for each in kept:
                each.unpersist()

    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    for _ in in_two_batches(source):
        split(process, source.stream().withColumn("token", F.expr(DRAWN)))
    rows = ofa.read_files(tmp_path / "high").to_arrow().to_pylist()
    assert {row["value"]: row["token"] for row in rows} == seen[0]
    assert len(rows) == COUNT
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


@pytest.mark.long
def test_an_rdd_that_only_a_subquery_reads_is_held_too(split, source, spark):
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))

    def process(batch, batch_id, transaction):
        rdd = batch.rdd.map(lambda row: (row["value"], uuid.uuid4().hex)).cache()
        session = batch.sparkSession
        session.createDataFrame(rdd, "value string, token string").createOrReplaceTempView("drawn")
        batch.createOrReplaceTempView("all_of_it")
        for name, which in (("low", "token < '8'"), ("high", "token >= '8'")):
            chosen = (
                f"SELECT * FROM all_of_it WHERE value IN (SELECT value FROM drawn WHERE {which})"
            )
            transaction.write(name, session.sql(chosen))
        rdd.unpersist()

    assert split(process, source.stream()) == expected()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT value, d, (SELECT count(*) FROM numbers WHERE id < d) AS c FROM all_of_it",
        "SELECT value, d, c FROM all_of_it, LATERAL (SELECT count(*) AS c FROM numbers WHERE id < d)",
    ],
)
@pytest.mark.sample(1)
@pytest.mark.long
def test_a_correlated_subquery_reads_the_rows_that_are_written(
    split, source, spark, tmp_path, query
):
    """Spark reads the batch once more for the values that the subquery is computed for."""

    def process(batch, batch_id, transaction):
        batch.createOrReplaceTempView("all_of_it")
        batch.sparkSession.range(100).createOrReplaceTempView("numbers")
        transaction.write("low", batch.sparkSession.sql(query))

    # The first batch of a query is read once more, for the state that it may have.
    source.add({"key": "k", "value": "first"})
    drawn = f"CAST(conv(substr({DRAWN}, 1, 6), 16, 10) AS bigint) % 100 AS d"
    split(process, source.stream().selectExpr("value", drawn))
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    split(process, source.stream().selectExpr("value", drawn))
    rows = ofa.read_files(tmp_path / "low").to_arrow().to_pylist()
    assert len(rows) == COUNT + 1
    assert [row for row in rows if row["c"] != row["d"]] == []


def test_a_frame_may_be_persisted_with_the_level_none(split, source):
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))

    def process(batch, batch_id, transaction):
        drawn = batch.withColumn("token", F.expr(DRAWN)).persist(StorageLevel.NONE)
        transaction.write("low", drawn.select("value"))

    assert split(process, source.stream()) == expected()


@pytest.mark.long
def test_what_a_persisted_frame_observes_is_observed(split, source):
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    observations = []

    def process(batch, batch_id, transaction):
        observations.append(Observation())
        drawn = batch.withColumn("token", F.expr(DRAWN))
        drawn = drawn.observe(observations[-1], F.count(F.lit(1)).alias("n")).persist()
        transaction.write("low", low(drawn))
        transaction.write("high", high(drawn))
        drawn.unpersist()

    assert split(process, source.stream()) == expected()
    assert [each.get for each in observations] == [{"n": COUNT}]


CACHED_AS = {
    "a view": lambda batch: (
        batch.createOrReplaceTempView("the_batch"),
        batch.sparkSession.sql("CACHE TABLE the_batch"),
    ),
    "the class": lambda batch: batch.transform(DataFrame.cache),
    "an alias": lambda batch: batch.alias("a").persist(),
}


@pytest.mark.parametrize("how", some_are_long(CACHED_AS, "an alias"))
def test_the_batch_is_given_up_also_where_it_was_cached_under_another_name(
    split, source, spark, how
):
    def process(batch, batch_id, transaction):
        CACHED_AS[how](batch)
        transaction.write("low", batch.select("value"))
        batch.unpersist()

    spark.catalog.clearCache()
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    assert split(process, source.stream()) == expected()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


def test_a_frame_that_two_threads_write_is_computed_once(split, source, tmp_path):
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))

    def process(batch, batch_id, transaction):
        known = batch.withColumn("token", F.expr(DRAWN)).persist()
        drawn = known.select("value", F.expr(DRAWN).alias("token"))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda name: transaction.write(name, drawn), ("low", "high")))
        known.unpersist()

    split(process, source.stream())
    low_rows, high_rows = (
        {
            row["value"]: row["token"]
            for row in ofa.read_files(tmp_path / name).to_arrow().to_pylist()
        }
        for name in ("low", "high")
    )
    assert len(low_rows) == COUNT
    assert low_rows == high_rows


def test_a_thread_of_the_function_may_give_up_what_the_function_has_persisted(split, source):
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))

    def process(batch, batch_id, transaction):
        drawn = batch.withColumn("token", F.expr(DRAWN)).persist()
        drawn.count()
        thread = threading.Thread(target=drawn.unpersist)
        thread.start()
        thread.join()
        transaction.write("low", drawn.select("value"))

    assert split(process, source.stream()) == expected()


def test_what_a_thread_of_the_function_has_persisted_a_thread_may_clear(split, source):
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))

    def process(batch, batch_id, transaction):
        drawn = batch.withColumn("token", F.expr(DRAWN))
        with ThreadPoolExecutor(1) as threads:
            threads.submit(drawn.persist).result()
            drawn.count()
            threads.submit(batch.sparkSession.catalog.clearCache).result()
        transaction.write("low", drawn.select("value"))

    assert split(process, source.stream()) == expected()


@pytest.mark.parametrize("writes", [1, 2])
@pytest.mark.sample(1)
def test_a_function_that_unpersists_all_rdds_takes_what_it_has_written_along(
    split, source, spark, tmp_path, writes
):
    def process(batch, batch_id, transaction):
        if batch_id == 0:
            return  # It is read for the state that the query may have, besides.
        drawn = batch.withColumn("token", F.expr(DRAWN)).persist()
        drawn.count()
        transaction.write("low", low(drawn))
        if writes == 2:
            transaction.write("high", high(drawn))
        all_rdds(spark, None)

    told = pytest.raises(Exception, match="Spark's cache was emptied.*RDD.unpersist")
    for number in in_two_batches(source):
        with told if number else nullcontext():
            split(process, source.stream())
    assert in_both(tmp_path) == []
    spark.catalog.clearCache()


@pytest.mark.parametrize("looks", [False, True])
def test_what_a_function_persists_is_computed_once_for_all_its_writes(
    split, source, spark, monkeypatch, looks
):
    """Also where computing it again would give the same, for it may take long."""
    monkeypatch.setattr(Determinism, "why_not_given", lambda *_: None)
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    computed = spark.sparkContext.accumulator(0)

    @F.udf("string")
    def dear(value):
        computed.add(1)
        return value

    def process(batch, batch_id, transaction):
        rows = batch.withColumn("dear", dear("value")).persist()
        if looks:
            rows.count()
        for digit in range(3):
            transaction.write("low", rows.where(f"dear LIKE '%{digit}'").select("value"))
        rest = rows.where("dear NOT LIKE '%0' AND dear NOT LIKE '%1' AND dear NOT LIKE '%2'")
        transaction.write("high", rest.select("value"))
        rows.unpersist()

    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    assert split(process, source.stream()) == expected()
    assert computed.value == COUNT
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


def test_a_cache_of_the_applications_that_is_given_up_is_computed_once_more_for_all_and_freed(
    split, source, spark
):
    def drawn():
        return spark.range(COUNT).selectExpr("concat('v', id) AS value", f"{DRAWN} AS token")

    known = drawn().persist()
    known.count()

    def process(batch, batch_id, transaction):
        joined = batch.join(known, "value")
        transaction.write("low", low(joined))
        transaction.write("high", high(joined))
        known.unpersist()

    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    assert split(process, source.stream()) == expected()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before - 1


def test_a_cache_of_the_applications_that_somebody_clears_between_two_jobs_aborts_the_attempt(
    split, source, spark, tmp_path
):
    source.add(*({"key": "k", "value": f"v{n}"} for n in range(COUNT)))
    known = spark.range(COUNT).selectExpr("concat('v', id) AS value", f"{DRAWN} AS token")
    known.persist().count()

    def process(batch, batch_id, transaction):
        joined = batch.join(known, "value")
        transaction.write("low", low(joined))
        transaction.write("high", high(joined))

    told = pytest.raises(Exception, match="Spark's cache was emptied while the jobs.*clearCache")
    with behind_each_job(spark.catalog.clearCache), told:
        split(process, source.stream())
    assert in_both(tmp_path) == []
    known.persist().count()
    assert split(process, source.stream()) == expected()
    known.unpersist()


def test_rows_that_somebody_takes_away_between_two_jobs_abort_the_attempt(
    split, stream, spark, tmp_path
):
    def process(batch, batch_id, transaction):
        transaction.write("low", low(batch))
        transaction.write("high", high(batch))
        all_rdds(batch.sparkSession, None)  # No job has read them yet.

    told = pytest.raises(Exception, match="Spark's cache was emptied.*RDD.unpersist")
    with behind_each_job(lambda: all_rdds(spark, None)), told:
        split(process, stream())
    assert in_both(tmp_path) == []
    assert split(process, stream()) == expected()


@pytest.mark.parametrize("kind", [SharedRows, lambda frame: PersistedRows(frame, None)])
def test_what_one_pass_over_a_batch_needs_the_next_one_gets(spark, kind):
    """A batch that is looked at first is written from the rows of which its state is."""
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    shared = kind(spark.range(4).withColumn("token", F.expr(DRAWN)))
    assert shared.keep(needed=True)
    seen = sorted(map(tuple, shared.frame.collect()))
    assert shared.keep(needed=False)
    assert sorted(map(tuple, shared.frame.collect())) == seen
    shared.release()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


@pytest.mark.parametrize("persists", [False, True])
def test_a_stateful_query_runs_its_operators_once(source, sinks, tmp_path, spark, persists):
    source.add(*({"key": f"k{n}", "value": f"v{n}"} for n in range(40)))

    @ofa.exactly_once(tmp_path / "cp", sinks=sinks)
    def process(batch, batch_id, transaction):
        part = batch.where("key < 'k2'")
        transaction.write("low", part.persist() if persists else part)
        transaction.write("high", batch.where("key >= 'k2'"))

    frame = source.stream().dropDuplicates(["key"])
    writing = frame.writeStream.foreachBatch(process).trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(tmp_path / "cp")).start()
    assert query.awaitTermination(120)
    updated = [
        state["numRowsUpdated"]
        for progress in query.recentProgress
        for state in progress["stateOperators"]
    ]
    assert sum(updated) == 40
    assert in_both(tmp_path) == sorted(f"v{n}" for n in range(40))
    spark.catalog.clearCache()
