"""A file system of pyarrow's whose errors don't show a secret.

A SAS token is a part of every URL that pyarrow asks, and it puts that URL into its errors. So what
reads with one goes through here, a Python call per read; keys are in no URL, and what reads with
one doesn't.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

T = TypeVar("T")
_MASKED = "…"


def masked_files(files: Any, token: str) -> Any:
    """Return the same file system, for reading, without the token's signature in its errors.

    Args:
        files: pyarrow's.
        token: a SAS token; URLs have its parts in another order.
    """
    signatures = {
        spelled
        for part in token.split("&")
        if part.startswith("sig=")
        for plain in (part[len("sig=") :], unquote(part[len("sig=") :]))
        for spelled in (plain, quote(plain, safe=""), quote(plain))
        if plain
    }
    return fs.PyFileSystem(_Handler(files, _Masking(sorted(signatures, key=len, reverse=True))))


class _Masking:
    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = tuple(secrets)

    def __call__(self, do: Callable[[], T]) -> T:
        """Do something, and mask its error; that one isn't the context of what is raised."""
        try:
            return do()
        except (OSError, pa.ArrowException) as error:
            words = str(error)
            for secret in self._secrets:
                words = words.replace(secret, _MASKED)
            failure = (FileNotFoundError if isinstance(error, FileNotFoundError) else OSError)(
                words
            )
        raise failure


_Base: Any = fs.FileSystemHandler


class _Handler(_Base):  # type: ignore[misc]
    """Reads by another file system. Nobody writes, moves or deletes by it."""

    def __init__(self, files: Any, masked: _Masking) -> None:
        self._files = files
        self._masked = masked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and self._files is other._files

    def __hash__(self) -> int:
        return id(self._files)

    def get_type_name(self) -> str:
        return str(self._files.type_name)

    def normalize_path(self, path: str) -> str:
        return str(self._files.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> Any:
        return self._masked(lambda: self._files.get_file_info(paths))

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._masked(lambda: self._files.get_file_info(selector))

    def open_input_file(self, path: str) -> Any:
        opened = self._masked(lambda: self._files.open_input_file(path))
        return pa.PythonFile(_File(opened, self._masked), mode="r")

    def open_input_stream(self, path: str) -> Any:
        # One that can also seek: who asks for a stream does without.
        return self.open_input_file(path)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("these files are for reading")

    open_output_stream = open_append_stream = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = _refuse


class _File(io.RawIOBase):
    """A file of pyarrow's as one of Python's."""

    def __init__(self, file: Any, masked: _Masking) -> None:
        super().__init__()
        self._file = file
        self._masked = masked

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        most = None if size is None or size < 0 else size
        return bytes(self._masked(lambda: self._file.read(most)))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._masked(lambda: self._file.seek(offset, whence)))

    def tell(self) -> int:
        return int(self._file.tell())

    def size(self) -> int:
        """The file's size, which pyarrow asks for."""
        return int(self._masked(self._file.size))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
