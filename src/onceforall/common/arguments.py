"""What callers may give, checked at the door: a wrong value is an ``OptionError`` that names the
argument, what was given, and what is expected.

Without these, a string in the place of a dictionary shows up as an ``AttributeError`` from
somewhere within, perhaps in a task. No message shows a value that may hold a secret (``shown``).
Imports nothing but the errors: Python workers import it, too.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from onceforall.errors import OptionError, UnsupportedQueryError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_LONGEST_SHOWN = 80
# A password that isn't escaped may have slashes of its own.
_MAY_BE_SECRET = re.compile(
    r"://.*@|passw|secret|token|\bpwd?\b|credential|api.?key", re.IGNORECASE | re.DOTALL
)
_QUERY = re.compile(r"[?#].+", re.DOTALL)
_USER_INFO = re.compile(r"(?<=://)[^/].*@", re.DOTALL)


def shown(value: object) -> str:
    """Return a value for a message: numbers and short texts as they are; of all else the type
    alone, for a value may hold a secret.
    """
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        if _MAY_BE_SECRET.search(value):
            return "a text that may hold a secret"
        return repr(value) if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]!r}…"
    return f"a value of the type {type(value).__name__}"


def location_shown(location: str) -> str:
    """Return a path or URL for a message, without a user and a password that it names; of a URL
    with a host also without its query and fragment, where signatures stand.
    """
    seen = _USER_INFO.sub("…@", location)
    if "://" not in seen:
        return seen
    return _QUERY.sub(lambda found: f"{found[0][0]}…", seen)


def wrong(name: str, value: object, expected: str) -> OptionError:
    """Return the error that says so.

    Args:
        name: the argument's.
        value: what was given.
        expected: what to give instead, as in "Give …".
    """
    return OptionError(f"{name} is {shown(value)}. Give {expected}.")


def text(name: str, value: object, expected: str = "a text") -> str:
    """Return a text that is not empty.

    Raises:
        OptionError: it is none.
    """
    if not isinstance(value, str) or not value.strip() or not is_encodable(value):
        raise wrong(name, value, expected)
    return value


def is_encodable(value: str) -> bool:
    """Tell whether a text is one that files, servers and the JVM can have: Python's may hold
    halves of characters.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_host(value: str) -> bool:
    """Tell whether a text can be looked up as a host's name: Python refuses one with an empty or a
    long part by an error that names neither the host nor a network.
    """
    try:
        value.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in value


def choice(name: str, value: T, choices: Collection[object]) -> T:
    """Return a value that is one of some texts (or None).

    Raises:
        OptionError: it is none of them.
    """
    if not isinstance(value, str | None) or value not in choices:
        listed = [repr(one) for one in choices if one is not None]
        left_out = " or leave it out" if None in choices else ""
        raise wrong(
            name,
            value,
            f"{', '.join(listed[:-1])}{' or ' if len(listed) > 1 else ''}{listed[-1]}{left_out}",
        )
    return value


def flag(name: str, value: object) -> bool:
    """Return True or False.

    Raises:
        OptionError: it is neither.
    """
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")
    return value


def whole(name: str, value: object, least: int) -> int:
    """Return a whole number of at least `least`.

    Raises:
        OptionError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(name, value, f"a whole number of at least {least}")
    return value


def number(name: str, value: object, *, positive: bool) -> float:
    """Return a finite number from 0 on, or above 0.

    Raises:
        OptionError: it is none.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value < float("inf")
        or (positive and value == 0)
    ):
        raise wrong(name, value, "a positive number" if positive else "a number from 0 on")
    return value


def path(name: str, value: object) -> str:
    """Return a path as text.

    Raises:
        OptionError: it is neither a text nor a path of texts, or it is empty.
    """
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    expected = "a path, as a text or a pathlib.Path"
    found = text(name, given, expected)
    if not is_possible_path(found):
        raise wrong(name, found, f"{expected}, with names of at most 255 bytes")
    try:
        urlsplit(found)
    except ValueError as error:
        raise OptionError(
            f"{name} is neither a path nor a URL: {error}. Write it in full."
        ) from None
    return found


def is_possible_path(value: str) -> bool:
    """Tell whether a file system can have a path: names of at most 255 bytes, 4096 in all."""
    return (
        is_encodable(value)
        and "\0" not in value
        and len(value.encode()) < 4096
        and all(len(part) <= 255 for part in value.encode().split(b"/"))
    )


def paths(name: str, value: object) -> list[Path]:
    """Return several paths.

    Raises:
        OptionError: it is no list of paths.
    """
    from pathlib import Path

    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise wrong(name, value, "a list of paths")
    return [Path(path(f"{name}: one of them", each)) for each in value]


def names(
    name: str, value: object, expected: str = "a name, or a list of names"
) -> tuple[str, ...]:
    """Return one name, or several, as a tuple.

    Raises:
        OptionError: it is neither, or one of them is no text or an empty one.
    """
    if isinstance(value, str):
        return (text(name, value, expected),)
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray | Mapping):
        raise wrong(name, value, expected)
    listed = tuple(value)
    for each in listed:
        if not isinstance(each, str) or not each.strip():
            raise OptionError(f"{name} has {shown(each)} in it. Give {expected}.")
    return listed


