"""What is waited for in a thread of its own, and only so long."""

import threading
import time

import pytest

from onceforall.common import threads
from onceforall.common.threads import result_within

LONG_S = 60


def never():
    return False


def test_what_comes_soon_is_returned_or_raised():
    def fails():
        raise LookupError("not there")

    assert result_within(lambda: 7, LONG_S, never) == 7
    assert result_within(lambda: 7, LONG_S, lambda: True) == 7
    with pytest.raises(LookupError, match="not there"):
        result_within(fails, LONG_S, never)


@pytest.mark.parametrize(
    ("seconds", "given_up", "at_least"), [(0.3, never, 0.3), (LONG_S, lambda: True, 0.2)]
)
def test_what_does_not_come_is_left(monkeypatch, seconds, given_up, at_least):
    monkeypatch.setattr(threads, "GIVEN_UP_S", 0.2)
    over, began = threading.Event(), time.monotonic()
    try:
        with pytest.raises(TimeoutError, match="no answer in time"):
            result_within(over.wait, seconds, given_up)
        assert at_least <= time.monotonic() - began < LONG_S / 2
    finally:
        over.set()


def test_what_comes_behind_a_while_is_waited_for_also_when_it_is_given_up_meanwhile(monkeypatch):
    monkeypatch.setattr(threads, "GIVEN_UP_S", LONG_S)
    over, asked = threading.Event(), []

    def given_up():
        asked.append(True)
        if len(asked) == 2:
            threading.Timer(0.3, over.set).start()
        return len(asked) == 2

    assert result_within(lambda: over.wait(LONG_S), LONG_S, given_up)
    assert len(asked) == 2, "whoever has given it up isn't asked again"
