"""Takes a stopped query's whole checkpoint, with its commit log, from one place to another: between
disks and stores.

The order, and why a crash anywhere leaves something that the same command goes on with:

1. The new place gets a pointer that says that a checkpoint is being moved there. A start there is
   refused as long as it is the newest. In the old log a generation is claimed and all below it are
   sealed, as by a start, and what still counts of the log is copied (``moving``).
2. What was set aside and is needed is laid back, now that no run decides any more. Spark's files
   are copied, read back and compared: ``offsets``, ``commits``, ``sources`` and ``state``, and last
   ``metadata``, by which Spark knows a checkpoint. Where the old place names itself in the metadata
   of state, the new one is named. If files have come or gone meanwhile, the move ends here.
3. Behind the claim, in the old log, a MOVED entry is created. It is the point of no return: a start
   there stops with an error that names the new place.
4. In the new log a generation is claimed under the new place, and its next pointer says that the
   checkpoint is there.

Between 3 and 4 neither place can be started with onceforall, and both say which command to repeat.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from onceforall.commit_log import CommitLog, Store, binding, repointing
from onceforall.commit_log.store import keeps_ends
from onceforall.commit_log.stores.probing import probe
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.common import arguments
from onceforall.common.machine import whoami
from onceforall.driver import place
from onceforall.errors import (
    CheckpointMismatchError,
    CommitLogError,
    FencedError,
    OptionError,
)
from onceforall.operate import moving
from onceforall.protocol.entries import Claim
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import mending, state_paths
from onceforall.spark.commits import sync_folder
from onceforall.spark.remote_path import AnyPath, RemotePath, create_file, files_below, store_at
from onceforall.spark.repairs import SetAside, set_aside_under
from onceforall.spark.stores import Stores

__all__ = ["MovedCheckpoint", "move_checkpoint"]

_METADATA = "metadata"


@dataclass(frozen=True)
class MovedCheckpoint:
    """What a move did.

    Attributes:
        location: where the checkpoint lies now: the query's next ``checkpointLocation``.
        files: how many of Spark's files were copied; 0 where an earlier try had copied them all.
        entries: how many entries of the log were copied or found there already; 0 likewise.
    """

    location: str
    files: int
    entries: int


def move_checkpoint(
    checkpoint: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    adopt_checkpoint: bool = False,
    settings: Mapping[str, str] | None = None,
) -> MovedCheckpoint:
    """Move the whole checkpoint of a stopped query; start it there afterwards.

    Stop the query first. A run that is still alive is fenced. Repeating it after a crash or an
    error is safe, and does what is left; if the query has run in the old place in between, the
    error says which folder to delete first. The commit log lies in the new checkpoint, wherever it
    lay before. The old place keeps its files, and onceforall decides nothing there any more. Delete
    them when the query runs in the new place, and no process is alive that was started in the old
    one, for they fence it; nothing keeps a *plain* query from going on there.

    Args:
        checkpoint: the query's checkpoint.
        to: where it is to lie: an absolute path or a URL, of a folder that is empty or not there.
        adopt_checkpoint: the checkpoint was moved or renamed by other means before, and the old one
            will never run again.
        settings: how stores are reached, by the names of ``onceforall.store.*``; both places, if
            both are stores, are reached by the same.

    Raises:
        OptionError: this is no checkpoint of onceforall's, or the new place is no such folder.
        UnsupportedQueryError: the new place's store doesn't create exclusively.
        CheckpointMismatchError: the new place holds another checkpoint, or parts of this one from
            before its last run; the last decided batch isn't complete on its sinks; the checkpoint
            was copied or moved by other means.
        FencedError: a run of the query has started meanwhile; the checkpoint is where it was.
        CommitLogError: a store doesn't answer, or an entry is damaged, or what was copied reads
            differently.
    """
    arguments.flag("adopt_checkpoint", adopt_checkpoint)
    stores = Stores(None, settings)
    old = stores.checkpoint(arguments.path("checkpoint", checkpoint))
    new = stores.checkpoint(_absolute(arguments.path("to", to)))
    places = [f"{str(place_of_it).rstrip('/')}/" for place_of_it in (old, new)]
    if places[0].startswith(places[1]) or places[1].startswith(places[0]):
        raise OptionError(f"{new} and {old} lie in each other. Name a folder outside of it.")
    # A new place gets none of what was set aside, and that may be needed.
    mending.put_back(old, stores=stores, by_hand=True, adopt=adopt_checkpoint)
    bound, query_id = moving.bound_log(old, stores)
    unfinished = moving.moved_before(bound)
    home = store_at(new / spark_checkpoint.LOG_FOLDER)
    if unfinished is not None and unfinished.checkpoint != str(new):
        raise moving.finish_first(old, unfinished)
    files = entries = 0
    if unfinished is None:
        try:
            _check_target(home, new, str(old))
            repointing.expect_move(home, bound, str(old))
            if isinstance(home, RemoteStore):
                # Each start does so, and refuses a place that can't hold a log. Behind the mark:
                # what a kill leaves of it there is no stranger's to the same command.
                probe(home)
            generation, entries = moving.copy_log(
                bound, home, old, query_id, adopt=adopt_checkpoint
            )
            # Once more, behind the claim: the run that is fenced by it may have decided since, and
            # may need what was set aside while it was alive.
            mending.put_back(old, stores=stores)
            aside = set_aside_under(old)
            copied = _copy_files(old, new, home)
            _check_standing(old, copied, aside, stores)
            files = len(copied)
        except OSError as error:
            raise CommitLogError(
                f"{error.filename or new}: {error.strerror or error}. Nothing was moved. Mend "
                "that, and repeat the command; it goes on where it stopped."
            ) from error
        _check_expected(home, old, new)
        moving.leave_moved(bound, generation, home.describe(""), checkpoint=str(new))
    else:
        generation = unfinished.generation
    _take_over(home, bound, generation, new, query_id, str(old))
    return MovedCheckpoint(str(new), files, entries)


def _absolute(to: str) -> str:
    if not urlsplit(to).scheme and not Path(to).is_absolute():
        raise OptionError(
            f"{to} is not an absolute path: another working folder would give another checkpoint. "
            "Write it in full."
        )
    return to


def _check_target(home: Store, new: AnyPath, old: str) -> None:
    """Refuse a folder that holds anything but what an earlier try has left there."""
    if _holds_files(new) and not repointing.is_expected(home, old):
        found = spark_checkpoint.query_id(new)
        raise CheckpointMismatchError(
            f"{new} holds something else{f': the query {found}' if found else ''}. Name an empty "
            "folder."
        )


def _holds_files(folder: AnyPath) -> bool:
    """Tell whether ``files_below`` would find any; a bucket's millions aren't asked for."""
    if not isinstance(folder, RemotePath):
        return bool(files_below(folder))
    return any(
        _holds_files(folder / name[:-1]) if name.endswith("/") else not name.startswith(".")
        for name in folder.client.list(folder.key)
    )


def _check_expected(home: Store, old: AnyPath, new: AnyPath) -> None:
    """End a try that was overtaken: what it copies is old by now."""
    if not repointing.is_expected(home, str(old)):
        raise FencedError(
            f"Another command has moved the checkpoint {old} to {new} meanwhile. Start the query "
            "there; there is nothing left to do here."
        )


# --- Spark's files --------------------------------------------------------------------------------


def _copy_files(old: AnyPath, new: AnyPath, home: Store) -> list[str]:
    """Copy Spark's files, and return their names. Each is created, and none is replaced or
    deleted, for this command may have stood still since its last look, and the query may run in the
    new place by now.
    """
    names = _names(old)
    left = sorted(set(_names(new)) - set(names))
    if left:
        raise _parts_of_an_earlier_try(home, old, new, left[0])
    # By it Spark knows a checkpoint.
    ordered = sorted(names, key=lambda name: (name == _METADATA, name))
    for name in ordered:
        try:
            content = _at(old, name).read_bytes()
        except FileNotFoundError as error:
            raise CommitLogError(
                f"{_at(old, name)} has vanished while it was copied: does the query still run? "
                "Nothing was moved. Stop it, and try again."
            ) from error
        if state_paths.is_metadata(name):
            try:
                content = state_paths.renamed(content, old, new)
            except ValueError as error:
                raise CheckpointMismatchError(
                    f"{_at(old, name)} is damaged: it is no metadata of state as Spark writes it "
                    f"({error}). Nothing was moved. Put that file back from a backup, and repeat "
                    "the command."
                ) from error
        place_of_it = _at(new, name)
        _check_expected(home, old, new)
        created = create_file(place_of_it, content)
        if place_of_it.read_bytes() == content:
            continue
        if not created:
            raise _parts_of_an_earlier_try(home, old, new, name)
        raise CommitLogError(
            f"{place_of_it} doesn't read as it was written. Nothing was moved. Don't use this "
            "place for a checkpoint; 'onceforall store check' tells more."
        )
    if isinstance(new, Path):
        for folder in {new, *(_parents(new, ordered))}:
            sync_folder(folder)
    return ordered


def _check_standing(
    old: AnyPath, copied: Collection[str], aside: Sequence[SetAside], stores: Stores
) -> None:
    """See that nobody has taken a file away while others were copied, or laid one back: a start
    that has stood still since before the claim looks at what it sets aside, and lays it back.

    Raises:
        FencedError: somebody has.
    """
    stands = {*_names(old)} == {*copied} and set_aside_under(old) == aside
    if not stands or mending.put_back(old, stores=stores, dry_run=True).steps:
        raise FencedError(
            f"Files of {old} have come or gone while they were copied: a start or a run of the "
            "query is alive. Nothing was moved. Stop it, and repeat the command; it goes on where "
            "it stopped."
        )


def _parts_of_an_earlier_try(
    home: Store, old: AnyPath, new: AnyPath, name: str
) -> CheckpointMismatchError:
    """Return the error for a file that the old place hasn't, or not so.

    Raises:
        FencedError: it isn't an earlier try's, for the query runs there.
    """
    _check_expected(home, old, new)
    return CheckpointMismatchError(
        f"{new} has parts of the checkpoint {old} from an earlier try to move it there, and the "
        f"query has run since in the old place: {name} isn't the same there any more. Nothing has "
        "run in the new one: delete that folder, and repeat the command."
    )


def _names(checkpoint: AnyPath) -> list[str]:
    """Return Spark's files, relative to the checkpoint; ours, and temporary ones, aren't among
    them.
    """
    root = f"{checkpoint}/"
    if isinstance(checkpoint, Path):
        linked = [
            str(folder)
            for inner, names, _ in os.walk(checkpoint)
            for name in names
            if (folder := Path(inner, name)).is_symlink()
        ]
        if linked:
            raise OptionError(
                f"{', '.join(sorted(linked))} is a symbolic link to a folder. Put the folder "
                "itself there, and move the checkpoint then."
            )
    found = (str(file).removeprefix(root) for file in files_below(checkpoint))
    return [name for name in found if not name.startswith(spark_checkpoint.LOG_FOLDER)]


def _at(checkpoint: AnyPath, name: str) -> AnyPath:
    return checkpoint / name


def _parents(new: Path, names: list[str]) -> set[Path]:
    return {
        parent for name in names for parent in (new / name).parents if parent.is_relative_to(new)
    }


# --- the new place --------------------------------------------------------------------------------


def _take_over(  # noqa: PLR0917
    home: Store, bound: binding.BoundLog, generation: int, new: AnyPath, query_id: str, old: str
) -> None:
    """Claim the next generation in the new log, under the new place, and point to it, unless an
    earlier try has done that.
    """
    if not repointing.is_expected(home, old):
        repointing.point_home(home, bound, old)
        return
    log = CommitLog(home, first_generation=bound.first_generation, keep_ends=keeps_ends(home))
    newest = log.newest_claim()
    if newest is None or newest.checkpoint != str(new):
        owner = f"{whoami()} (checkpoint move)"
        # The next start compares its sinks with those of the run before the move.
        kinds = {} if newest is None else newest.kinds
        run_id = f"move-{uuid.uuid4()}"
        here = asdict(place.here(new))
        claim = Claim(query_id, run_id, str(new), owner, **here, kinds=kinds)
        claimed = log.claim(claim).generation
        if claimed != generation + 1:
            raise FencedError(
                f"Two commands move this checkpoint to {new} at once. Let one of them end, and "
                "run it again."
            )
        log.seal_below(claimed)
    repointing.point_home(home, bound, old)
