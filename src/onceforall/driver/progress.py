"""What became of the last batch of a run: rows per sink, and how long each step took.

Spark's own ``lastProgress`` can't have it: of a ``foreachBatch`` it says ``numOutputRows: -1``, and
what is observed on the frame of a batch is not among its ``observedMetrics``, which are those of
the streaming plan. So each run keeps its last batch here, in the process that started the query,
and logs it in one line.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from onceforall.common import logs
from onceforall.common.arguments import wrong

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logs.logger("onceforall")

KEPT_RUNS = 100
"""Of so many runs the last batch is kept."""

Outcome: TypeAlias = Literal["written", "written again", "replayed for its state", "skipped"]


@dataclass(frozen=True)
class BatchProgress:
    """The last batch that a run brought to its end.

    Attributes:
        query_id: Spark's id of the query.
        run_id: Spark's id of the run.
        query_name: the query's name, where it has one.
        generation: the run's generation in the commit log.
        batch: Spark's number of the batch.
        outcome: ``written``; ``written again`` (a lost part of it was); ``replayed for its state``
            (decided before, nothing was written); ``skipped`` (decided before, completed if need
            be, and not run at all).
        rows: per sink, how many rows of the batch are for it, as its tasks counted them; empty
            where the batch was not run. What was written before the loss of a part is among them.
        phase_ms: how long each step took, in milliseconds, in order: ``write`` (function, jobs, and
            pre-commit on all sinks), ``append_commit`` (the decision), ``commit`` (on all sinks),
            and at a run's first batch ``claim``, ``seal`` and ``recover``. The ``DONE`` behind a
            batch is not among them: Spark goes on meanwhile.
        total_ms: how long the call of ``foreachBatch`` took.
    """

    query_id: str
    run_id: str
    query_name: str | None
    generation: int
    batch: int
    outcome: Outcome
    rows: Mapping[str, int] = field(default_factory=dict)
    phase_ms: Mapping[str, float] = field(default_factory=dict)
    total_ms: float = 0.0


_lock = threading.Lock()
_last: OrderedDict[str, BatchProgress] = OrderedDict()


def progress_of(query: StreamingQuery) -> BatchProgress | None:
    """Return what became of the last batch that a run of a query brought to its end: rows per sink,
    and the times of its steps.

    Args:
        query: what ``start()`` returned, in the process that called it.

    Returns:
        None before the first batch has ended, for a query that doesn't use onceforall, and in any
        other process. It stays when the run has ended, for the last 100 runs.

    Raises:
        OptionError: it is no query.
    """
    run_id = getattr(query, "runId", None)
    if run_id is None:
        raise wrong("query", query, "the StreamingQuery that start() returned")
    with _lock:
        return _last.get(str(run_id))


def tell(progress: BatchProgress) -> None:
    """Keep it as its run's last, and say it in one line of the log."""
    with _lock:
        _last[progress.run_id] = progress
        _last.move_to_end(progress.run_id)
        while len(_last) > KEPT_RUNS:
            _last.popitem(last=False)
    rows = ", ".join(f"{name} {count} rows" for name, count in progress.rows.items()) or "no rows"
    phases = ", ".join(f"{name} {ms:.0f} ms" for name, ms in progress.phase_ms.items())
    logger.info(
        "batch %d is %s: %s; %s, in all %.0f ms",
        progress.batch,
        progress.outcome,
        rows,
        phases or "no steps",
        progress.total_ms,
    )
