"""The conformance suite, on S3: kill -9 between any two calls and within them, in real
processes."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest

from onceforall.errors import ConfigurationError
from onceforall.testing.conformance import SinkUnderTest, check_sink

pytestmark = pytest.mark.s3

SECRET = "hush-hush-hush"


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
            place.abort(committable)

    @contextlib.contextmanager
    def another_target():
        name = f"{place.key}/_onceforall/folder.json"
        with place.client() as client:
            kept = client.get_object(Bucket=place.bucket, Key=name)["Body"].read()
            client.delete_object(Bucket=place.bucket, Key=name)
            yield
            client.put_object(Bucket=place.bucket, Key=name, Body=kept)

    return SinkUnderTest(
        make_sink=lambda: place.sink(format=form, partition_by=["part"]),
        rows=rows,
        read=read,
        leftovers=leftovers,
        lose=lose,
        another_target=another_target,
        secrets=[SECRET],
        preload=["boto3", "pyarrow.parquet"],
        patience_s=60,
        **more,
    )


QUICK = (
    "commit_in_two_processes_at_once",
    "lost_transactions_are_reported",
    "no_secret_is_shown",
    "another_target_has_another_identity",
    "killed_after_pre_commit",
    "frozen_driver_of_a_decided_batch",
)
"""What is tested each time; a case takes ten seconds and more here."""


def check(place, form, crash_points=1, only=None):
    place.storage["secret_access_key"] = SECRET  # moto checks none
    report = check_sink(under_test(place, form, crash_points=crash_points), only=only)
    assert not report.skipped
    return report.passed


def test_the_file_sink_keeps_the_most_of_the_contract_on_s3(place):
    assert set(check(place, "parquet", only=QUICK)) == set(QUICK)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_the_file_sink_keeps_the_contract_on_s3(place, form):
    assert len(check(place, form)) > 20
