"""End-to-end exactly-once for PySpark Structured Streaming, by two-phase commit over all sinks of a
batch.

>>> import onceforall as ofa
>>> sorted(name for name in ofa.__all__ if name.endswith("Sink"))
['FileSink', 'KafkaSink', 'KinesisSink', 'PostgresSink', 'PravegaSink', 'TwoPhaseCommitSink']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from onceforall._version import __version__
from onceforall.errors import (
    AttemptFailedError,
    BatchTooSlowError,
    CheckpointMismatchError,
    CommitLogError,
    ConfigurationError,
    CorruptEntryError,
    DataLossError,
    DivergenceError,
    EmbeddedServerError,
    ExecutorCheckError,
    FencedError,
    ForeignEntryError,
    FormerSinkError,
    InDoubtError,
    MissingExtraError,
    NewerEntryError,
    NondeterministicReplayError,
    OnceForAllError,
    OptionError,
    OutcomeUnknownError,
    OvertakenError,
    PlanOverwrittenError,
    ProtocolViolationError,
    QueryStoppedError,
    RefusedRecordError,
    SchemaError,
    SinkCheckError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
    StoppedError,
    TransactionLostError,
    UnsupportedQueryError,
)

if TYPE_CHECKING:
    from onceforall.driver.doors import exactly_once, write_stream
    from onceforall.driver.exit_codes import ExitCode, exit_code
    from onceforall.driver.failures import error_of
    from onceforall.driver.progress import BatchProgress, progress_of
    from onceforall.driver.stopping import stop_on_sigterm
    from onceforall.driver.transaction import BatchTransaction
    from onceforall.operate.detaching import detach
    from onceforall.sink import TwoPhaseCommitSink
    from onceforall.sinks.files import FileSink, read_files
    from onceforall.sinks.kafka import KafkaSink
    from onceforall.sinks.kinesis import KinesisSink
    from onceforall.sinks.postgres import PostgresSink
    from onceforall.sinks.pravega import PravegaSink

__all__ = [
    "AttemptFailedError",
    "BatchProgress",
    "BatchTooSlowError",
    "BatchTransaction",
    "CheckpointMismatchError",
    "CommitLogError",
    "ConfigurationError",
    "CorruptEntryError",
    "DataLossError",
    "DivergenceError",
    "EmbeddedServerError",
    "ExecutorCheckError",
    "ExitCode",
    "FencedError",
    "FileSink",
    "ForeignEntryError",
    "FormerSinkError",
    "InDoubtError",
    "KafkaSink",
    "KinesisSink",
    "MissingExtraError",
    "NewerEntryError",
    "NondeterministicReplayError",
    "OnceForAllError",
    "OptionError",
    "OutcomeUnknownError",
    "OvertakenError",
    "PlanOverwrittenError",
    "PostgresSink",
    "PravegaSink",
    "ProtocolViolationError",
    "QueryStoppedError",
    "RefusedRecordError",
    "SchemaError",
    "SinkCheckError",
    "SinkUnavailableError",
    "SourceError",
    "SourceUnavailableError",
    "StoppedError",
    "TransactionLostError",
    "TwoPhaseCommitSink",
    "UnsupportedQueryError",
    "__version__",
    "detach",
    "error_of",
    "exactly_once",
    "exit_code",
    "progress_of",
    "read_files",
    "stop_on_sigterm",
    "write_stream",
]

# Imported when they are asked for (PEP 562): a Python worker imports this package, too, and needs
# its own sink and nothing of the driver's.
_LATER = {
    "BatchProgress": "onceforall.driver.progress",
    "BatchTransaction": "onceforall.driver.transaction",
    "FileSink": "onceforall.sinks.files",
    "KafkaSink": "onceforall.sinks.kafka",
    "KinesisSink": "onceforall.sinks.kinesis",
    "PostgresSink": "onceforall.sinks.postgres",
    "PravegaSink": "onceforall.sinks.pravega",
    "TwoPhaseCommitSink": "onceforall.sink",
    "detach": "onceforall.operate.detaching",
    "error_of": "onceforall.driver.failures",
    "ExitCode": "onceforall.driver.exit_codes",
    "exit_code": "onceforall.driver.exit_codes",
    "progress_of": "onceforall.driver.progress",
    "exactly_once": "onceforall.driver.doors",
    "read_files": "onceforall.sinks.files",
    "stop_on_sigterm": "onceforall.driver.stopping",
    "write_stream": "onceforall.driver.doors",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'onceforall' has no attribute {name!r}")
    value: object = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
