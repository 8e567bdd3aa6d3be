"""The conformance suite, on Azure: kill -9 between any two calls and within them, in real
processes."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest

from onceforall.errors import ConfigurationError
from onceforall.testing.conformance import SinkUnderTest, check_sink

pytestmark = [pytest.mark.azure, pytest.mark.long]


def under_test(place, form, **more):
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
        name = f"{place.key}/_onceforall/folder.json"
        with place.client() as client:
            kept = client.download_blob(name).readall()
            client.delete_blob(name)
            yield
            client.upload_blob(name, kept, overwrite=True)

    return SinkUnderTest(
        make_sink=lambda: place.sink(format=form, partition_by=["part"]),
        rows=rows,
        read=read,
        leftovers=leftovers,
        lose=lose,
        another_target=another_target,
        secrets=[place.storage["account_key"]],
        preload=["azure.storage.blob", "pyarrow.parquet"],
        patience_s=60,
        **more,
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_the_file_sink_keeps_the_contract_on_azure(place, form):
    report = check_sink(under_test(place, form, crash_points=1))
    assert not report.skipped
    assert len(report.passed) > 20
