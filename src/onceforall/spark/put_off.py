"""Puts off what takes something out of Spark's cache while a batch needs it.

A function persists a frame, looks at it, writes by what it has seen, and unpersists it, as
functions for ``foreachBatch`` do. Its writes only register; by the time that their jobs run, the
rows would have to be computed anew, and need not be those that the function has seen.

So the methods of PySpark that empty caches ask the batches first, from the first write that reads a
cache until the batch has been written: what nobody needs goes at once. What empties a cache past
PySpark is found out by ``held_caches``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

from onceforall.common import logs
from onceforall.errors import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Holder", "begin", "end", "is_held_by"]

logger = logs.logger("onceforall")

_Method = Callable[..., Any]

_UNCACHES = re.compile(
    r"\s*(?:CLEAR\s+CACHE"
    r"|UNCACHE\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?P<table>[`\w.]+))\s*;?\s*",
    re.IGNORECASE,
)


class Holder(Protocol):
    """A batch that needs caches."""

    def needs(self, frame: DataFrame) -> bool:
        """Tell whether what Spark has cached of this very frame is among them."""

    def needs_rdd(self, number: int) -> bool:
        """Tell whether what this RDD has persisted is among them."""


class _PutOff:
    def __init__(self, holders: set[Holder], action: Callable[[], object]) -> None:
        self.holders = holders
        self.action = action


_lock = threading.RLock()
_holders: set[Holder] = set()
_put_off: list[_PutOff] = []
_originals: list[tuple[type, str, _Method]] = []


def begin(holder: Holder) -> None:
    """Put off from now on what would empty a cache that a batch needs."""
    with _lock:
        if not _holders:
            _replace()
        _holders.add(holder)


def is_held_by(holder: Holder) -> bool:
    """Tell whether a batch has begun to need caches."""
    with _lock:
        return holder in _holders


def end(holder: Holder) -> None:
    """Do what was put off for this batch, unless another one needs the same; no error."""
    with _lock:
        _holders.discard(holder)
        if not _holders:
            _restore()
        for each in _put_off:
            each.holders.discard(holder)
        due = [each.action for each in _put_off if not each.holders]
        _put_off[:] = [each for each in _put_off if each.holders]
    for action in due:
        _do(action)


def _do(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:  # noqa: BLE001  the view is gone, or the session with its caches
        logger.debug("a cache is not emptied: %s", text_of(error))


def _who_needs(frame: DataFrame | None) -> set[Holder]:
    """Return the batches that need a frame's cache; of all caches, for None."""
    with _lock:
        holders = set(_holders)
    return {each for each in holders if frame is None or each.needs(frame)}


def _is_put_off(holders: set[Holder], action: Callable[[], object]) -> bool:
    with _lock:
        holders &= _holders
        if holders:
            _put_off.append(_PutOff(holders, action))
        return bool(holders)


def _replace() -> None:
    from pyspark import RDD
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
    from pyspark.sql.session import SparkSession

    made: list[tuple[type, str, Callable[[_Method], _Method]]] = [
        (ClassicFrame, "unpersist", _of_frame),
        (RDD, "unpersist", _of_rdd),
        (Catalog, "uncacheTable", _of_table),
        (Catalog, "dropTempView", _of_table),
        (Catalog, "clearCache", _of_all),
        (SparkSession, "sql", _of_statement),
    ]
    for owner, name, make in made:
        original = getattr(owner, name)
        _originals.append((owner, name, original))
        setattr(owner, name, wraps(original)(make(original)))


def _restore() -> None:
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def _of_frame(original: _Method) -> _Method:
    def unpersist(frame: Any, blocking: bool = False) -> Any:  # noqa: FBT001, FBT002  Spark's
        if _is_put_off(_who_needs(frame), lambda: original(frame, blocking)):
            frame.is_cached = False
            return frame
        return original(frame, blocking)

    return unpersist


def _of_rdd(original: _Method) -> _Method:
    def unpersist(rdd: Any, blocking: bool = False) -> Any:  # noqa: FBT001, FBT002  Spark's
        with _lock:
            holders = set(_holders)
        needed_by = {each for each in holders if each.needs_rdd(rdd.id())}
        if _is_put_off(needed_by, lambda: original(rdd, blocking)):
            rdd.is_cached = False
            return rdd
        return original(rdd, blocking)

    return unpersist


def _of_table(original: _Method) -> _Method:
    def uncache(catalog: Any, name: str) -> Any:
        holders = _who_need_table(catalog._sparkSession, name)  # noqa: SLF001
        if not _is_put_off(holders, lambda: original(catalog, name)):
            return original(catalog, name)
        return True if original.__name__ == "dropTempView" else None

    return uncache


def _of_all(original: _Method) -> _Method:
    def clear(catalog: Any) -> None:
        if not _is_put_off(_who_needs(None), lambda: original(catalog)):
            original(catalog)

    return clear


def _of_statement(original: _Method) -> _Method:
    def sql(session: Any, sqlQuery: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N803  Spark's
        found = _UNCACHES.fullmatch(sqlQuery) if isinstance(sqlQuery, str) else None
        if found is not None:
            table = found["table"]
            holders = _who_needs(None) if table is None else _who_need_table(session, table)
            if _is_put_off(holders, lambda: original(session, sqlQuery)):
                return session.range(0).select()
        return original(session, sqlQuery, *arguments, **named)

    return sql


def _who_need_table(session: Any, name: str) -> set[Holder]:
    from pyspark.errors import PySparkException

    try:
        return _who_needs(session.table(name))
    except PySparkException:
        return set()  # Spark is to say that there is none.
