"""The few things that the file sink does with a file system, each durable when it returns, and
what its errors mean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from onceforall.errors import AttemptFailedError, SinkCheckError, SinkUnavailableError
from onceforall.failpoints import points as failpoints

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_TEMPORARY = re.compile(r"\.[0-9a-z.-]+\.[0-9a-f]{32}\.tmp")
_REMEDIES = {
    errno.ENOSPC: "Free some space on this file system",
    errno.EDQUOT: "Raise the quota or free some space on this file system",
    errno.EFBIG: "Raise the limit on the size of files, or lower max_file_bytes",
    errno.EMFILE: "Raise the limit on open files, or lower max_open_files",
    errno.EROFS: "Remount the file system for writing (the kernel's log may say why it is "
    "read-only)",
    errno.EACCES: "Grant the user of Spark's driver and executors read and write permission there",
    errno.EPERM: "Grant the user of Spark's driver and executors read and write permission there",
    errno.EIO: "Check the disk (see the kernel's log) before anything else",
    errno.ESTALE: "Mount the network file system again",
    errno.ENAMETOOLONG: "Shorten the value that makes this name, or use a file system that takes "
    "longer ones",
    errno.EMLINK: "This file system takes no more folders in that one: write fewer values of the "
    "partition columns, or use another file system",
    errno.ELOOP: "Put back the folder that was there, and look who may write in the sink's",
    errno.ENOTDIR: "Move away what stands in a folder's place, and put back the folder",
    errno.ENOENT: "Put back what was deleted there; every executor must see the folder under the "
    "same path",
    errno.EXDEV: "All folders of the sink must be on one file system: undo the mount or the "
    "symbolic link",
}

_RIGHTS = {errno.EACCES, errno.EPERM}


class PlaceError(OSError):
    """An error of a place that is no file system: its text says what happened, and what helps.

    Attributes:
        refused: whether asking again can't help.
    """

    def __init__(self, words: str, refused: bool) -> None:  # noqa: FBT001
        super().__init__(words)
        self.refused = refused


def explained(error: OSError) -> str:
    """Return what an error of the operating system says, of which path, and what helps."""
    if isinstance(error, PlaceError):
        return str(error)
    code = error.errno or 0
    at = f"{error.filename}: " if error.filename else ""
    return (
        f"{at}{error.strerror or error} ({errno.errorcode.get(code, 'no error code')}). "
        f"{_REMEDIES.get(code, 'Mend the cause')}"
    )


@contextlib.contextmanager
def failing_the_attempt(folder: object) -> Iterator[None]:
    """In a task: turn an error of the file system into an ``AttemptFailedError`` that names the
    folder.
    """
    try:
        yield
    except OSError as error:
        raise AttemptFailedError(
            f"Files can't be written in {folder}: {explained(error)}. Spark then writes the batch "
            "again."
        ) from error


@contextlib.contextmanager
def asking_again(what: str, folder: object) -> Iterator[None]:
    """On the driver: turn an error of the file system into a ``SinkUnavailableError``, so that
    it is asked again.
    """
    try:
        yield
    except OSError as error:
        raise SinkUnavailableError(f"Cannot {what} in {folder}: {explained(error)}.") from error


@contextlib.contextmanager
def at_start(what: str, folder: object) -> Iterator[None]:
    """On the driver, before any data moves: as ``asking_again``, but what no repetition can mend is
    a ``SinkCheckError``.
    """
    try:
        with asking_again(what, folder):
            yield
    except SinkUnavailableError as error:
        cause = error.__cause__
        if isinstance(cause, PlaceError) and cause.refused:
            raise SinkCheckError(f"FileSink {cause}.") from cause
        if isinstance(cause, OSError) and cause.errno in _RIGHTS:
            raise SinkCheckError(str(error)) from cause
        raise


def sync_file(descriptor: int) -> None:
    """Make a file's content durable."""
    if _FULL_SYNC is not None:  # on macOS, fsync leaves the data in the disk's own cache
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    except OSError as error:
        error.filename = str(folder)
        raise
    finally:
        os.close(descriptor)


def make_root(folder: Path) -> None:
    """Make a sink's folder and those above it that are missing, each new name durable; what was
    there is the caller's to sync.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        with contextlib.suppress(FileExistsError):
            new.mkdir()
            failpoints.hit("file.folder.made")
        sync_folder(new.parent)


def is_temporary(name: str) -> bool:
    """Tell whether a file's name is one of those that ``create`` uses before it is done."""
    return _TEMPORARY.fullmatch(name) is not None
