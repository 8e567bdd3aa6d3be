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


def follow(query, until_batch):
    """Stop a query behind a batch, and return why it failed, or None."""
    try:
        while query.isActive:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] >= until_batch:
                query.stop()
                break
            time.sleep(0.02)
        # A stop is known to be asked for before its error is known.
        query.awaitTermination(60)
        return None if query.exception() is None else str(query.exception())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
