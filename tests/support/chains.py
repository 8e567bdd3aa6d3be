"""Programs of an example, run as a user runs them."""

from __future__ import annotations

import sys

from onceforall.demo.ads.processes import ProgramProcess


def run_program(program, arguments, work_dir, *, armed="", ends=0, jars="", **environment):
    """Run a program to its end, and check how it ends.

    Args:
        program: the path of its file.
        arguments: its arguments.
        work_dir: where its files go.
        armed: failpoints.
        ends: the exit status that it must have.
        jars: Spark's option of this name.
        environment: more of it.
    """
    more = f"--jars {jars} " if jars else ""
    life = ProgramProcess(
        program,
        arguments,
        work_dir=work_dir,
        log=work_dir / "log",
        environment={
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] {more}--conf spark.ui.enabled=false --conf "
            "spark.sql.shuffle.partitions=2 pyspark-shell",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "ONCEFORALL_FAILPOINTS": armed,
            **environment,
        },
    )
    try:
        assert life.wait(240), life.last_words()
        assert life.return_code == ends, life.last_words()
    finally:
        life.kill()
