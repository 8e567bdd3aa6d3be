"""Reads what the coordinators of a cluster know of transactions.

Requests are only read with; none changes anything, so each may be repeated. An error that says "not
now" or "not here" is asked again until a deadline.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from onceforall.sinks.kafka.access.rights import Rights
from onceforall.sinks.kafka.driver.broker_client import (
    FIRST_BACKOFF_S,
    LAST_BACKOFF_S,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AccessRefusedError,
    error_name,
)
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from onceforall.sinks.kafka.driver.evidence import TransactionState, is_open
from onceforall.sinks.kafka.driver.retry import Retry
from onceforall.sinks.kafka.driver.wire import Address, NoAnswer

if TYPE_CHECKING:
    from onceforall.sinks.kafka.driver.committable import KafkaCommittable

_OK = 0
_TRANSACTIONAL_ID_NOT_FOUND = 105
_FIRST_PATIENCE_S = 2.0
_LONGEST_PATIENCE = 4
"""Of a client's: finding a coordinator takes requests one behind the other, each of which may take
half of that."""


class StateReader:
    """Reads through a ``CoordinatorClient``. Safe to use from several threads."""

    def __init__(self, client: CoordinatorClient, rights: Rights) -> None:
        """Nothing is asked yet.

        Args:
            client: of the cluster.
            rights: names who lacks a right.
        """
        self._client = client
        self._rights = rights
        self._patience_s = _FIRST_PATIENCE_S

    @property
    def patience_s(self) -> float:
        """How many seconds a call asks before it gives up."""
        return self._client.deadline_s

    def states(
        self,
        committables: Collection[KafkaCommittable],
        doubtful: Collection[str] = (),
    ) -> dict[str, TransactionState | None]:
        """Return the states of transactional ids; None for one that is forgotten.

        A broker that was cut off and wakes takes itself for the coordinator, and answers from its
        old memory: that an id is unknown, or its transaction over, or another one open. So another
        answer than that the very transaction is open is believed of a coordinator alone that
        another broker names.

        Args:
            committables: of transactions with the ids.
            doubtful: ids of which no answer is believed of another one: whoever would go on
                because a transaction is open, or counts on the partitions that are told, and asks
                nobody else afterwards.

        Raises:
            SinkUnavailableError: not all coordinators answered.
        """
        found: dict[str, TransactionState | None] = {}
        patience_s = max(self._client.deadline_s, self._patience_s)
        retry = Retry(patience_s, "The states of Kafka transactions could not be read")
        doubted = set(doubtful)
        self.doubt(doubted)
        while missing := [c for c in committables if c["name"] not in found]:
            reasons: dict[str, str] = {}
            found |= self.states_now(missing, doubted, reasons, retry.deadline_s)
            if any(c["name"] not in found for c in missing):
                if retry.is_over():
                    self._wait_longer()
                retry.again(next(iter(reasons.items()), ("", "")))
        return found

    def states_now(
        self,
        committables: Collection[KafkaCommittable],
        doubted: set[str],
        reasons: dict[str, str],
        deadline_s: float | None = None,
    ) -> dict[str, TransactionState | None]:
        """Ask once, and return what counts; see ``states``.

        Args:
            committables: of transactions with the ids.
            doubted: ids of which no answer is believed of another one; gets those of which this
                turn has an answer that counts only then.
            reasons: gets why the others are not told, by id.
            deadline_s: until when; None: as long as a client has patience.
        """
        if deadline_s is None:
            deadline_s = time.monotonic() + self._client.deadline_s
        told: dict[str, TransactionState | None] = {}
        names = [c["name"] for c in committables]
        reasons.update(self._ask_states(names, told, doubted, deadline_s))
        return self._believed(committables, told, doubted, reasons)

    def doubt(self, names: Collection[str]) -> None:
        """Look for the coordinators of these ids anew; where there is one broker, it is that."""
        if self._client.has_others():
            self._client.doubt(names)

    def _wait_longer(self) -> None:
        """Give the next call more time than this one had."""
        self._patience_s = min(4 * self._patience_s, _LONGEST_PATIENCE * self._client.deadline_s)

    def states_known_soon(
        self, names: Collection[str], reasons: dict[str, str]
    ) -> dict[str, TransactionState | None]:
        """Return what those coordinators tell of transactional ids that answer within a short
        time, and that another broker names; None for an id that is forgotten.

        Whoever is untold is asked for again by a later call, which has more time: brokers that are
        slow would else never be understood.

        Args:
            names: the ids.
            reasons: gets why the others are not told, by id.
        """
        found: dict[str, TransactionState | None] = {}
        deadline_s = time.monotonic() + self._patience_s
        doubted = set(names)
        self.doubt(doubted)
        backoff_s = FIRST_BACKOFF_S
        while missing := [name for name in names if name not in found]:
            try:
                reasons.update(self._ask_states(missing, found, doubted, deadline_s))
            except AccessRefusedError as error:
                reasons.update(dict.fromkeys(missing, str(error)))
                break
            if len(found) == len(set(names)) or time.monotonic() > deadline_s:
                break
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
        if found.keys() >= set(names):
            self._patience_s = _FIRST_PATIENCE_S
        else:
            self._wait_longer()
        return found

    def _ask_states(
        self,
        names: Collection[str],
        found: dict[str, TransactionState | None],
        doubted: set[str],
        deadline_s: float,
    ) -> dict[str, str]:
        """Ask once, and return why some are not told.

        Args:
            names: the ids.
            found: gets the states.
            doubted: ids whose coordinator another broker must name.
            deadline_s: until when.
        """
        from kafka.protocol.admin import DescribeTransactionsRequest

        by_address: dict[Address, list[str]] = defaultdict(list)
        reasons: dict[str, str] = {}
        for name, address in self._client.coordinators(names, reasons, deadline_s, doubted).items():
            by_address[address].append(name)
        calls = [
            (a, DescribeTransactionsRequest(transactional_ids=asked))
            for a, asked in by_address.items()
        ]
        for asked, answer in zip(
            by_address.values(), self._client.exchange(calls, deadline_s), strict=True
        ):
            if isinstance(answer, NoAnswer):
                self._client.forget(asked)
                reasons.update(dict.fromkeys(asked, answer.reason))
                continue
            for state in answer.transaction_states:
                self._take_state(state, found, reasons)
        return reasons

    def _take_state(
        self,
        answer: Any,
        found: dict[str, TransactionState | None],
        reasons: dict[str, str],
    ) -> None:
        name, code = str(answer.transactional_id), int(answer.error_code)
        if code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise AccessRefusedError(f"{self._rights.transactional_id(name, 'Describe')}.")
        if code not in {_OK, _TRANSACTIONAL_ID_NOT_FOUND}:
            self._client.forget([name])
            reasons[name] = f"the coordinator answered {error_name(code)}"
            return
        found[name] = _state(answer) if code == _OK else None

    def _believed(
        self,
        committables: Collection[KafkaCommittable],
        told: dict[str, TransactionState | None],
        doubted: set[str],
        reasons: dict[str, str],
    ) -> dict[str, TransactionState | None]:
        """Return what counts of that which was told.

        Args:
            committables: of the transactions.
            told: the answers.
            doubted: ids whose coordinator another broker has named; gets those of which the answer
                counts only then.
            reasons: gets why an answer doesn't count.
        """
        if not self._client.has_others():
            return told
        found = {}
        for committable in committables:
            name = committable["name"]
            if name not in told:
                continue
            state = told[name]
            if name in doubted or is_open(committable, state):
                found[name] = state
                continue
            words = "that it is not known" if state is None else state.state
            reasons[name] = (
                f"a broker answered {words}; that counts when another one names it the "
                "coordinator, for it may have been cut off"
            )
            doubted.add(name)
            self._client.doubt([name])
        return found


def _state(answer: Any) -> TransactionState:
    return TransactionState(
        str(answer.transaction_state),
        int(answer.producer_id),
        int(answer.producer_epoch),
        tuple((str(topic.topic), int(p)) for topic in answer.topics for p in topic.partitions),
    )
