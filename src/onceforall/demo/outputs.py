"""What each writer leaves in the three sinks: where it is, how its rows are read back, and what
should not be there any more.

Rows are read as anybody would read them: the topic at ``read_committed``, the folder of files by
its manifests (that of Spark, which has none, as pyarrow reads a folder), the table with SELECT.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceforall.demo import observe
from onceforall.demo.flights import PARTITIONS
from onceforall.demo.truth import Record
from onceforall.errors import MissingExtraError, SinkUnavailableError

if TYPE_CHECKING:
    import psycopg
    import pyarrow.dataset as ds

    from onceforall.sinks.files import CommittedFiles

SINKS = ("kafka", "files", "postgres")
# All tables that aren't a user's but for the one of markers, which stays.
_COUNT_STAGING = (
    "SELECT pg_catalog.count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
    "ON n.oid OPERATOR(pg_catalog.=) c.relnamespace "
    "WHERE c.relkind OPERATOR(pg_catalog.=) ANY(ARRAY['r', 'p']::\"char\"[]) "
    "AND n.nspname OPERATOR(pg_catalog.=) 'onceforall' "
    "AND c.relname OPERATOR(pg_catalog.<>) 'markers'"
)
_READ_ROWS = 20_000


@dataclass(frozen=True)
class Output:
    """Where one writer puts the rows of one query.

    Attributes:
        bootstrap_servers: of the broker.
        topic: on it.
        folder: of files.
        has_manifests: whether whole batches can be told from parts there.
        database: URL of the database, with its password.
        table: in it.
    """

    bootstrap_servers: str
    topic: str
    folder: Path
    has_manifests: bool
    database: str = field(repr=False)
    table: str

    def records(self, sink: str) -> Iterable[Record]:
        """Return all rows that a reader of one of `SINKS` finds.

        Raises:
            SinkUnavailableError: the broker or the server does not answer.
            MissingExtraError: a package of the extra ``demo`` is not installed.
        """
        if sink == "kafka":
            values = observe.read_values(self.bootstrap_servers, self.topic, PARTITIONS)
            return map(kafka_record, values)
        return _file_records(self) if sink == "files" else _table_records(self.database, self.table)


def output_of(
    writer: str, query: str, *, bootstrap_servers: str, database: str, work_dir: Path
) -> Output:
    """Return where a writer puts the rows of a query.

    Args:
        writer: ``onceforall`` or ``spark``.
        query: ``events`` or ``windows``.
        bootstrap_servers: of the broker.
        database: URL of the writer's own database.
        work_dir: its own folder.
    """
    has_manifests = writer == "onceforall"
    return Output(
        bootstrap_servers,
        f"{writer}-{query}",
        work_dir / "files" / query,
        has_manifests,
        database,
        query,
    )


@dataclass(frozen=True)
class Leftovers:
    """What should not be there when a run has ended; all are numbers.

    Attributes:
        hidden_partitions: of the topics, in which an open transaction hides records.
        prepared_transactions: in the database.
        staging_tables: in the database.
        temp_files: files below the folders that belong to no committed batch.
    """

    hidden_partitions: int = 0
    prepared_transactions: int = 0
    staging_tables: int = 0
    temp_files: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers for the report."""
        return asdict(self)


def leftovers(outputs: Iterable[Output]) -> Leftovers:
    """Count what is left of one writer, in all its outputs; they share one database.

    Raises:
        SinkUnavailableError: the server does not answer.
        MissingExtraError: a package of the extra ``demo`` is not installed.
    """
    each = list(outputs)
    hidden = sum(
        len(observe.hidden_partitions(one.bootstrap_servers, one.topic, PARTITIONS)) for one in each
    )
    with connected(each[0].database) as connection:
        prepared = _number(
            connection,
            "SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_xacts WHERE database "
            "OPERATOR(pg_catalog.=) pg_catalog.current_database()",
        )
        staging = _number(connection, _COUNT_STAGING)
    return Leftovers(hidden, prepared, staging, sum(len(stray_files(one)) for one in each))


