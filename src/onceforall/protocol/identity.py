"""Whether a sink and its target are those that the last decision wrote to, and the target has what
was decided for it.

A sink's name and address don't say that: a volume may not be mounted, a cluster be rebuilt under
its old address, a database be restored from a backup. So each COMMIT has, per sink, the *identity*
of the target and the last batch that wrote to it (``entries.Target``). A start compares them before
it creates anything, and each batch is compared once more when it is confirmed. Pure.

A COMMIT has also the *kind* of each sink that has prepared transactions for it, for a target may
be replaced by one of another kind: until the batch is complete, only a sink of the former kind will
do.

Nothing is compared where nothing is known: in logs of earlier releases, of sinks that tell no
identity, and of a target that a user has adopted (``RunConfig.adopt_targets``) until it has its
first batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from onceforall.errors import CheckpointMismatchError, FormerSinkError
from onceforall.protocol.entries import Commit, Committable, Target
from onceforall.protocol.events import SinkAnswers
from onceforall.protocol.history import Decided
from onceforall.protocol.judgement import Refusal
from onceforall.protocol.state import Run
from onceforall.protocol.sweeping import Sweep

Identity = Mapping[str, Any]
"""What tells a target from any other under the same name and address: a small JSON object of the
sink's."""


def adopted(targets: Mapping[str, Target], sinks: Iterable[str]) -> dict[str, Target]:
    """Return what is known of targets when those of some sinks are given up for whatever the
    sinks lead to now.
    """
    given_up = {sink: Target(adopted=_given_up(targets[sink])) for sink in sinks if sink in targets}
    return {**targets, **given_up}


def _given_up(target: Target) -> Mapping[str, Any]:
    if target.identity is None and target.adopted is not None:
        return target.adopted  # Adopted before, and nothing was written since.
    return replace(target, adopted=None).body()


def known(run: Run) -> dict[str, Target]:
    """Return what the last decision knows of the targets; what this run has decided itself, it
    doesn't adopt once more.
    """
    decided = run.history.decided
    if decided is None:
        return {}
    is_ours = run.name_generation <= decided.generation
    return (
        dict(decided.commit.targets)
        if is_ours
        else adopted(decided.commit.targets, run.config.adopt_targets)
    )


def judge(
    targets: Mapping[str, Target],
    found: Mapping[str, Identity | None],
    shown: Mapping[str, str] | None = None,
    adopting: Iterable[str] = (),
    *,
    is_complete: bool = True,
) -> Refusal | None:
    """Compare what the last decision knows of the targets with what is found.

    Args:
        targets: of the last decision.
        found: per sink; None: there is no such target. Sinks that are not in here are not compared.
        shown: how to show a sink, where that is more than its name.
        adopting: the sinks whose targets are adopted already.
        is_complete: the last decision is complete on every sink. Else another name doesn't help:
            it waits for a sink of the old one.

    Returns:
        None when they are the same, as far as both know; else what names all that aren't.
    """
    others = []
    for sink, identity in found.items():
        target = targets.get(sink)
        if target is None or target.identity is None or _same(target.identity, identity):
            continue
        where = (shown or {}).get(sink, "it")
        now = (
            "nothing that has an identity: the folder, the volume or the database is not there, or "
            "the folder has lost its id ('onceforall files mend' with --id writes it again)"
            if identity is None
            else _text(identity)
        )
        told = (
            f"Sink {sink}: the last decision that names it wrote to {_text(target.identity)}, and "
            f"{where} now leads to {now}. "
        )
        others.append((sink, told))
    if not others:
        return None
    is_one = len(others) == 1
    other_name = f"give the sink{'' if is_one else 's'} another name, or "
    return Refusal(
        CheckpointMismatchError,
        f"{''.join(told for _, told in others)}Nothing was "
        "created or written there. Mount the volume, or put back the address or the system "
        f"that was there. If the target{'' if is_one else 's'} {'was' if is_one else 'were'} "
        f"replaced on purpose, {'' if not is_complete else other_name}start with "
        f"{_adopting(adopting, others)} until a batch was written.",
    )


def _adopting(before: Iterable[str], others: Iterable[tuple[str, str]]) -> str:
    """Return the option with all sinks that it needs: one that named some of them only would be
    answered with the name of another one.
    """
    return f"onceforall.adoptTarget={','.join(sorted({*before, *(sink for sink, _ in others)}))}"


def _same(before: Identity, now: Identity | None) -> bool:
    if now is None:
        return False
    both = before.keys() & now.keys()
    return bool(both) and all(_as_read(before[key]) == _as_read(now[key]) for key in both)


