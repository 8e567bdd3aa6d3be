"""Records that the Kinesis Producer Library has packed into one: their format, read with protobuf.

A packed record is four magic bytes, a protobuf message with tables of keys, and the message's MD5.
Whatever isn't exactly that is an ordinary record, as for Amazon's own consumers. The package
``aws-kinesis-agg`` has code for it that was generated in 2022 and that today's protobuf refuses.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from onceforall.errors import MissingExtraError

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16


@cache
def _message() -> Any:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingExtraError("protobuf", "kinesis") from error
    file = descriptor_pb2.FileDescriptorProto(
        name="onceforall/kinesis_aggregate.proto", package="onceforall.kinesis", syntax="proto2"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    record = file.message_type.add(name="Record")
    for number, name, label, kind in (
        (1, "partition_key_index", one, kinds.TYPE_UINT64),
        (2, "explicit_hash_key_index", one, kinds.TYPE_UINT64),
        (3, "data", one, kinds.TYPE_BYTES),
    ):
        record.field.add(name=name, number=number, label=label, type=kind)
    whole = file.message_type.add(name="AggregatedRecord")
    whole.field.add(name="partition_key_table", number=1, label=many, type=kinds.TYPE_STRING)
    whole.field.add(name="explicit_hash_key_table", number=2, label=many, type=kinds.TYPE_STRING)
    whole.field.add(
        name="records",
        number=3,
        label=many,
        type=kinds.TYPE_MESSAGE,
        type_name=".onceforall.kinesis.Record",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("onceforall.kinesis.AggregatedRecord")
    )


def unpacked(data: bytes, partition_key: str) -> list[tuple[str, bytes]]:
    """Return the records that a Kinesis record holds, each with its partition key, in their order;
    an ordinary one is the only one of its own.

    Args:
        data: the Kinesis record's.
        partition_key: that of the Kinesis record.

    Raises:
        MissingExtraError: it is packed, and protobuf isn't installed.
    """
    ordinary = [(partition_key, data)]
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + _DIGEST_BYTES:
        return ordinary
    body, digest = data[len(_MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.md5(body, usedforsecurity=False).digest() != digest:
        return ordinary
    message = _message()()
    try:
        message.ParseFromString(body)
        keys = message.partition_key_table
        return [(keys[one.partition_key_index], one.data) for one in message.records]
    except Exception:  # noqa: BLE001  protobuf's own, or an index out of its table: no such format
        return ordinary
