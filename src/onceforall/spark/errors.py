"""Turns errors that come from Spark's JVM into short ones of ours.

Spark tells a stop from a failure by a regular expression over the text that a Python function's
error leaves behind (``StreamExecution.isInterruptionException``). That expression recurses once per
character: with the whole Java trace in the text it overflows the stack of the query's thread. So no
Java trace may leave ``foreachBatch``, and a stop must still look like one.
"""

from __future__ import annotations

from onceforall.errors import AttemptFailedError, QueryStoppedError, text_of

_LONGEST_MESSAGE = 3000
_INTERRUPTED = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
_INTERRUPTED_BY_CONNECT = "OPERATION_CANCELED"
_CANCELLED = "cancelled part of cancelled job group"


def translated(error: Exception, *, stop_requested: bool) -> Exception:
    """Return an error to raise in the place of one that came from the JVM; any other error is
    returned as it is.

    Args:
        error: what was raised.
        stop_requested: whether the query was asked to stop, or its JVM is gone: others cancel jobs,
            too, and a thread is interrupted for other reasons.
    """
    from py4j.protocol import Py4JJavaError

    text = text_of(error)
    if _is_of_connect(error):
        if stop_requested and _INTERRUPTED_BY_CONNECT in text:
            return stopped()
        return AttemptFailedError(f"a job of the batch failed: {_without_java_trace(text, 0)}")
    if not isinstance(error, Py4JJavaError):
        return error
    if stop_requested and (_CANCELLED in text or any(name in text for name in _INTERRUPTED)):
        return stopped()
    if _CANCELLED in text:
        return AttemptFailedError(
            "a job of the batch was cancelled, by a call of cancelJobGroup or by hand in Spark's "
            "UI; the query was not asked to stop"
        )
    return AttemptFailedError(f"a job of the batch failed: {_without_java_trace(text)}")


def stopped() -> QueryStoppedError:
    """Return the error of a batch that a stop has ended, in words from which Spark knows a stop."""
    return QueryStoppedError(
        "the query was stopped while the batch was being written, and the attempt is aborted. "
        "(py4j.protocol.Py4JJavaError: An error "
        "occurred while calling a job of the batch: java.lang.InterruptedException)"
    )


def cache_was_emptied() -> AttemptFailedError:
    """Return the error of a batch whose jobs may have read other values each."""
    return AttemptFailedError(
        "Spark's cache was emptied while the jobs of the batch read from it "
        "(spark.catalog.clearCache(), CLEAR CACHE, UNCACHE TABLE, or RDD.unpersist() of all that "
        "there are; the cache is the whole application's, so another query's function may have "
        "done it). What it held was computed again between two jobs, perhaps with other values, so "
        "nothing is decided. Take back single frames with unpersist() instead; the next start "
        "writes the batch anew"
    )


def computed_twice(reason: str) -> AttemptFailedError:
    """Return the error of a batch whose jobs may have read other values each, on a cluster.

    Args:
        reason: why a computation may give other rows than the one before.
    """
    return AttemptFailedError(
        "A part of the rows that several readers of the batch share is not where it was computed "
        "first: an executor was lost, had no room for it, or a speculative copy of a task computed "
        f"it as well. It may be of other values there ({reason}), so nothing is decided. If this "
        "happens often, give the executors more memory and disk, switch spark.speculation off, or "
        "write values that each computation gives again; the next start writes the batch anew"
    )


def _is_of_connect(error: Exception) -> bool:
    """Tell whether an error is one of Spark Connect's; its package needs grpc, and isn't imported
    for that.
    """
    return any(
        kind.__module__ == "pyspark.errors.exceptions.connect" for kind in type(error).__mro__
    )


def _without_java_trace(text: str, first_line: int = 1) -> str:
    """Keep what people read: the exceptions' messages and the Python traceback of a task,
    without the frames of Java.
    """
    lines = text.splitlines()[first_line:]
    kept = [line for line in lines if not line.lstrip().startswith(("at ", "... "))]
    message = "\n".join(kept).replace("py4j.protocol.Py4JJavaError", "Py4JJavaError")
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]} …"
