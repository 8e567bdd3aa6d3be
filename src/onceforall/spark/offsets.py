"""Says in words which input a batch reads, from Spark's offset log: for a person who must judge
what may be doubled.

Each source's line there is its own business. Those of Kafka (``{"topic": {"0": 120}}``), of files
(``{"logOffset": 3}``) and plain numbers are known and put into words; of any other source the text
itself is shown. Nothing depends on it but messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from onceforall.errors import CommitLogError
from onceforall.spark.remote_path import AnyPath

_SHOWN_AT_MOST = 12
_FILES_AT_MOST = 5
_LONGEST_TEXT = 200
_NOTHING = "-"
_UNREADABLE = (OSError, ValueError, CommitLogError)
"""The last is a store's that doesn't answer."""


def describe_batch(checkpoint: AnyPath, batch: int) -> str:
    """Return which input a batch has: per source, where it begins and ends.

    Args:
        checkpoint: the checkpoint's folder.
        batch: a batch in Spark's offset log.

    Returns:
        For example ``source 0: clicks[0]: 120..240, clicks[1]: 7..9 (each range without its end)``.
        What can't be read is said to be unknown: this never raises.
    """
    ends, starts = _sources(checkpoint, batch), _sources(checkpoint, batch - 1)
    if not ends:
        return f"unknown, for {checkpoint / 'offsets' / str(batch)} can't be read"
    parts = (
        f"source {source}: {_describe(checkpoint, source, starts.get(source), end)}"
        for source, end in ends.items()
    )
    return "; ".join(parts)


def _sources(checkpoint: AnyPath, batch: int) -> dict[str, str]:
    """Return the lines of the offset log by source; ``v2`` names each source in front of its
    offset.
    """
    try:
        version, _, *lines = (
            (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        )
    except _UNREADABLE:
        return {}
    if version.strip() == "v1":
        return {str(number): line for number, line in enumerate(lines) if line != _NOTHING}
    pairs = (line.partition(":") for line in lines)
    return {source: offset for source, _, offset in pairs if offset != _NOTHING}


def _describe(checkpoint: AnyPath, source: str, start: str | None, end: str) -> str:
    first, last = _json(start), _json(end)
    if _is_kafka(last):
        begin = first if _is_kafka(first) else _initial_offsets(checkpoint, source)
        moved = _limited([*_partitions(begin, last)], _SHOWN_AT_MOST)
        return f"{moved} (each range without its end)" if moved else "nothing new"
    if isinstance(last, dict) and isinstance(last.get("logOffset"), int):
        before = first.get("logOffset", -1) if isinstance(first, dict) else -1
        return _files(checkpoint, source, before, last["logOffset"])
    if isinstance(last, int):
        return f"{first if isinstance(first, int) else '?'}..{last}"
    return f"from {_short(start)} to {_short(end)}" if start is not None else f"up to {_short(end)}"


def _is_kafka(offset: Any) -> bool:
    """Tell whether this is a non-empty object of topics, each an object of partitions."""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(partitions, dict) and all(map(str.isdecimal, partitions))
            for partitions in offset.values()
        )
        and all(
            isinstance(position, int)
            for partitions in offset.values()
            for position in partitions.values()
        )
    )


def _partitions(begin: Any, last: dict[str, dict[str, int]]) -> Iterator[str]:
    for topic in sorted(last):
        for partition in sorted(last[topic], key=int):
            start = begin.get(topic, {}).get(partition, "?") if isinstance(begin, dict) else "?"
            if start != last[topic][partition]:
                yield f"{topic}[{partition}]: {start}..{last[topic][partition]}"


def _initial_offsets(checkpoint: AnyPath, source: str) -> Any:
    """Return where a Kafka source began; its own log has that, behind a version."""
    try:
        text = (checkpoint / "sources" / source / "0").read_text(encoding="utf-8", errors="replace")
    except _UNREADABLE:
        return None
    offsets = _json(text[text.find("{") :])
    return offsets if _is_kafka(offsets) else None


def _files(checkpoint: AnyPath, source: str, before: int, last: int) -> str:
    names: list[str] = []
    for number in range(before + 1, last + 1):
        try:
            lines = (
                (checkpoint / "sources" / source / str(number))
                .read_text(encoding="utf-8")
                .splitlines()[1:]
            )
        except _UNREADABLE:
            return (
                f"the files of its log from {before + 1} to {last} "
                f"({checkpoint / 'sources' / source})"
            )
        entries = (_json(line) for line in lines)
        names += (
            unquote(str(entry["path"]))
            for entry in entries
            if isinstance(entry, dict) and "path" in entry
        )
    return (
        f"the file{'s' * (len(names) != 1)} {_limited(names, _FILES_AT_MOST)}"
        if names
        else "no file"
    )


def _limited(parts: list[str], most: int) -> str:
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text is not None else None
    except ValueError:
        return None


def _short(text: str | None) -> str:
    text = str(text)
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
