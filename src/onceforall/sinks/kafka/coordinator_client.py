"""What the driver asks of a Kafka cluster: end other processes' transactions, fence ids, list what is open, read settings.

A transaction is ended by EndTxn with (transactional id, producer id, epoch), which any process may send (KIP-98); **never above
version 4**: version 5 bumps the epoch (KIP-890), and the two must not be mixed for one id. An undecided transaction is aborted by
InitProducerId, which fences its producer first, never by EndTxn(abort), after which that one would go on writing.

An error that says "not now" is asked again until a deadline. A request without an answer is asked again too, but its id is
remembered as doubtful: the request may take effect later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceforall.errors import SinkCheckError, SinkUnavailableError
from onceforall.sinks.kafka.options import parse_servers
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
_TRANSACTION_TYPE = 1
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


class CoordinatorClient:
    """A client of one cluster. Safe to use from several threads."""

    def __init__(
        self, bootstrap_servers: str, *, deadline_s: float = _DEADLINE_S, answer_timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> None:
        """Nothing is connected yet.

        Args:
            bootstrap_servers: as in librdkafka's option.
            deadline_s: how long a call asks before it gives up.
            answer_timeout_s: how long one request may take.

        Raises:
            MissingExtraError: kafka-python is not installed.
        """
        self._servers = bootstrap_servers
        self._bootstrap = parse_servers(bootstrap_servers)
        self._deadline_s = deadline_s
        self._answer_timeout_s = answer_timeout_s
        self._wire = Wire()
        self._lock = threading.Lock()
        self._brokers: dict[int, Address] = {}
        self._coordinators: dict[str, Address] = {}

    def end_transactions(self, committables: Collection[Committable]) -> Answers:
        """Commit prepared transactions, in parallel. A transaction that is committed already answers with success.

        Args:
            committables: each with ``name``, ``producer_id`` and ``producer_epoch``.
        """
        from kafka.protocol.producer import EndTxnRequest

        by_name = {str(c["name"]): c for c in committables}

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

        Raises:
            SinkUnavailableError: a broker did not answer.
        """
        from kafka.protocol.admin import ListTransactionsRequest

        self.metadata()
        with self._lock:
            waiting = set(self._brokers.values())
        names: set[str] = set()
        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = _FIRST_BACKOFF_S
        while True:
            asked = sorted(waiting)
            request = [
                (a, ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[], max_version=0)) for a in asked
            ]
            reason = ""
            for address, answer in zip(asked, self._exchange(request, deadline_s), strict=True):
                if isinstance(answer, NoAnswer):
                    reason = f"broker {_text(address)}: {answer.reason}"
                elif answer.error_code != _OK:
                    reason = f"broker {_text(address)} answered {error_name(answer.error_code)}"
                else:
                    names |= {state.transactional_id for state in answer.transaction_states}
                    waiting.discard(address)
            if not waiting:
                return sorted(names)
            if time.monotonic() > deadline_s:
                raise SinkUnavailableError(f"Open Kafka transactions could not be listed: {reason}. Asked again later.")
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def metadata(self, topic: str | None = None) -> Any:
        """Return the cluster's metadata, with a topic's where one is named; nothing is created.

        Raises:
            SinkUnavailableError: no broker answered.
        """
        from kafka.protocol.metadata import MetadataRequest

        topics = [] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = self.ask_any(
            lambda: MetadataRequest(topics=topics, allow_auto_topic_creation=False, min_version=4, max_version=9)
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
                known = addresses or [*dict.fromkeys([*self._brokers.values(), *self._bootstrap])]
            for address in known:
                answer = self._exchange([(address, make())], deadline_s)[0]
                if not isinstance(answer, NoAnswer):
                    return answer
                if time.monotonic() > deadline_s:
                    break
            if time.monotonic() > deadline_s:
                raise SinkUnavailableError(
                    f"No Kafka broker answered in {self._deadline_s:.0f} s; the last was {_text(answer.address)}: {answer.reason}. Check that the brokers run "
                    f"and can be reached from the driver (bootstrap.servers={self._servers})."
                )
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def _exchange(self, calls: list[tuple[Address, Any]], deadline_s: float) -> list[Any]:
        from kafka.errors import IncompatibleBrokerVersion

        try:
            return self._wire.exchange(calls, min(deadline_s, time.monotonic() + self._answer_timeout_s))
        except IncompatibleBrokerVersion as error:
            raise SinkCheckError(
                f"A Kafka broker is too old: {error}. The sink needs brokers of release 3.0 or later."
            ) from error

    def _ask_coordinators(self, names: Collection[str], make: Callable[[str], Any]) -> Answers:
        answers = Answers()
        waiting = dict.fromkeys(names, "no coordinator was found")
        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = _FIRST_BACKOFF_S
        while waiting:
            located = self._locate(waiting, deadline_s)
            asked = sorted(located)
            calls = [(located[name], make(name)) for name in asked]
            for name, answer in zip(asked, self._exchange(calls, deadline_s), strict=True):
                code = None if isinstance(answer, NoAnswer) else int(answer.error_code)
                if code is not None and code not in _NOT_NOW:
                    answers.codes[name] = code
                    del waiting[name]
                    continue
                if isinstance(answer, NoAnswer):
                    waiting[name] = f"broker {_text(answer.address)}: {answer.reason}"
                    if answer.sent:
                        answers.unanswered.add(name)
                        answers.repeated.add(name)
                else:
                    waiting[name] = f"broker {_text(located[name])} answered {error_name(answer.error_code)}"
                    answers.repeated.add(name)
                if code is None or code in _MOVED:
                    with self._lock:
                        self._coordinators.pop(name, None)
            if waiting:
                if time.monotonic() > deadline_s:
                    break
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)
        answers.missing = waiting
        return answers

    def _locate(self, waiting: dict[str, str], deadline_s: float) -> Mapping[str, Address]:
        """Return the coordinators that are known, having asked for those that weren't; reasons go into ``waiting``."""
        from kafka.protocol.metadata import FindCoordinatorRequest

        with self._lock:
            unknown = [name for name in waiting if name not in self._coordinators]
            known = [*dict.fromkeys([*self._brokers.values(), *self._bootstrap])]
        for address in known if unknown else ():
            request = FindCoordinatorRequest(key_type=_TRANSACTION_TYPE, coordinator_keys=unknown, min_version=4, max_version=4)
            answer = self._exchange([(address, request)], deadline_s)[0]
            if isinstance(answer, NoAnswer):
                waiting.update(dict.fromkeys(unknown, f"broker {_text(address)}: {answer.reason}"))
                continue
            with self._lock:
                for found in answer.coordinators:
                    if found.error_code == _OK:
                        self._coordinators[found.key] = (found.host, found.port)
                    else:
                        waiting[found.key] = f"its coordinator is not to be found: {error_name(found.error_code)}"
            break
        with self._lock:
            return {name: self._coordinators[name] for name in waiting if name in self._coordinators}

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
