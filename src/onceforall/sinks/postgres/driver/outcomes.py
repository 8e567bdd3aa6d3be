"""What is reported of a batch: complete, lost, or in doubt, each with what an operator does
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import psycopg

from onceforall.errors import AttemptFailedError, OnceForAllError
from onceforall.protocol.entries import Committable
from onceforall.sink import CommitReport, LostTransaction
from onceforall.sinks.postgres import markers
from onceforall.sinks.postgres.driver import marker_proofs
from onceforall.sinks.postgres.driver.batches import Batch
from onceforall.sinks.postgres.markers import Marker
from onceforall.sinks.postgres.statements import Connection, words
from onceforall.sinks.postgres.table_names import quoted


def joined(reports: Sequence[CommitReport]) -> CommitReport:
    """Return the reports on parts of a batch as one."""
    return CommitReport(
        retired=tuple(c for report in reports for c in report.retired),
        lost=tuple(lost for report in reports for lost in report.lost),
        in_doubt=tuple(doubt for report in reports for doubt in report.in_doubt),
    )


def refuse_old(complete: Marker, batch: Batch) -> NoReturn:
    """Refuse to write a batch that is complete already.

    Raises:
        AttemptFailedError: always.
    """
    raise AttemptFailedError(
        f"Batch {batch.batch} is not written: the marker in {batch.owner.schema}.{markers.TABLE} "
        "says that this query has already completed batch "
        f"{complete.batch} here, in its generation {complete.generation}. Either another run of "
        "the query is further, then stop this one; or the "
        "checkpoint is an older copy, then put the newer one back."
    )


def told_complete(
    found: Marker | None, batch: Batch, committables: Sequence[Committable]
) -> CommitReport:
    """Return what is reported of a batch that the marker says is complete: by this run, or by
    two that wrote it.
    """
    assert found is not None
    if found.batch == batch.batch and found.names not in {"", batch.marker.names}:
        reason = (
            f"the marker says that batch {batch.batch} is complete, but with other transactions "
            f"(of generation {found.generation}): two runs wrote "
            "this batch from the same checkpoint, or from copies of it. Compare the table with "
            "the source, and start with "
            "onceforall.inDoubt=committed if the rows are there"
        )
        return CommitReport(in_doubt=tuple(LostTransaction(c, reason) for c in committables))
    return CommitReport(retired=tuple(committables))


def elsewhere(batch: Batch, committables: Sequence[Committable], found: str) -> CommitReport:
    """Return what is reported where the sink connects to another database than the one that was
    decided for.
    """
    reason = (
        f"the batch was decided for the database with the identifier {batch.database}, and the "
        f"sink now connects to {found}, where nothing is "
        "known of it. Start once more with the old connection; the new one may be used when the "
        "batch is complete"
    )
    return CommitReport(in_doubt=tuple(LostTransaction(c, reason) for c in committables))


def told_without_markers(
    connection: Connection, batch: Batch, committables: Sequence[Committable]
) -> CommitReport | None:
    """Return what is reported where the markers that tell of the batch lie elsewhere now, or were
    dropped: it may be complete, or be completed there. None: they are where they were, so that
    what they don't have isn't complete.

    Args:
        connection: in whatever state.
        batch: which has no marker in the owner's schema.
        committables: of it.
    """
    own = f"{batch.owner.schema}.{markers.TABLE}"
    place = marker_proofs.moved_to(connection, batch.owner, batch.batch, batch.markers)
    if place is not None:
        reason = (
            f"the markers that tell whether batch {batch.batch} is complete lie in {place} now, "
            f"and not in {own}: the schema or the table was renamed or moved. Put them "
            "back under that name, with the staging tables beside them (rename away what "
            "was made in their place, and drop nothing: it may be another query's by now; ALTER "
            f"SCHEMA … RENAME TO {quoted(batch.owner.schema)}), and start again"
        )
    elif marker_proofs.were_dropped(connection, batch.markers):
        reason = (
            f"the table {own} that was there before the decision was dropped, and perhaps made "
            f"again: only it could tell whether batch {batch.batch} is complete. (The start needs "
            "onceforall.adoptTarget, too, where it says that the sink is behind the commit log)"
        )
    else:
        return None
    return CommitReport(in_doubt=tuple(LostTransaction(c, reason) for c in committables))


def not_known(batch: Batch, told: CommitReport) -> str:
    """Return what is told while the markers lie elsewhere, from where they may come back."""
    return (
        f"Batch {batch.batch} is decided, and whether it is complete can't be told now: "
        f"{told.in_doubt[0].reason}. It is looked for again until then"
    )


_PUT_BACK = (
    "Put the table {table} back, if it is that. What lies in the schema {own} is the sink's own: a "
    "new start makes it again, or says why not."
)
_CHANGED = {
    "42P10": "key= needs its unique index again: CREATE UNIQUE INDEX ON {table} ({key});",
    "55000": (
        "A unique index of the key is deferrable (make it NOT DEFERRABLE), or a publication of "
        "updates has the table, which lacks a replica identity (ALTER TABLE {table} REPLICA "
        "IDENTITY USING INDEX …)."
    ),
    "428C9": (
        "A column is generated now: ALTER TABLE {table} ALTER COLUMN … DROP IDENTITY; or DROP "
        "EXPRESSION;"
    ),
    "42703": "Name the column again as it was, or add it.",
    "42P01": _PUT_BACK,
    "3F000": _PUT_BACK,
}


def changed_since(batch: Batch, error: psycopg.Error) -> str:
    """Return what is told where PostgreSQL takes the merge of a decided batch no more, for
    another reason than a row.
    """
    target = batch.target
    remedy = _CHANGED.get(error.sqlstate or "", "").format(
        table=f"{quoted(target.schema)}.{quoted(target.table)}",
        key=", ".join(quoted(column) for column in target.key),
        own=quoted(batch.owner.schema),
    )
    return not_now(batch, f"PostgreSQL says: {words(error)}. {remedy}".strip())


def not_now(batch: Batch, error: OnceForAllError | str) -> str:
    """Return what is told where something in the database is in the way of a decided batch."""
    return (
        f"Batch {batch.batch} is decided, and its rows wait in staging tables, but they can't be "
        f"merged now. {error} PostgreSQL took the same merge before the decision, so look at what "
        "has changed there since. Remove the conflict in the database; the merge is tried again "
        "until it succeeds."
    )


def refused_at_commit(batch: Batch, error: psycopg.Error) -> str:
    """Return what is told where PostgreSQL took the merge of a decided batch, and not its COMMIT:
    nothing need have changed since the decision.
    """
    return (
        f"Batch {batch.batch} is decided, and its rows wait in staging tables, but PostgreSQL "
        f"refuses the COMMIT of their merge. It says: {words(error)}. Something is checked only at "
        "COMMIT there, such as what a trigger of the table writes to another server. Remove what "
        "refuses it; the merge is tried again until it succeeds."
    )


def without_right(batch: Batch, said: str, role: str, *, what: str = "the merge") -> str:
    """Return what is told where the role lost a right between the decision and its commit."""
    target, schema = batch.target, quoted(batch.owner.schema)
    rights = ["SELECT", "INSERT"]
    rights += ["UPDATE"] if target.key and not target.ignore else []
    rights += ["DELETE"] if target.replace else []
    return (
        f"Batch {batch.batch} is decided, but the role lacks a right that {what} needs; PostgreSQL "
        f"says: {said}. Grant what it had: GRANT {', '.join(rights)} ON "
        f"{quoted(target.schema)}.{quoted(target.table)} TO {quoted(role)}; GRANT USAGE, CREATE ON "
        f"SCHEMA {schema} TO {quoted(role)}; GRANT SELECT, INSERT, UPDATE, DELETE ON "
        f"{schema}.{quoted(markers.TABLE)} TO {quoted(role)}; {what} is tried again"
    )
