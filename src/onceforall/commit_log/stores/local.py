"""A store on a local disk, or on a network file system with hard links and honest ``fsync``.

``create`` writes a temporary file, syncs it, and links it to its final name: ``link`` is atomic and
fails where the name exists (POSIX, link(2)), so a reader sees nothing or the whole content. Then
the folder is synced, for the name is in there, and so is every folder above it that may be new. Who
loses syncs what won before reporting it: the winner may be between its link and its sync, and the
loser's caller acts on what it is told.

A store keeps the folder that it found, and not its path: everything is opened relative to its
descriptor. So a run that was frozen while its log was renamed (``detach``) still meets the SEAL in
it, and never writes into another log that has taken the path since.

Not covered: a disk that reports a sync which it did not do; a page that the kernel dropped after a
failed sync, and then calls clean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from onceforall.commit_log.store import AlreadyExists, Created, TooLate
from onceforall.errors import CommitLogError, ForeignEntryError, ProtocolViolationError
from onceforall.failpoints import points as failpoints

__all__ = ["LocalStore"]

_KEY_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)
_TEMPORARY_NAME = re.compile(r"\.[A-Za-z0-9._-]+\.[0-9a-f]{32}\.tmp", re.ASCII)
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}
_REMEDIES = {
    errno.ENOSPC: "Free some space on this file system",
    errno.EDQUOT: "Raise the quota or free some space on this file system",
    errno.EROFS: "Remount the file system for writing (the kernel's log may say why it is "
    "read-only)",
    errno.EACCES: "Grant the user of the Spark driver read and write permission there",
    errno.EPERM: "Grant the user of the Spark driver read and write permission there",
    errno.EIO: "Check the disk (see the kernel's log) before anything else",
    errno.ESTALE: "Mount the network file system again",
    errno.ENXIO: "Move away the socket or device that stands there, and put back the file that "
    "stood there, if there was one",
    errno.ELOOP: "Replace the symbolic link by a real folder or file: the log does not follow links",  # noqa: E501
}
_DEFAULT_REMEDY = "Mend the cause"
_CREATE_ATTEMPTS = 10
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class LocalStore:
    """A folder of a file system, with the guarantees of ``Store``.

    Args:
        root: the folder; made with the first entry. No symbolic link below it is followed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._durable_folders: set[Path] = set()
        self._descriptor: int | None = None
        self._opening = threading.Lock()

    def read(self, key: str) -> bytes | None:
        """Return the content, or None when the key does not exist.

        Raises:
            CommitLogError: the file can't be read; the message says why and what helps.
        """
        path = self._path(key)
        with self._explained("read", path):
            return self._read(path, durably=False)

    def list(self, folder: str) -> list[str]:
        """Return the names directly in the folder, sorted, without temporary files; an absent
        folder is empty. An empty name is that of the root.
        """
        path = self._path(folder) if folder else self._root
        with self._explained("list", path):
            try:
                with self._opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
                    names = os.listdir(descriptor)  # noqa: PTH208  by descriptor
                    return sorted(name for name in names if not name.startswith("."))
            except FileNotFoundError:
                return []

    def create(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> Created | AlreadyExists | TooLate:
        """Create the key if it is absent, durably; what exists already is durable when it is
        returned.

        ``in_time`` is asked right before the link, behind the sync of the content, which may hang
        for long.

        Raises:
            CommitLogError: the message says why and what helps. The file may have been created
                nevertheless.
        """
        path = self._path(key)
        with self._explained("create", path):
            failpoints.hit("store.create.before")
            self._make_folders(path.parent)
            for _ in range(_CREATE_ATTEMPTS):
                existing = self._read(path, durably=True)
                if existing is not None:
                    failpoints.hit("store.create.exists")
                    self._sync_folder(path.parent)
                    return AlreadyExists(existing)
                answer = self._write_and_link(path, content, in_time)
                if answer is not None:
                    failpoints.hit("store.create.after")
                    return answer
        raise CommitLogError(
            f"{path} appears and disappears while it is being created. Stop whatever deletes "
            "files in the log; "
            f"only onceforall may. Then restart the query."
        )

    def delete(self, key: str) -> None:
        """Delete the key, and the folder that has nothing else; an absent one is fine. Not
        synced: after a loss of power it may be back.
        """
        path = self._path(key)
        with self._explained("delete", path), contextlib.suppress(FileNotFoundError):
            failpoints.hit("store.delete.before")
            os.unlink(self._relative(path), dir_fd=self._folder())
            failpoints.hit("store.delete.after")
            # Whoever creates something in it at this moment makes it again.
            with contextlib.suppress(OSError):
                os.rmdir(self._relative(path.parent), dir_fd=self._folder())
                self._durable_folders.discard(path.parent)

    def describe(self, key: str) -> str:
        """Return the path."""
        return str(self._root / key)

    def clean_temporary_files(self, older_than_s: float = 900.0) -> int:
        """Delete what crashed writers left, and return the number of files.

        Args:
            older_than_s: younger files may belong to a live writer. One that was frozen for longer
                finds its file gone, gets an error from ``create``, and creates it again: nothing is
                lost.
        """
        oldest_live = time.time() - older_than_s
        deleted = 0
        with self._explained("clean", self._root), contextlib.suppress(FileNotFoundError):
            folder = self._folder()
            for name in os.listdir(folder):  # noqa: PTH208
                if not _TEMPORARY_NAME.fullmatch(name):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < oldest_live:
                        os.unlink(name, dir_fd=folder)
                        deleted += 1
                        failpoints.hit("store.clean.deleted")
        return deleted

    def _path(self, key: str) -> Path:
        """Return the path of a key, which never leads out of the root."""
        parts = key.split("/")
        if not all(_KEY_PART.fullmatch(part) for part in parts):
            raise ProtocolViolationError(
                f"{key!r} is not a key of the commit log {self._root}: keys have no dots in "
                "front, no empty parts and no special "
                f"characters. Please report this as a bug."
            )
        path = self._root
        for part in parts:
            path /= part
            with self._explained("look at", path):
                is_link = path.is_symlink()
            if is_link:
                raise CommitLogError(
                    f"{path} is a symbolic link, and the log does not follow one: it might lead "
                    "to another log. "
                    f"Replace it by the folder or file that it points to, then restart the query."
                )
        return path

    def _write_and_link(
        self, path: Path, content: bytes, in_time: Callable[[], bool] | None
    ) -> Created | TooLate | None:
        """Create the file durably, in time; None when it exists, or its folder had to be made
        again.
        """
        # All of them lie in the root, so that those of crashed writers are found without a look
        # into every chain.
        temporary, folder = f".{path.name}.{secrets.token_hex(16)}.tmp", self._folder()
        try:
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                failpoints.hit("store.create.written")
                _sync(file.fileno())
            failpoints.hit("store.create.synced")
            if in_time is not None and not in_time():
                return TooLate()
            try:
                os.link(temporary, self._relative(path), src_dir_fd=folder, dst_dir_fd=folder)
            except FileExistsError:
                return None
            except FileNotFoundError:
                if self._is_folder(path.parent):
                    raise
                # It was deleted with all that was in it since we made it.
                self._durable_folders.discard(path.parent)
                self._make_folders(path.parent)
                return None
            except OSError as error:
                if error.errno in _NO_HARD_LINKS:
                    raise self._no_hard_links(path, error) from error
                raise
            failpoints.hit("store.create.linked")
            self._sync_folder(path.parent)
            failpoints.hit("store.create.folder_synced")
            return Created()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)

    def _make_folders(self, folder: Path) -> None:
        """Make the folder and those above it; each new one is durable in its parent, and so is
        one that another process made.
        """
        if folder in self._durable_folders:
            return
        if folder.parent != folder:
            self._make_folders(folder.parent)
            if self._is_folder(folder) or not self._make(folder):
                self._sync_existing(folder)
            else:
                failpoints.hit("store.folder.made")
                self._sync_folder(folder.parent)
        self._durable_folders.add(folder)

    def _sync_existing(self, folder: Path) -> None:
        """Sync the name of a folder that somebody made; above the checkpoint that is not ours to
        insist on.
        """
        try:
            self._sync_folder(folder.parent)
        except OSError:
            if folder == self._root or self._root in folder.parents:
                raise

    # --- below the root, everything goes by its descriptor ----------------------------------------

    def _folder(self) -> int:
        """Return the descriptor of the root: the folder that stood there when this store first met
        it, whatever its path is now.

        Raises:
            FileNotFoundError: there is none yet.
        """
        with self._opening:
            if self._descriptor is None:
                self._descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._descriptor)
            return self._descriptor

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    @contextlib.contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        if path == self._root:
            descriptor = os.dup(self._folder())
        elif self._root in path.parents:
            descriptor = os.open(
                self._relative(path), flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._folder()
            )
        else:
            descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, path: Path, *, durably: bool) -> bytes | None:
        """Return the content of a file, or None; ``durably``: it survives a loss of power,
        except for its name.
        """
        try:
            # Without O_NONBLOCK, a pipe in an entry's place would be waited for, and for ever.
            with self._opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ForeignEntryError(
                        f"cannot read {path}: a pipe, a folder or a device stands where an entry "
                        "must be. Move it away, put back the file "
                        "that stood there, if there was one, and restart the query."
                    )
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    content = file.read()
                if durably:
                    _sync(descriptor)
        except FileNotFoundError:
            return None
        return content

    def _is_folder(self, folder: Path) -> bool:
        if self._root not in folder.parents:
            return folder.is_dir()
        try:
            with self._opened(folder, os.O_RDONLY | os.O_DIRECTORY):
                return True
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _make(self, folder: Path) -> bool:
        """Make a folder; False when another process was faster."""
        try:
            if self._root in folder.parents:
                os.mkdir(self._relative(folder), dir_fd=self._folder())
            else:
                folder.mkdir()
        except FileExistsError:
            return False
        return True

    def _sync_folder(self, folder: Path) -> None:
        with self._opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            _sync(descriptor)

    def _no_hard_links(self, path: Path, error: OSError) -> CommitLogError:
        return CommitLogError(
            f"{path}: this file system does not let the driver make a hard link "
            f"({error.strerror}), and without one an entry "
            "can't be created exactly once. Put the checkpoint on a file system with hard links "
            "(ext4, xfs, btrfs, NFS), in a "
            f"folder that the driver's user owns."
        )

    @contextlib.contextmanager
    def _explained(self, action: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            code = error.errno or 0
            remedy = _REMEDIES.get(code, _DEFAULT_REMEDY)
            raise CommitLogError(
                f"cannot {action} {path}: {error.strerror or error} "
                f"({errno.errorcode.get(code, 'no error code')}). {remedy}, "
                f"then restart the query; leave the files of the log as they are."
            ) from error


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is not None:  # on macOS, fsync leaves the data in the disk's own cache
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fsync(descriptor)
