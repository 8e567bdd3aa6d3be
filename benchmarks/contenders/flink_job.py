"""The Flink job: one topic to another, raw values, exactly-once. Run by the Python of Flink's own
environment; see ``flink``.

``python flink_job.py config.json`` with ``bootstrap``, ``source``, ``target``, ``starting``,
``interval_ms`` (of checkpoints), ``guarantee``, ``consumer`` and ``producer`` (the Java clients'
settings), ``cores``, ``checkpoints`` (a folder) and ``jar``. It runs until it is killed.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from pyflink.common import Configuration  # type: ignore[import-not-found]
from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]


def main() -> None:
    """Run the job."""
    config = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    settings = Configuration()
    for name, value in options(config).items():
        settings.set_string(name, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    )
    tables.execute_sql(
        table("source", config["source"], config, "consumer", source_options(config))
    )
    tables.execute_sql(
        table("target", config["target"], config, "producer", target_options(config))
    )
    result = tables.execute_sql("INSERT INTO target SELECT `value` FROM source")
    pathlib.Path("ready.json").write_text("{}", encoding="utf-8")
    result.wait()


def options(config: dict[str, Any]) -> dict[str, str]:
    """Return the settings of Flink."""
    found = {
        "pipeline.jars": config["jar"],
        "parallelism.default": str(config["cores"]),
        "pipeline.object-reuse": "true",
        "execution.checkpointing.interval": f"{config['interval_ms']} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": pathlib.Path(config["checkpoints"]).as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "state.backend.type": "hashmap",
        "taskmanager.numberOfTaskSlots": str(config["cores"]),
        "rest.port": "0",
        "rest.bind-port": "0",
    }
    newest = newest_checkpoint(pathlib.Path(config["checkpoints"]))
    if newest is not None:
        found["execution.state-recovery.path"] = newest.as_uri()
    return found


def newest_checkpoint(folder: pathlib.Path) -> pathlib.Path | None:
    """Return the newest complete checkpoint, or None."""
    complete = [file.parent for file in folder.glob("*/chk-*/_metadata")]
    return max(complete, key=lambda each: each.stat().st_mtime, default=None)


def source_options(config: dict[str, Any]) -> dict[str, str]:
    """Return what only the source has."""
    return {
        "properties.group.id": "bench",
        "scan.startup.mode": {"earliest": "earliest-offset", "latest": "latest-offset"}[
            config["starting"]
        ],
    }


def target_options(config: dict[str, Any]) -> dict[str, str]:
    """Return what only the sink has."""
    exact = {
        "sink.transactional-id-prefix": f"bench-{config['target']}",
        "properties.transaction.timeout.ms": "600000",
    }
    return {
        "sink.delivery-guarantee": config["guarantee"],
        **(exact if config["guarantee"] == "exactly-once" else {}),
    }


def table(name: str, topic: str, config: dict[str, Any], client: str, more: dict[str, str]) -> str:
    """Return the statement that makes a table of a topic."""
    found = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": config["bootstrap"],
        "format": "raw",
        **{f"properties.{key}": value for key, value in config[client].items()},
        **more,
    }
    said = ", ".join(f"'{key}' = '{value}'" for key, value in found.items())
    return f"CREATE TABLE {name} (`value` BYTES) WITH ({said})"


if __name__ == "__main__":
    main()
