"""The options of the Kafka sink: which of librdkafka's producer options are passed on, which are
refused, and the defaults.

Every option of https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md that a
producer has is passed on as it is, except for those that would break the promise of ``delivery`` or
that the sink needs for itself: these are refused by name, each with the reason and with what to use
instead. An option that librdkafka doesn't know is found by ``check_accepted``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from onceforall.common import arguments
from onceforall.errors import MissingExtraError, OptionError
from onceforall.sinks.kafka.access.security import (
    TOKEN_OPTION,
    check_security,
    check_value,
    is_security_option,
    refuse_by_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Delivery: TypeAlias = Literal["exactly_once", "at_least_once", "none"]

DELIVERIES = get_args(Delivery)

DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
_DEFAULT_MESSAGE_TIMEOUT_MS = 300_000
_DEFAULT_SOCKET_TIMEOUT_MS = 30_000

# librdkafka reports the producer id and epoch only in its statistics.
_STATISTICS_INTERVAL_MS = 100

_OWN = {
    "transactional.id": "The sink makes one per task attempt. Use transactional_id_prefix= to "
    "choose how they begin.",
    "statistics.interval.ms": "The sink reads the producer id from the statistics at an interval "
    "of its own. Leave it out.",
    "delivery.report.only.error": "The sink checks every delivery report itself. Leave it out.",
    "log.connection.close": "The sink must see every closed connection to know which producers "
    "are beyond doubt. Leave it out.",
    "socket.max.fails": "The sink relies on a connection being closed at the first timeout. Leave "
    "it out, or change socket.timeout.ms.",
    "log_level": "The sink must see librdkafka's own log. Leave it out; the messages go to "
    "Python's logger 'onceforall.sinks.kafka'.",
    "log.queue": "The sink reads librdkafka's own log. Leave it out; the messages go to Python's "
    "logger 'onceforall.sinks.kafka'.",
    "enabled_events": "The sink needs librdkafka's events for itself. Leave it out.",
    "plugin.library.paths": "A plug-in could change records and their acknowledgement behind the "
    "sink's back. Transform rows in Spark instead.",
    "interceptors": "An interceptor could change records behind the sink's back. Transform rows "
    "in Spark instead.",
    "default.topic.config": "Give the topic options directly, beside the others.",
    "default_topic_conf": "Give the topic options directly, beside the others.",
    "opaque": "It is a pointer of librdkafka's C interface. Leave it out.",
    "internal.termination.signal": "It is a matter of librdkafka's process. Leave it out.",
}

_CALLBACKS = {
    "error_cb", "stats_cb", "throttle_cb", "log_cb", "logger", "on_delivery", "dr_cb", "dr_msg_cb", "partitioner_cb", "msg_order_cmp",  # noqa: E501
    "background_event_cb", "socket_cb", "connect_cb", "closesocket_cb", "open_cb", "resolve_cb", "oauthbearer_token_refresh_cb",  # noqa: E501
    "rebalance_cb", "offset_commit_cb", "consume_cb", "on_commit", "ssl.certificate.verify_cb", "ssl_engine_callback_data",  # noqa: E501
}  # fmt: skip

_CONSUMER_ONLY = {
    "group.id", "group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor", "partition.assignment.strategy",  # noqa: E501
    "session.timeout.ms", "heartbeat.interval.ms", "coordinator.query.interval.ms", "max.poll.interval.ms", "max.poll.records",  # noqa: E501
    "enable.auto.commit", "auto.commit.enable", "auto.commit.interval.ms", "enable.auto.offset.store", "auto.offset.reset",  # noqa: E501
    "offset.store.path", "offset.store.sync.interval.ms", "offset.store.method", "consume.callback.max.messages",  # noqa: E501
    "queued.min.messages", "queued.max.messages.kbytes", "fetch.wait.max.ms", "fetch.queue.backoff.ms", "fetch.message.max.bytes",  # noqa: E501
    "max.partition.fetch.bytes", "fetch.max.bytes", "fetch.min.bytes", "fetch.error.backoff.ms", "isolation.level",  # noqa: E501
    "enable.partition.eof", "check.crcs", "share.acknowledgement.mode",
}  # fmt: skip


def checked_options(options: Mapping[str, Any], delivery: str) -> dict[str, Any]:
    """Return a copy of a user's options, each of which the sink can keep its promise with.

    Args:
        options: librdkafka's option names, with values that are strings, numbers or booleans.
        delivery: one of ``DELIVERIES``.

    Raises:
        OptionError: naming the option, the reason, and what to use instead. Never a value that
            could be secret.
    """
    if not isinstance(delivery, str) or delivery not in DELIVERIES:
        raise OptionError(
            f"delivery={arguments.shown(delivery)} is unknown. Use one of "
            f"{', '.join(map(repr, DELIVERIES))}."
        )
    checked = arguments.mapping(
        "options",
        options,
        "a dictionary of librdkafka's options, such as {'bootstrap.servers': 'broker:9092'}",
    )
    for name, value in checked.items():
        _refuse_by_name(name)
        if is_security_option(name):
            check_value(name, value)
        elif not isinstance(value, str | int | float):
            raise OptionError(
                f"Option {name!r} has a value of type {type(value).__name__}. Give a string, a "
                "number or a boolean."
            )
    if "metadata.broker.list" in checked:
        raise OptionError(
            "Option 'metadata.broker.list' is an older name. Use 'bootstrap.servers' instead."
        )
    servers = checked.get("bootstrap.servers")
    if not isinstance(servers, str) or not servers.strip():
        raise OptionError(
            "Option 'bootstrap.servers' is missing. Give the brokers' addresses, such as "
            "'broker1:9092,broker2:9092'."
        )
    parse_servers(servers)
    _refuse_values(checked, delivery)
    return checked


def _refuse_by_name(name: object) -> None:
    if not isinstance(name, str):
        raise OptionError(
            f"Option name {name!r} is a {type(name).__name__}. Names of options are strings."
        )
    if name.startswith("kafka."):
        raise OptionError(
            f"Option {name!r}: drop the prefix that Spark's own Kafka sink asks for, and use "
            f"{name[len('kafka.') :]!r}."
        )
    if is_security_option(name):
        refuse_by_name(name)
        return
    if name in _OWN:
        raise OptionError(f"Option {name!r} belongs to the sink. {_OWN[name]}")
    if name in _CALLBACKS or name.endswith("_cb"):
        raise OptionError(
            f"Option {name!r} is a callback, which can't go to the executors, and the sink needs "
            "them for itself. Leave it out."
        )
    if name in _CONSUMER_ONLY:
        raise OptionError(
            f"Option {name!r} is for consumers. Leave it out: the sink only produces."
        )
    if name.startswith("test.mock"):
        raise OptionError(
            f"Option {name!r} replaces the brokers by a mock that has no read_committed. Use "
            "onceforall.embedded.EmbeddedKafka."
        )


def _refuse_values(options: Mapping[str, Any], delivery: str) -> None:
    check_security(options)
    if _boolean(options, "allow.auto.create.topics", default=False):
        raise OptionError(
            "Option 'allow.auto.create.topics' would turn a misspelt topic into a new one. Create "
            "the topics beforehand."
        )
    if delivery != "none":
        _refuse_weak_delivery(options, delivery)
    if delivery == "exactly_once":
        _refuse_long_patience(options)
    elif "transaction.timeout.ms" in options:
        raise OptionError(
            f"Option 'transaction.timeout.ms' means nothing with delivery={delivery!r}. Leave it "
            "out."
        )


def _refuse_weak_delivery(options: Mapping[str, Any], delivery: str) -> None:
    if not _boolean(options, "enable.idempotence", default=True):
        raise OptionError(
            "Option 'enable.idempotence' switches off what keeps retries from doubling records, "
            "which "
            f"delivery={delivery!r} rests on. Leave it out."
        )
    for name in ("acks", "request.required.acks"):
        if str(options.get(name, "all")).lower() not in {"all", "-1"}:
            raise OptionError(
                f"Option {name!r} must be 'all': with fewer acknowledgements the end of a broker "
                "loses records. Leave it out."
            )
    for name in ("max.in.flight", "max.in.flight.requests.per.connection"):
        if _integer(options, name, 5) > 5:
            raise OptionError(
                f"Option {name!r} is above 5, the most that an idempotent producer keeps in "
                "order. Use at most 5."
            )
    for name in ("retries", "message.send.max.retries"):
        if _integer(options, name, 1) < 1:
            raise OptionError(
                f"Option {name!r} forbids retries, so every hiccup fails a batch. Leave it out."
            )


def _refuse_long_patience(options: Mapping[str, Any]) -> None:
    timeout_ms = transaction_timeout_ms(options)
    for name in ("message.timeout.ms", "delivery.timeout.ms"):
        patience_ms = _integer(options, name, 1)
        if not 0 < patience_ms <= timeout_ms:
            raise OptionError(
                f"Option {name!r}={patience_ms} is longer than "
                f"transaction.timeout.ms={timeout_ms}: the transaction would be gone before "
                "its records are given up. Use at most transaction.timeout.ms."
            )


def _boolean(options: Mapping[str, Any], name: str, *, default: bool) -> bool:
    return str(options.get(name, default)).lower() in {"true", "t", "1"}


def _integer(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name, default)
    try:
        return int(str(value))
    except ValueError:
        raise OptionError(f"Option {name!r}={value!r} is no whole number. Give one.") from None


def transaction_timeout_ms(options: Mapping[str, Any]) -> int:
    """Return after how many milliseconds the broker aborts an open transaction, as configured."""
    return _integer(options, "transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS)


def message_timeout_ms(options: Mapping[str, Any], delivery: str) -> int:
    """Return after how many milliseconds a record that no broker takes is given up, as
    configured (0: never).
    """
    for name in ("message.timeout.ms", "delivery.timeout.ms"):
        if name in options:
            return _integer(options, name, 0)
    if delivery == "exactly_once":
        return min(_DEFAULT_MESSAGE_TIMEOUT_MS, transaction_timeout_ms(options))
    return _DEFAULT_MESSAGE_TIMEOUT_MS


def message_max_bytes(options: Mapping[str, Any]) -> int:
    """Return the size in bytes of the largest record that librdkafka takes, as configured."""
    return _integer(options, "message.max.bytes", 1_000_000)


def producer_configuration(
    options: Mapping[str, Any],
    delivery: str,
    transactional_id: str | None = None,
    batch_max_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the whole configuration of a librdkafka producer, without the callbacks.

    Args:
        options: what ``checked_options`` returned.
        delivery: one of ``DELIVERIES``.
        transactional_id: for ``exactly_once``.
        batch_max_bytes: ``max.message.bytes`` of the topic, or else what the brokers have for those
            that set none, when it is known: batches are kept below it, for a broker refuses a whole
            batch, and librdkafka, unlike the Java producer, doesn't split it.
    """
    configuration: dict[str, Any] = {
        # Where Java's producer and Spark's own sink put a key, it stays.
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 500_000,
        # Of each task: librdkafka's own limit, of 1 GiB, is more than an executor has to spare.
        "queue.buffering.max.kbytes": 131_072,
        "delivery.report.only.error": True,
        "log.connection.close": True,
        "socket.max.fails": 1,
    }
    if delivery != "none":
        configuration |= {"enable.idempotence": True}
        if not {"acks", "request.required.acks"} & options.keys():
            configuration["acks"] = "all"
    if delivery == "exactly_once":
        configuration |= {
            "transactional.id": transactional_id or "check",
            "transaction.timeout.ms": transaction_timeout_ms(options),
            "statistics.interval.ms": _STATISTICS_INTERVAL_MS,
        }
        # A reused producer's own commit is told to ask again while the driver's commit completes;
        # the default waits 100 ms.
        configuration["retry.backoff.ms"] = min(10, _integer(options, "retry.backoff.max.ms", 10))
        if not {"message.timeout.ms", "delivery.timeout.ms"} & options.keys():
            configuration["message.timeout.ms"] = message_timeout_ms(options, delivery)
        # With transactions, librdkafka would wait as long as the transaction's timeout for a broker
        # that hangs: longer than for a record.
        configuration["socket.timeout.ms"] = min(
            _DEFAULT_SOCKET_TIMEOUT_MS, transaction_timeout_ms(options)
        )
    if batch_max_bytes is not None:
        configuration["batch.size"] = min(1_000_000, batch_max_bytes)
    return configuration | dict(options)


