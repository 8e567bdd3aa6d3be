"""End-to-end exactly-once for PySpark Structured Streaming, by two-phase commit over all sinks of a batch.

>>> import onceforall as ofa
>>> sorted(name for name in ofa.__all__ if name.endswith("Sink"))
['KafkaSink', 'TwoPhaseCommitSink']
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
from onceforall.sinks.kafka import KafkaSink
from onceforall.stream import exactly_once, write_stream
from onceforall.writing import BatchTransaction

__all__ = [
    "AttemptFailedError",
    "BatchTransaction",
    "CheckpointMismatchError",
    "ConfigurationError",
    "DivergenceError",
    "FencedError",
    "InDoubtError",
    "KafkaSink",
    "OnceForAllError",
    "OutcomeUnknownError",
    "TransactionLostError",
    "TwoPhaseCommitSink",
    "__version__",
    "detach",
    "exactly_once",
    "write_stream",
]
