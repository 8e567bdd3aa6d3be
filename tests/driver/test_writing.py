"""What a batch's tasks are told by the decision to write it."""

from types import SimpleNamespace

from onceforall.driver.batch_writer import SparkBatchWriter
from onceforall.protocol.decisions import RunWrites, TakeDigests


def writer():
    written = SparkBatchWriter(None, 3, lambda *_: None, {}, "query", False, None)
    written._jobs = SimpleNamespace(first_task_attempt_id=lambda: 70)
    return written


def test_tasks_have_the_generation_and_the_incarnation_of_the_decision():
    """Without the incarnation, a task of an earlier batch that is still alive could have the slot,
    and so the transactional id, of one of this batch's."""
    task = writer()._task(RunWrites(3, 5, {}, incarnation=4))
    assert (task.batch, task.generation, task.incarnation) == (3, 5, 4)
    assert task.first_task_attempt_id == 70
    assert not task.digest_only


def test_tasks_that_write_lost_rows_again_know_which():
    redo = frozenset({(0, 1)})
    task = writer()._task(RunWrites(3, 5, {}, 4, redo))
    assert task.redo == redo
    assert task.incarnation == 4


def test_tasks_that_only_look_write_nothing():
    assert writer()._task(TakeDigests(3, 5)).digest_only
