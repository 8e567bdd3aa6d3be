"""The partitions of a whole slice of records, chosen at once, so that librdkafka gets the records
of one partition in a row.

librdkafka's own partitioner looks at one record after the other, and records that alternate between
partitions cost it more CPU than records in a row. So what it would choose is computed here, by
numpy, and the records are put in the order of their partitions; within a partition, and so within a
key, they keep the order of the rows.

A key goes where the Java producer, and so Spark's own sink, puts it: ``murmur2(key) mod count``,
see ``partitionForKey`` of ``BuiltInPartitioner`` and ``murmur2`` of ``Utils`` in Apache Kafka
(https://github.com/apache/kafka/tree/trunk/clients/src/main/java/org/apache/kafka), and
``murmur2_random`` of librdkafka. A record without a key has no place of its own: as with the sticky
partitioner of KIP-480, they go to one partition, which has a leader, until it has got a MiB or the
slice ends, and then to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.sinks.kafka.task import librdkafka
from onceforall.sinks.kafka.task.records import bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

LIKE_JAVA = "murmur2_random"
"""The value of the option ``partitioner`` that is computed here; any other is left to
librdkafka."""

_REFRESH_OPTION = "topic.metadata.refresh.interval.ms"
_DEFAULT_REFRESH_MS = 300_000
_STICKY_OPTION = "sticky.partitioning.linger.ms"

_SEED, _FACTOR = 0x9747B28C, 0x5BD1E995
_LONGEST_KEY_BYTES = 1024
_STICKY_BITS = 20
"""A partition gets 2^20 bytes of records without a key before the next one does: about a batch
of librdkafka's."""

NO_KEY, LONG_KEY = -1, -2
"""What stands for the hash of a null, and of a key that is too long to be worth it, whose
partition librdkafka computes."""

UNASSIGNED = librdkafka.PARTITION_UNASSIGNED
"""librdkafka chooses the partition."""


@dataclass(frozen=True)
class Partitions:
    """The partitions of a topic, as a broker told them.

    Attributes:
        count: how many there are.
        led: those that have a leader.
        asked_s: when, by ``time.monotonic``.
    """

    count: int
    led: tuple[int, ...]
    asked_s: float


@dataclass(frozen=True)
class PartitionRules:
    """What of the choice is made here, by the options.

    Attributes:
        keyed: the partitions of keys.
        keyless: those of records without a key.
        refresh_s: after how long a topic's partitions are asked for anew.
    """

    keyed: bool
    keyless: bool
    refresh_s: float

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> PartitionRules:
        """Read the options of a sink, which have been checked."""
        keyed = options.get("partitioner", LIKE_JAVA) == LIKE_JAVA
        refresh_ms = int(options.get(_REFRESH_OPTION, _DEFAULT_REFRESH_MS))
        return cls(
            keyed,
            keyed and _STICKY_OPTION not in options,
            refresh_ms / 1000 if refresh_ms >= 0 else float("inf"),
        )

    def place(
        self,
        given: npt.NDArray[np.int32] | None,
        hashes: npt.NDArray[np.int64] | None,
        sizes: npt.NDArray[np.uint64],
        topic: Partitions,
        turn: int,
    ) -> npt.NDArray[np.int32] | None:
        """Return the partition of each of a slice's records that go to one topic.

        Args:
            given: what the rows say themselves; ``UNASSIGNED`` where they say nothing. None:
                nowhere.
            hashes: of their keys (``key_hashes``); None: there are no keys.
            sizes: of their values, in bytes.
            topic: where they go.
            turn: which of the partitions is next for records without a key.

        Returns:
            The partitions, some of them perhaps ``UNASSIGNED``; None when librdkafka is to choose
            them all.
        """
        import numpy as np

        if not self.keyed:
            return given
        if self.keyless and topic.led:
            led = np.array(topic.led, np.int32)
            placed = led[
                ((np.cumsum(sizes) >> np.uint64(_STICKY_BITS)).astype(np.int64) + turn) % len(led)
            ]
        else:
            placed = np.full(len(sizes), UNASSIGNED, np.int32)
        if hashes is not None:
            keyed = np.where(hashes >= 0, hashes % topic.count, UNASSIGNED).astype(np.int32)
            placed = np.where(hashes == NO_KEY, placed, keyed)
        return placed if given is None else np.where(given >= 0, given, placed)


def order_of(placed: npt.NDArray[np.int32]) -> npt.NDArray[np.intp] | None:
    """Return the order in which the records of a partition follow one another, each partition's as
    they were.

    Returns:
        Their numbers; None when they are to stay as they are: they are in this order, or librdkafka
        still has to choose for some, which may belong to a partition that others are already in.
    """
    import numpy as np

    if (
        not len(placed)
        or bool((placed[1:] >= placed[:-1]).all())
        or bool((placed == UNASSIGNED).any())
    ):
        return None
    # numpy sorts 16 bits by counting.
    narrow = placed.astype(np.int16) if int(placed.max()) <= np.iinfo(np.int16).max else placed
    return np.argsort(narrow, kind="stable")


def key_hashes(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Return what the partitions of keys are computed from: a key's hash without its sign,
    ``NO_KEY`` for a null, or ``LONG_KEY``.
    """
    import numpy as np

    first, sizes, data = bytes_of(keys)
    if keys.null_count:
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.where(valid, sizes, 0)
    is_long = sizes > _LONGEST_KEY_BYTES
    unsigned = _murmur2(first, np.where(is_long, 0, sizes), data) & np.uint32(0x7FFFFFFF)
    hashes: npt.NDArray[np.int64] = unsigned.astype(np.int64)
    hashes[is_long] = LONG_KEY
    if keys.null_count:
        hashes[~valid] = NO_KEY
    return hashes


def _murmur2(
    first: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], data: pa.Buffer | None
) -> npt.NDArray[np.uint32]:
    """Return the hash of each byte string of a buffer; all of them advance together, four bytes
    at a time.
    """
    import numpy as np

    factor = np.uint32(_FACTOR)
    held = (
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    )
    # The four bytes at any place, be it aligned or not.
    words = (
        np.ndarray((max(len(held) - 3, 0),), "<u4", held, strides=(1,))
        if len(held) > 3
        else np.zeros(0, np.uint32)
    )
    hashes: npt.NDArray[np.uint32] = np.uint32(_SEED) ^ sizes.astype(np.uint32)
    counts = sizes >> 2
    most, least = (int(counts.max()), int(counts.min())) if len(counts) else (0, 0)
    for i in range(most):
        longer = slice(None) if i < least else np.flatnonzero(counts > i)
        word = words[first[longer] + 4 * i] * factor
        word ^= word >> np.uint32(24)
        word *= factor
        hashes[longer] = (hashes[longer] * factor) ^ word
    rest = sizes & 3
    behind = first + (sizes - rest)
    for place in (2, 1, 0):
        some = np.flatnonzero(rest > place)
        hashes[some] ^= held[behind[some] + place].astype(np.uint32) << np.uint32(8 * place)
    some = np.flatnonzero(rest)
    hashes[some] *= factor
    hashes ^= hashes >> np.uint32(13)
    hashes *= factor
    hashes ^= hashes >> np.uint32(15)
    return hashes
