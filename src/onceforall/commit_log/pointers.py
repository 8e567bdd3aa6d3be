"""The two files that bind a checkpoint and its commit log to each other: the pointers in the
checkpoint's folder ``onceforall/``, and ``binding.json`` beside the log. See ``binding``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from onceforall.commit_log.chains import leading
from onceforall.commit_log.envelope import FORMAT, decode_fields, encode_fields
from onceforall.commit_log.store import AlreadyExists, Created, Store, TooLate
from onceforall.errors import ForeignEntryError

BINDING = "binding.json"
_POINTER = "POINTER"
_LOG = "LOG"
_BELOW = re.compile(r"again-[0-9]+", re.ASCII)


@dataclass(frozen=True)
class Pointer:
    """Where a checkpoint's log lies, as one of its pointers says."""

    number: int
    id: str
    location: str | None
    first_generation: int
    keep_ends: bool = False
    from_home: bool = False
    detached: int | None = None
    """Set where the checkpoint was made a plain query's: the generation that did it."""
    moving: str | None = None
    """Set while a checkpoint is moved here: where it comes from."""
    below: str | None = None
    """Set where the log lies in the home, but not in its root: the name of the folder. So a
    checkpoint that is moved by hand takes its log along."""


def newest_pointer(home: Store) -> Pointer | None:
    """Return the pointer that counts, or None where there is none."""
    count = leading(lambda number: home.read(pointer_key(number)) is not None)
    return None if count == 0 else _pointer(home, count - 1)


def settled_pointer(home: Store) -> Pointer | None:
    """Return the pointer that counts, and make it durable: whoever wrote it may have been killed
    before it could sync it, and what it leads away from may be deleted next.
    """
    while (pointer := newest_pointer(home)) is not None:
        content = home.read(pointer_key(pointer.number))
        if content is not None:
            # A create that finds something makes that durable before it answers.
            home.create(pointer_key(pointer.number), content)
        if newest_pointer(home) == pointer:
            break
    return pointer


def all_pointers(home: Store) -> list[Pointer]:
    """Return all pointers, oldest first."""
    count = leading(lambda number: home.read(pointer_key(number)) is not None)
    return [_pointer(home, number) for number in range(count)]


def create_pointer(home: Store, pointer: Pointer, **more: str) -> Created | AlreadyExists | TooLate:
    """Write a pointer with all that it says, so that none of it is lost to its successor."""
    fields: dict[str, Any] = {
        name: True for name in ("keep_ends", "from_home") if getattr(pointer, name)
    }
    for name in ("detached", "moving", "below"):
        if getattr(pointer, name) is not None:
            fields[name] = getattr(pointer, name)
    return home.create(
        pointer_key(pointer.number),
        _encode(
            _POINTER,
            id=pointer.id,
            location=pointer.location,
            first_generation=pointer.first_generation,
            written_at=_now(),
            **more,
            **fields,
        ),
    )


def pointer_key(number: int) -> str:
    """Return the name of the file of a pointer."""
    return f"pointer/{number:08d}.json"


def id_at(store: Store) -> str | None:
    """Return the id of the log that lies there, or None where none does."""
    found = mark_of(store)
    return None if found is None else str(found["id"])


def mark_of(store: Store) -> dict[str, Any] | None:
    """Return what the mark of a log's place says, or None where there is none: ``id`` binds the
    log and its pointer, ``checkpoint`` names whose it is.
    """
    content = store.read(BINDING)
    return None if content is None else _decode(content, _LOG, store.describe(BINDING))


def mark(store: Store, log_id: str, checkpoint: str) -> dict[str, Any]:
    """Mark a place as that of a checkpoint's log, and return what it says then: another's, where
    somebody was faster.
    """
    store.create(BINDING, _encode(_LOG, id=log_id, checkpoint=checkpoint, written_at=_now()))
    found = mark_of(store)
    assert found is not None
    return found


def _pointer(home: Store, number: int) -> Pointer:
    key = pointer_key(number)
    content = home.read(key)
    assert content is not None
    found = _decode(content, _POINTER, home.describe(key))
    location = found.get("location")
    location = None if location is None else str(location)
    return Pointer(
        number,
        str(found["id"]),
        location,
        int(found.get("first_generation", 0)),
        keep_ends=bool(found.get("keep_ends", False)),
        from_home=bool(found.get("from_home", False)),
        detached=None if found.get("detached") is None else int(found["detached"]),
        moving=None if found.get("moving") is None else str(found["moving"]),
        below=None if found.get("below") is None else _checked_name(str(found["below"]), home, key),
    )


def _checked_name(name: str, home: Store, key: str) -> str:
    """No pointer leads out of its home."""
    if not _BELOW.fullmatch(name):
        raise ForeignEntryError(
            f"{home.describe(key)} names the folder {name!r}, which is none of a commit log's. Put "
            "back the file that stood there."
        )
    return name


def _encode(kind: str, **fields: Any) -> bytes:
    return encode_fields({"onceforall": FORMAT, "kind": kind, **fields})


def _decode(content: bytes, kind: str, where: str) -> dict[str, Any]:
    fields = decode_fields(content, where)
    if fields.get("kind") != kind or not isinstance(fields.get("id"), str):
        raise ForeignEntryError(
            f"{where} is not what binds a checkpoint and its commit log. Put back the file that "
            "stood there."
        )
    return fields


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
