"""From the committables of a batch to its rows in the table: confirmed before the decision,
committed behind it, removed where nobody decides for them.

A decided batch may have transactions of both kinds, where the mode was changed before lost ones
were written again. The prepared ones come first, and the staged rest is merged only when all of
them are there: the marker that a merge moves says that the whole batch is complete, and would prove
that also of a prepared transaction that was lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import psycopg

from onceforall.protocol import contract
from onceforall.protocol.entries import Committable
from onceforall.protocol.names import sink_code
from onceforall.sink import BatchAttempt, CommitReport, LostTransaction, Sweep
from onceforall.sinks.postgres.driver import fencing, prepared
from onceforall.sinks.postgres.driver.batches import Connect, batch_of, place
from onceforall.sinks.postgres.driver.outcomes import joined
from onceforall.sinks.postgres.driver.staged import Merger
from onceforall.sinks.postgres.driver.sweeping import remove_named, sweep_all
from onceforall.sinks.postgres.options import PREPARED, STAGED, Options
from onceforall.sinks.postgres.statements import Connection, close_quietly, patiently, unavailable
from onceforall.sinks.postgres.stoppable import CommitsStoppable, Stoppable

T = TypeVar("T")

_REST = (
    "its rows wait in a staging table until the rest of the batch is there; they are written "
    "again with that"
)
_SWEEPING = "ofa-sweep"


class Committer:
    """One sink's batches on the driver, with what it keeps from one call to the next: a merge
    that waits for its COMMIT. Several threads may use it.
    """

    def __init__(
        self,
        connect: Connect,
        options: Options,
        stoppable: Stoppable,
        beside: Sequence[str] = (),
    ) -> None:
        """Nothing is connected yet.

        Args:
            connect: opens a connection with this application name.
            options: of the sink.
            stoppable: ends what is waited for before the decision.
            beside: the names of the query's other sinks of this database.
        """
        self._commits = CommitsStoppable()
        self._connect: Connect = lambda name: self._commits.connected(partial(connect, name))
        self._schema = options.staging_schema
        self._retry_for_s = options.retry_for_s
        self._stoppable = stoppable
        self._lock = threading.RLock()
        self._merger = Merger(self._connect, options.lock_timeout_s, beside)
        self._finished: set[str] = set()
        self._fenced_at = -1

    def fence_out(self, batch: BatchAttempt) -> None:
        """Have late tasks of earlier runs refused, once for each generation: a start goes on
        without a sweep that fails.

        Raises:
            SinkUnavailableError: the server was away for longer than ``retry_for_s``.
        """
        if batch.generation == self._fenced_at:
            return

        def fence() -> None:
            connection = self._connect(_SWEEPING)
            try:
                fencing.fence_out(
                    connection,
                    self._schema,
                    batch.query_id,
                    [sink_code(batch.sink)],
                    batch.generation,
                )
            finally:
                close_quietly(connection)

        what = "Refusing late tasks of earlier runs"
        patiently(fence, self._retry_for_s, what, self._stoppable)
        self._fenced_at = batch.generation

    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """Merge what is staged and hold the transaction, or see that all prepared transactions
        are there; see ``PostgresSink.confirm``.
        """
        batch = batch_of(committables)

        def look() -> int | None:
            connection = self._connect(batch.connection_name)
            try:
                return prepared.confirm(connection, batch)
            finally:
                close_quietly(connection)

        def merge() -> int | None:
            return self._merger.confirm(batch)

        action = merge if committables[0]["kind"] == STAGED else look
        with self._lock:
            table = patiently(action, self._retry_for_s, batch.what("Merging"), self._stoppable)
        return [
            {
                **committables[0],
                "identity": {"database": batch.database},
                "markers": table,
                "place": place(batch.owner.schema),
            },
            *committables[1:],
        ]

    def commit(self, committables: Sequence[Committable]) -> CommitReport:
        """Commit what was confirmed.

        Raises:
            SinkUnavailableError: no answer yet.
        """
        with self._lock, self._commits.work():
            if self._merger.held is not None:
                self._commits.opened(self._merger.held.connection)
            report = _commit_all(self._connect, self._merger, committables)
            self._finished = {str(c["name"]) for c in report.retired}
        return report

    def stop(self) -> None:
        """End what ``commit``, ``retire``, ``recover`` or ``until_a_stop`` waits for; it never
        blocks.
        """
        self._commits.end()

    def until_a_stop(self, look: Callable[[Connect], T]) -> T:
        """Look at something with the connections of ``look``'s argument, which ``stop`` cuts off.

        Raises:
            SinkUnavailableError: it was stopped; else what ``look`` raises.
        """
        with self._commits.work():
            return look(self._connect)

    def abort(self, committables: Sequence[Committable]) -> None:
        """Roll back what is held or prepared, and drop staging tables.

        Raises:
            SinkUnavailableError: at least one may still be there.
        """
        with self._lock:
            self._merger.release()
        self._remove([str(c["name"]) for c in committables])

    def retire(self, committables: Sequence[Committable]) -> None:
        """Remove what a lost transaction may still have.

        Raises:
            SinkUnavailableError: at least one may still be there.
        """
        with self._lock:
            names = {str(c["name"]) for c in committables} - self._finished
        self._remove(sorted(names))

    def recover(self, sweep: Sweep) -> int:
        """Remove everything that the sweep covers, and return how many.

        Raises:
            SinkUnavailableError: not all could be looked at, or removed.
        """
        return self._do("Sweeping", lambda connection: sweep_all(connection, sweep, self._schema))

    def _remove(self, names: Sequence[str]) -> None:
        if names:
            self._do(
                "Removing what an attempt left",
                lambda connection: remove_named(connection, self._schema, names),
            )

    def _do(self, what: str, action: Callable[[Connection], T]) -> T:
        with self._commits.work():
            connection = self._connect(_SWEEPING)
            try:
                return action(connection)
            except psycopg.Error as error:
                raise unavailable(error, what) from error
            finally:
                close_quietly(connection)

    def close(self) -> None:
        """Roll back what is held and not decided."""
        with self._lock:
            self._merger.release()


def _commit_all(
    connect: Connect, merger: Merger, committables: Sequence[Committable]
) -> CommitReport:
    """Commit them.

    Args:
        connect: opens a connection.
        merger: has the merge that is held.
        committables: all of a batch, at least one.

    Raises:
        SinkUnavailableError: no answer yet.
    """
    foreign = next((c for c in committables if c.get("kind") not in {PREPARED, STAGED}), None)
    if foreign is not None:
        reason = (
            "a committable isn't one of PostgresSink, or is damaged: its kind is "
            f"{foreign.get('kind')!r}. {contract.RESTORE}"
        )
        return CommitReport(in_doubt=tuple(LostTransaction(c, reason) for c in committables))
    of_kind = {kind: [c for c in committables if c["kind"] == kind] for kind in (PREPARED, STAGED)}
    reports = []
    if of_kind[PREPARED]:
        batch = batch_of(of_kind[PREPARED])
        # The merge of the rest, where there is one, moves the marker of the batch itself.
        reports.append(
            prepared.commit(connect, batch, of_kind[PREPARED], are_all=not of_kind[STAGED])
        )
    rest = of_kind[STAGED]
    if rest and any(report.lost or report.in_doubt for report in reports):
        # What is held has its staging tables locked, which are dropped before the rows are written
        # again.
        merger.release()
        waiting = tuple(LostTransaction(c, _REST) for c in rest)
        is_lost = any(report.lost for report in reports)
        reports.append(CommitReport(lost=waiting) if is_lost else CommitReport(in_doubt=waiting))
    elif rest:
        reports.append(merger.commit(batch_of(rest), rest))
    return joined(reports)
