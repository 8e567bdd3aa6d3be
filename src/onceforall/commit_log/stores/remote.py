"""A store behind a network, by any client: the one place that knows what a lost answer means.

A create has two answers, ``created`` and *unknown*. "Exists" is unknown, too: it may be one's own
create whose answer was lost, or, on S3, two requests that met (409), of which neither stored
anything. So whatever isn't ``created`` is read back. What stands there is compared by whoever asked
(the entry's nonce tells); where nothing stands there, the create is asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from onceforall.commit_log.store import AlreadyExists, Created, TooLate
from onceforall.commit_log.stores.client import StoreClient
from onceforall.errors import CommitLogError, ProtocolViolationError
from onceforall.failpoints import points as failpoints

__all__ = ["RemoteStore"]

_KEY_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


@runtime_checkable
class _LeavesTemporaryFiles(Protocol):
    """A client whose creates go through a temporary file."""

    def clean_temporary_files(self) -> int: ...


class RemoteStore:
    """A folder of a remote store, with the guarantees of ``Store``.

    Args:
        client: of the store.
        folder: relative to the client's root; empty for the root itself.
    """

    def __init__(self, client: StoreClient, folder: str = "") -> None:
        self._client = client
        self._prefix = f"{folder}/" if folder else ""

    @property
    def keeps_ends(self) -> bool:
        """Whether the last two entries of each chain stay for ever; see ``log``."""
        return self._client.is_far

    def read(self, key: str) -> bytes | None:
        """Return the content, or None when the key does not exist."""
        return self._client.read(self._key(key))

    def list(self, folder: str) -> list[str]:
        """Return the names of the files directly in the folder, sorted; an absent one is empty. An
        empty name is that of the root.
        """
        found = self._client.list(self._key(folder) if folder else self._prefix.rstrip("/"))
        return [name for name in found if not name.startswith(".")]

    def create(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> Created | AlreadyExists | TooLate:
        """Create the key if it is absent, durably.

        Raises:
            CommitLogError: the store gave no answer, or something stood there that is gone by now:
                nobody knows whether this create took effect.
        """
        path = self._key(key)
        failpoints.hit("store.create.before")
        answer = self._client.create(path, content, in_time)
        if answer == "created":
            failpoints.hit("store.create.after")
            return Created()
        if answer == "too late":
            return TooLate()
        failpoints.hit("store.create.exists")
        standing = self._client.read(path)
        if standing is None:
            raise CommitLogError(
                f"{self.describe(key)}: the store says that it exists, and doesn't have it. Two "
                "creates may have met; it is asked again"
            )
        return AlreadyExists(standing)

    def delete(self, key: str) -> None:
        """Delete the key; an absent one is fine."""
        failpoints.hit("store.delete.before")
        self._client.delete(self._key(key))
        failpoints.hit("store.delete.after")

    def clean_temporary_files(self) -> int:
        """Delete what crashed writers left, where the client leaves anything."""
        if isinstance(self._client, _LeavesTemporaryFiles):
            return self._client.clean_temporary_files()
        return 0

    def describe(self, key: str) -> str:
        """Return the URL."""
        return f"{self._client.url}/{self._prefix}{key}".rstrip("/")

    def _key(self, key: str) -> str:
        if not all(_KEY_PART.fullmatch(part) for part in key.split("/")):
            raise ProtocolViolationError(
                f"{key!r} is not a key of the commit log {self.describe('')}: keys have no dots in "
                "front, no empty parts and no special characters. Please report this as a bug."
            )
        return f"{self._prefix}{key}"
