"""State backends: one choice each for state in memory and for state on disk, as settings that you
give the session yourself.

::

    builder = SparkSession.builder.config(map=rocksdb_state())          # or: for k, v in
    rocksdb_state().items(): spark.conf.set(k, v)

Nothing in this library sets them behind your back. Spark notes the provider in the checkpoint at
the first batch, and keeps to it: another one needs a new checkpoint. docs/operators.md says what to
pick when; ``benchmarks/options/state_backends.py`` measures both.

Names and meanings are Spark's own:
https://spark.apache.org/docs/latest/streaming/apis-on-dataframes-and-datasets.html#state-store
"""

from __future__ import annotations

from onceforall.common.arguments import shown
from onceforall.errors import OptionError

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MEMORY_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"


def memory_state() -> dict[str, str]:
    """Return settings for state in the executors' memory, with a file of changes per batch in the
    checkpoint.

    For small state (up to some hundred thousand keys per executor): the fastest reads, but all of
    it lies on the JVM's heap, two versions of it, and its garbage collection grows with it. A
    snapshot of everything is written every ten batches. ``transformWithState``, and so the
    operators of this package that use it, does not run on it.
    """
    return {
        PROVIDER: MEMORY_PROVIDER,
        # Each version is a map of its own on the heap; two is what a replay of the last batch
        # needs.
        "spark.sql.streaming.maxBatchesToRetainInMemory": "2",
        "spark.sql.streaming.stateStore.compression.codec": "lz4",
    }


def rocksdb_state(*, memory_mb: int | None = None) -> dict[str, str]:
    """Return settings for state in RocksDB on each executor's local disk, with changelog
    checkpoints.

    For everything else: state may be many times larger than memory, lies outside of the JVM's heap,
    and a batch uploads only what it changed (the changelog); whole snapshots are taken by a thread
    in the background.

    Args:
        memory_mb: bounds what all RocksDB instances of an executor take together for caches and
            write buffers, in MiB: set it where many partitions share an executor. None: each
            instance takes up to some 200 MB.

    Raises:
        OptionError: `memory_mb` is not positive.
    """
    if memory_mb is not None and (
        isinstance(memory_mb, bool) or not isinstance(memory_mb, int) or memory_mb < 1
    ):
        raise OptionError(
            f"memory_mb={shown(memory_mb)} is no whole number of MiB from 1 on. Leave it out for "
            "no bound."
        )
    settings = {
        PROVIDER: ROCKSDB_PROVIDER,
        # A batch's changes are uploaded instead of the files that they came to lie in.
        f"{_ROCKSDB}.changelogCheckpointing.enabled": "true",
        # Counting the keys costs a read before each write.
        f"{_ROCKSDB}.trackTotalNumberOfRows": "false",
    }
    if memory_mb is not None:
        settings |= {
            f"{_ROCKSDB}.boundedMemoryUsage": "true",
            f"{_ROCKSDB}.maxMemoryUsageMB": str(memory_mb),
        }
    return settings
