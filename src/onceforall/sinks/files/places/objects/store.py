"""What is needed of a store of objects: a client of it, below one prefix.

Each request may be made twice, for clients repeat those whose answers were lost. Who creates must
compare what stands there afterwards.

An upload's *parts* are durable when they are sent, and nobody sees them until the upload is
completed. That something isn't there counts only in the store's own words: a bare 404 may be a
gateway's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.places.objects.paths import ObjectPath

THREADS = 16
"""How many requests of a driver are under way at once."""

Remedies = tuple[tuple[frozenset[str], str, bool], ...]
"""Codes, what to do, and whether asking again can't help."""


class StoreError(PlaceError):
    """A request that failed. Its text has nothing of the client's own, which may show parts of a
    request.

    Attributes:
        code: the store's, or the name of the client's error.
    """

    remedies: Remedies = ()

    def __init__(self, what: str, path: ObjectPath, code: str) -> None:
        remedy, refused = next(
            ((words, final) for codes, words, final in self.remedies if code in codes),
            ("Mend the cause", False),
        )
        super().__init__(f"cannot {what} {path} (the answer was {code}). {remedy}", refused)
        self.code = code


class Store(Protocol):
    """Requests about what lies below a prefix. Safe for several threads; errors are
    ``StoreError``.
    """

    @property
    def root(self) -> ObjectPath:
        """The prefix."""

    @property
    def settings(self) -> Mapping[str, str]:
        """How the store is reached, with the keys."""

    @property
    def takers(self) -> str:
        """Who may have taken away an upload that was prepared, as part of a sentence."""

    def put(self, path: ObjectPath, content: bytes) -> None:
        """Write an object, whatever stands there."""

    def put_new(self, path: ObjectPath, content: bytes) -> None:
        """Write an object if there is none; whatever it raises, it may have been written."""

    def get(self, path: ObjectPath) -> bytes:
        """Return an object's content.

        Raises:
            FileNotFoundError: there is none.
        """

    def head(self, path: ObjectPath) -> tuple[int, Mapping[str, str]] | None:
        """Return an object's size and metadata; None where there is none."""

    def is_absent(self, path: ObjectPath) -> bool:
        """Tell, behind a ``head`` that found no object, whether the store itself says so.

        Raises:
            StoreError: somebody else says it, or nobody.
        """

    def delete(self, path: ObjectPath) -> None:
        """Delete an object; it need not be there."""

    def names(self, folder: ObjectPath, most: int | None = None) -> list[str]:
        """Return the names of what lies in a folder.

        Args:
            folder: the folder.
            most: how many are enough; None: all.
        """

    def keys_below(self, folder: ObjectPath) -> list[str]:
        """Return the keys of everything below a prefix, relative to it."""

    def begin_upload(self, path: ObjectPath, metadata: Mapping[str, str]) -> str:
        """Begin an upload to what will be an object with this metadata, and return its id."""

    def send_part(self, path: ObjectPath, upload: str, number: int, content: bytes) -> str:
        """Send a part, and return by what ``parts`` knows it."""

    def parts(self, path: ObjectPath, upload: str) -> list[tuple[str, int]] | None:
        """Return what ``send_part`` returned and the size of an upload's parts, in order; None
        where there is no such upload.
        """

    def complete(self, path: ObjectPath, upload: str, etags: Sequence[str]) -> None:
        """Complete an upload.

        Raises:
            FileNotFoundError: there is no such upload: completed before, or aborted.
        """

    def abort(self, path: ObjectPath, upload: str) -> None:
        """Abort an upload; it need not be there."""

    def uploads(self, path: ObjectPath) -> list[str]:
        """Return the ids of the uploads to exactly this key."""

    def unrecorded(self) -> list[ObjectPath]:
        """Return files of ours that have parts, whether there are records of them or not; none
        where only the uploads to a known key can be told from other people's.
        """

    def uploads_below(self, folder: ObjectPath) -> list[str]:
        """Return the keys below a prefix, relative to it, of incomplete uploads."""
