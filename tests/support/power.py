"""A file system that loses what was not synced, as with a loss of power: ext4 on a loop device, and
the ioctl that shuts it down.

``cut_power`` drops all that is neither on the device nor in its journal, mounts it again, and lets
the journal be replayed: what a machine finds when
it comes back. The mount options let ext4 forget readily: no commit by itself for ten minutes, and
no early allocation for a file that
takes another's name.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

import psutil
import pytest

from support.waiting import Story, until

_SHUTDOWN = 2 << 30 | 4 << 16 | ord("X") << 8 | 125
"""``EXT4_IOC_SHUTDOWN``, which is ``_IOR('X', 125, __u32)``."""

_NO_LOG_FLUSH = struct.pack("I", 2)
_OPTIONS = "loop,commit=600,noauto_da_alloc"


@contextlib.contextmanager
def powered_disk(root, size_mb=64):
    """Mount one at a new folder; the test is skipped where that isn't allowed: its twins with
    recorded syncs run everywhere."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mount", "mkfs.ext4"))):
        pytest.skip("only root can mount a file system, and it takes mkfs.ext4")
    image = make_image(Path(f"{root}.ext4"), size_mb)
    try:
        mount(image, root)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a file system can't be mounted here: {error.stderr.decode().strip()}")
    try:
        yield root
    finally:
        unmount(root)


def make_image(image, size_mb=64):
    """Make the file of an empty ext4 file system."""
    with image.open("wb") as file:
        file.truncate(size_mb << 20)
    _run("mkfs.ext4", "-q", "-F", str(image))
    return image


def mount(image, root):
    """Mount the file of a file system at a folder, which is made."""
    root.mkdir(exist_ok=True)
    _run("mount", "-o", _OPTIONS, str(image), str(root))


def unmount(root):
    """Unmount it; whoever is still about to close a file there is waited for."""
    until(
        lambda: _is_unmounted(root),
        120,
        Story(lambda: f"nobody uses {root}; there are {_users(root)}"),
    )


def cut_power(root):
    """Lose at once all that is not synced at a mount point of ``powered_disk``, and mount what is
    left.

    Whatever used it must have been killed, or be killed right after: it gets an error from each
    call.
    """
    image = _run("findmnt", "-n", "-o", "SOURCE", str(root)).strip()
    image = Path(_run("losetup", "-n", "-O", "BACK-FILE", image).strip())
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, _NO_LOG_FLUSH)
    finally:
        os.close(descriptor)
    unmount(root)
    mount(image, root)


def _users(root):
    """Which processes have something open there, or may be about to end: those in the middle of
    a call to a disk."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            links = [
                process.cwd(),
                *(
                    link
                    for each in Path(f"/proc/{process.pid}/fd").iterdir()
                    if (link := _target(each))
                ),
            ]
            uses = sorted({link for link in links if link.startswith(str(root))})
            maps = [each.path for each in process.memory_maps() if each.path.startswith(str(root))]
            if uses or maps or process.status() in {psutil.STATUS_DISK_SLEEP, psutil.STATUS_ZOMBIE}:
                found.append(
                    (
                        process.pid,
                        process.ppid(),
                        process.status(),
                        process.cmdline()[:4],
                        uses[:3],
                        maps[:3],
                    )
                )
    return found


def _target(link):
    try:
        return str(link.readlink())
    except OSError:  # closed since it was listed, such as that by which the own ones were
        return ""


def _is_unmounted(root):
    return subprocess.run(["umount", str(root)], capture_output=True, check=False).returncode == 0


def _run(*command):
    return subprocess.run(command, check=True, capture_output=True).stdout.decode()
