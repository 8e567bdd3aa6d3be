"""Counts the requests that a batch sends to S3 for its checkpoint: Spark's own alone, and with
onceforall's commit log; writes ``docs/store-costs.md``.

``PYTHONPATH=tests:. python -m benchmarks.stores.requests`` (``make store-costs``). Each query runs
alone, on moto behind a counting proxy, and the requests between the plans of two of its batches are
counted: a figure that doesn't depend on how fast or busy the machine is. What they cost is a matter
of the price list given on the command line.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidence.digests import ROOT, stores_digest
from onceforall.embedded import EmbeddedS3, s3a_jars
from support.http_faults import HttpProxy, Request

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = ROOT / "docs" / "store-costs.md"
FIRST, LAST = 5, 20
"""The batches between whose plans requests are counted."""

MANAGERS = {
    "default": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileContextBasedCheckpointFileManager",
    "file system": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WRITERS = ("Spark alone", "Hadoop's client", "obstore")
_DEAR = {"put", "create", "copy", "list"}
_FREE = {"delete"}


@dataclass(frozen=True)
class Case:
    """One query.

    Attributes:
        writer: one of ``WRITERS``.
        manager: one of ``MANAGERS``.
        stateful: whether it counts, with RocksDB.
    """

    writer: str
    manager: str
    stateful: bool


@dataclass(frozen=True)
class Cost:
    """Requests per batch, by kind: of Spark's own files, and of the commit log."""

    sparks: Counter[str]
    ours: Counter[str]

    def dollars(self, dear: float, cheap: float) -> float:
        """What a million batches cost.

        Args:
            dear: dollars for a thousand PUT, COPY and LIST requests.
            cheap: the same for GET, HEAD and all others; deletions are free.
        """
        both = self.sparks + self.ours
        return sum(
            count * 1000 * (0.0 if kind in _FREE else dear if kind in _DEAR else cheap)
            for kind, count in both.items()
        )


