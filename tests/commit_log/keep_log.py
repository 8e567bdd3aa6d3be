"""Make the log of the present release that ``test_upgrade.py`` keeps for ever: ``python
tests/commit_log/keep_log.py log-<release>``.

A real query with two sinks on a real broker is started three times, and killed right behind a
decision. Its log is kept, with what binds it to its checkpoint, and with the rows of the batch in
doubt; except for what belongs to the machine: the places of checkpoint and log, and owner,
host and storage in the claims.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from onceforall.commit_log.envelope import decode, decode_fields, encode, encode_fields
from onceforall.embedded import EmbeddedKafka

FIXTURES = Path(__file__).parent / "fixtures"
CHECKPOINT, LOG = "/checkpoints/ads", "/volumes/ads-log"

DRIVER = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
import onceforall as ofa

servers, checkpoint, log, until = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2)
rows = source.option("startTimestamp", 1_700_000_000_000).load()
rows = rows.select((F.col("value") % 7).cast("string").alias("key"), F.col("value").cast("string").alias("value"))
sink = lambda topic: ofa.KafkaSink({"bootstrap.servers": servers}, topic=topic, transactional_id_prefix="ads")
writer = ofa.write_stream(rows).to(sink("one"), name="out").to(sink("two"), name="größe ✓")
writer = writer.option("checkpointLocation", checkpoint).option("onceforall.minBatchesToRetain", 1)
writer = writer.option("onceforall.commitLog", log).option("onceforall.redo", "durable")
query = writer.trigger(processingTime="100 milliseconds").start()
while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < until:
    query.awaitTermination(0.05)
query.stop()
spark.stop()
"""


def drive(servers, folder, until, failpoints=""):
    """Run a driver until it ends by itself or is killed."""
    environment = {
        **os.environ,
        "ONCEFORALL_FAILPOINTS": failpoints,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [
        sys.executable,
        "-c",
        DRIVER,
        servers,
        str(folder / "checkpoint"),
        str(folder / "log"),
        str(until),
    ]
    return subprocess.run(command, env=environment, check=False).returncode


def without_the_machine(entry, generation):
    """Rewrite a claim."""
    envelope = decode(entry.read_bytes(), where=str(entry), generation=generation, index=0)
    claim = replace(
        envelope.entry,
        checkpoint=CHECKPOINT,
        owner=f"ads@driver-1 pid {4711 + generation}",
        host="driver-1",
        boot_id="00000000-0000-4000-8000-000000000001",
        storage={"type": "ext4", "id": "0123456789abcdef", "folder": "4711"},
    )
    written_at = datetime.fromisoformat(envelope.written_at.replace("Z", "+00:00"))
    entry.chmod(0o644)
    entry.write_bytes(
        encode(claim, nonce=envelope.nonce, generation=generation, index=0, written_at=written_at)
    )


def without_places(file):
    """Rewrite what binds log and checkpoint."""
    fields = {
        name: value
        for name, value in decode_fields(file.read_bytes(), str(file)).items()
        if name != "checksum"
    }
    places = {
        name: place
        for name, place in (("checkpoint", CHECKPOINT), ("location", LOG))
        if name in fields
    }
    file.chmod(0o644)
    file.write_bytes(encode_fields({**fields, **places}))


def main(name):
    """Make the folder of this name; it must not exist."""
    kept = FIXTURES / name
    if kept.exists():
        sys.exit(f"{kept} exists; what is kept is never changed")
    with tempfile.TemporaryDirectory() as work, EmbeddedKafka() as broker:
        for topic in ("one", "two"):
            broker.create_topic(topic, partitions=1)
        folder = Path(work)
        drive(broker.bootstrap_servers, folder, 2)
        drive(broker.bootstrap_servers, folder, 4)
        killed = drive(broker.bootstrap_servers, folder, 100, "append_commit.after=kill@3")
        assert killed == -9, f"the third driver ended with {killed}"
        shutil.copytree(folder / "log", kept)
        shutil.copytree(folder / "checkpoint" / "onceforall" / "pointer", kept / "home" / "pointer")
    for claim in kept.glob("chains/*/00000000.json"):
        without_the_machine(claim, int(claim.parent.name))
    for file in (kept / "binding.json", kept / "home" / "pointer" / "00000000.json"):
        without_places(file)


if __name__ == "__main__":
    main(sys.argv[1])
