"""A driver program for a supervisor: it runs one query, and ends with an exit code that says
whether a restart helps.

``job.py FOLDER [--once]``: numbers, ten a second, into Parquet files in FOLDER/out, with the
checkpoint in FOLDER/checkpoint. Driver and executors must see FOLDER (HDFS, S3, a shared disk).
"""

from __future__ import annotations

import argparse
import sys
import traceback

from pyspark.sql import SparkSession

import onceforall as ofa


def main() -> int:
    """Run the query until it is stopped; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--once", action="store_true", help="take what is there, and end")
    given = parser.parse_args()
    try:
        spark = SparkSession.builder.appName("numbers").getOrCreate()
        numbers = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        trigger = {"availableNow": True} if given.once else {"processingTime": "5 seconds"}
        query = (
            ofa.write_stream(numbers)
            .to(ofa.FileSink(f"{given.folder}/out", format="parquet"))
            .queryName("numbers")
            .option("checkpointLocation", f"{given.folder}/checkpoint")
            .trigger(**trigger)
            .start()
        )
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001  whatever it is, the supervisor wants a code
        traceback.print_exc()
        return ofa.exit_code(error)
    return ofa.ExitCode.ENDED


if __name__ == "__main__":
    sys.exit(main())
