"""What a client of a remote store can do: the interface between the log's rules for lost answers
and the two kinds of client, Hadoop's in Spark's JVM (``onceforall.spark.hadoop_client``) and
obstore's (``objects``).

Keys are relative to the client's root, ``/``-separated; the empty one is the root itself. Every
method raises ``CommitLogError`` where the store fails, with a sentence that names the place and the
remedy. Then what was asked for may have happened, or may still happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

__all__ = ["Creation", "StoreClient"]

Creation: TypeAlias = Literal["created", "exists", "too late"]
"""What a client knows of a create. ``exists``: something stands there, which may be one's own: the
answer to an earlier request for the same may have been lost, by the client's own retries too.
"""


class StoreClient(Protocol):
    """A root in a remote store.

    Attributes:
        url: the root, without a slash at its end.
        is_far: whether each request takes a round trip to a service that is paid by the request.
    """

    url: str
    is_far: bool

    def read(self, key: str) -> bytes | None:
        """Return the content; None where there is none."""

    def create(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> Creation:
        """Create a key with a content, whole, durably, and only if nothing stands there.

        Args:
            key: of the file or object; folders above it are made.
            content: the whole of it.
            in_time: asked before the one request that makes the key appear.
        """

    def replace(self, key: str, content: bytes) -> None:
        """Write a key, whatever stands there."""

    def delete(self, key: str) -> None:
        """Delete a key; an absent one is fine."""

    def exists(self, key: str) -> bool:
        """Tell whether there is a file or an object of this name."""

    def list(self, folder: str) -> list[str]:
        """Return the names that are directly in a folder, sorted: files, and folders with a slash
        behind. An absent folder is empty. It may lag.
        """

    def move(self, key: str, to: str) -> None:
        """Give a file another name. Not atomic where the store has no such operation: a crash may
        leave both.
        """
