from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import StructType

from onceforall.errors import SchemaError
from onceforall.sinks.kafka import KafkaSink

SERVERS = {"bootstrap.servers": "127.0.0.1:9092"}
HEADERS = "headers array<struct<key:string,value:binary>>"


@pytest.fixture(scope="module")
def spark(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def columns(ddl, topic="t", **arguments):
    return KafkaSink(SERVERS, topic=topic, **arguments).columns(StructType.fromDDL(ddl))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ddl", "topic", "found", "wanted"),
    [
        ("key string", "t", "value", "STRING or BINARY"),
        ("value int", "t", "INT", "STRING or BINARY"),
        ("value struct<a:int>", "t", "STRUCT<A:INT>", "to_json"),
        ("value string, key bigint", "t", "'key' is BIGINT", "STRING or BINARY"),
        ("value string", None, "no topic", "topic="),
        ("value string, topic binary", None, "'topic' is BINARY", "STRING"),
        ("value string, partition bigint", "t", "'partition' is BIGINT", "INT"),
        ("value string, partition string", "t", "'partition' is STRING", "INT"),
        (
            "value string, headers map<string,binary>",
            "t",
            "headers",
            "array<struct<key:string,value:binary>>",
        ),
        (
            "value string, headers array<struct<key:string,value:string>>",
            "t",
            "headers",
            "array<struct<key:string,value:binary>>",
        ),
        (
            "value string, headers array<struct<name:string,value:binary>>",
            "t",
            "headers",
            "array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_a_column_of_the_wrong_type_is_named_with_what_is_wanted(spark, ddl, topic, found, wanted):
    with pytest.raises(SchemaError) as caught:
        columns(ddl, topic)
    assert found in str(caught.value)
    assert wanted in str(caught.value)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ddl", "found"),
    [
        ("value string, at timestamp_ntz", "TIMESTAMP_NTZ"),
        ("value string", "'at'"),
        ("value string, at bigint", "BIGINT"),
    ],
)
def test_a_wrong_timestamp_column_is_named(spark, ddl, found):
    with pytest.raises(SchemaError, match=found):
        columns(ddl, timestamp_column="at")


@pytest.mark.spark
def test_the_columns_are_named_and_cast_as_the_writer_wants_them(spark):
    ddl = (
        f"value string, key string, topic string, partition int, {HEADERS}, `event time` "
        "timestamp, other int"
    )
    sink = KafkaSink(SERVERS, timestamp_column="event time")
    rows = spark.createDataFrame([], ddl)
    written = rows.select(sink.columns(rows.schema)).schema
    assert [(f.name, f.dataType.simpleString()) for f in written] == [
        ("value", "binary"),
        ("key", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("timestamp", "bigint"),
    ]


@pytest.mark.spark
def test_the_topic_option_makes_the_topic_column_superfluous(spark):
    rows = spark.createDataFrame([], "value binary, topic int")
    assert rows.select(KafkaSink(SERVERS, topic="t").columns(rows.schema)).columns == ["value"]


@pytest.mark.spark
@pytest.mark.kafka
def test_rows_of_a_spark_job_arrive_with_all_their_columns(spark, query, topic, until, committed):
    name = topic(partitions=2)
    q = query(None, timestamp_column="at")
    rows = spark.sql(
        f"""select concat('v', id) as value, if(id = 3, null, concat('k', id)) as key, '{name}' as topic, cast(id % 2 as int) as partition,
        array(struct('h' as key, cast('x' as binary) as value)) as headers, timestamp_millis(1700000000000 + id) as at from range(100)"""
    )
    sink, attempt = q.sink, q.attempt()
    attempts = [q.attempt(slot=slot) for slot in range(4)]

    def write(batches):
        from pyspark import TaskContext

        transaction = sink.begin_transaction(attempts[TaskContext.get().partitionId()])
        for batch in batches:
            sink.invoke(transaction, batch)
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict(
            {"committable": [pickle.dumps(sink.pre_commit(transaction))]}
        )

    assert attempt.batch == 1
    answers = (
        rows.select(sink.columns(rows.schema))
        .repartition(2)
        .mapInArrow(write, "committable binary")
        .collect()
    )
    committables = [pickle.loads(bytes(answer.committable)) for answer in answers]
    assert sum(c["records"] for c in committables if c) == 100
    q.commit(*[c for c in committables if c])
    messages = until(lambda: committed(name))
    assert len(messages) == 100
    for message in messages:
        number = int(message.value()[1:])
        assert message.key() == (None if number == 3 else b"k%d" % number)
        assert message.partition() == number % 2
        assert message.headers() == [("h", b"x")]
        assert message.timestamp()[1] == 1_700_000_000_000 + number
