"""The conformance suite, on a store of objects: kill -9 between any two calls and within them, in real
processes."""

from __future__ import annotations

import contextlib

import pyarrow as pa

from onceforall.errors import ConfigurationError
from onceforall.testing.conformance import SinkUnderTest, check_sink


def check(place, form, only=None):
    """Run the suite, and return the names of the cases that passed; all others are skipped by the
    suite's own word, of a sink without secrets."""
    report = check_sink(_under_test(place, form), only=only)
    assert set(report.skipped) == (set() if place.secrets else {"no_secret_is_shown"})
    return report.passed


def _under_test(place, form):
    def rows(numbers):
        return pa.RecordBatch.from_pydict(
            {
                "number": pa.array(numbers, pa.int64()),
                "text": pa.array([f"row {number}" for number in numbers]),
                "part": pa.array([number % 2 for number in numbers], pa.int32()),
            }
        )

    def read():
        try:
            return place.numbers("number")
        except ConfigurationError:
            return []  # nobody has made the folder yet

    def leftovers():
        try:
            return place.left()
        except ConfigurationError:
            return []

    def lose(committables):
        for committable in committables:
            place.lose(committable)

    @contextlib.contextmanager
    def another_target():
        kept = place.get("_onceforall/folder.json")
        place.delete("_onceforall/folder.json")
        yield
        place.put("_onceforall/folder.json", kept)

    return SinkUnderTest(
        make_sink=lambda: place.sink(format=form, partition_by=["part"]),
        rows=rows,
        read=read,
        leftovers=leftovers,
        lose=lose,
        another_target=another_target,
        secrets=place.secrets,
        preload=[*place.modules, "pyarrow.parquet"],
        patience_s=60,
        crash_points=1,
    )
