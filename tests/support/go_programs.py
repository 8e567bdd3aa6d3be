"""Servers for tests that Go builds once, into the cache of the jars, which takes minutes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from onceforall.embedded.jars import cache_folder
from onceforall.errors import EmbeddedServerError

_DEADLINE_S = 1500.0


def built(name, module, version):
    """Return a program, which is built when it is not in the cache.

    Args:
        name: the program's.
        module: what ``go install`` takes, without the version.
        version: without the v.
    """
    program = cache_folder() / "go" / f"{name}-{version}" / name
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        raise EmbeddedServerError(
            f"These tests build {name}, and there is no `go` on the PATH. Install Go, or lay the "
            f"program at {program}."
        )
    program.parent.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, and moved there whole: another process of the tests may build it too.
    with tempfile.TemporaryDirectory(dir=program.parent.parent) as work:
        done = subprocess.run(
            [go, "install", f"{module}@v{version}"],
            env={**os.environ, "GOBIN": work},
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise EmbeddedServerError(f"{name} could not be built:\n{done.stderr[-2000:]}")
        program.parent.mkdir(exist_ok=True)
        (Path(work) / name).replace(program)
    return program
