"""The messages of Pravega's controller, made with protobuf from the table below.

No code was generated from ``Controller.proto``: generated code belongs to one version of protobuf.
An enumeration is a number here, and a map is a list of its entries, as on the wire.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from onceforall.errors import MissingExtraError

_PACKAGE = "onceforall.pravega"
_MANY = "*"

_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "StreamInfo": ((1, "scope", "string"), (2, "stream", "string")),
    "ScopeInfo": ((1, "scope", "string"),),
    "Exists": ((1, "exists", "bool"),),
    "Status": ((1, "status", "int32"),),
    "ScalingPolicy": ((1, "scaleType", "int32"), (4, "minNumSegments", "int32")),
    "StreamConfig": ((1, "streamInfo", "StreamInfo"), (2, "scalingPolicy", "ScalingPolicy")),
    "CutEntry": ((1, "key", "int64"), (2, "value", "int64")),
    "StreamCut": ((1, "streamInfo", "StreamInfo"), (2, "cut", "*CutEntry")),
    "Validity": ((1, "response", "bool"),),
    "SegmentId": ((1, "streamInfo", "StreamInfo"), (2, "segmentId", "int64")),
    "SegmentRange": (
        (1, "segmentId", "SegmentId"),
        (2, "minKey", "double"),
        (3, "maxKey", "double"),
    ),
    "SegmentRanges": ((1, "segmentRanges", "*SegmentRange"),),
    "EpochSegments": ((1, "streamInfo", "StreamInfo"), (2, "epoch", "int32")),
    "NodeUri": ((1, "endpoint", "string"), (2, "port", "int32")),
    "SegmentsRequest": ((1, "streamInfo", "StreamInfo"), (2, "timestamp", "int64")),
    "SegmentLocation": ((1, "segmentId", "SegmentId"), (2, "offset", "int64")),
    "SegmentsAtTime": ((1, "segments", "*SegmentLocation"),),
    "SuccessorEntry": ((1, "segment", "SegmentRange"), (2, "value", "*int64")),
    "Successors": ((1, "segments", "*SuccessorEntry"),),
    "TxnId": ((1, "highBits", "int64"), (2, "lowBits", "int64")),
    "CreateTxn": ((1, "streamInfo", "StreamInfo"), (2, "lease", "int64")),
    "CreatedTxn": ((1, "txnId", "TxnId"), (2, "activeSegments", "*SegmentRange")),
    "Txn": ((1, "streamInfo", "StreamInfo"), (2, "txnId", "TxnId")),
    "PingTxn": ((1, "streamInfo", "StreamInfo"), (2, "txnId", "TxnId"), (3, "lease", "int64")),
    "KeyRange": ((1, "start", "double"), (2, "end", "double")),
    "Scale": (
        (1, "streamInfo", "StreamInfo"),
        (2, "sealedSegments", "*int64"),
        (3, "newKeyRanges", "*KeyRange"),
        (4, "scaleTimestamp", "int64"),
    ),
    "Scaled": ((1, "status", "int32"), (3, "epoch", "int32")),
    "CheckScale": ((1, "streamInfo", "StreamInfo"), (2, "epoch", "int32")),
}


@cache
def _classes() -> dict[str, Any]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingExtraError("protobuf", "pravega") from error
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "string": kinds.TYPE_STRING,
        "bool": kinds.TYPE_BOOL,
        "int32": kinds.TYPE_INT32,
        "int64": kinds.TYPE_INT64,
        "double": kinds.TYPE_DOUBLE,
    }
    file = descriptor_pb2.FileDescriptorProto(
        name="onceforall/pravega.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            label = kinds.LABEL_REPEATED if kind.startswith(_MANY) else kinds.LABEL_OPTIONAL
            base = kind.removeprefix(_MANY)
            if base in scalars:
                message.field.add(name=field, number=number, label=label, type=scalars[base])
            else:
                message.field.add(
                    name=field,
                    number=number,
                    label=label,
                    type=kinds.TYPE_MESSAGE,
                    type_name=f".{_PACKAGE}.{base}",
                )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def message(name: str) -> Any:
    """Return the class of a message.

    Raises:
        MissingExtraError: protobuf isn't installed.
    """
    return _classes()[name]
