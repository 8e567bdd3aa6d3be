"""Takes the commit log of a stopped query from one place to another: between disks and stores.

The order, and why a crash anywhere leaves something that the same command goes on with:

1. A generation is claimed in the old place and all below it are sealed, as by a start: no other run
   decides anything from here on.
2. Everything that still counts is copied to the new place, created if absent, read back and
   compared. Entries never change, so that a second try finds the same.
3. Behind the claim, in the old place, a MOVED entry is created. It is the point of no return. A run
   that has started meanwhile seals that chain first, and then the move gives up; or it meets the
   entry, and stops with an error that says where the log is now.
4. The checkpoint's next pointer leads to the new place.

Between 3 and 4 the query can't be started, and the error says which command to repeat.
"""

from __future__ import annotations

import os
import shlex
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone

from onceforall.commit_log import CommitLog, Store, binding, repointing
from onceforall.commit_log.chains import Chains, entry_key, sealed_key
from onceforall.commit_log.creating import Creator
from onceforall.commit_log.ending import PAUSES_MS, end_log, ended_by
from onceforall.commit_log.envelope import MOVED, encode_moved
from onceforall.commit_log.floors import Floors
from onceforall.commit_log.store import keeps_ends
from onceforall.commit_log.stores.probing import probe
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.common import arguments
from onceforall.common.machine import whoami
from onceforall.driver import place
from onceforall.driver.log_folder import contains, lies_in
from onceforall.errors import CheckpointMismatchError, CommitLogError, FencedError, OptionError
from onceforall.protocol.entries import Claim
from onceforall.protocol.judgement import judge_claim
from onceforall.protocol.state import RunConfig
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import state_paths
from onceforall.spark.remote_path import AnyPath, store_at
from onceforall.spark.stores import Stores

__all__ = ["Moved", "move_log"]


@dataclass(frozen=True)
class Moved:
    """What a move did.

    Attributes:
        location: where the log lies now.
        entries: how many files or objects were copied or found there already.
        generation: the one that the move claimed in the old place.
    """

    location: str
    entries: int
    generation: int


