"""The benchmark of kept rows writes every second batch as under ``replay``."""

from benchmarks.options.kept_rows import alternating
from onceforall.driver.batch_writer import SparkBatchWriter


class Rows:
    def where(self, condition):
        return f"rows where {condition}"


def test_every_second_batch_keeps_no_rows_and_all_of_them_are_written_by_the_same_function():
    seen = []
    keeper = object()
    writers = [
        alternating(SparkBatchWriter)(
            Rows(),
            batch,
            lambda *given: seen.append(given),
            {},
            "query",
            False,
            {},
            keeper,
            query_name="q",
        )
        for batch in range(3)
    ]
    assert [writer.keeper for writer in writers] == [None, keeper, None]
    for writer in writers:
        writer.function(writer.frame, writer.batch, "transaction")
    assert seen == [("rows where id >= 0", batch, "transaction") for batch in range(3)]
