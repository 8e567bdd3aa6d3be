"""The small parts of the two writers; that they write, the demo itself shows."""

from __future__ import annotations

import copy
import pickle

from onceforall.demo.writers import JsonKafkaSink, jdbc_options


def test_the_jdbc_writer_gets_address_and_login_apart():
    options = jdbc_options("postgresql://the%20user:p%40ss%2Fword@127.0.0.1:5433/spark")
    assert options["url"] == "jdbc:postgresql://127.0.0.1:5433/spark"
    assert (options["user"], options["password"]) == ("the user", "p@ss/word")


def test_the_json_sink_keeps_its_key_in_copies_and_in_tasks():
    sink = JsonKafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t", record_key="flight")
    for each in (copy.copy(sink), pickle.loads(pickle.dumps(sink))):
        assert (each._record_key, each.default_name) == ("flight", "kafka-t")
