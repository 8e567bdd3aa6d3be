"""Small objects below a prefix: the ids of folders and the manifests. There are no folders in a
bucket, and what was written is durable.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator

from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.store import Store

_PAUSES_S = (0.1, 0.4, 1.6)


class ObjectTree:
    """What lies below a prefix, by its paths."""

    def __init__(self, store: Store) -> None:
        """Nothing is looked at yet."""
        self.store = store
        self.root = store.root

    @contextlib.contextmanager
    def held(self, folder: ObjectPath) -> Iterator[None]:  # noqa: ARG002
        """Nothing is to be prepared."""
        yield

    def names(self, folder: ObjectPath) -> list[str]:
        """Return what lies in a folder.

        Raises:
            FileNotFoundError: nothing does.
        """
        found = self.store.names(folder)
        if not found:
            raise FileNotFoundError(2, "there is nothing", str(folder))
        return found

    def is_folder(self, folder: ObjectPath) -> bool:
        """Tell whether something lies in a folder."""
        return bool(self.store.names(folder, most=2))

    def size(self, file: ObjectPath) -> int | None:
        """Return an object's size."""
        found = self.store.head(file)
        return None if found is None else found[0]

    def read(self, file: ObjectPath) -> bytes:
        """Return an object's content."""
        return self.store.get(file)

    def is_there(self, file: ObjectPath) -> bool:
        """Tell whether there is an object; that there is none counts only in the store's own
        words.

        Raises:
            StoreError: somebody else says it, or nobody.
        """
        if self.store.head(file) is not None:
            return True
        if self.store.is_absent(file):
            return False
        raise PlaceError(
            f"{file} is there and was not found. It is looked for once more", refused=False
        )

    def check_file(self, file: ObjectPath) -> None:
        """Nothing but an object can have a key."""

    def create(self, path: ObjectPath, content: bytes) -> bool:
        """Create an object; False when another one stands there.

        Any answer but "created" leaves it open whether it was: what stands there tells.
        """
        pauses_s = list(_PAUSES_S)
        while (created := self._created(path, content, is_last=not pauses_s)) is None:
            time.sleep(pauses_s.pop(0))
        failpoints.hit("file.create.linked")
        return created

    def _created(self, path: ObjectPath, content: bytes, *, is_last: bool) -> bool | None:
        """Try once; None: it isn't there, and may be tried again."""
        try:
            self.store.put_new(path, content)
        except PlaceError as error:
            with contextlib.suppress(FileNotFoundError):
                return self.store.get(path) == content
            if error.refused or is_last:
                raise
            return None
        return True

    def link(self, file: ObjectPath, name: ObjectPath) -> None:
        """Give an object's content a second key.

        Raises:
            FileExistsError: the key is taken by another content.
        """
        if not self.create(name, self.read(file)):
            raise FileExistsError(17, "it is there", str(name))

    def replace(self, file: ObjectPath, name: ObjectPath) -> None:
        """Write an object's content over another one, then delete the first."""
        self.store.put(name, self.read(file))
        self.store.delete(file)

    def unlink(self, file: ObjectPath) -> None:
        """Delete an object."""
        self.store.delete(file)

    def make_folder(self, folder: ObjectPath) -> None:
        """There are none to be made."""

    def sync_all(self, folders: Iterable[ObjectPath]) -> None:
        """All is durable."""
