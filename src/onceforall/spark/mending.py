"""Puts back what a loss of power took from Spark's part of a checkpoint, from what the commit log
knows.

Spark syncs none of its files, and onceforall syncs those that a decided batch needs before it
decides (module ``spark_files``). What can be missing or torn all the same: files of a batch that is
not decided; Spark's own entry that says that the last batch is complete; and, in a checkpoint that
an earlier release wrote, the plan of a decided batch.

Two rules make it safe. What is *decided* is put back as it was decided: a plan that is not the
decided one can't be the batch's. What is *not decided* may be forgotten, for nothing of it is
visible; Spark plans it anew. So each repair leads to the same place as if power had been lost a
moment earlier, before Spark wrote the file at all.

``put_back`` runs in each start, before Spark reads the checkpoint. It touches only what Spark
itself can't read, and what is not there. Only the command (``mend``) replaces a plan that is whole
and says something else. Nothing is deleted: what is in the way goes to the folder
``onceforall-set-aside``. A crash between two steps leaves what the next start or command goes on
with.

A run that is still alive, or starts meanwhile, loses nothing, though files are set aside by their
names and whoever does that may have stood still since it judged: each is looked at once more where
it lies then. What was torn must be torn there; for what goes by the log's word, no generation may
have been claimed since. Else it goes back to where it was, and all is judged again. (A run claims
before it decides, and syncs its plan behind that: what is taken away later than that look fails its
batch before it is decided. State doesn't: what was set aside bears the generation that was the
newest then, and comes back where that run was alive, and has decided since.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onceforall.commit_log import CommitLog, binding
from onceforall.common import arguments, logs
from onceforall.common.machine import boot_id
from onceforall.errors import CheckpointMismatchError, CommitLogError, OnceForAllError, OptionError
from onceforall.protocol.entries import Claim
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import state_paths
from onceforall.spark.damages import Known, id_in, needed, planned_anew
from onceforall.spark.remote_path import AnyPath, RemotePath, store_at
from onceforall.spark.repairs import SET_ASIDE, Repair, carry_out
from onceforall.spark.stores import Stores

__all__ = ["SET_ASIDE", "Mended", "mend", "put_back"]

logger = logs.logger("onceforall")

_TRIES = 10
"""So often all is judged again because others were faster."""


@dataclass(frozen=True)
class Mended:
    """What was done, or would be.

    Attributes:
        steps: sentences for a person, in order; none: nothing is to be mended.
        dry_run: whether nothing was changed.
        amiss: a sentence on what no mending helps against, and each start refuses; empty: nothing
            is.
    """

    steps: tuple[str, ...]
    dry_run: bool = False
    amiss: str = ""


def put_back(
    checkpoint: AnyPath,
    commit_log: str | None = None,
    *,
    stores: Stores | None = None,
    adopt: bool = False,
    dry_run: bool = False,
    by_hand: bool = False,
) -> Mended:
    """Put back what Spark could not read, before it reads it; for each start, and for commands.

    Args:
        checkpoint: the checkpoint's folder.
        commit_log: the location of the log, where the user says it.
        stores: opens it where it isn't local.
        adopt: the checkpoint was moved here.
        dry_run: look and tell only.
        by_hand: by a command before which the query was stopped, and behind which nobody will know
            any more that the machine was started since the last run.

    Returns:
        What was done, or would be. Nothing, where there is no log, or one that is not this
        checkpoint's: the start itself refuses that.

    Raises:
        CommitLogError: a file can't be set aside or written; or the checkpoint is on a store and
            its log can't be read.
    """
    asked = _Asked(checkpoint, commit_log, stores or Stores(), adopt)

    def judge() -> tuple[Known, list[Repair]] | None:
        try:
            known = _known(asked, by_hand=by_hand)
        except OnceForAllError as error:
            if isinstance(checkpoint, RemotePath) and isinstance(error, CommitLogError):
                # Spark would read a plan that nobody has compared; a store fails for a moment, too.
                raise
            logger.debug(
                "what a loss of power may have taken from %s is not looked for: %s",
                checkpoint,
                error,
            )
            return None
        if known is None:
            return None
        repairs = needed(checkpoint, known)
        if isinstance(checkpoint, RemotePath):
            # Spark's checkpoint on a store excludes nobody: a run that was replaced may have
            # written its plan over the decided one.
            repairs += planned_anew(checkpoint, known)
        return known, repairs

    return _mended(asked, judge, dry_run=dry_run, reason=_reason(checkpoint))


def _reason(checkpoint: AnyPath) -> str:
    if isinstance(checkpoint, RemotePath):
        return "another run, or a loss of power, has changed Spark's part of the checkpoint"
    return "after a loss of power"


def mend(
    checkpoint: str | os.PathLike[str],
    *,
    commit_log: str | os.PathLike[str] | None = None,
    adopt_checkpoint: bool = False,
    dry_run: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Mended:
    """Make Spark's part of a checkpoint tell what the commit log tells of the last decided batch,
    so that the query can be started.

    Stop the query first. It may be repeated, and does nothing where nothing is wrong.

    Args:
        checkpoint: the query's checkpoint folder.
        commit_log: where the commit log lies; it need not be said, for the checkpoint has a
            pointer.
        adopt_checkpoint: the checkpoint was moved here, and the old one will never run again.
        dry_run: look and tell only.
        settings: how a checkpoint or a log on a store is reached, by the names of
            ``onceforall.store.*``.

    Raises:
        OptionError: this is no checkpoint of onceforall's.
        CheckpointMismatchError: checkpoint and log are not each other's, or differ in what no loss
            of power does.
        CommitLogError: the log or a file can't be read or written.
    """
    arguments.flag("adopt_checkpoint", adopt_checkpoint)
    arguments.flag("dry_run", dry_run)
    stores = Stores(None, settings)
    path = stores.checkpoint(arguments.path("checkpoint", checkpoint))
    location = (
        None
        if commit_log is None
        else stores.log_location(arguments.path("commit_log", commit_log))
    )
    asked = _Asked(path, location, stores, adopt_checkpoint)
    amiss, repairs = "", list[Repair]()

    def judge() -> tuple[Known, list[Repair]]:
        nonlocal amiss, repairs
        known = _known(asked, by_hand=True)
        if known is None and binding.is_detached(store_at(path / spark_checkpoint.LOG_FOLDER)):
            raise OptionError(spark_checkpoint.is_plain(path))
        if known is None:
            raise OptionError(
                f"{path} has no commit log of onceforall (no folder "
                f"'{spark_checkpoint.LOG_FOLDER}' with entries). Name the folder that is the "
                "query's checkpointLocation."
            )
        amiss = _without_its_plan(path, known)
        repairs = [*needed(path, known), *planned_anew(path, known)]
        return known, repairs

    done = _mended(asked, judge, dry_run=dry_run)
    if not done.steps:
        return replace(done, amiss=amiss)
    if dry_run:
        # What repairs would leave is not known.
        return done if repairs else replace(done, amiss=amiss)
    try:
        judge()
    except OnceForAllError as error:
        # What was done is told all the same.
        logger.warning("whether more is amiss could not be looked at: %s", error)
        amiss = ""
    return replace(done, amiss=amiss)


def _without_its_plan(checkpoint: AnyPath, known: Known) -> str:
    """Tell where Spark's part is older than what is decided: by more than a loss of power takes."""
    commit = known.commit
    if commit is None or spark_checkpoint.is_planned(checkpoint, commit.batch):
        return ""
    return (
        f"Batch {commit.batch} is decided in the commit log, and Spark's folder offsets ends at "
        f"batch {spark_checkpoint.last_planned(checkpoint)}: no loss of power does that. The "
        "checkpoint was edited, restored or mixed with another one. Put back the folder that "
        "belongs to this commit log."
    )


