"""S3, GCS and Azure by obstore: for where there is no JVM (commands, workers), and for stores at
which Hadoop's client can't create exclusively.

A create is one PUT with ``If-None-Match: *`` (on GCS ``x-goog-if-generation-match: 0``), sent once:
obstore's own retries are off for it, for they would turn an own create whose answer was lost into
"exists" without a word. Reads and deletions may be sent again, and are. That
something can't be read because it isn't there counts only in the store's own words, or where a
listing doesn't have it: a bare 404 may be a gateway's.

Settings have obstore's names (https://developmentseed.org/obstore/latest/api/store/aws/): the
``AWS_…``, ``GOOGLE_…`` and ``AZURE_…`` variables of the environment count, and what is given
overrides them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from onceforall.commit_log.stores.client import Creation
from onceforall.common.object_stores import (
    SCHEMES,
    is_absent,
    names_the_bucket,
    obstore_module,
    opened,
    sentence,
)
from onceforall.errors import CommitLogError

__all__ = ["SCHEMES", "ObjectClient"]


class ObjectClient:
    """A prefix in a bucket.

    Args:
        url: of the prefix, such as ``s3a://bucket/checkpoints/ads``.
        settings: obstore's, such as ``endpoint``, ``region`` or ``access_key_id``; values are never
            shown.

    Raises:
        MissingExtraError: obstore isn't installed.
        OptionError: the URL or a setting is wrong.
    """

    is_far = True

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        self.url = url.rstrip("/")
        given = dict(settings or {})
        self._once = opened(self.url, given, retries=0)
        self._again = opened(self.url, given, retries=5)
        self._obstore: Any = obstore_module()

    def __repr__(self) -> str:
        return f"ObjectClient({self.url!r})"

    def read(self, key: str) -> bytes | None:
        """Return an object's content; None where there is none."""
        with self._explained("read", key):
            try:
                return bytes(self._obstore.get(self._again, key).bytes())
            except (FileNotFoundError, self._obstore.exceptions.NotFoundError) as error:
                if names_the_bucket(error) or self._is_listed(error, key):
                    raise
                return None

    def _is_listed(self, error: BaseException, key: str) -> bool:
        """Tell whether an object is there of which a 404 says that it isn't: where that isn't in
        the store's own words it may be a gateway's, and a listing has to agree, or to fail as well.
        """
        if is_absent(error):
            return False
        folder, _, name = key.rpartition("/")
        return name in self.list(folder)

    def create(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> Creation:
        """PUT with ``If-None-Match: *``, once."""
        with self._explained("create", key):
            if in_time is not None and not in_time():
                return "too late"
            try:
                # Not as a multipart upload: only of a single PUT it is known what it excludes.
                self._obstore.put(self._once, key, content, mode="create", use_multipart=False)
            except (
                self._obstore.exceptions.AlreadyExistsError,
                self._obstore.exceptions.PreconditionError,
                FileExistsError,
            ):
                return "exists"
            return "created"

    def replace(self, key: str, content: bytes) -> None:
        """PUT, whatever stands there."""
        with self._explained("write", key):
            self._obstore.put(self._again, key, content, use_multipart=False)

    def delete(self, key: str) -> None:
        """DELETE."""
        with self._explained("delete", key):
            try:
                self._obstore.delete(self._again, key)
            except (FileNotFoundError, self._obstore.exceptions.NotFoundError):
                return

    def exists(self, key: str) -> bool:
        """HEAD; where that says no, GET, for the answer to a HEAD has no words."""
        with self._explained("look for", key):
            try:
                self._obstore.head(self._again, key)
            except (FileNotFoundError, self._obstore.exceptions.NotFoundError):
                return self.read(key) is not None
            return True

    def list(self, folder: str) -> list[str]:
        """LIST with a delimiter, all pages."""
        with self._explained("list", folder):
            found = self._obstore.list_with_delimiter(self._again, folder or None)
            prefix = f"{folder}/" if folder else ""
            # An object of the folder's own name, but for a slash that isn't shown, marks a folder,
            # as S3A does it.
            files = (
                path.removeprefix(prefix)
                for each in found["objects"]
                if (path := str(each["path"])) != folder
            )
            folders = (
                f"{str(each).rstrip('/').removeprefix(prefix)}/"
                for each in found["common_prefixes"]
            )
            return sorted(name for name in (*files, *folders) if name.strip("/"))

    def move(self, key: str, to: str) -> None:
        """Copy, then delete: a crash between the two leaves both."""
        with self._explained("move", key):
            self._obstore.copy(self._again, key, to)
            self._obstore.delete(self._again, key)

    @contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, self._obstore.exceptions.BaseError) as error:
            raise CommitLogError(
                f"cannot {action} {self.url}/{key}: {sentence(str(error))}, then restart the query."
            ) from None
