"""The page of the state backends shows what was measured, and says what wasn't."""

from benchmarks.options import state_backends

FIGURES = {
    "batches": 2,
    "batch_ms_median": 1200.0,
    "batch_ms_max": 3400.0,
    "commit_ms_median": 560.0,
    "commit_ms_max": 780.0,
}
MEASURED = {
    "keys": 1000,
    "memory_used_bytes": 7 << 20,
    "load": FIGURES,
    "update": {**FIGURES, "batch_ms_median": 2500.0},
    "checkpoint_bytes_after_load": 11 << 20,
    "checkpoint_bytes_after_updates": 13 << 20,
    "recovery_s": 17.04,
    "first_batch_longer_ms": 1900.0,
}


def results(**backends):
    setup = {"keys": 1000, "rows": 100, "updates": 2, "memory": "1g", "partitions": 4}
    machine = {"cores": 2, "system": "Linux 1", "python": "3.11.0", "pyspark": "4.2.0"}
    return {"setup": setup, "machine": machine, "backends": backends}


def test_the_page_shows_each_figure_of_each_backend():
    text = state_backends.page_of(
        results(memory=MEASURED, rocksdb={**MEASURED, "recovery_s": 23.0})
    )
    assert "| load: a batch, median (longest) | 1.20 s (3.40 s) | 1.20 s (3.40 s) |" in text
    assert "| update: a batch, median (longest) | 2.50 s (3.40 s) |" in text
    assert "| load: its commits, sum of all tasks | 0.56 s (0.78 s) |" in text
    assert "| checkpoint, after the load | 11 MB |" in text
    assert "| checkpoint, after the updates | 13 MB |" in text
    assert "| memory of the state, as Spark tells it | 7 MB |" in text
    assert "| 17.0 s | 23.0 s |" in text
    assert "1,000 new keys, 100 a batch" in text


def test_a_backend_that_failed_has_no_figures_but_the_reason():
    text = state_backends.page_of(
        results(
            memory={"failed": "a\nb\njava.lang.OutOfMemoryError: Java heap space"}, rocksdb=MEASURED
        )
    )
    assert "| - | 17.0 s |" in text
    assert "OutOfMemoryError: Java heap space" in text
