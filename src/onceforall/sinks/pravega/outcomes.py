"""Completes prepared transactions, and says what has become of them.

The controller's answer is the evidence (module ``onceforall.common.pravega.controller``): a
transaction is on its way to COMMITTED or to ABORTED for good, from one compare-and-set on, and is
told as such for a day after it is there. So

- OPEN: commit, and look again;
- COMMITTING: look again; COMMITTED: done, now or before;
- ABORTING, ABORTED: lost, with no effect ever. Its lease was over before somebody committed it, or
  the stream was sealed, which aborts what is open; the controller doesn't say which;
- UNKNOWN: forgotten. Pravega doesn't say which way it went. In doubt: neither is guessed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from onceforall.common.pravega.answers import NoAnswerError, RefusedError
from onceforall.common.pravega.controller import Controller, Ping, State
from onceforall.common.pravega.names import StreamName
from onceforall.common.threads import Threads
from onceforall.errors import AttemptFailedError, OnceForAllError, SinkUnavailableError
from onceforall.sink import CommitReport, Committable, LostTransaction

_THREADS = 16
_PATIENCE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.2
SEALED = (
    "The stream is sealed, and takes no events any more. Write to another stream, under another "
    "name of the sink."
)
_FORGOTTEN = (
    "Pravega doesn't know it any more: it forgets what has become of a transaction after "
    "controller.transaction.ttl.hours (24 by default). Look for the batch's rows in the stream"
)


class Transactions:
    """The transactions of a stream, as the driver sees them."""

    def __init__(
        self,
        controller: Controller,
        stream: StreamName,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing is asked yet.

        Args:
            controller: the cluster's.
            stream: the stream.
            is_stopping: whether nobody waits any more.
        """
        self._controller, self._stream, self._is_stopping = controller, stream, is_stopping

    def keep_open(self, committables: Sequence[Committable], lease_ms: int) -> None:
        """See that every transaction is open, and let its lease begin anew.

        Raises:
            AttemptFailedError: one isn't open any more.
            SinkUnavailableError: no answer.
        """
        self._each(lambda one: self._kept_open(one, lease_ms), committables)

    def commit(self, committables: Sequence[Committable]) -> CommitReport:
        """Commit all of them.

        Raises:
            SinkUnavailableError: no answer for at least one.
        """
        states = self._each(self._committed, committables)
        told = list(zip(committables, states, strict=True))
        aborted = {State.ABORTING, State.ABORTED}
        why = self._why_aborted() if aborted & set(states) else ""
        return CommitReport(
            completed=tuple(one for one, state in told if state is State.COMMITTED),
            lost=tuple(
                LostTransaction(
                    one,
                    f"Pravega has aborted transaction {one['txn']} of {self._stream} before it was "
                    f"committed: {why}.",
                )
                for one, state in told
                if state in aborted
            ),
            in_doubt=tuple(
                LostTransaction(one, f"Transaction {one['txn']} of {self._stream}: {_FORGOTTEN}.")
                for one, state in told
                if state is State.UNKNOWN
            ),
        )

    def abort(self, committables: Sequence[Committable]) -> None:
        """Abort those that are open.

        Raises:
            SinkUnavailableError: at least one may still be open.
        """
        self._each(self._aborted, committables)

    def _why_aborted(self) -> str:
        if self._is_sealed():
            return "the stream is sealed, and takes no events any more"
        return "its lease was over, or somebody has aborted it"

    def _is_sealed(self) -> bool:
        # What is reported of the transactions is known without it.
        with suppress(NoAnswerError, RefusedError):
            return self._controller.is_sealed(self._stream)
        return False

    def _each(
        self, action: Callable[[Committable], State], committables: Sequence[Committable]
    ) -> list[State]:
        if not committables:
            return []
        with Threads(max_workers=min(_THREADS, len(committables))) as pool:
            return list(pool.map(action, committables))

    def _kept_open(self, committable: Committable, lease_ms: int) -> State:
        try:
            found = self._controller.ping(self._stream, _id(committable), lease_ms)
        except (NoAnswerError, RefusedError) as error:
            raise self._unavailable(error) from error
        if found is Ping.DISCONNECTED:
            raise self._unavailable("the controller has lost its ZooKeeper")
        if found is not Ping.OK:
            advice = (
                SEALED
                if self._is_sealed()
                else "The attempt is repeated; if it happens again, raise lease_s and the "
                "controller's controller.transaction.lease.count.max."
            )
            raise AttemptFailedError(
                f"Pravega transaction {committable['txn']} of {self._stream} is not open any more "
                f"before the decision: {found.name}. {advice}"
            )
        return State.OPEN

    def _committed(self, committable: Committable) -> State:
        transaction = _id(committable)
        return self._until(
            committable,
            lambda: self._controller.commit(self._stream, transaction),
            {State.COMMITTED, State.ABORTING, State.ABORTED, State.UNKNOWN},
        )

    def _aborted(self, committable: Committable) -> State:
        # What is being committed or was stays so.
        return self._until(
            committable,
            lambda: self._controller.abort(self._stream, _id(committable)),
            set(State) - {State.OPEN},
        )

    def _until(self, committable: Committable, ask: Callable[[], None], ends: set[State]) -> State:
        """Ask for what is to be done as long as the transaction is open, until it is at an end."""
        begun, pause = time.monotonic(), _FIRST_PAUSE_S
        try:
            while True:
                state = self._controller.state(self._stream, _id(committable))
                if state in ends:
                    return state
                if state is State.OPEN:
                    ask()
                waited_s = time.monotonic() - begun
                if self._is_stopping() or waited_s > _PATIENCE_S:
                    raise self._unavailable(
                        f"transaction {committable['txn']} is still {state.name} after "
                        f"{waited_s:.0f} s"
                    )
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        except (NoAnswerError, RefusedError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, why: object) -> OnceForAllError:
        return SinkUnavailableError(
            f"Pravega doesn't complete the transactions of {self._stream}: {why}. Check the "
            "controller and its address."
        )


def _id(committable: Committable) -> uuid.UUID:
    return uuid.UUID(str(committable["txn"]))
