"""Observers read real sinks and the commit log for ``onceforall.testing.checker``, as anybody's
reader would, and change nothing.

While a query runs, the sinks are read first and the log after them, so that what is visible must be
decided by then::

    check = RunningCheck(truth, whole={"files"}, settle_s={"out": 30})
    while drivers_run():
        views = {"out": kafka.rows(), "files": files.rows()}
        check.observe(views, log.decided(), at_s=time.monotonic())

With ``content=`` an observer reads the other values of each row, too, which a truth with
``contents=`` compares.

When all is quiet, ``settled`` waits until nothing is left over, for a bounded time.
"""

from __future__ import annotations

from onceforall.testing.observers.base import NULL, Ids, Observer, decoded, settled
from onceforall.testing.observers.commit_log import CommitLogObserver
from onceforall.testing.observers.files import FileObserver
from onceforall.testing.observers.kafka import KafkaContent, KafkaObserver
from onceforall.testing.observers.postgres import PostgresObserver
from onceforall.testing.observers.state import read_state

__all__ = [
    "NULL",
    "CommitLogObserver",
    "FileObserver",
    "Ids",
    "KafkaContent",
    "KafkaObserver",
    "Observer",
    "PostgresObserver",
    "decoded",
    "read_state",
    "settled",
]
