"""Reads which folder it is: the id in ``_onceforall/folder.json``; module ``driver.identity`` makes
it.
"""

from __future__ import annotations

from onceforall.commit_log.envelope import decode_fields
from onceforall.errors import CommitLogError, CorruptEntryError, ForeignEntryError, NewerEntryError
from onceforall.sinks.files.paths import HOME
from onceforall.sinks.files.places import Files

NAME = "folder.json"
KIND = "FOLDER"

RESTORE_ID = (
    "Put the file back from a backup or a snapshot of the file system: the decisions of the query "
    "name this id. If there is none, move the file away, and start: the error names the id that "
    "the last decision wrote to (folder …). If it is this folder, let 'onceforall files mend "
    "FOLDER --id ID' write the file again."
)


def folder_id(tree: Files) -> str:
    """Return a folder's id.

    Raises:
        OSError: it has none (the volume is not mounted, perhaps), or it can't be read.
        CommitLogError: it is damaged, or none of ours.
    """
    path = tree.root / HOME / NAME
    # What is no file is named as that, by whoever reads it.
    content = tree.read(path)
    try:
        fields = decode_fields(content, str(path))
    except NewerEntryError:
        raise
    except CommitLogError as error:
        raise CorruptEntryError(f"{path}, the folder's id, is damaged. {RESTORE_ID}") from error
    if fields.get("kind") != KIND or not isinstance(fields.get("id"), str):
        raise ForeignEntryError(f"{path} is not the id of a folder of FileSink. {RESTORE_ID}")
    return str(fields["id"])


__all__ = ["KIND", "NAME", "RESTORE_ID", "folder_id"]