def _mended(
    asked: _Asked,
    judge: Callable[[], tuple[Known, list[Repair]] | None],
    *,
    dry_run: bool,
    reason: str | None = None,
) -> Mended:
    """Carry out what is judged to be needed, and judge again where somebody was faster.

    ``reason``: for the warning of each step; None: the caller shows the steps.
    """
    done: list[str] = []
    gone: FileNotFoundError | None = None
    try:
        for _ in range(_TRIES):
            judged = judge()
            if judged is None:
                return Mended(tuple(done), dry_run)
            known, repairs = judged[0], _once(judged[1])
            if dry_run:
                led = _led_here(asked, reason, dry_run=True)
                return Mended((*map(str, repairs), *led), dry_run=True)
            for repair in repairs:
                step = str(repair)
                try:
                    is_done = carry_out(
                        repair,
                        asked.checkpoint,
                        partial(asked.is_at, known.generation),
                        known.generation,
                    )
                except FileNotFoundError as error:
                    # Another one mends, too.
                    is_done, gone = False, error
                if not is_done:
                    logger.info("%s has changed meanwhile: all is judged again", repair.path)
                    break
                if reason is not None:
                    logger.warning("%s: %s", reason, step)
                done.append(step)
            else:
                return Mended((*done, *_led_here(asked, reason)))
        if gone is not None:
            raise gone
    except OSError as error:
        raise CommitLogError(
            f"The checkpoint {asked.checkpoint} can't be looked at, or mended: "
            f"{' to '.join(filter(None, (error.filename, error.filename2)))} {error.strerror}. "
            "Mend that, and start again; nothing is lost."
        ) from error
    raise CommitLogError(
        f"The checkpoint {asked.checkpoint} can't be mended: runs of its query start again and "
        "again meanwhile. Stop the query, and repeat this."
    )


