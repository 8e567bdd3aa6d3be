"""What a committable of the Kafka sink says, key by key.

The rest of the library carries it as it is. The driver's side of the sink reads it here, once, and
works with the typed one; both are one object, so that keys of later releases are handed back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict, cast

from onceforall.errors import SinkCheckError
from onceforall.protocol import contract
from onceforall.sink import Committable


class _Place(TypedDict):
    """Where the log will prove what became of a transaction: one of its partitions, and that one's
    end offset while the transaction was open.
    """

    topic: str
    partition: int
    offset: int


class Proof(_Place, total=False):
    """See ``_Place``.

    Attributes:
        topic_id: of the topic, where the brokers tell it: a name can pass to another topic.
    """

    topic_id: str


class _Transaction(TypedDict):
    """What names a transaction to a coordinator: its transactional id, and under which producer."""

    name: str
    producer_id: int
    producer_epoch: int


class KafkaCommittable(_Transaction, total=False):
    """See ``_Transaction``.

    Attributes:
        records: how many were written.
        topics: where to, from ``pre_commit`` to ``confirm``, unless the sink has one topic.
        doubtful: a request of its task, or of the driver, went unanswered.
        burnt: ids whose InitProducerId went unanswered; nobody uses them again.
        proof: noted by ``confirm``. Decisions of the first releases have none.
        cluster: the cluster's id, noted by ``confirm`` where the brokers tell it.
        topic_ids: by name, those of the topics that it has written to beside that of the proof,
            noted by ``confirm`` where the brokers tell them.
    """

    records: int
    topics: list[str]
    doubtful: bool
    burnt: list[str]
    topic_ids: dict[str, str]
    proof: Proof
    cluster: str


def read(committables: Iterable[Committable]) -> list[KafkaCommittable]:
    """Return committables as what they say.

    Raises:
        SinkCheckError: one doesn't name a transaction.
    """
    found = list(committables)
    for each in found:
        for key, kind in (("name", str), ("producer_id", int), ("producer_epoch", int)):
            if not isinstance(each.get(key), kind):
                raise SinkCheckError(
                    f"A committable isn't one of KafkaSink, or is damaged: its {key} is "
                    f"{each.get(key)!r}. {contract.RESTORE}."
                )
    return [cast("KafkaCommittable", each) for each in found]
