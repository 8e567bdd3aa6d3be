"""The C interface of the librdkafka that confluent-kafka brings along, as far as the sink needs
what its Python classes lack.

confluent-kafka's producer takes a record per call and reports each delivery to Python; the C
interface takes a whole Arrow batch in one call (``rd_kafka_produce_batch``), without a Python
object per row, and reports only failures. The functions are found through confluent-kafka's own
extension module, so it is the very library that this module was built with, wherever it lies.

Types and constants are those of ``rdkafka.h`` of librdkafka 2
(https://github.com/confluentinc/librdkafka/blob/master/src/rdkafka.h), whose interface keeps
compatible within a major version; ``load`` refuses any other.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

from onceforall.errors import OptionError
from onceforall.sinks.kafka.options import confluent_kafka

_MAJOR_VERSION = 2

PRODUCER = 0
PARTITION_UNASSIGNED = -1

MSG_F_COPY = 0x2
MSG_F_PARTITION = 0x8

PURGE_F_QUEUE = 0x1
PURGE_F_INFLIGHT = 0x2

EVENT_DR = 0x1
EVENT_LOG = 0x4
EVENT_ERROR = 0x8
EVENT_STATS = 0x40
EVENT_TOKEN_REFRESH = 0x100

VTYPE_RKT = 2
VTYPE_PARTITION = 3
VTYPE_VALUE = 4
VTYPE_KEY = 5
VTYPE_MSGFLAGS = 7
VTYPE_TIMESTAMP = 8
VTYPE_HEADER = 9


class Message(ctypes.Structure):
    """``rd_kafka_message_t``."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


class MetadataPartition(ctypes.Structure):
    """``rd_kafka_metadata_partition_t``."""

    _fields_ = (
        ("id", c_int32),
        ("err", c_int),
        ("leader", c_int32),
        ("replica_cnt", c_int),
        ("replicas", POINTER(c_int32)),
        ("isr_cnt", c_int),
        ("isrs", POINTER(c_int32)),
    )


class MetadataTopic(ctypes.Structure):
    """``rd_kafka_metadata_topic_t``."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition_cnt", c_int),
        ("partitions", POINTER(MetadataPartition)),
        ("err", c_int),
    )


class Metadata(ctypes.Structure):
    """``rd_kafka_metadata_t``."""

    _fields_ = (
        ("broker_cnt", c_int),
        ("brokers", c_void_p),
        ("topic_cnt", c_int),
        ("topics", POINTER(MetadataTopic)),
        ("orig_broker_id", c_int32),
        ("orig_broker_name", c_char_p),
    )


# Per function: what it returns, and what it takes. An error (``rd_kafka_error_t *``) is a pointer
# that is null when all is well.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conf_new": (c_void_p, ()),
    "conf_destroy": (None, (c_void_p,)),
    "conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "conf_set_events": (None, (c_void_p, c_int)),
    "new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "destroy": (None, (c_void_p,)),
    "set_log_queue": (c_int, (c_void_p, c_void_p)),
    "queue_get_main": (c_void_p, (c_void_p,)),
    "queue_poll": (c_void_p, (c_void_p, c_int)),
    "queue_destroy": (None, (c_void_p,)),
    "event_type": (c_int, (c_void_p,)),
    "event_destroy": (None, (c_void_p,)),
    "event_message_next": (POINTER(Message), (c_void_p,)),
    "event_error": (c_int, (c_void_p,)),
    "event_error_string": (c_char_p, (c_void_p,)),
    "event_stats": (c_char_p, (c_void_p,)),
    "event_log": (c_int, (c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int))),
    "event_config_string": (c_char_p, (c_void_p,)),
    "fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "err2str": (c_char_p, (c_int,)),
    "error_code": (c_int, (c_void_p,)),
    "error_string": (c_char_p, (c_void_p,)),
    "error_is_fatal": (c_int, (c_void_p,)),
    "error_is_retriable": (c_int, (c_void_p,)),
    "error_txn_requires_abort": (c_int, (c_void_p,)),
    "error_destroy": (None, (c_void_p,)),
    "topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "topic_name": (c_char_p, (c_void_p,)),
    "topic_destroy": (None, (c_void_p,)),
    "metadata": (c_int, (c_void_p, c_int, c_void_p, POINTER(POINTER(Metadata)), c_int)),
    "metadata_destroy": (None, (POINTER(Metadata),)),
    "produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "produceva": (c_void_p, (c_void_p, c_void_p, c_size_t)),
    "flush": (c_int, (c_void_p, c_int)),
    "purge": (c_int, (c_void_p, c_int)),
    "outq_len": (c_int, (c_void_p,)),
    "init_transactions": (c_void_p, (c_void_p, c_int)),
    "begin_transaction": (c_void_p, (c_void_p,)),
    "commit_transaction": (c_void_p, (c_void_p, c_int)),
    "abort_transaction": (c_void_p, (c_void_p, c_int)),
    "sasl_set_credentials": (c_void_p, (c_void_p, c_char_p, c_char_p)),
    "oauthbearer_set_token": (
        c_int,
        (c_void_p, c_char_p, c_int64, c_char_p, POINTER(c_char_p), c_size_t, c_char_p, c_size_t),
    ),
    "oauthbearer_set_token_failure": (c_int, (c_void_p, c_char_p)),
}


@cache
def load() -> Any:
    """Return an object with librdkafka's functions as attributes, by their names without
    ``rd_kafka_``.

    Raises:
        OptionError: this confluent-kafka doesn't show the library, or it is of another major
            version.
        MissingExtraError: confluent-kafka is not installed.
    """
    ck = confluent_kafka()
    try:
        # The symbols of a library that a module is linked with are found through the module.
        library = ctypes.CDLL(ck.cimpl.__file__)
        functions = {name: _declared(library, name, *types) for name, types in _FUNCTIONS.items()}
        number = int(library.rd_kafka_version())
    except (OSError, AttributeError) as error:
        raise OptionError(
            f"This build of confluent-kafka ({ck.version()}) hides librdkafka's C interface, "
            f"which the Kafka sink writes through: {error}. Install "
            "the wheel from PyPI: pip install --only-binary=:all: confluent-kafka."
        ) from error
    if number >> 24 != _MAJOR_VERSION:
        raise OptionError(
            f"confluent-kafka {ck.version()} brings librdkafka {ck.libversion()[0]}, and the "
            "Kafka sink writes through the C interface of librdkafka "
            f"{_MAJOR_VERSION}. Install a confluent-kafka 2."
        )
    return type(
        "Librdkafka", (), {name: staticmethod(function) for name, function in functions.items()}
    )


def _declared(library: ctypes.CDLL, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    function = library[f"rd_kafka_{name}"]
    function.restype, function.argtypes = result, arguments
    return function
