"""A JVM that outlives drivers: a killed driver's successor makes a new Spark context in it, which
takes a fraction of a new JVM's time.

The driver's half that onceforall runs in is a Python process. In the matrix most kills are of that
half: the JVM lives on like the executors of a cluster, its tasks go on until the successor ends the
old context, and the successor finds classes loaded and compiled. Most of the column ``all`` and
most scenarios kill both halves.
"""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pyspark

from support import class_archive
from support.waiting import until

TESTS = Path(__file__).parents[1]
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Machine:
    """The JVM; ``environment`` is what a driver's process needs to find it."""

    def __init__(self, folder, sinks):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        said = folder / "gateway"
        said.unlink(missing_ok=True)
        command = [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            "--conf",
            f"spark.driver.extraJavaOptions={JAVA_OPTIONS} {class_archive.java_options()}",
            "--conf",
            "spark.driver.memory=1g",
            "pyspark-shell",
        ]
        environment = {
            **os.environ,
            "SPARK_CONNECT_MODE": "0",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(TESTS),
            "CHAOS_SINKS": ",".join(sinks),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(said),
            "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
        }
        with (folder / "jvm.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder
            )
        try:
            until(said.exists, 120, f"the JVM is up, see {folder / 'jvm.log'}")
            content = said.read_bytes()
        except BaseException:
            self.close()
            raise
        port, length = struct.unpack(">ii", content[:8])
        self.environment = {
            "PYSPARK_GATEWAY_PORT": str(port),
            "PYSPARK_GATEWAY_SECRET": content[8 : 8 + length].decode(),
        }

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


def end_what_was_left():
    """In a driver that found a JVM: end the queries and the context of the driver before."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    session = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession()
    if session.isDefined():
        for query in session.get().streams().active():
            query.stop()
    context = getattr(getattr(jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
    if context.isDefined():
        context.get().stop()
