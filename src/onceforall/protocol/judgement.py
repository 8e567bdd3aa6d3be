"""What to do with the batch that Spark asks for, given what the sealed past decided; and whether
two replays agree.

Pure. A decision holds for its offsets alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from onceforall.errors import (
    CheckpointMismatchError,
    FencedError,
    OnceForAllError,
    OvertakenError,
    PlanOverwrittenError,
)
from onceforall.protocol import messages
from onceforall.protocol.entries import Claim, Commit, Digest, total
from onceforall.protocol.events import BatchRequested
from onceforall.protocol.history import Decided, History
from onceforall.protocol.repartition import is_repartitioned, passes_over
from onceforall.protocol.state import RunConfig


class Verdict(Enum):
    """What happens to a requested batch."""

    WRITE = "write"
    SKIP = "skip"
    DIGEST = "digest"


@dataclass(frozen=True)
class Refusal:
    """The batch is refused; nothing is written and nothing is skipped."""

    error: type[OnceForAllError]
    message: str


REMEDY = (
    "If the machine has lost power, stop the query and run 'onceforall checkpoint mend' on the "
    "checkpoint. If another run of this query is alive, let it go on and do not restart this one. "
    "If the checkpoint was edited, restored "
    "or mixed with another one, put back the folder that belongs to this commit log; skipping "
    "could lose rows, and writing "
    "could double them."
)


def judge_overtaken(batch: int, spark_committed: int, *, planned: bool) -> Refusal | None:
    """Refuse a batch whose plan is gone, for another run has gone further meanwhile, which nobody
    has fenced yet.

    Args:
        batch: that Spark asks for.
        spark_committed: the last batch in Spark's commit log; -1 when there is none.
        planned: Spark's offset log has that batch.

    Returns:
        None where no other run has taken the plan.
    """
    if batch > spark_committed or not planned:
        return None
    return Refusal(
        FencedError,
        f"Spark asks for batch {batch}, but its own commit log has batch {spark_committed} by now: "
        "another run of this query was alive when this one started, and it went further. Let that "
        "run go on. If none is alive any more, start this one again.",
    )


def judge(
    request: BatchRequested,
    history: History,
    spark_committed: int,
    *,
    spark_unplanned: bool = False,
) -> Verdict | Refusal:
    """Decide what happens to a requested batch.

    Args:
        request: what Spark asks for.
        history: what the sealed past and this run have decided.
        spark_committed: the last batch in Spark's commit log when the past was sealed; -1 when
            there was none.
        spark_unplanned: Spark's offset log lacks that batch.

    Returns:
        A verdict, or a refusal with its error. A batch is written only when it follows directly on
        the last decided one and begins where that ends, as far as is known (or nothing was ever
        decided); batches that only repartitioned the state may stand between. It is passed over
        only when the decision was made for these very offsets.
    """
    decided = history.decided
    if request.batch <= spark_committed:
        return _judge_committed(request.batch, decided, spark_committed, unplanned=spark_unplanned)
    if decided is None or request.batch == decided.commit.batch + 1:
        elsewhere = None if decided is None else _judge_begin(request, decided.commit)
        return elsewhere or Verdict.WRITE
    last = decided.commit.batch
    if request.batch < last:
        return Refusal(
            CheckpointMismatchError,
            f"Spark asks for batch {request.batch}, but batch {last} is already decided in the "
            f"commit log. {REMEDY}",
        )
    if request.batch > last:
        return _judge_gap(request, decided)
    if request.offsets != decided.commit.offsets:
        return Refusal(
            CheckpointMismatchError,
            f"Batch {last} was decided for the offsets {_short(decided.commit.offsets)}, but "
            "Spark asks for it with "
            f"{_short(request.offsets)}. {REMEDY}",
        )
    return Verdict.DIGEST if request.stateful else Verdict.SKIP


def _judge_committed(
    batch: int, decided: Decided | None, spark_committed: int, *, unplanned: bool
) -> Refusal:
    """Refuse a batch that Spark's commit log has already.

    A run decides a batch before Spark's commit log has it, and Spark plans it before that. Where
    one of the two is missing, no run of ours went further: the checkpoint's parts are of different
    times, and every start would find it so.
    """
    if not unplanned and decided is not None and decided.commit.batch >= spark_committed:
        return Refusal(
            OvertakenError,
            f"Spark asks for batch {batch}, but its own commit log has batch "
            f"{spark_committed} by now: another run of this query was alive when this one "
            "started, and it went further before this one fenced it. Neither goes on. Start the "
            "query again, once.",
        )
    why = (
        "its offset log doesn't have that batch: the parts of the checkpoint are of different times"
        if unplanned
        else "that batch is not decided in the commit log of onceforall: the parts of the "
        "checkpoint are of different times, or a query without onceforall runs on it (stop that "
        "one)"
    )
    return Refusal(
        CheckpointMismatchError,
        f"Spark asks for batch {batch}, but its own commit log has batch {spark_committed} "
        f"already, and {why}. {REMEDY}",
    )


def _judge_gap(request: BatchRequested, decided: Decided) -> Verdict | Refusal:
    """Judge a batch behind others that nobody decided."""
    if is_repartitioned(request.before, request.start, decided.commit):
        return Verdict.WRITE
    last = decided.commit.batch
    passed = judge_passed_over(decided, request.batch - 1, request.before)
    return passed or Refusal(
        CheckpointMismatchError,
        f"Spark asks for batch {request.batch}, but the last batch decided in the commit log "
        f"is {last}: batches "
        f"{last + 1} to {request.batch - 1} were run without onceforall, or entries of the "
        "commit log are missing. If a plain query ran on "
        "this checkpoint, set its commit log aside with 'onceforall detach' and start again; with "
        f"onceforall.takeover=accept if that query had not begun batch {request.batch}, of which "
        "this run has written nothing. "
        f"{REMEDY}",
    )


def _judge_begin(request: BatchRequested, before: Commit) -> Refusal | None:
    """Refuse a batch that is known to begin elsewhere than the decided one before it ends.

    On a store Spark's checkpoint excludes no second writer: a run that was replaced can write over
    the plan from which the next one is made, also behind the start's own look at it.
    """
    if not request.start or request.start == before.offsets:
        return None
    return Refusal(
        PlanOverwrittenError,
        f"Batch {request.batch} begins at {_short(request.start)}, where Spark's plan of batch "
        f"{before.batch} ends, but batch {before.batch} was decided up to "
        f"{_short(before.offsets)}: another run has written over that plan, or the checkpoint was "
        "edited. On a store (HDFS, S3) the next start puts it back: start again, once. "
        f"What helps if it comes again: {REMEDY}",
    )


def judge_passed_over(
    decided: Decided | None, planned: int, header: tuple[str, ...]
) -> Refusal | None:
    """Refuse to go on where Spark's state was repartitioned past a decided batch.

    It is asked before a sink completes anything or is compared with the log: Spark's own commit log
    calls the batch complete there, and it needn't be.

    Args:
        decided: the last decision.
        planned: a batch that Spark's commit log has.
        header: version and metadata of it in Spark's offset log; empty: unknown.
    """
    if decided is None or planned <= decided.commit.batch:
        return None
    if not passes_over(header, decided.commit):
        return None
    last = decided.commit.batch
    return Refusal(
        CheckpointMismatchError,
        f"Batch {last} is decided, but the query's state was repartitioned without it (batch "
        f"{planned}, enforce_exactly_once_sink=False): its input would be read again, and be in "
        f"the sinks twice. Take the repartitioning back: delete offsets/{planned}, commits/{last} "
        f"and commits/{planned} in the checkpoint, and keep offsets/{last}. Then let the query "
        f"complete batch {last} (trigger(availableNow=True)), and repartition again.",
    )


def judge_claim(config: RunConfig, newest: Claim | None) -> Refusal | None:
    """Decide whether a log whose newest claim is this one is ours to claim in.

    Args:
        config: the run that wants to claim.
        newest: entry 0 of the newest chain; None when the log is new.

    Returns:
        None when it is ours.
    """
    if newest is not None and newest.query_id != config.query_id:
        return Refusal(
            CheckpointMismatchError,
            f"The commit log belongs to the query {newest.query_id}, but this query's id is "
            f"{config.query_id}: its checkpoint "
            "was deleted or replaced while the commit log stayed. Put the old checkpoint back; "
            "where only the file metadata in it was replaced, write the query's id there again "
            f'({{"id":"{newest.query_id}"}}). Another folder is another query: it begins where '
            "the source's starting offsets say.",
        )
    if (
        newest is not None
        and newest.checkpoint != config.checkpoint
        and not config.adopt_checkpoint
    ):
        return Refusal(
            CheckpointMismatchError,
            f"The commit log was written for the checkpoint {newest.checkpoint}, but it lies in "
            f"{config.checkpoint}: the folder "
            "was copied or moved. Two copies that run would write everything twice. If the old "
            "one will never run again, start with the option onceforall.adoptCheckpoint=true "
            "until a batch was written.",
        )
    if (
        newest is not None
        and not config.adopt_checkpoint
        and (differences := _cloned(config, newest))
    ):
        return Refusal(
            CheckpointMismatchError,
            f"The checkpoint {config.checkpoint} lies on other storage than when "
            f"{newest.owner or newest.host} used it last, on another machine or before "
            f"its last boot ({differences}): it is a clone or a copy under the same path. Two "
            "that run would write everything twice. If the "
            "original will never run again, start with the option "
            "onceforall.adoptCheckpoint=true until a batch was written.",
        )
    return None


SHARED = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "afs",
        "9p",
        "virtiofs",
        "ocfs2",
        "gfs2",
    }
)
"""Kinds of file system that several machines use at a time: other storage is no news there, for
they don't tell what it is."""


