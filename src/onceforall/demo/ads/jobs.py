"""The four jobs of ``examples/ad_events``: what each reads and writes, and how one is started as
a process of its own.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onceforall.demo.ads.generator import PARTITIONS
from onceforall.demo.ads.processes import ProgramProcess
from onceforall.errors import ConfigurationError

DATABASE_VARIABLE = "AD_EVENTS_DATABASE"
HEARTBEATS = "heartbeats"
JOBS = ("cleanse", "aggregate", "attribute", "load")
"""In the order in which events go through them."""
READS = {
    "cleanse": (HEARTBEATS,),
    "aggregate": ("views", "clicks"),
    "attribute": ("clicks", "orders-checked"),
    "load": ("spend", "attributed", "unmatched"),
}
"""The pipeline's own topics that each job reads; `cleanse` reads the shared topics of the
generator besides."""
LEDGER, DEAD_LETTERS, LATE = "ledger", "dead-letters", "late"
TOPICS = {
    HEARTBEATS: 1,
    **dict.fromkeys(
        ("views", "clicks", "orders-checked", "spend", "attributed", "unmatched", LEDGER), 2
    ),
    DEAD_LETTERS: 1,
    LATE: 1,
}
"""The pipeline's own topics, and how many partitions each has."""
ONCEFORALL, SPARK = "onceforall", "spark"
WRITERS = (ONCEFORALL, SPARK)


@dataclass(frozen=True)
class Place:
    """Where one writer's pipeline runs.

    Attributes:
        writer: ``onceforall`` or ``spark``.
        servers: the broker.
        database: URL of this writer's database, with its password.
        folder: checkpoints, files and temporary files.
        logs: the folder of the jobs' logs.
        jars: Spark's Kafka connector and the JDBC driver.
        max_offsets: how many records a batch has at most.
    """

    writer: str
    servers: str
    database: str = field(repr=False)
    folder: Path
    logs: Path
    jars: Sequence[Path]
    max_offsets: int

    def topic(self, name: str) -> str:
        """Return the full name of one of the pipeline's own topics."""
        return f"{self.writer}-{name}"

    def inputs(self, job: str) -> dict[str, int]:
        """Return the topics that a job reads, with their numbers of partitions."""
        own = {self.topic(name): TOPICS[name] for name in READS[job]}
        return {**own, **PARTITIONS} if job == "cleanse" else own

    def checkpoint(self, job: str) -> Path:
        """Return a job's checkpoint."""
        return self.folder / "checkpoints" / job

    def log(self, job: str) -> Path:
        """Return where a job's output goes."""
        return self.logs / f"{self.writer}-{job}.log"

    def start(self, job: str) -> ProgramProcess:
        """Start a job; it is the caller's to end."""
        examples = examples_folder()
        program = (
            examples / f"{job}.py"
            if self.writer == ONCEFORALL
            else Path(__file__).parent / "plain.py"
        )
        named = {
            "--servers": self.servers,
            "--prefix": self.topic(""),
            "--folder": str(self.folder),
            "--max-offsets": str(self.max_offsets),
        }
        arguments = list(itertools.chain.from_iterable(named.items()))
        if self.writer == SPARK:
            arguments = [str(examples), job, *arguments]
        work = self.folder / "work" / job
        (work / "tmp").mkdir(parents=True, exist_ok=True)
        environment = {**environment_of(work, self.jars), DATABASE_VARIABLE: self.database}
        return ProgramProcess(
            program, arguments, work_dir=work, log=self.log(job), environment=environment
        )


def examples_folder() -> Path:
    """Return the folder of the jobs: beside the package's source, or in the installed package.

    Raises:
        ConfigurationError: it is in neither place.
    """
    here = Path(__file__).resolve()
    for folder in (here.parent / "examples", here.parents[4] / "examples" / "ad_events"):
        if (folder / "cleanse.py").is_file():
            return folder
    raise ConfigurationError(
        "The jobs of the ads demo (examples/ad_events) are not in this installation. Run the "
        "command in a copy of the repository: make setup, "
        "then .venv/bin/onceforall demo ads."
    )


def environment_of(
    work: Path, jars: Sequence[Path], settings: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Return what a job has in its environment besides that of this process; None takes a name
    away.

    Args:
        work: the job's folder, with a folder ``tmp`` in it.
        jars: on the driver's class path.
        settings: Spark's, which win over those of the demo.
    """
    temporary = work / "tmp"
    configuration = {
        # Spark tries a task four times, as on a cluster: a killed worker is no failed query.
        "spark.master": "local[2,4]",
        # On the driver's own class path: spark.jars would copy and load them again at each start.
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "768m",
        # It lives for a minute or so, beside three others: the second compiler and many collector
        # threads would not pay.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-Djava.io.tmpdir={temporary}",
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.minBatchesToRetain": "100",
        "spark.sql.streaming.metricsEnabled": "false",
        **(settings or {}),
    }
    options = " ".join(
        shlex.quote(f"--conf={name}={value}") for name, value in configuration.items()
    )
    return {
        "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(temporary),
        # A user's settings for other programs would make this run differ from those of other users.
        "SPARK_CONF_DIR": str(work),
        "SPARK_REMOTE": None,
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
    }
