"""Sees that each part of the rows which several readers share is computed once on a cluster.

An RDD that is persisted is computed again wherever a part of it is not found: behind the loss of an
executor, by a speculative copy of a task, or by the second of two tasks of one job that ask for a
part at the same moment on two executors. Where a computation gives other values each time, a row
would then be in both of two sinks, or in none. So there the rows are computed by a job of their
own, and behind the last job each part must be where it was, and nowhere else: an executor's id
never comes back (``BlockManagerMaster`` knows who has what). In how many places a part may be is
what its storage level asks for: Spark itself copies it there, and computes nothing for that.

With one executor, the driver's own, none of that can happen: a part is locked while it is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["KeptBlocks"]

_MANAGER = "BlockManagerId("


class KeptBlocks:
    """The parts of persisted RDDs.

    Args:
        context: Spark's.
        rdds: the JVM's.
    """

    def __init__(self, context: Any, rdds: Iterable[Any]) -> None:
        self._jvm: Any = context._jvm  # noqa: SLF001  Spark offers this in no other way
        self._gateway: Any = context._gateway  # noqa: SLF001
        self._blocks = {int(rdd.id()): (rdd, self._blocks_of(rdd)) for rdd in rdds}
        self._owners: dict[int, list[str]] = {}

    def compute(self) -> bool:
        """Compute what isn't computed yet, each part by one task; tell whether each is there then,
        and in no more places than its storage level asks for.
        """
        alike = True
        for number, (rdd, _) in self._blocks.items():
            rdd.count()
            self._owners[number] = self._where(number)
            most = int(rdd.getStorageLevel().replication())
            alike = alike and all(
                1 <= owner.count(_MANAGER) <= most for owner in self._owners[number]
            )
        return alike

    def are_as_before(self) -> bool:
        """Tell whether no part was computed anew since ``compute``."""
        # What was lost and not looked for since is nowhere.
        return all(
            now == before or _MANAGER not in now
            for number, owners in self._owners.items()
            for before, now in zip(owners, self._where(number), strict=True)
        )

    def _blocks_of(self, rdd: Any) -> Any:
        storage, number = self._jvm.org.apache.spark.storage, int(rdd.id())
        count = int(rdd.getNumPartitions())
        blocks = self._gateway.new_array(storage.BlockId, count)
        for part in range(count):
            blocks[part] = storage.RDDBlockId(number, part)
        return blocks

    def _where(self, number: int) -> list[str]:
        """Return, for each part, Spark's own text of the block managers that have it."""
        blocks = self._blocks[number][1]
        if not len(blocks):
            return []
        master = self._jvm.org.apache.spark.SparkEnv.get().blockManager().master()
        return str(master.getLocations(blocks).mkString("\n")).split("\n")
