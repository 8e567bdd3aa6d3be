"""Sets one file of a checkpoint aside, and writes what is to stand there: by names, which others
may have given to something else meanwhile. Which files, and why, is ``mending``'s.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from onceforall.common import logs
from onceforall.common.object_stores import SCHEMES
from onceforall.errors import CommitLogError
from onceforall.failpoints import points as failpoints
from onceforall.spark.commits import sync_folder
from onceforall.spark.remote_path import AnyPath, RemotePath, create_file, files_below

__all__ = [
    "SET_ASIDE",
    "Repair",
    "SetAside",
    "carry_out",
    "keeps_no_torn_file",
    "set_aside_under",
    "state_version",
]

logger = logs.logger("onceforall")

SET_ASIDE = "onceforall-set-aside"
"""The folder of a checkpoint for files that were in the way."""


_TAKEN = ".taken"
"""How the name of what was set aside ends until it was looked at there."""


# In format 2 of state, behind the version comes an id of the attempt that wrote it.
_OF_A_VERSION = re.compile(r"([0-9]+)(?:_[^.]+)?\.(?:delta|snapshot|zip|changelog)", re.ASCII)


def state_version(file: AnyPath) -> int:
    """Return the version of an operator's state that a file holds, or -1: it holds none, such as
    schemas and the SST files to which versions refer.
    """
    found = _OF_A_VERSION.fullmatch(file.name)
    return -1 if found is None else int(found[1])


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
    stays: bool = False
    """It was set aside rightly, by somebody who was killed before he had looked: it stays there."""

    def __str__(self) -> str:
        if self.lies_in is not None:
            done = "stays set aside in" if self.stays else "laid back from"
            return f"{self.path} {self.why}: {done} {self.lies_in}."
        there = self.path.exists()
        steps = ["set aside"] * there + ["put back from the commit log"] * (
            self.content is not None
        )
        return f"{self.path} {self.why}: {' and '.join(steps) or 'it is gone'}."


class SetAside(NamedTuple):
    """One file or folder that was set aside.

    Attributes:
        name: in the checkpoint, with dots for slashes.
        path: where it lies.
        was_looked_at: whoever set it aside has seen since that it was right.
        generation: the newest that was claimed when it was judged; None: none, or unknown.
    """

    name: str
    path: AnyPath
    was_looked_at: bool
    generation: int | None


def set_aside_under(checkpoint: AnyPath, name: str = "") -> list[SetAside]:
    """Return what was set aside in a checkpoint.

    Args:
        checkpoint: its folder.
        name: of a file, such as ``offsets/1``, or of a folder; empty: all.
    """
    aside = checkpoint / SET_ASIDE
    there: list[AnyPath] = [*aside.iterdir()] if aside.is_dir() else []
    found = []
    for each in sorted(there, key=str):
        base, _, mark = each.name.removesuffix(_TAKEN).rpartition(".")
        number = mark.partition("-")[0]
        generation = int(number) if "-" in mark and number.isdecimal() else None
        if not name or base == name.replace("/", "."):
            found.append(SetAside(base, each, not each.name.endswith(_TAKEN), generation))
    return found


def keeps_no_torn_file(checkpoint: AnyPath) -> bool:
    """Tell whether it lies on an object store: there a file is whole, or isn't there; and nothing
    can be given another name, so that what is deleted may be another file than the one that was
    looked at.
    """
    return isinstance(checkpoint, RemotePath) and urlsplit(checkpoint.client.url).scheme in SCHEMES


def carry_out(
    repair: Repair,
    checkpoint: AnyPath,
    is_unchanged: Callable[[], bool],
    generation: int | None = None,
) -> bool:
    """Set the file aside and write what is to stand there; False where somebody was faster, and
    it lies where it was, or is put back from the log when all is judged again.

    Args:
        repair: what is to be done.
        checkpoint: the folder of the checkpoint.
        is_unchanged: tells whether nobody has claimed a generation since it was judged.
        generation: the newest that was claimed when it was judged.
    """
    path = repair.path
    failpoints.hit("mend.before")
    if repair.lies_in is not None:
        if not repair.stays:
            _lay_back(repair.lies_in, path)
        elif not is_unchanged():
            return False
        else:
            _settle(repair.lies_in)
        return True
    name = str(path).removeprefix(f"{checkpoint}/").replace("/", ".")
    mark = secrets.token_hex(4) if generation is None else f"{generation}-{secrets.token_hex(4)}"
    target = checkpoint / SET_ASIDE / f"{name}.{mark}"
    if keeps_no_torn_file(path):
        return _replaced(repair, target, is_unchanged)
    if path.exists():
        taken = target.with_name(f"{target.name}{_TAKEN}")
        if not _set_aside(path, taken):
            return False
        is_bad = is_unchanged() if repair.is_bad is None else repair.is_bad(taken)
        if not is_bad:
            _lay_back(taken, path)
            return False
        failpoints.hit("mend.set_aside")
        _settle(taken)
    if isinstance(path, Path):
        # With a stale checksum Spark would take what is written next for damaged; without one,
        # nothing is checked.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if repair.content is not None:
        _create(path, repair.content)
        failpoints.hit("mend.put_back")
    return True


def _replaced(repair: Repair, target: AnyPath, is_unchanged: Callable[[], bool]) -> bool:
    """Do it on an object store: a copy is set aside, and what is decided goes over the file.

    Of what is only to go, another one may be deleted in its place, for this may stand still at any
    moment. Only plans are, and those that are decided by then are put back from the log.
    """
    path = repair.path
    assert isinstance(path, RemotePath)
    assert isinstance(target, RemotePath)
    content = path.client.read(path.key)
    if content is not None:
        is_bad = is_unchanged() if repair.is_bad is None else repair.is_bad(path)
        if not is_bad:
            return False
        target.client.create(target.key, content)
        failpoints.hit("mend.set_aside")
    if repair.content is not None:
        path.client.replace(path.key, repair.content)
        failpoints.hit("mend.put_back")
        return True
    path.client.delete(path.key)
    return is_unchanged()


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
    except CommitLogError:
        if path.exists():
            raise
        # Another one has done the same.
        return False
    sync_folder(target.parent)
    sync_folder(target.parent.parent)
    sync_folder(path.parent)
    return True


def _settle(taken: AnyPath) -> None:
    """Let what was looked at stay where it is; another one may have done so."""
    if not taken.name.endswith(_TAKEN):
        # To rename it to itself is an error on HDFS.
        return
    with contextlib.suppress(FileNotFoundError):
        if isinstance(taken, RemotePath):
            taken.rename(taken.with_name(taken.name.removesuffix(_TAKEN)))
        else:
            taken.rename(taken.with_name(taken.name.removesuffix(_TAKEN)))


def _lay_back(target: AnyPath, path: AnyPath) -> None:
    """Undo ``_set_aside``, file by file where something has come in its place, which stays."""
    if isinstance(target, RemotePath):
        assert isinstance(path, RemotePath)
        inside = files_below(target) if target.is_dir() else [target]
        for remote in sorted(inside, key=lambda file: (state_version(file), str(file))):
            assert isinstance(remote, RemotePath)
            there = RemotePath(path.client, path.key + remote.key.removeprefix(target.key))
            if not there.exists():
                remote.rename(there)
        _settle(target)
        return
    assert isinstance(path, Path)
    path.parent.mkdir(exist_ok=True)
    everything = sorted(target.rglob("*"))
    # Those with a version last: Spark takes a version for whole that is there.
    files = sorted((each for each in everything if not each.is_dir()), key=state_version)
    for file in [target, *(each for each in everything if each.is_dir()), *files]:
        place = path / file.relative_to(target)
        if file.is_dir():
            place.mkdir(exist_ok=True)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(file, place)
                file.unlink()
        sync_folder(place.parent)
    # Of what has come in its place, the copy stays.
    for folder in [*sorted(target.rglob("*"), reverse=True), target]:
        with contextlib.suppress(OSError):
            folder.rmdir()
    _settle(target)


def _create(path: AnyPath, content: bytes) -> None:
    """Write a file durably; one that is there by now stays."""
    if not create_file(path, content, synced=lambda: failpoints.hit("mend.synced")):
        logger.info("%s is there by now", path)
    if isinstance(path, Path):
        sync_folder(path.parent)
        sync_folder(path.parent.parent)
