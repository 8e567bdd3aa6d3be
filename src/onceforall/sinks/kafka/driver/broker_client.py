"""Asks the brokers of a Kafka cluster: connections to all of them, metadata, versions and settings.

A request goes to one broker after the other until one answers, or to several at once; an error or a
missing answer is tried again until a deadline. Brokers that last did not answer are asked last.
What needs a transaction's coordinator is in module ``coordinator_client``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from onceforall.common.threads import Threads
from onceforall.errors import SinkCheckError, SinkUnavailableError
from onceforall.sinks.kafka.access.secure_connections import Access
from onceforall.sinks.kafka.driver.wire import NO_STEPS, Address, NoAnswer, Steps, Wire
from onceforall.sinks.kafka.options import parse_servers

ANSWER_TIMEOUT_S = 5.0
DEADLINE_S = 10.0
FIRST_BACKOFF_S = 0.003
LAST_BACKOFF_S = 0.2

TOPIC_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 29, 53
_OK, _UNKNOWN_TOPIC_OR_PARTITION = 0, 3
_OLDEST_RELEASE = "3.9"
_FETCH_KEY, _FETCH_OF_OLDEST_RELEASE = 1, 17
QUICK_ANSWER_S = 2.0
"""For so long an answer is waited for that others give, too: two brokers that agree are enough, and
nobody waits for a third one that sleeps."""
_SHORTEST_ANSWER_S = 1.0
"""For so long an answer is waited for at least. The last of several turns begins behind a pause, at
or after the deadline; it would else call every broker silent, whatever that one has to say."""
_NEW_TOPIC_S = 3.0
"""For so long a topic is asked for that nobody knows."""
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_NAMES_NO_BROKER = "the metadata name no broker of the cluster, not even the one that was asked"


class AccessRefusedError(SinkUnavailableError):
    """The brokers, or a security option, said no; asking again at once is useless, but after a
    while it may be mended.
    """


@dataclass(frozen=True)
class ClusterIdentity:
    """What no other cluster, and no topic that is made again under an old name, has.

    Attributes:
        cluster: the cluster's id; None where its brokers tell none.
        topics: the ids of those topics that are there, by name.
        missing: those that aren't.
        hidden: those of which the broker tells neither, with the code of its error; it hides a
            topic from a user who has no right on it.
        brokers: how many brokers there are, as the one knows that tells this.
        at_once: it was told without a pause: what was read before one may not be so behind it.
    """

    cluster: str | None
    topics: Mapping[str, str]
    missing: frozenset[str] = frozenset()
    hidden: Mapping[str, int] = field(default_factory=dict)
    brokers: int = field(default=1, compare=False)
    at_once: bool = field(default=True, compare=False)


def agreed(told: Sequence[ClusterIdentity]) -> ClusterIdentity | str:
    """Return what all brokers tell that have answered, or why none is to be believed yet."""
    if not told:
        return "none answers"
    first, *others = told
    if any(other != first for other in others):
        return "they tell different ids of the same topic: at least one is behind the others"
    if not others and first.brokers > 1:
        return f"of {first.brokers}, only one answers, and it may be behind the others"
    return first


class BrokerClient:
    """A client of one cluster. Safe to use from several threads."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        access: Access | None = None,
        deadline_s: float = DEADLINE_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
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
        self._suspects: set[Address] = set()

    @property
    def deadline_s(self) -> float:
        """How many seconds a call asks before it gives up."""
        return self._deadline_s

    @property
    def answer_timeout_s(self) -> float:
        """How many seconds an answer may take."""
        return self._answer_timeout_s

    def metadata(self, topic: str | None = None) -> Any:
        """Return the cluster's metadata, with a topic's and this user's rights on it where one is
        named; nothing is created.

        Raises:
            SinkUnavailableError: no broker answered.
        """
        answer = self.ask_any(partial(metadata_request, topic))
        self._note_brokers(answer)
        return answer

    def describe_topic(self, topic: str) -> Any:
        """Return a topic's metadata, with this user's rights on it; nothing is created.

        One that is unknown is asked for again, of every broker: one that has just started, or was
        cut off, may not know a new topic for a moment.

        Raises:
            SinkUnavailableError: no broker answered.
        """
        found = self.metadata(topic).topics[0]
        deadline_s = time.monotonic() + _NEW_TOPIC_S
        while found.error_code == _UNKNOWN_TOPIC_OR_PARTITION and time.monotonic() < deadline_s:
            time.sleep(LAST_BACKOFF_S)
            answers, _ = self._ask_every_broker(
                partial(metadata_request, topic), time.monotonic() + QUICK_ANSWER_S
            )
            told = [answer.topics[0] for answer in answers.values()]
            found = next((t for t in told if t.error_code != found.error_code), found)
        return found

    def _note_brokers(self, answer: Any) -> None:
        with self._lock:
            self._brokers = _brokers_of(answer)

    def _look_for_brokers(self, deadline_s: float) -> None:
        """Ask one broker after the other once which brokers there are, until one answers; if none
        does, what is known stays.
        """
        with self._lock:
            known = self._askable()
        for address in known:
            answer = self.exchange([(address, metadata_request(None))], deadline_s)[0]
            if not isinstance(answer, NoAnswer) and not _why_useless(answer):
                self._note_brokers(answer)
                return

    def identify(self, topics: Collection[str] = ()) -> ClusterIdentity:
        """Ask which cluster it is, and for the ids of topics; nothing is created, and nothing is
        remembered from earlier answers.

        Raises:
            SinkUnavailableError: no broker answered.
        """
        return _identity(self.ask_any(partial(_identity_request, sorted(topics))))

    def identify_everywhere(
        self, topics: Collection[str], answer_timeout_s: float
    ) -> list[ClusterIdentity]:
        """Ask every broker of which the cluster tells now what ``identify`` asks one, once; those
        that don't answer are left out.

        Args:
            topics: their names.
            answer_timeout_s: how long an answer may take.

        Raises:
            SinkUnavailableError: no broker tells which others there are.
        """
        self.metadata()
        answers, _ = self._ask_every_broker(
            partial(_identity_request, sorted(topics)), time.monotonic() + answer_timeout_s
        )
        return [_identity(answer) for answer in answers.values()]

    def broker_setting(self, name: str) -> str | None:
        """Return a setting of a broker; None when this user may not read it.

        Raises:
            SinkUnavailableError: no answer.
        """
        with self._lock:
            known = dict(self._brokers)
        if not known:
            known = _brokers_of(self.metadata())
        node_id, address = min(known.items())
        return self._setting(_BROKER_RESOURCE, str(node_id), name, [address])

    def topic_setting(self, topic: str, name: str) -> str | None:
        """Return a setting of a topic; None when this user may not read it.

        Raises:
            SinkUnavailableError: no answer.
        """
        return self._setting(_TOPIC_RESOURCE, topic, name, None)

    def _setting(
        self, kind: int, resource: str, name: str, addresses: list[Address] | None
    ) -> str | None:
        from kafka.protocol.admin import DescribeConfigsRequest

        wanted = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=resource, configuration_keys=[name]
        )
        result = self.ask_any(
            lambda: DescribeConfigsRequest(resources=[wanted]), addresses
        ).results[0]
        return (
            next((c.value for c in result.configs if c.name == name), None)
            if result.error_code == _OK
            else None
        )

    def check_versions(self) -> None:
        """Check that every broker of the cluster is of release 3.9 or later.

        A broker doesn't tell its release, but which versions it takes of which request
        (ApiVersions, KIP-35), to everybody and with KRaft as with ZooKeeper. Fetch version 17 came
        with 3.9: release 3.8.1 was seen to take 16, 3.9.2 takes 17 and 4.3.1 takes 18. The requests
        that the sink needs are older (the last, ListTransactions, came with 3.0); but nothing
        before 3.9 is tested. The release that the message names is kafka-python's estimate from the
        same answer.

        Raises:
            SinkCheckError: a broker is older.
            SinkUnavailableError: a broker did not answer.
        """
        from kafka.protocol.broker_version_data import BrokerVersionData
        from kafka.protocol.metadata import ApiVersionsRequest

        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = FIRST_BACKOFF_S
        while True:
            self.metadata()
            answers, reason = self._ask_every_broker(
                lambda: ApiVersionsRequest(version=0), deadline_s
            )
            for address, answer in answers.items():
                taken = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
                if taken.get(_FETCH_KEY, (0, 0))[1] < _FETCH_OF_OLDEST_RELEASE:
                    release = ".".join(
                        map(str, BrokerVersionData(api_versions=taken).broker_version)
                    )
                    raise SinkCheckError(
                        f"The Kafka broker {address_text(address)} is of release {release} or so, "
                        f"and the sink supports {_OLDEST_RELEASE} and later. Upgrade "
                        f"every broker of the cluster to {_OLDEST_RELEASE} or later."
                    )
            if not reason:
                return
            if time.monotonic() > deadline_s:
                raise SinkUnavailableError(
                    f"The Kafka brokers' versions could not be read: {reason}."
                )
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)

    def _ask_every_broker(
        self, make: Callable[[], Any], deadline_s: float
    ) -> tuple[dict[Address, Any], str]:
        """Ask all brokers that the last metadata named, once; return the answers, and a reason
        if one is missing or an error.
        """
        with self._lock:
            asked = sorted(set(self._brokers.values()))
        answers, reason = {}, "" if asked else _NAMES_NO_BROKER
        for address, answer in zip(
            asked, self.exchange([(a, make()) for a in asked], deadline_s), strict=True
        ):
            if isinstance(answer, NoAnswer):
                reason = f"broker {address_text(address)}: {answer.reason}"
                if answer.refused:
                    raise self._refusal(answer)
            elif getattr(answer, "error_code", _OK) != _OK:
                reason = f"broker {address_text(address)} answered {error_name(answer.error_code)}"
            elif useless := _why_useless(answer):
                reason = f"broker {address_text(address)}: {useless}"
            else:
                answers[address] = answer
        return answers, reason

    def ask_any(self, make: Callable[[], Any], addresses: list[Address] | None = None) -> Any:
        """Send a request to one broker after the other until one answers; metadata that name no
        broker are no answer.

        Args:
            make: makes the request; called again for each attempt.
            addresses: whom to ask; by default every broker that is known.

        Raises:
            SinkUnavailableError: none did before the deadline.
        """
        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = FIRST_BACKOFF_S
        # Two that don't answer take all the time: the others are asked behind the deadline then.
        asked: set[Address] = set()
        while True:
            with self._lock:
                known = addresses or self._askable()
            refusals = []
            for address in known:
                asked.add(address)
                answer = self.exchange([(address, make())], deadline_s)[0]
                if not isinstance(answer, NoAnswer):
                    useless = _why_useless(answer)
                    if not useless:
                        return answer
                    answer = NoAnswer(address, useless, sent=True)
                if answer.refused:
                    refusals.append(answer)
                if time.monotonic() > deadline_s and asked.issuperset(known):
                    break
            if len(refusals) == len(known) or (refusals and time.monotonic() > deadline_s):
                raise self._refusal(refusals[0])
            if time.monotonic() > deadline_s:
                raise SinkUnavailableError(
                    f"No Kafka broker answered in {self._deadline_s:.0f} s; the last was "
                    f"{address_text(answer.address)}: {answer.reason}. Check that the brokers run "
                    f"and can be reached from the driver (bootstrap.servers={self._servers})."
                )
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)

    def _refusal(self, answer: NoAnswer) -> AccessRefusedError:
        return AccessRefusedError(
            f"Kafka broker {address_text(answer.address)} (bootstrap.servers={self._servers}) "
            f"can't be used: {answer.reason}."
        )

    def exchange(
        self, calls: list[tuple[Address, Any]], deadline_s: float, steps: Steps = NO_STEPS
    ) -> list[Any]:
        """Send requests and return the answers, a ``NoAnswer`` for each that got none.

        Args:
            calls: whom, and what.
            deadline_s: until when an answer is waited for, of ``time.monotonic``; where little is
                left, for a moment longer.
            steps: around each request.

        Raises:
            SinkCheckError: a broker is too old.
        """
        from kafka.errors import IncompatibleBrokerVersion

        # Each broker in a thread of its own: one that hangs while a connection is made must not
        # hold up the others.
        now_s = time.monotonic()
        until_s = min(max(deadline_s, now_s + _SHORTEST_ANSWER_S), now_s + self._answer_timeout_s)
        shares: dict[Address, list[int]] = {}
        for index, (address, _) in enumerate(calls):
            shares.setdefault(address, []).append(index)
        results: list[Any] = [None] * len(calls)

        def ask(share: list[int]) -> None:
            for index, answer in zip(
                share, self._wire.exchange([calls[i] for i in share], until_s, steps), strict=True
            ):
                results[index] = answer

        try:
            if len(shares) == 1:
                ask(next(iter(shares.values())))
            elif shares:
                with Threads(len(shares), "onceforall-kafka") as threads:
                    list(threads.map(ask, shares.values()))
        except IncompatibleBrokerVersion as error:
            raise SinkCheckError(
                f"A Kafka broker is too old: {error}. The sink supports release {_OLDEST_RELEASE} "
                "and later."
            ) from error
        with self._lock:
            for answer, (address, _) in zip(results, calls, strict=True):
                if isinstance(answer, NoAnswer):
                    self._suspects.add(address)
                else:
                    self._suspects.discard(address)
        return results

    def _askable(self) -> list[Address]:
        """Return the brokers that are known, those last that did not answer or are not believed;
        the lock is held.
        """
        known = dict.fromkeys([*self._brokers.values(), *self._bootstrap])
        return sorted(known, key=lambda address: address in self._suspects)

    def has_others(self) -> bool:
        """Tell whether more than one address of the cluster is known."""
        with self._lock:
            return len({*self._brokers.values(), *self._bootstrap}) > 1

    def _may_name(self, asked: Address, coordinator: Address) -> bool:
        """Tell whether a broker's word on where a coordinator is counts where a coordinator that
        was cut off must not speak for itself; the lock is held.

        Only an address that the cluster tells is known to be another broker's: one of
        ``bootstrap.servers`` may lead to the coordinator, too.
        """
        brokers = set(self._brokers.values())
        return len(brokers) == 1 or (asked in brokers and asked != coordinator)

    def close(self) -> None:
        """Close the connections; later calls open their own."""
        self._wire.close()
        with self._lock:
            self._brokers.clear()


