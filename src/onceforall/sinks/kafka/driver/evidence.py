"""What became of a prepared Kafka transaction: the judgement, from what the brokers tell. Pure.

An error of EndTxn is no proof: PRODUCER_FENCED is also the answer for a transaction that was
committed and whose id was initialised again, and INVALID_PRODUCER_ID_MAPPING for one whose id has
expired since. Proof is, in this order:

1. *The transaction's state* at its coordinator, as long as that still speaks of this very producer
id and epoch.
2. *The log itself*. Before the decision, the driver reads the end offset of the partitions, and
   after that sees that the transaction is open in one of them (``proof``). So its marker is not
   written yet, and those of all earlier transactions of this producer are, for the broker lets none
   begin before: **the first marker of this producer id at or behind that offset is its own**;
   unless records of the same epoch follow it. Then the offset was told by a leader that had been
   cut off and didn't know its log's end, and the marker is that of an earlier transaction: it is
   the one behind the last such record. (No later transaction has this epoch: a producer goes on
   only behind DONE.) A commit marker carries the very epoch (EndTxn up to version 4 doesn't bump
   it), an abort marker that or the next one (time-outs and fencing bump it).
3. Where the log can't be read, an abort under the next epoch, *if every request of the
   transaction's task was answered*. A time-out leaves just that. But so does a transaction that was
   committed long ago, when a late AddPartitionsToTxn opens its id and epoch once more, and that
   times out; and only a request that went unanswered can come late. (To be anything else, a
   stranger would have to use our transactional id: EndTxn and InitProducerId, however late, open
   nothing.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceforall.sinks.kafka.driver.committable import KafkaCommittable, Proof


class Outcome(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class TransactionState:
    """What a coordinator says of a transactional id (DescribeTransactions, KIP-664)."""

    state: str
    producer_id: int
    epoch: int
    partitions: tuple[tuple[str, int], ...] = ()

    def hides_some_of(self, topics: Collection[str]) -> bool:
        """Tell whether an open transaction has written to partitions that are not told: a
        coordinator leaves out those of topics that the user may not DESCRIBE, without a word
        (Kafka's ``KafkaApis.handleDescribeTransactionsRequest``).

        Args:
            topics: that it is known to have written to; one without any partition has written, too.
        """
        return self.state == "Ongoing" and not (
            self.partitions and {topic for topic, _ in self.partitions} >= set(topics)
        )


@dataclass(frozen=True)
class Marker:
    """A control record that ends a producer's transaction in a partition.

    Attributes:
        commits: or aborts.
        epoch: the producer's.
        offset: its place.
        is_first: no other one of the producer can have stood before it, behind the proof's offset:
            the cleaner of a compacted topic has taken nothing there.
    """

    commits: bool
    epoch: int
    offset: int
    is_first: bool = True


@dataclass(frozen=True)
class Unreadable:
    """The log can't be read at the place of the proof.

    Attributes:
        reason: why, and what would help.
        is_certain: else another broker may be able to show it.
    """

    reason: str
    is_certain: bool = True


@dataclass(frozen=True)
class Finding:
    """The outcome, and on what it rests, in words."""

    outcome: Outcome
    words: str


_ENDING = {"PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
_UNDER_WAY = {"Ongoing", *_ENDING}


def judge_state(committable: KafkaCommittable, state: TransactionState | None) -> Finding | None:
    """Judge from the coordinator's state alone.

    Args:
        committable: with ``producer_id`` and ``producer_epoch``.
        state: None when the coordinator has forgotten the id.

    Returns:
        None when that is not enough.
    """
    if state is None or state.producer_id != committable["producer_id"]:
        return None
    epoch = committable["producer_epoch"]
    words = f"its state is {state.state} under epoch {state.epoch}"
    # An abort for age, a fence, and EndTxn of version 5 raise the epoch when they begin to end a
    # transaction. One that is open under the next epoch is another one, whose owner got that epoch
    # behind the end of this one, and may keep it open for as long as it likes.
    under_way = {epoch: _UNDER_WAY, epoch + 1: _ENDING}.get(state.epoch, ())
    if state.state in under_way:
        return Finding(Outcome.OPEN, words)
    if state.epoch == epoch and state.state == "CompleteCommit":
        # It would not have refused EndTxn then: another coordinator has answered meanwhile, and
        # EndTxn must ask that one.
        return Finding(Outcome.OPEN, words)
    if state.epoch == epoch and state.state == "CompleteAbort":
        return Finding(Outcome.ABORTED, words)
    return None


def is_open(committable: KafkaCommittable, state: TransactionState | None) -> bool:
    """Tell whether a state is that of the very transaction, open.

    Args:
        committable: with ``producer_id`` and ``producer_epoch``.
        state: None when the coordinator has forgotten the id.
    """
    return (
        state is not None
        and state.state == "Ongoing"
        and (state.producer_id, state.epoch)
        == (committable["producer_id"], committable["producer_epoch"])
    )


def judge_log(
    committable: KafkaCommittable,
    state: TransactionState | None,
    marker: Marker | Unreadable | None,
) -> Finding:
    """Judge from the log, where the state was not enough.

    Args:
        committable: with ``producer_id``, ``producer_epoch`` and perhaps ``proof``.
        state: the coordinator's, or None.
        marker: the transaction's in the log, found from the proof's offset on; None: there is none
            up to the end of the log.
    """
    epoch = committable["producer_epoch"]
    where = _where(committable)
    if isinstance(marker, Marker):
        return _judge_marker(committable, marker, where)
    known = (
        "the coordinator has forgotten its id"
        if state is None
        else f"its state is {state.state} under epoch {state.epoch}"
    )
    if marker is None:
        return Finding(Outcome.UNKNOWN, f"{known}, and {where} has no marker of its producer")
    if (
        state is not None
        and (state.producer_id, state.epoch) == (committable["producer_id"], epoch + 1)
        and state.state == "CompleteAbort"
    ):
        if not committable.get("doubtful"):
            return Finding(Outcome.ABORTED, known)
        known += f", which proves nothing, for {_OPENED_AGAIN}"
    return Finding(Outcome.UNKNOWN, f"{known}, and {marker.reason}")


def _judge_marker(committable: KafkaCommittable, marker: Marker, where: str) -> Finding:
    epoch = committable["producer_epoch"]
    at = (
        f"{where} has {'a commit' if marker.commits else 'an abort'} marker of its producer at "
        f"offset {marker.offset}"
    )
    if marker.commits and marker.epoch == epoch:
        return Finding(Outcome.COMMITTED, at)
    if marker.commits or marker.epoch not in {epoch, epoch + 1}:
        return Finding(
            Outcome.UNKNOWN,
            f"{at}, but under epoch {marker.epoch}, not {epoch}: somebody else used its "
            "transactional id",
        )
    if marker.epoch == epoch or marker.is_first or not committable.get("doubtful"):
        return Finding(Outcome.ABORTED, at)
    return Finding(
        Outcome.UNKNOWN,
        f"{at}, before which the topic is compacted, so that a commit marker may have stood there: "
        f"{_OPENED_AGAIN}",
    )


_OPENED_AGAIN = "a request of its task went unanswered and may have opened it once more"


def _where(committable: KafkaCommittable) -> str:
    proof = committable.get("proof")
    return (
        "the topic"
        if proof is None
        else f"partition {proof['partition']} of topic {proof['topic']}"
    )


def proof_of(state: TransactionState | None, ends: Mapping[tuple[str, int], int]) -> Proof | None:
    """Return where the log will prove what became of an open transaction: one of its partitions,
    and its end offset before.

    Args:
        state: read after ``ends``.
        ends: end offsets by topic and partition.
    """
    for topic, partition in sorted(state.partitions if state is not None else ()):
        if (topic, partition) in ends:
            return {"topic": topic, "partition": partition, "offset": ends[topic, partition]}
    return None
