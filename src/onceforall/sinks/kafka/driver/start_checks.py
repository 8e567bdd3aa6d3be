"""Checks, before the first batch, that a cluster can take what a Kafka sink is going to write;
nothing is created in it.

Each function asks the brokers and raises the ``SinkCheckError`` that names what to mend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import SinkCheckError, SinkUnavailableError
from onceforall.sinks.kafka.access.rights import Rights, may_write
from onceforall.sinks.kafka.driver.broker_client import TOPIC_AUTHORIZATION_FAILED, error_name
from onceforall.sinks.kafka.options import transaction_timeout_ms

if TYPE_CHECKING:
    from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient

_log = logs.logger("onceforall.sinks.kafka")

_UNKNOWN_TOPIC = 3
_INVALID_TOPIC = 17


def check_topic(client: CoordinatorClient, topic: str, options: Mapping[str, Any]) -> int | None:
    """Check that a topic exists and may be written to.

    Args:
        client: of the cluster.
        topic: its name.
        options: the sink's.

    Returns:
        The topic's ``max.message.bytes``; None when this user may not read it.

    Raises:
        SinkCheckError: there is no such topic, or the right to write to it is missing.
        SinkUnavailableError: no broker answered, or none tells its partitions now.
    """
    found = client.describe_topic(topic)
    if found.error_code == _UNKNOWN_TOPIC:
        raise SinkCheckError(
            f"Topic {topic!r} does not exist at {options['bootstrap.servers']}. Create it first, "
            "or correct topic=."
        )
    rights = Rights.of(options)
    if found.error_code == TOPIC_AUTHORIZATION_FAILED:
        raise SinkCheckError(f"{rights.topic(topic)} (or correct topic=).")
    if found.error_code == _INVALID_TOPIC:
        raise SinkCheckError(
            f"Topic {topic!r} can't be used: {error_name(found.error_code)}. Correct topic=."
        )
    if found.error_code and not found.partitions:
        raise SinkUnavailableError(
            f"The brokers told no partitions of topic {topic!r}: {error_name(found.error_code)}. "
            f"Check them (bootstrap.servers={options['bootstrap.servers']}), and start again."
        )
    if not may_write(found.authorized_operations):
        raise SinkCheckError(f"{rights.topic(topic)}.")
    limit = client.topic_setting(topic, "max.message.bytes")
    return int(limit) if limit is not None else None


def brokers_max_bytes(client: CoordinatorClient) -> int | None:
    """Return what brokers take of a topic that has no ``max.message.bytes`` of its own; None when
    this user may not read it.

    Args:
        client: of the cluster.

    Raises:
        SinkUnavailableError: no answer.
    """
    limit = client.broker_setting("message.max.bytes")
    return int(limit) if limit is not None else None


def check_transactions(
    client: CoordinatorClient, unused_name: str, options: Mapping[str, Any]
) -> None:
    """Check that this user may use transactions, that open ones can be listed, and that the brokers
    allow their timeout.

    Args:
        client: of the cluster; it has asked for metadata before.
        unused_name: a transactional id with the sink's prefix that nobody ever had.
        options: the sink's.

    Raises:
        SinkCheckError: a right is missing, or ``transaction.timeout.ms`` is above the brokers'
            limit.
        SinkUnavailableError: a broker did not answer.
    """
    operation = client.missing_transactional_right(unused_name)
    if operation is not None:
        raise SinkCheckError(f"{Rights.of(options).transactional_id(unused_name)}.")
    client.open_transactions()
    limit = client.broker_setting("transaction.max.timeout.ms")
    timeout_ms = transaction_timeout_ms(options)
    if limit is None:
        _log.warning(
            "The brokers' transaction.max.timeout.ms could not be read; transaction.timeout.ms=%d "
            "is not checked",
            timeout_ms,
        )
    elif timeout_ms > int(limit):
        raise SinkCheckError(
            f"transaction.timeout.ms={timeout_ms} is above the brokers' "
            f"transaction.max.timeout.ms={limit}. Lower the sink's option, or raise "
            "the brokers' setting."
        )
