"""Kept rows in a bucket of S3, GCS or Azure, by obstore: a Python worker has no JVM.

A file is one PUT when it is whole: of a task that is killed before, nothing is left. A large one is
a multipart upload; of that a killed task may leave parts, which no listing shows and which a
lifecycle rule of the bucket takes away.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from onceforall.common.object_stores import obstore_module, opened, sentence
from onceforall.errors import MissingExtraError
from onceforall.task.row_places import spooled

__all__ = ["ObjectRows"]

_RETRIES = 5
_READ_BYTES = 1 << 20
_ONE_PUT_BYTES = 64 << 20


class ObjectRows:
    """A prefix of a bucket.

    Args:
        url: of the prefix.
        settings: obstore's; none of them is in a pickle of this, for any may be a secret.

    Raises:
        MissingExtraError: obstore isn't installed.
        OptionError: the URL or a setting is wrong.
    """

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        self._url = url
        self._settings = dict(settings)
        obstore_module()
        if settings:
            # What is wrong with them is said now. A pickle has none.
            _ = self._store

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"ObjectRows({self._url!r})"

    def __reduce__(self) -> tuple[Any, tuple[str, dict[str, str]]]:
        return _unchecked, (self._url, {})

    @property
    def secrets(self) -> Mapping[str, str]:
        """The settings."""
        return self._settings

    @property
    def lists_at_a_price(self) -> bool:
        """A LIST costs as much as a PUT."""
        return True

    def with_secrets(self, values: Mapping[str, str]) -> ObjectRows:
        """Return the place with its settings."""
        place = _unchecked(self._url, values)
        with suppress(MissingExtraError):
            _ = place._store  # noqa: SLF001  what is wrong with the settings is said now
        return place

    def make(self, folder: str) -> None:
        """There are no folders."""

    def create(self, name: str) -> _Upload:
        """Begin a file; nothing is sent."""
        obstore_module()
        return _Upload(self, name)

    @contextmanager
    def fetched(self, name: str) -> Iterator[IO[bytes]]:
        """Fetch an object."""
        with spooled() as file:
            with self._explained("read"):
                for part in obstore_module().get(self._store, name).stream(_READ_BYTES):
                    file.write(part)
            file.seek(0)
            yield file

    def exists(self, name: str) -> bool:
        """HEAD."""
        with suppress(FileNotFoundError), self._explained("look for"):
            obstore_module().head(self._store, name)
            return True
        return False

    def folders(self) -> list[str]:
        """LIST with a delimiter."""
        with self._explained("list"):
            found = obstore_module().list_with_delimiter(self._store)
        return [str(each).rstrip("/") for each in found["common_prefixes"]]

    def remove(self, folder: str) -> None:
        """LIST, and delete."""
        with self._explained("delete"):
            for page in obstore_module().list(self._store, prefix=folder):
                # One request for all of a page, where the store has such a request.
                obstore_module().delete(self._store, [each["path"] for each in page])

    def put(self, name: str, file: IO[bytes], size: int) -> None:
        """Write an object from a file.

        Args:
            name: of the object.
            file: what is in it, from where it stands.
            size: how much that is, in bytes.
        """
        with self._explained("write"):
            obstore_module().put(
                self._store, name, file, use_multipart=None if size > _ONE_PUT_BYTES else False
            )

    @property
    def _store(self) -> Any:
        return _store_of(self._url, tuple(sorted(self._settings.items())))

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        exceptions = obstore_module().exceptions
        try:
            yield
        except (FileNotFoundError, exceptions.NotFoundError) as error:
            if "nosuchbucket" in str(error).lower():
                raise OSError(errno.EIO, f"cannot {action} it: {sentence(str(error))}") from None
            raise FileNotFoundError(errno.ENOENT, "there is no such object") from None
        except (OSError, ValueError, exceptions.BaseError) as error:
            raise OSError(errno.EIO, f"cannot {action} it: {sentence(str(error))}") from None


def _unchecked(url: str, settings: Mapping[str, str]) -> ObjectRows:
    """Return a place in a task, whose executor may lack the package: that is told where the place
    is used, for whoever may do without.
    """
    place = ObjectRows.__new__(ObjectRows)
    place._url, place._settings = url, dict(settings)  # noqa: SLF001  its own module's
    return place


@functools.lru_cache(maxsize=8)
def _store_of(url: str, settings: tuple[tuple[str, str], ...]) -> Any:
    # One per process and place: a client has connections, and looks for certificates.
    return opened(url, dict(settings), retries=_RETRIES)


class _Upload:
    def __init__(self, place: ObjectRows, name: str) -> None:
        self._place = place
        self._name = name
        self._file = spooled()

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def sync(self) -> None:
        with self._file:
            size = self._file.tell()
            self._file.seek(0)
            self._place.put(self._name, self._file, size)

    def sync_name(self) -> None:
        """An object is its name."""

    def close(self) -> None:
        self._file.close()
