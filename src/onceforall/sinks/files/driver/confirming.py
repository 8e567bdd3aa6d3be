"""What is done before a batch is decided: a look whether every temp file is whole, and whether
anything can stop a commit. The folders that the commit needs are made here, for only that shows
whether they can be. Nothing else is changed; readers see no row and no partition in empty folders.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from onceforall.errors import AttemptFailedError, ForeignEntryError
from onceforall.protocol.names import TransactionName
from onceforall.sinks.files.driver.committing import Folder
from onceforall.sinks.files.driver.staged_files import StagedFiles, after_of
from onceforall.sinks.files.folders import explained


def confirm(folder: Folder, staged: Sequence[StagedFiles]) -> None:
    """See that nothing stands in the way of a commit, and make the folders that it needs.

    Raises:
        AttemptFailedError: a temp file is missing or has another size, or a target, its folder or
            the manifest can't be made.
        OSError: the file system gave no answer.
        CommitLogError: the batch before can't be looked for, because its manifest is damaged.
    """
    try:
        _confirm(folder, staged)
    except OSError as error:
        if error.errno in _WITH_THIS_BATCH:
            raise AttemptFailedError(
                f"Nothing of this batch is decided: {explained(error)}."
            ) from error
        raise


_WITH_THIS_BATCH = {
    errno.EACCES,
    errno.ELOOP,
    errno.EMLINK,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
}
"""What doesn't pass by itself: to ask again for this batch doesn't help."""


def _confirm(folder: Folder, staged: Sequence[StagedFiles]) -> None:
    _check_manifest(folder, staged[0].name)
    _check_predecessor(folder, staged)
    folder.place.confirm(staged, folder.manifests(staged[0].name).folder)


def _check_manifest(folder: Folder, name: TransactionName) -> None:
    """Behind the decision, a pipe in the manifest's place could only be waited for."""
    try:
        folder.manifests(name).check_place(name.batch)
    except ForeignEntryError as error:
        raise AttemptFailedError(f"Nothing of this batch is decided: {error}") from error
    complete = folder.manifests(name).listing().end
    if complete >= name.batch:
        raise AttemptFailedError(
            f"Batch {name.batch} is not written: by its manifests, {folder.root} has already got "
            f"batch {complete} of this query. Either another run of the query is further, then "
            "stop this one; or the checkpoint is an older copy, then put the newer one back. "
            "Nothing of this batch is decided."
        )


def _check_predecessor(folder: Folder, staged: Sequence[StagedFiles]) -> None:
    after = after_of(staged)
    if after is not None and not folder.manifests(staged[0].name).has(after):
        raise AttemptFailedError(
            f"{folder.root} doesn't have batch {after}, which the commit log knows to be complete "
            "there: another volume is mounted now, or the "
            "folder was put back to an older state. Nothing of this batch is decided. Mount the "
            "right volume, or put the newer state back."
        )
