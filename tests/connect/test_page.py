"""The query on the page about Spark Connect, as it stands there, from a client of a real server."""

import pytest

import onceforall as ofa
from support.connect_server import ConnectClient
from support.pages import Places, blocks
from support.reading import released, values

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

BEHIND = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from to_the_input import produce
from support.driver_program import leave

query.processAllAvailable()
produce()
query.processAllAvailable()
query.stop()
leave(Path("status.json"), {{"error": None}})
"""
TO_THE_INPUT = """
from confluent_kafka import Producer

def produce():
    producer = Producer({{"bootstrap.servers": {servers!r}}})
    for number in range(50):
        producer.produce({topic!r}, value=f"click {{number}}")
    assert producer.flush(30) == 0
"""


def test_the_query_on_the_page_writes_each_record_once(connect_server, tmp_path, broker, topic):
    places = Places(tmp_path, broker.bootstrap_servers, topic)
    clicks = topic(partitions=2)
    [block] = blocks("docs/connect.md", "python")
    code = places.real(block.code)
    for placeholder, real in {
        '"sc://spark.internal:15002"': repr(connect_server.url),
        '"subscribe", "clicks"': f'"subscribe", "{clicks}"',
    }.items():
        assert placeholder in code
        code = code.replace(placeholder, real)
    (tmp_path / "to_the_input.py").write_text(
        TO_THE_INPUT.format(servers=broker.bootstrap_servers, topic=clicks)
    )
    program = tmp_path / "program.py"
    program.write_text(code + BEHIND.format(folder=str(tmp_path)))
    client = ConnectClient(tmp_path / "client", {}, program)
    assert client.status() == {"error": None}
    expected = sorted(f"click {number}" for number in range(50))
    written = places.topic("attributed")
    released(broker.bootstrap_servers, written)
    assert values(broker.bootstrap_servers, written) == expected
    rows = ofa.read_files(str(tmp_path / "lake" / "clicks")).to_arrow().to_pylist()
    assert sorted(row["value"] for row in rows) == expected
