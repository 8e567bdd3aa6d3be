"""Where a run runs: the machine, its boot, and the storage of its checkpoint. It only looks;
``protocol.judgement`` judges.

What identifies storage must survive a reboot, and the journey of a volume to another machine, and
differ for a clone. No single thing does:

- device numbers change at a reboot, and so does what XFS tells as its id (it is made of them):
  neither is used;
- the id of ext4, Btrfs, F2FS and ZFS comes from their UUID, and survives; a clone block by block
  has the same one, unless it is given a new one; a copy file by file hasn't;
- the inode of the checkpoint's folder survives too, and tells a copy file by file, with the same
  limit;
- the serial number of the disk, or its World Wide Name, tells a clone: a cloud's volumes each have
  their own, wherever they are attached. It is known for NVMe, SCSI and virtio disks, and a file
  behind a loop device has a name.

Each goes under a key of its own, and two places are compared by what both know. A network file
system is the same from everywhere, and has none of these.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onceforall.common.machine import boot_id
from onceforall.spark.remote_path import AnyPath

__all__ = ["Place", "here", "storage_of"]

_WITH_STABLE_ID = {"ext2", "ext3", "ext4", "btrfs", "f2fs", "zfs"}
_WITH_STABLE_INODES = {*_WITH_STABLE_ID, "xfs", "jfs", "bcachefs"}
_SERIALS = (
    ("nvme-serial", "device/serial", "nvme"),
    ("scsi-wwid", "device/wwid", "sd"),
    ("virtio-serial", "serial", "vd"),
    ("loop-file", "loop/backing_file", "loop"),
)
"""Key, file below the disk's folder in sysfs, and how the disk's name begins."""


@dataclass(frozen=True)
class Place:
    """Where a run runs.

    Attributes:
        host: the machine's name; a pod's, in Kubernetes.
        boot_id: other after each boot; empty where nothing tells it.
        storage: what is known of the file system, by key; ``type`` is its kind.
    """

    host: str = ""
    boot_id: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)


def here(checkpoint: AnyPath) -> Place:
    """Return where this process runs, with a checkpoint on this storage; a remote one is the
    same from everywhere.

    What can't be found out is left out; nothing is raised.
    """
    storage = storage_of(checkpoint) if isinstance(checkpoint, Path) else {}
    return Place(socket.gethostname(), boot_id(), storage)


def storage_of(
    folder: Path, *, mounts: Path = Path("/proc/self/mountinfo"), sysfs: Path = Path("/sys")
) -> Mapping[str, str]:
    """Return what identifies the storage of a folder; see the module.

    Args:
        folder: any that exists.
        mounts: the kernel's list of mounts.
        sysfs: where the kernel tells of its devices.
    """
    try:
        return _storage_of(folder, mounts, sysfs)
    except (OSError, ValueError, IndexError):
        return {}


def _storage_of(folder: Path, mounts: Path, sysfs: Path) -> Mapping[str, str]:
    found, kind = folder.stat(), _kind(folder, mounts)
    if kind is None:
        return {}
    storage = {"type": kind}
    if kind in _WITH_STABLE_ID:
        storage["id"] = f"{os.statvfs(folder).f_fsid:x}"
    if kind in _WITH_STABLE_INODES:
        storage["folder"] = str(found.st_ino)
        storage.update(_serial(found.st_dev, sysfs))
    return storage


def _kind(folder: Path, mounts: Path) -> str | None:
    """Return the kind of the file system on which a folder lies."""
    resolved, kind, longest = folder.resolve(), None, -1
    # As bytes: a path may have any but a line feed, which the kernel writes in octal, as spaces,
    # tabs and backslashes.
    for line in mounts.read_bytes().split(b"\n"):
        before, _, behind = line.partition(b" - ")
        if not behind:
            continue
        escaped = before.split(b" ")[4]
        mounted_at = os.fsdecode(
            re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8) % 256]), escaped)
        )
        parts = len(Path(mounted_at).parts)
        # The later of two at one place covers the earlier one.
        if parts >= longest and resolved.is_relative_to(mounted_at):
            kind, longest = os.fsdecode(behind.split(b" ")[0]), parts
    return kind


def _serial(device: int, sysfs: Path) -> Mapping[str, str]:
    """Return what identifies the disk of a file system, under a key for its kind; empty where it
    is unknown, or there are several.
    """
    folder = (sysfs / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}").resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    # A logical volume or an encrypted one: the disk below it.
    while (folder / "slaves").is_dir() and (below := list((folder / "slaves").iterdir())):
        if len(below) != 1:
            return {}
        folder = below[0].resolve()
        if (folder / "partition").exists():
            folder = folder.parent
    for key, name, prefix in _SERIALS:
        if folder.name.startswith(prefix):
            try:
                serial = (folder / name).read_text(encoding="utf-8", errors="replace").strip()
            except OSError:
                return {}
            return {key: serial} if serial else {}
    return {}
