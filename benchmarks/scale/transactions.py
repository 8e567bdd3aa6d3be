"""What a batch of many Kafka transactions costs the driver, on a real broker: ``python -m
benchmarks.scale.transactions``.

So many transactions are opened and written to by processes that stand for executors, each of them
live and prepared, as at the end of a batch's job. Then the driver's side of the sink does what it
does for a batch, and is timed: *confirm*, the bytes and the time of *encoding* the decision, and
*commit*. In the end as many are left open, and a new run's *recovery* fences them.

Prints the figures, writes them to ``--out``, and with ``--page`` the page for people. What is
projected to more executors is arithmetic on these figures, and says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import sys
import threading
import time
import tracemalloc
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import Self

import onceforall as ofa
from evidence.digests import scale_digest
from onceforall.commit_log import envelope
from onceforall.embedded import EmbeddedKafka
from onceforall.protocol.entries import Commit, Digest
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import StartInfo, TaskAttempt

_COUNTS = (1, 10, 100, 500, 1000)
_EXECUTORS = 4
_PARTITIONS = 24
_RECORDS = 20
_OPENED_WITHIN_S = 600.0
_TIMEOUT_MS = 900_000
PROJECTED = ((10, 40), (100, 400), (1000, 4000))
"""Executors, and tasks of a batch if each has four cores."""
TARGETS = {"commit_s": (500, 1.0), "recovery_s": (1000, 3.0), "bytes": (500, 200.0)}
"""By figure: at how many transactions, and the most that it may be."""


def _sink(servers: str, topic: str) -> ofa.KafkaSink:
    options = {"bootstrap.servers": servers, "transaction.timeout.ms": _TIMEOUT_MS}
    return ofa.KafkaSink(options, topic=topic)


def _executor(  # noqa: PLR0917
    servers: str, topic: str, query: str, batch: int, places: Sequence[int], answers: Any
) -> None:
    """Prepare a transaction for each place, and hold all of them until it is killed."""
    sink = _sink(servers, topic)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 100] * _RECORDS, pa.binary())})
    found = []
    for place in places:
        attempt = TaskAttempt(query, "out", 0, batch, 0, place, place)
        transaction = sink.begin_transaction(attempt)
        sink.invoke(transaction, rows)
        committable = sink.pre_commit(transaction)
        assert committable is not None
        found.append({**committable, "task": [0, place]})
    answers.put(found)
    threading.Event().wait()


def measure(broker: EmbeddedKafka, count: int, repeats: int) -> dict[str, Any]:
    """Return the figures for so many transactions: medians of the repeats, and each of them."""
    topic, query = f"scale-{count}-{uuid.uuid4().hex[:6]}", str(uuid.uuid4())
    broker.create_topic(topic, partitions=_PARTITIONS)
    sink = _sink(broker.bootstrap_servers, topic)
    sink.check(StartInfo(query, "out"))
    times: dict[str, list[float]] = {"confirm_s": [], "encode_s": [], "commit_s": []}
    size = memory = 0
    for batch in range(repeats):
        with _Prepared(broker.bootstrap_servers, topic, query, batch, count) as prepared:
            tracemalloc.start()
            with _Timed(times["confirm_s"]):
                confirmed = list(sink.confirm(prepared.committables))
            entry = Commit(
                batch, ("{}",), {"out": tuple(confirmed)}, {"out/0": (Digest(20, 1),) * count}
            )
            with _Timed(times["encode_s"]):
                content = envelope.encode(
                    entry, nonce="", generation=0, index=1, written_at=datetime.now(timezone.utc)
                )
            size = len(content)
            memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            with _Timed(times["commit_s"]):
                report = sink.commit(CommitPermit(0, 1, batch), confirmed)
            assert not report.lost, report
    with _Prepared(broker.bootstrap_servers, topic, query, repeats, count):
        successor = _sink(broker.bootstrap_servers, topic)
        successor.check(StartInfo(query, "out"))
        recovered: list[float] = []
        with _Timed(recovered):
            fenced = successor.recover(Sweep(query, "out", 1))
        assert fenced == count, fenced
        successor.close()
    sink.close()
    return {
        "transactions": count,
        **{name: round(statistics.median(each), 3) for name, each in times.items()},
        "each": {name: [round(one, 3) for one in each] for name, each in times.items()},
        "entry_bytes": size,
        "bytes": round(size / count, 1),
        "driver_peak_kb": round(memory / 1024),
        "recovery_s": round(recovered[0], 3),
    }


class _Timed:
    def __init__(self, into: list[float]) -> None:
        self._into = into

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._into.append(time.perf_counter() - self._began)


class _Prepared:
    """Transactions that are open and prepared, in processes of their own."""

    def __init__(self, servers: str, topic: str, query: str, batch: int, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._answers = context.Queue()
        shares = [range(count)[n::_EXECUTORS] for n in range(min(_EXECUTORS, count))]
        self._processes = [
            context.Process(
                target=_executor,
                args=(servers, topic, query, batch, share, self._answers),
            )
            for share in shares
        ]
        self.committables: list[Any] = []

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        for _ in self._processes:
            self.committables += self._answers.get(timeout=_OPENED_WITHIN_S)
        self.committables.sort(key=lambda each: each["task"])
        # They are elsewhere, in a cluster: here their idle threads would take this machine's cores.
        for process in self._processes:
            os.kill(int(process.pid or 0), signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join(60)


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence per target."""
    by_count = {row["transactions"]: row for row in rows}
    return [
        f"{name} at {count} transactions: {by_count[count][name]} (target {most}): "
        f"{'met' if by_count[count][name] <= most else 'MISSED'}"
        for name, (count, most) in TARGETS.items()
        if count in by_count
    ]


TEMPLATE = Path(__file__).with_name("scale.template.md")


def page_of(rows: Sequence[dict[str, Any]], repeats: int) -> str:
    """Return the page."""
    columns = ("confirm_s", "encode_s", "commit_s", "entry_bytes", "bytes", "driver_peak_kb")
    last = rows[-1]
    return TEMPLATE.read_text(encoding="utf-8").format(
        cores=os.cpu_count(),
        partitions=_PARTITIONS,
        records=_RECORDS,
        repeats=repeats,
        rows="\n".join(
            f"| {row['transactions']} | "
            + " | ".join(f"{row[name]:,}" for name in (*columns, "recovery_s"))
            + " |"
            for row in rows
        ),
        targets="\n".join(
            "| " + " | ".join(each.rsplit(": ", 1)) + " |" for each in verdicts(rows)
        ),
        projected="\n".join(
            f"| {executors:,} | {tasks:,} | {2 * tasks:,} | {round(tasks * last['bytes']):,} |"
            for executors, tasks in PROJECTED
        ),
        most=last["transactions"],
        whole=round(last["confirm_s"] + last["encode_s"] + last["commit_s"], 2),
        digest=scale_digest(),
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="*", default=list(_COUNTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default="build/bench/scale.json")
    parser.add_argument("--page", help="a file for the page")
    given = parser.parse_args()
    rows = []
    with EmbeddedKafka() as broker:
        for count in given.counts:
            rows.append(measure(broker, count, given.repeats))
            print(json.dumps(rows[-1]), flush=True)
    for sentence in verdicts(rows):
        print(sentence)
    out = Path(given.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if given.page:
        Path(given.page).write_text(page_of(rows, given.repeats), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
