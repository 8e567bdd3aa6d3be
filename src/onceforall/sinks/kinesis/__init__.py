"""The Kinesis sink (extra ``kinesis``: boto3)."""

from onceforall.sinks.kinesis.sink import KinesisSink

__all__ = ["KinesisSink"]
