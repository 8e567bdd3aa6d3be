"""What goes wrong with a request to Pravega: the caller makes it an error of its own."""

from __future__ import annotations


class NoAnswerError(Exception):
    """Nobody answered in time, or the connection broke: whether the request was carried out isn't
    known.
    """


class RefusedError(Exception):
    """Pravega has answered, and doesn't do it."""


class GoneError(RefusedError):
    """The segment isn't there (any more), or not from that offset on."""
