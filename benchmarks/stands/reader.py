"""A reader at ``read_committed`` that notes how long after its intended time each record arrived.

``python -m benchmarks.stands.reader config.json`` with ``bootstrap``, ``topic`` and ``partitions``
(numbers to read; at high rates one of them is a fair sample, since no record has a key). It goes on
until a file ``stop`` appears, and leaves ``arrivals.npy``: int64 pairs (intended, arrived) in ns of
the real-time clock. ``first.json`` appears with the first record, ``latest.json`` each half second.

The arrival is when the client hands a bundle of records over: at most 5 ms later than the first of
them came, the same for everybody.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.stands.children import configuration, say
from benchmarks.stands.kafka import TIME_DIGITS

_BUNDLE_S = 0.005
_TELL_EVERY_S = 0.5


def main() -> None:
    """Read until told to stop."""
    from confluent_kafka import Consumer, TopicPartition

    config = configuration()
    work = Path(config["work"])
    consumer = Consumer(
        {
            "bootstrap.servers": config["bootstrap"],
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(config["topic"], number, 0) for number in config["partitions"]])
    intended: list[np.ndarray] = []
    arrived: list[np.ndarray] = []
    count, tell_at_s = 0, 0.0
    say(work, "started.json", {})
    while not (work / "stop").exists():
        messages = consumer.consume(20_000, _BUNDLE_S)
        now_ns = time.time_ns()
        values = [
            value[:TIME_DIGITS]
            for message in messages
            if message.error() is None and (value := message.value()) is not None
        ]
        if values:
            if not count:
                say(work, "first.json", {"arrived_ns": now_ns})
            count += len(values)
            intended.append(np.array(values, dtype=f"S{TIME_DIGITS}").astype(np.int64))
            arrived.append(np.full(len(values), now_ns, dtype=np.int64))
        if time.monotonic() > tell_at_s and count:
            tell_at_s = time.monotonic() + _TELL_EVERY_S
            say(
                work,
                "latest.json",
                {
                    "arrived_ns": int(arrived[-1][-1]),
                    "intended_ns": int(intended[-1].max()),
                    "records": count,
                },
            )
    consumer.close()
    pairs = (
        np.stack([np.concatenate(intended), np.concatenate(arrived)])
        if count
        else np.empty((2, 0), dtype=np.int64)
    )
    np.save(work / "arrivals.npy", pairs)
    say(work, "read.json", {"records": count})


if __name__ == "__main__":
    main()
