"""The benchmark of functions that persist does so in every second batch of a query."""

import pytest

from benchmarks.options.functions import function, sample_of


class Frame:
    def __init__(self, acts, name="batch"):
        self._acts, self._name = acts, name

    def selectExpr(self, _, column):  # noqa: N802  Spark's name
        return Frame(self._acts, column)

    def where(self, _):
        return f"half of {self._name}"

    def persist(self):
        self._acts.append("persist")

    def unpersist(self):
        self._acts.append("unpersist")


@pytest.mark.parametrize(
    ("is_drawn", "column"), [(False, "id + 1 AS next"), (True, "uuid() AS unique")]
)
def test_every_second_batch_is_persisted_around_its_writes(is_drawn, column):
    acts = []
    for batch in range(2):
        function(Frame(acts), batch, lambda *given: acts.append(given), is_drawn=is_drawn)
    written = [("kafka", f"half of {column}"), ("file", f"half of {column}")]
    assert acts == [*written, "persist", *written, "unpersist"]


def test_a_ratio_is_of_a_batch_that_persists_to_its_neighbour_that_does_not():
    took = [100, 100, 10, 20, 10, 30, 10, 30]
    progress = [
        {"batchId": batch, "durationMs": {"triggerExecution": ms}} for batch, ms in enumerate(took)
    ]
    assert sample_of(progress, 2) == {
        "alone_ms": 10,
        "persists_ms": 30,
        "ratio": 3.0,
        "batches": 3,
    }
