"""What is known of a table that the sink writes: plain values, which the driver looks up at
start and pickles to the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceforall.errors import SchemaError
from onceforall.sinks.postgres.table_names import quoted
from onceforall.sinks.postgres.types import PgType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import sql


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: as the catalogue has it.
        type: its type.
        nullable: whether it takes a null.
        has_default: whether it gets a value when none is written (default or identity).
        is_generated: whether nobody may write it: ``GENERATED ALWAYS``, as identity or from an
            expression.
        is_deterministic: whether its collation, and that of each unique index on it, tells all
            different texts apart.
    """

    name: str
    type: PgType
    nullable: bool = True
    has_default: bool = False
    is_generated: bool = False
    is_deterministic: bool = True


@dataclass(frozen=True)
class UniqueIndex:
    """A unique index.

    Attributes:
        name: its name.
        columns: in their order; without those that are only included.
        is_primary: the primary key's.
        unfit: why ON CONFLICT can't use it by its columns; empty when it can.
    """

    name: str
    columns: tuple[str, ...]
    is_primary: bool = False
    unfit: str = ""


@dataclass(frozen=True)
class Table:
    """A table that can be written; plain values, to be pickled.

    Attributes:
        schema: where it lies.
        name: its name.
        oid: its object id, which another table of this name doesn't have.
        columns: in their order.
        indexes: the unique ones.
        is_partitioned: whether its rows lie in partitions.
        has_row_security: whether row security policies apply to this role; COPY into the table
            itself is then refused.
    """

    schema: str
    name: str
    oid: int
    columns: tuple[TableColumn, ...]
    indexes: tuple[UniqueIndex, ...] = ()
    is_partitioned: bool = False
    has_row_security: bool = False

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name, quoted."""
        from psycopg import sql

        return sql.Identifier(self.schema, self.name)

    @property
    def shown(self) -> str:
        """Its qualified name, for messages and statements in them."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key; empty without one."""
        return next((index.columns for index in self.indexes if index.is_primary), ())

    def select(self, names: Iterable[str]) -> tuple[TableColumn, ...]:
        """Return columns by their names, in that order.

        Raises:
            SchemaError: one isn't there.
        """
        by_name = {column.name: column for column in self.columns}
        chosen = list(names)
        for name in chosen:
            if name not in by_name:
                raise SchemaError(
                    f"Table {self.shown} has no column {name!r}. It has {', '.join(by_name)}."
                )
        return tuple(by_name[name] for name in chosen)


@dataclass(frozen=True)
class FoundTable:
    """What was found under the name that the user gave.

    Attributes:
        table: None where there is none yet.
        place: schema and name under which it will be made; None where it is there, or where the
            ``search_path`` has no schema for it.
        root: the object id of the table that it is a partition of, at the top; its own where it is
            none, 0 where it isn't there.
    """

    table: Table | None = None
    place: tuple[str, str] | None = None
    root: int = 0
