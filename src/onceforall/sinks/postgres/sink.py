"""The PostgreSQL sink: COPY in the tasks, and one of three ways from there into the table.

===============  ===================================================================================================================
``mode=``        what happens
===============  ===================================================================================================================
``"staged"``     rows wait in staging tables; the driver merges all of a batch in one transaction (module ``driver.staged``). The default:
                 needs no setting of the server, and the whole batch becomes visible in one instant.
``"prepared"``   each task prepares a transaction of its own, which the driver commits (module ``task.prepared``). Needs
                 ``max_prepared_transactions``; the tasks' rows become visible one task after the other.
``"upsert"``     each task writes by key and commits by itself (module ``task.upsert``): **the mode without two-phase commit**. Rows are visible
                 before the batch is decided, and a replay writes over them.
===============  ===================================================================================================================

``key=`` is another matter: in ``staged`` and ``prepared`` it only says *how* rows are applied, by ``INSERT … ON CONFLICT`` instead of
``INSERT``; when they become visible, and that they do so once, it doesn't change. With ``accumulate=`` a row adds to the one of its key (module
``accumulating``).

What the sink keeps in the database besides: a table ``markers`` (module ``markers``) and, while a batch is being written, staging tables, all of
them in ``staging_schema``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote

from onceforall.common import arguments, logs
from onceforall.errors import SinkCheckError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.names import sink_code
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
from onceforall.sinks.postgres.accumulating import check_accumulate
from onceforall.sinks.postgres.connections import Access
from onceforall.sinks.postgres.conninfo import Conninfo
from onceforall.sinks.postgres.options import Mode, OnConflict, check_options, check_seconds
from onceforall.sinks.postgres.server_errors import translated
from onceforall.sinks.postgres.stoppable import Stoppable

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

# Server-side: its session, and with it its locks, ends when the client's machine has been silent for about two minutes.
_KEEPALIVE = {"tcp_keepalives_idle": "60", "tcp_keepalives_interval": "15", "tcp_keepalives_count": "4"}


class PostgresSink(TwoPhaseCommitSink):
    """Writes rows to a table of PostgreSQL; a column of the frame goes to the table's column of that name."""

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
            conninfo: a URL, a string of key=value, a mapping of libpq's parameters, or a function that returns one of them.
            table: ``table`` or ``schema.table``; without a schema, that which ``search_path`` gives.
            key: the columns by which a row replaces another; the table must have a unique index on exactly these, and none of them may be
                null. In the modes ``staged`` and ``prepared`` it only says how rows are applied, and in ``upsert`` it is required.
            mode: ``staged``, ``prepared`` or ``upsert``; see the module. ``upsert`` is the mode without two-phase commit.
            on_conflict: with a key: ``update`` replaces the row that is there, ``ignore`` leaves it.
            accumulate: columns that a row adds to the row of its key, instead of replacing it: each with ``"sum"``, ``"min"`` or ``"max"``. Rows with
                the same key in one batch are added, too. Every other column must be in `key`. In the modes ``staged`` and ``prepared``,
                and in the output mode ``append``: what an aggregation gives out in ``update`` or ``complete`` are totals already.
            create_table: make the table, from the frame's columns, where it is missing.
            password: a value, or a function that returns one, in place of one in `conninfo`.
            staging_schema: the schema of staging tables and markers; made where it is missing. Must not be changed while a batch is incomplete.
            lock_timeout_s: how long one statement waits for the locks of other programs, in seconds.
            retry_for_s: for how long a server that goes away before the decision is asked again, in seconds; then the batch fails.
                After the decision it is asked for ever.

        Raises:
            OptionError: naming the option, the reason and what to use instead.
            MissingExtraError: psycopg is not installed.
        """
        self._name = table
        self._key = () if key is None or key == () else arguments.names("key", key, "the name of a column, or a list of names")
        check_options(table, self._key, mode, on_conflict, staging_schema)
        self._accumulate = check_accumulate(accumulate, self._key, mode, on_conflict)
        arguments.flag("create_table", create_table)
        check_seconds("lock_timeout_s", lock_timeout_s)
        check_seconds("retry_for_s", retry_for_s)
        self._access = Access(conninfo, password=password, patience_s=retry_for_s)
        self._mode = mode
        self._ignore = on_conflict == "ignore"
        self._create_table = create_table
        self._schema = staging_schema
        self._lock_timeout_s = lock_timeout_s
        self._retry_for_s = retry_for_s
        self._output_mode = "append"
        self._table: Table | None = None
        self._place: tuple[str, str] | None = None
        self._database = ""
        self._root = 0
        self._make_driver_side()

    def _make_driver_side(self) -> None:
        self._lock = threading.Lock()
        self._committer: Committer | None = None
        self._turn: Turn | None = None
        self._stoppable = Stoppable()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_lock", "_committer", "_turn", "_stoppable"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_driver_side()

    def __copy__(self) -> PostgresSink:
        # A copy stays in this process; the access's own copy keeps the secret values.
        made = PostgresSink.__new__(type(self))
        made.__setstate__(self.__getstate__())
        return made

    def __repr__(self) -> str:
        key = f", key={list(self._key)!r}" if self._key else ""
        added = f", accumulate={dict(self._accumulate)!r}" if self._accumulate else ""
        return f"PostgresSink({self._access.target}, table={self._name!r}{key}{added}, mode={self._mode!r})"

    @property
    def default_name(self) -> str:
        """``postgres-<table>``, as the table was given."""
        return f"postgres-{quote(self._name, safe='')}"

    @property
    def task_imports(self) -> Mapping[str, str]:
        """The way to PostgreSQL."""
        return {"psycopg": "onceforall[postgres]", "onceforall.sinks.postgres": "onceforall[postgres]"}

    @property
    def capabilities(self) -> Capabilities:
        """Two-phase but in the mode ``upsert``; ``update`` needs a key, ``complete`` the mode ``staged``, and neither of them goes with ``accumulate``."""
        modes = {"append"}
        if not self._accumulate:
            modes |= ({"update"} if self._key else set()) | ({"complete"} if self._mode == "staged" else set())
        return Capabilities(
            two_phase=self._mode != "upsert",
            idempotent=self._mode == "upsert",
            output_modes=frozenset(modes),
            # In one transaction the order of the tasks' rows is of no matter: a key that is there twice is refused.
            one_task_per_key=() if self._mode == "staged" else self._key,
            empty_batches=self._output_mode == "complete",
            replaces_by=() if self._accumulate or self._ignore else self._key,
        )

    @property
    def lock_order(self) -> tuple[str, ...]:
        """By database and table: rows stay locked from ``confirm`` (or, in the mode ``prepared``, from a task's end) to the commit."""
        return () if self._mode == "upsert" else ("postgres", self._database, f"{self._root:020}")

    def secrets(self) -> Mapping[str, str]:
        """Return the secret values of the connection; functions go to the tasks as they are."""
        return self._access.secret_values()

    # --- at start ----------------------------------------------------------------------------------------------------------

    def identity(self, start: StartInfo) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return what tells this database from every other one, a copy of it included: the ids of the server's data and of the database.

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
        from onceforall.sinks.postgres import markers
        from onceforall.sinks.postgres.driver import marker_proofs, start_checks

        owner = markers.Owner(self._schema, start.query_id, sink_code(start.sink))

        def look(connection: Connection) -> bool:
            start_checks.check_markers(connection, self._schema)
            return marker_proofs.has_batch(connection, owner, batch)

        return self._at_start(look)

    def _at_start(self, look: Callable[[Connection], T], what: str = "Looking at the database of") -> T:
        from onceforall.sinks.postgres.statements import close_quietly

        connection = self._connect(_AT_START, patience_s=self._retry_for_s)
        try:
            with translated(f"{what} {self._name}"):
                return look(connection)
        finally:
            close_quietly(connection)

    @failpoints.around("postgres.check")
    def check(self, start: StartInfo) -> None:
        """Check server, table, key, rights and the mode's needs; make the sink's own schema and its table of markers where they are missing.

        Raises:
            SinkCheckError: the message names the thing and the statement that mends it.
            SinkUnavailableError: the server is away for longer than ``retry_for_s``.
        """
        from onceforall.sinks.postgres.driver import start_checks
        from onceforall.sinks.postgres.identity import database_of
        from onceforall.sinks.postgres.markers import Owner

        self._output_mode = start.output_mode

        def look(connection: Connection) -> None:
            start_checks.check_server(connection, self._access)
            self._database = database_of(connection)
            start_checks.check_own_schema(connection, Owner(self._schema, start.query_id, sink_code(start.sink)))
            start_checks.warn_of_publications(connection, self._schema, self._mode)
            if self._mode == "prepared":
                start_checks.check_prepared(connection, start.spark, start.query_id, keyed=bool(self._key))
            self._look_up(connection)

        self._at_start(look, "Checking")

    def check_beside(self, start: StartInfo, others: Mapping[str, TwoPhaseCommitSink]) -> None:
        """Refuse what two sinks can't have in one batch: a foreign key between their tables, or one table where one has a key; see module ``driver.other_sinks``.

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
        if beside:
            self._at_start(lambda connection: other_sinks.check(connection, start.sink, self._as_writer(), beside))

    def _as_writer(self) -> Writer:
        from onceforall.sinks.postgres.driver.other_sinks import Writer

        place = self._place if self._table is None else (self._table.schema, self._table.name)
        return Writer(self._mode, bool(self._key), self._output_mode == "complete", self._table, place)

    def _look_up(self, connection: Connection) -> None:
        from onceforall.sinks.postgres.driver import table_checks, table_lookup

        self._table = table_lookup.describe(connection, self._name)
        if self._table is None:
            if not self._create_table:
                raise SinkCheckError(
                    f"There is no table {self._name} in the database of {self._access.target}. Create it, correct table=, or let the sink make it "
                    "with create_table=True."
                )
            self._place = table_lookup.place_of(connection, self._name)
            return
        self._root = table_lookup.root_of(connection, self._table)
        replaces = self._output_mode == "complete"
        table_checks.check_writable(connection, self._table, self._key, ignore=self._ignore, replaces=replaces)

    def columns(self, schema: StructType) -> list[Column]:
        """Return the columns to write, compared with the table's; make the table if it is missing and ``create_table`` says so.

        Raises:
            SchemaError: a column is missing or too many, or its type doesn't fit; see ``postgres_columns``.
            SinkCheckError: there is no such table, or it can't be made.
        """
        from onceforall.sinks.postgres.driver.columns import columns_for

        return columns_for(schema, self._described(schema), self._key, self._accumulate, self._mode)

    def _described(self, schema: StructType) -> Table:
        if self._table is not None:
            return self._table
        from onceforall.sinks.postgres.driver import table_creation
        from onceforall.sinks.postgres.statements import close_quietly

        connection = self._connect(_AT_START, patience_s=self._retry_for_s)
        try:
            self._look_up(connection)
            if self._table is None:
                self._table = table_creation.create(connection, self._name, schema, self._key)
                self._look_up(connection)
        finally:
            close_quietly(connection)
        assert self._table is not None
        return self._table

    def _target(self) -> Target:
        from onceforall.sinks.postgres.merging import Target

        assert self._table is not None, "check() or columns() comes first"
        replaces = self._output_mode == "complete"
        where = self._table.schema, self._table.name
        return Target(*where, self._key, self._ignore, replaces, self._table.oid, self._accumulate)

    # --- in the tasks ------------------------------------------------------------------------------------------------------

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
        connection = self._connect(application, attempt.secrets, patience_s=self._retry_for_s)
        return writing.begin(connection, attempt.name, self._mode, self._schema, target, lock_timeout_s=self._lock_timeout_s)

    @failpoints.around("postgres.invoke")
    def invoke(self, transaction: StagedTransaction, rows: pa.RecordBatch) -> None:
        """Send rows by COPY.

        Raises:
            RefusedRecordError: a value doesn't fit its column.
            AttemptFailedError: the connection is lost; the task is run again.
        """
        from onceforall.sinks.postgres.task import writing

        assert self._table is not None
        writing.copy(transaction, rows, self._table, self._name)

    @failpoints.around("postgres.pre_commit")
    def pre_commit(self, transaction: StagedTransaction) -> Committable | None:
        """Make the rows durable: staged, prepared, or (in the mode ``upsert``) committed.

        Returns:
            ``name``, ``kind`` (the mode), ``count`` of rows, ``staging_schema``, ``database`` and ``target``; None in the mode ``upsert``.

        Raises:
            RefusedRecordError: the table refuses a row (in the mode ``staged`` it is ``confirm`` that finds it).
            AttemptFailedError: the server can't keep the rows.
        """
        from onceforall.sinks.postgres.task import writing

        return writing.pre_commit(transaction, self._mode, self._name)

    @failpoints.around("postgres.discard")
    def discard(self, transaction: StagedTransaction) -> None:
        """Give up an attempt. What it has made durable already, a sweep finds."""
        if not transaction.is_over:
            transaction.close()

    def _connect(
        self, application_name: str, secrets: Mapping[str, str] | None = None, *, patience_s: float = 0.0
    ) -> Connection:
        settings = {**_KEEPALIVE, "lock_timeout": f"{int(self._lock_timeout_s * 1000)}ms"}
        connection = self._access.connect(
            secrets, application_name=application_name, autocommit=True, patience_s=patience_s, settings=settings
        )
        return self._stoppable.opened(connection)

    # --- on the driver -----------------------------------------------------------------------------------------------------

    def begin_batch(self, batch: BatchAttempt) -> None:
        """Wait for this query's turn at the table, where tasks write by key in the mode ``prepared``; see module ``driver.table_turns``.

        Raises:
            SinkUnavailableError: the server was away for longer than ``retry_for_s``.
        """
        if self._mode != "prepared" or not self._key or self._table is None:
            return
        from onceforall.sinks.postgres.driver.table_turns import Turn
        from onceforall.sinks.postgres.statements import patiently

        turn = self._turn = self._turn or Turn(self._connect, self._root, self._table.shown, self._lock_timeout_s)
        patiently(
            lambda: turn.take(batch.query_id, batch.generation, self._stoppable),
            self._retry_for_s,
            f"Waiting for the turn at {self._table.shown}",
            self._stoppable,
        )

    def end_batch(self, batch: BatchAttempt) -> None:  # noqa: ARG002
        """Let the next query go on."""
        if self._turn is not None:
            self._turn.release()

    def stop_waiting(self) -> None:
        """End what ``begin_batch`` or ``confirm`` waits for: a lock that others keep, or a server without an answer."""
        self._stoppable.end()

    @failpoints.around("postgres.confirm")
    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """Exhaust every reason to refuse: merge what is staged and hold the transaction, or see that all prepared transactions are there.

        Returns:
            The committables, with ``identity`` and ``markers`` (the object id of that table) on the first one.

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
                    self._connect, self._schema, self._lock_timeout_s, self._retry_for_s, self._stoppable
                )
            return self._committer

    @failpoints.around("postgres.commit")
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Commit what was confirmed; see the modules ``driver.staged``, ``driver.prepared`` and ``driver.committing``.

        Raises:
            SinkUnavailableError: no answer yet, or something in the database is in the way; the message says what.
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
        """Remove every staging table and prepared transaction that the sweep covers, and return how many.

        Raises:
            SinkUnavailableError: not all could be looked at, or removed.
        """
        return self._own_committer().recover(sweep)

    def close(self) -> None:
        """Close the driver's connections; what is held and not decided is rolled back. The next call opens new ones."""
        with self._lock:
            committer = self._committer
            turn, self._turn = self._turn, None
        if committer is not None:
            committer.close()
        if turn is not None:
            turn.close()


__all__ = ["PostgresSink"]
