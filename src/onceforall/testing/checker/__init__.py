"""A checker for exactly-once: it judges what readers found in the sinks of a query. Pure;
``onceforall.testing.observers`` does the reading.

What it needs is an id in every row, and which batch each id belongs to (a ``Truth``). What it
checks:

- *promise* (*violations (``findings``)*): *asked by*
- each required input's effect is once in each sink (lost, duplicated, alien, wrong-key):
  ``check_quiet``
- each row bears its input's values: columns, headers, timestamp, partition (wrong-value):
  ``check_quiet``, ``RunningCheck``
- nothing is visible of an undecided or aborted attempt (undecided): all
- the sinks' batches are equal when quiet (torn, disagreeing): ``check_quiet``
- while running, sinks are apart by one decided batch at the most (behind): ``RunningCheck``
- a table that each batch replaces shows what one decided batch left (``StateTruth``; torn, behind,
  went-back): ``RunningCheck``
- a batch is visible as a whole or not at all, where a sink promises it (torn): ``RunningCheck``
- order within a key (misordered): ``check_quiet``
- reads never go back (went-back): ``RunningCheck``
- an unknown outcome resolves to exactly one (log, unresolved): ``check_log``
- after healing: no lag, no open or prepared transaction, staging table or temp file (leftover):
  ``check_quiet``
- state store and output agree (state): ``check_state``
- something was read at all (nothing-read): all

A check that read nothing fails. Example::

    truth = UniformTruth(rows_per_batch=20, keys=7)
    log = observers.CommitLogObserver("/checkpoints/ads")
    kafka = observers.KafkaObserver("broker:9092", "out")
    decided, left = log.view().decided(), {"out": kafka.leftovers()}
    check_quiet(truth, {"out": kafka.rows()}, decided, left).raise_if_broken()
"""

from __future__ import annotations

from onceforall.testing.checker import findings
from onceforall.testing.checker.contents import content_of, contents_of
from onceforall.testing.checker.decisions import Attempts, LogView, check_log
from onceforall.testing.checker.findings import Report, SinkCounts, Violation
from onceforall.testing.checker.quiet import check_quiet, check_state
from onceforall.testing.checker.rows import NO_ROWS, UNREADABLE, Rows
from onceforall.testing.checker.running import RunningCheck
from onceforall.testing.checker.states import StateTruth
from onceforall.testing.checker.truth import (
    Contents,
    TableTruth,
    Truth,
    UniformTruth,
    last_counts,
    running_counts,
)

__all__ = [
    "NO_ROWS",
    "UNREADABLE",
    "Attempts",
    "Contents",
    "LogView",
    "Report",
    "Rows",
    "RunningCheck",
    "SinkCounts",
    "StateTruth",
    "TableTruth",
    "Truth",
    "UniformTruth",
    "Violation",
    "check_log",
    "check_quiet",
    "check_state",
    "content_of",
    "contents_of",
    "findings",
    "last_counts",
    "running_counts",
]
