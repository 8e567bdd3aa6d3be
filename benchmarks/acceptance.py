"""Two figures that a reader of the output feels; writes ``build/bench/acceptance.json``.

1. From a task's pre-commit to the record's arrival at a read_committed reader, at a steady rate
(p50, p99, max).
2. After a kill between pre-commit and decision: from the restarted query's first call of
   ``foreachBatch`` until the reader, which the open transactions hold back, moves again.

``python benchmarks/acceptance.py [--rate 2000] [--seconds 60] [--restarts 5]``; everything runs on
this machine, so compare only within one run.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from onceforall.embedded import EmbeddedKafka

OUT = Path("build/bench/acceptance.json")


def job(work: Path, bootstrap: str, topic: str, rate: int, run: str) -> None:
    """Run the query until a file named ``stop`` appears: a child process of this script."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    import onceforall as ofa
    from onceforall.driver.query_run import ExactlyOnceFunction

    class TimedSink(ofa.KafkaSink):
        """Notes when each transaction was pre-committed, and for which partition, in its
        committable.
        """

        def begin_transaction(self, attempt: Any) -> Any:
            transaction: Any = super().begin_transaction(attempt)
            transaction.spark_partition = attempt.partition
            return transaction

        def pre_commit(self, transaction: Any) -> Any:
            committable = super().pre_commit(transaction)
            return committable and {
                **committable,
                "prepared_at": time.time(),
                "partition": transaction.spark_partition,
            }

    call = ExactlyOnceFunction.__call__

    def timed_call(self: ExactlyOnceFunction, batch: DataFrame, batch_id: int) -> None:
        mark = work / f"first-call-{run}"
        if not mark.exists():
            mark.write_text(str(time.time()))
        call(self, batch, batch_id)

    ExactlyOnceFunction.__call__ = timed_call  # type: ignore[method-assign]
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    sink = TimedSink({"bootstrap.servers": bootstrap}, topic=topic)

    @ofa.exactly_once(work / "checkpoint", sinks={"out": sink})
    def process(batch: DataFrame, batch_id: int, transaction: ofa.BatchTransaction) -> None:
        value = F.concat_ws(
            ":",
            F.lit(batch_id),
            F.spark_partition_id(),
            F.rpad(F.col("value").cast("string"), 80, "x"),
        )
        transaction.write("out", batch.select(value.alias("value")))

    rows = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", rate)
        .option("numPartitions", 2)
        .load()
    )
    query = (
        rows.writeStream.foreachBatch(process)
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )
    while query.isActive and not (work / "stop").exists():
        time.sleep(0.05)
    query.stop()
    spark.stop()


class Reader(threading.Thread):
    """A read_committed consumer that notes when each (batch, partition) of records arrived."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Consumer, TopicPartition

        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "r",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.arrivals: list[tuple[int, int, float]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Consume until ``ended``."""
        while not self.ended.is_set():
            for message in self._consumer.consume(1000, 0.02):
                now = time.time()
                batch, partition, _ = (message.value() or b"").split(b":", 2)
                self.arrivals.append((int(batch), int(partition), now))
        self._consumer.close()


def latency(rate: int, seconds: int) -> dict[str, float]:
    """Measure the first figure, in milliseconds."""
    with EmbeddedKafka() as broker, tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        broker.create_topic("out")
        reader = Reader(broker.bootstrap_servers, "out")
        reader.start()
        child = start(work, broker.bootstrap_servers, rate, "0")
        wait_until(lambda: reader.arrivals, child)
        until = time.monotonic() + seconds
        while time.monotonic() < until and child.poll() is None:
            time.sleep(0.2)
        (work / "stop").touch()
        child.wait(60)
        time.sleep(1)
        reader.ended.set()
        reader.join()
        prepared = {}
        for file in (work / "checkpoint" / "onceforall" / "chains").glob("*/0*.json"):
            entry = json.loads(file.read_text())
            if entry["kind"] == "COMMIT":
                for c in entry["body"]["committables"].get("out", []):
                    prepared[entry["body"]["batch"], c["partition"]] = c["prepared_at"]
        first = min(batch for batch, _, _ in reader.arrivals) + 5  # the first batches compile code
        waits = sorted(
            1000 * (at - prepared[b, p])
            for b, p, at in reader.arrivals
            if b >= first and (b, p) in prepared
        )
        if len(waits) < rate * seconds / 4:
            sys.exit(f"only {len(waits)} records were measured; raise --seconds")
        return {
            "records": len(waits),
            "batches": len({b for b, _, _ in reader.arrivals}),
            "p50_ms": round(waits[len(waits) // 2], 1),
            "p99_ms": round(waits[int(len(waits) * 0.99)], 1),
            "max_ms": round(waits[-1], 1),
        }


def recovery(rate: int, restarts: int) -> dict[str, object]:
    """Measure the second figure, in seconds, once per restart."""
    from confluent_kafka import Consumer, TopicPartition

    results = []
    with EmbeddedKafka() as broker, tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        broker.create_topic("out")

        def end(isolation: str) -> int:
            consumer = Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": "e",
                    "isolation.level": isolation,
                }
            )
            high: int = consumer.get_watermark_offsets(
                TopicPartition("out", 0), timeout=10, cached=False
            )[1]
            consumer.close()
            return high

        for n in range(restarts):
            child = start(
                work,
                broker.bootstrap_servers,
                rate,
                f"{n}a",
                failpoint="append_commit.before=kill@5",
            )
            child.wait(120)
            held = end("read_uncommitted")
            if end("read_committed") >= held:
                sys.exit("the killed batch was not prepared: nothing was measured")
            child = start(work, broker.bootstrap_servers, rate, f"{n}b")
            consumer = Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": "p",
                    "isolation.level": "read_committed",
                }
            )
            while (
                consumer.get_watermark_offsets(TopicPartition("out", 0), timeout=10, cached=False)[
                    1
                ]
                < held
            ):
                if child.poll() is not None:
                    sys.exit(f"the restarted query ended:\n{(work / 'log.txt').read_text()}")
                time.sleep(0.005)
            moved = time.time()
            consumer.close()
            results.append(round(moved - float((work / f"first-call-{n}b").read_text()), 3))
            (work / "stop").touch()
            child.wait(60)
            (work / "stop").unlink()
    return {
        "restarts": restarts,
        "seconds": results,
        "median_s": statistics.median(results),
        "max_s": max(results),
    }


def start(
    work: Path, bootstrap: str, rate: int, run: str, failpoint: str = ""
) -> subprocess.Popen[bytes]:
    """Start the query in a child process."""
    environment = {
        **os.environ,
        "ONCEFORALL_FAILPOINTS": failpoint,
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, __file__, "--job", str(work), bootstrap, str(rate), run]
    with (work / "log.txt").open("ab") as log:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def wait_until(condition: object, child: subprocess.Popen[bytes]) -> None:
    """Wait until the query's first records are read."""
    while not condition():  # type: ignore[operator]
        if child.poll() is not None:
            sys.exit("the query ended before it wrote anything")
        time.sleep(0.05)


def main() -> None:
    """Measure both figures."""
    logging.basicConfig(level=logging.WARNING)
    if sys.argv[1:2] == ["--job"]:
        job(Path(sys.argv[2]), sys.argv[3], "out", int(sys.argv[4]), sys.argv[5])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2000, help="records per second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--restarts", type=int, default=5)
    options = parser.parse_args()
    results = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "rate_per_s": options.rate,
        "pre_commit_to_reader": latency(options.rate, options.seconds),
        "first_call_to_reader_moves": recovery(options.rate, options.restarts),
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
