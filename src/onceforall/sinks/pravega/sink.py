"""The Pravega sink: transactions written by the tasks, committed by the driver.

A task opens a transaction, appends its rows to the transaction's own segments, and waits until each
append is durable. Its committable has the transaction's id, which is all that another process needs
to commit it. Readers see a transaction's events when it is committed, all at once per segment.

**Leases.** Pravega aborts an open transaction when its lease is over. A task opens it with the
lease ``lease_s``, and the driver decides a batch only within that time from the batch's beginning
(``Capabilities.transaction_timeout_ms``). Right before, ``confirm`` pings every transaction: that
proves that it is open, and lets the lease begin anew, so that all of it is left for the commit. The
driver alone could ping between a task's end and ``confirm``, and knows no id before the job's end.

**Lost transactions.** When a decided transaction wasn't committed within the lease, Pravega has
aborted it. ``commit`` hears of that and reports it as lost: its rows are written again. Module
``outcomes`` says why the controller's answer proves it, and what is in doubt.

**What nobody decided** is committed by nobody, seen by nobody, and holds no reader back; its lease
ends it. A sweep aborts it earlier. Pravega has no list of open transactions, so the tasks keep one
(module ``target``).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from onceforall.common import arguments
from onceforall.common.pravega import names
from onceforall.common.pravega.answers import NoAnswerError, RefusedError
from onceforall.common.pravega.controller import Controller
from onceforall.common.threads import start_thread
from onceforall.common.two_sided import TwoSided
from onceforall.errors import (
    AttemptFailedError,
    OptionError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import (
    Capabilities,
    CommitPermit,
    CommitReport,
    Committable,
    LostTransaction,
    StartInfo,
    Sweep,
    TaskAttempt,
    TwoPhaseCommitSink,
)
from onceforall.sinks.pravega import target
from onceforall.sinks.pravega.columns import pravega_columns
from onceforall.sinks.pravega.outcomes import SEALED, Transactions
from onceforall.sinks.pravega.writing import PravegaWriting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_LEASE_S = 600.0
_LONGEST_NAME = 255 - len(target.OPEN_SUFFIX)


class PravegaSink(TwoSided, TwoPhaseCommitSink):
    """Writes rows as events of a Pravega stream, exactly once; ``pravega_columns`` says which
    columns it reads.
    """

    kind: ClassVar[str] = "pravega"

    def __init__(
        self, controller: str, *, scope: str, stream: str, lease_s: float = _LEASE_S
    ) -> None:
        """Nothing is connected yet.

        Args:
            controller: ``tcp://host:port`` of the controller. Drivers and executors connect to it,
                and to the segment stores that it names.
            scope: the stream's scope.
            stream: its name, of at most 239 characters: two streams of the sink's own lie beside
                it, ``<stream>.onceforall`` and ``<stream>.onceforall-open``.
            lease_s: how long a transaction may stay open: the longest batch, and the longest
                outage between decision and commit after which no row must be written again. At
                most what the controller allows (``controller.transaction.lease.count.max``).

        Raises:
            OptionError: naming the argument and what to give instead.
        """
        self._address = names.address("controller", controller)
        self._stream = names.stream_name(scope, stream, ("scope", "stream"))
        if {scope, stream} & {".", ".."}:
            raise OptionError(
                f"The Pravega stream {self._stream} takes no transactions: the controller can't "
                "commit any where the scope or the stream is called . or .. Use another stream."
            )
        if len(stream) > _LONGEST_NAME:
            raise OptionError(
                f"stream has {len(stream)} characters, and the stream beside it "
                f"(<stream>{target.OPEN_SUFFIX}) could have no name. Use one of at most "
                f"{_LONGEST_NAME}."
            )
        seconds = arguments.number("lease_s", lease_s, positive=True)
        # Pravega's are whole milliseconds, in 64 bits.
        if not 1 <= seconds * 1000 < 2**63:
            raise arguments.wrong("lease_s", lease_s, "a number of seconds, as 600")
        self._lease_ms = int(seconds * 1000)
        self._begin_driver_side()

    def _make_driver_side(self) -> None:
        self._stopping = threading.Event()
        self._committed = 0

    def __repr__(self) -> str:
        return f"PravegaSink({str(self._stream)!r})"

    @property
    def default_name(self) -> str:
        """``pravega-<scope>-<stream>``."""
        return f"pravega-{self._stream.scope}-{self._stream.stream}"

    @property
    def task_imports(self) -> Mapping[str, str]:
        """Grpcio and protobuf."""
        return {
            "onceforall.sinks.pravega": "onceforall[pravega]",
            "grpc": "onceforall[pravega]",
            "google.protobuf": "onceforall[pravega]",
        }

    @property
    def capabilities(self) -> Capabilities:
        """Two-phase commit, within the lease."""
        return Capabilities(two_phase=True, transaction_timeout_ms=self._lease_ms)

    def columns(self, schema: StructType) -> list[Column]:
        """Return the columns to write; see ``pravega_columns``."""
        return pravega_columns(schema)

    # --- in the tasks -----------------------------------------------------------------------------

    def begin_transaction(self, attempt: TaskAttempt) -> PravegaWriting:
        """Open a transaction.

        Raises:
            AttemptFailedError: it can't be opened.
        """
        controller = Controller(self._address)
        return PravegaWriting(controller, self._stream, attempt.name, self._lease_ms)

    def invoke(self, transaction: PravegaWriting, rows: pa.RecordBatch) -> None:
        """Write rows within it.

        Raises:
            RefusedRecordError, AttemptFailedError: see ``PravegaWriting.write``.
        """
        transaction.write(rows)

    def pre_commit(self, transaction: PravegaWriting) -> Committable | None:
        """Return its id, when all its rows are durable.

        Raises:
            AttemptFailedError: see ``PravegaWriting.finish``.
        """
        return transaction.finish()

    def discard(self, transaction: PravegaWriting) -> None:
        """Abort it, if the controller answers."""
        transaction.give_up()

    # --- on the driver ----------------------------------------------------------------------------

    def identity(self, start: StartInfo) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return the id that lies beside the stream, and the number of its first segment.

        Raises:
            SinkCheckError: Pravega refuses.
            SinkUnavailableError: no answer.
        """
        found = self._identity()
        return None if found is None else found.body()

    def check(self, start: StartInfo) -> None:  # noqa: ARG002
        """Check that the stream is there and open, that transactions may have the lease, and that
        the id beside the stream is there, or make it.

        Raises:
            SinkCheckError: one of these isn't so.
            SinkUnavailableError: no answer.
        """
        controller = self._controller()
        try:
            if not controller.exists(self._stream):
                raise SinkCheckError(
                    f"There is no Pravega stream {self._stream}. Create it, or check the names and "
                    "the controller's address."
                )
            if controller.is_sealed(self._stream):
                raise SinkCheckError(f"The Pravega stream {self._stream}: {SEALED}")
            self._try_lease(controller)
            target.make_target_id(controller, self._stream)
        except (NoAnswerError, RefusedError) as error:
            raise self._trouble(error) from error

    def _try_lease(self, controller: Controller) -> None:
        try:
            tried, _ = controller.begin(self._stream, self._lease_ms)
        except RefusedError as error:
            raise SinkCheckError(
                f"Pravega opens no transaction of {self._stream} with lease_s="
                f"{self._lease_ms / 1000:g}: {error}. Give another lease_s, or let the controller "
                "allow it (controller.transaction.lease.count.max, 600 s by default, and .min)."
            ) from error
        controller.abort(self._stream, tried)

    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """See that every transaction is open, let its lease begin anew, and note in which Pravega
        it is.

        Raises:
            AttemptFailedError: one isn't open any more, or the stream isn't there.
            SinkCheckError: Pravega refuses.
            SinkUnavailableError: no answer.
        """
        if not committables:
            return committables
        found = self._identity()
        if found is None:
            raise AttemptFailedError(
                f"The Pravega stream {self._stream}, or what the sink keeps beside it, was deleted "
                "while the batch was written. Make it again; the next start writes the batch."
            )
        self._transactions().keep_open(committables, self._lease_ms)
        noted = [found.of(each) for each in committables]
        return [{**noted[0], "identity": found.body()}, *noted[1:]]

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:  # noqa: ARG002
        """Commit all of them; see module ``outcomes``.

        Raises:
            SinkUnavailableError: no answer for at least one.
        """
        self._stopping.clear()
        try:
            here = self._identity()
        except SinkCheckError as error:
            raise SinkUnavailableError(str(error)) from error
        ours = [each for each in committables if here is not None and here.wrote(each)]
        report = self._transactions().commit(ours)
        strangers = tuple(
            LostTransaction(each, self._why_elsewhere(here))
            for each in committables
            if each not in ours
        )
        self._tidy(len(ours))
        return CommitReport(
            completed=report.completed, lost=report.lost, in_doubt=(*report.in_doubt, *strangers)
        )

    def _why_elsewhere(self, here: target.Identity | None) -> str:
        if here is None:
            return (
                f"The Pravega at {self._address} has no stream {self._stream}, or nothing lies "
                "beside it: it was deleted, or another Pravega answers. What was committed before "
                "is not known any more."
            )
        return (
            f"Another Pravega answers at {self._address} than the one that the batch was written "
            f"to, or another stream is called {self._stream}: it was deleted and made again. Bring "
            "the old one back."
        )

    def _tidy(self, committed: int) -> None:
        """Forget now and then what was noted of transactions that have ended. That takes a second,
        for which no batch waits.
        """
        self._committed += committed
        if self._committed >= target.FORGOTTEN_FROM:
            self._committed = 0
            start_thread(self._forget, "onceforall-pravega-forgets")

    def _forget(self) -> None:
        # Whoever comes next forgets it otherwise.
        with suppress(NoAnswerError, RefusedError):
            target.OpenTransactions(self._controller(), self._stream).still_open()

    def stop_committing(self) -> None:
        """End ``commit``'s wait."""
        self._stopping.set()

    def abort(self, committables: Sequence[Committable]) -> None:
        """Abort those that are open.

        Raises:
            SinkUnavailableError: at least one may still be open.
        """
        self._stopping.clear()
        self._transactions().abort(committables)

    def recover(self, sweep: Sweep) -> int:
        """Abort the open transactions that the sweep covers; return how many there were.

        Raises:
            SinkUnavailableError: no answer.
        """
        self._stopping.clear()
        self._committed = 0
        try:
            noted = target.OpenTransactions(self._controller(), self._stream)
            found = [each for each in noted.still_open() if sweep.covers_name(str(each["name"]))]
        except (NoAnswerError, RefusedError) as error:
            raise SinkUnavailableError(str(self._trouble(error))) from error
        self._transactions().abort(found)
        return len(found)

    def _controller(self) -> Controller:
        return Controller(self._address)

    def _transactions(self) -> Transactions:
        return Transactions(self._controller(), self._stream, self._stopping.is_set)

    def _identity(self) -> target.Identity | None:
        try:
            return target.identity(self._controller(), self._stream)
        except (NoAnswerError, RefusedError) as error:
            raise self._trouble(error) from error

    def _trouble(
        self, error: NoAnswerError | RefusedError
    ) -> SinkCheckError | SinkUnavailableError:
        kind = SinkUnavailableError if isinstance(error, NoAnswerError) else SinkCheckError
        return kind(
            f"The Pravega controller at {self._address} doesn't serve the stream {self._stream}: "
            f"{error}. Check its address, and that it is a Pravega of release 0.13."
        )
