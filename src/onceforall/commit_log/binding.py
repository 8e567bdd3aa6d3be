"""Where a checkpoint's commit log lies, and how the two are bound to each other.

The folder ``onceforall/`` of the checkpoint is the log's *home*. Its ``pointer/00000000.json`` says
where the log lies: here (``location`` null), or elsewhere, with a random id; the log elsewhere has
the same id in ``binding.json``. Both are created if absent, so of several first starts with other
settings one wins, and the others follow it or are refused. The log's ``binding.json`` comes
first: where there is a pointer, there was a log. A crash between the two leaves an empty log that
the next start with the same checkpoint takes.

A log that was moved on purpose gets the next pointer (``00000001.json``, …); the newest one counts.
A log in its home that an earlier release began has no pointer. Files that are none of these are
ignored.

Not checked here: whether a checkpoint with its pointer was copied. Both copies then lead to one
log, whose CLAIM names the checkpoint, and ``protocol.judgement.judge_claim`` refuses the second.
Below that, one fences the other: they never decide both.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from onceforall.commit_log.chains import entry_key, leading
from onceforall.commit_log.envelope import FORMAT, decode_fields, encode_fields
from onceforall.commit_log.log import CommitLog
from onceforall.commit_log.store import AlreadyExists, Created, Store, TooLate, keeps_ends
from onceforall.commit_log.stores.local import LocalStore
from onceforall.commit_log.stores.locations import is_local, remote_url
from onceforall.common.arguments import location_shown
from onceforall.errors import (
    CheckpointMismatchError,
    ForeignEntryError,
    OptionError,
    UnsupportedQueryError,
)
from onceforall.failpoints import points as failpoints

__all__ = [
    "BoundLog",
    "bind",
    "bound_id",
    "find",
    "log_location",
    "log_path",
    "open_log_store",
    "pointer_of",
]

_BINDING = "binding.json"
_POINTER = "POINTER"
_LOG = "LOG"


@dataclass(frozen=True)
class BoundLog:
    """A checkpoint's log.

    Attributes:
        store: where its entries are.
        location: its URL when it lies elsewhere; None: in its home.
        id: what binds log and pointer; empty for a log of an earlier release, which has no pointer.
        first_generation: the number of its first chain.
        keep_ends: the last two entries of its chains are never deleted; see ``log``.
    """

    store: Store
    location: str | None
    id: str
    first_generation: int = 0
    keep_ends: bool = False

    def log(
        self, *, retain_commits: int = 100, goes_on: Callable[[], bool] | None = None
    ) -> CommitLog:
        """Return the log, for a run that keeps so many commits, or for a look; ``goes_on`` says
        whether a store that is away is waited for.
        """
        return CommitLog(
            self.store,
            goes_on=goes_on,
            retain_commits=retain_commits,
            first_generation=self.first_generation,
            keep_ends=self.keep_ends,
        )


@dataclass(frozen=True)
class _Pointer:
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


def log_location(text: str, default_fs: str = "file:///") -> str:
    """Return the URL of a log's folder, the same for every way to write it.

    Args:
        text: an absolute path or a URL.
        default_fs: ``fs.defaultFS``, which a path without a scheme is on.

    Raises:
        OptionError: it is not absolute, names no folder, or names a user and a password.
    """
    if not is_local(text, default_fs):
        return remote_url(text, default_fs, what="onceforall.commitLog=")
    url = urlparse(text)
    if url.netloc not in {"", "localhost"}:
        raise OptionError(
            f"onceforall.commitLog={location_shown(text)} names a host. A local folder has one "
            "slash or three: file:/…"
        )
    if url.scheme and (url.query or url.fragment):
        raise OptionError(
            f"onceforall.commitLog={location_shown(text)} is a URL with a query or a fragment, "
            "and names no folder. Write %3F for a question mark and %23 for #."
        )
    path = Path(unquote(url.path) if url.scheme else text)
    if not path.is_absolute():
        raise OptionError(
            f"onceforall.commitLog={location_shown(text)} is not an absolute path: another "
            "working folder would give another log. Write it in full."
        )
    return path.resolve().as_uri()


def log_path(location: str) -> Path:
    """Return the local folder of a location."""
    return Path(unquote(urlparse(location).path))


def open_log_store(location: str) -> Store:
    """Return the store of a log elsewhere, where no session is: a local folder.

    ``onceforall.spark.stores`` opens the other kinds, which need one, or settings.

    Raises:
        UnsupportedQueryError: it is not local.
    """
    if not is_local(location):
        raise UnsupportedQueryError(
            f"The commit log lies in {location}, which this can't open. Use a command of "
            "onceforall, or start the query."
        )
    return LocalStore(log_path(location))


def find(
    home: Store,
    wanted: str | None = None,
    *,
    adopt: bool = False,
    dry_run: bool = False,
    open_store: Callable[[str], Store] = open_log_store,
) -> BoundLog | None:
    """Return the log of a checkpoint, or None when it was never bound; nothing is written (but see
    ``adopt``).

    Args:
        home: the store of the checkpoint's folder ``onceforall/``.
        wanted: where the user says that it lies (``log_location``); None: wherever the pointer
            says.
        adopt: the log was moved to ``wanted`` on purpose; the next pointer is written.
        dry_run: it isn't written; what is returned is what would be.
        open_store: opens the store of a location.

    Raises:
        CheckpointMismatchError: pointer, log and ``wanted`` don't fit together; the message names
            the places and the remedy.
        CommitLogError: a store failed, or a file is damaged.
    """
    pointer = _newest_pointer(home)
    if pointer is not None and pointer.detached is not None:
        return None
    if pointer is not None and pointer.moving is not None:
        raise CheckpointMismatchError(
            f"{home.describe('')}: the checkpoint {pointer.moving} is being moved here. Finish it: "
            f"onceforall checkpoint move {pointer.moving} {_checkpoint_of(home)}"
        )
    first = 0 if pointer is None else pointer.first_generation
    here = _has_entries(home, first)
    if pointer is None and not here:
        return None
    if pointer is None or pointer.location is None:
        if wanted is not None:
            raise _already_here(home, wanted)
        return BoundLog(
            home,
            None,
            "" if pointer is None else pointer.id,
            first,
            keep_ends=pointer is not None and pointer.keep_ends,
        )
    if here and not pointer.from_home:
        raise CheckpointMismatchError(
            f"The checkpoint has a commit log of its own in {home.describe('chains')}, and a "
            f"pointer to another one in {pointer.location}. "
            "One of them was put there by hand. Take away the folder 'chains' if it is not this "
            "query's; do not delete it before you "
            "know that."
        )
    if wanted is not None and wanted != pointer.location:
        pointer = _moved(home, pointer, wanted, adopt=adopt, dry_run=dry_run, open_store=open_store)
    assert pointer.location is not None
    store = open_store(pointer.location)
    _check_bound(home, pointer, store)
    return BoundLog(store, pointer.location, pointer.id, first, keep_ends=pointer.keep_ends)


def detached_generation(home: Store) -> int:
    """Return the newest generation of all logs from which a checkpoint on a store was detached, or
    -1.
    """
    return max((each.detached for each in _pointers(home) if each.detached is not None), default=-1)


def point_nowhere(home: Store, bound: BoundLog, generation: int) -> None:
    """Make a plain query's checkpoint of one on a store, by its next pointer: it has no log from
    now on. The old one stays where it is, for its seals fence whoever still runs.

    Args:
        home: the store of its folder ``onceforall/``.
        bound: its log.
        generation: the one that the detachment claimed.
    """
    pointer = _newest_pointer(home)
    if pointer is not None and pointer.detached is not None:
        return
    _create(home, replace(_next(pointer, bound), detached=generation))


def expect_move(home: Store, bound: BoundLog, source: str) -> None:
    """Mark a place by its first pointer as one to which a checkpoint is being moved.

    Raises:
        CheckpointMismatchError: something else lies there, or what an earlier try has left of
            another log of that checkpoint.
    """
    # A log of an earlier release has no id, and may get one before this command is repeated.
    answer = _create(home, _Pointer(0, bound.id, None, bound.first_generation, moving=source))
    if not isinstance(answer, AlreadyExists):
        return
    pointer = _newest_pointer(home)
    if pointer is None or pointer.moving != source:
        raise CheckpointMismatchError(
            f"{home.describe('')} has a commit log already. Name an empty folder."
        )
    same = pointer.id == bound.id or not pointer.id
    if not same or pointer.first_generation != bound.first_generation:
        raise CheckpointMismatchError(
            f"{_checkpoint_of(home)} has parts of the checkpoint {source} from an earlier try to "
            "move it there, with a commit log from which it was detached since. Nothing has run "
            "there: delete that folder, and repeat the command."
        )


def is_expected(home: Store, source: str) -> bool:
    """Tell whether that checkpoint is being moved to this place, and isn't there yet."""
    pointer = _newest_pointer(home)
    return pointer is not None and pointer.moving == source


