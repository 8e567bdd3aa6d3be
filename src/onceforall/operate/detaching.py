"""The way back: makes a plain Spark query's checkpoint of one of ours, with nothing lost and
nothing doubled.

What a plain query can't know is what onceforall decided. So a detachment, in this order:

1. claims a generation and seals all others: no other run decides anything from here on;
2. completes what is decided on its sinks, appends its DONE, and sweeps what is undecided: all that
   with the coordinator and the transition table of a start, up to the point where a start would run
   the requested batch;
3. writes the decided batch into Spark's own commit log where that lacks it, or a plain query would
write the batch again;
4. ends the log by a DETACHED entry in its chain, the point of no return: a run that has started
meanwhile seals that chain first, and the detachment gives up; or it meets the entry, and stops;
5. creates the checkpoint's next pointer, which says that it is a plain one: a later start with
onceforall takes it over, and begins another log.

A crash anywhere before 4 leaves a checkpoint of onceforall that a start or another detachment goes
on with: every step before is one that a start does too, or is idempotent. A crash between 4 and 5
leaves what only another detachment goes on with, and a start says so. Nothing is renamed or
deleted: a folder's name may lead to another log by the time at which a detachment that stood still
wakes.

Not guaranteed: anything for a query, plain or not, that is started before this has returned.
"""

from __future__ import annotations

import copy
import os
import shlex
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace

from onceforall.commit_log import CommitLog, binding, repointing
from onceforall.commit_log.chains import entry_key
from onceforall.commit_log.ending import end_log, ended_by
from onceforall.commit_log.envelope import DETACHED, encode_detached
from onceforall.commit_log.stores.locations import is_local
from onceforall.common import arguments
from onceforall.common.machine import whoami
from onceforall.driver import place
from onceforall.driver.closing import close_all
from onceforall.driver.coordinator import Coordinator, Prepared, Resources
from onceforall.driver.swept import swept
from onceforall.driver.targets import check_adopted, check_targets, identity_of, kinds_of
from onceforall.errors import (
    ConfigurationError,
    FencedError,
    InDoubtError,
    OptionError,
    ProtocolViolationError,
    TransactionLostError,
)
from onceforall.failpoints import points as failpoints
from onceforall.operate.moving import missing_id
from onceforall.protocol import decisions as do
from onceforall.protocol.entries import Commit, Committable, Digest
from onceforall.protocol.history import Decided
from onceforall.protocol.judgement import gone_sinks, judge_claim
from onceforall.protocol.state import RunConfig
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import StartInfo, TwoPhaseCommitSink
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import commits as spark_commits
from onceforall.spark import mending
from onceforall.spark.remote_path import AnyPath, store_at
from onceforall.spark.stores import Stores

__all__ = ["Detachment", "detach"]

_COMPLETED_BEFORE = "An earlier detachment has completed and aborted what was open."
_FORESEEN_END = "the checkpoint's next pointer would make it a plain query's"

_RECOVERY = (do.InspectLog, do.ClaimGeneration, do.SealPast, do.RecoverSinks, do.AppendDone)
"""What a start does before it comes to the batch that Spark asks for."""


@dataclass(frozen=True)
class Detachment:
    """What a detachment did, or would do.

    Attributes:
        steps: sentences for a person, in order.
        completed: the decided batch that was completed on its sinks; None: none was in doubt.
        passed: the batch that was written into Spark's own commit log; None: it had all.
        log: the folder ``onceforall`` of the checkpoint, where the old commit log or the pointer to
            it stays: a ``pathlib.Path``, or on a store what ``str`` gives as its URL; None: nothing
            was done (a dry run, or it was detached before).
    """

    steps: tuple[str, ...]
    completed: int | None = None
    passed: int | None = None
    log: AnyPath | None = None


@dataclass
class _Report:
    """Collects what is done."""

    dry_run: bool
    steps: list[str] = field(default_factory=list)

    def say(self, done: str, planned: str | None = None) -> None:
        self.steps.append(planned if self.dry_run and planned is not None else done)