def move_log(
    checkpoint: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    adopt_checkpoint: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Moved:
    """Move the commit log of a stopped query, and make its checkpoint point there.

    Stop the query first. A run that is still alive is fenced. Repeating it after a crash or an
    error is safe, and does what is left. The old place keeps its files, and nothing is decided
    there any more: its folders ``chains`` and ``floors`` may be deleted when no process is alive
    any more that was started before the move, for they fence it. The checkpoint itself stays where
    it is, with the folder ``onceforall/pointer``, which leads to the log.

    Args:
        checkpoint: the query's checkpoint.
        to: where the log is to lie: an absolute path or a URL, of a folder that is empty or not
            there, outside of the checkpoint; or another name of the folder that it lies in, to
            which the checkpoint then points.
        adopt_checkpoint: the checkpoint was moved or renamed by other means, and the old one will
            never run again.
        settings: how stores are reached, by the names of ``onceforall.store.*``.

    Raises:
        OptionError: this is no checkpoint of onceforall's, or the new place is no such folder.
        UnsupportedQueryError: the new place's store doesn't create exclusively.
        CheckpointMismatchError: the new place holds another log; the last decided batch isn't
            complete on its sinks; the checkpoint was copied or moved.
        FencedError: a run of the query has started meanwhile; the log is where it was.
        CommitLogError: a store doesn't answer, or an entry is damaged, or what was copied reads
            differently.
    """
    arguments.flag("adopt_checkpoint", adopt_checkpoint)
    stores = Stores(None, settings)
    path = stores.checkpoint(arguments.path("checkpoint", checkpoint))
    location = stores.log_location(arguments.path("to", to))
    if lies_in(location, path):
        raise OptionError(
            f"{location} lies in the checkpoint {path} itself. Name a folder outside of it."
        )
    if contains(location, path):
        raise OptionError(
            f"The checkpoint {path} lies in {location} itself. Name a folder of the log's own."
        )
    home = store_at(path / spark_checkpoint.LOG_FOLDER)
    bound, query_id = bound_log(path, stores)
    target = stores.open(location)
    unfinished = moved_before(bound)
    if unfinished is None and bound.location == location:
        return Moved(location, 0, bound.log().newest_generation() or 0)
    if unfinished is None and repointing.lies_there(target, bound):
        # To end the log there would end the only one.
        repointing.point_to(home, bound, location, bound.id, target)
        return Moved(location, 0, bound.log().newest_generation() or 0)
    if unfinished is None:
        log_id = repointing.log_id_at(target, bound, str(path))
        if isinstance(target, RemoteStore):
            # Each start does so, and refuses a place that can't hold a log.
            probe(target)
        try:
            generation, entries = copy_log(bound, target, path, query_id, adopt=adopt_checkpoint)
        except OSError as error:
            raise CommitLogError(
                f"{error.filename or path}: {error.strerror or error}. Nothing was moved. Mend "
                "that, and repeat the command; it goes on where it stopped."
            ) from error
        leave_moved(bound, generation, location)
    else:
        if unfinished.checkpoint is not None or unfinished.location != location:
            raise finish_first(path, unfinished)
        generation = unfinished.generation
        log_id, entries = repointing.moved_id_at(target, bound, str(path)), 0
    repointing.point_to(home, bound, location, log_id, target)
    return Moved(location, entries, generation)


@dataclass(frozen=True)
class Unfinished:
    """A move that has passed the point of no return.

    Attributes:
        generation: the one that the move claimed in the old place.
        location: where the log lies.
        checkpoint: where the whole checkpoint lies; None: it stayed where it was.
    """

    generation: int
    location: str
    checkpoint: str | None


def finish_first(path: AnyPath, unfinished: Unfinished) -> CheckpointMismatchError:
    """Return the error of another move than the one that was begun."""
    what, where = (
        ("log", unfinished.location)
        if unfinished.checkpoint is None
        else ("checkpoint", unfinished.checkpoint)
    )
    return CheckpointMismatchError(
        f"An earlier move of this {what} to {where} has passed the point of no return. "
        f"Finish it: {shlex.join(['onceforall', what, 'move', str(path), where])}"
    )


def bound_log(path: AnyPath, stores: Stores) -> tuple[binding.BoundLog, str]:
    """Return a checkpoint's log, and the query's id.

    Raises:
        OptionError: this is no checkpoint of onceforall's.
    """
    home = store_at(path / spark_checkpoint.LOG_FOLDER)
    if binding.is_detached(home):
        raise OptionError(spark_checkpoint.is_plain(path))
    bound = binding.find(home, open_store=stores.open)
    query_id = spark_checkpoint.query_id(path)
    if bound is not None and query_id is None:
        raise OptionError(missing_id(path))
    if bound is None or query_id is None:
        raise OptionError(
            f"{path} has no commit log of onceforall (no folder '{spark_checkpoint.LOG_FOLDER}' "
            "with entries). Name the folder that is the query's checkpointLocation."
        )
    return bound, query_id


def missing_id(path: AnyPath) -> str:
    """Return what is to be said of a checkpoint of ours without an id."""
    return (
        f"{path / 'metadata'} is missing, which names the query. Put the file back from a backup: "
        "the commit log has the id, in its entries CLAIM."
    )


def copy_log(
    bound: binding.BoundLog, target: Store, path: AnyPath, query_id: str, *, adopt: bool
) -> tuple[int, int]:
    """Seal the old place, copy what counts, and see that it says the same; return the generation
    that was claimed there and how many entries there are.
    """
    log = bound.log()
    here = place.here(path)
    newest = log.newest_claim()
    config = RunConfig(query_id, "", str(path), (), adopt_checkpoint=adopt, **asdict(here))
    refusal = judge_claim(config, newest)
    if refusal is not None:
        adopted = judge_claim(replace(config, adopt_checkpoint=True), newest) is None
        way = " Or give this command --adopt-checkpoint (adopt_checkpoint=True)." if adopted else ""
        raise refusal.error(f"{refusal.message}{way}")
    owner = f"{whoami()} (log move)"
    # The next start compares its sinks with those of the run before the move.
    kinds = {} if newest is None else newest.kinds
    claim = Claim(query_id, f"move-{uuid.uuid4()}", str(path), owner, **asdict(here), kinds=kinds)
    if adopt:
        # From this claim on the checkpoint has its new name, and no start is told of the old one.
        state_paths.lead_here(path)
    generation = log.claim(claim).generation
    decided = log.seal_below(generation).decided
    if decided is not None and not decided.is_complete(spark_checkpoint.last_committed(path)):
        raise CheckpointMismatchError(
            f"Batch {decided.commit.batch} is decided and not known to be complete on its sinks. "
            "Start the query once more, for instance with trigger(availableNow=True), and repeat "
            "the command after that. Nothing was moved."
        )
    oldest = log.oldest_generation()
    ask = Creator(target, PAUSES_MS, time.sleep)
    entries = 0
    for key, content in _all_that_counts(bound, log, oldest, generation):
        _create(ask, target, key, content)
        entries += 1
    if oldest > bound.first_generation:
        # What was dropped isn't copied, and one floor says so.
        _begin_floors(target, bound.first_generation, oldest, ask)
    moved = CommitLog(
        target, first_generation=bound.first_generation, keep_ends=keeps_ends(target)
    ).look()
    if moved.decided != decided:
        raise CommitLogError(
            f"The copy in {target.describe('')} doesn't say what the log in "
            f"{bound.store.describe('')} says. Nothing was moved. Empty the new place, and try "
            "again; if it happens again, please report this as a bug."
        )
    return generation, entries


def _begin_floors(target: Store, first: int, oldest: int, ask: Creator) -> None:
    floors = Floors(target, first, ask, _now)
    if floors.newest().number < 0:
        floors.begin_at(oldest)
    elif floors.newest().generation < oldest:
        # An earlier try has begun them, and chains were dropped in the old place since.
        floors.raise_to(oldest)


def _all_that_counts(
    bound: binding.BoundLog, log: CommitLog, oldest: int, generation: int
) -> Iterator[tuple[str, bytes]]:
    """Yield what still counts, by its keys. A run that is fenced and lives on may clean and drop
    chains meanwhile.
    """
    read = bound.store.read
    chains = Chains(bound.store)
    if oldest > bound.first_generation:
        # By it a log is told from an empty folder.
        yield _read(bound.store, entry_key(bound.first_generation, 0))
    for chain in range(oldest, generation):
        end = chains.end(chain)
        if end is None:
            if log.oldest_generation() > chain:
                raise _overtaken(bound.store, generation)
            raise _vanished(bound.store, entry_key(chain, 0))
        gaps = []
        for index in range(end.index + 1):
            key = entry_key(chain, index)
            content = read(key)
            if content is None:
                gaps.append(key)
            else:
                yield key, content
        # Behind the entries: whoever deletes one has left the mark before.
        mark = read(sealed_key(chain))
        if mark is not None:
            yield sealed_key(chain), mark
        elif gaps:
            if log.oldest_generation() > chain:
                raise _overtaken(bound.store, generation)
            raise _vanished(bound.store, gaps[0])
    yield _read(bound.store, entry_key(generation, 0))


def _read(store: Store, key: str) -> tuple[str, bytes]:
    content = store.read(key)
    if content is None:
        raise _vanished(store, key)
    return key, content


def _vanished(store: Store, key: str) -> CommitLogError:
    return CommitLogError(
        f"{store.describe(key)} has vanished while it was copied. Nothing was moved. Stop the "
        "query, and try again; if it happens again, the log is damaged: restore it from a backup."
    )


def _overtaken(store: Store, generation: int) -> FencedError:
    return FencedError(
        f"A run of this query was alive or has started while its log was copied, and goes on "
        f"behind {store.describe(entry_key(generation, 0))}. Nothing was moved. Stop the query, "
        "and try again."
    )


def _create(ask: Creator, target: Store, key: str, content: bytes) -> None:
    standing, _ = ask(key, content)
    if standing != content:
        raise CheckpointMismatchError(
            f"{target.describe(key)} holds something else than the log has there. Name an empty "
            "folder."
        )
    if target.read(key) != content:
        raise CommitLogError(
            f"{target.describe(key)} doesn't read as it was written. Don't use this store for a "
            "commit log; 'onceforall store check' tells more."
        )


def leave_moved(
    bound: binding.BoundLog, generation: int, location: str, *, checkpoint: str | None = None
) -> None:
    """Pass the point of no return: behind this entry nobody decides in the old place.

    Raises:
        FencedError: a run of the query has started since the generation was claimed.
    """
    content = encode_moved(
        location, nonce=uuid.uuid4().hex, generation=generation, index=1, checkpoint=checkpoint
    )
    if not end_log(bound, generation, 1, content):
        raise _overtaken(bound.store, generation)


def moved_before(bound: binding.BoundLog) -> Unfinished | None:
    """Return a move that has passed the point of no return; None: there was none."""
    found = ended_by(bound, MOVED)
    if found is None:
        return None
    generation, body = found
    return Unfinished(generation, str(body["location"]), body.get("checkpoint"))


def _now() -> datetime:
    return datetime.now(timezone.utc)
