"""Which columns the Pravega sink writes.

- *column* (*type*): *when it is missing*
- event (BINARY or STRING): refused
- routingKey (STRING): rows go to any segment, also where it is null

As in Spark's own queries, upper and lower case are the same: a ``routingkey`` that nobody looked at
would cost the order of its rows. Where two columns differ in case alone, the one that is written as
above counts.
"""

from __future__ import annotations

from collections.abc import Collection
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
    found = {wanted: _found(wanted, types) for wanted in ("event", "routingKey")}
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


def _found(wanted: str, names: Collection[str]) -> str | None:
    """Return what a column is called in the rows.

    Raises:
        SchemaError: several are called so, each in another case.
    """
    alike = [name for name in names if name.lower() == wanted.lower()]
    if len(alike) > 1 and wanted not in alike:
        raise SchemaError(
            f"The rows have the columns {', '.join(alike)}, and the Pravega sink takes one of them "
            f"for its {wanted!r}. Rename one to {wanted!r}, or leave the others out."
        )
    return wanted if wanted in alike else next(iter(alike), None)