def _checkpoint_of(home: Store) -> str:
    return home.describe("").rpartition("/")[0]


def pointer_of(home: Store) -> tuple[str, str | None] | None:
    """Return id and location of a home's newest pointer, without looking whether there is a log;
    None: it has none, or was detached on a store since.
    """
    pointer = _newest_pointer(home)
    return (
        None if pointer is None or pointer.detached is not None else (pointer.id, pointer.location)
    )


def bound_id(location: str, open_store: Callable[[str], Store] = open_log_store) -> str | None:
    """Return the id of the log that lies at a location, or None when there is none."""
    return _id_of(open_store(location))


def bind(
    home: Store,
    checkpoint: str,
    wanted: str | None,
    *,
    query_id: str | None,
    retired: Collection[str] = (),
    first_generation: int = 0,
    adopt: bool = False,
    open_store: Callable[[str], Store] = open_log_store,
) -> BoundLog:
    """Return the log of a checkpoint, and bind the two when they are new.

    Errors are those of ``find``, and one more.

    Args:
        home: the store of the checkpoint's folder ``onceforall/``.
        checkpoint: the checkpoint's path, as it is recognised.
        wanted: where a new log is to lie; None: in its home.
        query_id: Spark's query id; None before its first start.
        retired: ids of logs from which this checkpoint was detached.
        first_generation: the number that a new log's first chain gets.
        adopt: the log was moved to ``wanted`` on purpose.
        open_store: opens the store of a location.

    Raises:
        CheckpointMismatchError: ``wanted`` holds another query's log.
    """
    bound = find(home, wanted, adopt=adopt, open_store=open_store)
    if bound is not None:
        _make_durable(home, bound, open_store)
        return bound
    log_id, number = uuid.uuid4().hex, 0
    pointers = _pointers(home)
    if pointers:
        # Detached on a store: the old log stays in its place.
        number = len(pointers)
        retired = [*retired, *(pointer.id for pointer in pointers)]
        wanted = wanted or home.describe(f"again-{first_generation}")
    if wanted is not None:
        log_id = _prepare(
            open_store(wanted), checkpoint, wanted, query_id, retired, first_generation
        )
    failpoints.hit("bind.prepared")
    store = home if wanted is None else open_store(wanted)
    pointer = _Pointer(number, log_id, wanted, first_generation, keep_ends=keeps_ends(store))
    answer = _create(home, pointer, checkpoint=checkpoint)
    if isinstance(answer, AlreadyExists):
        # Another start was faster; what it has bound is what counts.
        failpoints.hit("bind.lost")
        bound = find(home, wanted, adopt=adopt, open_store=open_store)
        assert bound is not None
        return bound
    failpoints.hit("bind.pointed")
    return BoundLog(store, wanted, log_id, first_generation, keep_ends=pointer.keep_ends)


