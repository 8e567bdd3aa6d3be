"""Which columns the Pravega sink writes.

- *column* (*type*): *when it is missing*
- event (BINARY or STRING): refused
- routingKey (STRING): rows go to any segment, also where it is null

Upper and lower case are the same (``common.column_names``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.common.column_names import spelled
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
    found = {wanted: spelled(wanted, types, "Pravega") for wanted in ("event", "routingKey")}
    event, key = found["event"], found["routingKey"]
    if event is None:
        raise SchemaError(
            "The Pravega sink needs a column 'event' of type BINARY or STRING, and the rows have "
            f"only {', '.join(types) or 'none'}. Make one, with to_json(struct('*')) for example."
        )
    allowed = {"event": (BinaryType, StringType), "routingKey": (StringType,)}
    for wanted, kinds in allowed.items():
        name = found[wanted]
        if name is not None and not isinstance(types[name], kinds):
            needs = " or ".join(kind().simpleString().upper() for kind in kinds)
            raise SchemaError(
                f"Column {name!r} is of type {types[name].simpleString()}; the Pravega sink needs "
                f"{needs}. Cast or encode it."
            )
    keys = [] if key is None else [f.col(key).alias("routingKey")]
    return [f.col(event).cast("binary").alias("event"), *keys]
