"""One data file: its name, which no other attempt's has, and what committables and manifests say
of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceforall.protocol.names import TransactionName, parse_name
from onceforall.sinks.files.paths import HOME, SPARK_METADATA, partition_of

_FILE_NAME = re.compile(r"part-[0-9]{5,}-[0-9]{5,}-(ofa\.[0-9A-Za-z.-]+?)((?:\.[a-z][a-z0-9]*)+)")


@dataclass(frozen=True)
class DataFile:
    """One data file, temporary or committed.

    Attributes:
        path: where it is when it is committed, relative to the sink's folder, with forward slashes.
        rows: how many rows it has.
        bytes: its size.
        partition: what its folders say, by column; None is null.
    """

    path: str
    rows: int
    bytes: int
    partition: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The folder of the committed file, relative; empty for the sink's folder itself."""
        return self.path.rpartition("/")[0]

    def body(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "path": self.path,
            "rows": self.rows,
            "bytes": self.bytes,
            "partition": dict(self.partition),
        }


def data_file(body: Mapping[str, Any], attempts: frozenset[str]) -> DataFile:
    """Read a data file back from JSON.

    Args:
        body: what ``DataFile.body`` gave.
        attempts: the names of the attempts one of which must have written it.

    Raises:
        ValueError, KeyError, TypeError: it is not one, its path leads out of the folder, or it is
            another attempt's.
    """
    partition = {
        str(name): None if value is None else str(value)
        for name, value in body["partition"].items()
    }
    file = DataFile(str(body["path"]), int(body["rows"]), int(body["bytes"]), partition)
    parts = file.path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part or "\\" in part for part in parts) or parts[
        0
    ] in {HOME, SPARK_METADATA}:
        raise ValueError(f"{file.path!r} leads out of the sink's folder")
    if attempt_of(file.name) not in attempts:
        raise ValueError(f"{file.path!r} does not have the name of a file of this transaction")
    return file


def slim(file: DataFile) -> list[Any]:
    """Return a file of an attempt as a committable has it: folder, ordinal, rows, bytes. All
    else follows from the attempt's name.
    """
    return [file.folder, int(file.name.split("-")[2]), file.rows, file.bytes]


def from_slim(body: Sequence[Any], attempt: TransactionName, extension: str) -> DataFile:
    """Read a file of an attempt back; errors as those of ``data_file``."""
    folder, ordinal, rows, size = body
    name = file_name(attempt.partition, int(ordinal), str(attempt), extension)
    path = f"{folder}/{name}" if folder else name
    file = {"path": path, "rows": rows, "bytes": size, "partition": partition_of(str(folder))}
    return data_file(file, frozenset({str(attempt)}))


def file_name(partition: int, ordinal: int, attempt: str, extension: str) -> str:
    """Return the name of an attempt's data file: the same for the same attempt and ordinal, and
    no other's.
    """
    return f"part-{partition:05d}-{ordinal:05d}-{attempt}{extension}"


def attempt_of(name: str) -> str | None:
    """Return which attempt wrote a file with this name; None when it is not one of ours."""
    match = _FILE_NAME.fullmatch(name)
    if match is None or parse_name(match[1]) is None:
        return None
    return match[1]
