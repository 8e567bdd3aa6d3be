"""Creates topics on an embedded broker or cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from onceforall.errors import EmbeddedServerError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLL_INTERVAL_S = 0.05


def create_topic(
    servers: str,
    name: str,
    partitions: int,
    config: Mapping[str, str] | None,
    *,
    replication: int,
    deadline_s: float,
) -> None:
    """Create a topic and return when every partition of it has a leader.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
        EmbeddedServerError: the broker refused (the topic exists, a setting is wrong) or did not
            answer in time.
    """
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "kafka") from error
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    wanted = NewTopic(
        name, num_partitions=partitions, replication_factor=replication, config=dict(config or {})
    )
    try:
        admin.create_topics([wanted], operation_timeout=deadline_s)[name].result(deadline_s)
        deadline = time.monotonic() + deadline_s
        while not _has_leaders(
            admin.list_topics(name, timeout=deadline_s).topics[name], partitions
        ):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"Topic {name!r} got no leaders in {deadline_s:.0f} s. Restart the broker."
                )
            time.sleep(_POLL_INTERVAL_S)
    except (KafkaException, TimeoutError) as error:
        raise EmbeddedServerError(
            f"Topic {name!r} could not be created: {error}. Choose another name or correct its "
            "settings."
        ) from error


def _has_leaders(topic: object, partitions: int) -> bool:
    found = getattr(topic, "partitions", {})
    return len(found) == partitions and all(partition.leader >= 0 for partition in found.values())
