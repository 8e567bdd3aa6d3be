"""The tasks of a simulated query: producers that write one transaction after the other, as
librdkafka and ``task.producers`` do.

A request that gets no answer is sent again, and makes its producer doubtful; its first copy may
arrive much later. A doubtful producer writes no other transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onceforall.sinks.kafka.names import TransactionalId, format_name
from simulator.brokers.cluster import CONCURRENT_TRANSACTIONS, OK
from simulator.brokers.records import Partition
from simulator.brokers.world import Truth, World

QUERY = "6a3e1c9e-0000-4000-8000-000000000001"
SINK, PREFIX = "out", "onceforall"
_ASKED = 12


class TaskFailedError(Exception):
    """A task's attempt has failed; what it has written stays open."""


@dataclass
class Producer:
    """A live producer.

    Attributes:
        coordinator: where it takes its coordinator to be.
        last_batch: in which it was last used.
        doubtful: a request of it was not answered.
        burnt: ids whose InitProducerId was not answered.
    """

    name: str
    producer_id: int
    epoch: int
    coordinator: int
    last_batch: int = 0
    doubtful: bool = False
    burnt: list[str] = field(default_factory=list)
    sequences: dict[Partition, int] = field(default_factory=dict)


class Tasks:
    """The tasks of one run of the query."""

    def __init__(self, world: World, generation: int) -> None:
        self._world = world
        self._generation = generation
        self._live: dict[str, Producer] = {}
        self._taken: set[str] = set()

    def write(
        self, batch: int, slot: int, reusable: Mapping[str, Any], burnt: Collection[str]
    ) -> tuple[dict[str, Any], Truth]:
        """Write a transaction; return its committable.

        Args:
            batch: which.
            slot: the task's number.
            reusable: committables of the batch before that were completed, by id.
            burnt: ids that may not be taken.

        Raises:
            TaskFailedError: the attempt has failed.
        """
        found: list[tuple[dict[str, Any], Truth]] = []
        for _ in self.writing(batch, slot, reusable, burnt, found):
            self._world.stir()
        return found[0]

    def writing(
        self,
        batch: int,
        slot: int,
        reusable: Mapping[str, Any],
        burnt: Collection[str],
        found: list[tuple[dict[str, Any], Truth]],
    ) -> Iterator[None]:
        """Write a transaction, request by request."""
        producer = self._again(reusable) or self._fresh(slot, reusable, burnt)
        yield
        world = self._world
        if producer.last_batch:
            # It has committed under this very id and epoch, which its coordinator remembers.
            world.cut_off_between_batches(producer.coordinator)
        truth = world.begin(producer.name, producer.producer_id, producer.epoch)
        truth.generation = self._generation
        partitions = sorted(world.cluster.logs)
        chosen = world.rng.sample(partitions, world.rng.randint(1, len(partitions)))
        for partition in chosen:
            self._ask(
                producer,
                f"AddPartitionsToTxn of transaction {truth.number}",
                lambda p=partition: world.cluster.add_partitions(  # type: ignore[misc]
                    producer.name, producer.producer_id, producer.epoch, {p}, truth.number
                ),
            )
            yield
            for _ in range(world.rng.randint(1, 2)):
                sequence = producer.sequences.get(partition, -1) + 1
                producer.sequences[partition] = sequence
                self._ask(
                    producer,
                    f"Produce of transaction {truth.number}",
                    lambda p=partition, s=sequence: world.cluster.produce(  # type: ignore[misc]
                        producer.name, producer.producer_id, producer.epoch, p, truth.number, s
                    ),
                )
                truth.records.setdefault(partition, []).append(sequence)
                yield
        producer.last_batch = batch
        self._live[producer.name] = producer
        committable: dict[str, Any] = {
            "name": producer.name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "records": sum(map(len, truth.records.values())),
            "transaction": truth.number,
            "batch": batch,
        }
        if producer.doubtful:
            committable["doubtful"] = True
        if producer.burnt:
            committable["burnt"] = list(producer.burnt)
        found.append((committable, truth))

    def _again(self, reusable: Mapping[str, Any]) -> Producer | None:
        """Return a live producer that may go on."""
        for name, entry in reusable.items():
            producer = self._live.pop(name, None)
            if producer is None:
                continue
            self._taken.add(name)
            if producer.doubtful:
                continue
            if (producer.producer_id, producer.epoch, producer.last_batch) != (
                entry["producer_id"],
                entry["producer_epoch"],
                entry["batch"],
            ):
                continue
            try:
                self._ask(
                    producer,
                    f"EndTxn of {name} in batch {producer.last_batch}",
                    lambda p=producer: self._world.cluster.end(  # type: ignore[misc]
                        p.name, p.producer_id, p.epoch, commits=True, version=4, who="a task"
                    ),
                )
            except TaskFailedError:
                continue
            if not producer.doubtful:
                self._world.stir_up(2)
                return producer
        return None

    def _fresh(self, slot: int, reusable: Mapping[str, Any], burnt: Collection[str]) -> Producer:
        """Return a new producer, under the first id that nobody else may have."""
        world = self._world
        lost: list[str] = []
        for turn in range(_ASKED):
            name = format_name(
                PREFIX, TransactionalId(QUERY, SINK, self._generation, 0, slot, turn)
            )
            if name in reusable or name in burnt or name in self._taken:
                continue
            coordinator = world.home.coordinator(name)
            if world.happens("client's repeated request"):
                if world.rng.random() < 0.5:
                    world.cluster.init_producer_id(name, "a task")
                else:
                    world.send_late(
                        f"InitProducerId of a task for {name}",
                        lambda n=name: world.cluster.init_producer_id(n, "a task"),  # type: ignore[misc]
                    )
                lost.append(name)
                self._taken.add(name)
                continue
            for _ in range(_ASKED):
                code, producer_id, epoch = world.cluster.init_producer_id(name, "a task")
                if code != CONCURRENT_TRANSACTIONS:
                    break
                world.stir(4)
            if code == OK:
                return Producer(name, producer_id, epoch, coordinator, burnt=lost)
        raise TaskFailedError

    def forget(self) -> None:
        """Begin a batch: an id that was taken in an earlier one may be taken again."""
        self._taken.clear()

    def _ask(self, producer: Producer, what: str, request: Callable[[], int]) -> None:
        world = self._world
        if world.home.cut is not None and world.home.cut == producer.coordinator:
            # The connection is lost; the next one leads to another coordinator.
            producer.doubtful = True
            producer.coordinator = world.home.coordinator(producer.name)
        if world.happens("client's repeated request"):
            producer.doubtful = True
            if world.rng.random() < 0.5:
                request()
        elif world.happens("client's late request", 1.5 * world.rate):
            producer.doubtful = True
            world.send_late(what, request)
        for _ in range(_ASKED):
            code = request()
            if code != CONCURRENT_TRANSACTIONS:
                break
            world.stir(4)
        if code != OK:
            world.tell(f"{what} is refused: {code}")
            raise TaskFailedError
