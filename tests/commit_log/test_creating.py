"""How long a store that gives no answer is asked, and how often that is said."""

from __future__ import annotations

import logging

import pytest

from commit_log.stores import MemoryStore
from onceforall.commit_log import creating
from onceforall.commit_log.creating import Creator, NoAnswerError
from support.patching import replace_here

KEY, CONTENT = "chains/00000000/00000001.json", b"an entry"


class Away(MemoryStore):
    """It gives no answer the first times."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def create(self, key, content):
        if self.times > 0:
            self.times -= 1
            raise OSError("no route, then restart the query.")
        return super().create(key, content)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass by sleeping alone."""

    class Clock:
        now_s = 1000.0

        def monotonic(self):
            return self.now_s

        def sleep(self, seconds):
            self.now_s += seconds

    made = Clock()
    replace_here(monkeypatch, creating.time, "monotonic", made.monotonic)
    return made


@pytest.mark.parametrize(
    ("times", "said"), [(0, 0), (2, 0), (3, 1), (14, 1), (15, 2), (26, 2), (27, 3)]
)
def test_a_store_that_is_away_is_asked_every_five_seconds_and_that_is_said_each_minute(
    clock, caplog, times, said
):
    caplog.set_level(logging.INFO)
    began_s = clock.now_s
    create = Creator(Away(times), (100, 200), clock.sleep, lambda: True)
    assert create(KEY, CONTENT) == (CONTENT, times > 0)
    waited_s = 0.1 * (times > 0) + 0.2 * (times > 1) + 5 * max(0, times - 2)
    assert clock.now_s - began_s == pytest.approx(waited_s)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == said
    for line in lines:
        assert f"{KEY} can't be created" in line
        assert line.endswith("every 5 s until there is an answer or the query is stopped: no route")


def test_where_nobody_waits_it_is_asked_a_few_times_and_nothing_is_said(clock, caplog):
    create = Creator(Away(1000), (100, 200), clock.sleep)
    with pytest.raises(NoAnswerError, match="tried 3 times to create it"):
        create(KEY, CONTENT)
    assert clock.now_s == pytest.approx(1000.3)
    assert not caplog.records


def test_who_stops_waiting_is_heard_within_a_slice_of_a_pause(clock):
    create = Creator(Away(1000), (100,), clock.sleep, lambda: clock.now_s < 1012)
    with pytest.raises(NoAnswerError, match="tried 4 times to create it"):
        create(KEY, CONTENT)
    assert 1012 <= clock.now_s < 1012 + 2 * creating._SLICE_S
