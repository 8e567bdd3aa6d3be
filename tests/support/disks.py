"""A small file system of its own for a test: it can be full, and read-only, as a disk is, with
no call of the library replaced."""

import contextlib
import errno
import os
import shutil
import subprocess

import pytest

_BALLAST = "ballast"
_BLOCK = bytes(4096)


class SmallDisk:
    """A mounted file system of a few hundred kilobytes."""

    def __init__(self, root):
        self.root = root

    def fill(self):
        """Write until not one more block is free."""
        with (self.root / _BALLAST).open("ab", buffering=0) as file:
            while self._takes(file, _BLOCK):
                pass

    @staticmethod
    def _takes(file, block):
        try:
            return file.write(block)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False

    def free(self):
        (self.root / _BALLAST).unlink()

    @contextlib.contextmanager
    def read_only(self):
        _mount("-o", "remount,ro", str(self.root))
        try:
            yield
        finally:
            _mount("-o", "remount,rw", str(self.root))


@contextlib.contextmanager
def small_disk(root):
    """Mount one at a folder; the test is skipped where that isn't allowed: its twins with
    failpoints say the same everywhere."""
    root.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    try:
        _mount("-t", "tmpfs", "-o", "size=512k,mode=700", "onceforall-test", str(root))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a file system can't be mounted here: {error.stderr.decode().strip()}")
    try:
        yield SmallDisk(root)
    finally:
        # Lazily: what a test still has open there doesn't matter any more.
        subprocess.run(["umount", "-l", str(root)], check=True, capture_output=True)


def _mount(*arguments):
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


class Volume:
    """A folder that is mounted at another one, and can go away from there and come back with
    what it held."""

    def __init__(self, volume, mount_point):
        self.mount_point = mount_point
        self._volume = volume

    def mount(self):
        _mount("--bind", str(self._volume), str(self.mount_point))

    def go_away(self):
        subprocess.run(["umount", "-l", str(self.mount_point)], check=True, capture_output=True)


class RenamedVolume:
    """The twin of a volume where nobody may mount: the folder is renamed away, and an empty one
    is left."""

    def __init__(self, volume, mount_point):
        self.mount_point = mount_point
        self._volume = volume

    def mount(self):
        self.mount_point.rmdir()
        self._volume.rename(self.mount_point)

    def go_away(self):
        self.mount_point.rename(self._volume)
        self.mount_point.mkdir()


@contextlib.contextmanager
def volume(folder, *, really):
    """A volume that is mounted at ``folder/out``; the test is skipped where mounting isn't
    allowed: its twin says the same everywhere."""
    made, mount_point = folder / "volume", folder / "out"
    made.mkdir()
    mount_point.mkdir()
    if not really:
        renamed = RenamedVolume(made, mount_point)
        renamed.mount()
        yield renamed
        return
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a volume")
    mounted = Volume(made, mount_point)
    try:
        mounted.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a volume can't be mounted here: {error.stderr.decode().strip()}")
    try:
        yield mounted
    finally:
        mounted.go_away()
