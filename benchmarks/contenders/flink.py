"""Flink, from the package ``apache-flink``, in an environment of its own below
``build/bench/flink``, installed at its first use.

Its dependencies (an older pyarrow, pandas and protobuf) are not those of this project, which is why
it has an environment of its own. The job is ``flink_job.py``, run by that environment's Python:
Flink SQL from a topic to a topic, in one process with its JVM (Flink's local mode), with as many
slots as there are cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.contenders.jars import flink_connector
from benchmarks.settings import FOLDER, GC, ROOT
from benchmarks.stands.children import Child, MeasurementError
from onceforall.embedded.java import find_java

VERSION = "2.3.0"
_ENVIRONMENT = FOLDER / "flink" / f"venv-{VERSION}"
_INSTALL_DEADLINE_S = 1800.0
_HEAP = "-Xmx2g"


def python() -> Path:
    """Return the Python of Flink's environment, which is made first where it is missing.

    Raises:
        MeasurementError: the package can't be installed; the end of pip's output says why.
    """
    found = _ENVIRONMENT / "bin" / "python"
    ready = _ENVIRONMENT / "ready"
    if ready.exists():
        return found
    _ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(_ENVIRONMENT)],
        [str(found), "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}"],
    ]
    for command in commands:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_DEADLINE_S, check=False
        )
        if done.returncode:
            raise MeasurementError(
                f"apache-flink {VERSION} can't be installed (it needs Python 3.9 to 3.12): "
                f"{(done.stdout + done.stderr)[-1500:]}"
            )
    ready.touch()
    return found


def start(work: Path, checkpoint: Path, config: Mapping[str, Any]) -> Child:
    """Start the job.

    Args:
        work: its folder.
        checkpoint: where its checkpoints go; the newest complete one there is gone on from.
        config: see ``flink_job``.

    Raises:
        MeasurementError: Flink can't be installed.
    """
    command = [
        str(python()),
        str(ROOT / "benchmarks" / "contenders" / "flink_job.py"),
        "config.json",
    ]
    java_home = str(find_java().resolve().parents[1])
    settings = {**config, "checkpoints": str(checkpoint), "jar": flink_connector().as_uri()}
    environment = {
        "JAVA_HOME": java_home,
        "JVM_ARGS": f"{_HEAP} {GC}",
        "PYTHONPATH": "",
        "FLINK_LOG_DIR": str(work),
        "PATH": os.environ["PATH"],
    }
    return Child(command, work, settings, environment)
