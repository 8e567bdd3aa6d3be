"""The reader beside the job: what it takes for a part of a batch, and what it tells."""

from __future__ import annotations

from collections import Counter

import pytest

from onceforall.demo.onlooker import Onlooker, Seen, is_partial
from support.waiting import until

FINAL = {0: Counter({"a": 1, "b": 1, "c": 1}), 1: Counter({"d": 2, "e": 2})}


@pytest.mark.parametrize(
    ("batch", "rows", "partial"),
    [
        (0, 3, False),
        (0, 2, True),
        (0, 4, True),
        (0, 6, True),
        (1, 1, True),
        (1, 2, False),
        (1, 3, True),
        (1, 4, False),
        (7, 1, True),
    ],
)
def test_only_a_whole_batch_is_whole_and_one_that_vanished_never_was(batch, rows, partial):
    assert is_partial(FINAL, batch, rows) == partial


def watch(*looks):
    """Let an onlooker see one thing after the other."""
    left = list(looks)
    with Onlooker(
        {("postgres", "events"): lambda: left.pop(0) if len(left) > 1 else left[0]}, pause_s=0
    ) as onlooker:
        until(lambda: len(left) == 1, 10, "it has looked")
        until(lambda: onlooker.rounds > len(looks), 10, "it has looked again")
    return onlooker


def test_a_batch_that_was_ever_seen_in_part_is_counted_once():
    onlooker = watch({}, {0: 1}, {0: 2}, {0: 3}, {0: 3, 1: 4})
    seen = onlooker.seen({("postgres", "events"): FINAL})["postgres"]
    assert seen.partial_batches == 1
    assert seen.reads >= 4


def test_whole_batches_are_whole_and_looks_at_nothing_do_not_count():
    assert watch({}).seen({("postgres", "events"): FINAL}) == {"postgres": Seen(0, 0)}
    assert (
        watch({}, {0: 3}, {0: 3, 1: 4})
        .seen({("postgres", "events"): FINAL})["postgres"]
        .partial_batches
        == 0
    )


def test_a_reader_that_fails_is_not_silent():
    def fail():
        raise FileNotFoundError("part-00000")

    with Onlooker({("files", "events"): fail}) as onlooker:
        until(lambda: onlooker.failure is not None, 10, "it has failed")
    assert "part-00000" in str(onlooker.failure)
