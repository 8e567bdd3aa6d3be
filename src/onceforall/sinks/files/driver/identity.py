"""Which folder it is: an id in ``_onceforall/folder.json``, made once, that goes with the folder
wherever it is moved or mounted.

A committable carries it. Without it, a batch that was decided for one folder would look lost in
another one (the sink's path was changed; a volume is not mounted, and its mount point is empty),
and would be written again there, though its files may be in the first already.
"""

from __future__ import annotations

import uuid

from onceforall.commit_log.envelope import FORMAT, encode_fields
from onceforall.sinks.files.folder_ids import KIND, NAME, folder_id
from onceforall.sinks.files.paths import HOME
from onceforall.sinks.files.places import Files


def make_folder_id(tree: Files) -> str:
    """Return a folder's id, and give it one if it has none; ``_onceforall`` in it must be there.

    Raises:
        OSError: the file can't be made.
        CommitLogError: it is damaged, or none of ours.
    """
    path = tree.root / HOME / NAME
    if not tree.is_there(path):
        tree.create(
            path, encode_fields({"onceforall": FORMAT, "kind": KIND, "id": uuid.uuid4().hex})
        )
    return folder_id(tree)


__all__ = ["NAME", "folder_id", "make_folder_id"]
