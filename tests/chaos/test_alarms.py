"""A run that a bug ended is noticed, also where the query healed afterwards."""

from types import SimpleNamespace

import pytest

from chaos.alarms import EXPLAINED, alarms


@pytest.fixture
def alarmed(tmp_path):
    """Whether a run that ended with a text alarms."""

    def run(error, allowed=()):
        driver = SimpleNamespace(work=tmp_path, errors=lambda: [error])
        return alarms(SimpleNamespace(drivers=[driver]), allowed)

    return run


def in_spark(*last):
    """What a query ended with, in whose driver these were raised, the first the cause of the next."""
    tracebacks = [
        f'Traceback (most recent call last):\n  File "a.py", line 1, in b\n    c()\n    ^^^\n{each}\n'
        for each in last
    ]
    cause = "\nThe above exception was the direct cause of the following exception:\n\n"
    return (
        "StreamingQueryException: [STREAM_FAILED] Query [id = 1] terminated with exception: "
        f"An exception was raised by the Python Proxy. Return Message: {cause.join(tracebacks)}"
        "Caused by: java.lang.NullPointerException\n SQLSTATE: 39000\n=== Streaming Query ==="
    )


BUGS = (
    "KeyError: 'x'", "RuntimeError: dictionary changed size during iteration", "NotImplementedError", "ZeroDivisionError: division by zero",
    "UnicodeDecodeError: 'utf-8' codec", "json.decoder.JSONDecodeError: Expecting value", "pyarrow.lib.ArrowInvalid: Casting", "builtins.KeyError: 1",
    "MemoryError", "StopIteration", "struct.error: unpack", "OverflowError: int too big", "psycopg.errors.SyntaxError: at or near", "psycopg.ProgrammingError: x",
    "pyspark.errors.exceptions.base.PySparkTypeError: [NOT_STR]", "onceforall.errors.OptionError: x", "onceforall.errors.ProtocolViolationError: x",
    "onceforall.protocol.contract.BrokenContractError: x", "a.module.that.is.gone.StrangeError: x",
)  # fmt: skip

FAULTS = (
    "onceforall.errors.AttemptFailedError: a job of the batch failed", "onceforall.errors.FencedError: another run", "onceforall.errors.SinkUnavailableError: x",
    "onceforall.failpoints.points.FailpointError: a point", "ConnectionResetError: [Errno 104] Connection reset by peer", "OSError: [Errno 28] No space left on device",
    "EOFError", "py4j.protocol.Py4JNetworkError: Answer from Java side is empty", "cimpl.KafkaException: KafkaError{code=_TRANSPORT}", "psycopg.errors.AdminShutdown: terminating connection",
    "psycopg.OperationalError: connection failed", "pyspark.errors.exceptions.captured.StreamingQueryException: x", "http.client.IncompleteRead: IncompleteRead(0 bytes read)",
    "onceforall.sinks.files.places.s3.bucket.S3Error: 503",
)  # fmt: skip


@pytest.mark.parametrize("error", BUGS)
def test_an_error_that_no_fault_explains_alarms(alarmed, error):
    (line,) = alarmed(in_spark(error))
    assert "a run ended with " in line
    assert alarmed(in_spark("onceforall.errors.AttemptFailedError: a task", error))


@pytest.mark.parametrize("error", FAULTS)
def test_an_error_that_a_fault_explains_does_not(alarmed, error):
    assert alarmed(in_spark(error)) == []
    assert alarmed(in_spark("OSError: no route", error)) == []


@pytest.mark.parametrize(
    ("error", "is_alarming"),
    [
        ("Py4JNetworkError: Answer from Java side is empty", False),
        ("AttemptFailedError: a task", False),
        ("StrangeError: x", True),
        ("RuntimeError: x", True),
        ("java.lang.AssertionError: of the JVM", False),
    ],
)
def test_a_run_that_did_not_come_to_a_query_is_looked_at_too(alarmed, error, is_alarming):
    assert bool(alarmed(error)) == is_alarming


def test_a_scenario_can_allow_what_it_does(alarmed):
    for error in ("onceforall.errors.CheckpointMismatchError: x", "ZeroDivisionError: x"):
        assert alarmed(in_spark(error))
        assert alarmed(in_spark(error), [error.partition(":")[0].rpartition(".")[2]]) == []


def test_every_kind_that_is_explained_has_a_reason():
    assert all(len(why) >= 20 for why in EXPLAINED.values())
