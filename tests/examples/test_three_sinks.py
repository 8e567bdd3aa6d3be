"""The example with three sinks of docs/start.md, as it stands there: several batches, a kill -9
in between, and each sum is that of the input."""

import json
import os
import re
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

import onceforall as ofa
from onceforall.demo.ads.processes import ProgramProcess
from onceforall.embedded import spark_kafka_jars
from support.reading import read_all, released

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

ROOT = Path(__file__).parents[2]
BEFORE = """
import sys
from pyspark.sql import SparkSession
import onceforall as ofa
spark = SparkSession.builder.getOrCreate()
schema = "campaign_id STRING, spend DECIMAL(10, 2), day STRING, value STRING"
events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(sys.argv[1])
"""
AFTER = """
query.processAllAvailable()
query.stop()
"""


def example():
    """The block of the page that has all three sinks."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$",
        (ROOT / "docs" / "start.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    [found] = [block for block in blocks if "PostgresSink" in block and ".start()" in block]
    return found


def make_input(folder, batches=5, rows=40):
    """Files of events, one per batch; returns the events."""
    folder.mkdir()
    events = []
    for batch in range(batches):
        made = [
            {
                "campaign_id": f"c{n % 3}",
                "spend": f"{n}.{batch}5",
                "day": f"2026-01-0{1 + n % 2}",
                "value": f"{batch}-{n}",
            }
            for n in range(rows)
        ]
        path = folder / f"{batch}.json"
        path.write_text("".join(json.dumps(event) + "\n" for event in made))
        os.utime(path, (1_700_000_000 + batch,) * 2)
        events += made
    return events


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_sums_in_the_table_are_those_of_the_input(broker, topic, database, tmp_path):
    events = make_input(tmp_path / "input")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE spend (campaign_id text PRIMARY KEY, spend numeric(20, 2), clicks bigint)"
        )
    attributed = topic(partitions=2)
    code = example()
    for written, real in {
        "broker:9092": broker.bootstrap_servers,
        'topic="attributed"': f'topic="{attributed}"',
        "/lake/attributed": str(tmp_path / "lake"),
        "postgresql://ads@db/ads": database,
        "/checkpoints/ads": str(tmp_path / "checkpoint"),
    }.items():
        assert code.count(written) == 1
        code = code.replace(written, real)
    program = tmp_path / "program.py"
    program.write_text(BEFORE + code + AFTER)
    jars = ",".join(map(str, spark_kafka_jars()))
    environment = {
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false --conf "
        f"spark.sql.shuffle.partitions=2 --jars {jars} pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }
    # Behind the merge of a batch; then a run that ends.
    for armed, ends in (("postgres.commit.after=kill@2", -9), ("", 0)):
        life = ProgramProcess(
            program,
            [str(tmp_path / "input")],
            work_dir=tmp_path,
            log=tmp_path / "log",
            environment={**environment, "ONCEFORALL_FAILPOINTS": armed},
        )
        try:
            assert life.wait(120), life.last_words()
            assert life.return_code == ends, life.last_words()
        finally:
            life.kill()

    truth = {}
    for event in events:
        spend, clicks = truth.get(event["campaign_id"], (Decimal(0), 0))
        truth[event["campaign_id"]] = spend + Decimal(event["spend"]), clicks + 1
    with psycopg.connect(database) as connection:
        table = {
            campaign: (spend, clicks)
            for campaign, spend, clicks in connection.execute("SELECT * FROM spend").fetchall()
        }
    assert table == truth
    assert sum(clicks for _, clicks in table.values()) == len(events) == 200
    values = Counter(event["value"] for event in events)
    released(broker.bootstrap_servers, attributed)
    assert (
        Counter(
            message.value().decode() for message in read_all(broker.bootstrap_servers, attributed)
        )
        == values
    )
    assert (
        Counter(ofa.read_files(str(tmp_path / "lake")).to_arrow().column("value").to_pylist())
        == values
    )
