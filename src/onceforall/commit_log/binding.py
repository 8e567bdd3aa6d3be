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

import glob
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlparse

from onceforall.commit_log.chains import entry_key, leading
from onceforall.commit_log.log import CommitLog
from onceforall.commit_log.pointers import (
    BINDING,
    Pointer,
    all_pointers,
    create_pointer,
    id_at,
    mark,
    mark_of,
    newest_pointer,
    pointer_key,
)
from onceforall.commit_log.store import AlreadyExists, Store, keeps_ends
from onceforall.commit_log.stores.local import LocalStore
from onceforall.commit_log.stores.locations import is_local, remote_url
from onceforall.common.arguments import location_shown
from onceforall.errors import (
    CheckpointMismatchError,
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
    pointer = newest_pointer(home)
    if pointer is not None and pointer.detached is not None:
        return None
    if pointer is not None and pointer.moving is not None:
        raise CheckpointMismatchError(
            f"{home.describe('')}: the checkpoint {pointer.moving} is being moved here. Finish it: "
            f"onceforall checkpoint move {pointer.moving} {checkpoint_of(home)}"
        )
    first = 0 if pointer is None else pointer.first_generation
    here = has_entries(home, first)
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
    if here and not pointer.from_home and not _lay_here(home):
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


def _lay_here(home: Store) -> bool:
    """Tell whether an earlier log of the checkpoint lies in its home: one from which it was
    detached. Whoever was late there has claimed generations above, which the newest log has, too.
    """
    return any(each.location is None and each.moving is None for each in all_pointers(home))


def detached_generation(home: Store) -> int:
    """Return the newest generation of all logs from which a checkpoint on a store was detached, or
    -1.
    """
    return max(
        (each.detached for each in all_pointers(home) if each.detached is not None), default=-1
    )


def checkpoint_of(home: Store) -> str:
    """Return the checkpoint in which the home of a log stands, as ``home`` names it."""
    return home.describe("").rpartition("/")[0]


def pointer_of(home: Store) -> tuple[str, str | None] | None:
    """Return id and location of a home's newest pointer, without looking whether there is a log;
    None: it has none, or was detached on a store since.
    """
    pointer = newest_pointer(home)
    return (
        None if pointer is None or pointer.detached is not None else (pointer.id, pointer.location)
    )


def bound_id(location: str, open_store: Callable[[str], Store] = open_log_store) -> str | None:
    """Return the id of the log that lies at a location, or None when there is none."""
    return id_at(open_store(location))


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
    pointers = all_pointers(home)
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
    pointer = Pointer(number, log_id, wanted, first_generation, keep_ends=keeps_ends(store))
    answer = create_pointer(home, pointer, checkpoint=checkpoint)
    if isinstance(answer, AlreadyExists):
        # Another start was faster; what it has bound is what counts.
        failpoints.hit("bind.lost")
        bound = find(home, wanted, adopt=adopt, open_store=open_store)
        assert bound is not None
        return bound
    failpoints.hit("bind.pointed")
    return BoundLog(store, wanted, log_id, first_generation, keep_ends=pointer.keep_ends)


def _make_durable(home: Store, bound: BoundLog, open_store: Callable[[str], Store]) -> None:
    """Make what binds checkpoint and log durable: the start that created it may have been killed
    before it could sync it.
    """
    if bound.location is None:
        return
    number = leading(lambda each: home.read(pointer_key(each)) is not None) - 1
    for store, key in ((home, pointer_key(number)), (open_store(bound.location), BINDING)):
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
    found = mark_of(store)
    if found is None:
        if has_entries(store, 0) or store.list("chains"):
            raise CheckpointMismatchError(
                f"onceforall.commitLog={wanted}: the folder holds a commit log that is not bound "
                f"to the checkpoint {checkpoint}; it may be "
                "another query's. Two queries may not share one. Name an empty folder."
            )
        found = mark(store, uuid.uuid4().hex, checkpoint)
        failpoints.hit("bind.log_marked")
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
    pointer: Pointer,
    wanted: str,
    *,
    adopt: bool,
    dry_run: bool,
    open_store: Callable[[str], Store],
) -> Pointer:
    """Follow a log that was moved on purpose: it must be there, and must be gone from where it
    was.
    """
    both = (
        f"onceforall.commitLog={wanted}, but the checkpoint's pointer "
        f"{home.describe(pointer_key(pointer.number))} says that the commit log "
        f"lies in {pointer.location}"
    )
    assert pointer.location is not None
    if not adopt:
        raise CheckpointMismatchError(
            f"{both}. Leave the option out, or name that place. If the log was moved, start once "
            "with onceforall.adoptCheckpoint=true."
        )
    if id_at(open_store(wanted)) != pointer.id:
        raise CheckpointMismatchError(
            f"{both}, and what lies in {wanted} is not that log. Move the log there first."
        )
    if id_at(open_store(pointer.location)) == pointer.id:
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
    answer = create_pointer(home, moved)
    failpoints.hit("bind.moved")
    if isinstance(answer, AlreadyExists):
        raise CheckpointMismatchError(
            f"{both}; another start has moved it at the same time. Start again without the option."
        )
    return moved


def _check_bound(home: Store, pointer: Pointer, store: Store) -> None:
    found = id_at(store)
    if found == pointer.id:
        return
    what = "there is none" if found is None else "what lies there is another log"
    aside = _set_aside(pointer)
    if aside is not None:
        raise CheckpointMismatchError(
            f"The checkpoint's pointer {home.describe(pointer_key(pointer.number))} says that the "
            f"commit log lies in {pointer.location}, but {what}: it lies in {aside}, where a "
            "detachment has put it that was interrupted. Stop every run of the query, rename that "
            "folder back, and start again."
        )
    raise CheckpointMismatchError(
        f"The checkpoint's pointer {home.describe(pointer_key(pointer.number))} says that the "
        f"commit log lies in {pointer.location}, but {what}. "
        "Mount that volume or put the log back: it holds what was decided, and without it rows "
        "would be lost or doubled. If it was "
        "moved, start once with onceforall.commitLog naming the new place and "
        "onceforall.adoptCheckpoint=true."
    )


def _set_aside(pointer: Pointer) -> Path | None:
    """Return where a log that lay elsewhere on a disk was put, beside its place."""
    if pointer.location is None or not is_local(pointer.location):
        return None
    place = log_path(pointer.location)
    return next(
        (
            folder
            for folder in sorted(place.parent.glob(f"{glob.escape(place.name)}-detached-*"))
            if id_at(LocalStore(folder)) == pointer.id
        ),
        None,
    )


def _already_here(home: Store, wanted: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"onceforall.commitLog={wanted}, but the checkpoint already has its commit log in "
        f"{home.describe('')}. Leave the option out. To "
        "move the log, stop the query, detach the checkpoint (onceforall detach), and start with "
        "the option."
    )


def has_entries(store: Store, first_generation: int) -> bool:
    """Every CLAIM stays for ever, so the first one tells."""
    return store.read(entry_key(first_generation, 0)) is not None
