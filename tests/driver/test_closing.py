"""A sink that raises when it is closed keeps no other one open, and hides no error."""

from asyncio import CancelledError

import pytest

from onceforall.driver.closing import close_all


class Sink:
    def __init__(self, error=None):
        self.error, self.times = error, 0

    def close(self):
        self.times += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error", [RuntimeError("no"), SystemExit(3), OSError(5, "no"), CancelledError()]
)
def test_each_is_closed_and_what_one_raises_is_told_with_its_name(caplog, error):
    sinks = {"first": Sink(error), "second": Sink()}
    close_all(sinks)
    assert [sink.times for sink in sinks.values()] == [1, 1]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "closing sink first" in record.getMessage()


def test_ctrl_c_while_one_is_closed_is_raised_when_all_are():
    sinks = {"first": Sink(), "second": Sink(KeyboardInterrupt()), "third": Sink()}
    with pytest.raises(KeyboardInterrupt):
        close_all(sinks)
    assert [sink.times for sink in sinks.values()] == [1, 1, 1]