def gone_sinks(config: RunConfig, previous: Claim | None) -> dict[str, str]:
    """Return the sinks of the run before that this run doesn't have, by name, with their kinds:
    nobody sweeps what that run may have left there undecided.

    Args:
        config: the run that has claimed.
        previous: the claim before its own; None when there was none.
    """
    if previous is None or not config.kinds:
        return {}
    return {name: kind for name, kind in previous.kinds.items() if config.kinds.get(name) != kind}


def _cloned(config: RunConfig, newest: Claim) -> str:
    """Tell in which way the storage is another one than the newest claim's, if the owner is another
    one too; empty: it isn't, or nobody knows.

    A volume that travels to another machine stays the same, and so does a machine's disk when it
    boots.
    """
    if not newest.host or (newest.host, newest.boot_id) == (config.host, config.boot_id):
        return ""
    kinds = {newest.storage.get("type", ""), config.storage.get("type", "")}
    if any(kind in SHARED or kind.startswith("fuse") for kind in kinds):
        return ""
    both = sorted(newest.storage.keys() & config.storage.keys())
    return ", ".join(
        f"{key} was {newest.storage[key]}, and is {config.storage[key]}"
        for key in both
        if newest.storage[key] != config.storage[key]
    )


def _short(offsets: tuple[str, ...]) -> str:
    text = " | ".join(offsets)
    return text if len(text) <= 400 else text[:400] + "…"


def differing(decided: Commit, digests: Mapping[str, tuple[Digest, ...]]) -> str | None:
    """Return which writes of a replay have other rows than were decided, and how many; None when
    all have the same.
    """
    parts = []
    for write in sorted({*decided.digests, *digests}):
        before, after = total(decided.digests.get(write, ())), total(digests.get(write, ()))
        if before != after:
            rows = (
                f"{before.rows} rows then, {after.rows} now"
                if before.rows != after.rows
                else f"{before.rows} rows, of other content"
            )
            parts.append(f"{write}: {rows}")
    return "; ".join(parts) or None


def divergence(
    decided: Commit,
    digests: Mapping[str, tuple[Digest, ...]],
    said: Sequence[str] = (),
    *,
    fails: bool = False,
    lost: bool = False,
) -> str | None:
    """Compare the digests of a replay with the decided ones.

    Only totals are compared: rows that the replay placed in other tasks are the same rows. ``said``
    are the options that each start needs until the batch is decided again.

    Returns:
        None when every write has the same rows; otherwise a sentence that names the writes that
        differ.
    """
    found = differing(decided, digests)
    return (
        None
        if found is None
        else messages.diverged(decided.batch, found, said, fails=fails, lost=lost)
    )
