"""A Spark program with ``onceforall.worker_daemon``: what its workers see, and an exactly-once
query into files. Prints JSON."""

import json
import os
import sys
from pathlib import Path

from small_spark import small_spark

import onceforall as ofa


def looked(batches):
    # Before the batches, and whatever else loads modules.
    import sys

    loaded = {
        name: name in sys.modules
        for name in ("onceforall.task.write_task", "onceforall.sinks.kafka", "confluent_kafka")
    }
    import os
    from pathlib import Path

    import pyspark

    from onceforall.task.write_task import text_batch

    for _ in batches:
        pass
    parent = Path("/proc") / str(os.getppid())
    threads = next(
        line for line in (parent / "status").read_text().splitlines() if line.startswith("Threads:")
    )
    seen = {
        "pyspark": pyspark.__file__,
        "loaded": loaded,
        "threads of the daemon": int(threads.split()[1]),
        "daemon": (parent / "cmdline").read_text().split("\0"),
    }
    import json

    yield text_batch("result", [json.dumps(seen)])


work = Path(sys.argv[1])
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = small_spark(
    settings={"spark.python.daemon.module": "onceforall.worker_daemon"}
).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
workers = [
    json.loads(row["result"])
    for row in spark.range(0, 2, 1, 2).mapInArrow(looked, "result string").collect()
]
spark.range(1000).write.parquet(str(work / "in"))
rows = spark.readStream.schema("id long").parquet(str(work / "in"))
query = (
    ofa.write_stream(rows)
    .to(ofa.FileSink(str(work / "out")))
    .option("checkpointLocation", str(work / "checkpoint"))
)
query.trigger(availableNow=True).start().awaitTermination()
found = {
    "workers": workers,
    "rows": spark.read.parquet(*ofa.read_files(work / "out").paths).count(),
}
sys.stdout.write(json.dumps(found) + "\n")
spark.stop()
