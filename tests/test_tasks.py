"""What a task does with the rows of one write, without Spark."""

import pyarrow as pa
import pytest

from onceforall.tasks import WriteSpec, WriteTask

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2]})
HASHES = pa.array([3, 4], pa.int64())


class Context:
    partition = 1

    def taskAttemptId(self):  # noqa: N802  Spark's name
        return 7

    def partitionId(self):  # noqa: N802
        return self.partition


class Sink:
    def begin_transaction(self, attempt):
        raise AssertionError("a transaction is begun that nobody will decide: it would hold every reader back")


@pytest.mark.parametrize(
    "how", [{"digest_only": True}, {"digest_only": False, "redo": frozenset({(0, 2)})}], ids=["replay", "redo of another task"]
)
def test_a_task_that_only_digests_opens_no_transaction(how):
    spec = WriteSpec(Sink(), "out", 0)
    writer = WriteTask((spec,), "query", 1, 0, 5, **how)._writer(spec, Context())
    writer.add(ROWS, HASHES)
    assert {**writer.finish(), "write": 0} == {"write": 0, "rows": 2, "hash_sum": f"{7:016x}", "committable": None}
