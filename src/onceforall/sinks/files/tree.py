"""Everything that the file sink makes, moves and deletes below its folder, reached by descriptors
from that folder on.

Whoever may write in the folder could replace a folder in it by a symbolic link at any moment:
behind a check, and before what is checked is done. So a folder is opened a name at a time, with
``O_NOFOLLOW``, and files are made, linked and deleted in the descriptor that comes out (POSIX
``openat``, https://pubs.opengroup.org/onlinepubs/9699919799/functions/open.html): nothing leaves
the sink's folder, whoever is at work in it. The folder itself, and those above it, are the user's,
and may be links.

Linux and macOS have these calls, on every file system with hard links. A mount point below the
folder is no link: ``start_checks`` and ``confirm`` refuse it where they see it, and a link to
another file system fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from onceforall.common.threads import Threads
from onceforall.errors import ForeignEntryError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.folders import is_temporary, sync_file

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""To pass through a folder its user need not be able to list it."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe in a file's place would let a plain open wait for a writer, for ever."""
_SYNCS_AT_ONCE = 8


class Tree:
    """A sink's folder and all below it. Paths are absolute ones below the root; errors are those of
    the operating system.

    Each method raises ``OSError`` with ``ELOOP``, naming the place, where a folder on the way is a
    symbolic link.
    """

    def __init__(self, root: Path) -> None:
        """Nothing is looked at yet."""
        self.root = root
        self._here = threading.local()

    @contextlib.contextmanager
    def held(self, folder: Path) -> Iterator[None]:
        """Keep a folder open, for this thread, through what is done with many files in it; where
        it isn't there, nothing is kept.
        """
        try:
            opened = self._opened(folder)
            descriptor = opened.__enter__()
        except OSError:
            yield
            return
        self._here.held = folder, descriptor
        try:
            yield
        finally:
            self._here.held = None
            opened.__exit__(None, None, None)

    @contextlib.contextmanager
    def _opened(self, folder: Path, flags: int = _WALK) -> Iterator[int]:
        """Open a folder; an error of what is done in it names the whole path."""
        try:
            with self._descriptor(folder, flags) as descriptor:
                yield descriptor
        except OSError as error:
            name = error.filename if isinstance(error.filename, str) else ""
            error.filename = str(folder / name)
            raise

    @contextlib.contextmanager
    def _descriptor(self, folder: Path, flags: int) -> Iterator[int]:
        held = getattr(self._here, "held", None)
        if held is not None and held[0] == folder and flags == _WALK:
            yield held[1]
            return
        parts = folder.relative_to(self.root).parts
        if ".." in parts:
            raise ValueError(f"{folder} leads out of {self.root}")
        descriptor = os.open(self.root, _WALK if parts else flags)
        try:
            at = self.root
            for i, part in enumerate(parts, start=1):
                at /= part
                below = _open_below(descriptor, at, flags if i == len(parts) else _WALK)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def size(self, file: Path) -> int | None:
        """Return a file's size; None when there is none. A link, a pipe or a folder is nobody's
        file of ours.
        """
        try:
            with self._opened(file.parent) as folder:
                found = os.stat(file.name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def read(self, file: Path) -> bytes:
        """Return a file's content. What is no file is never waited for.

        Raises:
            FileNotFoundError: there is none.
            ForeignEntryError: a link, a pipe, a folder, a socket or a device stands in its place.
        """
        with self._opened(file.parent) as folder:
            try:
                descriptor = os.open(file.name, _READ, dir_fd=folder)
            except OSError as error:
                _check_is_file(folder, file)
                error.filename = str(file)
                raise
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise _no_file(file, mode)
            with os.fdopen(descriptor, "rb", closefd=False) as opened:
                return opened.read()
        finally:
            os.close(descriptor)

    def is_there(self, file: Path) -> bool:
        """Tell whether a name is taken, by whatever it is."""
        try:
            with self._opened(file.parent) as folder:
                os.stat(file.name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def check_file(self, file: Path) -> None:
        """See that a name is a file's, or free, and that no folder on the way is a link.

        Raises:
            ForeignEntryError: a link, a pipe, a folder, a socket or a device has the name.
        """
        try:
            with self._opened(file.parent) as folder:
                _check_is_file(folder, file)
        except FileNotFoundError:
            return

    def are_same(self, one: Path, two: Path) -> bool:
        """Tell whether two names are of one file.

        Raises:
            FileNotFoundError: one is not there.
        """
        found = []
        for path in (one, two):
            with self._opened(path.parent) as folder:
                found.append(os.stat(path.name, dir_fd=folder, follow_symlinks=False))
        return os.path.samestat(*found)

    def is_folder(self, folder: Path) -> bool:
        """Tell whether there is such a folder; the root may be a link to one.

        Raises:
            OSError: below the root a link stands in its place or in the way (ELOOP), wherever it
                leads, or what is no folder (ENOTDIR).
        """
        if folder == self.root:
            return folder.is_dir()
        try:
            with self._opened(folder):
                return True
        except FileNotFoundError:
            return False

    def names(self, folder: Path) -> list[str]:
        """Return what lies in a folder."""
        with self._opened(folder, _LIST) as descriptor:
            return os.listdir(descriptor)  # noqa: PTH208  of a descriptor

    def open_new(self, file: Path, buffering: int = -1) -> IO[bytes]:
        """Make a file and open it for writing.

        Raises:
            FileExistsError: the name is taken.
        """
        with self._opened(file.parent) as folder:
            return os.fdopen(os.open(file.name, _NEW, 0o666, dir_fd=folder), "wb", buffering)

    def link(self, file: Path, name: Path) -> None:
        """Give a file another name.

        Raises:
            FileExistsError: the name is taken.
        """
        with (
            self._opened(file.parent) as source,
            self._opened(name.parent) as target,
            _naming(name),
        ):
            os.link(
                file.name, name.name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False
            )

    def replace(self, file: Path, name: Path) -> None:
        """Give a file another name instead of its own, and over what has that name."""
        with (
            self._opened(file.parent) as source,
            self._opened(name.parent) as target,
            _naming(name),
        ):
            os.replace(file.name, name.name, src_dir_fd=source, dst_dir_fd=target)

    def unlink(self, file: Path) -> None:
        """Delete a name."""
        with self._opened(file.parent) as folder:
            os.unlink(file.name, dir_fd=folder)

    def make_new_folder(self, folder: Path) -> None:
        """Make one folder.

        Raises:
            FileExistsError: the name is taken.
        """
        with self._opened(folder.parent) as above:
            os.mkdir(folder.name, dir_fd=above)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it that are missing, each new name durable; what was
        there is the caller's to sync.
        """
        at = self.root
        for part in folder.relative_to(self.root).parts:
            at /= part
            with self._opened(at.parent) as above:
                try:
                    os.close(_open_below(above, at, _WALK))
                    continue
                except FileNotFoundError:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(at.name, dir_fd=above)
                        failpoints.hit("file.folder.made")
            self.sync(at.parent)

    def sync(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        with self._opened(folder, _LIST) as descriptor:
            sync_file(descriptor)

    def sync_all(self, folders: Iterable[Path]) -> None:
        """Make the names in several folders durable, some at a time."""
        each = list(folders)
        if len(each) == 1:
            self.sync(each[0])
            return
        with Threads(_SYNCS_AT_ONCE, thread_name_prefix="onceforall-sync") as threads:
            for done in [threads.submit(self.sync, folder) for folder in each]:
                done.result()

    def create(self, path: Path, content: bytes) -> bool:
        """Create a file with its whole content at once, durably; False when the name is taken: it
        is left as it is.

        The folder is synced in both cases: who took the name may not have come to that yet.
        """
        temporary = path.parent / f".{path.name}.{secrets.token_hex(16)}.tmp"
        try:
            with self.open_new(temporary) as file, _naming(path):
                file.write(content)
                file.flush()
                failpoints.hit("file.create.written")
                sync_file(file.fileno())
            failpoints.hit("file.create.synced")
            try:
                self.link(temporary, path)
            except FileExistsError:
                created = False
            else:
                created = True
            failpoints.hit("file.create.linked")
            self.sync(path.parent)
            failpoints.hit("file.create.folder_synced")
        finally:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
        return created

    def delete_temporary_files(self, folder: Path) -> None:
        """Delete what killed processes left in ``create``.

        A live one that finds its file gone gets an error and creates it again.
        """
        with contextlib.suppress(FileNotFoundError):
            self._delete(
                folder, is_temporary, lambda: failpoints.hit("file.recover.manifest_deleted")
            )

    def delete_folder_of_files(self, folder: Path) -> bool:
        """Delete a folder that holds files only; False when there was none. Nothing below a folder
        in it is touched.

        A link in its place is not followed, and stays: what it leads to is somebody else's.
        """
        try:
            self._delete(folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno == errno.ELOOP and error.filename == str(folder):
                return False
            raise
        with contextlib.suppress(FileNotFoundError), self._opened(folder.parent) as above:
            os.rmdir(folder.name, dir_fd=above)
        return True

    def _delete(
        self,
        folder: Path,
        chosen: Callable[[str], bool] = lambda _: True,
        after_each: Callable[[], object] = lambda: None,
    ) -> None:
        with self._opened(folder, _LIST) as descriptor:
            for name in os.listdir(descriptor):  # noqa: PTH208  of a descriptor
                if chosen(name):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=descriptor)
                        after_each()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an error of two names, or of none, name the one that was to be made."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _open_below(above: int, folder: Path, flags: int) -> int:
    try:
        return os.open(folder.name, flags | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP} and _is_link(above, folder.name):
            words = "a symbolic link stands where a folder must be, and FileSink follows none"
            raise OSError(errno.ELOOP, words, str(folder)) from None
        error.filename = str(folder)
        raise


def _check_is_file(folder: int, file: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(file.name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise _no_file(file, found.st_mode)


def _no_file(file: Path, mode: int) -> ForeignEntryError:
    what = next((name for is_one, name in _KINDS if is_one(mode)), "something else")
    return ForeignEntryError(
        f"{file} is {what} where a file must be. Move it away, and put back the file that stood "
        "there."
    )


_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _is_link(above: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False


__all__ = ["Tree"]
