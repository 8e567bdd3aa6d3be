"""The whole paths that Spark keeps in the metadata of an operator's state
(``OperatorStateMetadataV2.stateSchemaFilePaths``), and which a start reads: where a checkpoint is
moved, renamed or copied, they lead to where it lay before.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceforall.spark.commits import sync_folder
from onceforall.spark.remote_path import AnyPath, RemotePath, files_below

__all__ = ["is_metadata", "lead_here", "renamed"]

_METADATA = ("state", "_metadata", "v2")
_BELOW = re.compile(r"(?:[a-zA-Z][\w+.-]*:)?/.*/(state/[0-9]+/_stateSchema/.+)", re.DOTALL)


def is_metadata(name: str) -> bool:
    """Tell whether a file, relative to its checkpoint, is metadata of an operator's state."""
    parts = name.split("/")
    return len(parts) == 5 and (parts[0], parts[2], parts[3]) == _METADATA


def renamed(content: bytes, old: AnyPath, new: AnyPath) -> bytes:
    """Return metadata whose paths lead to a new place, those of an earlier one of the checkpoint
    included.

    Args:
        content: as Spark writes it.
        old: where the checkpoint lies.
        new: where it is to lie.

    Raises:
        ValueError: it is no such metadata.
    """

    def led(text: str) -> str:
        inside = _inside(text, old) or _from_before(text, old)
        return text if inside is None else _url_of(new, inside)

    return _written(content, led)


def lead_here(checkpoint: AnyPath, *, dry_run: bool = False) -> list[str]:
    """Let the metadata of a checkpoint that lay elsewhere name its files where they are now.

    A path that leads to no file of the checkpoint stays; so does metadata that can't be read, which
    is Spark's to tell.

    Returns:
        What was done, or would be: a sentence for each file.

    Raises:
        OSError: a file can't be read or written.
        CommitLogError: likewise, on a store.
    """
    root = f"{checkpoint}/"

    def led(text: str) -> str:
        inside = None if _inside(text, checkpoint) else _from_before(text, checkpoint)
        return text if inside is None else _url_of(checkpoint, inside)

    done = []
    for file in files_below(checkpoint / _METADATA[0]):
        if not is_metadata(str(file).removeprefix(root)):
            continue
        content = file.read_bytes()
        try:
            new = _written(content, led)
        except ValueError:
            continue
        if new == _written(content, lambda text: text):
            continue
        if not dry_run:
            _replace(file, new)
        done.append(
            f"{file} names files of this checkpoint where it lay before: written with their paths "
            "here."
        )
    return done


def _written(content: bytes, led: Callable[[str], str]) -> bytes:
    version, _, text = content.decode().partition("\n")
    return f"{version}\n{json.dumps(_each(json.loads(text), led), separators=(',', ':'))}".encode()


def _each(value: Any, led: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _each(each, led) for key, each in value.items()}
    if isinstance(value, list):
        return [_each(each, led) for each in value]
    return led(value) if isinstance(value, str) else value


def _url_of(place: AnyPath, inside: str) -> str:
    return f"{'file:' if isinstance(place, Path) else ''}{place}/{inside}"


def _inside(text: str, place: AnyPath) -> str | None:
    """Return a path's part below a place; None: it isn't in there."""
    if isinstance(place, RemotePath):
        return text.removeprefix(f"{place}/") if text.startswith(f"{place}/") else None
    path = Path(re.sub("^file:(//)?", "", text))
    if not path.is_absolute():
        return None
    # Spark writes what it was given, which may lead through a link.
    resolved = path.resolve()
    return str(resolved.relative_to(place)) if resolved.is_relative_to(place) else None


def _from_before(text: str, place: AnyPath) -> str | None:
    """Return the part of the path of a schema below an earlier place of the checkpoint, where that
    file is in this one.
    """
    found = _BELOW.fullmatch(text)
    return found[1] if found is not None and (place / found[1]).exists() else None


def _replace(file: AnyPath, content: bytes) -> None:
    if isinstance(file, RemotePath):
        file.client.replace(file.key, content)
        return
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(16)}.tmp")
    try:
        with temporary.open("xb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        # With a stale checksum Spark would take it for damaged; without one, nothing is checked.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(file.parent)