def stray_files(output: Output) -> list[Path]:
    """Return the files below an output's folder that no reader takes: temp files, and data files
    that no manifest names.
    """
    found = [path for path in output.folder.rglob("*") if path.is_file()]
    if output.has_manifests:
        known = {Path(path) for path in data_files(output)}
        return [
            path
            for path in found
            if path not in known and not _is_kept(path.relative_to(output.folder).parts)
        ]
    return [
        path
        for path in found
        if any(part.startswith("_temporary") for part in path.relative_to(output.folder).parts)
    ]


def _is_kept(parts: tuple[str, ...]) -> bool:
    """Tell whether a file is one of manifests, or another one that onceforall keeps in its own
    folder.
    """
    return parts[0] == "_onceforall" and parts[1] != "staging" and not parts[-1].endswith(".tmp")


def data_files(output: Output) -> list[str]:
    """Return the files that a reader of the folder takes now, by their absolute paths."""
    if output.has_manifests:
        return [] if (found := _committed(output)) is None else found.paths
    # Folders come and go while Spark commits; walk passes over those that are gone.
    walked = ((folder, name) for folder, _, names in os.walk(output.folder) for name in names)
    return [
        str(Path(folder, name))
        for folder, name in walked
        if name.endswith(".parquet") and "/_" not in f"{folder}/{name}"
    ]


def connected(database: str) -> psycopg.Connection[Any]:
    """Connect to a database; each statement is a transaction of its own.

    Raises:
        SinkUnavailableError: it does not answer.
        MissingExtraError: psycopg is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("psycopg", "demo") from error
    try:
        connection: psycopg.Connection[Any] = psycopg.connect(database, autocommit=True)
    except psycopg.OperationalError as error:
        raise SinkUnavailableError(
            f"PostgreSQL does not answer: {error}. See its server.log (with --keep it stays), and "
            "start the demo again."
        ) from error
    return connection


def kafka_record(value: bytes) -> Record:
    """Read the value of a Kafka record."""
    try:
        row = json.loads(value)
    except ValueError:
        return Record(None, None)
    return as_record(row) if isinstance(row, dict) else Record(None, row)


def as_record(fields: Mapping[str, Any]) -> Record:
    """Make a record of a row's fields: moments in UTC and days as texts, fields without a value
    left out.
    """
    row = {
        name: _plain(value)
        for name, value in fields.items()
        if value is not None and name != "batch"
    }
    batch = fields.get("batch")
    return Record(batch if isinstance(batch, int) else None, row)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        # Seconds stay where there are any, and then differ from every expected row.
        return value.astimezone(timezone.utc).isoformat().removesuffix("+00:00").removesuffix(":00")
    return value.isoformat() if isinstance(value, date) else value


def _file_records(output: Output) -> Iterator[Record]:
    dataset = _dataset(output)
    if dataset is not None:
        for batch in dataset.to_batches():
            yield from map(as_record, batch.to_pylist())


def _dataset(output: Output) -> ds.Dataset | None:
    import pyarrow as pa
    import pyarrow.dataset as ds

    if output.has_manifests:
        return None if (found := _committed(output)) is None else found.dataset()
    if not data_files(output):
        return None
    day = ds.partitioning(pa.schema([("day", pa.date32())]), flavor="hive")
    return ds.dataset(output.folder, format="parquet", partitioning=day)


def _committed(output: Output) -> CommittedFiles | None:
    """Return what the manifests name; None: nothing was written there yet."""
    from onceforall.sinks.files import read_files

    return read_files(output.folder) if (output.folder / "_onceforall").is_dir() else None


def _table_records(database: str, table: str) -> Iterator[Record]:
    from psycopg import errors, sql
    from psycopg.rows import dict_row

    with (
        connected(database) as connection,
        connection.transaction(),
        connection.cursor("rows", row_factory=dict_row) as cursor,
    ):
        cursor.itersize = _READ_ROWS
        try:
            cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        except errors.UndefinedTable:
            return
        yield from map(as_record, cursor)


def _number(connection: psycopg.Connection[Any], query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return 0 if row is None else int(row[0])
