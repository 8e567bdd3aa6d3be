"""What of a local folder is looked at before a batch is decided. Nothing is changed."""

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
        if os.path.lexists(tree.root / file.path):
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
        if not os.path.lexists(at):
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
        if not os.access(at, os.W_OK | os.X_OK):
            raise AttemptFailedError(
                f"The driver may not write in {at}. Grant its user write permission there."
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
