"""What Spark's plans tell of a replay: the plans of frames, and those of whole queries."""

import time

import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from onceforall.operators import record_id, with_record_id
from onceforall.spark.determinism import LONGEST_TEXT, Determinism, _weight
from onceforall.spark.execution import execution_of

pytestmark = pytest.mark.spark


class Streamless:
    """An execution of which nothing can be asked: that of a query whose plan was found to be
    deterministic."""


def of_frames():
    """Determinism of frames alone."""
    made = Determinism(Streamless())
    made._of_query = (None,)
    return made


@pytest.fixture(scope="module")
def batch(spark):
    return spark.createDataFrame([("a", 1, 2.0)], "key string, number int, real double")


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("table") / "t")
    spark.range(3).write.parquet(path)
    return path


@F.udf(StringType())
def of_python(text):
    return text


SAME = {
    "the batch itself": lambda b: b,
    "columns of it": lambda b: b.select("key", (F.col("number") + 1).alias("n")).where("n > 0"),
    "more columns than a plan's text shows": lambda b: b.select(
        *[(F.col("number") + n).alias(f"c{n}") for n in range(60)]
    ),
    "counts, extremes and sums of whole numbers": lambda b: b.groupBy("key").agg(
        F.count("*"), F.max("number"), F.min("key"), F.sum("number")
    ),
    "extremes of what is made of texts and whole numbers": lambda b: b.groupBy("key").agg(
        F.max(F.struct(F.upper("key"), F.col("number") + 1)), F.min(F.length("key"))
    ),
    "distinct reals, of which Spark makes one form": lambda b: b.select("real").distinct(),
    "times of texts in a column and in a literal": lambda b: b.select(
        F.expr("try_cast(key || '' as timestamp)"), F.expr("cast('2026-01-01' as date)")
    ),
    "a collation in rows that stay as they are": lambda b: b.where("key collate UTF8_LCASE = 'A'"),
    "a sum of an expression": lambda b: b.groupBy("key").agg(F.sum(F.col("number") * 2 + 1) + 1),
    "an average of decimals": lambda b: b.groupBy("key").agg(
        F.avg(F.col("number").cast("decimal(10,2)"))
    ),
    "a sum of reals that were made whole": lambda b: b.groupBy("key").agg(
        F.sum(F.col("real").cast("bigint"))
    ),
    "distinct rows": lambda b: b.distinct(),
    "duplicates of whole rows removed": lambda b: b.dropDuplicates(),
    "duplicates by every column removed": lambda b: b.select("key").dropDuplicates(["key"]),
    "placed by a key": lambda b: b.repartition(3, "key"),
    "placed by a key, in as many parts as Spark likes": lambda b: b.repartition("key"),
    "all in one task": lambda b: b.coalesce(1),
    "ordered within tasks": lambda b: b.sortWithinPartitions("key"),
    "joined with itself": lambda b: b.alias("l").join(b.alias("r"), "key"),
    "joined with what is distinct in it": lambda b: b.join(
        F.broadcast(b.select("key").distinct()), "key"
    ),
    "exploded": lambda b: b.select(F.explode(F.array("number", "real"))),
    "grouping sets": lambda b: b.cube("key").count(),
}