def log_id_at(store: Store, bound: BoundLog, checkpoint: str) -> str:
    """Return the id under which a log is to lie in another place: its own, or what an earlier
    try has left there for it. The place is marked with it.

    Raises:
        CheckpointMismatchError: the place holds another log.
    """
    content = store.read(_BINDING)
    if content is None:
        if _has_entries(store, bound.first_generation) or store.list("chains"):
            raise CheckpointMismatchError(
                f"{store.describe('')} holds a commit log that is not this checkpoint's. Name an "
                "empty folder."
            )
        log_id = bound.id or uuid.uuid4().hex
        answer = store.create(
            _BINDING, _encode(_LOG, id=log_id, checkpoint=checkpoint, written_at=_now())
        )
        content = answer.content if isinstance(answer, AlreadyExists) else store.read(_BINDING)
        assert content is not None
    found = _decode(content, _LOG, store.describe(_BINDING))
    if found["checkpoint"] != checkpoint or (bound.id and found["id"] != bound.id):
        raise CheckpointMismatchError(
            f"{store.describe('')} holds the commit log of the checkpoint {found['checkpoint']}, "
            f"and this one is {checkpoint}. Name an empty folder."
        )
    return str(found["id"])


def point_to(home: Store, bound: BoundLog, location: str, log_id: str, store: Store) -> None:
    """Make a checkpoint point to where its log was moved, by the next pointer.

    Raises:
        CheckpointMismatchError: somebody has made it point elsewhere meanwhile.
    """
    pointer = _newest_pointer(home)
    if pointer is not None and pointer.location == location:
        return
    found = _next(pointer, bound)
    answer = _create(
        home,
        replace(
            found,
            id=log_id,
            location=location,
            keep_ends=keeps_ends(store),
            from_home=found.from_home or bound.location is None,
        ),
    )
    if isinstance(answer, AlreadyExists):
        newest = _newest_pointer(home)
        if newest is None or newest.location != location:
            raise CheckpointMismatchError(
                f"Another command has moved the log of {home.describe('')} at the same time, to "
                f"{newest.location if newest else 'nowhere'}. Look which place is right."
            )


