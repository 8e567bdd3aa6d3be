"""Notes which frames the function of a batch persists, so that it can be seen whether somebody else
has emptied their caches before they were written.

Spark's cache is the application's: another query's ``clearCache()`` empties it between a function's
``persist`` and its write, and Spark's plans don't tell what was in it. PySpark's own methods do
what they do; here they only tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["noting"]

_Method = Callable[..., Any]

_lock = threading.Lock()
_originals: list[tuple[type, str, _Method]] = []
_of_thread = threading.local()
_functions = 0


@contextmanager
def noting(frames: list[DataFrame]) -> Iterator[None]:
    """Note what this thread persists within, and doesn't unpersist.

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
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    with _lock:
        _functions += 1
        if _originals:
            return
        made = [("persist", _noted), ("cache", _noted), ("unpersist", _forgotten)]
        for name, make in made:
            original = getattr(ClassicFrame, name)
            _originals.append((ClassicFrame, name, original))
            setattr(ClassicFrame, name, wraps(original)(make(original)))


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
        return original(frame, *arguments, **named)

    return unpersist
