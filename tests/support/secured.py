"""A driver process whose sink has a planted password, and that logs all it can: what it leaves is
searched for the password.

``python secured.py``, with its configuration (``DEFAULTS``) as JSON on standard input, so that no
file and no command line has it.
"""

import json
import logging
import os
import pickle
import sys
from pathlib import Path

DEFAULTS = {"work": "", "topic": "", "options": {}, "wrong_password": "", "prefix": ""}


def main():
    config = {**DEFAULTS, **json.loads(sys.stdin.read())}
    work = Path(config["work"])
    logger = logging.getLogger("secured")
    logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import cloudpickle
    from pyspark.sql import functions as F
    from small_spark import small_spark

    import onceforall as ofa

    (work / "events").mkdir()
    settings = {
        "spark.local.dir": str(work / "local"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (work / "events").as_uri(),
    }
    spark = small_spark(settings=settings).getOrCreate()
    spark.sparkContext.setLogLevel("INFO")

    def run(options, checkpoint):
        rows = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 10)
            .option("numPartitions", 2)
            .load()
        )
        out = rows.select(F.col("value").cast("string").alias("value"))
        sink = ofa.KafkaSink(
            options, topic=config["topic"], transactional_id_prefix=config["prefix"]
        )
        (work / f"{checkpoint}.pickle").write_bytes(pickle.dumps(sink) + cloudpickle.dumps(sink))
        writer = (
            ofa.write_stream(out)
            .to(sink, name="out")
            .option("checkpointLocation", str(work / checkpoint))
        )
        logger.info("%r %s %r", sink, sink, writer)
        query = writer.trigger(processingTime="100 milliseconds").start()
        while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < 2):
            query.awaitTermination(1)
        logger.info("progress %s, status %s", query.lastProgress, query.status)
        query.stop()
        logger.info("exception %s", query.exception())
        return query.lastProgress["batchId"]

    done = run(config["options"], "good")
    try:
        run({**config["options"], "sasl.password": config["wrong_password"]}, "bad")
    except ofa.OnceForAllError as error:
        logger.exception("as expected")
        refused = str(error)
    left = [
        str(path) for path in (work / "local").rglob("*") if path.is_file() and holds(path, config)
    ]
    spark.stop()
    (work / "status.json").write_text(
        json.dumps({"batches": done + 1, "refused": refused, "left": left})
    )


def holds(path, config):
    data = path.read_bytes()
    return any(
        secret.encode() in data
        for secret in (config["options"]["sasl.password"], config["wrong_password"])
    )


if __name__ == "__main__":
    main()