def _led_here(asked: _Asked, reason: str | None, *, dry_run: bool = False) -> list[str]:
    if not asked.adopt:
        return []
    steps = state_paths.lead_here(asked.checkpoint, dry_run=dry_run)
    for step in steps if reason is not None and not dry_run else ():
        logger.warning("the checkpoint was moved: %s", step)
    return steps


def _once(found: Sequence[Repair]) -> list[Repair]:
    """Return the repairs without those of a file that another one mends: one that is wrong in two
    ways.
    """
    by_place: dict[AnyPath, Repair] = {}
    for each in found:
        place = each.lies_in or each.path
        known = by_place.setdefault(place, each)
        if known.content is None:
            by_place[place] = known if each.content is None else each
    return list(by_place.values())


# --- what the log knows ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    checkpoint: AnyPath
    commit_log: str | None
    stores: Stores
    adopt: bool = False

    def log(self) -> CommitLog | None:
        """Return the checkpoint's log, wherever it lies now."""
        home = store_at(self.checkpoint / spark_checkpoint.LOG_FOLDER)
        # Nothing is bound here: the start does that.
        bound = binding.find(
            home, self.commit_log, adopt=self.adopt, dry_run=True, open_store=self.stores.open
        )
        return None if bound is None else bound.log()

    def is_at(self, generation: int | None) -> bool:
        """Tell whether that is still the newest generation, in the log that counts."""
        try:
            log = self.log()
            return (None if log is None else log.newest_generation()) == generation
        except OnceForAllError:
            return False


def _known(asked: _Asked, *, by_hand: bool) -> Known | None:
    checkpoint = asked.checkpoint
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    if not home.is_dir():
        return None
    pointer = binding.pointer_of(store_at(home))
    log = asked.log()
    if log is None:
        return None if pointer is None else Known(by_hand=by_hand)
    generation, claim, history = log.newest_generation(), log.newest_claim(), log.look()
    if claim is None:
        return Known(generation=generation, log=log, was_cut_off=by_hand, by_hand=by_hand)
    if claim.checkpoint != str(checkpoint) and not asked.adopt:
        raise CheckpointMismatchError(
            f"The commit log was written for the checkpoint {claim.checkpoint}, but it lies in "
            f"{checkpoint}: the folder was copied or moved. If the old one will never run again, "
            "give this command --adopt-checkpoint (adopt_checkpoint=True), or start the query with "
            "onceforall.adoptCheckpoint=true until a batch was written."
        )
    found = id_in(checkpoint / "metadata")
    if found is not None and found != claim.query_id:
        raise CheckpointMismatchError(
            f"The commit log belongs to the query {claim.query_id}, but {checkpoint / 'metadata'} "
            f"says {found}: this is another query's log. Put "
            "the checkpoint back that belongs to it."
        )
    return Known(
        claim.query_id,
        history.decided,
        generation,
        log,
        was_cut_off=by_hand
        and history.decided is None
        and isinstance(checkpoint, Path)
        and _was_cut_off(log),
        by_hand=by_hand,
    )


def _was_cut_off(log: CommitLog) -> bool:
    """Tell whether any claim is of another machine, or of this one before it was started: not the
    newest alone, for a command that moves the log claims a generation, too.
    """
    here = boot_id()
    claims = (
        entry
        for generation in range(log.oldest_generation(), (log.newest_generation() or 0) + 1)
        for _, entry in log.entries(generation)[:1]
        if isinstance(entry, Claim)
    )
    return any(here and claim.boot_id and here != claim.boot_id for claim in claims)