def sinks(name: str, value: object, known: Collection[str]) -> tuple[str, ...]:
    """Return names of sinks; several may stand in one text, separated by commas, as errors show
    them.

    Args:
        name: of the argument.
        value: a text, or several.
        known: the sinks that there are; a name of one may have a comma in it, and the longest that
            is known counts.

    Raises:
        OptionError: it is neither that nor a list of texts, or a text names nothing, as ``","``.
    """
    expected = "the names of sinks, as a list of texts"
    found: list[str] = []
    for each in names(name, value, expected):
        parts = [part for part in _parted(each.split(","), known) if part]
        if not parts:
            raise OptionError(f"{name} has {shown(each)} in it, which names none. Give {expected}.")
        found += parts
    return tuple(found)


def _parted(parts: Sequence[str], known: Collection[str]) -> Iterator[str]:
    while parts:
        count = len(parts)
        while count > 1 and ",".join(parts[:count]).strip() not in known:
            count -= 1
        yield ",".join(parts[:count]).strip()
        parts = parts[count:]


def mapping(name: str, value: object, expected: str) -> dict[str, Any]:
    """Return a mapping whose keys are texts, as a dictionary.

    Raises:
        OptionError: it is none.
    """
    if not isinstance(value, Mapping):
        raise wrong(name, value, expected)
    for key in value:
        if not isinstance(key, str):
            raise OptionError(
                f"{name} has the key {shown(key)}, which is no text. Give {expected}."
            )
    return dict(value)


def function(name: str, value: T, *given: str) -> T:
    """Return what can be called.

    Args:
        name: of the argument.
        value: the function.
        given: what it will be called with, by position.

    Raises:
        OptionError: it can't, or not with so many arguments.
    """
    if not callable(value):
        raise wrong(name, value, "a function")
    try:
        # A wrapper is called, and not what it wraps, which may get more from it. What it says of
        # itself may be that of what it wraps, too.
        if getattr(value, "__signature__", None) is not None:
            return value
        takes = inspect.signature(value, follow_wrapped=False)
    except Exception:  # noqa: BLE001  of one in C it isn't always known; an object's own code may fail
        return value
    try:
        takes.bind(*given)
    except TypeError:
        # Without defaults, which may be secrets.
        raise OptionError(
            f"{name} takes ({', '.join(takes.parameters)}), and is called with "
            f"({', '.join(given)}). Give it these arguments, in this order."
        ) from None
    return value


def check_sink(name: str, value: object) -> None:
    """Check that a value is a sink.

    Raises:
        OptionError: it is none.
    """
    from onceforall.sink import TwoPhaseCommitSink

    if isinstance(value, type) and issubclass(value, TwoPhaseCommitSink):
        raise OptionError(
            f"{name} is the class {value.__name__}. Give a sink, made by calling it: "
            f"{value.__name__}(…)."
        )
    if not isinstance(value, TwoPhaseCommitSink):
        raise wrong(
            name,
            value,
            "a sink: a KafkaSink, a FileSink, a PostgresSink, or one of your own that is a "
            "TwoPhaseCommitSink",
        )


def is_connect(value: object) -> bool:
    """Tell whether a frame, a session or a column belongs to Spark Connect, whose package is not
    imported for that: it needs grpc.
    """
    return any(
        f"{kind.__module__}.".startswith("pyspark.sql.connect.") for kind in type(value).__mro__
    )


def refuse_connect(value: object, what: str) -> None:
    """Refuse what belongs to Spark Connect.

    Raises:
        UnsupportedQueryError: it does.
    """
    if is_connect(value):
        raise UnsupportedQueryError(
            f"{what} does not work with Spark Connect, whose driver is another process: give it a "
            "classic session (no SPARK_REMOTE, and no remote(…) "
            "where the session is made)."
        )


def check_frame(
    value: object, what: str, argument: str = "frame", *, or_connect: bool = False
) -> DataFrame:
    """Return a DataFrame.

    Args:
        value: what was given as such.
        what: the function that it was given to.
        argument: as which argument.
        or_connect: one of Spark Connect will do: nothing is asked of the JVM.

    Raises:
        UnsupportedQueryError: it belongs to Spark Connect.
        OptionError: it is no DataFrame.
    """
    if or_connect and is_connect(value) and hasattr(value, "isStreaming"):
        return value  # type: ignore[return-value]
    refuse_connect(value, what)
    if not hasattr(value, "_jdf") or not hasattr(value, "isStreaming"):
        raise wrong(f"{what}: {argument}", value, "a DataFrame of Spark")
    return value  # type: ignore[return-value]


def check_session(value: object, what: str) -> SparkSession:
    """Return a classic session; errors are those of ``check_frame``."""
    refuse_connect(value, what)
    if not hasattr(value, "_jsparkSession"):
        raise wrong(f"{what}: spark", value, "a SparkSession")
    return value  # type: ignore[return-value]
