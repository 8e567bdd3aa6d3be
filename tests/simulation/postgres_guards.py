"""The PostgreSQL sink with one guard broken: ``test_simulated_postgres`` says which of these the
schedules on a real server find.
"""

from __future__ import annotations

from onceforall.sinks.postgres import markers, prepared_transactions, stale_connections
from onceforall.sinks.postgres.driver import committing, fencing, prepared, staged, sweeping
from onceforall.sinks.postgres.task import prepared as task_prepared
from onceforall.sinks.postgres.task import staged as task_staged
from onceforall.sinks.postgres.task import upsert
from simulation.guards import Guard

PREPARED, STAGED, UPSERT = ("prepared",), ("staged",), ("upsert",)

# The two halves of ``confirm``, in this order.
_CLOSES = """\
    with locked(connection, batch.owner, batch.generation, batch.batch, shared=False):
        if not markers.raise_to(
            connection, batch.owner, markers.CONFIRMED, Marker(batch.batch, batch.generation)
        ):
            raise AttemptFailedError(
                f"A later run of this query has confirmed batch {batch.batch} or a later one. "
                "Stop this run."
            )
    failpoints.hit("postgres.confirm.closed")
"""
_LOOKS = """\
    gone = sorted(set(batch.names) - set(own_gids(connection)))
"""

