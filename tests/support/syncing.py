"""Records what is synced, linked and made in a file system, by path and in order: a loss of
power can't be had in a test."""

import os
from pathlib import Path


class Recorder:
    """The system calls that make files durable, as ``("sync", path)``, ``("link", target)`` and
    ``("unlink", path)``, in their order."""

    def __init__(self, monkeypatch):
        self.calls = []
        self._originals = os.fsync, os.link, os.unlink
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "link", self._link)
        monkeypatch.setattr(os, "unlink", self._unlink)

    def _fsync(self, descriptor):
        self.calls.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
        self._originals[0](descriptor)

    def _link(self, source, target, **options):
        path = _path(target, options.get("dst_dir_fd"))
        self._originals[1](source, target, **options)
        self.calls.append(("link", path))

    def _unlink(self, path, **options):
        whole = _path(path, options.get("dir_fd"))
        self._originals[2](path, **options)
        self.calls.append(("unlink", whole))

    def synced(self, path):
        """Tell where in the order this path was synced, last; an error when it never was."""
        places = [i for i, call in enumerate(self.calls) if call == ("sync", path)]
        assert places, f"{path} was never synced: {self.calls}"
        return places[-1]

    def linked(self, path):
        return self.calls.index(("link", path))


def _path(name, folder):
    return Path(name) if folder is None else Path(f"/proc/self/fd/{folder}").readlink() / name
