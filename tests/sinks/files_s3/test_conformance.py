"""The conformance suite, on S3: kill -9 between any two calls and within them, in real
processes."""

from __future__ import annotations

import contextlib
import uuid

import pyarrow as pa
import pytest

from onceforall.errors import ConfigurationError
from onceforall.testing.conformance import SinkUnderTest, check_sink
from sinks.files_s3.place import prefix_on

pytestmark = pytest.mark.s3


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
        secrets=[place.storage["secret_access_key"]],
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


def check(place, form, only=None):
    report = check_sink(under_test(place, form, crash_points=1), only=only)
    assert not report.skipped
    return report.passed


def test_the_file_sink_keeps_the_most_of_the_contract_on_s3(place):
    place.storage["secret_access_key"] = "hush-hush-hush"  # moto checks none
    assert set(check(place, "parquet", QUICK)) == set(QUICK)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_the_file_sink_keeps_the_contract_on_s3(place, form):
    place.storage["secret_access_key"] = "hush-hush-hush"
    assert len(check(place, form)) > 20


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_file_sink_keeps_the_contract_on_a_second_server(second_s3_server):
    name = f"b-{uuid.uuid4().hex[:12]}"
    second_s3_server.create_bucket(name)
    assert len(check(prefix_on(second_s3_server, name), "parquet")) > 20
