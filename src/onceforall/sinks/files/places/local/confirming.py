"""What of a local folder is looked at before a batch is decided, and made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from onceforall.errors import AttemptFailedError
from onceforall.sinks.files.driver.staged_files import StagedFiles
from onceforall.sinks.files.paths import STAGING
from onceforall.sinks.files.places import taken
from onceforall.sinks.files.tree import Tree


def confirm(tree: Tree, staged: Sequence[StagedFiles]) -> None:
    """See that every temp file is whole, and that it can get to its target.

    Raises:
        AttemptFailedError: one is missing or has another size, or a target can't be made.
        OSError: the file system gave no answer.
    """
    home = (tree.root / STAGING).stat().st_dev
    targets: set[str] = set()
    for transaction in staged:
        with tree.held(tree.root / STAGING / transaction.attempt):
            _confirm_files(tree, transaction)
        targets.update(file.folder for file in transaction.files)
    for target in targets:
        _check_target(tree.root, target, home)


def _confirm_files(tree: Tree, transaction: StagedFiles) -> None:
    for file in transaction.files:
        temporary = tree.root / STAGING / transaction.attempt / file.name
        size = tree.size(temporary)
        if size != file.bytes:
            found = "is missing" if size is None else f"has {size} bytes instead of {file.bytes}"
            raise AttemptFailedError(
                f"The temp file {temporary} {found}. Nobody else may touch it, and driver and "
                "executors must see the same folder "
                f"under {tree.root}."
            )
        _check_rights(temporary)
        if tree.is_there(tree.root / file.path):
            raise AttemptFailedError(
                f"Nothing of this batch is decided: {taken(tree.root / file.path)}."
            )


def _check_target(root: Path, target: str, home: int) -> None:
    at = root
    for part in [None, *target.split("/")] if target else [None]:
        at = at if part is None else at / part
        if at.is_symlink() and part is not None:
            raise AttemptFailedError(
                f"{at} is a symbolic link, and FileSink writes through none. Replace it by a "
                "folder."
            )
        if not _is_there(at):
            return
        if not at.is_dir():
            raise AttemptFailedError(
                f"{at} is no folder, but files must go below it. Move it away."
            )
        if at.stat().st_dev != home:
            raise AttemptFailedError(
                f"{at} is on another file system than {root / STAGING}, so files can't get "
                "there by a rename. Undo that mount."
            )
        _check_access(at)


def make_usable(tree: Tree, folder: Path) -> None:
    """Make a folder that files of the batch will go to, and see that they can.

    Only the attempt shows whether it can be made: a folder may have as many in it as its file
    system takes, a name may be too long for it, and a folder above may be another user's.

    Raises:
        AttemptFailedError: the driver may not write there.
        OSError: it can't be made.
    """
    tree.make_folder(folder)
    _check_access(folder)


def _is_there(path: Path) -> bool:
    """Tell whether a name is taken; a name that can't be asked for isn't free."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_access(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise AttemptFailedError(
            f"The driver may not write in {folder}. Grant its user write permission there."
        )


def _check_rights(temporary: Path) -> None:
    """Refuse what the kernel would refuse later: a hard link to another user's file needs the
    right to read and write it.
    """
    is_ours = temporary.stat().st_uid == os.geteuid()
    if not (is_ours or os.access(temporary, os.R_OK | os.W_OK)) or not os.access(
        temporary.parent, os.W_OK | os.X_OK
    ):
        raise AttemptFailedError(
            f"The temp file {temporary} belongs to another user than the driver's, and the driver "
            "may not move it. Run driver and executors as "
            "one user, or give them a common group and a umask of 002."
        )
