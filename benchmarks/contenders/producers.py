"""Producers alone: what the broker and the two clients can do when nothing else is to be done.

- Kafka's own benchmark (``org.apache.kafka.tools.ProducerPerformance``), plain or with
  transactions.
- librdkafka through confluent-kafka: ``python -m benchmarks.contenders.producers config.json`` with
  ``bootstrap``, ``topic``, ``records``, ``payload``, ``options`` and ``transactional``; one
  ``produce`` per record from a list that is there already.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.contenders.jars import producer_benchmark
from benchmarks.settings import TRANSACTION_TIMEOUT_MS, Load
from benchmarks.stands.children import Child, configuration, say
from benchmarks.stands.kafka import produce_all
from onceforall.embedded.java import find_java

_AT_ONCE = 5_000
_FLUSH_DEADLINE_S = 300.0
_TRANSACTION_S = 1.0


def start_java(work: Path, load: Load, servers: str, topic: str, *, transactional: bool) -> Child:
    """Start Kafka's own producer benchmark, as fast as it goes."""
    settings = {"bootstrap.servers": servers, **load.producer()}
    if transactional:
        settings["transaction.timeout.ms"] = str(TRANSACTION_TIMEOUT_MS)
    command = [str(find_java()), "-Xmx1g", "-cp", os.pathsep.join(map(str, producer_benchmark()))]
    command += [
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        str(load.records),
    ]
    command += ["--record-size", str(load.payload), "--throughput", "-1"]
    command += ["--command-property", *(f"{name}={value}" for name, value in settings.items())]
    if transactional:
        command += [
            "--transactional-id",
            f"bench-{topic}",
            "--transaction-duration-ms",
            str(round(1000 * _TRANSACTION_S)),
        ]
    return Child(command, work)


def main() -> None:
    """Produce with librdkafka."""
    from confluent_kafka import Producer

    config = configuration()
    transactional = config["transactional"]
    options: dict[str, Any] = {
        "bootstrap.servers": config["bootstrap"],
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 500_000,
        "delivery.report.only.error": True,
        **config["options"],
    }
    if transactional:
        options |= {
            "transactional.id": f"bench-{config['topic']}",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
    producer = Producer(options)
    if transactional:
        producer.init_transactions(60)
        producer.begin_transaction()
    values = [os.urandom(config["payload"] // 2).hex().encode() for _ in range(_AT_ONCE)]
    commit_at_s = time.monotonic() + _TRANSACTION_S
    for _ in range(0, config["records"], _AT_ONCE):
        produce_all(producer, config["topic"], values)
        if transactional and time.monotonic() > commit_at_s:
            producer.commit_transaction(_FLUSH_DEADLINE_S)
            producer.begin_transaction()
            commit_at_s = time.monotonic() + _TRANSACTION_S
    if transactional:
        producer.commit_transaction(_FLUSH_DEADLINE_S)
    left = producer.flush(_FLUSH_DEADLINE_S)
    say(Path(config["work"]), "sent.json", {"left": left})


if __name__ == "__main__":
    main()
