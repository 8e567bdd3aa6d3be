"""The first example of docs/start.md, taken from there and started by the command there, with a
kill -9 in between."""

import json
import os
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from confluent_kafka import Producer

from onceforall.demo.ads.processes import ProgramProcess
from support.pages import Places, blocks
from support.reading import read_all, released
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

START = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
WINDOW = timedelta(minutes=10)


DEFAULTS = """
spark.master local[2]
spark.driver.memory 1g
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1
spark.sql.shuffle.partitions 2
spark.ui.enabled false
"""
RUN = "import os, sys; os.execvp('bash', ['bash', '-c', sys.argv[1]])"


def command(page):
    """The command by which a page starts the program, as it stands there."""
    [found] = [block for block in blocks(page, "sh") if "window_counts.py" in block.code]
    _, _, submit = found.code.partition("\n")
    assert submit.startswith("spark-submit ")
    return submit


@pytest.fixture
def start(broker, topic, tmp_path):
    """Start the program of docs/start.md as a page does, again and again on the same topics and
    checkpoint; ``start.views`` and ``start.counts`` are the topics."""
    lives = []
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    (tmp_path / "run.py").write_text(RUN)
    [program] = [
        block
        for block in blocks("docs/start.md", "python")
        if block.code.startswith("import sys\n")
    ]
    for name in ("window_counts.py", "examples/window_counts/window_counts.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(program.code)
    places = Places(tmp_path, broker.bootstrap_servers)

    def begin(page):
        submit = (
            places.real(command(page))
            .replace("page-views", begin.views)
            .replace("page-counts", begin.counts)
        )
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPARK_CONF_DIR": str(tmp_path / "conf"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "UTC",
        }
        log = tmp_path / "program.log"
        lives.append(
            ProgramProcess(
                tmp_path / "run.py", [submit], work_dir=tmp_path, log=log, environment=environment
            )
        )
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
    return [
        (
            row["page"],
            datetime.fromisoformat(row["window"]["start"].replace("Z", "+00:00")),
            row["count"],
        )
        for row in rows
    ]


@pytest.mark.long
def test_each_window_is_counted_once_though_the_driver_is_killed_in_between(broker, start):
    first, second = views_of(0, 35), views_of(35, 35)
    publish(broker, start.views, first)
    life = start("docs/start.md")

    def has(number):
        assert life.return_code is None, life.last_words()
        return len(counts_in(broker, start.counts)) >= number

    # The watermark stands at 33 minutes and some seconds: three windows of both pages are closed.
    until(lambda: has(6), 180, "the first windows")
    assert life.kill()
    publish(broker, start.views, second)
    life = start("examples/window_counts/README.md")
    # 68 minutes: three more of both.
    until(lambda: has(12), 180, "the windows after the kill")
    # What comes far behind closes what is left.
    publish(broker, start.views, [("/closing", START + timedelta(days=1))])
    until(lambda: has(14), 60, "the last windows")
    assert life.kill()
    released(broker.bootstrap_servers, start.counts)

    truth = Counter(
        (page, START + (time - START) // WINDOW * WINDOW) for page, time in first + second
    )
    assert len(truth) == 14
    assert sorted(counts_in(broker, start.counts)) == sorted(
        (page, begin, number) for (page, begin), number in truth.items()
    )
