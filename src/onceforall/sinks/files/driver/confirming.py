"""What is looked at before a batch is decided: whether every temp file is whole, and whether
anything can stop a commit. Nothing is changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from onceforall.errors import AttemptFailedError, ForeignEntryError
from onceforall.protocol.names import TransactionName
from onceforall.sinks.files.driver.committing import Folder
from onceforall.sinks.files.driver.staged_files import StagedFiles, after_of
from onceforall.sinks.files.folders import explained
from onceforall.sinks.files.paths import STAGING


def confirm(folder: Folder, staged: Sequence[StagedFiles]) -> None:
    """See that nothing stands in the way of a commit; nothing is changed.

    Raises:
        AttemptFailedError: a temp file is missing or has another size, or a target or the manifest
            can't be made.
        OSError: the file system gave no answer.
        CommitLogError: the batch before can't be looked for, because its manifest is damaged.
    """
    try:
        _confirm(folder, staged)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise AttemptFailedError(
                f"Nothing of this batch is decided: {explained(error)}."
            ) from error
        raise


def _confirm(folder: Folder, staged: Sequence[StagedFiles]) -> None:
    home = (folder.root / STAGING).stat().st_dev
    targets: set[str] = set()
    for transaction in staged:
        with folder.tree.held(folder.staging(transaction.attempt)):
            _confirm_files(folder, transaction)
        targets.update(file.folder for file in transaction.files)
    for target in targets:
        _check_target(folder, target, home)
    _check_manifest(folder, staged[0].name)
    _check_predecessor(folder, staged)


def _confirm_files(folder: Folder, transaction: StagedFiles) -> None:
    for file in transaction.files:
        temporary = folder.staging(transaction.attempt) / file.name
        size = folder.tree.size(temporary)
        if size != file.bytes:
            found = "is missing" if size is None else f"has {size} bytes instead of {file.bytes}"
            raise AttemptFailedError(
                f"The temp file {temporary} {found}. Nobody else may touch it, and driver and "
                "executors must see the same folder "
                f"under {folder.root}."
            )
        _check_rights(temporary)
        if os.path.lexists(folder.root / file.path):
            raise AttemptFailedError(
                f"{folder.root / file.path} is there already, and it isn't ours. Move it away."
            )


def _check_manifest(folder: Folder, name: TransactionName) -> None:
    """Behind the decision, a pipe in the manifest's place could only be waited for."""
    try:
        folder.manifests(name).check_place(name.batch)
    except ForeignEntryError as error:
        raise AttemptFailedError(f"Nothing of this batch is decided: {error}") from error


def _check_predecessor(folder: Folder, staged: Sequence[StagedFiles]) -> None:
    after = after_of(staged)
    if after is not None and not folder.manifests(staged[0].name).has(after):
        raise AttemptFailedError(
            f"{folder.root} doesn't have batch {after}, which the commit log knows to be complete "
            "there: another volume is mounted now, or the "
            "folder was put back to an older state. Nothing of this batch is decided. Mount the "
            "right volume, or put the newer state back."
        )


def _check_target(folder: Folder, target: str, home: int) -> None:
    at = folder.root
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
                f"{at} is on another file system than {folder.root / STAGING}, so files can't get "
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
