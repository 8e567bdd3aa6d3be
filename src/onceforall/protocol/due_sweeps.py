"""Which sweeps are due in a state of a run; what a sweep may abort is said by ``sweeping``.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceforall.protocol.answers import name_of
from onceforall.protocol.entries import Committable
from onceforall.protocol.identity import complete_batches, known
from onceforall.protocol.phases import Deciding, Stopped
from onceforall.protocol.state import Run
from onceforall.protocol.sweeping import Sweep


def leftovers(run: Run) -> dict[str, Sweep]:
    """Return the sweeps of one's own generation that are due when the run has ended: what late task
    attempts may still open.

    Only for a run that writes no more: its last batch has returned or failed.
    """
    if not run.sweep_own:
        return {}
    decided = incomplete(run)
    in_doubt = _maybe_decided(run)
    spared = {
        sink: (*decided.get(sink, ()), *in_doubt.get(sink, ())) for sink in {*decided, *in_doubt}
    }
    return own_sweeps(run, spared)


def _maybe_decided(run: Run) -> Mapping[str, tuple[Committable, ...]]:
    if isinstance(run.phase, Deciding):
        return run.phase.commit.committables
    return run.phase.maybe_decided if isinstance(run.phase, Stopped) else {}


def incomplete(run: Run) -> Mapping[str, tuple[Committable, ...]]:
    """Return what is decided and has no DONE: whatever is aborted, it is spared."""
    decided = run.history.decided
    return {} if decided is None or decided.done else decided.commit.committables


def _sweeps(
    run: Run, spared: Mapping[str, tuple[Committable, ...]], *, own: bool
) -> dict[str, Sweep]:
    config = run.config
    names = frozenset(name_of(c) for committables in spared.values() for c in committables)
    targets = known(run)
    reached = {
        sink: batch
        for sink, batch in complete_batches(
            run.history.decided, targets, run.spark_committed
        ).items()
        if sink not in run.unplaced
    }
    decided = {sink: target.batch for sink, target in targets.items() if target.batch is not None}
    return {
        sink: Sweep(
            config.query_id,
            sink,
            run.name_generation,
            own,
            names,
            reached.get(sink),
            targets[sink].place_of(reached[sink]) if sink in reached else None,
            decided,
        )
        for sink in config.sinks
    }


def older_sweeps(run: Run, spared: Mapping[str, tuple[Committable, ...]]) -> dict[str, Sweep]:
    """Return a sweep of older generations for each sink."""
    return _sweeps(run, spared, own=False)


def own_sweeps(run: Run, spared: Mapping[str, tuple[Committable, ...]]) -> dict[str, Sweep]:
    """Return a sweep of older generations and of one's own for each sink."""
    return _sweeps(run, spared, own=True)