GUARDS = [
    # --- locks ------------------------------------------------------------------------------------
    Guard(
        "nobody takes the lock between attempts and confirm",
        prepared_transactions,
        "locked",
        'connection.execute(f"SELECT pg_catalog.pg_advisory_lock{kind}(%s)".encode(), number)',
        "pass",
        kinds=PREPARED,
    ),
    Guard(
        "confirm shares its lock with late attempts",
        prepared_transactions,
        "locked",
        'kind = "_shared" if shared else ""',
        'kind = "_shared"',
        kinds=PREPARED,
    ),
    Guard(
        "upsert: the last look at the marker locks nothing",
        upsert,
        "pre_commit",
        '_current(transaction.connection, owner, " FOR SHARE")',
        "_current(transaction.connection, owner)",
        kinds=UPSERT,
        why="whoever writes the same keys waits for the row's lock; others stay in either order",
    ),
    # --- what is looked at under them -------------------------------------------------------------
    Guard(
        "confirm looks for what is prepared before it closes the batch",
        prepared,
        "confirm",
        _CLOSES + _LOOKS,
        _LOOKS + _CLOSES,
        kinds=PREPARED,
    ),
    Guard(
        "confirm doesn't close the batch for late attempts",
        prepared,
        "confirm",
        "if not markers.raise_to(\n"
        "            connection, batch.owner, markers.CONFIRMED, Marker(batch.batch, "
        "batch.generation)\n        ):",
        "if False:",
        kinds=PREPARED,
    ),
    Guard(
        "confirm doesn't look for what is prepared",
        prepared,
        "confirm",
        "if gone:",
        "if False:",
        kinds=PREPARED,
    ),
    Guard(
        "a late attempt doesn't ask what was confirmed",
        task_prepared,
        "_roll_back_predecessor",
        "if confirmed is not None and",
        "if False and",
        kinds=PREPARED,
    ),
    Guard(
        "an attempt rolls back later ones of its task",
        task_prepared,
        "_is_predecessor",
        "return same_task and (other.generation, other.incarnation, other.slot) < (",
        "return same_task and (other.generation, other.incarnation, other.slot) != (",
        kinds=PREPARED,
        why="the one that is rolled back is found gone by confirm, or closes the batch before",
    ),
    Guard(
        "a transaction is prepared without its marker",
        task_prepared,
        "pre_commit",
        "_put_marker(connection, owner, transaction.name, own)",
        "pass",
        kinds=PREPARED,
    ),
    Guard(
        "the marker of one transaction counts for the batch",
        task_prepared,
        "_put_marker",
        "Marker(own.batch, own.generation, markers.PART)",
        "Marker(own.batch, own.generation)",
        kinds=PREPARED,
    ),
    Guard(
        "a batch is marked as complete when some of it is lost",
        prepared,
        "commit",
        "if are_all and not report.lost and not report.in_doubt:",
        "if are_all:",
        kinds=PREPARED,
        why="nothing is lost behind a decision on a server that forgets nothing",
    ),
    Guard(
        "what is gone is lost, whatever the markers say",
        prepared,
        "_with_proofs",
        "committed = marker_proofs.present(connection, batch.owner, names)",
        "committed = set()",
        kinds=PREPARED,
    ),
    Guard(
        "a marker moves back",
        markers,
        "advance",
        '"WHERE m.batch::pg_catalog.int8 "\n'
        '            "OPERATOR(pg_catalog.<) EXCLUDED.batch::pg_catalog.int8"',
        '""',
        kinds=STAGED,
    ),
    Guard(
        "a merge is not told by the marker",
        staged.Merger,
        "_merge_again",
        "if not self._advance(connection, batch):",
        "if not self._advance(connection, batch) and False:",
        kinds=STAGED,
    ),
    Guard(
        "the answer to COMMIT is believed lost, and the rows are lost with it",
        staged.Merger,
        "_commit_held",
        'return status == "COMMIT"',
        "return True",
        kinds=STAGED,
        why="any other answer is a server's that gave up the transaction; none of the faults",
    ),
    Guard(
        "a lost answer to COMMIT is taken for one",
        staged.Merger,
        "_commit_held",
        "words(error))\n        return False",
        "words(error))\n        return True",
        kinds=STAGED,
    ),
    Guard(
        "confirm merges, and doesn't hold the transaction",
        staged.Merger,
        "confirm",
        "self.held = Held(connection, frozenset(batch.names), tuple(left))",
        'connection.execute("COMMIT"); self.held = Held(connection, frozenset(batch.names), '
        "tuple(left))",
        kinds=STAGED,
    ),
    Guard(
        "confirm doesn't count the rows",
        staged.Merger,
        "_checked",
        "if counted[staged.table] != staged.rows:",
        "if False:",
        kinds=STAGED,
        why="nobody changes them in these schedules",
    ),
    Guard(
        "an abort leaves the merge that is held",
        committing.Committer,
        "abort",
        "self._merger.release()",
        "pass",
        kinds=STAGED,
        why="confirm has refused, and holds none; the next one releases it",
    ),
    # --- upsert -----------------------------------------------------------------------------------
    Guard(
        "upsert: a task begins without moving the marker",
        upsert,
        "begin",
        "if _current(connection, owner) != mine:",
        "if False:",
        kinds=UPSERT,
    ),
    Guard(
        "upsert: a task doesn't look again before its COMMIT",
        upsert,
        "pre_commit",
        '_check(_current(transaction.connection, owner, " FOR SHARE"), (own.generation, own.batch))',
        "pass",
        kinds=UPSERT,
    ),
    Guard(
        "upsert: the marker may move back",
        markers,
        "raise_to",
        '"WHERE (m.generation::pg_catalog.int8, m.batch::pg_catalog.int8) "\n'
        '            "OPERATOR(pg_catalog.<=) "\n'
        '            "(EXCLUDED.generation::pg_catalog.int8, EXCLUDED.batch::pg_catalog.int8)"',
        '""',
        kinds=UPSERT,
    ),
    # --- sweeping ---------------------------------------------------------------------------------
    Guard(
        "a sweep leaves the tasks of earlier runs alive",
        fencing,
        "fence_out",
        "stale_connections.end_older_tasks(connection, owner, generation)",
        "pass",
        kinds=PREPARED,
        why="what such a task leaves, the sweep of the next run finds",
    ),
    Guard(
        "a sweep takes what it doesn't cover",
        sweeping,
        "sweep_all",
        "if sweep.covers_name(gid):\n            count +=",
        "if True:\n            count +=",
        kinds=PREPARED,
    ),
    Guard(
        "a sweep drops staging tables that it doesn't cover",
        sweeping,
        "_covered",
        "if each.name and sweep.covers_name(each.name)",
        "if each.name",
        kinds=STAGED,
    ),
    Guard(
        "a sweep leaves what is prepared",
        sweeping,
        "sweep_all",
        "count += roll_back_prepared(connection, gid)",
        "count += 1",
        kinds=PREPARED,
    ),
    Guard(
        "a task's earlier attempt is left alone with its locks",
        stale_connections,
        "end_earlier_attempts",
        "return _end(connection, _OLDER, [pattern, name.slot])",
        "return 0",
        kinds=PREPARED,
        why="the later one waits for its locks, in vain at the most, and fails",
    ),
    Guard(
        "a frozen driver keeps the marker",
        stale_connections,
        "end_silent_merges",
        "return _end(",
        "return 0\n    return _end(",
        kinds=STAGED,
        why="a driver that stands still here goes on when nobody else can; "
        "tests/sinks/postgres/test_crashes.py freezes one",
    ),
    Guard(
        "a task doesn't commit its staging table",
        task_staged,
        "pre_commit",
        'connection.execute("COMMIT")',
        "pass",
        kinds=STAGED,
    ),
    Guard(
        "a staging table bears no name",
        task_staged,
        "pre_commit",
        "staging.label(connection, transaction.staged, transaction.name)",
        "pass",
        kinds=STAGED,
    ),
]
FOUND = [guard for guard in GUARDS if not guard.why]
NOT_FOUND = [guard for guard in GUARDS if guard.why]
