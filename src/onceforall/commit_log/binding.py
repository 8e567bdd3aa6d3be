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

A detachment gets one, too, which says that the checkpoint is a plain query's. Nothing is renamed or
deleted then: whatever stands still keeps the log that it has opened, in which nobody decides any
more, and a return begins another one, in the folder ``again-<generation>`` beside it.

Not checked here: whether a checkpoint with its pointer was copied. Both copies then lead to one
log, whose CLAIM names the checkpoint, and ``protocol.judgement.judge_claim`` refuses the second.
Below that, one fences the other: they never decide both.
"""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Callable, Collection, Sequence
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
from onceforall.commit_log.stores.probing import is_one_place
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


_OURS = re.compile(
    r"chains|floors|pointer|rows|again-[0-9]+|binding\.json|onceforall\..*|lost\+found", re.ASCII
)
"""What may lie in a folder that is to be a log's: parts of logs, what a test of the store has left,
and what each file system of its own has."""


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
    try:
        url = urlparse(text)
    except ValueError as error:
        raise OptionError(
            f"onceforall.commitLog={location_shown(text)} is neither a path nor a URL: {error}. "
            "Write it in full."
        ) from None
    if not is_local(text, default_fs):
        return remote_url(text, default_fs, what="onceforall.commitLog=")
    if url.netloc not in {"", "localhost"}:
        raise OptionError(
            f"onceforall.commitLog={location_shown(text)} names a host. A local folder has one "
            "slash or three: file:/…"
        )
    # What the parser of URLs leaves out, too: a bare ? at the end, tabs and newlines.
    if url.scheme and any(each in text for each in "?#\t\r\n"):
        raise OptionError(
            f"onceforall.commitLog={location_shown(text)} is a URL with a query or a fragment, "
            "and names no folder, or a tab or newline in it. Write %3F for a question mark and %23 "
            "for #."
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
        dry_run: it isn't written (where the log is in both places, one file is, and deleted again,
            to see whether they are two); what is returned is what would be.
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
            + shlex.join(["onceforall", "checkpoint", "move", pointer.moving, checkpoint_of(home)])
        )
    first = 0 if pointer is None else pointer.first_generation
    here = has_entries(home, first)
    if pointer is None and not here:
        return None
    if pointer is None or pointer.location is None:
        if wanted is not None:
            raise _already_here(home, wanted)
        if pointer is not None and pointer.below is not None:
            return _bound(home, pointer, open_store)
        return BoundLog(
            home,
            None,
            "" if pointer is None else pointer.id,
            first,
            keep_ends=pointer is not None and pointer.keep_ends,
        )
    # An older pointer that is damaged stands in nobody's way.
    if here and not pointer.from_home and not _lay_here(home):
        raise CheckpointMismatchError(
            f"The checkpoint has a commit log of its own in {home.describe('chains')}, and a "
            f"pointer to another one in {pointer.location}. "
            "One of them was put there by hand. Take away the folder 'chains' if it is not this "
            "query's; do not delete it before you "
            "know that."
        )
    if wanted is not None and not _names_it(wanted, pointer.location):
        pointer = _moved(home, pointer, wanted, adopt=adopt, dry_run=dry_run, open_store=open_store)
    return _bound(home, pointer, open_store)


def _bound(home: Store, pointer: Pointer, open_store: Callable[[str], Store]) -> BoundLog:
    location = location_of(home, pointer)
    assert location is not None
    store = open_store(location)
    _check_bound(home, pointer, location, store)
    return BoundLog(
        store, location, pointer.id, pointer.first_generation, keep_ends=pointer.keep_ends
    )


def location_of(home: Store, pointer: Pointer) -> str | None:
    """Return the URL of the folder to which a pointer leads; None: the root of its home."""
    return pointer.location if pointer.below is None else _url_below(home, pointer.below)


def _url_below(home: Store, name: str) -> str:
    where = home.describe(name)
    return Path(where).as_uri() if isinstance(home, LocalStore) else where


def _names_it(wanted: str, location: str) -> bool:
    """Tell whether a location is the one that a user has named, or the folder in it that a log got
    because an older one of the checkpoint lies there.
    """
    return re.fullmatch(f"{re.escape(wanted)}(/again-[0-9]+)?", location) is not None


def _lay_here(home: Store) -> bool:
    """Tell whether an earlier log of the checkpoint lies in its home: one from which it was
    detached, or that was moved away. Whoever was late there has claimed generations above, which
    the newest log has, too.
    """
    return any(
        each.from_home or (each.location is None and each.below is None and each.moving is None)
        for each in all_pointers(home)
    )


def is_bound(home: Store) -> bool:
    """Tell whether a checkpoint has a log, and wasn't made a plain query's since. A folder without
    a pointer proves nothing: a start that was killed there leaves one.
    """
    pointer = newest_pointer(home)
    return has_entries(home, 0) if pointer is None else pointer.detached is None


def is_detached(home: Store) -> bool:
    """Tell whether a checkpoint was made a plain query's, and is one still."""
    pointer = newest_pointer(home)
    return pointer is not None and pointer.detached is not None


