"""Loggers whose lines say what they are about: which query, generation, batch and sink, where that
is known.

``about`` says it for everything that is logged within, in this thread and in what it starts with
``carried``. A line gets it in front of its text, ``[query ads, generation 3, batch 7, sink out]``,
and each field as an attribute of the record (``record.onceforall``, a dictionary), for handlers
that write structures.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_about: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar(
    "onceforall_about",
    default={},  # noqa: B039  never changed in place
)

_ORDER = ("query", "generation", "batch", "sink")

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class _Telling(_Adapter):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        found = _about.get()
        if found:
            told = ", ".join(f"{name} {found[name]}" for name in _ORDER if name in found)
            # With arguments the text is a format, and a name with a percent sign must not become a
            # part of that.
            msg = f"[{told.replace('%', '%%') if args else told}] {msg}"
            kwargs["extra"] = {**(kwargs.get("extra") or {}), "onceforall": dict(found)}
        # The line is its caller's, and not this one's.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        self.logger.log(level, msg, *args, **kwargs)


def logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return Python's logger of this name, whose lines say what they are about."""
    return _Telling(logging.getLogger(name), {})


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Say what everything logged within is about.

    Args:
        fields: of ``query``, ``generation``, ``batch`` and ``sink``; None leaves one as it is.
    """
    token = _about.set(
        {**_about.get(), **{name: value for name, value in fields.items() if value is not None}}
    )
    try:
        yield
    finally:
        _about.reset(token)


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that logs, in whichever thread it is called, what this thread's lines
    are about now.
    """
    found = _about.get()

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with about(**found):
            return function(*args, **kwargs)

    return call
