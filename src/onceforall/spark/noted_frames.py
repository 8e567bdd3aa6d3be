"""Notes which frames the function of a batch persists, so that it can be seen whether somebody else
has emptied their caches before they were written.

Spark's cache is the application's: another query's ``clearCache()`` empties it between a function's
``persist`` and its write, and Spark's plans don't tell what was in it. What the function takes out
of the cache by itself is its own affair. PySpark's own methods do what they do; here they only
tell.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_cached", "noting"]

_Method = Callable[..., Any]

_READS = re.compile(r"\s*(SELECT|WITH|VALUES|SHOW|DESC|EXPLAIN)\b", re.IGNORECASE)

_lock = threading.Lock()
_originals: list[tuple[type, str, _Method]] = []
_of_thread = threading.local()
_functions = 0


def is_cached(frame: DataFrame) -> bool:
    """Tell whether Spark's cache has a frame's rows, or will have them."""
    level = frame.storageLevel
    return bool(level.useMemory or level.useDisk)


@contextmanager
def noting(frames: list[DataFrame]) -> Iterator[None]:
    """Note what this thread persists within, and doesn't take out of the cache again.

    Args:
        frames: they are added to it, and removed from it.
    """
    _begin()
    before, _of_thread.frames = getattr(_of_thread, "frames", None), frames
    try:
        yield
    finally:
        _of_thread.frames = before
        _end()


def _begin() -> None:
    global _functions  # noqa: PLW0603  PySpark's classes are the process's
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
    from pyspark.sql.session import SparkSession

    made: list[tuple[type, str, Callable[[_Method], _Method]]] = [
        (ClassicFrame, "persist", _noted),
        (ClassicFrame, "cache", _noted),
        (ClassicFrame, "unpersist", _forgotten),
        (ClassicFrame, "createOrReplaceTempView", _emptying),
        (ClassicFrame, "createOrReplaceGlobalTempView", _emptying),
        (Catalog, "clearCache", _emptying),
        (Catalog, "uncacheTable", _emptying),
        (Catalog, "dropTempView", _emptying),
        (Catalog, "dropGlobalTempView", _emptying),
        (SparkSession, "sql", _statement),
    ]
    with _lock:
        _functions += 1
        if _originals:
            return
        for owner, name, make in made:
            original = getattr(owner, name)
            _originals.append((owner, name, original))
            setattr(owner, name, wraps(original)(make(original)))


def _end() -> None:
    global _functions  # noqa: PLW0603
    with _lock:
        _functions -= 1
        while _originals and not _functions:
            owner, name, original = _originals.pop()
            setattr(owner, name, original)


def _noted(original: _Method) -> _Method:
    def persist(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
        persisted = original(frame, *arguments, **named)
        frames = getattr(_of_thread, "frames", None)
        if frames is not None:
            frames.append(frame)
        return persisted

    return persist


def _forgotten(original: _Method) -> _Method:
    def unpersist(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
        frames = getattr(_of_thread, "frames", None)
        if frames:
            # Another object may have the same cache.
            frames[:] = [each for each in frames if not each.sameSemantics(frame)]
        answer = original(frame, *arguments, **named)
        _forget_what_is_gone()
        return answer

    return unpersist


def _emptying(original: _Method) -> _Method:
    def empty(owner: Any, *arguments: Any, **named: Any) -> Any:
        answer = original(owner, *arguments, **named)
        _forget_what_is_gone()
        return answer

    return empty


def _statement(original: _Method) -> _Method:
    def sql(session: Any, sqlQuery: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N803  Spark's
        answer = original(session, sqlQuery, *arguments, **named)
        if not (isinstance(sqlQuery, str) and _READS.match(sqlQuery)):
            _forget_what_is_gone()
        return answer

    return sql


def _forget_what_is_gone() -> None:
    frames = getattr(_of_thread, "frames", None)
    if frames:
        frames[:] = [each for each in frames if is_cached(each)]
