"""A grammar of pipelines: from a seed it draws a source, an operator, one to three sinks with their
modes, options of onceforall and settings of Spark, as somebody in production might have them.

``draw`` gives what a ``World`` is made of. What can't go together is never drawn: a folder of files
takes the output mode append only, PostgreSQL an update only with a key, the mode ``upsert`` only
with a key, and the output mode complete only ``staged``.
"""

from dataclasses import dataclass

ROWS_PER_BATCH = (120, 900, 3000)
"""A third of the rows may be filtered out, and a batch has rows of each key in each task."""

OPERATORS = ("none", "none", "filter", "deduplicate", "count", "complete", "repartition")
SINKS_OF = {"count": ("kafka", "postgres"), "complete": ("kafka", "postgres")}
ALL_SINKS = ("kafka", "files", "postgres")
MODES_OF = {
    "count": ("staged", "prepared", "upsert"),
    "complete": ("staged",),
}
ALL_MODES = ("staged", "staged", "prepared", "upsert")
FORMATS = ("json", "parquet", "orc")
STATEFUL = ("deduplicate", "count", "complete")

MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_STATE = "spark.sql.streaming.stateStore"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Pipeline:
    """What was drawn.

    Attributes:
        config: of the world.
        said: the same in words, for the log.
    """

    config: dict
    said: str


def draw(rng):
    """Draw a pipeline."""
    operator = rng.choice(OPERATORS)
    may = SINKS_OF.get(operator, ALL_SINKS)
    sinks = rng.sample(may, rng.randint(1, len(may)))
    config = {
        "operator": operator,
        "sinks": sinks,
        "trigger": rng.choice(["0 seconds", "100 milliseconds", "500 milliseconds"]),
        "partitioned": rng.random() < 0.3,
        "options": _options(rng),
        "spark": {**_spark(rng), **(_state(rng) if operator in STATEFUL else {})},
        "daemon": rng.choice(["onceforall.worker_daemon", "pyspark.daemon"]),
        **_source(rng),
    }
    if rng.random() < 0.3:
        # A chain has four entries for each batch that is kept, or more.
        config["roll_after_entries"] = rng.choice([6, 12])
        config["options"]["onceforall.minBatchesToRetain"] = "1"
    if "kafka" in sinks:
        config["sink_options"] = _kafka_options(rng)
    if "files" in sinks:
        partition_by = rng.choice([{"partition_by": ["key"]}, {"partition_by": ["key", "flag"]}])
        config["files_arguments"] = {
            "format": rng.choice(FORMATS),
            **(partition_by if rng.random() < 0.5 else {"partition_by": []}),
        }
    if "postgres" in sinks:
        mode = rng.choice(MODES_OF.get(operator, ALL_MODES))
        # Each running count is a row of its own, in all modes.
        needs_key = mode == "upsert" or operator == "count"
        has_key = needs_key or (operator != "complete" and rng.random() < 0.3)
        config["postgres"] = {"mode": mode, **({"key": ["value"]} if has_key else {})}
        if mode == "prepared":
            config["spark"].pop("spark.speculation", None)  # refused at the start
    return Pipeline(config, _said(config))


def _source(rng):
    if rng.random() < 0.4:
        counts = [rng.randint(1, 4) for _ in range(rng.randint(1, 2))]
        # Spark gives the topics one after the other, and each partition to a task.
        return {"source": {"partitions": counts, "rows_per_task": rng.choice([60, 150])}}
    return {"rows_per_batch": rng.choice(ROWS_PER_BATCH)}


def _options(rng):
    return _some(
        rng,
        {
            "onceforall.redo": ["auto", "replay", "durable"],
            "onceforall.onDivergence": ["warn", "fail"],
            "onceforall.minBatchesToRetain": ["1", "2", "10", "100"],
            "onceforall.decisionReserveMs": ["100", "30000"],
            "onceforall.commitLog": ["{folder}/log"],
        },
    )


def _spark(rng):
    """Settings of any query; those that are not drawn are Spark's own, but for the campaign's
    number of shuffle partitions."""
    return _some(
        rng,
        {
            "spark.sql.adaptive.enabled": ["false"],
            "spark.sql.adaptive.coalescePartitions.minPartitionSize": ["1b"],
            "spark.sql.shuffle.partitions": ["1", "3", "5"],
            "spark.sql.streaming.minBatchesToRetain": ["2", "10"],
            "spark.sql.execution.arrow.maxRecordsPerBatch": ["50", "1000"],
            "spark.python.worker.reuse": ["false"],
            "spark.sql.codegen.wholeStage": ["false"],
            "spark.sql.ansi.enabled": ["false"],
            "spark.sql.session.timeZone": ["Asia/Kolkata", "America/St_Johns"],
            "spark.speculation": ["true"],
            "spark.sql.streaming.checkpointFileManagerClass": [MANAGER],
        },
    )


def _state(rng):
    """Settings of a state store."""
    if rng.random() < 0.4:
        return _some(rng, {f"{_STATE}.maintenanceInterval": ["1s"]})
    rocksdb = {
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": ["true", "true", "false"],
        f"{_STATE}.maintenanceInterval": ["1s", "30s"],
        f"{_STATE}.minDeltasForSnapshot": ["2", "10"],
        f"{_STATE}.checkpointFormatVersion": ["2"],
    }
    return {f"{_STATE}.providerClass": _ROCKSDB, **_some(rng, rocksdb, share=0.6)}


def _kafka_options(rng):
    return _some(
        rng,
        {
            "linger.ms": [0, 50],
            "compression.type": ["lz4", "zstd", "gzip"],
            "batch.size": [1000, 1_000_000],
            "max.in.flight": [1, 5],
            "queue.buffering.max.messages": [1000],
        },
    )


def _some(rng, choices, share=0.3):
    """Some of these settings, each with one of its values."""
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < share}


def _said(config):
    parts = [
        f"from {config['source'] if 'source' in config else config['rows_per_batch']}",
        config["operator"],
        "to " + ", ".join(config["sinks"]),
    ]
    rest = {
        name: value
        for name, value in config.items()
        if name not in {"operator", "sinks", "source", "rows_per_batch"} and value
    }
    return "; ".join([*parts, *(f"{name} {value}" for name, value in rest.items())])
