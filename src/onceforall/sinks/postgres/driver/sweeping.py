"""What an attempt left behind that nobody decided, in whatever mode it wrote: found and removed.

Staging tables and prepared transactions are ours only if all of this holds: they belong to our own
role, in our own database; they lie in the sink's schema, under an identifier that fits the name in
their comment (a prepared transaction: its id is such a name); and the name, read as a whole, is one
that ``Sweep.covers_name`` covers. Nothing else is touched, or waited for. A prepared transaction of
such a name that another role has prepared is told of: the role of a query may have been changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from onceforall.common import logs
from onceforall.errors import SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.names import sink_code
from onceforall.sink import Sweep
from onceforall.sinks.postgres import staging, stale_connections
from onceforall.sinks.postgres.driver import fencing
from onceforall.sinks.postgres.names import parsed, whose_code
from onceforall.sinks.postgres.prepared_transactions import (
    how_to_roll_back,
    others_gids,
    own_gids,
    roll_back_prepared,
)
from onceforall.sinks.postgres.statements import Connection, set_lock_timeout, transaction

_log = logs.logger("onceforall.sinks.postgres")

_WAIT_S = 1.5
_ATTEMPTS = 3


def sweep_all(connection: Connection, sweep: Sweep, schema: str) -> int:
    """End what earlier generations still do, and remove everything that the sweep covers; return
    how many tables and transactions.

    Raises:
        psycopg.Error, SinkUnavailableError: not all could be looked at, or removed.
    """
    # A sink that was renamed finds under its earlier name what a frozen run keeps locked.
    codes = {sink_code(sweep.sink), *(code for _, code in _covered(connection, sweep, schema))}
    fencing.fence_out(connection, schema, sweep.query_id, codes, sweep.generation)
    failpoints.hit("postgres.recover.ended")
    count = 0
    for gid in own_gids(connection):
        if sweep.covers_name(gid):
            count += roll_back_prepared(connection, gid)
            failpoints.hit("postgres.recover.rolled_back")
        elif sweep.may_be_decided(gid):
            _log.warning(
                "The prepared transaction %s is of another sink, and of a batch that is decided "
                "for it by the commit log. That sink's own sweep removes it if the database isn't "
                "behind the log. If that sink is gone, see whether its table has the rows; then "
                "commit it or roll it back",
                gid,
            )
    for gid, role in others_gids(connection):
        if sweep.covers_name(gid):
            _log.warning(
                "The prepared transaction %s was never decided, and only the role %s that prepared "
                "it may roll it back; until then it keeps its rows locked. %s",
                gid, role, how_to_roll_back(gid, role),
            )  # fmt: skip
    # Looked for again: until its connection was ended, a task may have staged something.
    covered = _covered(connection, sweep, schema)
    for table, code in covered:
        owner = whose_code(sweep.query_id, code)
        _drop(connection, schema, table, owner, sweep.generation)
        failpoints.hit("postgres.recover.dropped")
    return count + len(covered)


def _covered(connection: Connection, sweep: Sweep, schema: str) -> list[tuple[str, str]]:
    """Return the staging tables that a sweep covers, each with its sink's code."""
    return [
        (each.table, parsed(each.name).sink_code)
        for each in staging.find(connection, schema)
        if each.name and sweep.covers_name(each.name)
    ]


def remove_named(connection: Connection, schema: str, names: Sequence[str]) -> None:
    """Roll back the prepared transactions of these names, and drop their staging tables, if they
    are there and ours.

    Raises:
        SinkUnavailableError: somebody keeps a staging table locked.
    """
    for gid in set(own_gids(connection)) & set(names):
        roll_back_prepared(connection, gid)
        failpoints.hit("postgres.remove.rolled_back")
    with transaction(connection):
        left = staging.drop_named(connection, schema, names, _WAIT_S)
    failpoints.hit("postgres.remove.dropped")
    if left:
        raise SinkUnavailableError(f"{staging.kept_locked(connection, schema, left)}.")


def _drop(connection: Connection, schema: str, table: str, owner: str, generation: int) -> None:
    set_lock_timeout(connection, _WAIT_S)
    for attempt in range(_ATTEMPTS):
        try:
            staging.drop(connection, schema, [table])
        except psycopg.errors.LockNotAvailable as error:  # noqa: PERF203
            if attempt == _ATTEMPTS - 1:
                raise SinkUnavailableError(
                    f"{staging.kept_locked(connection, schema, [table])}."
                ) from error
            stale_connections.end_silent_merges(connection, owner, generation - 1)
        else:
            return
