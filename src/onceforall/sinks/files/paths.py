"""Where the file sink puts what it writes, and how names become folders and are read back.

::

    <path>/day=2026-11-21/part-…           data files, below partition values and the time bucket
    <path>/_onceforall/folder.json         the folder's id
    <path>/_onceforall/staging/<attempt>/  temp files of one task attempt, under their last names
    <path>/_onceforall/manifests/<query id>/<sink code>/<batch>.json

Hive, Spark and pyarrow pass over folders that begin with an underscore. The folder of an attempt
bears its ``TaskAttempt.name``, which no other attempt ever has, and so does each data file: two
attempts, runs, sinks or queries never want the same file.

Values in a path are escaped as by Hive and Spark (``ExternalCatalogUtils.escapePathName``), so that
no value leaves its folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from onceforall.common.arguments import is_possible_path, location_shown, shown
from onceforall.errors import OptionError, UnsupportedQueryError
from onceforall.spark import hadoop_paths

HOME = "_onceforall"
STAGING = f"{HOME}/staging"
UPLOADS = f"{HOME}/uploads"
"""On S3, in place of ``STAGING``: a record of each upload of an undecided attempt."""
PARTS = f"{HOME}/parts"
"""On Google Cloud Storage: what files are composed of when they are committed."""
MANIFESTS = f"{HOME}/manifests"
SPARK_METADATA = "_spark_metadata"

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder's value for null, and for the empty string, as in Hive and Spark."""

LONGEST_NAME = 255
"""In bytes: what Linux and macOS file systems allow for one name."""

LONGEST_PATH = 4000
"""In bytes; Linux ends at 4096."""

LONGEST_KEY = 1024
"""In bytes, for S3."""

_OTHER_SPELLINGS = {"http", "https", "wasb", "wasbs"}
"""Of stores that have another one for Spark."""

_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(0x20)}


def partition_of(folder: str) -> dict[str, str | None]:
    """Return what a folder's name says by column: the opposite of ``hive_folder``."""
    pairs = [part.partition("=") for part in folder.split("/") if "=" in part]
    return {
        _unescaped(name): None if value == NULL else _unescaped(value) for name, _, value in pairs
    }


def _unescaped(text: str) -> str:
    return re.sub("%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), text)


def escaped(text: str) -> str:
    """Return a text as part of a folder's name, as Hive and Spark write it."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def hive_folder(column: str, value: str | None) -> str:
    """Return ``column=value`` for a folder; null and the empty string give the same, as in Hive
    and Spark.
    """
    if not value:
        return f"{escaped(column)}={NULL}"
    # The word for null as a value: escaped in a way that every reader of escaped names takes back.
    text = f"%5F{NULL[1:]}" if value == NULL else escaped(value)
    return f"{escaped(column)}={text}"


def plain_folder(text: str) -> str:
    """Return a text as a folder's name of its own: never ``.`` or ``..``, and never one that
    readers pass over.
    """
    name = escaped(text)
    return f"%{ord(name[0]):02X}{name[1:]}" if name[0] in "._" else name


def local_folder(location: str | os.PathLike[str]) -> Path:
    """Return the absolute local folder of a path or ``file:`` URL; a relative one is of this
    process.

    Raises:
        OptionError: it is empty.
        UnsupportedQueryError: it is not on a local (or locally mounted) file system.
    """
    text = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(text, str) or not text.strip() or not is_possible_path(text):
        raise OptionError(
            f"path={shown(location)} is no folder. Give the path of one, or a file: URL."
        )
    if text.partition(":")[0].lower() in _OTHER_SPELLINGS:
        raise UnsupportedQueryError(
            f"The folder {location_shown(text)} isn't named as Spark names one. Write s3a://bucket/"
            "folder, abfss://container@account.dfs.core.windows.net/folder, gs://bucket/folder or "
            "hdfs://namenode/folder."
        )
    # Hadoop knows no host of local files, not even this one; URLs by RFC 8089 may name it.
    return hadoop_paths.local_folder(
        text.replace("file://localhost/", "file:/", 1), what="The folder"
    )
