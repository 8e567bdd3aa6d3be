"""Steady traffic through a pipeline: an open-loop generator before it, and a reader at
``read_committed`` behind it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from benchmarks.report import figures
from benchmarks.report.results import Sample
from benchmarks.stands.children import Child, MeasurementError
from benchmarks.stands.kafka import Broker

FEW_PER_S = 20_000
"""Up to this rate all partitions are read, beyond it one of them: the reader must not take what
the contender needs."""
FIRST_RATE_PER_S = 200.0
_START_DEADLINE_S = 180.0


class Traffic:
    """Generator and reader around a pair of topics.

    A context manager; it has its own input topic, since what is sent is only of use once.
    """

    def __init__(
        self, broker: Broker, partitions: int, payload: int, work: Path, *, few: bool = True
    ) -> None:
        """Create the topics; nothing runs yet.

        Args:
            broker: where.
            partitions: of both topics.
            payload: bytes of a value.
            work: folder of both processes.
            few: whether no more than `FEW_PER_S` will be sent, so that all partitions are read.
        """
        self._broker = broker
        self.servers = broker.servers
        self._payload = payload
        self._work = work
        self.source = broker.make_topic(partitions, "out-lat")
        self.target = broker.make_topic(partitions)
        self._read = list(range(partitions)) if few else [0]
        self.share_read = len(self._read) / partitions

    def __enter__(self) -> Self:
        source = {
            "bootstrap": self._broker.servers,
            "topic": self.source,
            "rate": FIRST_RATE_PER_S,
            "payload": self._payload,
        }
        self._generator = Child("benchmarks.stands.generator", self._work / "generator", source)
        target = {"bootstrap": self._broker.servers, "topic": self.target, "partitions": self._read}
        try:
            self._reader = Child("benchmarks.stands.reader", self._work / "reader", target)
        except BaseException:
            self._generator.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._generator.kill()
        self._reader.kill()
        self._broker.delete(self.source, self.target)

    def wait_for_first(self, job: Child) -> None:
        """Wait until the first record has come through.

        Raises:
            MeasurementError: the job ended, or nothing came.
        """
        first = self._work / "reader" / "first.json"
        job.until(first.exists, _START_DEADLINE_S, "its first record was read")
        self.check()

    def set_rate(self, rate: float) -> None:
        """Send so many records per second from now on."""
        new = self._work / "generator" / "rate.new"
        new.write_text(str(rate), encoding="ascii")
        new.rename(self._work / "generator" / "rate")

    def latest(self) -> dict[str, int]:
        """Return what the reader said last: ``arrived_ns``, ``intended_ns`` (the newest) and
        ``records``.
        """
        file = self._work / "reader" / "latest.json"
        found: dict[str, int] = (
            json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        )
        return found or {"arrived_ns": 0, "intended_ns": 0, "records": 0}

    def check(self) -> None:
        """Raise if generator or reader have failed.

        Raises:
            MeasurementError: one has.
        """
        self._generator.check()
        self._reader.check()

    def end(self) -> tuple[np.ndarray[Any, Any], float]:
        """Stop generator and reader.

        Returns:
            int64 pairs (intended, arrived) in ns, and by how many milliseconds the generator itself
            was late at most.
        """
        self._generator.stop()
        self._reader.stop()
        arrivals: np.ndarray[Any, Any] = np.load(self._work / "reader" / "arrivals.npy")
        return arrivals, float(self._generator.said("sent.json")["worst_delay_ms"])


def latencies(arrivals: np.ndarray[Any, Any], start_ns: int, end_ns: int) -> Sample:
    """Return the figures of the records that were meant to be sent between two moments.

    Raises:
        MeasurementError: there is none.
    """
    intended, arrived = arrivals
    chosen = (intended >= start_ns) & (intended < end_ns)
    waits = np.sort((arrived - intended)[chosen]) / 1e6
    if not waits.size:
        raise MeasurementError(
            "No record of the measured time arrived. Is the pipeline slower than the traffic?"
        )
    ordered = waits.tolist()
    return {
        "records": len(ordered),
        "p50_ms": round(figures.percentile(ordered, 0.5), 1),
        "p99_ms": round(figures.percentile(ordered, 0.99), 1),
        "max_ms": round(ordered[-1], 1),
    }


def steady(
    job: Child, traffic: Traffic, rate: float, *, warm_up_s: float, seconds: float
) -> Sample:
    """Send at a rate, and return the latencies of what was meant to be sent in so many seconds,
    after a time to warm up.

    Ends the traffic. A sample has the figures of `latencies`, and: ``rate``, ``generator_late_ms``,
    ``arrived_share`` (1 means all) and ``kept_up``: whether the last record came through within 10
    s of its time.

    Raises:
        MeasurementError: the job or the traffic failed.
    """
    traffic.set_rate(rate)
    _sleep(job, traffic, warm_up_s)
    start_ns = time.time_ns()
    _sleep(job, traffic, seconds)
    end_ns = time.time_ns()
    until_s = time.monotonic() + 10
    while (
        kept_up := traffic.latest()["intended_ns"] >= end_ns
    ) is False and time.monotonic() < until_s:
        _sleep(job, traffic, 0.1)
    # The reader tells of one record; others of its time may be a moment later.
    _sleep(job, traffic, 1)
    arrivals, late_ms = traffic.end()
    sample = latencies(arrivals, start_ns, end_ns)
    expected = rate * (end_ns - start_ns) / 1e9 * traffic.share_read
    return {
        **sample,
        "rate": round(rate),
        "generator_late_ms": round(late_ms, 1),
        "arrived_share": round(sample["records"] / expected, 3),
        "kept_up": kept_up,
    }


def _sleep(job: Child, traffic: Traffic, seconds: float) -> None:
    """Let time pass, as long as everything runs."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(0.5, left_s))
        job.check()
        traffic.check()
