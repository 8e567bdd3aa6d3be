"""End-to-end exactly-once for PySpark Structured Streaming, by two-phase commit over all sinks of a batch.

>>> import onceforall as ofa
>>> sorted(name for name in ofa.__all__ if name.endswith("Sink"))
['FileSink', 'KafkaSink', 'PostgresSink', 'TwoPhaseCommitSink']
"""

from onceforall._version import __version__
from onceforall.detaching import detach
from onceforall.errors import (
    AttemptFailedError,
    CheckpointMismatchError,
    ConfigurationError,
    DivergenceError,
    FencedError,
    InDoubtError,
    OnceForAllError,
    OutcomeUnknownError,
    TransactionLostError,
)
from onceforall.sink import TwoPhaseCommitSink
from onceforall.sinks.files import FileSink, read_files
from onceforall.sinks.kafka import KafkaSink
from onceforall.sinks.postgres import PostgresSink
from onceforall.stream import exactly_once, write_stream
from onceforall.writing import BatchTransaction

__all__ = [
    "AttemptFailedError",
    "BatchTransaction",
    "CheckpointMismatchError",
    "ConfigurationError",
    "DivergenceError",
    "FencedError",
    "FileSink",
    "InDoubtError",
    "KafkaSink",
    "OnceForAllError",
    "OutcomeUnknownError",
    "PostgresSink",
    "TransactionLostError",
    "TwoPhaseCommitSink",
    "__version__",
    "detach",
    "exactly_once",
    "read_files",
    "write_stream",
]
