"""A run that goes on in a new generation, again and again: it keeps its transactional ids, and a
crash in the middle of it is like any other."""

import warnings

import pytest

from onceforall.sinks.kafka.names import parse_name
from support.driver import assert_exactly_once

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROLLING = {
    "roll_after_entries": 6,
    # A chain has four entries for each batch that is kept, or more.
    "options": {"onceforall.minBatchesToRetain": "1"},
    "until_batch": 14,
}
TASKS = 4


def ids_of(pipeline):
    """Return the transactional ids that the broker knows of the pipeline's query, parsed."""
    query = pipeline.entries("CLAIM")[0]["body"]["query_id"]
    admin = KafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    try:
        known = [
            each.transactional_id
            for listed in admin.list_transactions().values()
            for each in listed
        ]
    finally:
        admin.close()
    parsed = [found[1] for each in known if (found := parse_name(each)) is not None]
    return [name for name in parsed if name.query_id == query]


def generations(pipeline):
    return [entry["generation"] for entry in pipeline.entries("CLAIM")]


@pytest.mark.long
def test_a_long_run_needs_no_more_transactional_ids_in_its_later_generations(pipeline):
    pipeline.run(**ROLLING)
    assert len(generations(pipeline)) >= 4
    ids = ids_of(pipeline)
    assert {name.generation for name in ids} == {0}
    # A producer of each task, and a few where a batch began on another worker.
    assert TASKS <= len(ids) <= 3 * TASKS
    assert_exactly_once(pipeline)


@pytest.mark.parametrize(
    "failpoint",
    [
        pytest.param("inspect.after=kill@2", marks=pytest.mark.long),
        pytest.param("claim.after=kill@2", marks=pytest.mark.long),
        # The simulator does it, and tests/commit_log does at every step.
        pytest.param("seal.after=kill@2", marks=pytest.mark.long),
        pytest.param("recover.after=kill@2", marks=pytest.mark.long),
        pytest.param("append_commit.after=kill@4", marks=pytest.mark.long),
        pytest.param("kafka.end_txn.after=kill@14", marks=pytest.mark.long),
    ],
)
def test_a_driver_that_is_killed_while_or_after_it_rolls_neither_loses_nor_doubles(
    pipeline, failpoint
):
    pipeline.start(failpoint, **ROLLING).wait_until_killed()
    before = generations(pipeline)
    pipeline.run(**ROLLING)
    assert len(generations(pipeline)) > len(before) + 2
    # A start has names of its own.
    own = [name.generation for name in ids_of(pipeline)]
    assert set(own) == {0, before[-1] + 1}
    assert_exactly_once(pipeline)
