"""The settings that all contenders share, and how they are spelt for each client."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "bench"

TRANSACTION_TIMEOUT_MS = 600_000
"""Below the broker's limit of 15 minutes; Flink's own default is above it."""

ARROW_BYTES = 2_000_000
"""About what an Arrow batch should hold: fewer rows cost more per row, and more bytes don't stay
in a core's cache from Spark to librdkafka."""

TUNED_CONSUMER = {
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": "8388608",
    "fetch.max.bytes": "67108864",
}
"""What a consumer needs so that it isn't what is measured: the defaults of Spark's Kafka source
cost half of its speed."""

GC = "-XX:G1HeapRegionSize=32m"
"""For Spark's JVM and Flink's: with the regions of 1 MB that a heap of 2 GB gets, each fetch of
8 MB is a humongous object, and in some runs, whoever wrote, G1 marked all the time."""

SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": GC,
    "spark.sql.shuffle.partitions": "2",
    # With any lower limit Spark adds up the size of the Arrow vectors after every row.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "onceforall.worker_daemon",
    "spark.sql.streaming.numRecentProgressUpdates": "100",
    "spark.sql.streaming.minBatchesToRetain": "100",
}
"""For every Spark job, ours and theirs; ``spark.python.unix.domain.socket.enabled`` exists since
4.1."""

SHORT_BATCHES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""What else makes short batches shorter, with a checkpoint on a local disk; Spark's default way
starts processes."""


@dataclass(frozen=True)
class Load:
    """What is moved, and how.

    Attributes:
        records: how many records the input topic is filled with.
        payload: bytes of a record's value.
        partitions: of input and output.
        batch: records per Spark batch (``maxOffsetsPerTrigger``).
        compression: of the producers: ``none``, ``lz4``, ``zstd``, ``snappy`` or ``gzip``.
        linger_ms: how long a producer waits for more records.
        batch_size: bytes of a producer's batch.
        tuned: whether consumers have ``TUNED_CONSUMER``, or their defaults.
        cores: Spark's ``local[n]`` and Flink's parallelism.
    """

    records: int = 10_000_000
    payload: int = 100
    partitions: int = 4
    batch: int = 1_000_000
    compression: str = "none"
    linger_ms: int = 20
    batch_size: int = 262_144
    tuned: bool = True
    cores: int = os.cpu_count() or 2

    def producer(self) -> dict[str, str]:
        """Return the producer's settings; librdkafka and the Java client know them by the same
        names.
        """
        return {
            "acks": "all",
            "linger.ms": str(self.linger_ms),
            "batch.size": str(self.batch_size),
            "compression.type": self.compression,
        }

    def consumer(self) -> dict[str, str]:
        """Return the Java consumer's settings."""
        return dict(TUNED_CONSUMER) if self.tuned else {}

    def arrow(self) -> dict[str, str]:
        """Return Spark's settings for its Arrow batches."""
        return {"spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BYTES // self.payload)}

    def input_topic(self) -> str:
        """Return the name of the input topic, by what it holds: it is filled once."""
        return f"in-{self.payload}-{self.partitions}-{self.records}"

    def for_latency(self) -> Load:
        """Return the same with a short wait for more records: at a low rate a long one would be
        most of what is measured.
        """
        return replace(self, linger_ms=5)

    def parameters(self) -> dict[str, Any]:
        """Return the settings as what results are known by."""
        return asdict(self)
