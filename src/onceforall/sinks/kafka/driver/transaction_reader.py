"""Reads what a cluster knows of transactions: their states (module ``state_reader``), the ids of
topics, end offsets of partitions, and markers in the log.

Requests are only read with; none changes anything, so each may be repeated. An error that says "not
now" or "not here" is asked again until the client's deadline.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from onceforall.common import logs
from onceforall.sinks.kafka.access.rights import Rights
from onceforall.sinks.kafka.driver.broker_client import (
    FIRST_BACKOFF_S,
    LAST_BACKOFF_S,
    QUICK_ANSWER_S,
    TOPIC_AUTHORIZATION_FAILED,
    AccessRefusedError,
    agreed,
    error_name,
)
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from onceforall.sinks.kafka.driver.evidence import (
    Finding,
    Marker,
    TransactionState,
    Unreadable,
    judge_log,
    judge_state,
)
from onceforall.sinks.kafka.driver.record_batches import MarkerScan
from onceforall.sinks.kafka.driver.retry import Retry
from onceforall.sinks.kafka.driver.state_reader import StateReader
from onceforall.sinks.kafka.driver.wire import Address, NoAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceforall.sinks.kafka.driver.broker_client import ClusterIdentity
    from onceforall.sinks.kafka.driver.committable import KafkaCommittable

Partition = tuple[str, int]

_log = logs.logger("onceforall.sinks.kafka")


class _Leaders(NamedTuple):
    """Who leads.

    Attributes:
        told: by partition; None: no leader at the moment.
        hidden: topics of which the brokers don't tell this user.
    """

    told: Mapping[Partition, Address | None]
    hidden: frozenset[str]


_LATEST = -1
_OK, _OFFSET_OUT_OF_RANGE = 0, 1

_FETCH_MAX_VERSION = 12
"""The last version that names topics and not their ids."""

_FETCH_BYTES = 1 << 20
_FETCH_WAIT_MS = 100

_TELL_AFTER_S = 10.0


class TransactionReader(StateReader):
    """Reads what coordinators know, and what the partitions' leaders show. Safe to use from several
    threads.
    """

    def __init__(self, client: CoordinatorClient, rights: Rights) -> None:
        """See ``StateReader``."""
        super().__init__(client, rights)
        # One value, so that no thread sees a partition that changes between the two as gone.
        self._leaders = _Leaders({}, frozenset())
        self._outdated: frozenset[str] = frozenset()

    def identify_patiently(
        self, topics: Collection[str], patience_s: float | None = None
    ) -> ClusterIdentity:
        """Return which cluster it is, and the ids of topics, as any broker tells them.

        One that is missing is asked for again: a broker that has just started may not know it yet.

        Args:
            topics: their names.
            patience_s: for how long; None: as long as a client has patience.

        Raises:
            SinkUnavailableError: no broker answered.
        """
        pause_s, at_once = FIRST_BACKOFF_S, True
        deadline_s = time.monotonic() + (
            self._client.deadline_s
            if patience_s is None
            else min(patience_s, self._client.deadline_s)
        )
        while (found := self._client.identify(topics)).missing and time.monotonic() < deadline_s:
            time.sleep(pause_s)
            pause_s, at_once = min(2 * pause_s, LAST_BACKOFF_S), False
        return replace(found, at_once=at_once)

    def identify_surely(self, topics: Collection[str]) -> ClusterIdentity:
        """Return which cluster it is, and the ids of topics, as all brokers tell that answer.

        One that wakes, or that was cut off, tells what was before; and one that has just started
        may not know a topic yet. So as long as a client has patience, they are asked again where
        they don't agree, where a topic is missing, and where only one of several answers. That
        one is believed in the end, unless another one has contradicted it meanwhile: whoever else
        could commit would have answered, too.

        Raises:
            SinkUnavailableError: they don't agree, or none answered.
        """
        retry = Retry(self._client.deadline_s, "The ids of Kafka topics could not be read")
        timeout_s, at_once = QUICK_ANSWER_S, True
        ever: list[ClusterIdentity] = []
        while True:
            is_last = retry.is_over()
            told = self._client.identify_everywhere(topics, timeout_s)
            ever += told
            timeout_s = self._client.answer_timeout_s
            found = agreed(told)
            if is_last and len(told) == 1 and all(other == told[0] for other in ever):
                return replace(told[0], at_once=at_once)
            if not isinstance(found, str) and (is_last or not found.missing):
                return replace(found, at_once=at_once)
            at_once = False
            if isinstance(found, str):
                retry.again(("the brokers", found))
            else:
                retry.pause()

    def hides(self, topic: str, code: int) -> AccessRefusedError:
        """Return what to raise where nobody tells which topic a name stands for."""
        why = (
            self._rights.topic(topic, "Describe")
            if code == TOPIC_AUTHORIZATION_FAILED
            else f"the broker answered {error_name(code)}"
        )
        return AccessRefusedError(
            f"Whether topic {topic!r} is the one that was written to can't be told: {why}."
        )

    def hides_partitions(self, topics: Collection[str]) -> str:
        """Say that partitions are not told that a transaction has written to.

        Args:
            topics: where that is known.
        """
        return (
            "its coordinator doesn't tell all the partitions that it has written to, and nothing "
            "is ended before they are known: one may have no leader. "
            + (
                " ".join(f"{self._rights.topic(topic, 'Describe')}." for topic in sorted(topics))
                or f"{self._rights.principal} may not DESCRIBE a topic that the query has written "
                "to, perhaps an earlier one; grant it"
            ).rstrip(".")
        )

    def end_offsets(
        self,
        topics: Collection[str],
        reasons: dict[Partition, str],
        *,
        again: bool,
    ) -> dict[Partition, int]:
        """Ask the leaders once, and return the offset behind the last record of each partition
        that is acknowledged by all in-sync replicas.

        A partition of which nobody tells is left out: it has no leader at the moment, or that one
        doesn't answer, or isn't it any more. Then the next call looks for the leaders anew.

        Args:
            topics: whose partitions.
            reasons: gets why those are left out whose leader should have answered.
            again: look for partitions that were added meanwhile, and let an answer take its time.
                Else one that doesn't come soon is not waited for: perhaps nobody needs it.

        Raises:
            SinkUnavailableError: no broker tells who leads.
        """
        from kafka.protocol.consumer import ListOffsetsRequest

        request_topic = ListOffsetsRequest.ListOffsetsTopic
        look = (
            again
            or not self._outdated.isdisjoint(topics)
            or not set(topics) <= {t for t, _ in self._leaders.told}
        )
        found = self._leaders_of(topics, look=look)
        leaders = {p: a for p, a in found.told.items() if a is not None}
        for topic in sorted(found.hidden):
            raise AccessRefusedError(f"{self._rights.topic(topic, 'Describe')}.")
        by_address: dict[Address, list[Partition]] = defaultdict(list)
        for partition, address in sorted(leaders.items()):
            by_address[address].append(partition)
        calls = []
        for address, partitions in by_address.items():
            wanted = [
                request_topic(
                    name=topic,
                    partitions=[
                        request_topic.ListOffsetsPartition(partition_index=p, timestamp=_LATEST)
                        for t, p in partitions
                        if t == topic
                    ],
                )
                for topic in sorted({t for t, _ in partitions})
            ]
            calls.append(
                (
                    address,
                    ListOffsetsRequest(
                        replica_id=-1, isolation_level=0, topics=wanted, max_version=7
                    ),
                )
            )
        ends: dict[Partition, int] = {}
        patience_s = self._client.answer_timeout_s if again else QUICK_ANSWER_S
        answers = self._client.exchange(calls, time.monotonic() + patience_s)
        for (address, _), answer in zip(calls, answers, strict=True):
            if isinstance(answer, NoAnswer):
                words = f"{address[0]}:{address[1]}: {answer.reason}"
                reasons.update(dict.fromkeys(by_address[address], words))
            else:
                self._take_offsets(answer, ends, reasons)
        # Whoever doesn't answer, or leads no more, would else be asked by every later call.
        self._outdated = (
            self._outdated.difference(topics)
            if leaders and ends.keys() >= leaders.keys()
            else self._outdated.union(topics)
        )
        return ends

    def leaderless(self, partitions: Collection[Partition]) -> dict[Partition, str]:
        """Return those partitions that have no leader at the moment, or of which the brokers don't
        tell this user, with the reason.

        A topic of which a broker doesn't know is waited for: its partitions may have none, and the
        broker may just have started. One that stays missing is gone, and leaderless are only
        partitions that there are.

        Raises:
            SinkUnavailableError: no broker answered.
        """
        topics = {topic for topic, _ in partitions}
        self.identify_patiently(topics)
        found = self._leaders_of(topics, look=True)
        return {
            partition: self._rights.topic(partition[0], "Describe")
            if partition[0] in found.hidden
            else f"{partition[0]} [{partition[1]}]: no leader at the moment"
            for partition in sorted(partitions)
            if partition[0] in found.hidden or found.told.get(partition, ()) is None
        }

    def _take_offsets(
        self, answer: Any, ends: dict[Partition, int], reasons: dict[Partition, str]
    ) -> None:
        """Take what one leader says."""
        for topic in answer.topics:
            for part in topic.partitions:
                partition = (str(topic.name), int(part.partition_index))
                if part.error_code == _OK:
                    ends[partition] = int(part.offset)
                elif part.error_code == TOPIC_AUTHORIZATION_FAILED:
                    raise AccessRefusedError(f"{self._rights.topic(partition[0], 'Describe')}.")
                else:
                    reasons[partition] = (
                        f"{partition[0]} [{partition[1]}]: {error_name(part.error_code)}"
                    )

    def _leaders_of(self, topics: Collection[str], *, look: bool) -> _Leaders:
        if look:
            told: dict[Partition, Address | None] = {}
            hidden: set[str] = set()
            for topic in sorted(topics):
                answer = self._client.metadata(topic)
                brokers = {
                    broker.node_id: (str(broker.host), int(broker.port))
                    for broker in answer.brokers
                }
                for found in answer.topics:
                    if found.error_code == TOPIC_AUTHORIZATION_FAILED:
                        hidden.add(str(found.name))
                    for part in found.partitions:
                        told[str(found.name), int(part.partition_index)] = brokers.get(
                            part.leader_id
                        )
            before = self._leaders
            self._leaders = _Leaders(
                {**{p: a for p, a in before.told.items() if p[0] not in topics}, **told},
                (before.hidden - set(topics)) | hidden,
            )
            # What was told now, whatever another thread was told meanwhile.
            return _Leaders(told, frozenset(hidden))
        now = self._leaders
        return _Leaders(
            {p: a for p, a in now.told.items() if p[0] in topics}, now.hidden & set(topics)
        )

    def findings(self, committables: Collection[KafkaCommittable]) -> dict[str, Finding]:
        """Find out what became of prepared transactions that Kafka refuses to commit.

        Args:
            committables: with ``name``, ``producer_id``, ``producer_epoch`` and ``proof``.

        Raises:
            SinkUnavailableError: not all brokers answered.
        """
        states = self.states(committables, [c["name"] for c in committables])
        return {c["name"]: self._finding(c, states[c["name"]]) for c in committables}

    def _finding(self, committable: KafkaCommittable, state: TransactionState | None) -> Finding:
        finding = judge_state(committable, state)
        if finding is not None:
            return finding
        proof = committable.get("proof")
        if proof is None:
            return judge_log(
                committable,
                state,
                Unreadable("an earlier release decided it without noting where its proof is"),
            )
        partition = (proof["topic"], proof["partition"])
        producer_id, epoch = committable["producer_id"], committable["producer_epoch"]
        marker = self.marker(partition, proof["offset"], producer_id, epoch)
        # Asked behind the scan: an id never comes back, so that what has it now had it all the
        # time.
        if "topic_id" in proof:
            unread = isinstance(marker, Unreadable)
            identify = self._client.identify if unread else self.identify_surely
            found = identify([partition[0]]).topics.get(partition[0])
            if found != proof["topic_id"] and (found is not None or not unread):
                marker = Unreadable(
                    f"topic {partition[0]} is not the one that it was written to (id "
                    f"{proof['topic_id']}): it was deleted, or made again under that "
                    "name, and the proof is gone"
                )
        return judge_log(committable, state, marker)

    def marker(
        self, partition: Partition, offset: int, producer_id: int, epoch: int
    ) -> Marker | Unreadable | None:
        """Return the marker of the last transaction that a producer has written under an epoch.

        Args:
            partition: topic and partition number.
            offset: where to begin; all is read up to the end that the log has now, whoever goes on
                writing (headers count, records don't).
            producer_id: whose.
            epoch: under which.

        Returns:
            The first marker of that producer that no record of its under that epoch follows, and
            whether compaction may have taken one before it; None when there is none up to that
            end; ``Unreadable`` where the log can't be read there, now or later.

        Raises:
            SinkUnavailableError: no answer.
        """
        scan = MarkerScan(offset, producer_id, epoch)
        retry = Retry(
            self._client.deadline_s, f"The log of {partition[0]} [{partition[1]}] could not be read"
        )
        look = partition not in self._leaders_of([partition[0]], look=False).told
        tell_s = time.monotonic() + _TELL_AFTER_S
        while True:
            leaders = self._leaders_of([partition[0]], look=look)
            if partition not in leaders.told:
                gone = self._gone(partition, leaders)
                if isinstance(gone, Unreadable):
                    return gone
                look = True
                retry.again(("the partition", gone))
                continue
            address, look = leaders.told[partition], True
            if address is None:
                # Its broker may come back with what proves the outcome.
                retry.again(("the partition", "it has no leader at the moment"))
                continue
            answer = self._read(address, partition, scan.position, retry)
            if isinstance(answer, Unreadable):
                return answer
            look = isinstance(answer, str)
            if isinstance(answer, str):
                retry.again((f"{address[0]}:{address[1]}", answer))
                continue
            before = scan.position
            if scan.take(answer) or self._is_at_end(partition, scan, moved=scan.position > before):
                return scan.found
            if scan.position == before:
                # A new leader shows nothing above the high watermark that it knows of, which may be
                # an old one; it tells the end when it knows it.
                look = True
                retry.again((f"{address[0]}:{address[1]}", "its leader doesn't show all of it yet"))
                continue
            retry = Retry(self._client.deadline_s, retry.what)
            if time.monotonic() > tell_s:
                _log.info(
                    "Reading %s [%d] for a transaction's outcome: at offset %d of %d",
                    *partition,
                    scan.position,
                    scan.end,
                )
                tell_s = time.monotonic() + _TELL_AFTER_S

    def _gone(self, partition: Partition, leaders: _Leaders) -> Unreadable | str:
        """Return why a partition that isn't told can't be read, or why that must be asked again:
        perhaps only the broker that was asked doesn't know its topic, for it has just started, or
        wakes from before it was made. One alone is not believed, also where others don't answer.
        """
        topic, number = partition
        if topic in leaders.hidden:
            return Unreadable(self._rights.topic(topic, "Describe"))
        if all(name != topic for name, _ in leaders.told):
            told = self._client.identify_everywhere([topic], self._client.answer_timeout_s)
            if any(topic not in each.missing for each in told):
                return "not every broker knows its topic"
            if isinstance(found := agreed(told), str):
                return f"a broker doesn't know its topic, which counts when others don't: {found}"
        return Unreadable(f"partition {number} of topic {topic} is not there any more")

    def _read(
        self, address: Address, partition: Partition, position: int, retry: Retry
    ) -> bytes | str | Unreadable:
        """Return what ``_fetch`` returns. A log that ends before the position is asked for again:
        that of a leader that was cut off does.
        """
        answer = self._fetch(address, partition, position, retry.deadline_s)
        if not isinstance(answer, Unreadable) or answer.is_certain or retry.is_over():
            return answer
        end = self.end_offsets([partition[0]], {}, again=True).get(partition)
        leader = self._leaders_of([partition[0]], look=False).told.get(partition)
        if end is not None and end >= position and leader == address:
            return answer
        return "its log ends before the proof"

    def _is_at_end(self, partition: Partition, scan: MarkerScan, *, moved: bool) -> bool:
        """Tell whether a log is read up to the end that it had when the scan had begun: the caller
        has read the states before, so that what they call ended has its marker in front of it.
        What others write behind it is no matter.

        Args:
            partition: whose log.
            scan: of it.
            moved: the last answer had records.
        """
        if scan.position < scan.end:
            return False
        if not scan.ends_left:
            return True
        end = self.end_offsets([partition[0]], {}, again=True).get(partition)
        if end is None:
            return False
        # The first end may be told by a leader that was cut off and is replaced then, so that the
        # next answers show more. So it is asked for twice, unless nothing more is shown.
        scan.end, scan.ends_left = end, scan.ends_left - 1
        return scan.position >= end and not moved

    def _fetch(
        self, address: Address, partition: Partition, position: int, deadline_s: float
    ) -> bytes | str | Unreadable:
        """Return record batches, or the reason to ask again, or why that is useless."""
        from kafka.protocol.consumer import FetchRequest

        topic = FetchRequest.FetchTopic
        wanted = topic.FetchPartition(
            partition=partition[1], fetch_offset=position, partition_max_bytes=_FETCH_BYTES
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[topic(topic=partition[0], partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id="",
            max_version=_FETCH_MAX_VERSION,
        )
        (answer,) = self._client.exchange([(address, request)], deadline_s)
        if isinstance(answer, NoAnswer):
            return answer.reason
        part = answer.responses[0].partitions[0]
        if part.error_code == _OK:
            return bytes(part.records or b"")
        if part.error_code == TOPIC_AUTHORIZATION_FAILED:
            return Unreadable(
                "its proof is in a topic that may not be read: "
                f"{self._rights.topic(partition[0], 'Read')} (for as long as the proof is needed)"
            )
        if part.error_code == _OFFSET_OUT_OF_RANGE:
            return Unreadable(
                f"offset {position} of {partition[0]} [{partition[1]}], where the proof was, is "
                "not in the log any more (retention), or is lost",
                is_certain=False,
            )
        return error_name(part.error_code)
