"""The jars that only the benchmarks need, pinned and fetched like those of the embedded servers."""

from __future__ import annotations

from pathlib import Path

from onceforall.embedded import kafka_jars
from onceforall.embedded.jars import PinnedJar, pinned_jar

_FOLDER = "benchmarks"
_TOOLS = PinnedJar(
    "org.apache.kafka",
    "kafka-tools",
    "4.3.1",
    698668,
    "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c",
)
# The newest there is: made for Flink 2.2, and Flink keeps its public interfaces over minor
# releases.
_FLINK_KAFKA = PinnedJar(
    "org.apache.flink",
    "flink-sql-connector-kafka",
    "5.0.0-2.2",
    10666527,
    "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
)


def producer_benchmark() -> list[Path]:
    """Return the class path of ``org.apache.kafka.tools.ProducerPerformance``.

    Raises:
        EmbeddedServerError: a jar can't be fetched, or differs from its pin.
    """
    return [*kafka_jars(), pinned_jar(_TOOLS, _FOLDER)]


def flink_connector() -> Path:
    """Return the jar of Flink's Kafka connector, with all that it needs.

    Raises:
        EmbeddedServerError: it can't be fetched, or differs from its pin.
    """
    return pinned_jar(_FLINK_KAFKA, _FOLDER)
