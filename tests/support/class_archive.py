"""An archive of Spark's classes, ready for use, for the many short-lived drivers of these tests:
half of their CPU went into loading classes.

Java's class data sharing; a JVM that the archive doesn't fit passes over it
(https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing1.html).
"""

import fcntl
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil

from support.waiting import until

FOLDER = Path(__file__).parents[2] / "build" / "tests"
TESTS = Path(__file__).parents[1]
PIPELINE = TESTS / "support" / "pipeline.py"


def java_options():
    """The options for a driver's JVM: with the archive, where there is one."""
    return (
        f"-XX:SharedArchiveFile={_file()} -Xlog:disable -Xlog:all=error:stderr"
        if _file().exists()
        else ""
    )


def make(folder):
    """Make the archive unless there is one, by a short run of a pipeline; several processes may
    ask at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _file().exists():
            return
        new = _file().with_suffix(".new")
        new.unlink(missing_ok=True)
        config = {
            "work": str(folder),
            "checkpoint": str(folder / "checkpoint"),
            "sinks": ["files"],
            "files": str(folder / "files"),
            "until_batch": 2,
            "java_options": f"-XX:ArchiveClassesAtExit={new} -Xlog:disable -Xlog:all=error:stderr",
        }
        (folder / "config.json").write_text(json.dumps(config))
        tests = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {
            **os.environ,
            "PYTHONPATH": tests,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (folder / "log.txt").open("wb") as log:
            command = [sys.executable, str(PIPELINE), str(folder / "config.json")]
            subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                timeout=200,
            )
        # The JVM writes it behind the end of its driver.
        jvm = json.loads((folder / "pids.json").read_text())["jvm"]
        until(lambda: not _is_java(jvm), 280, "the archive of classes")
        if new.exists():
            new.rename(_file())


def _file():
    return FOLDER / f"spark-{metadata.version('pyspark')}.jsa"


def _is_java(pid):
    try:
        process = psutil.Process(pid)
        return "java" in process.name() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
