"""The first example of the README, as a user runs it, with a kill -9 in between."""

import json
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from confluent_kafka import Producer

from onceforall.demo.ads.processes import ProgramProcess
from onceforall.embedded import spark_kafka_jars
from support.reading import read_all, released
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PROGRAM = Path(__file__).parents[2] / "examples" / "window_counts" / "window_counts.py"
START = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
WINDOW = timedelta(minutes=10)


@pytest.fixture
def start(broker, topic, tmp_path):
    """Start the example, again and again on the same topics and checkpoint; ``start.views`` and ``start.counts`` are the topics."""
    lives = []
    jars = ",".join(map(str, spark_kafka_jars()))
    options = "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 --driver-memory 1g"

    def begin():
        arguments = [broker.bootstrap_servers, begin.views, begin.counts, str(tmp_path / "checkpoint")]
        environment = {
            "PYSPARK_SUBMIT_ARGS": f"{options} --jars {jars} --driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "UTC",
        }
        log = tmp_path / "program.log"
        lives.append(ProgramProcess(PROGRAM, arguments, work_dir=tmp_path, log=log, environment=environment))
        return lives[-1]

    begin.views, begin.counts = topic(partitions=2), topic(partitions=2)
    yield begin
    for life in lives:
        life.kill()


def publish(broker, topic, views):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for page, time in views:
        value = json.dumps({"page": page, "time": time.isoformat().replace("+00:00", "Z")})
        producer.produce(topic, value, page, partition=0)
    assert producer.flush(30) == 0


def views_of(first_minute, minutes):
    """Two pages, one of them viewed every ten seconds and one every half minute."""
    start = START + timedelta(minutes=first_minute)
    often = [("/home", start + timedelta(seconds=10 * number)) for number in range(6 * minutes)]
    seldom = [("/cart", start + timedelta(seconds=30 * number)) for number in range(2 * minutes)]
    return sorted(often + seldom, key=lambda view: view[1])


def counts_in(broker, topic):
    rows = [json.loads(message.value()) for message in read_all(broker.bootstrap_servers, topic)]
    return [(row["page"], datetime.fromisoformat(row["window"]["start"].replace("Z", "+00:00")), row["count"]) for row in rows]


def test_each_window_is_counted_once_though_the_driver_is_killed_in_between(broker, start):
    first, second = views_of(0, 35), views_of(35, 35)
    publish(broker, start.views, first)
    life = start()

    def has(number):
        assert life.return_code is None, life.last_words()
        return len(counts_in(broker, start.counts)) >= number

    # The watermark stands at 33 minutes and some seconds: three windows of both pages are closed.
    until(lambda: has(6), 180, "the first windows")
    assert life.kill()
    publish(broker, start.views, second)
    life = start()
    # 68 minutes: three more of both.
    until(lambda: has(12), 180, "the windows after the kill")
    # What comes far behind closes what is left.
    publish(broker, start.views, [("/closing", START + timedelta(days=1))])
    until(lambda: has(14), 60, "the last windows")
    assert life.kill()
    released(broker.bootstrap_servers, start.counts)

    truth = Counter((page, START + (time - START) // WINDOW * WINDOW) for page, time in first + second)
    assert len(truth) == 14
    assert sorted(counts_in(broker, start.counts)) == sorted((page, begin, number) for (page, begin), number in truth.items())