def main() -> None:
    """Run all cases, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dear", type=float, default=0.005, help="$ per 1,000 PUT, COPY, LIST")
    parser.add_argument("--cheap", type=float, default=0.0004, help="$ per 1,000 GET, HEAD")
    given = parser.parse_args()
    cases = [
        Case(writer, manager, stateful)
        for stateful in (False, True)
        for manager in MANAGERS
        for writer in WRITERS
    ]
    found: dict[Case, Cost] = {}
    with (
        tempfile.TemporaryDirectory() as work,
        EmbeddedS3() as server,
        HttpProxy(server.port) as proxy,
    ):
        spark = _session(server, proxy, Path(work))
        for case in cases:
            found[case] = _measured(spark, case, server, proxy, Path(work))
            print(case, dict(found[case].sparks), dict(found[case].ours), flush=True)
        version = spark.version
        spark.stop()
    PAGE.write_text(_page(found, given.dear, given.cheap, version))
    print(PAGE)


def _session(server: EmbeddedS3, proxy: Any, work: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(map(str, s3a_jars())),
        **server.spark_settings(),
        "spark.hadoop.fs.s3a.endpoint": proxy.endpoint,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(work / "spark"),
    }
    builder: Any = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _measured(spark: SparkSession, case: Case, server: EmbeddedS3, proxy: Any, work: Path) -> Cost:
    import onceforall

    bucket = f"costs-{uuid.uuid4().hex[:8]}"
    server.create_bucket(bucket)
    checkpoint = f"s3a://{bucket}/checkpoint"
    spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", MANAGERS[case.manager])
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    # In format 1 the manager with half the requests is no good for state (docs/stores.md).
    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    rows = _rows(spark, stateful=case.stateful)
    proxy.forget()
    if case.writer == "Spark alone":
        writer: Any = rows.writeStream.foreachBatch(_counted)
    else:
        folder = work / uuid.uuid4().hex
        client = "hadoop" if case.writer == "Hadoop's client" else "obstore"
        writer = (
            onceforall.write_stream(rows)
            .to(onceforall.FileSink(str(folder), format="json"))
            .option("onceforall.store.client", client)
        )
    query = (
        writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
    )
    try:
        while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] <= LAST:
            time.sleep(0.1)
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
    finally:
        query.stop()
    return _cost(proxy.requests())


def _rows(spark: SparkSession, *, stateful: bool) -> DataFrame:
    from pyspark.sql import functions as f

    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 20)
        .option("numPartitions", 2)
        .option("startTimestamp", 1_700_000_000_000)
        .option("advanceMillisPerBatch", 60_000)
        .load()
    )
    if not stateful:
        return rows.select(f.col("value").cast("string").alias("value"))
    windows = rows.withWatermark("timestamp", "0 seconds").groupBy(
        f.window("timestamp", "1 minute")
    )
    return windows.count().select(f.col("count").cast("string").alias("value"))


def _counted(batch: DataFrame, _: int) -> None:
    batch.count()


def _cost(requests: Sequence[Request]) -> Cost:
    def plan_of(batch: int) -> int:
        return next(
            number
            for number, request in enumerate(requests)
            if re.search(rf"/offsets/\.?{batch}(\D|$)", request.key) and request.method == "PUT"
        )

    between = requests[plan_of(FIRST) : plan_of(LAST)]
    batches = LAST - FIRST
    ours: Counter[str] = Counter()
    sparks: Counter[str] = Counter()
    for request in between:
        (ours if _is_ours(request) else sparks)[request.kind] += 1
    assert sparks, "the proxy saw no request of Spark's"
    return Cost(*(_each(counted, batches) for counted in (sparks, ours)))


def _is_ours(request: Request) -> bool:
    return "/onceforall" in request.key or "onceforall" in request.target.partition("?")[2]


def _each(counted: Counter[str], batches: int) -> Counter[str]:
    each: Any = {kind: round(count / batches, 1) for kind, count in counted.items()}
    return Counter({kind: count for kind, count in each.items() if count})


_TEMPLATE = """\
# What a checkpoint on S3 costs

onceforall adds two PUTs to a batch: the decision, for which the batch waits, and its DONE, for
which it doesn't ([stores.md](stores.md)). The rest is what Spark's own files need without it, too.

| query | checkpoint manager | log written by | requests for Spark's files | for the log | $ |
|---|---|---|---|---|---|
{rows}

Requests per batch, and dollars per million batches. Counted between the plans of batches {first}
and {last}, with pyspark {version} and two tasks, on moto behind a proxy; not on Amazon S3. What
the network loses is sent again, and counts again.

Prices: ${dear:g} for a thousand PUT, COPY and LIST requests, ${cheap:g} for all others, deletions
free. Storage and traffic are not in it. `make store-costs` measures again; its program takes your
prices (`--dear`, `--cheap`).

Measured code: `{digest}`.
"""


def _page(found: dict[Case, Cost], dear: float, cheap: float, version: str) -> str:
    rows = []
    for case, cost in found.items():
        row = [
            "stateful, RocksDB, format 2" if case.stateful else "stateless",
            MANAGERS[case.manager].rpartition(".")[2],
            "none: Spark alone" if case.writer == WRITERS[0] else case.writer,
            _told(cost.sparks),
            _told(cost.ours),
            f"{cost.dollars(dear, cheap):,.0f}",
        ]
        rows.append(f"| {' | '.join(row)} |")
    return _TEMPLATE.format(
        rows="\n".join(rows),
        first=FIRST,
        last=LAST,
        version=version,
        dear=dear,
        cheap=cheap,
        digest=stores_digest(),
    )


def _told(counted: Counter[str]) -> str:
    total = sum(counted.values())
    if not total:
        return "0"
    kinds = ", ".join(
        f"{count:g} {kind}" for kind, count in sorted(counted.items(), key=lambda each: -each[1])
    )
    return f"{total:.1f} ({kinds})"


if __name__ == "__main__":
    main()