OTHER = {
    "rand": (lambda b: b.withColumn("r", F.rand()), r"rand\(\)"),
    "rand with a seed": (lambda b: b.withColumn("r", F.rand(7)), r"rand\(\)"),
    "uuid": (lambda b: b.withColumn("r", F.expr("uuid()")), r"uuid\(\)"),
    "shuffle": (lambda b: b.select(F.shuffle(F.array("number", "real"))), r"shuffle\(\)"),
    "the number of a row in its task": (
        lambda b: b.select(F.monotonically_increasing_id()),
        "monotonically_increasing_id",
    ),
    "the number of a task": (lambda b: b.select(F.spark_partition_id()), "spark_partition_id"),
    "a random vector": (
        lambda b: b.select(F.aes_encrypt("key", F.lit("0123456789abcdef"))),
        "deterministic|random vector",
    ),
    "the current time": (lambda b: b.withColumn("t", F.current_timestamp()), "current time"),
    "today": (lambda b: b.where(F.current_date() > "2020-01-01"), "current time"),
    "a Python function": (lambda b: b.select(of_python("key")), "Python function of_python"),
    "a Python function of many rows": (
        lambda b: b.mapInArrow(lambda rows: rows, b.schema),
        "MapInArrow",
    ),
    "a Python function of groups": (
        lambda b: b.groupBy("key").applyInPandas(lambda rows: rows, b.schema),
        "InPandas",
    ),
    "a sum of reals": (lambda b: b.groupBy("key").agg(F.sum("real")), "floating-point"),
    "a sum of an expression of reals": (
        lambda b: b.groupBy("key").agg(F.sum(F.col("real") * 2) + 1),
        "floating-point",
    ),
    "a sum of who knows what": (
        lambda b: b.groupBy("key").agg(F.sum(F.sqrt("number"))),
        "floating-point",
    ),
    "an average of whole numbers": (
        lambda b: b.groupBy("key").agg(F.avg("number")),
        "floating-point",
    ),
    "a list": (
        lambda b: b.groupBy("key").agg(F.collect_list("number")),
        "order of rows|collect_list",
    ),
    "the first": (lambda b: b.groupBy("key").agg(F.first("number")), "order of rows|first"),
    **{
        f"the aggregate {name}": (
            lambda b, call=call: b.groupBy("key").agg(F.expr(call)),
            "order of rows|floating-point",
        )
        for name, call in {
            "last": "last(number)",
            "any_value": "any_value(number)",
            "max_by": "max_by(number, real)",
            "min_by": "min_by(number, real)",
            "mode": "mode(number)",
            "array_agg": "array_agg(number)",
            "collect_set": "collect_set(number)",
            "approx_percentile": "approx_percentile(number, 0.5)",
            "histogram_numeric": "histogram_numeric(number, 3)",
            "stddev": "stddev(number)",
            "corr": "corr(number, real)",
        }.items()
    },
    **{
        f"{title} with a collation": (
            lambda b, make=make: make(b.withColumn("key", F.expr("key collate UTF8_LCASE"))),
            "equal by their collation",
        )
        for title, make in {
            "distinct texts": lambda b: b.distinct(),
            "no duplicates of texts": lambda b: b.dropDuplicates(),
            "no duplicates by texts": lambda b: b.select("key").dropDuplicates(["key"]),
            "groups of texts": lambda b: b.groupBy("key").count(),
            "groups of texts in arrays": lambda b: b.groupBy(F.array("key")).count(),
            "groups of texts in structs": lambda b: b.select(F.struct("key")).distinct(),
            "the greatest text": lambda b: b.agg(F.max("key")),
            "a join by texts": lambda b: b.alias("l").join(b.alias("r"), "key"),
        }.items()
    },
    **{
        f"an extreme: {title}": (
            lambda b, call=call: b.groupBy("key").agg(F.expr(call)),
            "0.0 and -0.0",
        )
        for title, call in {
            "the greatest real": "max(real)",
            "the least real": "min(real)",
            "the least of small reals": "min(cast(real as float))",
            "the greatest struct with a real": "max(struct(number, real))",
            "the greatest of who knows what": "max(sqrt(number))",
        }.items()
    },
    "a function of Scala": (
        lambda b: b.select(array_to_vector(F.array("real"))),
        "nobody knows what the function",
    ),
    **{
        f"a time that {text} is": (
            lambda b, text=text: b.select(F.expr(text)),
            "another time in a replay",
        )
        for text in (
            "cast('today Europe/Paris' as timestamp)",
            "cast('tomorrow+01:00' as date)",
            "cast(concat('n', 'ow') as timestamp)",
            "to_date(lower('NOW'))",
            "try_cast(cast(encode('today', 'utf-8') as string) as timestamp_ntz)",
        )
    },
    "a limit": (lambda b: b.limit(3), "Limit"),
    "a sample": (lambda b: b.sample(0.5, seed=1), "Sample"),
    "a rank": (
        lambda b: b.withColumn(
            "r", F.row_number().over(Window.partitionBy("key").orderBy("number"))
        ),
        "Window",
    ),
    "duplicates by a key removed": (lambda b: b.dropDuplicates(["key"]), "first row of each key"),
    "ordered as a whole": (lambda b: b.orderBy("key"), "global order"),
    "spread evenly": (lambda b: b.repartition(3), "without a key"),
    "put together": (lambda b: b.coalesce(2), "without a key"),
    "placed by ranges": (lambda b: b.repartitionByRange(3, "key"), "without a key"),
    "rows of another RDD": (
        lambda b: b.union(b.sparkSession.createDataFrame([("a", 1, 2.0)])),
        "RDD",
    ),
    "rows that the function made": (
        lambda b: b.join(b.sparkSession.sql("select * from values ('a') as t(key)"), "key"),
        "from the function itself",
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_a_frame_that_is_the_same_in_each_replay_is_replayed(batch, case):
    assert of_frames().why_not(batch, [SAME[case](batch)]) is None


@pytest.mark.parametrize("case", OTHER)
def test_a_frame_that_may_differ_in_a_replay_is_kept_with_the_reason_in_words(batch, case):
    make, reason = OTHER[case]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(of_frames().why_not(batch, [make(batch)]))


@pytest.mark.parametrize(
    "query", ["{b} join {t} on number = id", "{b} where number in (select id from {t})"]
)
def test_a_table_that_may_change_is_found_also_in_a_subquery(spark, batch, table, query):
    batch.createOrReplaceTempView("batch_of_test")
    frame = spark.sql("select key from " + query.format(b="batch_of_test", t=f"parquet.`{table}`"))
    assert "a table is read" in of_frames().why_not(batch, [frame])


def test_rows_of_an_rdd_are_found_also_in_a_subquery(spark, batch):
    batch.createOrReplaceTempView("batch_of_test")
    spark.range(3).localCheckpoint().createOrReplaceTempView("of_an_rdd")
    query = "select key from batch_of_test where number in (select id from of_an_rdd)"
    for found in (of_frames().why_not, of_frames().why_not_given):
        assert "rows come from an RDD" in found(batch, [spark.sql(query)])


@pytest.mark.parametrize(
    "query",
    [
        "select distinct key from (select key collate UTF8_LCASE as key from {b})",
        "select key collate UTF8_LCASE from {b} union select key collate UTF8_LCASE from {b}",
        "select 1 from {b} where number in (select count(1) from {b} group by key collate UNICODE_CI)",
    ],
)
def test_equality_by_a_collation_is_found_also_in_a_subquery(spark, batch, query):
    batch.createOrReplaceTempView("batch_of_test")
    found = of_frames().why_not(batch, [spark.sql(query.format(b="batch_of_test"))])
    assert found is not None
    assert "equal by their collation" in found


def test_all_frames_of_a_batch_count(batch):
    assert (
        of_frames().why_not(batch, [batch, batch.select("key"), batch.withColumn("t", F.now())])
        is not None
    )


def test_what_a_function_makes_of_a_later_batch_is_looked_at_again(batch):
    made = of_frames()
    frames = [batch.select(F.col("number") + n) for n in range(3)] + [batch.select(F.now())]
    assert [made.why_not(batch, [frame]) is None for frame in frames] == [True, True, True, False]


def test_a_frame_of_another_rdd_is_found_though_its_plan_looks_like_one_before_it(spark, batch):
    made = of_frames()
    other = spark.createDataFrame(batch.rdd.map(tuple), batch.schema)
    assert made.why_not(batch, [batch.select("key")]) is None
    assert "RDD" in made.why_not(batch, [other.select("key")])
    assert made.why_not(batch, [batch.select("key")]) is None
    assert "RDD" in made.why_not(batch, [other.select("key")])


def test_columns_that_a_plans_text_leaves_out_count(batch):
    made = of_frames()
    many = [(F.col("number") + n).alias(f"c{n}") for n in range(60)]
    assert made.why_not(batch, [batch.select(*many, F.lit(1).alias("last"))]) is None
    assert (
        made.why_not(batch, [batch.select(*many, F.current_timestamp().alias("last"))]) is not None
    )


def test_a_plan_that_looks_as_before_is_not_read_again(batch, monkeypatch):
    made = of_frames()
    assert made.why_not(batch, [batch.select("key")]) is None
    monkeypatch.setattr(
        "onceforall.spark.determinism._reason", lambda *_, **__: pytest.fail("it was read again")
    )
    assert made.why_not(batch, [batch.select("key")]) is None


def nested(deep, around):
    made = F.col("number")
    for n in range(deep):
        made = around(made, n)
    return made


@pytest.mark.parametrize(
    "around",
    [
        lambda inner, n: F.nvl(inner, F.lit(n)),
        lambda inner, n: F.expr(f"nvl(number, {n})") + F.ifnull(inner, F.lit(n)),
        lambda inner, n: F.try_add(inner, F.lit(n)),
    ],
    ids=["nvl", "ifnull", "try_add"],
)
def test_functions_forty_deep_are_read_in_a_moment(batch, around):
    began = time.monotonic()
    assert of_frames().why_not(batch, [batch.select(nested(40, around))]) is None
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "around",
    [
        lambda inner, n: F.when(F.col("number") > n, F.lit(n)).otherwise(inner),
        lambda inner, n: F.when(inner > n, F.lit(n)),
        lambda inner, n: F.when(F.col("number") > n, inner),
    ],
    ids=["otherwise", "condition", "value"],
)
def test_cases_forty_deep_are_not_trusted_and_cost_no_memory(batch, around):
    began = time.monotonic()
    reason = of_frames().why_not(batch, [batch.select(nested(40, around))])
    assert "too large or too deep" in reason
    assert time.monotonic() - began < 30
    # Not because there is a CASE.
    assert of_frames().why_not(batch, [batch.select(nested(4, around))]) is None


def test_what_is_read_of_nested_functions_grows_as_they_do(batch):
    def size(deep):
        frame = batch.select(nested(deep, lambda inner, n: F.nvl(inner, F.lit(n))))
        nodes, reason = of_frames()._nodes(frame._jdf.queryExecution().analyzed())
        assert reason is None
        return len(str(nodes))

    assert size(7) < 3 * size(3)


def test_a_case_weighs_twice_for_each_case_around_it():
    deep = "CASE WHEN a THEN " * 20 + "x" + " END" * 20
    assert _weight(deep) > LONGEST_TEXT > 20 * len(deep)
    assert _weight("CASE WHEN a THEN " * 20) > LONGEST_TEXT
    assert _weight("CASE WHEN a THEN b END, " * 1000) < LONGEST_TEXT


def test_a_record_id_is_not_read_for_ever(batch):
    """It has many cases in one another; the plan of `deduplicate` and others with it, too."""
    frame = batch.select(record_id("key", "number", namespace="orders"))
    began = time.monotonic()
    assert "too large or too deep" in of_frames().why_not(batch, [frame])
    assert time.monotonic() - began < 30
    assert of_frames().why_not(batch, [with_record_id(batch, "id", "key", namespace="n")]) is None


def test_a_sum_of_what_a_function_replaces_by_default_is_of_its_parts(batch):
    sums = batch.groupBy("key").agg(F.sum(F.nvl("number", F.lit(0))))
    assert of_frames().why_not(batch, [sums]) is None
    sums = batch.groupBy("key").agg(F.sum(F.nvl("real", F.lit(0.0))))
    assert "floating-point" in of_frames().why_not(batch, [sums])


def test_a_plan_that_cannot_be_read_is_not_trusted(batch):
    assert "can't be read" in Determinism(Streamless()).why_not(batch, [batch])
    assert "can't be read" in of_frames().why_not(batch, [object()])


# --- whole queries --------------------------------------------------------------------------------


def verdict(stream, folder, mode="append"):
    """What is found of a running query, for its own batch."""
    found = []

    def look(batch, _):
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        found.append(
            Determinism(execution_of(batch.sparkSession, query_id)).why_not(batch, [batch])
        )
        batch.collect()

    writer = (
        stream.writeStream.foreachBatch(look)
        .outputMode(mode)
        .option("checkpointLocation", str(folder / "cp"))
    )
    query = writer.trigger(once=True).start()
    assert query.awaitTermination(60)
    (one,) = found
    return one


@pytest.fixture
def stream(spark, tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "1.json").write_text(
        '{"key": "a", "number": 1, "real": 2.0, "at": "2026-01-01T00:00:00Z"}\n'
    )
    return spark.readStream.schema("key string, number int, real double, at timestamp").json(
        str(folder)
    )


SAME_STREAMS = {
    "rows as they are": (lambda s: s, "append"),
    "the time of the batch": (
        lambda s: (
            s.withColumn("t", F.current_timestamp())
            .withColumn("tomorrow", F.expr("cast(date_add(current_date(), 1) as timestamp)"))
            .where(F.now() > "2020-01-01")
        ),
        "append",
    ),
    "counts": (lambda s: s.groupBy("key").agg(F.count("*"), F.sum("number")), "update"),
    "counts in windows": (
        lambda s: (
            s.withWatermark("at", "1 hour")
            .groupBy(F.window("at", "1 hour"), "key")
            .agg(F.max("number"))
        ),
        "update",
    ),
    "two streams": (lambda s: s.select("key").union(s.select("key")), "append"),
}
OTHER_STREAMS = {
    "uuid": (lambda s: s.withColumn("u", F.expr("uuid()")), "append", r"uuid\(\)"),
    "a Python function": (lambda s: s.select(of_python("key")), "append", "of_python"),
    "an average": (lambda s: s.groupBy("key").agg(F.avg("real")), "complete", "floating-point"),
    "the first of its key": (
        lambda s: s.dropDuplicates(["key"]),
        "append",
        "first row of each key",
    ),
}


@pytest.mark.parametrize("case", SAME_STREAMS)
@pytest.mark.sample(3)
def test_a_query_whose_replays_are_the_same_is_replayed(stream, tmp_path, case):
    make, mode = SAME_STREAMS[case]
    assert verdict(make(stream), tmp_path, mode) is None


@pytest.mark.parametrize("case", OTHER_STREAMS)
@pytest.mark.sample(2)
def test_a_query_whose_replays_may_differ_is_kept(stream, tmp_path, case):
    make, mode, reason = OTHER_STREAMS[case]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(verdict(make(stream), tmp_path, mode))


def test_a_join_of_a_stream_with_a_table_is_kept(spark, stream, table, tmp_path):
    joined = stream.join(spark.read.parquet(table), F.col("number") == F.col("id"))
    assert "a table is read" in verdict(joined, tmp_path)


def test_a_source_that_is_not_known_to_replay_is_kept(stream, tmp_path, monkeypatch):
    monkeypatch.setattr("onceforall.spark.determinism.SOURCES", frozenset())
    assert "the source FileStreamSource" in verdict(stream, tmp_path)
