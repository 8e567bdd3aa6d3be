"""The conformance suite, on an emulator of Google Cloud Storage: kill -9 between any two calls and
within them, in real processes."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest

from onceforall.errors import ConfigurationError
from onceforall.testing.conformance import SinkUnderTest, check_sink

pytestmark = [pytest.mark.gcs, pytest.mark.long, pytest.mark.timeout(1800)]


def under_test(place, form):
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
        blob = place.bucket().blob(f"{place.key}/_onceforall/folder.json")
        kept = blob.download_as_bytes()
        blob.delete()
        yield
        blob.upload_from_string(kept)

    return SinkUnderTest(
        make_sink=lambda: place.sink(format=form, partition_by=["part"]),
        rows=rows,
        read=read,
        leftovers=leftovers,
        lose=lose,
        another_target=another_target,
        preload=["google.cloud.storage", "pyarrow.parquet"],
        patience_s=60,
        crash_points=1,
    )


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_the_file_sink_keeps_the_contract(place, form):
    report = check_sink(under_test(place, form))
    # There are no secrets: credentials are a file, or the machine's.
    assert set(report.skipped) == {"no_secret_is_shown"}
    assert len(report.passed) > 20
