"""An entry as bytes, and back: versioned JSON with a checksum, so that damage is found and named
instead of believed.

``{"onceforall": 1, "kind": "COMMIT", "generation": 3, "index": 7, "nonce": "…", "written_at": "…Z",
"body": {…}, "checksum": "sha256:…"}``

The checksum is taken over the canonical JSON (sorted keys, no spaces, UTF-8) of all other fields,
those included that this release does not know. What one release writes, every later one reads:
fields are added and never change their meaning; only a change that an older release must not
overlook raises the version.

Generation and index stand in the entry as well as in its key: a file copied to another place is
recognised. The nonce is drawn once per entry to be written: whoever repeats a lost create
recognises its own work by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeGuard

from onceforall.commit_log.packing import pack, unpack
from onceforall.errors import (
    CheckpointMismatchError,
    CommitLogError,
    ConfigurationError,
    CorruptEntryError,
    ForeignEntryError,
    NewerEntryError,
)
from onceforall.protocol.entries import Claim, Commit, Done, Entry, Seal, entry_from_body

__all__ = [
    "FORMAT",
    "MOVED",
    "PACKED",
    "RESTORE",
    "Envelope",
    "decode",
    "decode_fields",
    "encode",
    "encode_fields",
    "encode_moved",
    "entry_fields",
]

FORMAT = 1
"""The version of the format that this release writes; it reads all versions up to it, and entries
up to ``PACKED``."""

PACKED = 2
"""The version of a COMMIT with packed committables (``packing``), which earlier releases don't
understand."""

RESTORE = (
    "Restore it from a backup or a snapshot of the file system. Do not delete or edit anything in "
    "the log: it may hold the "
    "decision of a batch, and without that rows would be lost or doubled."
)
"""What a person can safely do about a damaged entry; part of every message about one."""

_KINDS = frozenset(entry.kind for entry in (Claim, Commit, Done, Seal))


@dataclass(frozen=True)
class Envelope:
    """An entry with what surrounds it in the log."""

    entry: Entry
    nonce: str
    generation: int
    index: int
    written_at: str


MOVED = "MOVED"
"""The kind of what stands behind the last CLAIM of a log that was moved: no run gets past it. An
earlier release says that a newer one has written it."""


UNFINISHED_DETACHMENT = (
    "this checkpoint is being made a plain query's, and nothing is decided here any more. Start "
    "again; where that says the same, run 'onceforall detach' once more, which finishes it."
)

DETACHED = "DETACHED"
"""The same of a log whose checkpoint is made a plain query's: no run gets past it."""


def encode_detached(*, nonce: str, generation: int, index: int) -> bytes:
    """Return what ends a log whose checkpoint is being detached, in the detachment's own chain."""
    return encode_fields(
        {
            "onceforall": FORMAT,
            "kind": DETACHED,
            "generation": generation,
            "index": index,
            "nonce": nonce,
            "body": {},
        }
    )


def encode_moved(
    location: str, *, nonce: str, generation: int, index: int, checkpoint: str | None = None
) -> bytes:
    """Return what ends a log that lies in another place from now on; ``checkpoint``: where the
    whole checkpoint lies, if that was moved.
    """
    return encode_fields(
        {
            "onceforall": FORMAT,
            "kind": MOVED,
            "generation": generation,
            "index": index,
            "nonce": nonce,
            "body": {"location": location}
            | ({} if checkpoint is None else {"checkpoint": checkpoint}),
        }
    )


def encode(entry: Entry, *, nonce: str, generation: int, index: int, written_at: datetime) -> bytes:
    """Return the bytes of an entry.

    Args:
        entry: what to write.
        nonce: drawn for this entry, and the same in each repetition of its create.
        generation: the chain that it belongs to.
        index: its place there.
        written_at: the time, for people; nothing depends on it.

    Raises:
        ConfigurationError: the body is not JSON (a committable with a NaN, a date, bytes), so that
            it could not be read back.
    """
    try:
        # As it will be read back: a key that is a number becomes a string here, and not only after
        # the checksum.
        body, packed = json.loads(json.dumps(entry.body(), allow_nan=False)), False
        if isinstance(entry, Commit):
            body, packed = pack(body)
        fields = {
            "onceforall": PACKED if packed else FORMAT,
            "kind": entry.kind,
            "generation": generation,
            "index": index,
            "nonce": nonce,
            "written_at": written_at.astimezone(timezone.utc)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "body": body,
        }
        content = encode_fields(fields)
        decode(content, where="the new entry", generation=generation, index=index)
    except (TypeError, ValueError, RecursionError, CommitLogError) as error:
        raise ConfigurationError(
            f"a {entry.kind} entry cannot be written as JSON: {error}. Nothing was written. A "
            "sink's committables must consist of "
            "strings, whole numbers, booleans, null, lists and objects; see what its pre_commit "
            "returns."
        ) from error
    return content


