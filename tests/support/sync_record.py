"""Records in a process what it syncs, so that a test can take the rest away: a loss of power where
no file system can be mounted.

The record is a file of JSON lines, for another process reads it when this one was killed. It lies
outside the folder that forgets.
"""

import json
import os
import stat
from pathlib import Path


def install(record):
    """Record each ``os.fsync`` of this process from now on: a file by its inode and size, a
    folder by the names in it."""
    original = os.fsync

    def fsync(descriptor):
        found = os.fstat(descriptor)
        # Before the call: what comes while it runs need not be covered.
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(descriptor) as entries:
                line = {
                    "folder": found.st_ino,
                    "names": {entry.name: entry.inode() for entry in entries},
                }
        else:
            line = {"file": found.st_ino, "size": found.st_size}
        original(descriptor)
        with Path(record).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    os.fsync = fsync


def forget_unsynced(root, record, *, keep_names):
    """Take away from a folder what was never synced, as a loss of power may; return what was lost
    or emptied.

    Args:
        root: the folder; its own name is taken for durable.
        record: what ``install`` wrote.
        keep_names: whether a file whose name was not synced stays, without its content (ext4 does
            that), or goes as a whole.
    """
    sizes, folders = {}, {}
    for line in Path(record).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "file" in entry:
            sizes[entry["file"]] = entry["size"]
        else:
            folders[entry["folder"]] = entry["names"]
    return _forget(Path(root), sizes, folders, keep_names)


def _forget(folder, sizes, folders, keep_names):
    names, forgotten = folders.get(folder.stat().st_ino, {}), []
    for path in sorted(folder.iterdir()):
        inode = path.stat().st_ino
        named = names.get(path.name) == inode
        if path.is_dir():
            forgotten += _forget(path, sizes, folders, keep_names)
            if not named and not keep_names and not any(path.iterdir()):
                path.rmdir()
        elif not named and not keep_names:
            path.unlink()
            forgotten.append(path)
        elif sizes.get(inode, 0) < path.stat().st_size:
            os.truncate(path, sizes.get(inode, 0))
            forgotten.append(path)
    return forgotten
