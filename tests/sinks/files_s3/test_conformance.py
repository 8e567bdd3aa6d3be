"""The conformance suite, on S3: kill -9 between any two calls and within them, in real
processes."""

from __future__ import annotations

import uuid

import pytest

from sinks.files_objects.conformance import check
from sinks.files_s3.place import prefix_on

pytestmark = pytest.mark.s3

QUICK = (
    "commit_in_two_processes_at_once",
    "no_secret_is_shown",
    "killed_after_pre_commit",
    "frozen_driver_of_a_decided_batch",
)
"""What is tested each time, and not by test_sink.py; a case takes ten seconds and more here."""


def test_the_file_sink_keeps_the_most_of_the_contract(place):
    place.storage["secret_access_key"] = "hush-hush-hush"  # moto checks none
    assert set(check(place, "parquet", QUICK)) == set(QUICK)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_the_file_sink_keeps_the_contract(place, form):
    place.storage["secret_access_key"] = "hush-hush-hush"
    assert len(check(place, form)) > 20


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_file_sink_keeps_the_contract_on_a_second_server(second_s3_server):
    name = f"b-{uuid.uuid4().hex[:12]}"
    second_s3_server.create_bucket(name)
    assert len(check(prefix_on(second_s3_server, name), "parquet")) > 20
