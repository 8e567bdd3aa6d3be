"""Which folder it is: an id in ``_onceforall/folder.json``, made once, that goes with the folder
wherever it is moved or mounted.

A committable carries it. Without it, a batch that was decided for one folder would look lost in
another one (the sink's path was changed; a volume is not mounted, and its mount point is empty),
and would be written again there, though its files may be in the first already.
"""

from __future__ import annotations

import uuid

from onceforall.commit_log.envelope import FORMAT, decode_fields, encode_fields
from onceforall.errors import CommitLogError, CorruptEntryError, ForeignEntryError, NewerEntryError
from onceforall.sinks.files.paths import HOME
from onceforall.sinks.files.places import Files

NAME = "folder.json"

_KIND = "FOLDER"

RESTORE_ID = (
    "Put the file back from a backup or a snapshot of the file system: the decisions of the query "
    "name this id. If there is none, move the file away, and start once with "
    "onceforall.adoptTarget=<sink>, which gives the folder a new id."
)


def make_folder_id(tree: Files) -> str:
    """Return a folder's id, and give it one if it has none; ``_onceforall`` in it must be there.

    Raises:
        OSError: the file can't be made.
        CommitLogError: it is damaged, or none of ours.
    """
    path = tree.root / HOME / NAME
    if not tree.is_there(path):
        tree.create(
            path, encode_fields({"onceforall": FORMAT, "kind": _KIND, "id": uuid.uuid4().hex})
        )
    return folder_id(tree)


def folder_id(tree: Files) -> str:
    """Return a folder's id.

    Raises:
        OSError: it has none (the volume is not mounted, perhaps), or it can't be read.
        CommitLogError: it is damaged, or none of ours.
    """
    path = tree.root / HOME / NAME
    try:
        fields = decode_fields(tree.read(path), str(path))
    except NewerEntryError:
        raise
    except CommitLogError as error:
        raise CorruptEntryError(f"{path}, the folder's id, is damaged. {RESTORE_ID}") from error
    if fields.get("kind") != _KIND or not isinstance(fields.get("id"), str):
        raise ForeignEntryError(f"{path} is not the id of a folder of FileSink. {RESTORE_ID}")
    return str(fields["id"])
