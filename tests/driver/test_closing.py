"""A sink that raises when it is closed, or hangs, keeps no other one open, and hides no error."""

import threading
from asyncio import CancelledError

import pytest

from onceforall.driver import closing
from onceforall.driver.closing import close_all
from support.waiting import until


class Sink:
    def __init__(self, error=None):
        self.error, self.times = error, 0

    def close(self):
        self.times += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("no"), SystemExit(3), OSError(5, "no"), CancelledError(), KeyboardInterrupt()],
)
def test_each_is_closed_and_what_one_raises_is_told_with_its_name(caplog, error):
    sinks = {"first": Sink(error), "second": Sink()}
    close_all(sinks)
    assert [sink.times for sink in sinks.values()] == [1, 1]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "closing sink first" in record.getMessage()


class HangingSink(Sink):
    def __init__(self):
        super().__init__()
        self.may_end = threading.Event()

    def close(self):
        assert self.may_end.wait(60)
        super().close()


def test_one_whose_close_hangs_is_not_waited_for_and_the_others_are_closed(monkeypatch, caplog):
    monkeypatch.setattr(closing, "SLOW_CLOSE_S", 0.1)
    sinks = {"first": HangingSink(), "second": Sink()}
    close_all(sinks)
    assert [sink.times for sink in sinks.values()] == [0, 1]
    (record,) = caplog.records
    assert "closing sink first has not ended" in record.getMessage()
    sinks["first"].may_end.set()
    until(lambda: sinks["first"].times == 1, 10, "the first one is closed")
