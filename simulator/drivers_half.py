"""The half of a sink that a driver calls, without the half that tasks call: simulated tasks
write to their systems themselves.
"""

from __future__ import annotations

from typing import NoReturn

from onceforall.errors import ProtocolViolationError
from onceforall.sink import Capabilities, TwoPhaseCommitSink

__all__ = ["DriversHalf"]


class DriversHalf(TwoPhaseCommitSink):
    """What simulated sinks share: a call of a task's operation is a violation, for no simulated
    driver may make one.
    """

    kind = "simulated"

    @property
    def capabilities(self) -> Capabilities:
        """Two-phase."""
        return Capabilities(two_phase=True)

    def begin_transaction(self, attempt: object) -> NoReturn:
        """Not a driver's."""
        raise _never("begin_transaction", attempt)

    def invoke(self, transaction: object, rows: object) -> NoReturn:
        """Not a driver's."""
        raise _never("invoke", transaction, rows)

    def pre_commit(self, transaction: object) -> NoReturn:
        """Not a driver's."""
        raise _never("pre_commit", transaction)


def _never(operation: str, *arguments: object) -> ProtocolViolationError:
    return ProtocolViolationError(
        f"A driver called {operation}{arguments}, which is a task's operation."
    )
