"""What the programs of a driver process have in common: their configuration, the files they
leave, and their end behind a batch."""

import json
import logging
import sys
import time
from pathlib import Path


def configured(defaults=()):
    """Return the configuration that the command line names, and log as all of them do."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return {**dict(defaults), **json.loads(Path(sys.argv[1]).read_text())}


def leave(path, value):
    """Leave a JSON file: whole, or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.rename(path)


def jvm_of(spark):
    """Return the process id of a session's JVM."""
    return spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()


INTERRUPTED = "Failed to shutdown streamer"
"""What HDFS's client says where a stop interrupts Spark in a write to its checkpoint. Spark takes it
for a failure of the query; docs/stopping.md says so."""


def follow(query, until_batch):
    """Stop a query behind a batch, and return why it failed, or None."""
    stopped = False
    try:
        while query.isActive:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] >= until_batch:
                stopped = True
                query.stop()
                break
            time.sleep(0.02)
        # A stop is known to be asked for before its error is known.
        query.awaitTermination(60)
        error = None if query.exception() is None else str(query.exception())
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return None if stopped and INTERRUPTED in (error or "") else error
