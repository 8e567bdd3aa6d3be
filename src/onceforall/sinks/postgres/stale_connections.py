"""How connections of ours that somebody left behind are ended, so that nobody waits for their locks
for ever.

A driver that is frozen, or whose machine is gone, may leave a transaction open that has the marker
row locked, staging tables and rows of the target. Whoever needs those locks waits for a moment and
then ends such connections with ``pg_terminate_backend``. That can't do harm in any state the other
one may be in. The server ends a connection only where its transaction is either whole or without
effect:

- *It merges, and nobody has decided.* Its generation is sealed (whoever calls this is a later one,
  or the same run, which lost that connection), so nobody will. The transaction is rolled back,
  which is what becomes of it anyway.
- *It is decided, and its COMMIT was not sent, or not received yet.* It is rolled back; the staging
  tables, which it had dropped, are there again, and the one who waits merges them itself. The late
  COMMIT finds no connection; its sender looks at the marker.
- *Its COMMIT is being executed.* It is complete or it isn't, and the marker row, which the same
  transaction moves, says so.

Only connections of our own login in our own database whose ``application_name`` is read as a whole
as one of this query and sink are ended. Of those that merge, only those whose client has been
silent within its transaction for a second: a live one merges without pauses, and two that live
don't end one another again and again. A task's is ended in any state, when its generation is sealed
or a later attempt of the same task has begun: nothing of it can be decided any more.

A login may be another role than the one it works as (``ALTER ROLE … SET role``, as stores of
short-lived credentials have it). Connections belong to the login, which alone may see and end them.
Those of *another* login of the same role can't be ended; whoever needs their locks says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psycopg import sql

from onceforall.protocol.names import TransactionName
from onceforall.sinks.postgres.names import query_connections, task_digest, whose_code
from onceforall.sinks.postgres.statements import Connection

if TYPE_CHECKING:
    from typing_extensions import LiteralString

SILENT_S = 1.0
_ENDS_WITHIN_MS = 5000

_OURS = (
    "usename OPERATOR(pg_catalog.=) session_user AND datname OPERATOR(pg_catalog.=) "
    "pg_catalog.current_database() "
    "AND pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()"
)

_OLDER: LiteralString = (
    "pg_catalog.substring(application_name, %s)::bigint OPERATOR(pg_catalog.<) %s"
)


def end_silent_merges(connection: Connection, owner: str, up_to_generation: int) -> int:
    """End the drivers' connections of a generation up to this one that keep a transaction open in
    silence; return how many.

    Args:
        connection: ours.
        owner: of ``names.whose``.
        up_to_generation: the last generation whose connections are ended.
    """
    condition = (
        "state OPERATOR(pg_catalog.~~) 'idle in transaction%%' AND state_change "
        "OPERATOR(pg_catalog.<) "
        "(pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(secs => "
        "%s)) "
        "AND pg_catalog.substring(application_name, %s)::bigint OPERATOR(pg_catalog.<=) %s"
    )
    return _end(
        connection, condition, [SILENT_S, f"^ofa-m-{owner}-([0-9]{{1,18}})$", up_to_generation]
    )


def end_older_tasks(connection: Connection, owner: str, below_generation: int) -> int:
    """End the connections of all tasks of earlier generations; return how many."""
    pattern = f"^ofa-t-{owner}-([0-9]{{1,18}})-[0-9a-f]{{12}}-[0-9]+$"
    return _end(connection, _OLDER, [pattern, below_generation])


def end_older_turns(connection: Connection, query_id: str, below_generation: int) -> int:
    """End the connections by which drivers of earlier generations keep their turn at a table
    (module ``driver.table_turns``); return how many.
    """
    return _end(connection, _OLDER, [query_connections(query_id), below_generation])


def end_earlier_attempts(connection: Connection, name: TransactionName) -> int:
    """End the connections of earlier attempts of one's own task, in one's own generation; return
    how many.
    """
    owner = whose_code(name.query_id, name.sink_code)
    pattern = f"^ofa-t-{owner}-{name.generation}-{task_digest(name)}-([0-9]{{1,18}})$"
    return _end(connection, _OLDER, [pattern, name.slot])


def _end(connection: Connection, condition: LiteralString, values: Sequence[object]) -> int:
    row = connection.execute(
        "SELECT current_user::pg_catalog.text, current_user OPERATOR(pg_catalog.<>) session_user"
    ).fetchone()
    assert row is not None
    role, is_another = row
    query = sql.SQL(
        "SELECT pg_catalog.pg_terminate_backend(pid, {}) FROM pg_catalog.pg_stat_activity WHERE "
        "{} AND {}"
    ).format(sql.Literal(_ENDS_WITHIN_MS), sql.SQL(_OURS), sql.SQL(condition))
    if not is_another:
        return _ended(connection.execute(query, values).fetchall())
    connection.execute("SET ROLE NONE")
    ended = _ended(connection.execute(query, values).fetchall())
    # After an error the connection is of no more use to anybody, whichever role it has.
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    return ended


def _ended(told: Sequence[tuple[bool]]) -> int:
    # One that waits for a disk, say, is told to end and doesn't: whoever counted it would try again
    # for ever.
    return sum(is_ended for (is_ended,) in told)
