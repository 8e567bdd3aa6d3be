"""The PostgreSQL sink: COPY in the tasks, and one of three ways from there into the table.

- *``mode=``*: *what happens*
- ``"staged"``: rows wait in staging tables; the driver merges all of a batch in one transaction
  (module ``driver.staged``). The default: needs no setting of the server, and the whole batch
  becomes visible in one instant.
- ``"prepared"``: each task prepares a transaction of its own, which the driver commits (module
  ``task.prepared``). Needs ``max_prepared_transactions``; the tasks' rows become visible one task
  after the other.
- ``"upsert"``: each task writes by key and commits by itself (module ``task.upsert``): **the mode
  without two-phase commit**. Rows are visible before the batch is decided, and a replay writes over
  them.

``key=`` is another matter: in ``staged`` and ``prepared`` it only says *how* rows are applied, by
``INSERT … ON CONFLICT`` instead of ``INSERT``; when they become visible, and that they do so once,
it doesn't change. With ``accumulate=`` a row adds to the one of its key (module ``accumulating``).

What the sink keeps in the database besides: a table ``markers`` (module ``markers``) and, while a
batch is being written, staging tables, all of them in ``staging_schema``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote

from onceforall.common import logs
from onceforall.common.two_sided import TwoSided
from onceforall.failpoints import points as failpoints
from onceforall.sink import (
    BatchAttempt,
    Capabilities,
    CommitPermit,
    CommitReport,
    Committable,
    StartInfo,
    Sweep,
    TaskAttempt,
    TwoPhaseCommitSink,
)
from onceforall.sinks.postgres.connections import Access
from onceforall.sinks.postgres.conninfo import Conninfo
from onceforall.sinks.postgres.options import Mode, OnConflict, checked_options
from onceforall.sinks.postgres.server_errors import translated
from onceforall.sinks.postgres.stoppable import Stoppable
from onceforall.sinks.postgres.tables import FoundTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from onceforall.sinks.postgres.driver.committing import Committer
    from onceforall.sinks.postgres.driver.other_sinks import Writer
    from onceforall.sinks.postgres.driver.table_turns import Turn
    from onceforall.sinks.postgres.merging import Target
    from onceforall.sinks.postgres.statements import Connection
    from onceforall.sinks.postgres.tables import Table
    from onceforall.sinks.postgres.task.attempts import StagedTransaction

_log = logs.logger("onceforall.sinks.postgres")

T = TypeVar("T")

_AT_START = "ofa-check"
_ANSWERS_WITHIN_S = 10.0
"""How long a start waits for answers, beyond what it may wait for a lock."""

# Server-side: its session, and with it its locks, ends when the client's machine has been silent
# for about two minutes.
_KEEPALIVE = {
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "15",
    "tcp_keepalives_count": "4",
}


class PostgresSink(TwoSided, TwoPhaseCommitSink):
    """Writes rows to a table of PostgreSQL; a column of the frame goes to the table's column of
    that name.
    """

    kind: ClassVar[str] = "postgres"

    def __init__(
        self,
        conninfo: Conninfo,
        table: str,
        *,
        key: Sequence[str] | str | None = None,
        mode: Mode = "staged",
        on_conflict: OnConflict = "update",
        accumulate: Mapping[str, str] | None = None,
        create_table: bool = False,
        password: str | Callable[[], str] | None = None,
        staging_schema: str = "onceforall",
        lock_timeout_s: float = 30.0,
        retry_for_s: float = 60.0,
    ) -> None:
        """Nothing is connected yet.

        Args:
            conninfo: a URL, a string of key=value, a mapping of libpq's parameters, or a function
                that returns one of them.
            table: ``table`` or ``schema.table``; without a schema, that which ``search_path``
                gives.
            key: the columns by which a row replaces another; the table must have a unique index on
                exactly these, and none of them may be null. In the modes ``staged`` and
                ``prepared`` it only says how rows are applied, and in ``upsert`` it is required.
            mode: ``staged``, ``prepared`` or ``upsert``; see the module. ``upsert`` is the mode
                without two-phase commit.
            on_conflict: with a key: ``update`` replaces the row that is there, ``ignore`` leaves
                it.
            accumulate: columns that a row adds to the row of its key, instead of replacing it: each
                with ``"sum"``, ``"min"`` or ``"max"``. Rows with the same key in one batch are
                added, too. Every other column must be in `key`. In the modes ``staged`` and
                ``prepared``, and in the output mode ``append``: what an aggregation gives out in
                ``update`` or ``complete`` are totals already.
            create_table: make the table, from the frame's columns, where it is missing.
            password: a value, or a function that returns one, in place of one in `conninfo`.
            staging_schema: the schema of staging tables and markers; made where it is missing. Must
                not be changed while a batch is incomplete.
            lock_timeout_s: how long one statement waits for the locks of other programs, in
                seconds.
            retry_for_s: for how long a server that goes away before the decision is asked again, in
                seconds; then the batch fails. After the decision it is asked for ever.

        Raises:
            OptionError: naming the option, the reason and what to use instead.
            MissingExtraError: psycopg is not installed.
        """
        self._options = checked_options(
            table,
            key=key,
            mode=mode,
            on_conflict=on_conflict,
            accumulate=accumulate,
            create_table=create_table,
            staging_schema=staging_schema,
            lock_timeout_s=lock_timeout_s,
            retry_for_s=retry_for_s,
        )
        self._access = Access(conninfo, password=password, patience_s=retry_for_s)
        self._output_mode = "append"
        self._found = FoundTable()
        self._database = ""
        self._begin_driver_side()

    def _make_driver_side(self) -> None:
        self._lock = threading.Lock()
        self._committer: Committer | None = None
        self._turn: Turn | None = None
        self._beside: tuple[str, ...] = ()
        self._stoppable = Stoppable()

    def __repr__(self) -> str:
        key = f", key={list(self._options.key)!r}" if self._options.key else ""
        added = (
            f", accumulate={dict(self._options.accumulate)!r}" if self._options.accumulate else ""
        )
        return (
            f"PostgresSink({self._access.target}, table={self._options.table!r}{key}{added}, "
            f"mode={self._options.mode!r})"
        )

    @property
    def default_name(self) -> str:
        """``postgres-<table>``, as the table was given."""
        return f"postgres-{quote(self._options.table, safe='')}"

    @property
    def task_imports(self) -> Mapping[str, str]:
        """The way to PostgreSQL."""
        return {
            "psycopg": "onceforall[postgres]",
            "onceforall.sinks.postgres": "onceforall[postgres]",
        }

    @property
    def capabilities(self) -> Capabilities:
        """Two-phase but in the mode ``upsert``; ``update`` needs a key, ``complete`` the mode
        ``staged``, and neither of them goes with ``accumulate``.
        """
        modes = {"append"}
        if not self._options.accumulate:
            modes |= ({"update"} if self._options.key else set()) | (
                {"complete"} if self._options.mode == "staged" else set()
            )
        return Capabilities(
            two_phase=self._options.mode != "upsert",
            idempotent=self._options.mode == "upsert",
            output_modes=frozenset(modes),
            # In one transaction the order of the tasks' rows is of no matter: a key that is there
            # twice is refused.
            one_task_per_key=() if self._options.mode == "staged" else self._options.key,
            empty_batches=self._output_mode == "complete",
            replaces_by=()
            if self._options.accumulate or self._options.ignore
            else self._options.key,
        )

    @property
    def lock_order(self) -> tuple[str, ...]:
        """By database and table: rows stay locked from ``confirm`` (or, in the mode
        ``prepared``, from a task's end) to the commit.
        """
        return (
            ()
            if self._options.mode == "upsert"
            else ("postgres", self._database, f"{self._found.root:020}")
        )

    def secrets(self) -> Mapping[str, str]:
        """Return the secret values of the connection; functions go to the tasks as they are."""
        return self._access.secret_values()

    def restored(self, secrets: Mapping[str, str], driver_only: Mapping[str, Any]) -> PostgresSink:
        """Return this sink with the secret values of its connection."""
        self._access.restore(secrets)
        return super().restored({}, driver_only)

    # --- at start ---------------------------------------------------------------------------------

    def identity(self, start: StartInfo) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return what tells this database from every other one, a copy of it included: the ids of
        the server's data and of the database.

        Raises:
            SinkCheckError, SinkUnavailableError: as ``check``.
        """
        from onceforall.sinks.postgres.identity import database_of

        return {"database": self._at_start(database_of)}

    def holds(self, start: StartInfo, batch: int) -> bool | None:
        """Tell whether the markers have the batch, in whichever mode it was written.

        Raises:
            SinkCheckError, SinkUnavailableError: as ``check``.
        """
        from onceforall.sinks.postgres.driver.start import holds

        def look(connection: Connection) -> bool | None:
            return holds(connection, self._options, start, batch)

        if not start.asked_again:
            return self._at_start(look)
        # The first request of a sweep, which a stop ends like the others.
        return self._own_committer().until_a_stop(
            lambda connect: self._at_start(look, patience_s=0, connect=connect)
        )

    def _at_start(
        self,
        look: Callable[[Connection], T],
        what: str = "Looking at the database of",
        patience_s: float | None = None,
        connect: Callable[[str], Connection] | None = None,
    ) -> T:
        """Do something that may be done twice, with a connection of its own; where that breaks,
        or has no answer for longer than a lock may take, again, for ``retry_for_s`` or another
        time. ``connect`` opens another one than the sink's own.
        """
        from onceforall.sinks.postgres.connections import answering, late
        from onceforall.sinks.postgres.statements import close_quietly, patiently

        sentence = f"{what} {self._options.table}"
        within_s = self._options.lock_timeout_s + _ANSWERS_WITHIN_S

        def once() -> T:
            connection = (connect or self._connect)(_AT_START)
            try:
                with (
                    answering(connection, within_s, late(self._access.target, within_s)),
                    translated(sentence),
                ):
                    return look(connection)
            finally:
                close_quietly(connection)

        patience_s = self._options.retry_for_s if patience_s is None else patience_s
        return patiently(once, patience_s, sentence, self._stoppable)

    @failpoints.around("postgres.check")
    def check(self, start: StartInfo) -> None:
        """Check server, table, key, rights and the mode's needs; make the sink's own schema and its
        table of markers where they are missing.

        Raises:
            SinkCheckError: the message names the thing and the statement that mends it.
            SinkUnavailableError: the server is away for longer than ``retry_for_s``.
        """
        from onceforall.sinks.postgres.driver.start import check_database, find_table

        self._output_mode = start.output_mode

        def look(connection: Connection) -> None:
            self._database = check_database(connection, self._access, self._options, start)
            self._found = find_table(connection, self._access, self._options, self._output_mode)

        self._at_start(look, "Checking")

    def check_beside(self, start: StartInfo, others: Mapping[str, TwoPhaseCommitSink]) -> None:
        """Refuse what two sinks can't have in one batch: a foreign key between their tables, or one
        table where one has a key; see module ``driver.other_sinks``.

        Raises:
            SinkCheckError: naming both sinks.
            SinkUnavailableError: as ``check``.
        """
        from onceforall.sinks.postgres.driver import other_sinks

        beside = {
            name: other._as_writer()  # noqa: SLF001  another object of this class
            for name, other in others.items()
            if isinstance(other, PostgresSink) and other._database == self._database  # noqa: SLF001
        }
        self._beside = tuple(beside)
        if beside:
            self._at_start(
                lambda connection: other_sinks.check(
                    connection, start.sink, self._as_writer(), beside
                )
            )

    def _as_writer(self) -> Writer:
        from onceforall.sinks.postgres.driver.other_sinks import Writer

        table = self._found.table
        place = self._found.place if table is None else (table.schema, table.name)
        return Writer(
            self._options.mode,
            bool(self._options.key),
            self._output_mode == "complete",
            table,
            place,
        )

    def columns(self, schema: StructType) -> list[Column]:
        """Return the columns to write, compared with the table's; make the table if it is missing
        and ``create_table`` says so.

        Raises:
            SchemaError: a column is missing or too many, or its type doesn't fit; see
                ``postgres_columns``.
            SinkCheckError: there is no such table, or it can't be made.
        """
        from onceforall.sinks.postgres.driver.columns import columns_for

        asked, table = self._options, self._described(schema)
        return columns_for(schema, table, asked.key, asked.accumulate, asked.mode)

    def _described(self, schema: StructType) -> Table:
        if self._found.table is None:
            from onceforall.sinks.postgres.driver.start import find_or_make_table

            self._found = self._at_start(
                lambda connection: find_or_make_table(
                    connection, self._access, self._options, self._output_mode, schema
                ),
                "Looking up or making table",
            )
        assert self._found.table is not None
        return self._found.table

    def _target(self) -> Target:
        from onceforall.sinks.postgres.merging import Target

        asked, table = self._options, self._written
        replaces = self._output_mode == "complete"
        return Target(
            table.schema, table.name, asked.key, asked.ignore, replaces, table.oid, asked.accumulate
        )

    @property
    def _written(self) -> Table:
        assert self._found.table is not None, "check() or columns() comes first"
        return self._found.table

    # --- in the tasks -----------------------------------------------------------------------------

    @failpoints.around("postgres.begin")
    def begin_transaction(self, attempt: TaskAttempt) -> StagedTransaction:
        """Connect, and begin a transaction.

        Raises:
            AttemptFailedError: it can't be begun now.
            SinkUnavailableError: the server is away for longer than ``retry_for_s``.
        """
        from onceforall.sinks.postgres import names
        from onceforall.sinks.postgres.task import writing

        target = self._target()
        application = names.task_connection(attempt.name)
        connection = self._connect(
            application, attempt.secrets, patience_s=self._options.retry_for_s
        )
        return writing.begin(connection, attempt.name, self._options, target)

    @failpoints.around("postgres.invoke")
    def invoke(self, transaction: StagedTransaction, rows: pa.RecordBatch) -> None:
        """Send rows by COPY.

        Raises:
            RefusedRecordError: a value doesn't fit its column.
            AttemptFailedError: the connection is lost; the task is run again.
        """
        from onceforall.sinks.postgres.task import writing

        writing.copy(transaction, rows, self._written, self._options)

    @failpoints.around("postgres.pre_commit")
    def pre_commit(self, transaction: StagedTransaction) -> Committable | None:
        """Make the rows durable: staged, prepared, or (in the mode ``upsert``) committed.

        Returns:
            ``name``, ``kind`` (the mode), ``count`` of rows, ``staging_schema``, ``database`` and
            ``target``; None in the mode ``upsert``.

        Raises:
            RefusedRecordError: the table refuses a row (in the mode ``staged`` it is ``confirm``
                that finds it).
            AttemptFailedError: the server can't keep the rows.
        """
        from onceforall.sinks.postgres.task import writing

        return writing.pre_commit(transaction, self._options)

    @failpoints.around("postgres.discard")
    def discard(self, transaction: StagedTransaction) -> None:
        """Give up an attempt. What it has made durable already, a sweep finds."""
        if not transaction.is_over:
            transaction.close()

    def _connect(
        self,
        application_name: str,
        secrets: Mapping[str, str] | None = None,
        *,
        patience_s: float = 0.0,
    ) -> Connection:
        settings = {**_KEEPALIVE, "lock_timeout": f"{int(self._options.lock_timeout_s * 1000)}ms"}
        connection = self._access.connect(
            secrets,
            application_name=application_name,
            autocommit=True,
            patience_s=patience_s,
            settings=settings,
        )
        return self._stoppable.opened(connection)

    # --- on the driver ----------------------------------------------------------------------------

    def begin_batch(self, batch: BatchAttempt) -> None:
        """Have late tasks of earlier runs refused (module ``driver.fencing``), and wait for this
        query's turn at the table, where tasks write by key in the mode ``prepared``; see module
        ``driver.table_turns``.

        Raises:
            SinkUnavailableError: the server was away for longer than ``retry_for_s``.
        """
        self._own_committer().fence_out(batch)
        if self._options.mode != "prepared" or not self._options.key or self._found.table is None:
            return
        from onceforall.sinks.postgres.driver.table_turns import Turn
        from onceforall.sinks.postgres.statements import patiently

        shown = self._written.shown
        turn = self._turn = self._turn or Turn(
            self._connect, self._found.root, shown, self._options.lock_timeout_s
        )
        patiently(
            lambda: turn.take(batch.query_id, batch.generation, self._stoppable),
            self._options.retry_for_s,
            f"Waiting for the turn at {shown}",
            self._stoppable,
        )

    def end_batch(self, batch: BatchAttempt) -> None:  # noqa: ARG002
        """Let the next query go on."""
        if self._turn is not None:
            self._turn.release()

    def stop_committing(self) -> None:
        """End what ``commit``, or a sweep behind it, waits for: a lock that others keep, or a
        server without an answer. Whether a COMMIT on its way succeeds says the marker, at the next
        start.
        """
        self._own_committer().stop()

    def stop_waiting(self) -> None:
        """End what ``begin_batch`` or ``confirm`` waits for: a lock that others keep, or a
        server without an answer.
        """
        self._stoppable.end()

    @failpoints.around("postgres.confirm")
    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """Exhaust every reason to refuse: merge what is staged and hold the transaction, or see
        that all prepared transactions are there.

        Returns:
            The committables, with ``identity``, ``place`` and ``markers`` (the object id of that
            table) on the first one.

        Raises:
            RefusedRecordError: the table refuses a row; the message names the first one.
            AttemptFailedError: something that was prepared is gone, or another run was faster.
            SinkUnavailableError: the server was away for longer than ``retry_for_s``.
        """
        return self._own_committer().confirm(committables) if committables else committables

    def _own_committer(self) -> Committer:
        from onceforall.sinks.postgres.driver.committing import Committer

        with self._lock:
            if self._committer is None:
                self._committer = Committer(
                    self._connect, self._options, self._stoppable, self._beside
                )
            return self._committer

    @failpoints.around("postgres.commit")
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Commit what was confirmed; see the modules ``driver.staged``, ``driver.prepared`` and
        ``driver.committing``.

        Raises:
            SinkUnavailableError: no answer yet, or something in the database is in the way; the
                message says what.
        """
        if not committables:
            return CommitReport()
        _log.debug("Committing %d transactions of batch %d", len(committables), permit.batch)
        return self._own_committer().commit(committables)

    @failpoints.around("postgres.abort")
    def abort(self, committables: Sequence[Committable]) -> None:
        """Roll back what is held or prepared, and drop staging tables.

        Raises:
            SinkUnavailableError: at least one may still be there.
        """
        self._own_committer().abort(committables)

    @failpoints.around("postgres.retire")
    def retire(self, committables: Sequence[Committable]) -> None:
        """Remove what a lost transaction may still have; of a committed one nothing is left.

        Raises:
            SinkUnavailableError: at least one may still be there.
        """
        self._own_committer().retire(committables)

    @failpoints.around("postgres.recover")
    def recover(self, sweep: Sweep) -> int:
        """Remove every staging table and prepared transaction that the sweep covers, and return how
        many.

        Raises:
            SinkUnavailableError: not all could be looked at, or removed.
        """
        return self._own_committer().recover(sweep)

    def close(self) -> None:
        """Close the driver's connections; what is held and not decided is rolled back. The next
        call opens new ones.
        """
        with self._lock:
            committer = self._committer
            turn, self._turn = self._turn, None
        if committer is not None:
            committer.close()
        if turn is not None:
            turn.close()


__all__ = ["PostgresSink"]