def decode(content: bytes, *, where: str, generation: int, index: int | None) -> Envelope:
    """Read an entry back.

    Args:
        content: the bytes that the store returned.
        where: how a person finds the entry, for messages.
        generation: the chain in whose folder it lies.
        index: its place by its name; None when the name does not say.

    Raises:
        CorruptEntryError: empty, truncated, not JSON, or another checksum.
        ForeignEntryError: not written by onceforall, or written for another place in the log.
        NewerEntryError: written by a newer release.
    """
    fields = entry_fields(content, where)
    body, its_generation, its_index = (
        fields.get("body"),
        fields.get("generation"),
        fields.get("index"),
    )
    if not isinstance(body, dict) or not _is_whole(its_generation) or not _is_whole(its_index):
        raise _foreign(where, "it lacks the fields of an entry")
    if its_generation != generation or (index is not None and its_index != index):
        raise ForeignEntryError(
            f"{where} was written as entry {its_index} of generation {its_generation}, and was "
            "copied or renamed to here. "
            f"Put back what stood at this place. {RESTORE}"
        )
    kind = fields.get("kind")
    if kind == DETACHED:
        raise CheckpointMismatchError(f"{where}: {UNFINISHED_DETACHMENT}")
    if kind == MOVED and "checkpoint" in body:
        raise CheckpointMismatchError(
            f"{where}: this checkpoint was moved to {body['checkpoint']}, and nothing is decided "
            "here any more. Start the query with that checkpointLocation. If it isn't complete "
            "there, run 'onceforall checkpoint move' once more."
        )
    if kind == MOVED:
        raise CheckpointMismatchError(
            f"{where}: this commit log was moved to {body.get('location')}, and nothing is decided "
            "here any more. Run 'onceforall log move' once more for this checkpoint: it makes the "
            "checkpoint point there. If this checkpoint is an older copy, it must not be started."
        )
    if kind not in _KINDS:
        raise _newer(where, f"its kind {kind!r} is unknown to this release")
    try:
        if kind == Commit.kind and fields["onceforall"] >= PACKED:
            body = unpack(body)
        entry = entry_from_body(str(kind), body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _foreign(
            where, f"its body is not that of a {kind} entry ({type(error).__name__}: {error})"
        ) from error
    return Envelope(
        entry,
        str(fields.get("nonce", "")),
        its_generation,
        its_index,
        str(fields.get("written_at", "")),
    )


def entry_fields(content: bytes, where: str) -> dict[str, Any]:
    """Return the fields of an entry of any kind, in each format that this release reads; errors as
    those of ``decode``.
    """
    return decode_fields(content, where, PACKED)


def encode_fields(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of an object with its checksum; it must have ``onceforall``, the version of
    the format.

    Raises:
        TypeError, ValueError: it is not JSON.
    """
    return _canonical({**fields, "checksum": _checksum(fields)})


def decode_fields(content: bytes, where: str, up_to: int = FORMAT) -> dict[str, Any]:
    """Return the fields of an object whose version and checksum are right, of an entry see
    ``entry_fields``; errors as those of ``decode``.
    """
    if not content:
        raise CorruptEntryError(f"{where} is empty: an entry of the commit log is lost. {RESTORE}")
    try:
        fields = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptEntryError(
            f"{where} is torn or damaged: it is not JSON ({error}). {RESTORE}"
        ) from error
    version = fields.get("onceforall") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or not _is_whole(version) or version < 1:
        raise _foreign(where, "it is JSON, but not an entry of the commit log")
    if version > up_to:
        raise _newer(where, f"it has format {version}, and this release reads up to format {up_to}")
    try:
        expected = _checksum({name: value for name, value in fields.items() if name != "checksum"})
    except (ValueError, RecursionError) as error:
        raise CorruptEntryError(
            f"{where} is damaged: it holds what no entry can hold ({error}). {RESTORE}"
        ) from error
    if fields.get("checksum") != expected:
        raise CorruptEntryError(
            f"{where} is damaged: its content does not match its checksum. {RESTORE}"
        )
    return fields


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(
        fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8")


def _checksum(fields: Mapping[str, Any]) -> str:
    return f"sha256:{hashlib.sha256(_canonical(fields)).hexdigest()}"


def _foreign(where: str, reason: str) -> ForeignEntryError:
    return ForeignEntryError(
        f"{where} was not written by onceforall: {reason}. If an entry stood here before, restore "
        "that from a backup or a snapshot "
        "of the file system; else move this file out of the log. Do not touch the entries beside "
        "it."
    )


def _newer(where: str, reason: str) -> NewerEntryError:
    return NewerEntryError(
        f"{where} was written by a newer release of onceforall: {reason}. Upgrade onceforall to "
        "that release or a later one; "
        f"nothing in the log needs to be changed."
    )
