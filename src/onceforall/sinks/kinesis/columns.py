"""Which columns the Kinesis sink writes.

- *column* (*type*): *when it is missing*
- partitionKey (STRING): refused
- explicitHashKey (STRING): Kinesis hashes the partition key
- data (BINARY or STRING): all other columns become one JSON object, the record id among them

Upper and lower case are the same (``common.column_names``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.common.column_names import spelled
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
    found = {wanted: spelled(wanted, types, "Kinesis") for wanted in (*_KEYS, "data")}
    if found["partitionKey"] is None:
        raise SchemaError(
            "The Kinesis sink needs a column 'partitionKey' of type STRING, and the rows have "
            f"only {have}. Make one of what is kept in order, as col('user').alias('partitionKey')."
        )
    named = {wanted: name for wanted in _KEYS if (name := found[wanted]) is not None}
    for name in named.values():
        if not isinstance(types[name], StringType):
            raise SchemaError(
                f"Column {name!r} is of type {types[name].simpleString()}; the Kinesis sink needs "
                "STRING. Cast it."
            )
    keys = [f.col(name).alias(wanted) for wanted, name in named.items()]
    data = found["data"]
    if data is not None:
        if record_id is not None:
            raise SchemaError(
                f"The rows have a column {data!r}, which the Kinesis sink writes as it is, and a "
                "Kinesis record has no other place for the record id. Leave it out, and the "
                f"other columns are written as one JSON object with {record_id!r} in it; or put an "
                "id into 'data' yourself, and give the sink record_id=None."
            )
        if not isinstance(types[data], StringType | BinaryType):
            raise SchemaError(
                f"Column {data!r} is of type {types[data].simpleString()}; the Kinesis sink needs "
                "STRING or BINARY. Encode it with to_json, for example."
            )
        return [f.col(data).cast("binary").alias("data"), *keys]
    if record_id is not None and record_id not in types:
        raise SchemaError(
            f"The Kinesis sink needs a column {record_id!r} with each row's id, by which readers "
            f"drop what was written twice, and the rows have only {have}. Make it with "
            "onceforall.operators.with_record_id, or name another one with record_id=."
        )
    others = [f.col(f"`{name.replace('`', '``')}`") for name in types if name not in named.values()]
    if not others:
        raise SchemaError("The rows have nothing but keys for the Kinesis sink to write.")
    return [f.to_json(f.struct(*others)).cast("binary").alias("data"), *keys]
