"""The folders of a demo: where its report goes, and where its servers and jobs work."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onceforall.errors import OptionError

__all__ = ["prepare", "work_folder"]


def prepare(out: Path, *patterns: str) -> None:
    """Make the folder of a report and remove what an earlier run left there, so that no old report
    is taken for a new one.

    Args:
        out: the folder.
        patterns: the names, or patterns of names, of what a run leaves.

    Raises:
        OptionError: it can't be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path in [path for pattern in patterns for path in out.glob(pattern)]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(
            f"The folder {out} can't be written: {error}. Choose another one with --out."
        ) from error


@contextlib.contextmanager
def work_folder(prefix: str, *, keep: bool) -> Iterator[Path]:
    """Make a folder for checkpoints, files and the servers' data; it goes with the demo, unless it
    is to be kept.

    Args:
        prefix: how its name begins.
        keep: leave it, and tell where it is.
    """
    # Not below --out: Spark's sockets lie in it, and a socket's path may have 107 characters only.
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if os.geteuid() == 0:
        # Run by root, PostgreSQL has another user, who must get through to its data.
        folder.chmod(0o711)
    try:
        yield folder
    finally:
        if keep:
            print(f"Checkpoints, files and the servers' data are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
