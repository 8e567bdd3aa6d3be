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
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Noted", "is_cached", "noting"]

_Method = Callable[..., Any]

_READS = re.compile(r"\s*(SELECT|WITH|VALUES|SHOW|DESC|EXPLAIN)\b", re.IGNORECASE)
_CACHES = re.compile(r"\bCACHE\b", re.IGNORECASE)


@dataclass
class Noted:
    """What the function of a batch persists.

    Attributes:
        frames: by ``persist`` and ``cache``, without those that it has taken out of the cache.
        others: whether it has persisted in other ways, too: a table by its name, an RDD.
    """

    frames: list[DataFrame] = field(default_factory=list)
    others: bool = False


_lock = threading.Lock()
_originals: list[tuple[type, str, _Method]] = []
_active: list[Noted] = []
_of_thread = threading.local()


def is_cached(frame: DataFrame) -> bool:
    """Tell whether Spark's cache has a frame's rows, or will have them."""
    level = frame.storageLevel
    return bool(level.useMemory or level.useDisk)


@contextmanager
def noting(noted: Noted) -> Iterator[None]:
    """Note what this thread persists within, and doesn't take out of the cache again; a frame may
    be taken out of it by any thread.

    Args:
        noted: takes it.
    """
    _begin(noted)
    before, _of_thread.noted = getattr(_of_thread, "noted", None), noted
    try:
        yield
    finally:
        _of_thread.noted = before
        _end(noted)


def _begin(noted: Noted) -> None:
    from pyspark import RDD
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
    from pyspark.sql.session import SparkSession

    made: list[tuple[type, str, Callable[[_Method], _Method]]] = [
        (ClassicFrame, "persist", _noted),
        (ClassicFrame, "cache", _noted),
        (ClassicFrame, "unpersist", _forgotten),
        (ClassicFrame, "createOrReplaceTempView", _emptying),
        (ClassicFrame, "createOrReplaceGlobalTempView", _emptying),
        (RDD, "persist", _noted_otherwise),
        (Catalog, "cacheTable", _noted_otherwise),
        (Catalog, "clearCache", _emptying),
        (Catalog, "uncacheTable", _emptying),
        (Catalog, "dropTempView", _emptying),
        (Catalog, "dropGlobalTempView", _emptying),
        (SparkSession, "sql", _statement),
    ]
    with _lock:
        _active.append(noted)
        if _originals:
            return
        for owner, name, make in made:
            original = getattr(owner, name)
            _originals.append((owner, name, original))
            setattr(owner, name, wraps(original)(make(original)))


def _end(noted: Noted) -> None:
    with _lock:
        _active[:] = [each for each in _active if each is not noted]
        while _originals and not _active:
            owner, name, original = _originals.pop()
            setattr(owner, name, original)


def _here() -> Noted | None:
    """What the function notes that this thread runs."""
    noted: Noted | None = getattr(_of_thread, "noted", None)
    return noted


def _noted(original: _Method) -> _Method:
    def persist(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
        persisted = original(frame, *arguments, **named)
        noted = _here()
        if noted is not None and is_cached(frame):  # not with `StorageLevel.NONE`
            noted.frames.append(frame)
        return persisted

    return persist


def _noted_otherwise(original: _Method) -> _Method:
    def persist(owner: Any, *arguments: Any, **named: Any) -> Any:
        noted = _here()
        if noted is not None:
            noted.others = True
        return original(owner, *arguments, **named)

    return persist


def _forgotten(original: _Method) -> _Method:
    def unpersist(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
        with _lock:
            active = [*_active]
        for noted in active:
            # Whoever has the function's own object does it for the function, in a thread of its.
            noted.frames[:] = [each for each in noted.frames if each is not frame]
        noted_here = _here()
        if noted_here is not None and noted_here.frames:
            # Another object may have the same cache.
            frames = noted_here.frames
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
            noted = _here()
            if noted is not None and isinstance(sqlQuery, str) and _CACHES.search(sqlQuery):
                noted.others = True
            _forget_what_is_gone()
        return answer

    return sql


def _forget_what_is_gone() -> None:
    noted = _here()
    if noted is not None and noted.frames:
        noted.frames[:] = [each for each in noted.frames if is_cached(each)]
