"""Which sweeps a run makes when it ends: those of its own generation only when Spark can't call for another batch."""

from pathlib import Path

import pytest

from onceforall.protocol.sweeping import Sweep
from onceforall.runs import _QueryRun

OLDER = {"out": Sweep("query", "out", 3)}
OWN = {"out": Sweep("query", "out", 3, own=True)}


class Execution:
    """Spark's execution of a query that was told to stop: not active, and its thread may still begin a batch."""

    def __init__(self, alive):
        self.alive = alive

    def isActive(self):  # noqa: N802  Spark's own name
        return False

    def queryExecutionThread(self):  # noqa: N802
        if self.alive is None:
            raise ConnectionError("the JVM is gone")
        return self

    def isAlive(self):  # noqa: N802
        return self.alive


class Coordinator:
    def __init__(self, leftovers):
        self._leftovers = leftovers

    def leftovers(self):
        return self._leftovers


@pytest.mark.parametrize(
    ("alive", "leftovers", "due"), [(True, OWN, OLDER), (False, OWN, OWN), (None, OWN, OWN), (False, {}, OLDER)]
)
def test_a_run_sweeps_its_own_generation_only_when_no_batch_can_come(alive, leftovers, due):
    run = _QueryRun(Execution(alive), "query", Path("checkpoint"), {})
    run._sweeps, run._coordinator = OLDER, Coordinator(leftovers)
    assert run._last_sweeps() == due
