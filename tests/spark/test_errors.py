"""Which errors of Spark's are a stop, and which are failures."""

import pytest
from py4j.protocol import Py4JJavaError

from onceforall.errors import AttemptFailedError, QueryStoppedError, RefusedRecordError
from onceforall.spark.errors import translated


class FromJvmError(Py4JJavaError):
    """One with a trace of Java's, without a JVM."""

    def __init__(self, text):
        Exception.__init__(self, text)
        self.text = text

    def __str__(self):
        return self.text


CANCELLED = "Job 7 cancelled part of cancelled job group 3"
INTERRUPTED = [
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException: getFileStatus on s3a://b/k: read timed out",
    "java.nio.channels.ClosedByInterruptException",
]


@pytest.mark.parametrize("words", [CANCELLED, *INTERRUPTED])
@pytest.mark.parametrize("stop_requested", [True, False])
def test_an_interruption_is_a_stop_where_the_query_was_asked_to_stop_and_else_a_failure(
    words, stop_requested
):
    """A supervisor starts what has failed again, and not what was stopped."""
    found = translated(
        FromJvmError(f"An error occurred while calling o7.foreach.\n: {words}\n\tat a.b(C.java:1)"),
        stop_requested=stop_requested,
    )
    assert type(found) is (QueryStoppedError if stop_requested else AttemptFailedError)
    assert "C.java" not in str(found)


def test_a_failure_beside_a_stop_is_a_failure():
    found = translated(
        FromJvmError(": java.lang.ArithmeticException: / by zero"), stop_requested=True
    )
    assert type(found) is AttemptFailedError


@pytest.mark.parametrize("stop_requested", [True, False])
def test_what_comes_from_elsewhere_stays_as_it_is(stop_requested):
    error = ValueError("java.lang.InterruptedException")
    assert translated(error, stop_requested=stop_requested) is error


class _UnreadableError(RefusedRecordError):
    def __str__(self):
        raise RuntimeError("in __str__")


def test_an_error_whose_text_cannot_be_read_stays_what_it_is():
    error = _UnreadableError()
    assert translated(error, stop_requested=False) is error
