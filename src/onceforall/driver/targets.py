"""Looks at the sinks' targets before anything is created in them, and compares them with what
the log knows (``protocol.identity`` judges).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace

from onceforall.commit_log import binding
from onceforall.common import logs
from onceforall.errors import CheckpointMismatchError, CommitLogError, OptionError, SinkCheckError
from onceforall.protocol import identity
from onceforall.protocol.history import Decided
from onceforall.protocol.identity import Identity
from onceforall.protocol.judgement import judge_passed_over
from onceforall.sink import StartInfo, TwoPhaseCommitSink
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import AnyPath, store_at
from onceforall.spark.stores import Stores

logger = logs.logger("onceforall")


def last_decision(checkpoint: AnyPath, stores: Stores) -> Decided | None:
    """Return the last decision in a checkpoint's log, as far as it can be seen; None where there is
    none. Nothing is written.

    A log that can't be found or read is told by whoever binds or claims it, next, with what to do.

    Raises:
        CheckpointMismatchError: the log was moved, and the checkpoint doesn't lead there.
    """
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    if not home.is_dir():
        return None
    try:
        bound = binding.find(store_at(home), open_store=stores.open)
    except (CheckpointMismatchError, CommitLogError):
        return None
    try:
        return None if bound is None else bound.log().look().decided
    except CommitLogError:
        return None


def check_targets(
    decided: Decided | None,
    checkpoint: AnyPath,
    sinks: Mapping[str, TwoPhaseCommitSink],
    starts: Mapping[str, StartInfo],
    adopt: Collection[str] = (),
) -> dict[str, Identity | None]:
    """Compare the sinks and their targets with what the last decision knows of them, before
    anything is created in them.

    Args:
        decided: the log's last decision; None: nothing is known.
        checkpoint: the query's.
        sinks: by name.
        starts: per sink, what it learns at start.
        adopt: the sinks whose targets are taken as they are.

    Returns:
        The identities of those sinks of which the log knows one.

    Raises:
        FormerSinkError: the last decision isn't complete on a sink that is of another kind now.
        CheckpointMismatchError: a target is another one, is not there, or is behind the log.
        SinkUnavailableError: a sink doesn't answer.
    """
    if decided is None:
        return {}
    committed = spark_checkpoint.last_committed(checkpoint)
    plan = spark_checkpoint.known_plan_of(checkpoint, committed)
    refusal = judge_passed_over(decided, committed, plan[:2])
    if refusal is not None:
        raise refusal.error(refusal.message)
    # Before the targets: to adopt another one would not complete the batch.
    refusal = identity.judge_kinds(decided, kinds_of(sinks), committed)
    if refusal is not None:
        raise refusal.error(refusal.message)
    known = {name: target for name, target in decided.commit.targets.items() if name in sinks}
    for name in known.keys() & set(adopt):
        logger.warning(
            "The target of sink %s is taken as it is (onceforall.adoptTarget); the last decision "
            "knows it as %s. Take the option out again "
            "when a batch has been written.",
            name, known[name].body(),
        )  # fmt: skip
    targets = identity.adopted(known, adopt)
    found = {
        name: identity_of(sinks[name], starts[name])
        for name, target in targets.items()
        if target.identity is not None
    }
    shown = {name: repr(sink) for name, sink in sinks.items()}
    refusal = identity.judge(
        targets, found, shown, adopt, is_complete=decided.is_complete(committed)
    )
    if refusal is not None:
        raise refusal.error(refusal.message)
    must_have = identity.complete_batches(decided, targets, committed)
    holds = {
        name: sinks[name].holds(replace(starts[name], place=targets[name].place_of(batch)), batch)
        for name, batch in must_have.items()
    }
    refusal = identity.judge_reach(must_have, holds, shown, adopt)
    if refusal is not None:
        raise refusal.error(refusal.message)
    return found


def kinds_of(sinks: Mapping[str, TwoPhaseCommitSink]) -> dict[str, str]:
    """Return the kind of each sink."""
    return {name: str(sink.kind) for name, sink in sinks.items()}


def identity_of(sink: TwoPhaseCommitSink, start: StartInfo) -> Identity | None:
    """Return what tells a sink's target, as the log gives it back: a tuple is a list there, and the
    key 1 is "1".

    Raises:
        SinkCheckError: it is no JSON object, or an empty one: it could not be decided, or compared.
        SinkUnavailableError: the sink doesn't answer.
    """
    told = sink.identity(start)
    if told is None:
        return None
    try:
        found = json.loads(json.dumps(told, allow_nan=False))
    except (TypeError, ValueError) as error:
        found, why = None, f": {error}"
    else:
        why = ""
    if not isinstance(found, dict) or not found:
        raise SinkCheckError(
            f"Sink {start.sink}: {type(sink).__name__}.identity must return None or a JSON object "
            "with a key at least, and returned "
            f"{type(told).__name__} {told!r}{why}. Mend the sink."
        )
    return found


def check_adopted(names: Collection[str], sinks: Collection[str]) -> None:
    """Refuse to adopt the target of a sink that the query doesn't have.

    Raises:
        OptionError: naming those that it has.
    """
    if unknown := sorted(set(names) - set(sinks)):
        raise OptionError(
            f"onceforall.adoptTarget={','.join(unknown)} names no sink of this query; it has: "
            f"{', '.join(sorted(sinks))}."
        )
