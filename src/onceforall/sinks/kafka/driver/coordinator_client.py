"""What the driver asks of a Kafka cluster: end other processes' transactions, fence ids, and list
what is open.

A transaction is ended by EndTxn with (transactional id, producer id, epoch), which any process may
send (KIP-98); **never above
version 4**: version 5 bumps the epoch (KIP-890), and the two must not be mixed for one id. An
undecided transaction is aborted by InitProducerId, which fences its producer first, never by
EndTxn(abort), after which that one would go on writing.

An error that says "not now" is asked again until a deadline. A request without an answer is asked
again too, but its id is
remembered as doubtful: the request may take effect later. An error that says that a transaction is
lost counts when the coordinator has been looked up anew, by another broker's word, and says so too.
So does every answer for a transaction whose producer has lost a connection. A broker that was cut
off takes itself for the coordinator, and others may be away: until one names it, nothing is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from onceforall.errors import SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.kafka.access.secure_connections import Access
from onceforall.sinks.kafka.driver.broker_client import (
    ANSWER_TIMEOUT_S,
    DEADLINE_S,
    FIRST_BACKOFF_S,
    LAST_BACKOFF_S,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AccessRefusedError,
    BrokerClient,
    address_text,
    error_name,
    metadata_request,
)
from onceforall.sinks.kafka.driver.wire import NO_STEPS, Address, NoAnswer, Steps

if TYPE_CHECKING:
    from onceforall.sinks.kafka.driver.committable import KafkaCommittable

_END_TXN_MAX_VERSION = 4
_INIT_PRODUCER_ID_MAX_VERSION = 4
# Nothing is ever written under the epoch that a fence gives out, so any value will do that is not
# above the brokers' limit. Some set that below a minute, and a sink of another delivery than
# exactly once has no timeout of its own that a start compares with it.
_FENCE_TIMEOUT_MS = 1_000

_OK = 0
(
    _COORDINATOR_LOAD_IN_PROGRESS,
    _COORDINATOR_NOT_AVAILABLE,
    _NOT_COORDINATOR,
    _CONCURRENT_TRANSACTIONS,
) = 14, 15, 16, 51
_MOVED = {_COORDINATOR_NOT_AVAILABLE, _NOT_COORDINATOR}
_NOT_NOW = {
    _COORDINATOR_LOAD_IN_PROGRESS,
    _COORDINATOR_NOT_AVAILABLE,
    _NOT_COORDINATOR,
    _CONCURRENT_TRANSACTIONS,
    7,
    13,
}
_FENCED = 90
INVALID_TRANSACTION_TIMEOUT = 50
_LOST = {
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    _FENCED: "PRODUCER_FENCED",
}
_TRANSACTION_TYPE = 1
_SETTLING_S = 0.5
_TRANSACTION_TOPIC = "__transaction_state"
_END_TXN_STEPS = Steps(
    sending=lambda: failpoints.hit("kafka.end_txn.before"),
    answered=lambda: failpoints.hit("kafka.end_txn.after"),
)


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


class CoordinatorClient(BrokerClient):
    """A client of one cluster that also finds the coordinators of transactions.

    Safe to use from several threads.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        access: Access | None = None,
        deadline_s: float = DEADLINE_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """See ``BrokerClient``; nothing is connected yet."""
        super().__init__(
            bootstrap_servers,
            access=access,
            deadline_s=deadline_s,
            answer_timeout_s=answer_timeout_s,
        )
        self._coordinators: dict[str, Address] = {}
        # As of the last list of open transactions that counted; and whether the last one didn't.
        self._settled_with: Mapping[int, tuple[Address | None, int]] | None = None
        self._was_amiss = False

    def end_transactions(self, committables: Collection[KafkaCommittable]) -> Answers:
        """Commit prepared transactions, in parallel. A transaction that is committed already
        answers with success.

        Args:
            committables: each with ``name``, ``producer_id`` and ``producer_epoch``.
        """
        from kafka.protocol.producer import EndTxnRequest

        by_name = {c["name"]: c for c in committables}
        # Its producer may have found another coordinator than the one that is known here, and which
        # may only remember an earlier commit under the same producer id and epoch, and answer with
        # that.
        doubtful = [name for name, c in by_name.items() if c.get("doubtful")]
        self.doubt(doubtful)

        def request(name: str) -> Any:
            return EndTxnRequest(
                transactional_id=name,
                producer_id=by_name[name]["producer_id"],
                producer_epoch=by_name[name]["producer_epoch"],
                committed=True,
                max_version=_END_TXN_MAX_VERSION,
            )

        return self._ask_coordinators(by_name, request, _END_TXN_STEPS, doubtful)

    def fence(self, names: Collection[str]) -> Answers:
        """Abort what is open under these ids, and bump their epochs, so that no producer of before
        writes any more.

        While the abort completes, the answer is CONCURRENT_TRANSACTIONS; it is asked again, so that
        readers are past it on return.
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

        Each broker lists what it coordinates. While a coordinator moves, one that was asked too
        early and one that was asked too late would both leave its transactions out. So the answers
        count only all together: every broker has answered, and every coordinator is before and
        after where it was, by the word of every broker: a single one may not have heard yet. A
        broker that has become a coordinator a moment ago may not have begun to read: where anything
        was amiss, in the call before, too, or coordinators have moved since that, all are asked
        once more after a pause. (A user who may not describe
        ``__transaction_state`` can't be told where coordinators are; then one that moves in this
        moment hides its transactions until the next call.)

        Raises:
            SinkUnavailableError: a broker did not answer, or a part of the ids has no coordinator.
        """
        try:
            return self._listed_surely()
        except SinkUnavailableError:
            self._was_amiss = True
            raise

    def _listed_surely(self) -> list[str]:
        from kafka.protocol.admin import ListTransactionsRequest

        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = FIRST_BACKOFF_S
        found: set[str] = set()
        settled_with: dict[int, tuple[Address | None, int]] | None = None
        was_amiss = self._was_amiss
        while True:
            # Where answers take their time, the first turn may end behind the deadline, and two
            # that say the same are needed behind a failure.
            is_last = time.monotonic() > deadline_s
            self.metadata(_TRANSACTION_TOPIC)
            before, reason = self._transaction_leaders(deadline_s)
            answers: dict[Address, Any] = {}
            if not reason:
                answers, reason = self._ask_every_broker(
                    lambda: ListTransactionsRequest(
                        state_filters=["Ongoing"], producer_id_filters=[], max_version=0
                    ),
                    deadline_s,
                )
            if not reason:
                after, reason = self._transaction_leaders(deadline_s)
                reason = reason or _why_not_settled(before, after, answers.keys())
            if not reason:
                found |= {
                    state.transactional_id
                    for answer in answers.values()
                    for state in answer.transaction_states
                }
                is_known = not was_amiss and self._settled_with in (None, before)
                if is_known or settled_with == before:
                    self._settled_with, self._was_amiss = before, False
                    return sorted(found)
                settled_with, reason, backoff_s = (
                    before,
                    "transaction coordinators have just moved",
                    _SETTLING_S,
                )
            else:
                settled_with, was_amiss = None, True
            if is_last:
                raise SinkUnavailableError(
                    f"Open Kafka transactions could not be listed: {reason}."
                )
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)

    def _transaction_leaders(
        self, deadline_s: float
    ) -> tuple[dict[int, tuple[Address | None, int]], str]:
        """Return the coordinator of each part of the transactional ids, with the epoch of its
        leadership; nothing where it isn't told.

        Every broker is asked; the second value says why one is missing, or that they don't agree.
        """
        answers, reason = self._ask_every_broker(
            partial(metadata_request, _TRANSACTION_TOPIC), deadline_s
        )
        views = [_leaders(answer) for answer in answers.values()]
        if not reason and any(view != views[0] for view in views):
            reason = "the brokers don't agree yet where the transaction coordinators are"
        return (views[0] if views else {}), reason

    def missing_transactional_right(self, unused_name: str) -> str | None:
        """Return the operation (``"Describe"``, ``"Write"``) that this user lacks on a
        transactional id; None when none is lacking.

        Args:
            unused_name: an id that nobody ever had: what is asked is to abort its transaction,
                which there is none of.

        Raises:
            SinkUnavailableError: no answer.
        """
        from kafka.protocol.producer import EndTxnRequest

        def request(name: str) -> Any:
            return EndTxnRequest(
                transactional_id=name,
                producer_id=0,
                producer_epoch=0,
                committed=False,
                max_version=_END_TXN_MAX_VERSION,
            )

        answers = self._ask_coordinators([unused_name], request)
        self.forget([unused_name])
        if unused_name in answers.codes:
            return (
                "Write"
                if answers.codes[unused_name] == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                else None
            )
        reason = answers.missing[unused_name]
        if error_name(TRANSACTIONAL_ID_AUTHORIZATION_FAILED) in reason:
            return "Describe"
        raise SinkUnavailableError(f"The coordinator of {unused_name} gave no answer: {reason}.")

    def _ask_coordinators(
        self,
        names: Collection[str],
        make: Callable[[str], Any],
        steps: Steps = NO_STEPS,
        doubtful: Collection[str] = (),
    ) -> Answers:
        """Ask for each id until there is a last word, or the deadline.

        Args:
            names: the ids.
            make: makes the request for one.
            steps: around each request.
            doubtful: ids whose coordinator another broker must name.
        """
        answers = Answers()
        waiting = dict.fromkeys(names, "no coordinator was found")
        # A broker that was cut off and wakes takes itself for the coordinator for a moment, and
        # answers from its old memory.
        confirming: set[str] = set()
        deadline_s = time.monotonic() + self._deadline_s
        backoff_s = FIRST_BACKOFF_S
        while waiting:
            refused: set[str] = set()
            located = self._locate(waiting, deadline_s, refused, {*doubtful, *confirming})
            asked = sorted(located)
            calls = [(located[name], make(name)) for name in asked]
            for name, answer in zip(asked, self.exchange(calls, deadline_s, steps), strict=True):
                code = None if isinstance(answer, NoAnswer) else int(answer.error_code)
                if code in _LOST and name not in confirming and self.has_others():
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
                backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
        answers.missing = waiting
        return answers

    def _put_off(self, name: str, address: Address, answer: Any, answers: Answers) -> str:
        """Note what an answer that isn't the last word, or none, means for an id; return why it
        must be asked for again.
        """
        if isinstance(answer, NoAnswer):
            if answer.sent:
                answers.unanswered.add(name)
                answers.repeated.add(name)
            self.forget([name])
            return f"broker {address_text(answer.address)}: {answer.reason}"
        answers.repeated.add(name)
        if answer.error_code in _LOST:
            self.doubt([name])
        elif answer.error_code in _MOVED:
            self.forget([name])
        return f"broker {address_text(address)} answered {error_name(answer.error_code)}"

    def doubt(self, names: Collection[str]) -> None:
        """Look for the coordinators of these ids anew, and ask those that were known so far
        where they are last.
        """
        with self._lock:
            self._suspects |= {
                self._coordinators.pop(name) for name in names if name in self._coordinators
            }

    def _locate(
        self,
        waiting: dict[str, str],
        deadline_s: float,
        refused: set[str],
        doubtful: Collection[str] = (),
    ) -> Mapping[str, Address]:
        """Return the coordinators that are known, having asked for those that weren't.

        Args:
            waiting: the ids; gets the reasons why one is not found.
            deadline_s: until when.
            refused: gets ids that need not be asked for again at once, because somebody must mend
                something first.
            doubtful: ids whose coordinator another broker must name. One that was cut off takes
                itself for it, and answers from its old memory.
        """
        from kafka.protocol.metadata import FindCoordinatorRequest

        with self._lock:
            unknown = [name for name in waiting if name not in self._coordinators]
        if any(name in doubtful for name in unknown):
            self._look_for_brokers(deadline_s)
        with self._lock:
            known = self._askable()
        by_themselves: dict[str, str] = {}
        for address in known:
            if not unknown:
                break
            request = FindCoordinatorRequest(
                key_type=_TRANSACTION_TYPE, coordinator_keys=unknown, min_version=4, max_version=4
            )
            answer = self.exchange([(address, request)], deadline_s)[0]
            if isinstance(answer, NoAnswer):
                waiting.update(
                    dict.fromkeys(unknown, f"broker {address_text(address)}: {answer.reason}")
                )
                if answer.refused:
                    refused.update(unknown)
                continue
            refused.difference_update(unknown)
            with self._lock:
                for found in answer.coordinators:
                    where = (found.host, found.port)
                    if found.error_code == _OK and (
                        found.key not in doubtful or self._may_name(address, where)
                    ):
                        self._coordinators[found.key] = where
                    elif found.error_code == _OK:
                        by_themselves[found.key] = (
                            f"broker {address_text(where)} names itself its coordinator; that "
                            "counts when another one does, for it may have been cut off"
                        )
                    else:
                        if found.error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                            refused.add(found.key)
                        waiting[found.key] = (
                            f"its coordinator is not to be found: {error_name(found.error_code)}"
                        )
                unknown = [
                    name for name in unknown if name in doubtful and name not in self._coordinators
                ]
        waiting.update({name: by_themselves[name] for name in unknown if name in by_themselves})
        with self._lock:
            return {
                name: self._coordinators[name] for name in waiting if name in self._coordinators
            }

    def coordinators(
        self,
        names: Collection[str],
        reasons: dict[str, str],
        deadline_s: float,
        doubtful: Collection[str] = (),
    ) -> Mapping[str, Address]:
        """Return the transaction coordinators of those ids whose is to be found.

        Args:
            names: the ids.
            reasons: gets why others' are not found.
            deadline_s: until when.
            doubtful: ids whose coordinator another broker must name, where it isn't known yet.

        Raises:
            AccessRefusedError: nobody may be asked.
        """
        waiting = dict.fromkeys(names, "no coordinator was found")
        refused: set[str] = set()
        found = self._locate(waiting, deadline_s, refused, doubtful)
        reasons.update({name: reason for name, reason in waiting.items() if name not in found})
        if refused:
            name = min(refused)
            raise AccessRefusedError(f"Kafka transaction {name}: {waiting[name]}.")
        return found

    def forget(self, names: Collection[str]) -> None:
        """Forget the coordinators of ids that won't be asked for again."""
        with self._lock:
            for name in names:
                self._coordinators.pop(name, None)

    def close(self) -> None:
        """Close the connections; later calls open their own, and look for the coordinators anew."""
        super().close()
        with self._lock:
            self._coordinators.clear()


def _leaders(answer: Any) -> dict[int, tuple[Address | None, int]]:
    addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
    return {
        partition.partition_index: (addresses.get(partition.leader_id), partition.leader_epoch)
        for topic in answer.topics
        for partition in topic.partitions
    }


def _why_not_settled(
    before: Mapping[int, tuple[Address | None, int]],
    after: Mapping[int, tuple[Address | None, int]],
    answered: Collection[Address],
) -> str:
    """Return why brokers that were asked in between may have left transactions out; empty when
    they may not.
    """
    if before != after:
        return "transaction coordinators moved meanwhile"
    for partition, (address, _) in after.items():
        if address is None or address not in answered:
            return f"partition {partition} of {_TRANSACTION_TOPIC} has no coordinator now"
    return ""


def lost_reason(code: int) -> str | None:
    """Return Kafka's name of an error that says that a transaction can't be committed any more;
    None for other codes.
    """
    return _LOST.get(code)


def is_fenced(code: int) -> bool:
    """Tell whether a fence was answered as done: by us, or by somebody who came first."""
    return code in {_OK, _FENCED}