def _as_read(value: Any) -> Any:
    """Return it as the log gives it back: what was a tuple is a list there, and the key 1 is
    "1".
    """
    if isinstance(value, Mapping):
        return {str(key): _as_read(each) for key, each in value.items()}
    return [_as_read(each) for each in value] if isinstance(value, list | tuple) else value


def _text(identity: Identity) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(identity.items()))


def judge_kinds(
    decided: Decided | None, kinds: Mapping[str, str], spark_committed: int
) -> Refusal | None:
    """Compare the kinds of sinks that the last decision waits for with those that are there.

    Args:
        decided: the last decision.
        kinds: per sink of the query; a sink that is not in here is not compared.
        spark_committed: the last batch in Spark's commit log: it is complete on every sink.
    """
    if decided is None or decided.is_complete(spark_committed):
        return None
    other = of_another_kind(decided.commit, kinds)
    if not other:
        return None
    batch, former = decided.commit.batch, decided.commit.kinds
    told = "; ".join(
        f"the sink {sink}: it was prepared by a sink of the kind {former[sink]!r}, and the sink of "
        f"that name is of the kind {kinds[sink]!r} now, which can't complete it"
        for sink in other
    )
    is_one = len(other) == 1
    return Refusal(
        FormerSinkError,
        f"Batch {batch} is decided but not complete on {told}. Nothing was touched. Start once "
        f"more with the former sink{'' if is_one else 's'} under that name; "
        f"{'it' if is_one else 'they'} can be replaced when the batch is complete. If the former "
        "target is gone for ever, let a sink of the former kind lead to another one; that start "
        "says what can be done.",
    )


def of_another_kind(commit: Commit, kinds: Mapping[str, str]) -> list[str]:
    """Return the sinks that are of another kind now than when they prepared this batch."""
    return sorted(
        sink
        for sink, committables in commit.committables.items()
        if committables
        and sink in kinds
        and sink in commit.kinds
        and kinds[sink] != commit.kinds[sink]
    )


def _kinds(run: Run, commit: Commit) -> dict[str, str]:
    known = {**commit.kinds, **run.config.kinds}
    prepared = sorted(sink for sink, committables in commit.committables.items() if committables)
    return {sink: known[sink] for sink in prepared if sink in known}


def complete_batches(
    decided: Decided | None, targets: Mapping[str, Target], spark_committed: int
) -> dict[str, int]:
    """Return per sink the last batch that its target must have, by the log; a sink of which none is
    known isn't in it.

    Args:
        decided: the last decision.
        targets: what is known of the targets.
        spark_committed: the last batch in Spark's commit log: it is complete on every sink.
    """
    if decided is None:
        return {}
    last = decided.commit.batch
    is_complete = decided.is_complete(spark_committed)
    found = {
        sink: target.batch if is_complete or target.batch != last else target.after
        for sink, target in targets.items()
    }
    return {sink: batch for sink, batch in found.items() if batch is not None}


def judge_reach(
    must_have: Mapping[str, int],
    holds: Mapping[str, bool | None],
    shown: Mapping[str, str],
    adopting: Iterable[str] = (),
) -> Refusal | None:
    """Judge whether targets are behind the log.

    Args:
        must_have: a batch per sink: ``complete_batches``.
        holds: whether the sink's target has that batch; None: it can't tell.
        shown: how to show the sinks.
        adopting: the sinks whose targets are adopted already.
    """
    behind = []
    for sink, batch in must_have.items():
        if holds[sink] is False:
            told = (
                f"Sink {sink} is behind the commit log: batch {batch} is complete there by the "
                f"log, and {shown[sink]} doesn't have it. "
            )
            behind.append((sink, told))
    if not behind:
        return None
    return Refusal(
        CheckpointMismatchError,
        f"{''.join(told for _, told in behind)}It was restored from an "
        "older backup, what it keeps for itself was deleted, or the batch was closed with "
        "onceforall.inDoubt=committed. Put the newer state back. If "
        "there is none, "
        f"{_adopting(adopting, behind)}, until a batch was written, goes on with what is there, "
        "and removes what lies prepared or staged there, which may be all that is left of some "
        "rows: save that first. The rows of the batches "
        "in between stay missing, and a decided batch that was not complete is "
        "written again, also if its rows are there, or stops in doubt: then give "
        "onceforall.inDoubt beside it.",
    )


