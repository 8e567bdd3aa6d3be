"""A query that writes to S3 with a session's own keys, and is read by Spark. In a process of its
own: ``spark.jars`` is read when the JVM starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sinks.files_s3.place import prefix_on

PROGRAM = """
import json, sys
import onceforall as ofa
from onceforall.embedded import s3a_jars
from support.small_spark import small_spark

folder, url, settings, storage = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
settings["spark.jars"] = ",".join(str(jar) for jar in s3a_jars())
spark = small_spark("local[2]", settings=settings).getOrCreate()

def run():
    rows = spark.readStream.schema("n BIGINT, day STRING").json(folder + "/input")
    query = (
        ofa.write_stream(rows)
        .to(ofa.FileSink(url, partition_by=["day"]))
        .option("checkpointLocation", folder + "/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None, query.exception()

run()
with open(folder + "/input/two.json", "w") as file:
    file.write('{"n": 2, "day": "b"}')
run()
files = ofa.read_files(url, storage=storage)
frame = files.to_spark(spark)
print(json.dumps({
    "spark": sorted([row.n, row.day] for row in frame.collect()),
    "arrow": sorted(files.to_arrow().column("n").to_pylist()),
    "batches": len(files.batches),
}))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.timeout(400)
@pytest.mark.long
def test_a_query_writes_with_the_sessions_own_keys_and_spark_reads_what_is_committed(
    s3_server, s3_bucket, tmp_path
):
    place = prefix_on(s3_server, s3_bucket)
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "one.json").write_text('{"n": 0, "day": "a"}\n{"n": 1, "day": "ü/*"}')
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(tmp_path),
        place.url,
        json.dumps(s3_server.spark_settings()),
        json.dumps(place.storage),
    ]
    tests = str(Path(__file__).parents[2])
    # No keys in the environment: the tasks have them from the session, by the driver.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    done = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": tests, "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "can't be compared" not in done.stderr, "a start compares columns with the same keys"
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"spark": [[0, "a"], [1, "ü/*"], [2, "b"]], "arrow": [0, 1, 2], "batches": 2}
    assert place.left() == []
    assert s3_server.secret_key not in "".join(
        path.read_text(errors="replace")
        for path in (tmp_path / "checkpoint").rglob("*")
        if path.is_file()
    )
