"""The time that a transaction has left goes on while the machine is suspended, as the brokers' does."""

import time

from onceforall.common import clock


def test_the_clock_is_the_one_that_goes_on_while_the_machine_sleeps(monkeypatch):
    asked = []
    monkeypatch.setattr(time, "clock_gettime", lambda which: asked.append(which) or 12.5)
    assert clock.now_s() == 12.5
    assert asked == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]
