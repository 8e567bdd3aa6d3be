"""The Kinesis source passes the suite for sources."""

from __future__ import annotations

import itertools

import pytest

from onceforall.sources.kinesis.options import parse
from onceforall.sources.kinesis.source import KinesisReader
from onceforall.testing.sources import SourceUnderTest, check_source, source_cases


@pytest.mark.long
def test_the_kinesis_source_passes_the_suite(ordered_stream, ordered_server):
    def new():
        ordered_server.heal()
        source = ordered_stream(shards=2)
        options = parse(source.options(maxRecordsPerTrigger="8"))
        turns = itertools.cycle([source.split, source.merge])

        def put(numbers):
            assert numbers == source.put(len(numbers))

        def throttled():
            ordered_server.fail("GetRecords", "ProvisionedThroughputExceededException")

        def expired():
            ordered_server.expire_iterators()

        return SourceUnderTest(
            make_reader=lambda: KinesisReader(options),
            put=put,
            number=lambda row: int(row["data"]),
            changes={"resharded": lambda: next(turns)()},
            faults={"throttled": throttled, "expired": expired},
            secrets=[ordered_server.secret_key],
            in_order=True,
            key=lambda number: number % 7,
        )

    report = check_source(new)
    assert report.passed == source_cases()
    assert report.skipped == {}
