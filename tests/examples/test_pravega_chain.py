"""The example with a Pravega stream between two topics: a kill -9 behind the decision of each
program, and each view is in the last topic once."""

import json
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest

from onceforall.embedded import spark_kafka_jars
from support.chains import run_program
from support.reading import values

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.pravega]

EXAMPLE = Path(__file__).parents[2] / "examples" / "pravega_chain"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_view_is_in_the_last_topic_once(broker, topic, events_stream, tmp_path):
    stream, first, last = events_stream(segments=2), topic(partitions=2), topic(partitions=2)
    jars = ",".join(map(str, spark_kafka_jars()))

    def run(program, *arguments, **more):
        run_program(EXAMPLE / program, arguments, tmp_path, jars=jars, **more)

    def put(numbers):
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        for n in numbers:
            view = {"page": f"/{n}", "user": f"u{n % 5}"} if n % 4 else {"user": f"u{n}"}
            producer.produce(first, json.dumps(view).encode())
        assert producer.flush(30) == 0

    place = [stream.server.uri, stream.scope, stream.stream]
    writing = [broker.bootstrap_servers, first, *place, str(tmp_path / "to-pravega")]
    reading = [*place, broker.bootstrap_servers, last, str(tmp_path / "to-kafka")]
    put(range(40))
    run("to_pravega.py", *writing, armed="append_commit.after=kill@1", ends=-9)
    run("to_pravega.py", *writing)
    run("to_kafka.py", *reading, armed="append_commit.after=kill@1", ends=-9)
    stream.scale(3)
    put(range(40, 60))
    run("to_pravega.py", *writing)
    run("to_kafka.py", *reading)
    between = Counter(json.loads(content).get("page") for content in stream.contents())
    expected = Counter(f"/{n}" for n in range(60) if n % 4)
    assert between == expected + Counter({None: 15})
    found = Counter(json.loads(value)["page"] for value in values(broker.bootstrap_servers, last))
    assert found == expected