def detach(  # noqa: C901, PLR0911  most are what was found instead
    checkpoint: str | os.PathLike[str],
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    commit_log: str | os.PathLike[str] | None = None,
    adopt_checkpoint: bool = False,
    adopt_target: Collection[str] = (),
    timeout_s: float = 300.0,
    dry_run: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Detachment:
    """Make a plain Spark query's checkpoint of one of onceforall's: complete what is in doubt, and
    end the commit log.

    Stop the query first. A run that is still alive is fenced: it stops with a ``FencedError`` at
    its next batch. Repeating it after a crash or an error is safe, and does what is left.

    Args:
        checkpoint: the query's checkpoint folder.
        sinks: the query's sinks by the names that they have in the query.
        commit_log: where the commit log lies; it need not be said, for the checkpoint has a
            pointer.
        adopt_checkpoint: the checkpoint (or the log that ``commit_log`` names) was moved here, and
            the old one will never run again.
        adopt_target: the names of sinks whose target was replaced, or put back to an older state,
            on purpose.
        timeout_s: after so many seconds without an answer from a sink that something decided waits
            for, it is given up.
        dry_run: look and tell only; nothing is changed or created, in the sinks neither: each is
            asked who it is, and no more. What only a sink's ``check`` or its recovery finds out (a
            right that is missing, a decided transaction that is lost) isn't foretold.
        settings: how a checkpoint or a log on a store is reached, by the names of
            ``onceforall.store.*``.

    Returns:
        What was done, or with ``dry_run`` what would be.

    Raises:
        OptionError: no sink, or one that the last decision names is missing; this is no checkpoint,
            or not one of onceforall's.
        SinkCheckError, SinkUnavailableError: a sink can't be used; if that shows at the beginning,
            nothing was changed.
        CheckpointMismatchError: the last batch must be run once more by onceforall first, for it
            keeps state; or checkpoint and commit log don't fit together, or a sink's target is not
            the one that the log knows.
        TransactionLostError: a decided transaction is gone: start the query once more, which writes
            it again.
        FencedError: a run of the query has started meanwhile.
        InDoubtError: a sink did not answer in time, can't tell what became of a decided
            transaction, or is of another kind than the one that has prepared it.
        CommitLogError: the log or Spark's files can't be read or written.
    """
    adopt_target = _check_arguments(sinks, adopt_target, adopt_checkpoint, timeout_s, dry_run)
    stores = Stores(None, settings)
    path = stores.checkpoint(arguments.path("checkpoint", checkpoint))
    wanted = (
        None
        if commit_log is None
        else stores.log_location(arguments.path("commit_log", commit_log))
    )
    report = _Report(dry_run)
    mended = mending.put_back(
        path, wanted, stores=stores, adopt=adopt_checkpoint, dry_run=dry_run, by_hand=True
    )
    if dry_run and mended.steps:
        return _foresee_mending(path, mended, report, log=wanted, adopt=adopt_checkpoint)
    for step in mended.steps:
        report.say(step)
    home = path / spark_checkpoint.LOG_FOLDER
    query_id = _check_is_one(path, lambda: binding.find(store_at(home), open_store=stores.open))
    if not spark_checkpoint.was_begun(path):
        return _detached_before(path, report)
    bound = binding.find(
        store_at(home), wanted, adopt=adopt_checkpoint, dry_run=dry_run, open_store=stores.open
    )
    never_ran = bound is None
    if bound is None:
        report.say("No run of onceforall ever began here.")
        if wanted is not None:
            report.say(f"No commit log in {wanted} is bound to this checkpoint.")
        if dry_run:
            report.say(
                "A generation would be claimed there, for a start that stands still, and "
                f"{_FORESEEN_END}."
            )
            _tell_begun(path, report)
            return Detachment(tuple(report.steps))
        # A start that stands still may have come as far as this folder: it is to meet our entry.
        bound = binding.bind(
            store_at(home),
            str(path),
            None,
            query_id=query_id,
            first_generation=spark_checkpoint.detached_generation(path) + 1,
        )
    left = ended_by(bound, DETACHED)
    if left is not None:
        report.say(_COMPLETED_BEFORE)
        if dry_run:
            report.say(f"What is left: {_FORESEEN_END}.{_elsewhere(bound, 'would stay')}")
            return Detachment(tuple(report.steps))
        folder = _finish(home, bound, left[0], report)
        return Detachment(tuple(report.steps), log=folder)
    log = bound.log()
    checked = _checked(path, sinks, log, query_id, adopt_target, dry_run=dry_run)
    config = _run_config(
        path, query_id, checked, adopt_checkpoint=adopt_checkpoint, adopt_target=adopt_target
    )
    _tell_gone(gone_sinks(config, log.newest_claim()), report)
    if dry_run:
        close_all(checked)
        return _foresee(path, config, bound, log, report)
    failpoints.hit("detach.before")
    run = _recover(path, config, log, checked, timeout_s=timeout_s, report=report)
    failpoints.hit("detach.recovered")
    # Once more, behind the claim: the run that is fenced by it may have decided since, and may need
    # what was set aside while it was alive.
    for step in mending.put_back(path, wanted, stores=stores, adopt=adopt_checkpoint).steps:
        report.say(step)
    passed = _pass_decided(path, run.decided, report)
    failpoints.hit("detach.passed")
    if never_ran:
        _tell_begun(path, report)
    else:
        _tell_planned(path, report, passed, run.decided)
    _leave(bound, run.generation, index=1 if run.completed is None else 2)
    failpoints.hit("detach.left")
    folder = _finish(home, bound, run.generation, report)
    return Detachment(tuple(report.steps), run.completed, passed, folder)


def _check_arguments(
    sinks: object,
    adopt_target: object,
    adopt_checkpoint: object,
    timeout_s: object,
    dry_run: object,
) -> Collection[str]:
    if not isinstance(sinks, Mapping):
        raise arguments.wrong("sinks", sinks, "a dictionary from name to sink: {'name': sink}")
    if not sinks:
        raise OptionError(
            "No sinks: detaching needs the query's sinks by name, to complete and abort what is "
            "open there."
        )
    for name, sink in sinks.items():
        arguments.check_sink(f"sinks[{arguments.shown(name)}]", sink)
    names = arguments.sinks("adopt_target", adopt_target, sinks)
    for what, value in (("adopt_checkpoint", adopt_checkpoint), ("dry_run", dry_run)):
        arguments.flag(what, value)
    arguments.number("timeout_s", timeout_s, positive=False)
    return names


# --- before anything is changed -------------------------------------------------------------------


def _check_is_one(path: AnyPath, find: Callable[[], object]) -> str:
    query_id = spark_checkpoint.query_id(path)
    if query_id is None and (path / spark_checkpoint.LOG_FOLDER).is_dir():
        # A move that was killed has not copied the id yet, and there is another remedy.
        find()
        raise OptionError(missing_id(path))
    if query_id is None:
        raise OptionError(
            f"{path} is no checkpoint of a streaming query: it has no file 'metadata'. Name the "
            "folder that is the query's checkpointLocation."
        )
    return query_id


def _checked(
    path: AnyPath,
    sinks: Mapping[str, TwoPhaseCommitSink],
    log: CommitLog,
    query_id: str,
    adopt_target: Collection[str],
    *,
    dry_run: bool,
) -> dict[str, TwoPhaseCommitSink]:
    """Refuse names that can't be right, and sinks that don't answer, while nothing has been
    changed; return copies of one's own.
    """
    decided = log.look().decided
    missing = sorted(_names(decided.commit) - set(sinks)) if decided is not None else []
    if missing and decided is not None:
        raise OptionError(
            f"The last decided batch {decided.commit.batch} names the "
            f"sink{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}, but the sinks "
            f"given are {', '.join(map(repr, sorted(sinks)))}. Give each sink of the query under "
            "the name that it has there (.to(sink, "
            "name=…), or the sink's default_name). Nothing was changed."
        )
    check_adopted(adopt_target, sinks)
    checked = {name: copy.copy(sink) for name, sink in sinks.items()}
    try:
        starts = {name: StartInfo(query_id, name, None) for name in checked}
        check_targets(decided, path, checked, starts, adopt_target)
        for name, sink in checked.items():
            if dry_run:
                # ``check`` may create what is missing (a folder, a schema); to tell who it is, a
                # sink creates nothing.
                identity_of(sink, starts[name])
            else:
                sink.check(starts[name])
    except BaseException:
        close_all(checked)
        raise
    return checked


def _tell_gone(gone: Mapping[str, str], report: _Report) -> None:
    """Say which sinks of the last run are not given: nobody looks there for what is undecided."""
    if gone:
        shown = ", ".join(f"{name} ({kind})" for name, kind in sorted(gone.items()))
        report.say(
            f"The last run had sinks that were not given: {shown}. If it didn't end in an orderly "
            "stop, what it left there undecided is still there, unless a sink that was given "
            "writes to the same system: docs/changing.md, 'What a removed sink leaves'.",
            f"The last run had sinks that are not given: {shown}. What it has left there undecided "
            "would stay, unless a sink that is given writes to the same system. Give them, too, if "
            "it didn't end in an orderly stop.",
        )


def _names(commit: Commit) -> set[str]:
    written = {write.rpartition("/")[0] for write in commit.digests}
    return written | {sink for sink, committables in commit.committables.items() if committables}


def _run_config(
    path: AnyPath,
    query_id: str,
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    adopt_checkpoint: bool,
    adopt_target: Collection[str],
) -> RunConfig:
    return RunConfig(
        query_id=query_id,
        run_id=f"detach-{uuid.uuid4()}",
        checkpoint=str(path),
        sinks=tuple(sinks),
        kinds=kinds_of(sinks),
        adopt_checkpoint=adopt_checkpoint,
        adopt_targets=frozenset(adopt_target),
        owner=f"{whoami()} (detach)",
        **asdict(place.here(path)),
    )


def _foresee_mending(
    path: AnyPath, mended: mending.Mended, report: _Report, *, log: str | None, adopt: bool
) -> Detachment:
    """Say which files of Spark's would be put back first.

    The rest depends on what they say, and isn't foretold.
    """
    report.say("Nothing is changed; this is what would be done first, after a loss of power:")
    for step in mended.steps:
        report.say(step)
    report.say(
        "What is done then depends on these files. To be told, do this step alone, and then the "
        f"dry run again: onceforall checkpoint mend {shlex.quote(str(path))}"
        f"{'' if log is None else f' --commit-log {shlex.quote(log)}'}"
        f"{' --adopt-checkpoint' if adopt else ''}"
    )
    return Detachment(tuple(report.steps))


def _foresee(
    path: AnyPath, config: RunConfig, bound: binding.BoundLog, log: CommitLog, report: _Report
) -> Detachment:
    """Say what would be done, from what can be seen; a live run may decide more meanwhile."""
    refusal = judge_claim(config, log.newest_claim())
    if refusal is not None:
        raise refusal.error(refusal.message)
    report.say("Nothing is changed; this is what would be done, if no run of the query is alive:")
    report.say("Any run of the query would be fenced, and undecided transactions would be aborted.")
    decided = log.look().decided
    completed = None
    if decided is not None and not decided.done:
        completed = decided.commit.batch
        report.say(
            f"Batch {completed} is decided and not known to be complete: it would be completed on "
            f"{_sinks_of(decided.commit)}."
        )
    passed = _pass_decided(path, decided, report)
    _tell_planned(path, report, passed, decided)
    report.say(f"Then {_FORESEEN_END}.{_elsewhere(bound, 'would stay')}")
    return Detachment(tuple(report.steps), completed, passed)


def _sinks_of(commit: Commit) -> str:
    return (
        ", ".join(
            sorted(sink for sink, committables in commit.committables.items() if committables)
        )
        or "no sink"
    )


# --- completing what is decided -------------------------------------------------------------------


@dataclass(frozen=True)
class _Recovered:
    generation: int
    decided: Decided | None
    completed: int | None


class _NoWriter:
    """Stands for the batch's writer: a detachment never comes to a write."""

    def write(self, decision: do.RunWrites) -> Prepared:
        raise _never(decision)

    def write_kept(self, decision: do.WriteKept) -> Prepared:
        raise _never(decision)

    def digest(self, decision: do.TakeDigests) -> Mapping[str, tuple[Digest, ...]]:
        raise _never(decision)

    def prepared_so_far(self) -> Mapping[str, tuple[Committable, ...]]:
        return {}

    def forget_aborted(self) -> None:
        """There are none."""

    def wait_for_tasks(self) -> None:
        """There are none."""


def _never(decision: object) -> ProtocolViolationError:
    return ProtocolViolationError(
        f"A detachment was told to execute {type(decision).__name__}. Please report this as a bug."
    )


def _recover(
    path: AnyPath,
    config: RunConfig,
    log: CommitLog,
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    timeout_s: float,
    report: _Report,
) -> _Recovered:
    """Run the recovery of a start, and nothing behind it."""
    deadline = time.monotonic() + timeout_s
    sweeps: dict[str, Sweep] = {}
    resources = Resources(
        log=log,
        sinks=sinks,
        spark_committed=lambda: spark_checkpoint.last_committed(path),
        spark_planned=lambda number: spark_checkpoint.is_planned(path, number),
        stop_requested=lambda: time.monotonic() > deadline,
        wait=time.sleep,
        sweeps_changed=lambda due, _sealed_below: sweeps.update(due),
    )
    coordinator = Coordinator(replace(config, gives_up_after_s=timeout_s), resources)
    try:
        was_done = _run_recovery(coordinator, path)
        decided = coordinator.run.history.decided
        completed = decided.commit.batch if decided is not None and not was_done else None
        generation = coordinator.run.generation
        report.say(
            f"Generation {generation} is claimed and every older one sealed: no other run of this "
            "query decides anything any more."
        )
        if decided is not None and completed is not None:
            report.say(
                f"Batch {completed} was decided and not known to be complete; it is complete on "
                f"{_sinks_of(decided.commit)} now."
            )
        aborted = {name: swept(sinks[name], sweep) for name, sweep in sweeps.items()}
        report.say(f"Undecided transactions are aborted ({_counted(aborted)} since recovery).")
    finally:
        coordinator.close()
    return _Recovered(generation, decided, completed)


def _run_recovery(coordinator: Coordinator, path: AnyPath) -> bool:
    """Execute what a start executes before its first batch; return whether nothing decided was
    left to complete.
    """
    # The batch that Spark would ask for. What the table decides about it is not executed.
    batch = spark_checkpoint.last_planned(path)
    offsets = spark_checkpoint.offsets_of(path, batch) if batch >= 0 else ()
    coordinator.request(max(batch, 0), offsets, spark_checkpoint.keeps_state(path), _NoWriter())
    was_done, recovered = True, False
    while coordinator.pending and isinstance(coordinator.pending[0], _RECOVERY):
        decision = coordinator.pending[0]
        recovered = recovered or isinstance(decision, do.RecoverSinks)
        if isinstance(decision, do.AppendDone):
            was_done = False
        coordinator.step()
    decided = coordinator.run.history.decided
    if recovered and (decided is None or decided.done):
        return was_done
    if coordinator.pending and not isinstance(coordinator.pending[0], do.StopRun):
        assert decided is not None
        raise TransactionLostError(
            f"Batch {decided.commit.batch} is decided, but transactions of it are lost, and only "
            "the query itself can write their rows again. "
            f"{spark_commits.START_ONCE_MORE}"
        )
    try:
        coordinator.step()
    except TransactionLostError:
        raise
    except InDoubtError as error:
        raise type(error)(f"Not detached; the commit log stays in force. {error}") from error
    raise ProtocolViolationError("Recovery ended without an answer. Please report this as a bug.")


def _counted(aborted: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(aborted.items()))


# --- Spark's own commit log -----------------------------------------------------------------------


def _pass_decided(path: AnyPath, decided: Decided | None, report: _Report) -> int | None:
    """Write the last decided batch into Spark's commit log where that lacks it; return the batch
    if it did (or would).
    """
    batch = spark_commits.lacking(path, decided)
    if decided is not None and not report.dry_run:
        # Without our log, Spark's entry is all that says that the batch is complete, and Spark
        # syncs nothing.
        spark_commits.make_durable(path, decided.commit.batch)
    if batch is None:
        return None
    if not report.dry_run:
        spark_commits.enter(path, batch)
    report.say(
        f"Batch {batch} is entered in Spark's own commit log, which lacked it: a plain query goes "
        "on behind it.",
        f"Batch {batch} would be entered in Spark's own commit log, which lacks it, so that a "
        "plain query goes on behind it.",
    )
    return batch


def _tell_planned(
    path: AnyPath, report: _Report, passed: int | None, decided: Decided | None
) -> None:
    """Say what is left to the plain query.

    ``passed``: the batch that was entered in Spark's commit log, or would be.
    """
    planned, committed = spark_checkpoint.last_planned(path), spark_checkpoint.last_committed(path)
    if decided is not None and committed > decided.commit.batch:
        # A plain query has run behind our log, and may have begun that batch, too.
        _tell_begun(path, report)
    elif planned > (committed if passed is None else passed):
        report.say(
            f"Batch {planned} is planned by Spark and undecided: nothing of it is visible, and "
            "the plain query writes it.",
            f"Batch {planned} is planned by Spark and undecided: the plain query would write it.",
        )


def _tell_begun(path: AnyPath, report: _Report) -> None:
    """Say what a plain query has begun, of which onceforall knows nothing."""
    planned = spark_checkpoint.last_planned(path)
    if planned > spark_checkpoint.last_committed(path):
        report.say(
            f"Batch {planned} was begun without onceforall and isn't finished: rows of it may be "
            "visible, and the plain query writes it again.",
            f"Batch {planned} was begun without onceforall and isn't finished: rows of it may be "
            "visible, and the plain query would write it again.",
        )


# --- ending the log -------------------------------------------------------------------------------


def _finish(home: AnyPath, bound: binding.BoundLog, generation: int, report: _Report) -> AnyPath:
    """Make the checkpoint a plain one, behind the point of no return."""
    repointing.point_nowhere(store_at(home), bound, generation)
    failpoints.hit("detach.pointed")
    report.say(
        f"The checkpoint is a plain Spark query's. The commit log stays in {home}, and nothing is "
        f"decided there any more.{_elsewhere(bound, 'stay')} Keep the folder: it stops a run that "
        "is still alive, and keeps a later return to onceforall from using names again that are "
        "taken."
    )
    return home


def _elsewhere(bound: binding.BoundLog, stay: str) -> str:
    if bound.location is None:
        return ""
    local = is_local(bound.location)
    place_of_it = binding.log_path(bound.location) if local else bound.location
    return f" Its entries {stay} in {place_of_it}."


def _leave(bound: binding.BoundLog, generation: int, index: int) -> None:
    """Pass the point of no return: behind this entry no run decides anything.

    Raises:
        FencedError: a run of the query has started meanwhile.

    Args:
        bound: the log.
        generation: ours.
        index: the next in its chain, which has our CLAIM, and perhaps a DONE of ours.
    """
    content = encode_detached(nonce=uuid.uuid4().hex, generation=generation, index=index)
    if not end_log(bound, generation, index, content):
        raise FencedError(
            "A run of the query has started while it was being detached, and goes on behind "
            f"{bound.store.describe(entry_key(generation, 0))}. Stop it, and detach again."
        )


def _detached_before(path: AnyPath, report: _Report) -> Detachment:
    """Tell of a detachment that an earlier command has finished."""
    if spark_checkpoint.detached_generation(path) < 0:
        raise ConfigurationError(
            f"The checkpoint {path} has no commit log of onceforall (no folder "
            f"'{spark_checkpoint.LOG_FOLDER}'): it is a plain query's already."
        )
    report.say("The checkpoint was detached before; it is a plain query's.")
    return Detachment(tuple(report.steps))
