"""Spark's own daemon of Python workers, with what tasks import loaded before it forks them: a
third of a short life's CPU went into that."""

import importlib
import os

from pyspark import daemon

MODULES = [
    "pyarrow",
    "onceforall.task.write_task",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
]
SINKS = {
    "kafka": ["onceforall.sinks.kafka.task.writer", "confluent_kafka"],
    "files": ["onceforall.sinks.files.task.writer", "pyarrow.parquet"],
    "postgres": [
        "onceforall.sinks.postgres.task.staged",
        "onceforall.sinks.postgres.task.prepared",
    ],
}

if __name__ == "__main__":
    sinks = filter(None, os.environ.get("CHAOS_SINKS", "").split(","))
    for module in [*MODULES, *(each for sink in sinks for each in SINKS[sink])]:
        importlib.import_module(module)
    daemon.manager()