def judge_sweep(sweep: Sweep, shown: str, *, holds: bool | None) -> Refusal | None:
    """Judge whether a target is behind the log, so that nothing may be swept there: what lies
    prepared in it may be all that is left of a batch that is complete by the log.

    Args:
        sweep: with a batch that the target must have.
        shown: how to show the sink.
        holds: whether it has that batch; None: it can't tell.
    """
    if holds is not False:
        return None
    return Refusal(
        CheckpointMismatchError,
        f"Nothing is removed from the sink {sweep.sink}: batch {sweep.reached} is complete there "
        f"by the commit log, and {shown} doesn't have it, so what lies prepared there may be all "
        "that is left of its rows. It was restored from an older backup, is a standby that was "
        "promoted without the last commits, or what it keeps for itself was deleted. Put the newer "
        "state back; if there is none, see to what is prepared before you start with "
        f"onceforall.adoptTarget={sweep.sink}, which removes it.",
    )


def unplaced(answers: Mapping[str, SinkAnswers]) -> frozenset[str]:
    """Return the sinks on which a batch that is closed nevertheless has transactions that are
    lost or in doubt.
    """
    return frozenset(sink for sink, answer in answers.items() if answer.lost or answer.in_doubt)


def predecessors(run: Run, batch: int) -> dict[str, int]:
    """Return the batch before this one in each sink, where the log knows one."""
    found = {sink: _before(run, sink, target, batch) for sink, target in known(run).items()}
    return {sink: batch for sink, batch in found.items() if batch is not None}


def _before(run: Run, sink: str, target: Target, batch: int) -> int | None:
    if target.batch == batch:
        return target.after  # It is written again.
    return None if sink in run.unplaced else target.batch


def places(run: Run, after: Mapping[str, int]) -> dict[str, Mapping[str, Any]]:
    """Return per sink where in its target it keeps what tells of a batch, where the log knows it.

    Args:
        run: before the batch is written.
        after: per sink, which batch: ``predecessors``.
    """
    targets = known(run)
    found = {sink: targets[sink].place_of(batch) for sink, batch in after.items()}
    return {sink: place for sink, place in found.items() if place is not None}


def confirmed(committables: Mapping[str, tuple[Committable, ...]]) -> dict[str, Identity]:
    """Return the targets' identities as the sinks' ``confirm`` has put them into a committable,
    where it has.
    """
    return _told(committables, "identity")


def _told(
    committables: Mapping[str, tuple[Committable, ...]], key: str
) -> dict[str, Mapping[str, Any]]:
    return {
        sink: c[key]
        for sink, cs in committables.items()
        for c in cs
        if isinstance(c.get(key), Mapping)
    }


def placed(run: Run, commit: Commit, confirmed: Mapping[str, Identity]) -> Commit:
    """Return a decision with what it says of the targets (those of this batch's sinks, and all
    others as the last decision has them), and with the kinds of the sinks that it waits for.

    Args:
        run: before it is decided.
        commit: the decision; also one that replaces another of the same batch.
        confirmed: the identities of what was prepared for it.
    """
    found = {**run.config.identities, **confirmed}
    kept_in = _told(commit.committables, "place")
    targets = {}
    for sink, last in known(run).items():
        stays = last if last.batch is None else replace(last, adopted=None)
        # Where the batch is written anew without this sink, its target reaches what came before.
        targets[sink] = (
            replace(stays, batch=last.after, after=None, place=last.after_place, after_place=None)
            if last.batch == commit.batch
            else stays
        )
    for sink in sorted(_written(run, commit)):
        last = known(run).get(sink, Target())
        identity = found.get(sink) or last.identity
        if identity is not None:
            given_up = last.adopted if last.batch is None else None
            after = _before(run, sink, last, commit.batch)
            targets[sink] = Target(
                identity, commit.batch, after, given_up, kept_in.get(sink), last.place_of(after)
            )
    return replace(commit, targets=targets, kinds=_kinds(run, commit))


def _written(run: Run, commit: Commit) -> set[str]:
    prepared = {sink for sink, committables in commit.committables.items() if committables}
    before = run.history.decided
    is_again = before is not None and before.commit.batch == commit.batch
    # A sink that needs no commit is known by its rows alone; one that had transactions, and has
    # none any more, isn't written to.
    gone = (
        {sink for sink, cs in before.commit.committables.items() if cs}
        if before is not None and is_again
        else set()
    )
    with_rows = {
        write.rpartition("/")[0]
        for write, digests in commit.digests.items()
        if any(d.rows for d in digests)
    }
    return prepared | (with_rows - gone)
