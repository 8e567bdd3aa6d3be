"""A client of a Spark Connect server: rows 0, 1, 2, … from a source that replays exactly, to one or
several sinks, exactly once.

``python connect_program.py CONFIG.json``, with the keys of ``DEFAULTS``. It stops its query after
batch ``until_batch``, and leaves ``status.json`` in its work folder.
"""

import importlib
import sys
import threading
from functools import partial
from pathlib import Path

from support.driver_program import configured, follow, leave
from support.waiting import until

DEFAULTS = {
    "url": "",
    "work": "",
    "checkpoint": "",
    "named_checkpoint": "",
    "door": "write_stream",
    "sinks": ["files"],
    "files": "",
    "database": "",
    "password": "",
    "postgres": {},
    "bootstrap": "",
    "topic": "",
    "aggregate": False,
    "where": "true",
    "output_mode": "append",
    "transform": False,
    "splits": False,
    "until_batch": 2,
    "rows_per_batch": 20,
    "options": {},
    "spark": {},
    "trigger": {"processingTime": "100 milliseconds"},
    "holds_lock": False,
    "imports_from": "",
    "raises": "",
    "stop_file": "",
}


def sinks_of(config):
    import onceforall as ofa

    made = {}
    if "files" in config["sinks"]:
        made["files"] = ofa.FileSink(config["files"], format="json")
    if "postgres" in config["sinks"]:
        given = {"table": "public.written", "create_table": True, **config["postgres"]}
        if config["password"]:
            given["password"] = config["password"]
        made["postgres"] = ofa.PostgresSink(config["database"], **given)
    if "kafka" in config["sinks"]:
        servers = {"bootstrap.servers": config["bootstrap"]}
        made["kafka"] = ofa.KafkaSink(servers, topic=config["topic"])
    return made


def rows_of(config, spark):
    from pyspark.sql import functions as F

    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", config["rows_per_batch"])
        .option("numPartitions", 4)
        .load()
        .select("value")
        .where(config["where"])
    )
    if config["splits"]:
        rows = rows.withColumn("of_stream", F.expr(TOKEN))
    if config["aggregate"]:
        rows = rows.groupBy((F.col("value") % 10).alias("k")).agg(F.count("*").alias("n"))
    return rows


def for_kafka(frame):
    from pyspark.sql import functions as F

    return frame.select(F.col("value").cast("string").alias("value"))


def through_a_view(factor, frame):
    """By a view of one name in all transforms: each sink must get what it meant in its own."""
    from pyspark.sql import functions as F

    frame.select((F.col("value") * factor).alias("value")).createOrReplaceTempView("part")
    return frame.sparkSession.sql("SELECT value FROM part")


def failing(text):
    def fails(frame):
        raise ValueError(text)

    return fails


def transform_of(config, name):
    if name == "kafka":
        return for_kafka
    return partial(through_a_view, 2 if name == "postgres" else 1) if config["transform"] else None


def through_write_stream(config, rows):
    import onceforall as ofa

    writer = ofa.write_stream(rows).outputMode(config["output_mode"])
    for name, sink in sinks_of(config).items():
        transform = transform_of(config, name)
        if config["holds_lock"]:
            transform = partial(lambda _, frame: frame, threading.Lock())
        if config["imports_from"]:
            sys.path.insert(0, config["imports_from"])
            transform = importlib.import_module("onceforall_jobs").same
        if config["raises"]:
            transform = failing(config["raises"])
        writer.to(sink, name=name, transform=transform)
    for key, value in config["options"].items():
        writer.option(key, value)
    return (
        writer.option("checkpointLocation", config["checkpoint"])
        .queryName("connected")
        .trigger(**config["trigger"])
        .start()
    )


TOKEN = "reflect('java.util.UUID', 'randomUUID')"
"""A value that no computation gives again."""


def in_two_parts(batch):
    low, high = batch.where("of_stream < '8'"), batch.where("of_stream >= '8'")
    return low.select("value").unionByName(high.select("value"))


def by_a_statement(batch):
    batch.createOrReplaceTempView("batch")
    return batch.sparkSession.sql(
        "WITH t AS (SELECT * FROM batch) SELECT value FROM t WHERE of_stream < '8' "
        "UNION ALL SELECT value FROM t WHERE of_stream >= '8'"
    )


def with_a_look(batch):
    seen = batch.where("of_stream < '8'").select("value").collect()
    local = batch.sparkSession.createDataFrame([tuple(row) for row in seen], "value long")
    return local.unionByName(batch.where("of_stream >= '8'").select("value"))


def in_pairs(batch):
    """Each row with both halves, of which only one says yes, whatever the row was drawn as."""
    halves = batch.sparkSession.range(8, numPartitions=4).selectExpr(
        "id < 4 AS first", "id % 4 AS n"
    )
    pairs = batch.repartition(3).hint("shuffle_replicate_nl").crossJoin(halves)
    return pairs.where("n = 0 AND (of_stream < '8') = first").select("value")