def point_home(home: Store, bound: BoundLog, source: str) -> None:
    """Make a checkpoint that was moved here point to the log in its own home; an earlier try may
    have done so.

    Raises:
        CheckpointMismatchError: nothing is being moved here.
    """
    pointer = _newest_pointer(home)
    if pointer is None:
        raise CheckpointMismatchError(
            f"{source} was moved to {_checkpoint_of(home)}, and isn't there any more. Put that "
            "folder back."
        )
    if pointer.moving != source:
        return
    _create(home, replace(_next(pointer, bound), keep_ends=keeps_ends(home), moving=None))


def _make_durable(home: Store, bound: BoundLog, open_store: Callable[[str], Store]) -> None:
    """Make what binds checkpoint and log durable: the start that created it may have been killed
    before it could sync it.
    """
    if bound.location is None:
        return
    number = leading(lambda each: home.read(_pointer_key(each)) is not None) - 1
    for store, key in ((home, _pointer_key(number)), (open_store(bound.location), _BINDING)):
        content = store.read(key)
        if content is not None:
            # A create that finds something makes that durable before it answers.
            store.create(key, content)


def _prepare(  # noqa: PLR0917
    store: Store,
    checkpoint: str,
    wanted: str,
    query_id: str | None,
    retired: Collection[str],
    first_generation: int,
) -> str:
    """Make sure that a log lies there which is this checkpoint's and no other's, and return its
    id.
    """
    where = store.describe("")
    content = store.read(_BINDING)
    if content is None:
        if _has_entries(store, 0) or store.list("chains"):
            raise CheckpointMismatchError(
                f"onceforall.commitLog={wanted}: the folder holds a commit log that is not bound "
                f"to the checkpoint {checkpoint}; it may be "
                "another query's. Two queries may not share one. Name an empty folder."
            )
        answer = store.create(
            _BINDING, _encode(_LOG, id=uuid.uuid4().hex, checkpoint=checkpoint, written_at=_now())
        )
        failpoints.hit("bind.log_marked")
        content = answer.content if isinstance(answer, AlreadyExists) else store.read(_BINDING)
        assert content is not None
    found = _decode(content, _LOG, store.describe(_BINDING))
    if found["id"] in retired:
        raise CheckpointMismatchError(
            f"onceforall.commitLog={wanted}: the folder {where} holds the log from which the "
            f"checkpoint {checkpoint} was detached. Name an "
            "empty folder, or move the old log away."
        )
    if found["checkpoint"] != checkpoint:
        raise CheckpointMismatchError(
            f"onceforall.commitLog={wanted}: the folder holds the log of the checkpoint "
            f"{found['checkpoint']}, and this one is {checkpoint}. "
            "Two queries may not share one log. Name an empty folder."
        )
    newest = CommitLog(store, first_generation=first_generation).newest_claim()
    if newest is not None and newest.query_id != query_id:
        raise CheckpointMismatchError(
            f"onceforall.commitLog={wanted}: the log there belongs to the query "
            f"{newest.query_id}, but the checkpoint {checkpoint} has no pointer "
            "to it and is another query's or new: it was deleted or replaced while the log "
            "stayed. Put the old checkpoint back, or name "
            "an empty folder."
        )
    return str(found["id"])


