"""Small objects below a prefix: the ids of folders and the manifests. There are no folders in a
bucket, and what was written is durable.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator

from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.places.s3.bucket import Bucket
from onceforall.sinks.files.places.s3.paths import S3Path

_PAUSES_S = (0.1, 0.4, 1.6)


class S3Tree:
    """What lies below a prefix, by its paths."""

    def __init__(self, bucket: Bucket) -> None:
        """Nothing is looked at yet."""
        self.bucket = bucket
        self.root = bucket.root

    @contextlib.contextmanager
    def held(self, folder: S3Path) -> Iterator[None]:  # noqa: ARG002
        """Nothing is to be prepared."""
        yield

    def names(self, folder: S3Path) -> list[str]:
        """Return what lies in a folder.

        Raises:
            FileNotFoundError: nothing does.
        """
        found = self.bucket.names(folder)
        if not found:
            raise FileNotFoundError(2, "there is nothing", str(folder))
        return found

    def is_folder(self, folder: S3Path) -> bool:
        """Tell whether something lies in a folder."""
        return bool(self.bucket.names(folder, most=2))

    def size(self, file: S3Path) -> int | None:
        """Return an object's size."""
        found = self.bucket.head(file)
        return None if found is None else found[0]

    def read(self, file: S3Path) -> bytes:
        """Return an object's content."""
        return self.bucket.get(file)

    def is_there(self, file: S3Path) -> bool:
        """Tell whether there is an object."""
        return self.bucket.head(file) is not None

    def check_file(self, file: S3Path) -> None:
        """Nothing but an object can have a key."""

    def create(self, path: S3Path, content: bytes) -> bool:
        """Create an object; False when another one stands there.

        Any answer but "created" leaves it open whether it was: what stands there tells.
        """
        pauses_s = list(_PAUSES_S)
        while (created := self._created(path, content, is_last=not pauses_s)) is None:
            time.sleep(pauses_s.pop(0))
        failpoints.hit("file.create.linked")
        return created

    def _created(self, path: S3Path, content: bytes, *, is_last: bool) -> bool | None:
        """Try once; None: it isn't there, and may be tried again."""
        try:
            self.bucket.put_new(path, content)
        except PlaceError as error:
            with contextlib.suppress(FileNotFoundError):
                return self.bucket.get(path) == content
            if error.refused or is_last:
                raise
            return None
        return True

    def link(self, file: S3Path, name: S3Path) -> None:
        """Give an object's content a second key.

        Raises:
            FileExistsError: the key is taken by another content.
        """
        if not self.create(name, self.read(file)):
            raise FileExistsError(17, "it is there", str(name))

    def replace(self, file: S3Path, name: S3Path) -> None:
        """Write an object's content over another one, then delete the first."""
        self.bucket.put(name, self.read(file))
        self.bucket.delete(file)

    def unlink(self, file: S3Path) -> None:
        """Delete an object."""
        self.bucket.delete(file)

    def make_folder(self, folder: S3Path) -> None:
        """There are none to be made."""

    def sync_all(self, folders: Iterable[S3Path]) -> None:
        """All is durable."""
