"""What the driver asks of a Kafka cluster: end other processes' transactions, fence ids, list what is open, read settings.

A transaction is ended by EndTxn with (transactional id, producer id, epoch), which any process may send (KIP-98); **never above
version 4**: version 5 bumps the epoch (KIP-890), and the two must not be mixed for one id. An undecided transaction is aborted by
InitProducerId, which fences its producer first, never by EndTxn(abort), after which that one would go on writing.

An error that says "not now" is asked again until a deadline. A request without an answer is asked again too, but its id is
remembered as doubtful: the request may take effect later. An error that says that a transaction is lost counts when the coordinator has been
looked up anew, by another broker's word, and says so too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceforall.errors import SinkCheckError, SinkUnavailableError
from onceforall.sinks.kafka.options import parse_servers
from onceforall.sinks.kafka.security import Access
from onceforall.sinks.kafka.wire import Address, NoAnswer, Wire

if TYPE_CHECKING:
    from onceforall.sink import Committable

_END_TXN_MAX_VERSION = 4
_INIT_PRODUCER_ID_MAX_VERSION = 4
_ANSWER_TIMEOUT_S = 5.0
_DEADLINE_S = 10.0
_FIRST_BACKOFF_S = 0.003
_LAST_BACKOFF_S = 0.2
# Nothing is ever written under the epoch that a fence gives out; any value that every broker allows will do.
_FENCE_TIMEOUT_MS = 60_000

_OK = 0
_COORDINATOR_LOAD_IN_PROGRESS, _COORDINATOR_NOT_AVAILABLE, _NOT_COORDINATOR, _CONCURRENT_TRANSACTIONS = 14, 15, 16, 51
_MOVED = {_COORDINATOR_NOT_AVAILABLE, _NOT_COORDINATOR}
_NOT_NOW = {_COORDINATOR_LOAD_IN_PROGRESS, _COORDINATOR_NOT_AVAILABLE, _NOT_COORDINATOR, _CONCURRENT_TRANSACTIONS, 7, 13}
_FENCED = 90
_LOST = {
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    _FENCED: "PRODUCER_FENCED",
}
TOPIC_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 29, 53
_TRANSACTION_TYPE = 1
_TRANSACTION_TOPIC = "__transaction_state"
_OLDEST_RELEASE = "3.9"
_FETCH_KEY, _FETCH_OF_OLDEST_RELEASE = 1, 17
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4


@dataclass
class Answers:
    """What became of one request per transactional id.

    Attributes:
        codes: Kafka's error code per id, the last word.
        repeated: ids whose request was sent more than once, or not answered once.
        unanswered: ids with a request that may still take effect.
        missing: ids that have no last word, with the reason.
    """

    codes: dict[str, int] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)


class AccessRefusedError(SinkUnavailableError):
    """The brokers, or a security option, said no; asking again at once is useless, but after a while it may be mended."""


class CoordinatorClient:
    """A client of one cluster. Safe to use from several threads."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        access: Access | None = None,
        deadline_s: float = _DEADLINE_S,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> None:
        """Nothing is connected yet.

        Args:
            bootstrap_servers: as in librdkafka's option.
            access: how connections are made secure; None: they are not.
            deadline_s: how long a call asks before it gives up.
            answer_timeout_s: how long one request may take.

        Raises:
            MissingExtraError: kafka-python is not installed.
        """
        self._servers = bootstrap_servers
        self._bootstrap = parse_servers(bootstrap_servers)
        self._deadline_s = deadline_s
        self._answer_timeout_s = answer_timeout_s
        self._wire = Wire(access)
        self._lock = threading.Lock()
        self._brokers: dict[int, Address] = {}
        self._coordinators: dict[str, Address] = {}
        self._suspects: set[Address] = set()

    def end_transactions(self, committables: Collection[Committable]) -> Answers:
        """Commit prepared transactions, in parallel. A transaction that is committed already answers with success.

        Args:
            committables: each with ``name``, ``producer_id`` and ``producer_epoch``.
        """
        from kafka.protocol.producer import EndTxnRequest

        by_name = {str(c["name"]): c for c in committables}
        # Its producer may have found another coordinator than the one that is known here, and which may only remember an earlier commit
        # under the same producer id and epoch, and answer with that.
        self._doubt([name for name, c in by_name.items() if c.get("doubtful")])

        def request(name: str) -> Any:
            return EndTxnRequest(
                transactional_id=name,
                producer_id=int(by_name[name]["producer_id"]),
                producer_epoch=int(by_name[name]["producer_epoch"]),
                committed=True,
                max_version=_END_TXN_MAX_VERSION,
            )

        return self._ask_coordinators(by_name, request)

    def fence(self, names: Collection[str]) -> Answers:
        """Abort what is open under these ids, and bump their epochs, so that no producer of before writes any more.

        While the abort completes, the answer is CONCURRENT_TRANSACTIONS; it is asked again, so that readers are past it on return.
        """
        from kafka.protocol.producer import InitProducerIdRequest

        def request(name: str) -> Any:
            return InitProducerIdRequest(
                transactional_id=name,
                transaction_timeout_ms=_FENCE_TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
                max_version=_INIT_PRODUCER_ID_MAX_VERSION,
            )

        return self._ask_coordinators(names, request)

    def open_transactions(self) -> list[str]:
        """Return the transactional ids of all transactions that are open in the cluster (KIP-664).

        Each broker lists what it coordinates. While a coordinator moves, one that was asked too early and one that was asked too late
        would both leave its transactions out. So the answers count only all together: every broker has answered, and every
        coordinator is before and after where it was. (A user who may not describe ``__transaction_state`` can't be told where; then
        a coordinator that moves in this moment hides its transactions until the next call.)

        Raises:
            SinkUnavailableError: a broker did not answer, or a part of the ids has no coordinator.
        """
        from kafka.protocol.admin import ListTransactionsRequest

        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = _FIRST_BACKOFF_S
        while True:
            before = self._transaction_leaders()
            answers, reason = self._ask_every_broker(
                lambda: ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[], max_version=0), deadline_s
            )
            if not reason:
                after = self._transaction_leaders()
                reason = _why_not_settled(before, after, answers.keys())
            if not reason:
                return sorted({state.transactional_id for answer in answers.values() for state in answer.transaction_states})
            if time.monotonic() > deadline_s:
                raise SinkUnavailableError(f"Open Kafka transactions could not be listed: {reason}. Asked again later.")
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def _transaction_leaders(self) -> dict[int, tuple[Address | None, int]]:
        """Return the coordinator of each part of the transactional ids, with the epoch of its leadership; nothing where it isn't told."""
        answer = self.metadata(_TRANSACTION_TOPIC)
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        return {
            partition.partition_index: (addresses.get(partition.leader_id), partition.leader_epoch)
            for topic in answer.topics
            for partition in topic.partitions
        }

    def _ask_every_broker(self, make: Callable[[], Any], deadline_s: float) -> tuple[dict[Address, Any], str]:
        """Ask all brokers that the last metadata named, once; return the answers, and a reason if one is missing or an error."""
        with self._lock:
            asked = sorted(set(self._brokers.values()))
        answers, reason = {}, ""
        for address, answer in zip(asked, self._exchange([(a, make()) for a in asked], deadline_s), strict=True):
            if isinstance(answer, NoAnswer):
                reason = f"broker {_text(address)}: {answer.reason}"
                if answer.refused:
                    raise self._refusal(answer)
            elif answer.error_code != _OK:
                reason = f"broker {_text(address)} answered {error_name(answer.error_code)}"
            else:
                answers[address] = answer
        return answers, reason

    def check_versions(self) -> None:
        """Check that every broker of the cluster is of release 3.9 or later.

        A broker doesn't tell its release, but which versions it takes of which request (ApiVersions, KIP-35), to everybody and with KRaft as with
        ZooKeeper. Fetch version 17 came with 3.9: release 3.8.1 was seen to take 16, 3.9.2 takes 17 and 4.3.1 takes 18.
        The requests that the sink needs are older (the last, ListTransactions, came with 3.0); but nothing before 3.9 is tested.
        The release that the message names is kafka-python's estimate from the same answer.

        Raises:
            SinkCheckError: a broker is older.
            SinkUnavailableError: a broker did not answer.
        """
        from kafka.protocol.broker_version_data import BrokerVersionData
        from kafka.protocol.metadata import ApiVersionsRequest

        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = _FIRST_BACKOFF_S
        while True:
            self.metadata()
            answers, reason = self._ask_every_broker(lambda: ApiVersionsRequest(version=0), deadline_s)
            for address, answer in answers.items():
                taken = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
                if taken.get(_FETCH_KEY, (0, 0))[1] < _FETCH_OF_OLDEST_RELEASE:
                    release = ".".join(map(str, BrokerVersionData(api_versions=taken).broker_version))
                    raise SinkCheckError(
                        f"The Kafka broker {_text(address)} is of release {release} or so, and the sink supports {_OLDEST_RELEASE} and later. Upgrade "
                        f"every broker of the cluster to {_OLDEST_RELEASE} or later."
                    )
            if not reason:
                return
            if time.monotonic() > deadline_s:
                raise SinkUnavailableError(f"The Kafka brokers' versions could not be read: {reason}. Asked again later.")
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def metadata(self, topic: str | None = None) -> Any:
        """Return the cluster's metadata, with a topic's and this user's rights on it where one is named; nothing is created.

        Raises:
            SinkUnavailableError: no broker answered.
        """
        from kafka.protocol.metadata import MetadataRequest

        topics = [] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = self.ask_any(
            lambda: MetadataRequest(
                topics=topics,
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=topic is not None,
                min_version=8,
                max_version=9,
            )
        )
        with self._lock:
            self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        return answer

    def broker_setting(self, name: str) -> str | None:
        """Return a setting of a broker; None when this user may not read it.

        Raises:
            SinkUnavailableError: no answer.
        """
        with self._lock:
            node_id, address = next(iter(sorted(self._brokers.items())))
        return self._setting(_BROKER_RESOURCE, str(node_id), name, [address])

    def topic_setting(self, topic: str, name: str) -> str | None:
        """Return a setting of a topic; None when this user may not read it.

        Raises:
            SinkUnavailableError: no answer.
        """
        return self._setting(_TOPIC_RESOURCE, topic, name, None)

    def _setting(self, kind: int, resource: str, name: str, addresses: list[Address] | None) -> str | None:
        from kafka.protocol.admin import DescribeConfigsRequest

        wanted = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=resource, configuration_keys=[name]
        )
        result = self.ask_any(lambda: DescribeConfigsRequest(resources=[wanted]), addresses).results[0]
        return next((c.value for c in result.configs if c.name == name), None) if result.error_code == _OK else None

    def missing_transactional_right(self, unused_name: str) -> str | None:
        """Return the operation (``"Describe"``, ``"Write"``) that this user lacks on a transactional id; None when none is lacking.

        Args:
            unused_name: an id that nobody ever had: what is asked is to abort its transaction, which there is none of.

        Raises:
            SinkUnavailableError: no answer.
        """
        from kafka.protocol.producer import EndTxnRequest

        def request(name: str) -> Any:
            return EndTxnRequest(
                transactional_id=name, producer_id=0, producer_epoch=0, committed=False, max_version=_END_TXN_MAX_VERSION
            )

        answers = self._ask_coordinators([unused_name], request)
        self.forget([unused_name])
        if unused_name in answers.codes:
            return "Write" if answers.codes[unused_name] == TRANSACTIONAL_ID_AUTHORIZATION_FAILED else None
        reason = answers.missing[unused_name]
        if error_name(TRANSACTIONAL_ID_AUTHORIZATION_FAILED) in reason:
            return "Describe"
        raise SinkUnavailableError(f"The coordinator of {unused_name} gave no answer: {reason}. Asked again later.")

    def ask_any(self, make: Callable[[], Any], addresses: list[Address] | None = None) -> Any:
        """Send a request to one broker after the other until one answers.

        Args:
            make: makes the request; called again for each attempt.
            addresses: whom to ask; by default every broker that is known.

        Raises:
            SinkUnavailableError: none did before the deadline.
        """
        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = _FIRST_BACKOFF_S
        while True:
            with self._lock:
                known = addresses or self._askable()
            refusals = []
            for address in known:
                answer = self._exchange([(address, make())], deadline_s)[0]
                if not isinstance(answer, NoAnswer):
                    return answer
                if answer.refused:
                    refusals.append(answer)
                if time.monotonic() > deadline_s:
                    break
            if len(refusals) == len(known) or (refusals and time.monotonic() > deadline_s):
                raise self._refusal(refusals[0])
            if time.monotonic() > deadline_s:
                raise SinkUnavailableError(
                    f"No Kafka broker answered in {self._deadline_s:.0f} s; the last was {_text(answer.address)}: {answer.reason}. Check that the brokers run "
                    f"and can be reached from the driver (bootstrap.servers={self._servers})."
                )
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def _refusal(self, answer: NoAnswer) -> AccessRefusedError:
        return AccessRefusedError(
            f"Kafka broker {_text(answer.address)} (bootstrap.servers={self._servers}) can't be used: {answer.reason}."
        )

    def _exchange(self, calls: list[tuple[Address, Any]], deadline_s: float) -> list[Any]:
        from kafka.errors import IncompatibleBrokerVersion

        # Each broker in a thread of its own: one that hangs while a connection is made must not hold up the others.
        until_s = min(deadline_s, time.monotonic() + self._answer_timeout_s)
        shares: dict[Address, list[int]] = {}
        for index, (address, _) in enumerate(calls):
            shares.setdefault(address, []).append(index)
        results: list[Any] = [None] * len(calls)

        def ask(share: list[int]) -> None:
            for index, answer in zip(share, self._wire.exchange([calls[i] for i in share], until_s), strict=True):
                results[index] = answer

        try:
            if len(shares) == 1:
                ask(next(iter(shares.values())))
            elif shares:
                with ThreadPoolExecutor(len(shares), "onceforall-kafka") as threads:
                    list(threads.map(ask, shares.values()))
        except IncompatibleBrokerVersion as error:
            raise SinkCheckError(
                f"A Kafka broker is too old: {error}. The sink supports release {_OLDEST_RELEASE} and later."
            ) from error
        with self._lock:
            for answer, (address, _) in zip(results, calls, strict=True):
                if isinstance(answer, NoAnswer):
                    self._suspects.add(address)
                else:
                    self._suspects.discard(address)
        return results

    def _askable(self) -> list[Address]:
        """Return the brokers that are known, those last that did not answer or are not believed; the lock is held."""
        known = dict.fromkeys([*self._brokers.values(), *self._bootstrap])
        return sorted(known, key=lambda address: address in self._suspects)

    def _ask_coordinators(self, names: Collection[str], make: Callable[[str], Any]) -> Answers:
        answers = Answers()
        waiting = dict.fromkeys(names, "no coordinator was found")
        # A broker that was cut off and wakes takes itself for the coordinator for a moment, and answers from its old memory.
        confirming: set[str] = set()
        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = _FIRST_BACKOFF_S
        while waiting:
            refused: set[str] = set()
            located = self._locate(waiting, deadline_s, refused)
            asked = sorted(located)
            calls = [(located[name], make(name)) for name in asked]
            for name, answer in zip(asked, self._exchange(calls, deadline_s), strict=True):
                code = None if isinstance(answer, NoAnswer) else int(answer.error_code)
                if code in _LOST and name not in confirming and self._has_others():
                    confirming.add(name)
                elif code is not None and code not in _NOT_NOW:
                    answers.codes[name] = code
                    del waiting[name]
                    continue
                waiting[name] = self._put_off(name, located[name], answer, answers)
                if isinstance(answer, NoAnswer) and answer.refused:
                    refused.add(name)
            if waiting:
                if time.monotonic() > deadline_s or refused >= waiting.keys():
                    break
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)
        answers.missing = waiting
        return answers

    def _put_off(self, name: str, address: Address, answer: Any, answers: Answers) -> str:
        """Note what an answer that isn't the last word, or none, means for an id; return why it must be asked for again."""
        if isinstance(answer, NoAnswer):
            if answer.sent:
                answers.unanswered.add(name)
                answers.repeated.add(name)
            self.forget([name])
            return f"broker {_text(answer.address)}: {answer.reason}"
        answers.repeated.add(name)
        if answer.error_code in _LOST:
            self._doubt([name])
        elif answer.error_code in _MOVED:
            self.forget([name])
        return f"broker {_text(address)} answered {error_name(answer.error_code)}"

    def _doubt(self, names: Collection[str]) -> None:
        """Look for the coordinators of these ids anew, and ask those that were known so far last."""
        with self._lock:
            self._suspects |= {self._coordinators.pop(name) for name in names if name in self._coordinators}

    def _has_others(self) -> bool:
        with self._lock:
            return len({*self._brokers.values(), *self._bootstrap}) > 1

    def _locate(self, waiting: dict[str, str], deadline_s: float, refused: set[str] | None = None) -> Mapping[str, Address]:
        """Return the coordinators that are known, having asked for those that weren't; reasons go into ``waiting``.

        Ids that need not be asked for again at once, because somebody must mend something first, go into ``refused``.
        """
        from kafka.protocol.metadata import FindCoordinatorRequest

        refused = set() if refused is None else refused
        with self._lock:
            unknown = [name for name in waiting if name not in self._coordinators]
            known = self._askable()
        for address in known if unknown else ():
            request = FindCoordinatorRequest(key_type=_TRANSACTION_TYPE, coordinator_keys=unknown, min_version=4, max_version=4)
            answer = self._exchange([(address, request)], deadline_s)[0]
            if isinstance(answer, NoAnswer):
                waiting.update(dict.fromkeys(unknown, f"broker {_text(address)}: {answer.reason}"))
                if answer.refused:
                    refused.update(unknown)
                continue
            refused.difference_update(unknown)
            with self._lock:
                for found in answer.coordinators:
                    if found.error_code == _OK:
                        self._coordinators[found.key] = (found.host, found.port)
                    else:
                        if found.error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                            refused.add(found.key)
                        waiting[found.key] = f"its coordinator is not to be found: {error_name(found.error_code)}"
            break
        with self._lock:
            return {name: self._coordinators[name] for name in waiting if name in self._coordinators}

    @property
    def deadline_s(self) -> float:
        """How many seconds a call asks before it gives up."""
        return self._deadline_s

    def coordinators(self, names: Collection[str], reasons: dict[str, str], deadline_s: float) -> Mapping[str, Address]:
        """Return the transaction coordinators of those ids whose is to be found; why others' are not goes into ``reasons``.

        Raises:
            AccessRefusedError: nobody may be asked.
        """
        waiting = dict.fromkeys(names, "no coordinator was found")
        refused: set[str] = set()
        found = self._locate(waiting, deadline_s, refused)
        reasons.update({name: reason for name, reason in waiting.items() if name not in found})
        if refused:
            name = min(refused)
            raise AccessRefusedError(f"Kafka transaction {name}: {waiting[name]}.")
        return found

    def exchange(self, calls: list[tuple[Address, Any]], deadline_s: float) -> list[Any]:
        """Send requests and return the answers, a ``NoAnswer`` for each that got none.

        Raises:
            SinkCheckError: a broker is too old.
        """
        return self._exchange(calls, deadline_s)

    def forget(self, names: Collection[str]) -> None:
        """Forget the coordinators of ids that won't be asked for again."""
        with self._lock:
            for name in names:
                self._coordinators.pop(name, None)

    def close(self) -> None:
        """Close the connections; later calls open new ones."""
        self._wire.close()
        with self._lock:
            self._coordinators.clear()
            self._brokers.clear()


def _why_not_settled(
    before: Mapping[int, tuple[Address | None, int]],
    after: Mapping[int, tuple[Address | None, int]],
    answered: Collection[Address],
) -> str:
    """Return why brokers that were asked in between may have left transactions out; empty when they may not."""
    if before != after:
        return "transaction coordinators moved meanwhile"
    for partition, (address, _) in after.items():
        if address is None or address not in answered:
            return f"partition {partition} of {_TRANSACTION_TOPIC} has no coordinator now"
    return ""


def lost_reason(code: int) -> str | None:
    """Return Kafka's name of an error that says that a transaction can't be committed any more; None for other codes."""
    return _LOST.get(code)


def is_fenced(code: int) -> bool:
    """Tell whether a fence was answered as done: by us, or by somebody who came first."""
    return code in {_OK, _FENCED}


def error_name(code: int) -> str:
    """Return Kafka's name and number of an error code."""
    from kafka.errors import for_code

    error = for_code(code)
    return f"{getattr(error, 'message', error.__name__)} ({code})"


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
