"""A sweep of a sink, once it is known that its target isn't behind the commit log."""

from __future__ import annotations

from onceforall.protocol.identity import judge_sweep
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import StartInfo, TwoPhaseCommitSink


def swept(sink: TwoPhaseCommitSink, sweep: Sweep) -> int:
    """Sweep a sink; return how many transactions it aborted.

    Raises:
        CheckpointMismatchError: its target is behind the commit log, and nothing was touched.
        OnceForAllError: as ``recover`` and ``holds``.
    """
    if sweep.reached is not None:
        start = StartInfo(sweep.query_id, sweep.sink, place=sweep.place, asked_again=True)
        refusal = judge_sweep(sweep, repr(sink), holds=sink.holds(start, sweep.reached))
        if refusal is not None:
            raise refusal.error(refusal.message)
    return sink.recover(sweep)
