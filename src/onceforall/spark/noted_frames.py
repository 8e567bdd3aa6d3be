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
        session: the JVM's of the batch, which no other query has; what threads of the function do
            is known by it. None: only what the function's own thread does is noted.
    """

    frames: list[DataFrame] = field(default_factory=list)
    others: bool = False
    session: Any = field(default=None, repr=False, compare=False)


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
    """Note what this thread persists within, and others do in the batch's session, and what isn't
    taken out of the cache again; a frame may be taken out of it by any thread.

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


def _here(owner: Any) -> Noted | None:
    """Return what the function notes that this thread runs, or that has started it, as far as the
    session tells.

    Args:
        owner: a frame, a catalog, a session or an RDD.
    """
    noted: Noted | None = getattr(_of_thread, "noted", None)
    if noted is not None:
        return noted
    with _lock:
        active = [each for each in _active if each.session is not None]
    try:
        session = owner._jdf.sparkSession() if hasattr(owner, "_jdf") else owner._jsparkSession  # noqa: SLF001
        return next((each for each in active if each.session.equals(session)), None)
    except Exception:  # noqa: BLE001  an RDD has no session; and whatever fails here, Spark says
        return None


def _forget(noted: Noted, gone: Callable[[DataFrame], bool]) -> None:
    """Take frames from what is noted; other threads note at the same time."""
    taken = [each for each in noted.frames if gone(each)]
    with _lock:
        noted.frames[:] = [each for each in noted.frames if not any(each is one for one in taken)]


def _noted(original: _Method) -> _Method:
    def persist(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
        persisted = original(frame, *arguments, **named)
        noted = _here(frame)
        if noted is not None and is_cached(frame):  # not with `StorageLevel.NONE`
            with _lock:
                noted.frames.append(frame)
        return persisted

    return persist


def _noted_otherwise(original: _Method) -> _Method:
    def persist(owner: Any, *arguments: Any, **named: Any) -> Any:
        noted = _here(owner)
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
            _forget(noted, lambda each: each is frame)
        noted_here = _here(frame)
        if noted_here is not None:
            # Another object may have the same cache.
            _forget(noted_here, lambda each: each.sameSemantics(frame))
        answer = original(frame, *arguments, **named)
        _forget_what_is_gone(frame)
        return answer

    return unpersist


def _emptying(original: _Method) -> _Method:
    def empty(owner: Any, *arguments: Any, **named: Any) -> Any:
        answer = original(owner, *arguments, **named)
        _forget_what_is_gone(owner)
        return answer

    return empty


def _statement(original: _Method) -> _Method:
    def sql(session: Any, sqlQuery: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N803  Spark's
        answer = original(session, sqlQuery, *arguments, **named)
        if not (isinstance(sqlQuery, str) and _READS.match(sqlQuery)):
            noted = _here(session)
            if noted is not None and isinstance(sqlQuery, str) and _CACHES.search(sqlQuery):
                noted.others = True
            _forget_what_is_gone(session)
        return answer

    return sql


def _forget_what_is_gone(owner: Any) -> None:
    noted = _here(owner)
    if noted is not None:
        _forget(noted, lambda each: not is_cached(each))
