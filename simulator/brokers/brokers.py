"""The brokers in front of a simulated cluster: who leads and coordinates what, who only believes
so, and the answers to requests.

One broker at a time may be *cut off*: the others have taken over what it led, and it answers from
its memory of that moment. It can't change anything, for nobody acknowledges what it appends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace as Answer
from typing import Any
from zlib import crc32

from simulator.brokers.cluster import ONGOING, Cluster, Transaction
from simulator.brokers.records import Partition

Address = tuple[str, int]

COORDINATORS = 2
MAX_TIMEOUT_MS = 5000
"""``transaction.max.timeout.ms``, as low as anybody sets it."""
TRANSACTION_TOPIC = "__transaction_state"
_OK, _OFFSET_OUT_OF_RANGE, _UNKNOWN_TOPIC, _NOT_LEADER = 0, 1, 3, 6
_LOADING, _NO_COORDINATOR, _NOT_COORDINATOR = 14, 15, 16
_OFFSET_NOT_AVAILABLE, _LEADER_NOT_AVAILABLE, _ID_NOT_FOUND = 78, 5, 105
_INVALID_TIMEOUT = 50
_MAY_NOT = 29
_FETCHED = 3
_CUT_OFF_AFTER = 63
"""In the middle of the record behind a batch's header, as brokers cut an answer off."""
_NEWEST_VERSION = 5


@dataclass
class Memory:
    """What a broker that was cut off knows: of that moment."""

    transactions: dict[str, Transaction]
    ends: dict[Partition, int]
    leaders: dict[Partition, int | None]
    coordinators: list[int]
    epochs: list[int]
    topic_ids: dict[str, str]


