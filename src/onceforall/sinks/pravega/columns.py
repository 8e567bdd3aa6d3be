"""Which columns the Pravega sink writes.

- *column* (*type*): *when it is missing*
- event (BINARY or STRING): refused
- routingKey (STRING): rows go to any segment, also where it is null
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


def pravega_columns(schema: StructType) -> list[Column]:
    """Return the columns to write, ``event`` as BINARY.

    Args:
        schema: of the rows to be written.

    Raises:
        SchemaError: a column is missing or has another type; the message says which.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StringType

    types = {field.name: field.dataType for field in schema.fields}
    if "event" not in types:
        raise SchemaError(
            "The Pravega sink needs a column 'event' of type BINARY or STRING, and the rows have "
            f"only {', '.join(types) or 'none'}. Make one, with to_json(struct('*')) for example."
        )
    allowed = {"event": (BinaryType, StringType), "routingKey": (StringType,)}
    for name, kinds in allowed.items():
        if name in types and not isinstance(types[name], kinds):
            needs = " or ".join(kind().simpleString().upper() for kind in kinds)
            raise SchemaError(
                f"Column {name!r} is of type {types[name].simpleString()}; the Pravega sink needs "
                f"{needs}. Cast or encode it."
            )
    keys = [f.col("routingKey")] if "routingKey" in types else []
    return [f.col("event").cast("binary").alias("event"), *keys]