def metadata_request(topic: str | None) -> Any:
    """Return a request for the brokers, and for a topic's partitions and this user's rights on
    it; it creates nothing.
    """
    from kafka.protocol.metadata import MetadataRequest

    return MetadataRequest(
        topics=[] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=topic is not None,
        min_version=8,
        max_version=9,
    )


def _brokers_of(answer: Any) -> dict[int, Address]:
    return {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}


def _why_useless(answer: Any) -> str:
    """Return why an answer is none; empty where it is one.

    A broker whose controller has fenced all of them, itself included, tells metadata without any
    broker: whoever asks those that it names has asked nobody.
    """
    return "" if getattr(answer, "brokers", True) else _NAMES_NO_BROKER


def _identity(answer: Any) -> ClusterIdentity:
    codes = {str(topic.name): int(topic.error_code) for topic in answer.topics}
    return ClusterIdentity(
        None if answer.cluster_id is None else str(answer.cluster_id),
        {str(t.name): str(t.topic_id) for t in answer.topics if t.error_code == _OK},
        frozenset(name for name, code in codes.items() if code == _UNKNOWN_TOPIC_OR_PARTITION),
        {
            name: code
            for name, code in codes.items()
            if code not in (_OK, _UNKNOWN_TOPIC_OR_PARTITION)
        },
        len(answer.brokers),
    )


def _identity_request(topics: Collection[str]) -> Any:
    """Return a request for the ids of cluster and topics (KIP-516); it creates nothing."""
    from kafka.protocol.metadata import MetadataRequest

    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(topic_id=None, name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        min_version=10,
        max_version=12,
    )


def error_name(code: int) -> str:
    """Return Kafka's name and number of an error code."""
    from kafka.errors import for_code

    error = for_code(code)
    return f"{getattr(error, 'message', error.__name__)} ({code})"


def address_text(address: Address) -> str:
    """Return ``host:port``."""
    return f"{address[0]}:{address[1]}"
