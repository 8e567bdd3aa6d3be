"""The multipart uploads of one task attempt."""

from __future__ import annotations

import contextlib
import io
import secrets
from typing import IO, Any, cast

from onceforall.errors import SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.records import begin_recorded, discard, record_of
from onceforall.sinks.files.places.objects.store import Store

PART_BYTES = 8 << 20
"""S3 wants at least 5 MiB of all parts but the last."""
_PARTS_PER_SIZE = 64
_LARGEST_PART = 1 << 30
"""S3 takes 10,000 parts; the parts of a file grow, so that the largest object fits."""


class ObjectStaging:
    """An attempt's uploads, one for each file, to the files' last keys."""

    def __init__(self, store: Store, attempt: str) -> None:
        """Nothing is touched yet."""
        self._store = store
        self._attempt = attempt
        self._mark = secrets.token_hex(16)
        self._count = 0
        self._uploads: list[list[Any]] = []

    def begin(self) -> None:
        """No attempt has this name but this one."""

    def open(self, name: str, folder: str) -> IO[bytes]:
        """Begin an upload.

        Raises:
            OSError: the store refused, or the attempt was swept away.
        """
        path = self._store.root / (f"{folder}/{name}" if folder else name)
        record = record_of(self._store.root, self._attempt, self._count)
        self._count += 1
        upload = begin_recorded(self._store, path, record, self._mark)
        return cast("IO[bytes]", _Upload(self._store, path, upload))

    def end(self, file: IO[bytes]) -> int:
        """Send the last part."""
        upload = cast("_Upload", file)
        failpoints.hit("file.pre_commit.file_written")
        size = upload.end()
        self._uploads.append([upload.id, upload.etags])
        return size

    def finish(self) -> None:
        """All is durable."""

    def discard(self) -> None:
        """Abort all uploads; a sweep says what can't be."""
        if self._count:
            with contextlib.suppress(SinkUnavailableError):
                discard(self._store, self._attempt)

    def body(self) -> dict[str, Any]:
        """Return the mark, and of each file the upload's id and its parts' ETags."""
        return {"mark": self._mark, "uploads": self._uploads}


class _Upload(io.RawIOBase):
    """A file that is sent in parts while it is written.

    An error is kept until ``end``: pyarrow's ORC writer ends the whole process when a write of its
    file fails while it is closed.
    """

    def __init__(self, store: Store, path: ObjectPath, upload: str) -> None:
        super().__init__()
        self.id = upload
        self.etags: list[str] = []
        self._store = store
        self._path = path
        self._waiting = bytearray()
        self._size = 0
        self._failure: Exception | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, content: Any) -> int:
        with memoryview(content) as view:
            count = view.nbytes
            if self._failure is None:
                self._waiting += view
        self._size += count
        try:
            self._send_full()
        except Exception as error:  # noqa: BLE001  raised by end
            self._failure = error
            self._waiting.clear()
        return count

    def _send_full(self) -> None:
        while len(self._waiting) >= (size := self._part_bytes()):
            self._send(size)

    def _part_bytes(self) -> int:
        return min(PART_BYTES << (len(self.etags) // _PARTS_PER_SIZE), _LARGEST_PART)

    def _send(self, size: int) -> None:
        part = bytes(memoryview(self._waiting)[:size])
        self.etags.append(self._store.send_part(self._path, self.id, len(self.etags) + 1, part))
        del self._waiting[:size]

    def end(self) -> int:
        """Send what is left; an upload has at least one part."""
        if self._failure is not None:
            raise self._failure
        if self._waiting or not self.etags:
            self._send(len(self._waiting))
        self.close()
        return self._size