def check_accepted(configuration: Mapping[str, Any]) -> None:
    """Have librdkafka read a configuration; nothing is connected.

    Raises:
        OptionError: librdkafka doesn't know an option or refuses a value; its own words are in the
            message.
        MissingExtraError: confluent-kafka is not installed.
    """
    reason = _refusal_of(configuration)
    if reason is None:
        return
    # librdkafka may name an option by another name than the user did (compression.codec for
    # compression.type).
    single = [
        name
        for name, value in configuration.items()
        if name != "bootstrap.servers" and _refusal_of({name: value}) is not None
    ]
    named = f"option {', '.join(map(repr, single))}" if single else "this combination of options"
    raise OptionError(
        f"librdkafka refuses {named} of the Kafka sink: {reason}. Correct or remove it "
        "(https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md)."
    )


def _refusal_of(configuration: Mapping[str, Any]) -> str | None:
    ck = confluent_kafka()
    # It would connect, perhaps with wrong credentials, and ask for a token; both are for the
    # callers to try.
    configuration = {
        name: value for name, value in configuration.items() if name != TOKEN_OPTION
    } | {"bootstrap.servers": ""}
    try:
        ck.Producer(configuration)
    except ck.KafkaException as error:
        return str(error.args[0].str())
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def parse_servers(servers: str) -> list[tuple[str, int]]:
    """Return host and port of each of ``bootstrap.servers`` (port 9092 where none is given, as in
    librdkafka).

    Raises:
        OptionError: one of them is no address.
    """
    addresses = []
    for part in filter(None, (piece.strip() for piece in servers.split(","))):
        if "@" in part:
            # Whoever writes a user there also writes a password, so nothing of it is shown.
            raise OptionError(
                "Option 'bootstrap.servers' has an '@', as if a user or a password stood in it. "
                "Give host:port only; these are options sasl.username "
                "and sasl.password."
            )
        host, separator, port = part.rpartition("://")[2].rpartition(":")
        if not separator or port.endswith("]"):
            host, port = part.rpartition("://")[2], "9092"
        host = host.strip("[]")
        is_port = port.isdecimal() and 0 < int(port) < 65536
        if not host or not is_port or not arguments.is_host(host):
            raise OptionError(
                f"Option 'bootstrap.servers': {part!r} is no address. Write it as host:port, such "
                "as 'broker:9092'; the parts of a host's name have 1 to 63 characters."
            )
        addresses.append((host, int(port)))
    if not addresses:
        raise OptionError(
            "Option 'bootstrap.servers' names no broker. Give addresses such as "
            "'broker1:9092,broker2:9092'."
        )
    return addresses


def confluent_kafka() -> Any:
    """Return the module ``confluent_kafka``.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import confluent_kafka as module
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "kafka") from error
    return module
