"""One of the jobs with what people do without onceforall: ``foreachBatch`` with Spark's own
writers.

Run as ``python plain.py EXAMPLES JOB …``. Everything but the last step is the job's own: its rows,
and what goes to which destination.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onceforall.demo.writers import jdbc_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = (
    "CREATE TABLE ledger (kind text, record_id text, campaign_id text, happened timestamptz, "
    "impressions bigint, clicks bigint, "
    "spend_micros bigint, order_id text, status text, click_id text, advertiser text, "
    "amount_micros bigint, commission_micros bigint, "
    "day date, hour text)"
)
"""What `load` appends to. (onceforall makes its own.)"""

Write = Callable[["DataFrame"], None]


def main() -> None:
    """Run the job until SIGTERM."""
    _, examples, name, *arguments = sys.argv
    sys.argv = [name, *arguments]
    # In place of the folder of this file.
    sys.path[0] = examples
    pipeline: Any = importlib.import_module("pipeline")
    job: Any = importlib.import_module(name)
    asked = pipeline.asked_to_end()
    place = pipeline.place_of_arguments(name)

    spark = pipeline.session(f"plain-{name}")
    writes = _writes(name, job, pipeline, place)

    def write(batch: DataFrame, _: int) -> None:
        batch.persist()
        try:
            for each in writes:
                each(batch)
        finally:
            batch.unpersist()

    rows = job.rows(spark, place).writeStream.foreachBatch(write).queryName(name)
    located = rows.option("checkpointLocation", f"{place.folder}/checkpoints/{name}")
    pipeline.stay(located.trigger(processingTime=pipeline.EVERY).start(), asked)
    spark.stop()


def _writes(name: str, job: Any, pipeline: Any, place: Any) -> list[Write]:
    """Return what is done with each batch, in this order."""

    def to_kafka(records: DataFrame) -> None:
        records.write.format("kafka").option("kafka.bootstrap.servers", place.servers).save()

    def to_topic(topic: str, key: str) -> Write:
        from pyspark.sql import functions as f

        return lambda batch: to_kafka(
            pipeline.as_records(batch, key=key, topic=f.lit(place.topic(topic)))
        )

    def to_files(batch: DataFrame) -> None:
        batch.write.mode("append").partitionBy("day", "hour").parquet(f"{place.folder}/ledger")

    def to_table(batch: DataFrame) -> None:
        batch.write.mode("append").format("jdbc").options(**jdbc_options(place.database)).option(
            "dbtable", "ledger"
        ).save()

    known: dict[str, list[Write]] = {
        "cleanse": [
            lambda batch: to_kafka(job.checked(batch, place)),
            lambda batch: to_kafka(job.put_aside(batch, place)),
        ],
        "aggregate": [to_topic("spend", "campaign_id")],
        "attribute": [lambda batch: to_kafka(job.by_status(batch, place))],
        "load": [to_topic("ledger", "record_id"), to_files, to_table],
    }
    return known[name]


if __name__ == "__main__":
    main()
