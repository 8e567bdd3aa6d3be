"""Sets one file of a checkpoint aside, and writes what is to stand there: by names, which others
may have given to something else meanwhile. Which files, and why, is ``mending``'s.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onceforall.common import logs
from onceforall.failpoints import points as failpoints
from onceforall.spark.commits import sync_folder
from onceforall.spark.remote_path import AnyPath, RemotePath, create_file, files_below

__all__ = ["SET_ASIDE", "Repair", "carry_out"]

logger = logs.logger("onceforall")

SET_ASIDE = "onceforall-set-aside"
"""The folder of a checkpoint for files that were in the way."""


@dataclass(frozen=True)
class Repair:
    """One file, or a folder: it is set aside where it is there, and written where there is
    content for it.
    """

    path: AnyPath
    why: str
    content: bytes | None = None
    is_bad: Callable[[AnyPath], bool] | None = None
    """Tells of the file alone whether it is to be set aside; None: that goes by what was decided
    when it was judged."""
    lies_in: AnyPath | None = None
    """Where it lies in the folder of what was set aside: from there it goes back to its place."""

    def __str__(self) -> str:
        if self.lies_in is not None:
            return f"{self.path} {self.why}: laid back from {self.lies_in}."
        there = self.path.exists()
        done = ["set aside"] * there + ["put back from the commit log"] * (self.content is not None)
        return f"{self.path} {self.why}: {' and '.join(done)}."


def carry_out(repair: Repair, checkpoint: AnyPath, is_unchanged: Callable[[], bool]) -> bool:
    """Set the file aside and write what is to stand there; False where somebody was faster, and
    it lies where it was.

    Args:
        repair: what is to be done.
        checkpoint: the folder of the checkpoint.
        is_unchanged: tells whether nobody has claimed a generation since it was judged.
    """
    path = repair.path
    failpoints.hit("mend.before")
    if repair.lies_in is not None:
        _lay_back(repair.lies_in, path)
        return True
    if path.exists():
        name = str(path).removeprefix(f"{checkpoint}/").replace("/", ".")
        target = checkpoint / SET_ASIDE / f"{name}.{secrets.token_hex(4)}"
        if not _set_aside(path, target):
            return False
        is_bad = is_unchanged() if repair.is_bad is None else repair.is_bad(target)
        if not is_bad:
            _lay_back(target, path)
            return False
        failpoints.hit("mend.set_aside")
    if isinstance(path, Path):
        # With a stale checksum Spark would take what is written next for damaged; without one,
        # nothing is checked.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if repair.content is not None:
        _create(path, repair.content)
        failpoints.hit("mend.put_back")
    return True


def _set_aside(path: AnyPath, target: AnyPath) -> bool:
    """Give it another name, durably; False where it is gone."""
    try:
        if isinstance(path, RemotePath):
            assert isinstance(target, RemotePath)
            path.rename(target)
            return True
        assert isinstance(target, Path)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    except FileNotFoundError:
        return False
    sync_folder(target.parent)
    sync_folder(target.parent.parent)
    sync_folder(path.parent)
    return True


def _lay_back(target: AnyPath, path: AnyPath) -> None:
    """Undo ``_set_aside``, file by file where something has come in its place, which stays."""
    if isinstance(target, RemotePath):
        assert isinstance(path, RemotePath)
        for remote in [target] if not target.is_dir() else files_below(target):
            assert isinstance(remote, RemotePath)
            there = RemotePath(path.client, path.key + remote.key.removeprefix(target.key))
            if not there.exists():
                remote.rename(there)
        return
    assert isinstance(path, Path)
    path.parent.mkdir(exist_ok=True)
    for file in [target, *target.rglob("*")]:
        place = path / file.relative_to(target)
        if file.is_dir():
            place.mkdir(exist_ok=True)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(file, place)
                file.unlink()
        sync_folder(place.parent)
    if target.is_dir():
        # Of what has come in its place, the copy stays.
        for folder in sorted(target.rglob("*"), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            target.rmdir()


def _create(path: AnyPath, content: bytes) -> None:
    """Write a file durably; one that is there by now stays."""
    if not create_file(path, content, synced=lambda: failpoints.hit("mend.synced")):
        logger.info("%s is there by now", path)
    if isinstance(path, Path):
        sync_folder(path.parent)
        sync_folder(path.parent.parent)
