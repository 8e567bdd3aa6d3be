"""Who runs from Kafka to Kafka, and how each is started: Spark jobs, Flink jobs, and producers
alone, which are the ceilings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders import flink, producers
from benchmarks.settings import SHORT_BATCHES, Load
from benchmarks.stands.children import Child
from benchmarks.stands.traffic import Traffic

DESCRIPTIONS: Mapping[str, str] = {
    "ours": "onceforall, exactly-once",
    "ours-at-least-once": 'onceforall, `delivery="at_least_once"`',
    "spark": "Spark's own Kafka sink, at-least-once",
    "ours-short-batches": "onceforall, exactly-once, with what makes short batches shorter",
    "spark-short-batches": "Spark's own Kafka sink, with the same",
    "flink": "Flink's KafkaSink, exactly-once",
    "flink-at-least-once": "Flink's KafkaSink, at-least-once",
    "noop": "Spark's Kafka source into nothing",
    "arrow": "Spark's Kafka source into an empty Python function",
    "null": "onceforall into a sink that drops rows",
    "java-producer": "Kafka's own producer benchmark",
    "java-producer-transactional": "the same, with transactions of 1 s",
    "librdkafka": "librdkafka alone, one `produce` per record",
    "librdkafka-transactional": "the same, with transactions of 1 s",
}
"""What each contender of the throughput is."""

PIPELINES = ("ours", "ours-at-least-once", "spark", "flink", "flink-at-least-once")
SHORT = "-short-batches"
"""How the names end of those that write each batch in one task, with `SHORT_BATCHES`."""
SOURCES = ("noop", "arrow", "null")
CEILINGS = (
    "java-producer",
    "java-producer-transactional",
    "librdkafka",
    "librdkafka-transactional",
)


@dataclass(frozen=True)
class Pipe:
    """One run of a pipeline from a topic to a topic.

    Attributes:
        contender: one of `PIPELINES` or `SOURCES`.
        load: the settings.
        servers: the broker.
        source: the input topic.
        target: the output topic.
        starting: ``earliest`` or ``latest``.
        trigger_s: Spark's trigger interval and Flink's checkpoint interval, in seconds; 0 is
            Spark's default, and 1 s for Flink.
        limited: whether Spark's batches are limited to ``load.batch`` records.
        rows: what is written; see ``spark_job.shaped``.
        spark: more settings of Spark.
    """

    contender: str
    load: Load
    servers: str
    source: str
    target: str
    starting: str = "earliest"
    trigger_s: float = 0.0
    limited: bool = True
    rows: str = "value"
    spark: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def within(cls, traffic: Traffic, contender: str, load: Load, **more: Any) -> Pipe:
        """Return one through the topics of a traffic, which takes all that has come into a
        batch; ``more``: other attributes.
        """
        return cls(
            contender, load, traffic.servers, traffic.source, traffic.target, limited=False, **more
        )

    def start(self, work: Path, checkpoint: Path) -> Child:
        """Start it in a process of its own; a checkpoint that is there is continued.

        Raises:
            MeasurementError: Flink is not installed and can't be.
        """
        if self.contender.startswith("flink"):
            return flink.start(work, checkpoint, self._flink())
        return Child("benchmarks.contenders.spark_job", work, self._spark(checkpoint))

    def _spark(self, checkpoint: Path) -> dict[str, Any]:
        source: dict[str, Any] = {"kind": "kafka", "topic": self.source, "starting": self.starting}
        source |= {"options": self.load.consumer(), "batch": self.load.batch if self.limited else 0}
        contender = self.contender.removesuffix(SHORT)
        is_short = contender != self.contender
        return {
            "bootstrap": self.servers,
            "source": source,
            "rows": self.rows,
            "tasks": 1 if is_short else 0,
            "contender": {"ours-at-least-once": "ours", "null": "ours", "spark": "spark-kafka"}.get(
                contender, contender
            ),
            "sinks": self._sinks(),
            "trigger": self.trigger_s,
            "cores": self.load.cores,
            "spark": {**self.load.arrow(), **(SHORT_BATCHES if is_short else {}), **self.spark},
            "checkpoint": str(checkpoint),
        }

    def _sinks(self) -> Sequence[Mapping[str, Any]]:
        if self.contender == "null":
            return [{"kind": "null"}]
        delivery = "at_least_once" if self.contender == "ours-at-least-once" else "exactly_once"
        return [
            {
                "kind": "kafka",
                "topic": self.target,
                "delivery": delivery,
                "options": self.load.producer(),
            }
        ]

    def _flink(self) -> dict[str, Any]:
        return {
            "bootstrap": self.servers,
            "source": self.source,
            "target": self.target,
            "starting": self.starting,
            "interval_ms": round(1000 * (self.trigger_s or 1.0)),
            "guarantee": "at-least-once"
            if self.contender == "flink-at-least-once"
            else "exactly-once",
            "consumer": self.load.consumer(),
            "producer": self.load.producer(),
            "cores": self.load.cores,
        }


def start_ceiling(contender: str, load: Load, servers: str, target: str, work: Path) -> Child:
    """Start one of `CEILINGS`: a producer that writes as many records as the load has."""
    transactional = contender.endswith("-transactional")
    if contender.startswith("java"):
        return producers.start_java(work, load, servers, target, transactional=transactional)
    config = {
        "bootstrap": servers,
        "topic": target,
        "records": load.records,
        "payload": load.payload,
    }
    return Child(
        "benchmarks.contenders.producers",
        work,
        {**config, "options": load.producer(), "transactional": transactional},
    )
