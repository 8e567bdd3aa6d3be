"""The Pravega sink (extra ``pravega``: grpcio and protobuf)."""

from onceforall.sinks.pravega.sink import PravegaSink

__all__ = ["PravegaSink"]
