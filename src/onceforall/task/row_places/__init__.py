"""Where rows are kept until their batch is complete: a local folder (``local``), a prefix in a
bucket (``objects``), or a folder of HDFS (``hdfs``).

A place goes to the tasks with the function that they run. It has no secret there: ``secrets`` go
another way, and ``with_secrets`` brings both together again. Everything it does raises ``OSError``
with a sentence for ``strerror``.

Names are ``<batch's folder>/<file>``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import IO, Any, Protocol, cast

__all__ = ["RowFile", "RowPlace", "spooled"]

_SPOOLED_BYTES = 8 << 20


class RowFile(Protocol):
    """A file that is written once, from its beginning to its end."""

    def write(self, data: Any) -> int:
        """Append bytes; return how many."""

    def sync(self) -> None:
        """End the file: its content is durable then."""

    def sync_name(self) -> None:
        """Make the file's name durable."""

    def close(self) -> None:
        """Give the file up, where ``sync`` hasn't ended it."""


class RowPlace(Protocol):
    """A folder for kept rows. Its text is what a person calls it."""

    @property
    def secrets(self) -> Mapping[str, str]:
        """What tasks need, and what a pickle of this doesn't have."""

    @property
    def lists_at_a_price(self) -> bool:
        """Whether looking for what is there is a request that is paid for."""

    def with_secrets(self, values: Mapping[str, str]) -> RowPlace:
        """Return the place as the driver has it, from what a pickle brought."""

    def make(self, folder: str) -> None:
        """Make a batch's folder, durably, where the place has folders."""

    def create(self, name: str) -> RowFile:
        """Begin a file, never over another one."""

    def fetched(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file for reading, at any place of it and more than once."""

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""

    def folders(self) -> list[str]:
        """Return the batches' folders; nothing where the place doesn't exist."""

    def remove(self, folder: str) -> None:
        """Delete a batch's folder with what is in it; it need not be there."""


def spooled() -> IO[bytes]:
    """Return a file for what goes to a store or comes from there: in memory while it is small,
    else on the local disk, without a name: it ends with this process.
    """
    return cast("IO[bytes]", tempfile.SpooledTemporaryFile(_SPOOLED_BYTES))
