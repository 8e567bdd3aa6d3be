"""How the files of one write are to be read: what a task says in its committable, and a manifest
of each file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

CSV_NULL = "\u0001 no value \u0001"
"""Stands for a null for Spark's CSV reader, which takes what is not quoted and empty for it, and
every text that is the same."""


@dataclass(frozen=True)
class Layout:
    """How the files of one write are to be read.

    Attributes:
        schema: an Arrow schema of all columns, in Base64 of its IPC message.
        partition_by: the columns that stand in the folders' names and not in the files.
        reading: the format, and what else a reader must know of it.
    """

    schema: str
    partition_by: tuple[str, ...]
    reading: Mapping[str, Any]

    def body(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "schema": self.schema,
            "partition_by": list(self.partition_by),
            "reading": dict(self.reading),
        }

    def arrow_schema(self) -> pa.Schema:
        """Return the schema.

        Raises:
            ValueError: it is damaged.
        """
        import pyarrow as pa

        try:
            return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema, validate=True)))
        except (binascii.Error, pa.ArrowException, OSError) as error:
            raise ValueError(f"the schema is damaged: {error}") from error

    def schema_in_file(self) -> pa.Schema:
        """Return the columns that stand in a file itself.

        Raises:
            ValueError: the schema is damaged.
        """
        import pyarrow as pa

        return pa.schema(
            [field for field in self.arrow_schema() if field.name not in self.partition_by]
        )


def layout_of(schema: pa.Schema, partition_by: Sequence[str], reading: Mapping[str, Any]) -> Layout:
    """Return the layout of files with these rows."""
    return Layout(
        base64.b64encode(schema.serialize().to_pybytes()).decode("ascii"),
        tuple(partition_by),
        dict(reading),
    )


def read_layout(body: Mapping[str, Any]) -> Layout:
    """Read a layout back from JSON; it raises KeyError, TypeError or ValueError when it is none."""
    return Layout(
        str(body["schema"]),
        tuple(str(name) for name in body["partition_by"]),
        dict(body["reading"]),
    )
