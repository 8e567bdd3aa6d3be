"""Which columns the Kinesis sink writes.

- *column* (*type*): *when it is missing*
- partitionKey (STRING): refused
- explicitHashKey (STRING): Kinesis hashes the partition key
- data (BINARY or STRING): all other columns become one JSON object, the record id among them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_KEYS = ("partitionKey", "explicitHashKey")


def kinesis_columns(schema: StructType, record_id: str | None) -> list[Column]:
    """Return the columns to write, ``data`` as BINARY.

    Args:
        schema: of the rows to be written.
        record_id: the column with the record id; None: ``data`` has it within.

    Raises:
        SchemaError: a column is missing or has another type; the message says which.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StringType

    types = {field.name: field.dataType for field in schema.fields}
    have = ", ".join(types) or "none"
    if "partitionKey" not in types:
        raise SchemaError(
            "The Kinesis sink needs a column 'partitionKey' of type STRING, and the rows have "
            f"only {have}. Make one of what is kept in order, as col('user').alias('partitionKey')."
        )
    for name in _KEYS:
        if name in types and not isinstance(types[name], StringType):
            raise SchemaError(
                f"Column {name!r} is of type {types[name].simpleString()}; the Kinesis sink needs "
                "STRING. Cast it."
            )
    keys = [f.col(name) for name in _KEYS if name in types]
    if "data" in types:
        if record_id is not None:
            raise SchemaError(
                "The rows have a column 'data', which the Kinesis sink writes as it is, and a "
                "Kinesis record has no other place for the record id. Leave 'data' out, and the "
                f"other columns are written as one JSON object with {record_id!r} in it; or put an "
                "id into 'data' yourself, and give the sink record_id=None."
            )
        if not isinstance(types["data"], StringType | BinaryType):
            raise SchemaError(
                f"Column 'data' is of type {types['data'].simpleString()}; the Kinesis sink needs "
                "STRING or BINARY. Encode it with to_json, for example."
            )
        return [f.col("data").cast("binary").alias("data"), *keys]
    if record_id is not None and record_id not in types:
        raise SchemaError(
            f"The Kinesis sink needs a column {record_id!r} with each row's id, by which readers "
            f"drop what was written twice, and the rows have only {have}. Make it with "
            "onceforall.operators.with_record_id, or name another one with record_id=."
        )
    others = [f.col(f"`{name.replace('`', '``')}`") for name in types if name not in _KEYS]
    if not others:
        raise SchemaError("The rows have nothing but keys for the Kinesis sink to write.")
    return [f.to_json(f.struct(*others)).cast("binary").alias("data"), *keys]
