"""A batch on the driver: what the committables of its tasks say together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceforall.protocol.entries import Committable
from onceforall.sinks.postgres.markers import Marker, Owner
from onceforall.sinks.postgres.merging import Target, target_of
from onceforall.sinks.postgres.names import (
    driver_connection,
    names_digest,
    parsed,
    staging_table,
    whose_code,
)
from onceforall.sinks.postgres.staging import Staged
from onceforall.sinks.postgres.statements import Connection

Connect = Callable[[str], Connection]
"""Opens a connection with this application name; raises SinkUnavailableError or SinkCheckError."""


@dataclass(frozen=True)
class Batch:
    """What the committables of a batch on a sink say together.

    Attributes:
        owner: whose markers count.
        batch: Spark's batch id.
        generation: the highest one whose tasks wrote.
        target: where the rows go, and how.
        database: see ``database_of``.
        staged: the staging tables, without their columns.
        names: the committables' names.
        after: the batch before it in this sink, by the commit log; None: not known.
        markers: the object id of the table of markers when it was confirmed; None: not known.
        after_in: the schema whose markers have the batch before it; None: not known.
    """

    owner: Owner
    batch: int
    generation: int
    target: Target
    database: str
    staged: tuple[Staged, ...]
    names: tuple[str, ...]
    after: int | None = None
    markers: int | None = None
    after_in: str | None = None

    @property
    def marker(self) -> Marker:
        """What the marker row says when this batch is complete."""
        return Marker(self.batch, self.generation, names_digest(list(self.names)))

    @property
    def whose(self) -> str:
        """What stands for query and sink in the names of connections."""
        return whose_code(self.owner.query_id, self.owner.sink)

    @property
    def connection_name(self) -> str:
        """The application name of a connection that completes this batch."""
        return driver_connection(self.whose, self.generation)

    def what(self, doing: str) -> str:
        """Return a beginning for messages."""
        return f"{doing} batch {self.batch} into {self.target.schema}.{self.target.table}"


def batch_of(committables: Sequence[Committable]) -> Batch:
    """Read the committables of one batch on one sink."""
    first, names = committables[0], [str(c["name"]) for c in committables]
    parts = [parsed(name) for name in names]
    schema = str(first["staging_schema"])
    return Batch(
        Owner(schema, parts[0].query_id, parts[0].sink_code),
        parts[0].batch,
        max(part.generation for part in parts),
        target_of(first["target"]),
        str(first["database"]),
        tuple(
            Staged(schema, staging_table(str(c["name"])), (), int(c["count"])) for c in committables
        ),
        tuple(names),
        max((int(c["after"]) for c in committables if c.get("after") is not None), default=None),
        next((int(c["markers"]) for c in committables if c.get("markers") is not None), None),
        next((schema_of(c["after_place"]) for c in committables if "after_place" in c), None),
    )


def place(schema: str) -> dict[str, str]:
    """Return how a committable says which schema's markers have its batch."""
    return {"schema": schema}


def schema_of(place: Mapping[str, Any] | None) -> str | None:
    """Read back what ``place`` has said; None: nothing was."""
    return None if place is None else str(place["schema"])
