"""Reads the URLs of stores: one way for checkpoints, logs, kept rows and files.

A URL is taken as Hadoop takes it, and thus Spark, whose own files lie there: what stands in its
path is the name, and nothing is unquoted. ``urllib.parse`` reads other URLs: it drops a ``?`` or
``#`` at the end, and tabs and newlines everywhere, without a word, and the two would look in
different places.
"""

from __future__ import annotations

from typing import NamedTuple

from onceforall.common.arguments import location_shown
from onceforall.errors import OptionError

__all__ = ["Location", "check_location", "split_location"]


class Location(NamedTuple):
    """The parts of a URL, as they stand in it.

    Attributes:
        scheme: in lower case; empty where there is none.
        authority: what follows two slashes, such as a bucket; empty where there is none.
        path: what is behind that; perhaps without a slash at its beginning.
    """

    scheme: str
    authority: str
    path: str


def check_location(location: str, what: str) -> None:
    """See that everything that reads a location reads the same.

    Args:
        location: a path or a URL of a store.
        what: what to call it in an error.

    Raises:
        OptionError: it has a ``?``, a ``#``, or a character that can't be printed.
    """
    if "?" in location or "#" in location:
        raise OptionError(
            f"{what} {location_shown(location)!r} has a ? or a # in it. They begin a query or a "
            "fragment for some programs, and are part of the name for others. Choose a path "
            "without them."
        )
    odd = next((each for each in location if not each.isprintable()), None)
    if odd is not None:
        raise OptionError(
            f"{what} {location_shown(location)!r} has the character U+{ord(odd):04X} in it, which "
            "can't be printed, and which some programs leave out. Choose a path without it."
        )


def split_location(location: str, what: str) -> Location:
    """Split the URL of a store.

    Args:
        location: a URL, or a path without a scheme.
        what: what to call it in an error.

    Raises:
        OptionError: as `check_location`.
    """
    check_location(location, what)
    scheme, colon, rest = location.partition(":")
    if not colon or not scheme or "/" in scheme:
        scheme, rest = "", location
    if not rest.startswith("//"):
        return Location(scheme.lower(), "", rest)
    authority, slash, path = rest[2:].partition("/")
    return Location(scheme.lower(), authority, slash + path)
