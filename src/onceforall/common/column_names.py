"""The columns that a sink finds by their names."""

from __future__ import annotations

from collections.abc import Collection

from onceforall.errors import SchemaError


def spelled(wanted: str, names: Collection[str], sink: str) -> str | None:
    """Return how a column that a sink knows by name is spelled in the rows; None: there is none.

    As in Spark's own queries, upper and lower case are the same: a ``routingkey`` that nobody
    looked at would cost the order of its rows. Where two columns differ in case alone, the one that
    is written as the sink writes it counts.

    Args:
        wanted: the name, as the sink writes it.
        names: of the rows' columns.
        sink: the kind of sink, for a person.

    Raises:
        SchemaError: several are called so, and none of them exactly.
    """
    alike = [name for name in names if name.lower() == wanted.lower()]
    if len(alike) > 1 and wanted not in alike:
        raise SchemaError(
            f"The rows have the columns {', '.join(alike)}, and the {sink} sink takes one of them "
            f"for its {wanted!r}. Rename one to {wanted!r}, or leave the others out."
        )
    return wanted if wanted in alike else next(iter(alike), None)