def _moved(
    home: Store,
    pointer: _Pointer,
    wanted: str,
    *,
    adopt: bool,
    dry_run: bool,
    open_store: Callable[[str], Store],
) -> _Pointer:
    """Follow a log that was moved on purpose: it must be there, and must be gone from where it
    was.
    """
    both = (
        f"onceforall.commitLog={wanted}, but the checkpoint's pointer "
        f"{home.describe(_pointer_key(pointer.number))} says that the commit log "
        f"lies in {pointer.location}"
    )
    assert pointer.location is not None
    if not adopt:
        raise CheckpointMismatchError(
            f"{both}. Leave the option out, or name that place. If the log was moved, start once "
            "with onceforall.adoptCheckpoint=true."
        )
    if _id_of(open_store(wanted)) != pointer.id:
        raise CheckpointMismatchError(
            f"{both}, and what lies in {wanted} is not that log. Move the log there first."
        )
    if _id_of(open_store(pointer.location)) == pointer.id:
        raise CheckpointMismatchError(
            f"{both}, and the log is in both places: it was copied, and nobody can tell which "
            "copy holds the last decision. Keep the one "
            "that the last run wrote, and take the other away."
        )
    moved = replace(
        pointer,
        number=pointer.number + 1,
        location=wanted,
        keep_ends=keeps_ends(open_store(wanted)),
    )
    if dry_run:
        return moved
    failpoints.hit("bind.moving")
    answer = _create(home, moved)
    failpoints.hit("bind.moved")
    if isinstance(answer, AlreadyExists):
        raise CheckpointMismatchError(
            f"{both}; another start has moved it at the same time. Start again without the option."
        )
    return moved


def _check_bound(home: Store, pointer: _Pointer, store: Store) -> None:
    found = _id_of(store)
    if found == pointer.id:
        return
    what = "there is none" if found is None else "what lies there is another log"
    raise CheckpointMismatchError(
        f"The checkpoint's pointer {home.describe(_pointer_key(pointer.number))} says that the "
        f"commit log lies in {pointer.location}, but {what}. "
        "Mount that volume or put the log back: it holds what was decided, and without it rows "
        "would be lost or doubled. If it was "
        "moved, start once with onceforall.commitLog naming the new place and "
        "onceforall.adoptCheckpoint=true."
    )


def _already_here(home: Store, wanted: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"onceforall.commitLog={wanted}, but the checkpoint already has its commit log in "
        f"{home.describe('')}. Leave the option out. To "
        "move the log, stop the query, detach the checkpoint (onceforall detach), and start with "
        "the option."
    )


def _has_entries(store: Store, first_generation: int) -> bool:
    """Every CLAIM stays for ever, so the first one tells."""
    return store.read(entry_key(first_generation, 0)) is not None


def _newest_pointer(home: Store) -> _Pointer | None:
    count = leading(lambda number: home.read(_pointer_key(number)) is not None)
    return None if count == 0 else _pointer(home, count - 1)


def _next(pointer: _Pointer | None, bound: BoundLog) -> _Pointer:
    """Return what comes behind the newest pointer of a bound checkpoint: it says the same, until
    ``replace`` says otherwise, but what its log is says the log. A log of an earlier release has
    none.
    """
    if pointer is None:
        return _Pointer(0, bound.id or uuid.uuid4().hex, bound.location, bound.first_generation)
    return replace(
        pointer,
        number=pointer.number + 1,
        id=bound.id or pointer.id or uuid.uuid4().hex,
        first_generation=bound.first_generation,
    )


def _create(home: Store, pointer: _Pointer, **more: str) -> Created | AlreadyExists | TooLate:
    """Write a pointer with all that it says, so that none of it is lost to its successor."""
    fields: dict[str, Any] = {
        name: True for name in ("keep_ends", "from_home") if getattr(pointer, name)
    }
    for name in ("detached", "moving"):
        if getattr(pointer, name) is not None:
            fields[name] = getattr(pointer, name)
    return home.create(
        _pointer_key(pointer.number),
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


def _pointers(home: Store) -> list[_Pointer]:
    count = leading(lambda number: home.read(_pointer_key(number)) is not None)
    return [_pointer(home, number) for number in range(count)]


def _pointer(home: Store, number: int) -> _Pointer:
    key = _pointer_key(number)
    content = home.read(key)
    assert content is not None
    found = _decode(content, _POINTER, home.describe(key))
    location = found.get("location")
    location = None if location is None else str(location)
    return _Pointer(
        number,
        str(found["id"]),
        location,
        int(found.get("first_generation", 0)),
        keep_ends=bool(found.get("keep_ends", False)),
        from_home=bool(found.get("from_home", False)),
        detached=None if found.get("detached") is None else int(found["detached"]),
        moving=None if found.get("moving") is None else str(found["moving"]),
    )


def _id_of(store: Store) -> str | None:
    content = store.read(_BINDING)
    return None if content is None else str(_decode(content, _LOG, store.describe(_BINDING))["id"])


def _pointer_key(number: int) -> str:
    return f"pointer/{number:08d}.json"


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