def detached_generation(home: Store) -> int:
    """Return a generation below which the checkpoint's next log may not begin: that of its last
    detachment, or -1. The newest pointer alone tells it, for a log begins behind the last one; so
    an older pointer that is damaged stands in nobody's way.
    """
    pointer = newest_pointer(home)
    if pointer is None:
        return -1
    return pointer.first_generation - 1 if pointer.detached is None else pointer.detached


def _detached_last(pointers: Sequence[Pointer]) -> int:
    return max((each.detached for each in pointers if each.detached is not None), default=-1)


def checkpoint_of(home: Store) -> str:
    """Return the checkpoint in which the home of a log stands, as ``home`` names it."""
    return home.describe("").rpartition("/")[0]


def pointer_of(home: Store) -> tuple[str, str | None] | None:
    """Return id and location of a home's newest pointer, without looking whether there is a log;
    None: it has none, or was detached since.
    """
    pointer = newest_pointer(home)
    if pointer is None or pointer.detached is not None:
        return None
    return pointer.id, location_of(home, pointer)


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
        wanted: where a new log is to lie; None: in its home. Where a log lies from which this
            checkpoint was detached, the new one lies in a folder ``again-<generation>`` in it.
        query_id: Spark's query id; None before its first start.
        retired: ids of logs from which an earlier release has detached this checkpoint.
        first_generation: the number that a new log's first chain gets, or a higher one if the
            pointers say so.
        adopt: the log was moved to ``wanted`` on purpose.
        open_store: opens the store of a location.

    Raises:
        CheckpointMismatchError: ``wanted`` holds another query's log; or the checkpoint was bound
            by another start, and detached, meanwhile.
    """
    while (bound := find(home, wanted, adopt=adopt, open_store=open_store)) is not None:
        if _made_durable(home, bound, open_store):
            return bound
    pointers = all_pointers(home)
    # Whoever has asked before may have stood still since.
    first_generation = max(first_generation, 1 + _detached_last(pointers))
    again = f"again-{first_generation}"
    retired = [*retired, *(pointer.id for pointer in pointers)]
    location = wanted
    if wanted is not None and bound_id(wanted, open_store) in retired:
        location = f"{wanted}/{again}"
    pointer = Pointer(
        len(pointers),
        uuid.uuid4().hex,
        location,
        first_generation,
        below=again if pointers and wanted is None else None,
    )
    location = location_of(home, pointer)
    store = home if location is None else open_store(location)
    if location is not None:
        log_id = _prepare(
            store,
            checkpoint,
            location,
            query_id,
            first_generation,
            is_at_home=pointer.below is not None,
        )
        pointer = replace(pointer, id=log_id)
    pointer = replace(pointer, keep_ends=keeps_ends(store))
    failpoints.hit("bind.prepared")
    answer = create_pointer(home, pointer, checkpoint=checkpoint)
    if isinstance(answer, AlreadyExists):
        # Another start was faster; what it has bound is what counts.
        failpoints.hit("bind.lost")
        bound = find(home, wanted, adopt=adopt, open_store=open_store)
        if bound is None:
            raise CheckpointMismatchError(
                f"{checkpoint} was started and detached by others while this start stood still. "
                "Start again, if the query is to run with onceforall."
            )
        return bound
    failpoints.hit("bind.pointed")
    return BoundLog(store, location, pointer.id, first_generation, keep_ends=pointer.keep_ends)


def _made_durable(home: Store, bound: BoundLog, open_store: Callable[[str], Store]) -> bool:
    """Make what binds checkpoint and log durable: the start that created it may have been killed
    before it could sync it. False when it is not there any more, or another stands in its place: it
    went with a loss of power.
    """
    number = leading(lambda each: home.read(pointer_key(each)) is not None) - 1
    if number < 0:
        # A log of an earlier release, which its first CLAIM binds.
        return not bound.id
    # Also where the log is at home: if the pointer went, another start could begin one elsewhere.
    binds = [(home, pointer_key(number))]
    if bound.location is not None:
        binds.append((open_store(bound.location), BINDING))
    for store, key in binds:
        content = store.read(key)
        if content is None:
            return False
        # A create that finds something makes that durable before it answers.
        answer = store.create(key, content)
        if isinstance(answer, AlreadyExists) and answer.content != content:
            return False
    return pointer_of(home) == (bound.id, bound.location)


def _prepare(
    store: Store,
    checkpoint: str,
    wanted: str,
    query_id: str | None,
    first_generation: int,
    *,
    is_at_home: bool,
) -> str:
    """Make sure that a log lies there which is this checkpoint's and no other's, and return its
    id. ``is_at_home``: below the checkpoint's own folder, which goes with it when it is moved by
    hand.
    """
    found = mark_of(store)
    if found is None:
        if stranger := foreign_in(store):
            raise CheckpointMismatchError(
                f"onceforall.commitLog={wanted}: the folder holds something else, {stranger}. Name "
                "an empty folder."
            )
        if has_entries(store, 0) or store.list("chains"):
            raise CheckpointMismatchError(
                f"onceforall.commitLog={wanted}: the folder holds a commit log that is not bound "
                f"to the checkpoint {checkpoint}; it may be "
                "another query's. Two queries may not share one. Name an empty folder."
            )
        found = mark(store, uuid.uuid4().hex, checkpoint)
        failpoints.hit("bind.log_marked")
    if found["checkpoint"] != checkpoint and not (
        is_at_home and not has_entries(store, first_generation)
    ):
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
    inner = re.search("/again-[0-9]+$", pointer.location)
    if inner and id_at(open_store(wanted)) != pointer.id:
        # The folder in which it lies beside an older one was moved.
        wanted += inner[0]
    if id_at(open_store(wanted)) != pointer.id:
        raise CheckpointMismatchError(
            f"{both}, and what lies in {wanted} is not that log. Move the log there first."
        )
    was_there = any(location_of(home, each) == wanted for each in all_pointers(home))
    if was_there and not has_entries(open_store(wanted), pointer.first_generation):
        # Of a move by the command, the old place keeps its mark, and may be emptied.
        raise CheckpointMismatchError(
            f"{both}, and what lies in {wanted} has no entries any more: the log has left that "
            "place. Mount the volume to which it was moved."
        )
    before, now = open_store(pointer.location), open_store(wanted)
    # Another name of the place that it has, such as s3: for s3a:, is a move, too.
    if id_at(before) == pointer.id and not is_one_place(now, before):
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


def _check_bound(home: Store, pointer: Pointer, location: str, store: Store) -> None:
    found = id_at(store)
    if found == pointer.id:
        return
    what = "there is none" if found is None else "what lies there is another log"
    moved = (
        " If it was moved, start once with onceforall.commitLog naming the new place and "
        "onceforall.adoptCheckpoint=true."
        if pointer.below is None
        else ""
    )
    raise CheckpointMismatchError(
        f"The checkpoint's pointer {home.describe(pointer_key(pointer.number))} says that the "
        f"commit log lies in {location}, but {what}. "
        f"{'Mount that volume or put' if pointer.below is None else 'Put'} the log back: it holds "
        f"what was decided, and without it rows would be lost or doubled.{moved}"
    )


def _already_here(home: Store, wanted: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"onceforall.commitLog={wanted}, but the checkpoint already has its commit log in "
        f"{home.describe('')}. Leave the option out. To "
        "move the log, stop the query, detach the checkpoint (onceforall detach), and start with "
        "the option."
    )


def foreign_in(store: Store) -> str:
    """Return the name of something in a folder that is no part of a commit log; empty: there is
    nothing else.
    """
    names = (name.rstrip("/") for name in store.list(""))
    return next((name for name in names if not _OURS.fullmatch(name)), "")


def has_entries(store: Store, first_generation: int) -> bool:
    """Every CLAIM stays for ever, so the first one tells."""
    return store.read(entry_key(first_generation, 0)) is not None