IN_ONE_JOB = dict(enumerate((in_two_parts, by_a_statement, with_a_look, in_pairs), start=6))


def split_at_random(batch, batch_id, transaction):
    """Each row to one of two sinks, by such a value; each batch gives up its cache in another
    way, or has one job read the batch more than once."""
    from pyspark.sql import functions as F

    if batch_id in IN_ONE_JOB:
        transaction.write("files", IN_ONE_JOB[batch_id](batch))
        return

    session = batch.sparkSession

    def by_unpersist():
        drawn = batch.withColumn("token", F.expr(TOKEN)).persist()
        return drawn, drawn.unpersist

    def by_clearing():
        return batch.withColumn("token", F.expr(TOKEN)).persist(), session.catalog.clearCache

    def by_a_statement():
        drawn = batch.withColumn("token", F.expr(TOKEN)).persist()
        return drawn, lambda: session.sql("CLEAR CACHE")

    def by_the_tables_name():
        batch.withColumn("token", F.expr(TOKEN)).createOrReplaceTempView("drawn")
        session.catalog.cacheTable(tableName="drawn")
        return session.table("drawn"), lambda: session.catalog.uncacheTable("drawn")

    def by_dropping_its_view():
        batch.withColumn("token", F.expr(TOKEN)).createOrReplaceTempView("dropped")
        session.sql("CACHE TABLE dropped")
        return session.table("dropped"), lambda: session.catalog.dropTempView("dropped")

    def by_dropping_a_view_of_it():
        batch.withColumn("token", F.expr(TOKEN)).persist().createOrReplaceTempView("seen")
        return session.table("seen"), lambda: session.catalog.dropTempView(viewName="seen")

    def by_a_statement_that_drops_it():
        batch.withColumn("token", F.expr(TOKEN)).createOrReplaceTempView("gone")
        session.catalog.cacheTable("gone")
        return session.table("gone"), lambda: session.sql("DROP VIEW gone")

    def not_at_all():
        return batch.withColumn("token", F.col("of_stream")), lambda: None

    ways = [
        by_unpersist,
        by_clearing,
        by_a_statement,
        by_the_tables_name,
        by_dropping_its_view,
        by_dropping_a_view_of_it,
        by_a_statement_that_drops_it,
        not_at_all,
    ]
    drawn, give_up = ways[batch_id % len(ways)]()
    transaction.write("files", drawn.where("token < '8'").select("value"))
    there = drawn.where("token >= '8'").select("value")
    transaction.write("postgres", there if batch_id % 2 else there.persist())
    give_up()


def through_exactly_once(config, rows):
    import onceforall as ofa

    sinks = sinks_of(config)

    @ofa.exactly_once(config["named_checkpoint"] or config["checkpoint"], sinks=sinks)
    def write(batch, batch_id, transaction):
        if config["splits"]:
            split_at_random(batch, batch_id, transaction)
            return
        for name in sinks:
            transform = transform_of(config, name)
            transaction.write(name, batch if transform is None else transform(batch))

    writer = rows.writeStream.outputMode(config["output_mode"]).foreachBatch(write)
    for key, value in config["options"].items():
        writer = writer.option(key, value)
    return (
        writer.option("checkpointLocation", config["checkpoint"])
        .trigger(**config["trigger"])
        .start()
    )


def in_time(config, rows):
    """Start the query; Spark gives its child ten seconds to come up, which a busy machine
    doesn't keep."""
    for _ in range(4):
        try:
            if config["door"] == "write_stream":
                return through_write_stream(config, rows)
            return through_exactly_once(config, rows)
        except Exception as error:  # noqa: PERF203
            if "Python worker failed to connect back" not in str(error):
                raise
    raise AssertionError("Spark's child has not come up in four attempts")


def main():
    config = configured(DEFAULTS)
    from pyspark.sql import SparkSession

    import onceforall as ofa

    work = Path(config["work"])
    spark = SparkSession.builder.remote(config["url"]).getOrCreate()
    for key, value in config["spark"].items():
        spark.conf.set(key, value)
    rows = rows_of(config, spark)
    try:
        query = in_time(config, rows)
    except Exception as error:
        ours = ofa.error_of(error)
        leave(
            work / "status.json",
            {"at": "start", "error": str(ours), "raised": type(error).__name__,
             "class": type(ours).__name__, "batch": None},
        )  # fmt: skip
        return
    leave(work / "started.json", {"query": str(query.id), "run": str(query.runId)})
    if config["stop_file"]:
        until(Path(config["stop_file"]).exists, 120)
        query.stop()
    error = follow(query, config["until_batch"])
    ours = None
    if error is not None:
        try:
            ours = ofa.error_of(query)
        except Exception as unanswered:
            ours = unanswered
    leave(
        work / "status.json",
        {"at": "run", "error": error, "ours": str(ours), "class": type(ours).__name__,
         "batch": getattr(ours, "batch", None)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
