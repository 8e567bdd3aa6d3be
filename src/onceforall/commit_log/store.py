"""The store interface: four methods, and what they must guarantee.

The whole safety of the commit log rests on these guarantees, and on nothing else:

1. ``create`` is atomic and exclusive: of any number of calls for one key, by any process, at most
   one ever creates it, and a reader sees either nothing or the whole content.
2. ``create`` is durable before it returns: after its return the entry survives the loss of power.
3. ``read`` after a ``create`` that returned, by any process, sees it.
4. A call that raises may or may not have happened.
5. ``create`` asks ``in_time``, where it is given, as late as it can: when everything is ready, and
   nothing but the one operation is left that makes the key appear. Where it says no, this call has
   not created the key, and never will.

``list`` may lag behind: the log never concludes from a listing that an entry is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Created:
    """The key did not exist; this call made it."""


@dataclass(frozen=True)
class AlreadyExists:
    """The key exists; this is its content, so that a retry recognises itself."""

    content: bytes


@dataclass(frozen=True)
class TooLate:
    """The key did not exist, and this call has not made it: ``in_time`` said no."""


@runtime_checkable
class _KeepsEnds(Protocol):
    """A store that says how its logs are to be kept."""

    @property
    def keeps_ends(self) -> bool: ...


def keeps_ends(store: object) -> bool:
    """Tell whether a new log in a store keeps the last two entries of each chain (see ``log``):
    where each look costs a round trip.
    """
    return isinstance(store, _KeepsEnds) and store.keeps_ends


class Store(Protocol):
    """Where a commit log lives.

    Keys are relative, ``/``-separated, of ASCII letters, digits, ``.``, ``_`` and ``-``.
    """

    def read(self, key: str) -> bytes | None:
        """Return the content, or None when the key does not exist."""

    def list(self, folder: str) -> list[str]:
        """Return the names directly in the folder, sorted; an absent folder is empty."""

    def create(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> Created | AlreadyExists | TooLate:
        """Create the key if it is absent, durably, and if ``in_time`` agrees; without it only
        the first two are answers.
        """

    def delete(self, key: str) -> None:
        """Delete the key; an absent one is fine. Need not be durable at once."""

    def describe(self, key: str) -> str:
        """Return how a human finds this key (a path or URL), for error messages."""
