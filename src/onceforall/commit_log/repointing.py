"""What makes a checkpoint lead to its commit log in another place, or to none: for the commands
that move or detach it. See ``binding`` for what pointers say.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from onceforall.commit_log.binding import (
    BoundLog,
    checkpoint_of,
    foreign_in,
    has_entries,
    location_of,
)
from onceforall.commit_log.pointers import (
    Pointer,
    create_pointer,
    mark,
    mark_of,
    newest_pointer,
    settled_pointer,
)
from onceforall.commit_log.store import AlreadyExists, Store, keeps_ends
from onceforall.commit_log.stores.probing import is_one_place
from onceforall.errors import CheckpointMismatchError


def point_nowhere(home: Store, bound: BoundLog, generation: int) -> None:
    """Make a plain query's checkpoint of one of ours, by its next pointer: it has no log from now
    on. The old one stays where it is, for its seals fence whoever still runs.

    Args:
        home: the store of its folder ``onceforall/``.
        bound: its log.
        generation: the one that the detachment claimed.

    Raises:
        CheckpointMismatchError: somebody has made it point elsewhere meanwhile.
    """
    pointer = settled_pointer(home)
    if pointer is not None and pointer.detached is not None:
        return
    _check_unchanged(home, pointer, bound)
    answer = create_pointer(home, replace(_next(pointer, bound), detached=generation))
    if isinstance(answer, AlreadyExists):
        pointer = newest_pointer(home)
        if pointer is None or pointer.detached is None:
            raise _overtaken(home, pointer)


def expect_move(home: Store, bound: BoundLog, source: str) -> None:
    """Mark a place by its first pointer as one to which a checkpoint is being moved.

    Raises:
        CheckpointMismatchError: something else lies there, or what an earlier try has left of
            another log of that checkpoint.
    """
    # A log of an earlier release has no id, and may get one before this command is repeated.
    answer = create_pointer(home, Pointer(0, bound.id, None, bound.first_generation, moving=source))
    if not isinstance(answer, AlreadyExists):
        return
    pointer = newest_pointer(home)
    if pointer is None or pointer.moving != source:
        raise CheckpointMismatchError(
            f"{home.describe('')} has a commit log already. Name an empty folder."
        )
    same = pointer.id == bound.id or not pointer.id
    if not same or pointer.first_generation != bound.first_generation:
        raise CheckpointMismatchError(
            f"{checkpoint_of(home)} has parts of the checkpoint {source} from an earlier try to "
            "move it there, with a commit log from which it was detached since. Nothing has run "
            "there: delete that folder, and repeat the command."
        )


def is_expected(home: Store, source: str) -> bool:
    """Tell whether that checkpoint is being moved to this place, and isn't there yet."""
    pointer = newest_pointer(home)
    return pointer is not None and pointer.moving == source


def lies_there(store: Store, bound: BoundLog) -> bool:
    """Tell whether a place is the one that a log has, under another name: a bind mount, ``s3:`` for
    ``s3a:``, a name node for its nameservice.
    """
    found = mark_of(store)
    return found is not None and found["id"] == bound.id and is_one_place(store, bound.store)


def log_id_at(store: Store, bound: BoundLog, checkpoint: str) -> str:
    """Return the id under which a log is to lie in another place: its own, or what an earlier
    try has left there for it. The place is marked with it.

    Raises:
        CheckpointMismatchError: the place holds another log.
    """
    found = mark_of(store)
    if found is None:
        if stranger := foreign_in(store):
            raise CheckpointMismatchError(
                f"{store.describe('')} holds something else, {stranger}. Name an empty folder."
            )
        if has_entries(store, bound.first_generation) or store.list("chains"):
            raise CheckpointMismatchError(
                f"{store.describe('')} holds a commit log that is not this checkpoint's. Name an "
                "empty folder."
            )
        found = mark(store, bound.id or uuid.uuid4().hex, checkpoint)
    if found["checkpoint"] == checkpoint and bound.id and found["id"] != bound.id:
        raise CheckpointMismatchError(
            f"{store.describe('')} holds an earlier commit log of this checkpoint, from which it "
            "was detached. Name an empty folder."
        )
    if found["checkpoint"] != checkpoint:
        raise CheckpointMismatchError(
            f"{store.describe('')} holds the commit log of the checkpoint {found['checkpoint']}, "
            f"and this one is {checkpoint}. Name an empty folder."
        )
    return str(found["id"])


