"""Runs of this process that Spark has ended, and that sweep on for a while."""

from __future__ import annotations

from onceforall.driver import stopping
from support.waiting import until


def end_sweeps() -> None:
    """End the sweeps of runs that have ended: what they log (that a database is gone, which the
    test dropped) would come into another test's records.
    """
    ended = [run for run in list(stopping.PROCESS._runs) if not _is_active(run)]
    for run in ended:
        run.close()
    # One that is under way may wait for a server that its test has killed.
    until(lambda: not set(ended) & set(stopping.PROCESS._runs), 90, "the end of ended runs' sweeps")


def _is_active(run) -> bool:
    try:
        return run.is_active()
    except Exception:
        return False
