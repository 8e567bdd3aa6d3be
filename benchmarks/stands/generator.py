"""An open-loop generator: records at a steady rate, each with the time at which it was *meant* to
be sent, whatever holds it up.

``python -m benchmarks.stands.generator config.json`` with ``bootstrap``, ``topic``, ``rate``
(records/s) and ``payload`` (bytes). It goes on until a file ``stop`` appears in its folder, changes
to the rate that a file ``rate`` holds, and leaves ``sent.json`` (records and the largest delay of
the generator itself, ms).

The clock is the machine's real-time clock in nanoseconds, the same for generator and reader, which
run on one machine.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.stands.children import configuration, say
from benchmarks.stands.kafka import TIME_DIGITS, produce_all

_TICK_S = 0.002
_AT_ONCE = 20_000


def main() -> None:
    """Generate until told to stop."""
    from confluent_kafka import Producer

    config = configuration()
    work = Path(config["work"])
    producer = Producer(
        {
            "bootstrap.servers": config["bootstrap"],
            "acks": "all",
            "linger.ms": 1,
            "queue.buffering.max.messages": 2_000_000,
            "delivery.report.only.error": True,
        }
    )
    schedule = Schedule(config["rate"], time.time_ns())
    tail = b"x" * max(0, config["payload"] - TIME_DIGITS)
    sent, worst_ns, look_at_s = 0, 0, 0.0
    say(work, "started.json", {})
    while not (work / "stop").exists():
        now_ns = time.time_ns()
        if time.monotonic() > look_at_s:
            look_at_s = time.monotonic() + 0.1
            rate = _wanted_rate(work)
            if rate is not None and rate != schedule.rate:
                schedule = Schedule(rate, now_ns)
        due = schedule.due(now_ns, _AT_ONCE)
        if due:
            worst_ns = max(worst_ns, now_ns - due[0])
            produce_all(producer, config["topic"], [b"%020d" % at_ns + tail for at_ns in due])
            sent += len(due)
        if len(due) < _AT_ONCE:
            producer.poll(_TICK_S)
    producer.flush(30)
    say(work, "sent.json", {"records": sent, "worst_delay_ms": worst_ns / 1e6})


class Schedule:
    """When each record is meant to be sent."""

    def __init__(self, rate: float, start_ns: int) -> None:
        self.rate = rate
        self._start_ns = start_ns
        self._sent = 0

    def due(self, now_ns: int, most: int) -> list[int]:
        """Return the intended times of the records that are due and were not returned before, in
        order, at most so many.
        """
        first = self._sent
        self._sent = min(first + most, int((now_ns - self._start_ns) * self.rate / 1e9) + 1)
        return [
            self._start_ns + int(number * 1e9 / self.rate) for number in range(first, self._sent)
        ]


def _wanted_rate(work: Path) -> float | None:
    try:
        return float((work / "rate").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    main()