def moved_id_at(store: Store, bound: BoundLog, checkpoint: str) -> str:
    """Return the id under which a log lies to which a move has gone past the point of no return.

    Raises:
        CheckpointMismatchError: the place holds another log, or none any more.
    """
    found = mark_of(store)
    if found is None:
        raise CheckpointMismatchError(
            f"{store.describe('')}, to which the log was moved, holds none any more. Put back what "
            "lay there, or mount that volume."
        )
    # The checkpoint may have been renamed since.
    if bound.id and found["id"] == bound.id:
        return str(found["id"])
    if found["checkpoint"] != checkpoint:
        raise CheckpointMismatchError(
            f"{store.describe('')} holds the commit log of the checkpoint {found['checkpoint']}, "
            f"and this one is {checkpoint}. If it was renamed since the move began, give it its "
            "name back, and repeat the command with that."
        )
    return log_id_at(store, bound, checkpoint)


def point_to(home: Store, bound: BoundLog, location: str, log_id: str, store: Store) -> None:
    """Make a checkpoint point to where its log was moved, by the next pointer.

    Raises:
        CheckpointMismatchError: somebody has made it point elsewhere meanwhile.
    """
    pointer = settled_pointer(home)
    if pointer is not None and location_of(home, pointer) == location:
        return
    _check_unchanged(home, pointer, bound)
    found = _next(pointer, bound)
    answer = create_pointer(
        home,
        replace(
            found,
            id=log_id,
            location=location,
            below=None,
            keep_ends=keeps_ends(store),
            from_home=found.from_home or bound.location is None,
        ),
    )
    if isinstance(answer, AlreadyExists):
        newest = newest_pointer(home)
        if newest is None or location_of(home, newest) != location:
            raise _overtaken(home, newest)


def _check_unchanged(home: Store, pointer: Pointer | None, bound: BoundLog) -> None:
    """Refuse to go on where the newest pointer isn't the one by which ``bound`` was found: a
    command that stood still since may have been overtaken by others, and by runs behind them.
    """
    if pointer is None:
        unchanged = bound.location is None and not bound.id
    else:
        is_one = pointer.detached is None and pointer.moving is None
        leads = (location_of(home, pointer), pointer.id)
        unchanged = is_one and leads == (bound.location, bound.id)
    if not unchanged:
        raise _overtaken(home, pointer)


def _overtaken(home: Store, pointer: Pointer | None) -> CheckpointMismatchError:
    """Return the error of a command that others have overtaken."""
    if pointer is not None and pointer.detached is not None:
        what = "detached it from its log"
    else:
        location = None if pointer is None else location_of(home, pointer)
        what = f"made it lead to {home.describe('') if location is None else location}"
    return CheckpointMismatchError(
        f"Another command has changed where the log of {checkpoint_of(home)} lies, while this one "
        f"ran: it has {what}. That holds, and this command has changed nothing there. If it isn't "
        "what you want, run this command again."
    )


def point_home(home: Store, bound: BoundLog, source: str) -> None:
    """Make a checkpoint that was moved here point to the log in its own home; an earlier try may
    have done so.

    Raises:
        CheckpointMismatchError: nothing is being moved here, or another checkpoint.
    """
    pointer = settled_pointer(home)
    if pointer is None:
        raise CheckpointMismatchError(
            f"{source} was moved to {checkpoint_of(home)}, and isn't there any more. Put that "
            "folder back."
        )
    if pointer.moving is None:
        return
    if pointer.moving != source:
        raise CheckpointMismatchError(
            f"{checkpoint_of(home)} is the place to which the checkpoint {pointer.moving} is being "
            f"moved, and this is {source}. If it was renamed since, give it its name back, and "
            "repeat the command with that."
        )
    create_pointer(home, replace(_next(pointer, bound), keep_ends=keeps_ends(home), moving=None))


def _next(pointer: Pointer | None, bound: BoundLog) -> Pointer:
    """Return what comes behind the newest pointer of a bound checkpoint: it says the same, until
    ``replace`` says otherwise, but what its log is says the log. A log of an earlier release has
    none.
    """
    if pointer is None:
        return Pointer(0, bound.id or uuid.uuid4().hex, bound.location, bound.first_generation)
    return replace(
        pointer,
        number=pointer.number + 1,
        id=bound.id or pointer.id or uuid.uuid4().hex,
        first_generation=bound.first_generation,
    )
