"""Spark's own log of its file sink, ``<path>/_spark_metadata``, which Spark's readers trust: what
is not in it, they don't see.

The format is Spark's (``FileStreamSinkLog``, ``CompactibleFileStreamLog``): entry *n* is a file
``n`` with the line ``v1`` and a JSON object per file (``SinkFileStatus``); where *n* + 1 is a
multiple of the compact interval, the file is ``n.compact`` and has all files so far. A reader takes
the newest compact file and what follows it, without gaps.

We go on with Spark's numbers: each of our batches gets the next one. To be repeatable, an entry is
only added when no entry has the batch's files; it is created at once under its final name and never
over another, so of two writers one finds the name taken, looks again, and finds the files, or takes
the next number. A driver that was frozen before its create meets the entry that its successor made:
entries are not deleted here.

While we go on with it, no plain Spark query may write to the folder: it would take our numbers for
its own batches, and skip those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onceforall.errors import SinkCheckError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.paths import SPARK_METADATA
from onceforall.sinks.files.tree import Tree

DEFAULT_INTERVAL = 10
"""Spark's ``spark.sql.streaming.fileSink.log.compactInterval`` when it isn't set."""

_ENTRY = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")
_VERSION = b"v1\n"
_BLOCK_SIZE = 32 << 20
_LEGAL = "/:@!$&'()*+,;=-._~"
_TRIES = 1000


class SparkMetadata:
    """The log in one folder."""

    def __init__(self, root: Path, default_interval: int | None = None) -> None:
        """Take the sink's folder, and the compact interval that holds where the log doesn't show
        another one; None: Spark's own.
        """
        self._root = root
        self._folder = root / SPARK_METADATA
        self._tree = Tree(root)
        self._default_interval = DEFAULT_INTERVAL if default_interval is None else default_interval

    def exists(self) -> bool:
        """Tell whether Spark's readers trust a log in this folder."""
        return self._folder.is_dir()

    def check(self) -> None:
        """See that the log can be read and continued.

        Raises:
            SinkCheckError: it is damaged, or of a version that isn't known.
            OSError: it can't be read.
        """
        entries = self._entries()
        if not entries:
            return
        for name, content in self._valid(max(entries), entries).items():
            for number, line in enumerate(content.split(b"\n")[1:], 2):
                if line.strip() and not _is_status(line):
                    raise self._damaged(name, f"its line {number} is none of Spark's")

    def add(self, files: Sequence[DataFile]) -> None:
        """Add the files of one committed batch, unless they are there.

        Raises:
            SinkCheckError: the log is damaged.
            OSError: it can't be read or written.
        """
        if not files:
            return
        marks = [f'{quote(file.name, safe=_LEGAL)}"'.encode() for file in files]
        for _ in range(_TRIES):
            entries = self._entries()
            last = max(entries, default=-1)
            contents = list(self._valid(last, entries).values()) if entries else []
            if any(marks[0] in content for content in contents):
                # Whoever added them may have been killed before it could sync their name.
                self._tree.sync(self._folder)
                return
            following = last + 1
            content = self._lines(files)
            name = str(following)
            if (following + 1) % self._interval(entries) == 0:
                name = f"{following}.compact"
                content = b"".join([*(_body(each) for each in contents), content])
            failpoints.hit("file.spark_metadata.before")
            created = self._tree.create(self._folder / name, _VERSION + content.rstrip(b"\n"))
            failpoints.hit("file.spark_metadata.after")
            if created:
                return
            # Round again: somebody else has taken the name, perhaps with these very files.
        raise SinkCheckError(
            f"Other writers take every number in {self._folder}. Stop them: only one query may "
            "keep this log."
        )

    def _entries(self) -> dict[int, set[str]]:
        """Return the names of the entries by number."""
        found: dict[int, set[str]] = {}
        for name in self._tree.names(self._folder):
            if match := _ENTRY.fullmatch(name):
                found.setdefault(int(match[1]), set()).add(name)
        return found

    def _interval(self, entries: dict[int, set[str]]) -> int:
        """Return the compact interval as Spark derives it, in ``CompactibleFileStreamLog``."""
        compact = sorted(
            (number for number, names in entries.items() if f"{number}.compact" in names),
            reverse=True,
        )
        if len(compact) >= 2:
            return compact[0] - compact[1]
        if len(compact) == 1:
            return _derived(self._default_interval, compact[0])
        return self._default_interval

    def _valid(self, last: int, entries: dict[int, set[str]]) -> dict[str, bytes]:
        """Return the contents of the entries that have all files, as a reader would take them, by
        name.
        """
        interval = self._interval(entries)
        contents = {}
        for number in range(max(0, (last + 1) // interval * interval - 1), last + 1):
            name = f"{number}.compact" if (number + 1) % interval == 0 else str(number)
            if name not in entries.get(number, set()):
                raise SinkCheckError(
                    f"Spark's log {self._folder} has an entry {last} but no {name}, so Spark "
                    "can't read it either. Restore it from a backup, "
                    "or write to another folder."
                )
            content = self._tree.read(self._folder / name)
            if not content.startswith(_VERSION.strip()) or content.split(b"\n", 1)[0] != b"v1":
                raise SinkCheckError(
                    f"{self._folder / name} is not of version v1, the only one that is known. "
                    "Restore it from a "
                    "backup, or write to another folder."
                )
            # A part of an entry would get into the next compact file, which Spark can't read then.
            if b"\n" in content and not content.rstrip().endswith((b"}", b"v1")):
                raise self._damaged(name, "it ends within a line")
            contents[name] = content
        return contents

    def _damaged(self, name: str, why: str) -> SinkCheckError:
        return SinkCheckError(
            f"{self._folder / name} is damaged: {why}, so Spark can't read it either. Restore it "
            "from a backup, or write to another folder."
        )

    def _lines(self, files: Sequence[DataFile]) -> bytes:
        return b"".join(self._line(file) for file in files)

    def _line(self, file: DataFile) -> bytes:
        path = self._root / file.path
        try:
            changed_ms = path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:  # deleted for retention, while nobody could complete this batch
            changed_ms = 0
        status: dict[str, Any] = {
            "path": f"file://{quote(str(path), safe=_LEGAL)}",
            "size": file.bytes,
            "isDir": False,
            "modificationTime": changed_ms,
            "blockReplication": 1,
            "blockSize": _BLOCK_SIZE,
            "action": "add",
        }
        return json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _is_status(line: bytes) -> bool:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and isinstance(fields.get("path"), str)


def _body(content: bytes) -> bytes:
    lines = [line for line in content.split(b"\n")[1:] if line.strip()]
    return b"".join(line + b"\n" for line in lines)


def _derived(default: int, latest_compact: int) -> int:
    """Return a divisor of ``latest_compact + 1``, near the default: Spark's
    ``deriveCompactInterval``.
    """
    entries = latest_compact + 1
    if entries <= default:
        return entries
    if default < entries / 2:
        return next(interval for interval in range(default, entries + 1) if entries % interval == 0)
    return entries
