"""The commit of a decided batch, of whichever kinds its transactions are: of both, where the mode was changed before lost ones were written again.

The prepared ones come first, and the staged rest is merged only when all of them are there: the marker that a merge moves says that the whole
batch is complete, and would prove that also of a prepared transaction that was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceforall.protocol.entries import Committable
from onceforall.sink import CommitReport, LostTransaction
from onceforall.sinks.postgres.driver import prepared
from onceforall.sinks.postgres.driver.batches import Connect, batch_of
from onceforall.sinks.postgres.driver.outcomes import joined
from onceforall.sinks.postgres.driver.staged import Merger
from onceforall.sinks.postgres.options import PREPARED, STAGED

_REST = "its rows wait in a staging table until the rest of the batch is there; they are written again with that"


def commit_all(connect: Connect, merger: Callable[[], Merger], committables: Sequence[Committable]) -> CommitReport:
    """Commit them.

    Args:
        connect: opens a connection.
        merger: gives what merges on this driver.
        committables: all of a batch, at least one.

    Raises:
        SinkUnavailableError: no answer yet.
    """
    of_kind = {kind: [c for c in committables if c["kind"] == kind] for kind in (PREPARED, STAGED)}
    reports = []
    if of_kind[PREPARED]:
        reports.append(prepared.commit(connect, batch_of(of_kind[PREPARED]), of_kind[PREPARED]))
    rest = of_kind[STAGED]
    if rest and any(report.lost or report.in_doubt for report in reports):
        # What is held has its staging tables locked, which are dropped before the rows are written again.
        merger().release()
        waiting = tuple(LostTransaction(c, _REST) for c in rest)
        is_lost = any(report.lost for report in reports)
        reports.append(CommitReport(lost=waiting) if is_lost else CommitReport(in_doubt=waiting))
    elif rest:
        reports.append(merger().commit(batch_of(rest), rest))
    return joined(reports)
