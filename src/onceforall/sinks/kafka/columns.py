"""Which columns the Kafka sink writes: the contract of Spark's own Kafka sink, so that changing to
this one changes nothing else.

After ``KafkaWriter.validateQuery`` and ``KafkaRowWriter`` of apache/spark
(connector/kafka-0-10-sql). One column is added: ``timestamp_column=`` names a TIMESTAMP column that
becomes the record's time.

- *column* (*type*): *when it is missing*
- value (STRING or BINARY): refused; a null value is a tombstone
- key (STRING or BINARY): null
- headers (ARRAY<STRUCT<key: STRING, value: BINARY>>): no headers
- topic (STRING): refused, unless the sink has ``topic=``, which wins over the column
- partition (INT): the partitioner chooses, as it does where it is null
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


def kafka_columns(
    schema: StructType, *, topic: str | None, timestamp_column: str | None
) -> list[Column]:
    """Return the columns to write, named as in the table above (and ``timestamp``, in
    milliseconds), strings cast to BINARY.

    Args:
        schema: of the rows to be written.
        topic: the sink's fixed topic; None when a column names it.
        timestamp_column: the column of the record's time; None for the time of sending.

    Raises:
        SchemaError: a column is missing or has another type; the message names it and what is
            wanted.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, IntegerType, StringType, TimestampType

    types = {field.name: field.dataType for field in schema.fields}
    columns = []
    if "value" not in types:
        raise SchemaError(
            "The Kafka sink needs a column 'value' of type STRING or BINARY, and the rows have "
            f"only {_names(schema)}. "
            "Make one, for example with to_json(struct('*')).alias('value')."
        )
    for name in ("value", "key"):
        if name in types:
            _expect(
                name,
                types[name],
                (StringType, BinaryType),
                "STRING or BINARY",
                "Cast it, or encode it with to_json.",
            )
            # Without a cast where there is nothing to do: another sink's column is then the same
            # one, and both get it once.
            column = (
                f.col(name) if isinstance(types[name], BinaryType) else f.col(name).cast("binary")
            )
            columns.append(column.alias(name))
    if topic is None:
        if "topic" not in types:
            raise SchemaError(
                "The Kafka sink has no topic: give it topic=, or a column 'topic' of type "
                f"STRING; the rows have only {_names(schema)}."
            )
        _expect(
            "topic", types["topic"], (StringType,), "STRING", "Cast it, or give the sink topic=."
        )
        columns.append(f.col("topic").cast("string").alias("topic"))
    if "partition" in types:
        _expect(
            "partition",
            types["partition"],
            (IntegerType,),
            "INT",
            "Cast it, or leave it out to have the key decide.",
        )
        columns.append(f.col("partition"))
    if "headers" in types:
        _expect_headers(types["headers"])
        columns.append(f.col("headers"))
    if timestamp_column is not None:
        if timestamp_column not in types:
            raise SchemaError(
                f"timestamp_column={timestamp_column!r} is not among the columns "
                f"{_names(schema)}. Name one of them, or leave it out."
            )
        wanted = "TIMESTAMP (with time zone, Spark's default)"
        _expect(
            timestamp_column,
            types[timestamp_column],
            (TimestampType,),
            wanted,
            "Cast it to TIMESTAMP.",
        )
        columns.append(f.unix_millis(f.col(_quoted(timestamp_column))).alias("timestamp"))
    return columns


def _expect(
    name: str, found: DataType, types: tuple[type[DataType], ...], wanted: str, remedy: str
) -> None:
    if not isinstance(found, types):
        raise SchemaError(
            f"Column {name!r} is {found.simpleString().upper()}, and the Kafka sink needs "
            f"{wanted}. {remedy}"
        )


def _expect_headers(found: DataType) -> None:
    from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

    if isinstance(found, ArrayType) and isinstance(found.elementType, StructType):
        fields = [(field.name, type(field.dataType)) for field in found.elementType.fields]
        if fields == [("key", StringType), ("value", BinaryType)]:
            return
    raise SchemaError(
        f"Column 'headers' is {found.simpleString()}, and the Kafka sink needs "
        "array<struct<key:string,value:binary>>. Build it with "
        "array(struct(lit('name').alias('key'), col('x').cast('binary').alias('value')))."
    )


def _names(schema: StructType) -> str:
    return ", ".join(repr(name) for name in schema.names) or "none"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
