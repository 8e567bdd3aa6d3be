"""Nothing is swept where a target is behind the log."""

from types import SimpleNamespace

import pytest

from onceforall.driver.swept import swept
from onceforall.errors import CheckpointMismatchError
from onceforall.sink import StartInfo, Sweep

PLACE = {"schema": "s"}


def sink(holds):
    """Return a sink whose target has a batch, and what was asked of it."""
    asked = []

    def look(start, batch):
        asked.append((start, batch))
        return holds

    def recover(sweep):
        asked.append(sweep)
        return 3

    return SimpleNamespace(holds=look, recover=recover), asked


@pytest.mark.parametrize("holds", [True, None])
def test_a_target_that_has_the_batch_or_can_not_tell_is_swept(holds):
    swept_one, asked = sink(holds)
    sweep = Sweep("query", "a", 5, reached=4, place=PLACE)
    assert swept(swept_one, sweep) == 3
    assert asked == [(StartInfo("query", "a", place=PLACE, asked_again=True), 4), sweep]


def test_a_target_of_which_nothing_is_known_is_swept():
    swept_one, asked = sink(False)
    sweep = Sweep("query", "a", 5)
    assert swept(swept_one, sweep) == 3
    assert asked == [sweep]


def test_a_target_that_is_behind_is_left_alone():
    behind, asked = sink(False)
    with pytest.raises(CheckpointMismatchError, match="Nothing is removed from the sink a"):
        swept(behind, Sweep("query", "a", 5, reached=4))
    assert asked == [(StartInfo("query", "a", asked_again=True), 4)]
