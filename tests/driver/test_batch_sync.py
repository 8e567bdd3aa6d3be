"""A batch is not decided before Spark's own files of it are durable."""

from concurrent.futures import Future

import pytest

from onceforall.driver.batch_writer import SparkBatchWriter
from onceforall.errors import CommitLogError


class Refused:
    """Stands for Spark's files, on a disk that refuses to sync them."""

    def written(self):
        future = Future()
        future.set_exception(CommitLogError("can't be synced"))
        return future


def test_an_attempt_whose_plan_can_not_be_synced_is_not_handed_over_for_decision(monkeypatch):
    writer = SparkBatchWriter(None, 0, lambda *_: None, {}, "query", False, None, None, Refused())
    monkeypatch.setattr(SparkBatchWriter, "_attempts_lost", lambda _: False)
    with pytest.raises(CommitLogError, match="can't be synced"):
        writer._confirmed(0.0, {}, {})
