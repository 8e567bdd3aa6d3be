"""What is looked at before any data moves: rights, and what a mode needs of the server and of
Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from onceforall.common import logs
from onceforall.common.sessions import default_parallelism, is_speculative
from onceforall.errors import SinkCheckError
from onceforall.sinks.postgres import markers
from onceforall.sinks.postgres.connections import Access
from onceforall.sinks.postgres.driver import marker_proofs, marker_table, own_tables
from onceforall.sinks.postgres.names import parse_gid
from onceforall.sinks.postgres.statements import Connection
from onceforall.sinks.postgres.table_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logs.logger("onceforall.sinks.postgres")

_WITH_PUBLISHED_SCHEMAS = 150_000


def check_server(connection: Connection, access: Access) -> None:
    """Log what the server or the connection has that is allowed and unwise: for the driver, once
    per start.

    Raises:
        SinkCheckError: foreign keys and triggers don't hold in sessions of this role.
    """
    row = connection.execute(
        "SELECT pg_catalog.current_setting('fsync'), "
        "pg_catalog.current_setting('full_page_writes'), pg_catalog.pg_backend_pid(), "
        "pg_catalog.current_setting('server_encoding'), "
        "pg_catalog.current_setting('track_activities'), "
        "pg_catalog.current_setting('session_replication_role'), "
        "pg_catalog.quote_ident(current_user)"
    ).fetchone()
    assert row is not None
    if row[5] == "replica":
        raise SinkCheckError(
            f"Sessions of the role {row[6]} have session_replication_role=replica, with which "
            "PostgreSQL skips foreign keys and triggers in silence, and the role may not change "
            f"it. Let an administrator say: ALTER ROLE {row[6]} SET session_replication_role = "
            "origin; or take that default from the database or the server."
        )
    if row[3] != "UTF8":
        _log.warning(
            "The database of PostgreSQL at %s has the encoding %s and not UTF8: %s. Make the "
            "database with ENCODING 'UTF8'.",
            access.target,
            row[3],
            "it keeps bytes and knows no characters, so lengths are bytes, and letters have no case"
            if row[3] == "SQL_ASCII"
            else "a batch with a character that it lacks is refused, and some characters may be "
            "stored as other ones",
        )
    for name, value in zip(("fsync", "full_page_writes"), row, strict=False):
        if value == "off":
            _log.warning(
                "PostgreSQL at %s runs with %s=off: what it committed may be lost when its "
                "machine fails. Turn it on.",
                access.target,
                name,
            )
    if row[4] == "off":
        _log.warning(
            "PostgreSQL at %s runs with track_activities=off for this role: nobody can tell that a "
            "driver which froze holds locks and does nothing, so its successor can't end its "
            "session, and waits for it. ALTER ROLE … SET track_activities = on.",
            access.target,
        )
    if row[2] != connection.info.backend_pid:
        _log.warning(
            "Between this program and PostgreSQL at %s stands a pooler. It must keep a session "
            "for one client (PgBouncer: pool_mode=session): "
            "transactions and settings of the sink belong to its session. Best connect to the "
            "server itself.",
            access.target,
        )
    if not connection.pgconn.ssl_in_use and not _is_local(connection):
        _log.warning(
            "The connection to PostgreSQL at %s is not encrypted. Give sslmode=verify-full and "
            "sslrootcert=.",
            access.target,
        )


def _is_local(connection: Connection) -> bool:
    address = connection.info.hostaddr
    return not address or address.startswith("127.") or address == "::1"


def check_own_schema(connection: Connection, owner: markers.Owner) -> None:
    """See that staging tables and markers can be made, and make the table of markers where it is
    missing.

    Args:
        connection: ours.
        owner: whose markers; without a query id where there is none yet.

    Raises:
        SinkCheckError: naming the right that the role lacks, what the table has that we don't make,
            or where the markers of this query are instead.
    """
    schema = owner.schema
    found = check_markers(connection, schema)
    if owner.query_id and (found is None or found.is_readable):
        _check_not_moved(connection, owner)
    try:
        marker_table.create(connection, schema)
    except psycopg.errors.InsufficientPrivilege as error:
        raise SinkCheckError(_no_schema(connection, schema)) from error
    # Whoever made it: somebody may have been faster.
    own_tables.warn_of_strangers(check_markers(connection, schema), marker_table.FORM)
    check_rights(connection, schema)


def check_rights(connection: Connection, schema: str) -> None:
    """See that the role may use the sink's own schema and its table of markers, as far as they are
    there.

    Raises:
        SinkCheckError: naming the right that it lacks.
    """
    row = connection.execute(
        "SELECT pg_catalog.has_schema_privilege(oid, 'CREATE') AND "
        "pg_catalog.has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace "
        "WHERE nspname OPERATOR(pg_catalog.=) %s",
        [schema],
    ).fetchone()
    if row is None:
        return
    if not row[0]:
        raise SinkCheckError(_no_schema(connection, schema))
    if not marker_table.exists(connection, schema):
        return
    missing = _missing_rights(
        connection, schema, markers.TABLE, ["SELECT", "INSERT", "UPDATE", "DELETE"]
    )
    if missing:
        raise SinkCheckError(
            f"The role {_role(connection)} may not use the table of markers, which another role "
            "made. Let its owner say: "
            f"GRANT {', '.join(missing)} ON {quoted(schema)}.{markers.TABLE} TO "
            f"{quoted(_role(connection))};"
        )


def check_markers(connection: Connection, schema: str) -> own_tables.Found | None:
    """See that the table of markers, where it is there, runs nobody's code.

    Raises:
        SinkCheckError: naming what it has that we don't make.
    """
    return own_tables.check(connection, marker_table.FORM, schema)


def _check_not_moved(connection: Connection, owner: markers.Owner) -> None:
    # Before anything is made: the schema couldn't be given its name back then.
    places = (
        []
        if marker_proofs.has_any(connection, owner)
        else marker_proofs.places_of(connection, owner, -1)
    )
    if places:
        raise SinkCheckError(
            f"The schema {owner.schema} has no markers of this query and sink, and "
            f"{', '.join(places)} has: it was renamed, or moved, or staging_schema= was changed. "
            "What the markers say proves which batches are complete, so nothing is made or "
            f"written without them. Name their schema again (ALTER SCHEMA {quoted(places[0])} "
            f"RENAME TO {quoted(owner.schema)}, or staging_schema={places[0]!r}); or take them "
            "along, as docs/changing.md has it. What was made under the old name since is in the "
            "way of it: rename it first, and drop nothing, for it may be another query's."
        )


def warn_of_ignored_updates(table: str) -> None:
    """Tell that the first value of each key stays, where Spark gives its later ones, too."""
    _log.warning(
        "on_conflict='ignore' with the output mode update: of each key the table %s keeps the "
        "first row that ever comes, and drops every later one, such as the next count of an "
        "aggregation. If that is not meant, use on_conflict='update'; if it is, the output mode "
        "append says so.",
        table,
    )


def warn_of_publications(connection: Connection, schema: str, mode: str) -> None:
    """Tell when logical replication publishes the sink's own tables: a subscriber that lacks them
    stops at the first batch, and stays so.

    A warning and no error: other consumers of a publication, such as change data capture, only get
    what they don't want.
    """
    rows = connection.execute(
        "SELECT pubname::pg_catalog.text FROM pg_catalog.pg_publication WHERE puballtables"
    ).fetchall()
    if connection.info.server_version >= _WITH_PUBLISHED_SCHEMAS:
        of_schema = (
            "SELECT p.pubname::pg_catalog.text FROM pg_catalog.pg_publication p JOIN "
            "pg_catalog.pg_publication_namespace s "
            "ON s.pnpubid OPERATOR(pg_catalog.=) p.oid JOIN pg_catalog.pg_namespace n ON n.oid "
            "OPERATOR(pg_catalog.=) s.pnnspid "
            "WHERE n.nspname OPERATOR(pg_catalog.=) %s"
        )
        rows += connection.execute(of_schema, [schema]).fetchall()
    names = sorted({str(name) for (name,) in rows})
    if not names:
        return
    what = (
        "also the staging tables and the table of markers"
        if mode == "staged"
        else "also the table of markers (staging tables are unlogged here)"
    )
    _log.warning(
        "The publication %s publishes %s in the schema %s. A subscriber of PostgreSQL's logical "
        "replication that lacks them stops at the first batch, "
        "and stays so. Publish the tables or schemas that are meant (CREATE PUBLICATION … FOR "
        "TABLES IN SCHEMA …, without %s)%s.",
        ", ".join(names), what, schema, schema,
        ", or use mode='prepared' and make the table of markers on the subscriber" if mode == "staged" else ", or make that table on the subscriber",  # noqa: E501
    )  # fmt: skip


_ANOTHER_SCHEMA = " or name another schema with staging_schema=."


def _no_schema(connection: Connection, schema: str) -> str:
    role = _role(connection)
    known = connection.execute(
        "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) %s", [schema]
    ).fetchone()
    if known is None:
        return (
            f"The role {role} may not make the schema {schema}, in which the sink keeps staging "
            "tables and markers. Let an administrator say: "
            f"CREATE SCHEMA {quoted(schema)} AUTHORIZATION {quoted(role)}; or name another one "
            "with "
            "staging_schema=."
        )
    return (
        f"The role {role} may not make tables in the schema {schema}, in which the sink keeps "
        "staging tables and markers. Let its owner say: "
        f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {quoted(role)};"
        # The markers there say which batches are complete.
        f"{'' if marker_table.exists(connection, schema) else _ANOTHER_SCHEMA}"
    )


def _missing_rights(
    connection: Connection, schema: str, table: str, needed: list[str]
) -> list[str]:
    name = sql.Identifier(schema, table).as_string(connection)
    missing = []
    for right in needed:
        row = connection.execute(
            "SELECT pg_catalog.has_table_privilege(%s, %s)", [name, right]
        ).fetchone()
        if row is None or not row[0]:
            missing.append(right)
    return missing


def _role(connection: Connection) -> str:
    row = connection.execute("SELECT current_user::pg_catalog.text").fetchone()
    assert row is not None
    return str(row[0])


def check_prepared(
    connection: Connection, spark: SparkSession | None, query_id: str, *, keyed: bool
) -> None:
    """See that the server can prepare as many transactions as a batch will have tasks, as far as
    that can be known.

    Raises:
        SinkCheckError: it can't, with the number that is needed; or Spark runs speculative
            attempts.
    """
    if spark is not None and is_speculative(spark):
        raise SinkCheckError(
            "mode='prepared' can't be used with spark.speculation=true: two live attempts of one "
            "task would wait for each other's rows, "
            "for a prepared transaction keeps its locks. Turn speculation off, or use "
            "mode='staged'."
        )
    row = connection.execute(
        "SELECT pg_catalog.current_setting('max_prepared_transactions')::int"
    ).fetchone()
    # Of those with a name of this query's, a sweep removes what this role has prepared in this
    # database. The number that the server allows is one for all.
    gids = connection.execute(
        "SELECT gid, owner OPERATOR(pg_catalog.=) current_user AND database "
        "OPERATOR(pg_catalog.=) pg_catalog.current_database() FROM pg_catalog.pg_prepared_xacts"
    ).fetchall()
    allowed = 0 if row is None else int(row[0])
    foreign = len(
        [gid for gid, is_in_reach in gids if not is_in_reach or not parse_gid(str(gid), query_id)]
    )
    tasks = _tasks(spark, keyed=keyed)
    if allowed < tasks + foreign:
        raise SinkCheckError(
            f"mode='prepared' needs max_prepared_transactions of at least {tasks + foreign} "
            f"({tasks} for the tasks of a batch, {foreign} are in use by "
            f"others), and the server has {allowed}. Set it in postgresql.conf (ALTER SYSTEM SET "
            f"max_prepared_transactions = {2 * tasks + foreign}) "
            "and restart the server, run fewer tasks, or use mode='staged', which needs no setting."
        )


def _tasks(spark: SparkSession | None, *, keyed: bool) -> int:
    if spark is None:
        return 1
    if keyed:
        # The rows are shuffled by the key, into so many tasks at the most.
        return int(str(spark.conf.get("spark.sql.shuffle.partitions", "200")))
    return default_parallelism(spark)
