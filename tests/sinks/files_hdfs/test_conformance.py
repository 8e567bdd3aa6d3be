"""The conformance suite, on HDFS: kill -9 between any two calls and within them, in real
processes."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest

from onceforall.errors import ConfigurationError
from onceforall.testing.conformance import SinkUnderTest, check_sink
from sinks.files_s3.test_conformance import QUICK

# The conformance of files on a disk and on S3 is in `make test`; what HDFS does otherwise is beside.
pytestmark = [pytest.mark.hdfs, pytest.mark.long]


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
        tree = place.tree
        name = tree.root / "_onceforall" / "folder.json"
        kept = tree.read(name)
        tree.unlink(name)
        yield
        if tree.is_there(name):
            tree.unlink(name)
        tree.create(name, kept)

    return SinkUnderTest(
        make_sink=lambda: place.sink(format=form, partition_by=["part"]),
        rows=rows,
        read=read,
        leftovers=leftovers,
        lose=lose,
        another_target=another_target,
        preload=["pyarrow.parquet"],
        patience_s=60,
        **more,
    )


def check(place, form, only=None):
    return check_sink(under_test(place, form, crash_points=1), only=only)


def test_the_file_sink_keeps_the_most_of_the_contract_on_hdfs(place):
    report = check(place, "parquet", QUICK)
    assert set(report.passed) | set(report.skipped) >= set(QUICK)
    assert set(report.skipped) <= {"no_secret_is_shown"}, "the folder needs none"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_the_file_sink_keeps_the_contract_on_hdfs(place, form):
    assert len(check(place, form).passed) > 20
