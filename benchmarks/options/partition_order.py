"""What it saves that librdkafka gets the records of one partition in a row.

``python -m benchmarks.options.partition_order [--records 4000000] [--rounds 7]``

The same Arrow batches go through the Kafka sink's own transaction, in this process, to a real
broker: with the partitions chosen by the sink, and with librdkafka's partitioner for one record
after the other; with keys (of 36 bytes) and without. In each round each of them runs once, in an
order that changes. CPU is that of this process, which includes librdkafka's threads. Everything
goes to ``build/bench/partition_order.json``, and as a table to the terminal; nothing of it is part
of ``results.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import uuid
from typing import Any

import psutil

from benchmarks.report import figures
from benchmarks.settings import FOLDER, Load
from benchmarks.stands.kafka import Broker
from onceforall import KafkaSink
from onceforall.sink import TaskAttempt
from onceforall.sinks.kafka.task.partitioning import PartitionRules

_ROWS = 20_000
LIBRDKAFKAS = PartitionRules(keyed=False, keyless=False, refresh_s=300)


def send(broker: Broker, load: Load, batches: Any, *, by_sink: bool) -> float:
    """Send all records in one transaction, and return the CPU time that it took this process, in
    microseconds per record.
    """
    topic = broker.make_topic(load.partitions)
    sink = KafkaSink({"bootstrap.servers": broker.servers, **load.producer()}, topic=topic)
    transaction = sink.begin_transaction(TaskAttempt(str(uuid.uuid4()), "out", 0, 0, 0, 0, 0))
    if not by_sink:
        transaction._rules = LIBRDKAFKAS  # noqa: SLF001  no option leaves the same partitioner to librdkafka
    before, sent = psutil.Process().cpu_times(), 0
    while sent < load.records:
        batch = batches[sent // _ROWS % len(batches)]
        sink.invoke(transaction, batch)
        sent += batch.num_rows
    committable = sink.pre_commit(transaction)
    after = psutil.Process().cpu_times()
    assert committable is not None
    assert committable["records"] == sent
    sink.abort([committable])
    sink.close()
    broker.delete(topic)
    return float(1e6 * (sum(after[:2]) - sum(before[:2])) / sent)


def made(load: Load, *, keyed: bool) -> Any:
    """Return some Arrow batches."""
    import pyarrow as pa

    chance = random.Random(1)  # noqa: S311  not for secrets
    found = []
    for _ in range(10):
        values = pa.array(
            [b"%020d" % number + b"x" * (load.payload - 20) for number in range(_ROWS)]
        )
        keys = pa.array(
            [str(uuid.UUID(int=chance.getrandbits(128))).encode() for _ in range(_ROWS)]
        )
        found.append(
            pa.RecordBatch.from_pydict({"value": values, **({"key": keys} if keyed else {})})
        )
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description="Records by partition, beside records in their own order."
    )
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--payload", type=int, default=100)
    arguments = parser.parse_args()
    load = Load(records=arguments.records, payload=arguments.payload)
    found: dict[str, dict[int, float]] = {}
    with Broker() as broker:
        for keyed in (True, False):
            batches = made(load, keyed=keyed)
            kind = "with keys" if keyed else "without keys"
            send(broker, load, batches, by_sink=True)
            for number in range(arguments.rounds):
                for by_sink in (number % 2 == 0, number % 2 == 1):
                    name = f"{kind}, {'the sink' if by_sink else 'librdkafka'} chooses"
                    found.setdefault(name, {})[number] = round(
                        send(broker, load, batches, by_sink=by_sink), 4
                    )
            ours, theirs = (found[f"{kind}, {who} chooses"] for who in ("the sink", "librdkafka"))
            ratio = figures.spread(figures.ratios(ours, theirs))
            for name, values in found.items():
                if name.startswith(kind):
                    print(
                        f"{name:35} {figures.spread(list(values.values())).median:6.3f} us of CPU "
                        "per record",
                        flush=True,
                    )
            print(
                f"{kind}: ratio {ratio.median:.2f} ({ratio.least:.2f} to {ratio.most:.2f})",
                flush=True,
            )
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"load": load.parameters(), "cpu_us_per_record": found}, indent=1)
    (FOLDER / "partition_order.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