class Brokers:
    """The brokers of one cluster.

    Attributes:
        cluster: the truth behind them.
        leaders: the broker that leads each partition, by number.
        coordinators: the broker that coordinates each part of the transactional ids.
        epochs: of these leaderships.
        phases: of each part: ``"loaded"``; ``"loading"``; ``"unread"``: the coordinator has not
            begun to read, and doesn't know it.
        cut: the broker that is cut off.
        asleep: that one doesn't answer.
        alone: no other one can be reached from the driver.
        memory: of that one.
        behind: a broker that has not heard of the last move of a coordinator, and where that was.
        hidden: topics that the driver may not DESCRIBE.
    """

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.cluster = cluster
        self.count = count
        self.hidden: set[str] = set()
        self.leaders: dict[Partition, int | None] = {
            partition: index % count for index, partition in enumerate(sorted(cluster.logs))
        }
        self.coordinators = [part % count for part in range(COORDINATORS)]
        self.epochs = [0] * COORDINATORS
        self.phases = ["loaded"] * COORDINATORS
        self.cut: int | None = None
        self.asleep = self.alone = False
        self.memory: Memory | None = None
        self.behind: tuple[int, list[int], list[int]] | None = None

    def address(self, number: int) -> Address:
        """Return a broker's address."""
        return (f"broker{number}", 9092)

    def number(self, address: Address) -> int:
        """Return which broker has an address."""
        return int(address[0].removeprefix("broker")) % self.count

    def part(self, name: str) -> int:
        """Return the part of the transactional ids that an id belongs to."""
        return crc32(name.encode()) % COORDINATORS

    def coordinator(self, name: str) -> int:
        """Return the true coordinator of an id."""
        return self.coordinators[self.part(name)]

    # --- what happens to brokers ------------------------------------------------------------------

    def cut_off(self, number: int, *, asleep: bool) -> None:
        """Cut a broker off; the next one takes over what it led.

        Args:
            number: which.
            asleep: it doesn't answer, as a process that was stopped; it may wake before it hears
                of anything.
        """
        cluster = self.cluster
        self.cut, self.asleep = number, asleep
        self.memory = Memory(
            {name: known.copied() for name, known in cluster.transactions.items()},
            {partition: log.end for partition, log in cluster.logs.items()},
            dict(self.leaders),
            list(self.coordinators),
            list(self.epochs),
            dict(cluster.topic_ids),
        )
        heir = (number + 1) % self.count
        for partition, leader in self.leaders.items():
            if leader == number:
                self.leaders[partition] = heir
        for part, coordinator in enumerate(self.coordinators):
            if coordinator == number:
                self.move_coordinator(part, heir)
        self.behind = None

    def come_back(self) -> None:
        """The broker that was cut off hears of what has happened."""
        self.cut = self.memory = None
        self.asleep = self.alone = False

    def move_coordinator(self, part: int, to: int, phase: str = "loaded") -> None:
        """Give a part of the transactional ids to another broker."""
        self.coordinators[part] = to
        self.epochs[part] += 1
        self.phases[part] = phase

    def told_by_the_cut_off(self) -> set[Partition]:
        """Return the partitions that the broker that is cut off still takes for its own."""
        if self.memory is None:
            return set()
        return {p for p, leader in self.memory.leaders.items() if leader == self.cut}

    def answers(self, address: Address) -> bool:
        """Tell whether a broker answers at all."""
        is_cut = self.number(address) == self.cut
        return not self.asleep if is_cut else not self.alone

    def load(self) -> None:
        """Let coordinators that have moved read on; then every broker has heard of the move."""
        for part, phase in enumerate(self.phases):
            if phase != "loaded":
                self.phases[part] = "loading" if phase == "unread" else "loaded"
                return
        self.behind = None

    def _begin_to_read(self, number: int) -> None:
        """Whoever calls itself a coordinator has begun to read, and says so."""
        for part, coordinator in enumerate(self.coordinators):
            if coordinator == number and self.phases[part] == "unread":
                self.phases[part] = "loading"

    def lead(self, partition: Partition, number: int | None) -> None:
        """Give a partition to another broker, or to none."""
        self.leaders[partition] = number
        if number is None:
            self.cluster.leaderless.add(partition)
        else:
            self.cluster.leaderless.discard(partition)

    # --- answers ----------------------------------------------------------------------------------

    def answer(self, address: Address, request: Any) -> Any:
        """Return a broker's answer, and do what the request says.

        Args:
            address: of the broker.
            request: a ``kafka.protocol`` message.
        """
        number = self.number(address)
        handler: Callable[[int, Any], Any] = getattr(self, f"_{type(request).__name__}")
        return handler(number, request)

    def _remembers(self, number: int) -> Memory | None:
        return self.memory if number == self.cut else None

    def _MetadataRequest(self, number: int, request: Any) -> Any:  # noqa: N802  named as the requests are
        memory = self._remembers(number)
        leaders = self.leaders if memory is None else memory.leaders
        ids = self.cluster.topic_ids if memory is None else memory.topic_ids
        topics = []
        for wanted in request.topics:
            name = wanted.name
            if name == TRANSACTION_TOPIC:
                topics.append(self._transaction_topic(number, memory))
                continue
            if name in self.hidden:
                topics.append(Answer(error_code=_MAY_NOT, name=name, topic_id=None, partitions=[]))
                continue
            is_there = name in ids and (memory is not None or not self.cluster.untold)
            self.cluster.untold = max(0, self.cluster.untold - 1)
            topics.append(
                Answer(
                    error_code=_OK if is_there else _UNKNOWN_TOPIC,
                    name=name,
                    topic_id=ids[name] if is_there else None,
                    partitions=[
                        Answer(
                            partition_index=partition[1],
                            leader_id=-1 if leader is None else leader,
                            leader_epoch=0,
                            error_code=_LEADER_NOT_AVAILABLE if leader is None else _OK,
                        )
                        for partition, leader in leaders.items()
                        if is_there and partition[0] == name
                    ],
                )
            )
        brokers = [
            Answer(node_id=n, host=self.address(n)[0], port=self.address(n)[1])
            for n in range(self.count)
        ]
        return Answer(brokers=brokers, topics=topics, cluster_id=self.cluster.name)

    def _transaction_topic(self, number: int, memory: Memory | None) -> Any:
        coordinators, epochs = self.coordinators, self.epochs
        if memory is not None:
            coordinators, epochs = memory.coordinators, memory.epochs
        elif self.behind is not None and self.behind[0] == number:
            _, coordinators, epochs = self.behind
        else:
            self._begin_to_read(number)
        partitions = [
            Answer(partition_index=part, leader_id=coordinators[part], leader_epoch=epochs[part])
            for part in range(COORDINATORS)
        ]
        return Answer(error_code=_OK, name=TRANSACTION_TOPIC, topic_id=None, partitions=partitions)

    def _FindCoordinatorRequest(self, number: int, request: Any) -> Any:  # noqa: N802
        memory = self._remembers(number)
        coordinators = self.coordinators if memory is None else memory.coordinators
        found = []
        for name in request.coordinator_keys:
            host, port = self.address(coordinators[self.part(name)])
            found.append(Answer(key=name, error_code=_OK, host=host, port=port))
        return Answer(coordinators=found)

    def _not_here(self, number: int, name: str) -> int:
        """Return the error of a coordinator that can't speak of an id now; 0: it can."""
        part = self.part(name)
        memory = self._remembers(number)
        if memory is not None:
            return _OK if memory.coordinators[part] == number else _NOT_COORDINATOR
        if self.coordinators[part] != number or self.phases[part] == "unread":
            return _NOT_COORDINATOR
        return _LOADING if self.phases[part] == "loading" else _OK

    def _EndTxnRequest(self, number: int, request: Any) -> Any:  # noqa: N802
        return Answer(error_code=self._end(number, request))

    def _end(self, number: int, request: Any) -> int:
        name = str(request.transactional_id)
        if code := self._not_here(number, name):
            return code
        version = _NEWEST_VERSION if request._max_version is None else request._max_version  # noqa: SLF001
        memory = self._remembers(number)
        if memory is not None:
            known = memory.transactions.get(name)
            if (
                known is not None
                and (known.producer_id, known.epoch)
                == (request.producer_id, request.producer_epoch)
                and known.state == ONGOING
            ):
                return _NO_COORDINATOR  # nobody acknowledges what it appends
            own = Cluster("memory", {}, lambda _: None, lambda *_: None)
            own.transactions = memory.transactions
            return own.end(
                name,
                request.producer_id,
                request.producer_epoch,
                commits=request.committed,
                version=version,
                who="nobody",
            )
        return self.cluster.end(
            name,
            request.producer_id,
            request.producer_epoch,
            commits=request.committed,
            version=version,
            who="the driver",
        )

    def _InitProducerIdRequest(self, number: int, request: Any) -> Any:  # noqa: N802
        name = str(request.transactional_id)
        code = self._not_here(number, name)
        if not code and self._remembers(number) is not None:
            code = _NO_COORDINATOR
        if code:
            return Answer(error_code=code, producer_id=-1, producer_epoch=-1)
        if not 0 < request.transaction_timeout_ms <= MAX_TIMEOUT_MS:
            return Answer(error_code=_INVALID_TIMEOUT, producer_id=-1, producer_epoch=-1)
        code, producer_id, epoch = self.cluster.init_producer_id(name, "the driver")
        return Answer(error_code=code, producer_id=producer_id, producer_epoch=epoch)

    def _DescribeTransactionsRequest(self, number: int, request: Any) -> Any:  # noqa: N802
        memory = self._remembers(number)
        known = self.cluster.transactions if memory is None else memory.transactions
        states = []
        for name in request.transactional_ids:
            code = self._not_here(number, name)
            state = None if code else known.get(name)
            if state is None:
                states.append(Answer(transactional_id=name, error_code=code or _ID_NOT_FOUND))
                continue
            topics: dict[str, list[int]] = {}
            for topic, partition in sorted(state.partitions):
                if topic in self.hidden:
                    continue  # as KafkaApis.handleDescribeTransactionsRequest, and no error
                topics.setdefault(topic, []).append(partition)
            states.append(
                Answer(
                    transactional_id=name,
                    error_code=_OK,
                    transaction_state=state.state,
                    producer_id=state.producer_id,
                    producer_epoch=state.epoch,
                    topics=[Answer(topic=t, partitions=p) for t, p in topics.items()],
                )
            )
        return Answer(transaction_states=states)

    def _ListTransactionsRequest(self, number: int, request: Any) -> Any:  # noqa: N802
        memory = self._remembers(number)
        known = self.cluster.transactions if memory is None else memory.transactions
        coordinators = self.coordinators if memory is None else memory.coordinators
        phases = self.phases if memory is None else ["loaded"] * COORDINATORS
        mine = [part for part in range(COORDINATORS) if coordinators[part] == number]
        if any(phases[part] == "loading" for part in mine):
            return Answer(error_code=_LOADING, transaction_states=[])
        shown = [
            Answer(
                transactional_id=name, producer_id=state.producer_id, transaction_state=state.state
            )
            for name, state in known.items()
            if self.part(name) in mine
            and phases[self.part(name)] == "loaded"
            and state.state in request.state_filters
        ]
        return Answer(error_code=_OK, transaction_states=shown)

    def _end_shown(self, number: int, partition: Partition) -> int | None:
        """Return the end of a partition as a broker shows it; None: it doesn't lead."""
        memory = self._remembers(number)
        if memory is not None:
            return memory.ends.get(partition) if memory.leaders[partition] == number else None
        if self.leaders.get(partition) != number:
            return None
        log = self.cluster.logs[partition]
        return log.end if log.shown is None else log.shown

    def _ListOffsetsRequest(self, number: int, request: Any) -> Any:  # noqa: N802
        topics = []
        for topic in request.topics:
            parts = []
            for wanted in topic.partitions:
                partition = (topic.name, wanted.partition_index)
                end, code = self._end_shown(number, partition), _OK
                if topic.name in self.hidden:
                    end, code = None, _MAY_NOT
                elif end is None:
                    code = _NOT_LEADER
                elif (
                    self._remembers(number) is None
                    and self.cluster.logs[partition].shown is not None
                ):
                    end, code = None, _OFFSET_NOT_AVAILABLE
                parts.append(
                    Answer(
                        partition_index=partition[1],
                        error_code=code,
                        offset=-1 if end is None else end,
                    )
                )
            topics.append(Answer(name=topic.name, partitions=parts))
        return Answer(topics=topics)

    def _FetchRequest(self, number: int, request: Any) -> Any:  # noqa: N802
        (topic,) = request.topics
        (wanted,) = topic.partitions
        partition, offset = (topic.topic, wanted.partition), wanted.fetch_offset
        end = self._end_shown(number, partition)
        code, records = _OK, b""
        if topic.topic in self.hidden:
            code = _MAY_NOT
        elif end is None:
            code = _NOT_LEADER
        else:
            log = self.cluster.logs[partition]
            known = log.end if self._remembers(number) is None else end
            if not log.start <= offset <= known:
                code = _OFFSET_OUT_OF_RANGE
            else:
                records = log.encoded(offset, min(end, offset + _FETCHED))
                if end > offset + _FETCHED:
                    records += log.encoded(offset + _FETCHED, end)[:_CUT_OFF_AFTER]
        part = Answer(error_code=code, records=records)
        return Answer(responses=[Answer(partitions=[part])])
