"""Where the file sink puts what it writes, and how names become folders and are read back.

::

    <path>/day=2026-11-21/part-…              data files, below folders of partition values and of the time bucket
    <path>/_onceforall/folder.json            the folder's id
    <path>/_onceforall/staging/<attempt>/     temp files of one task attempt, under the names that they will have
    <path>/_onceforall/manifests/<query id>/<sink code>/<batch>.json

Hive, Spark and pyarrow pass over folders that begin with an underscore. The folder of an attempt bears its ``TaskAttempt.name``, which no
other attempt ever has, and so does each data file: two attempts, runs, sinks or queries never want the same file.

Values in a path are escaped as by Hive and Spark (``ExternalCatalogUtils.escapePathName``), so that no value leaves its folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceforall.common.arguments import is_possible_path, shown
from onceforall.errors import OptionError
from onceforall.protocol.names import TransactionName, parse_name
from onceforall.spark import hadoop_paths

HOME = "_onceforall"
STAGING = f"{HOME}/staging"
MANIFESTS = f"{HOME}/manifests"
SPARK_METADATA = "_spark_metadata"

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder's value for null, and for the empty string, as in Hive and Spark."""

LONGEST_NAME = 255
"""In bytes: what Linux and macOS file systems allow for one name."""

LONGEST_PATH = 4000
"""In bytes; Linux ends at 4096."""

_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(0x20)}
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
        return {"path": self.path, "rows": self.rows, "bytes": self.bytes, "partition": dict(self.partition)}


def data_file(body: Mapping[str, Any], attempts: frozenset[str]) -> DataFile:
    """Read a data file back from JSON.

    Args:
        body: what ``DataFile.body`` gave.
        attempts: the names of the attempts one of which must have written it.

    Raises:
        ValueError, KeyError, TypeError: it is not one, its path leads out of the folder, or it is another attempt's.
    """
    partition = {str(name): None if value is None else str(value) for name, value in body["partition"].items()}
    file = DataFile(str(body["path"]), int(body["rows"]), int(body["bytes"]), partition)
    parts = file.path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part or "\\" in part for part in parts) or parts[0] in {HOME, SPARK_METADATA}:
        raise ValueError(f"{file.path!r} leads out of the sink's folder")
    if attempt_of(file.name) not in attempts:
        raise ValueError(f"{file.path!r} does not have the name of a file of this transaction")
    return file


def slim(file: DataFile) -> list[Any]:
    """Return a file of an attempt as a committable has it: folder, ordinal, rows, bytes. All else follows from the attempt's name."""
    return [file.folder, int(file.name.split("-")[2]), file.rows, file.bytes]


def from_slim(body: Sequence[Any], attempt: TransactionName, extension: str) -> DataFile:
    """Read a file of an attempt back; errors as those of ``data_file``."""
    folder, ordinal, rows, size = body
    name = file_name(attempt.partition, int(ordinal), str(attempt), extension)
    path = f"{folder}/{name}" if folder else name
    file = {"path": path, "rows": rows, "bytes": size, "partition": partition_of(str(folder))}
    return data_file(file, frozenset({str(attempt)}))


def partition_of(folder: str) -> dict[str, str | None]:
    """Return what a folder's name says by column: the opposite of ``hive_folder``."""
    pairs = [part.partition("=") for part in folder.split("/") if "=" in part]
    return {_unescaped(name): None if value == NULL else _unescaped(value) for name, _, value in pairs}


def _unescaped(text: str) -> str:
    return re.sub("%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), text)


def file_name(partition: int, ordinal: int, attempt: str, extension: str) -> str:
    """Return the name of an attempt's data file: the same for the same attempt and ordinal, and no other's."""
    return f"part-{partition:05d}-{ordinal:05d}-{attempt}{extension}"


def attempt_of(name: str) -> str | None:
    """Return which attempt wrote a file with this name; None when it is not one of ours."""
    match = _FILE_NAME.fullmatch(name)
    if match is None or parse_name(match[1]) is None:
        return None
    return match[1]


def escaped(text: str) -> str:
    """Return a text as part of a folder's name, as Hive and Spark write it."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def hive_folder(column: str, value: str | None) -> str:
    """Return ``column=value`` for a folder; null and the empty string give the same, as in Hive and Spark."""
    if not value:
        return f"{escaped(column)}={NULL}"
    # The word for null as a value: escaped in a way that every reader of escaped names takes back.
    text = f"%5F{NULL[1:]}" if value == NULL else escaped(value)
    return f"{escaped(column)}={text}"


def plain_folder(text: str) -> str:
    """Return a text as a folder's name of its own: never ``.`` or ``..``, and never one that readers pass over."""
    name = escaped(text)
    return f"%{ord(name[0]):02X}{name[1:]}" if name[0] in "._" else name


def local_folder(location: str | os.PathLike[str]) -> Path:
    """Return the absolute local folder of a path or ``file:`` URL; a relative one is of this process.

    Raises:
        OptionError: it is empty.
        UnsupportedQueryError: it is not on a local (or locally mounted) file system.
    """
    text = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(text, str) or not text.strip() or not is_possible_path(text):
        raise OptionError(f"path={shown(location)} is no folder. Give the path of one, or a file: URL.")
    # Hadoop knows no host of local files, not even this one; URLs by RFC 8089 may name it.
    return hadoop_paths.local_folder(text.replace("file://localhost/", "file:/", 1), what="The folder")
