"""Records that are sent again, through a real broker."""

import time
from itertools import pairwise

import pytest

from benchmarks.ad_events.batches import by_partition
from benchmarks.ad_events.replay import Reader, Record, Sender, later, send_days
from benchmarks.stands.children import Child, MeasurementError
from onceforall.demo.ads.progress import stable_ends

pytestmark = [pytest.mark.kafka, pytest.mark.long]

DAY_1, DAY_2 = (b'{"id":%%d,"happened":"2024-11-%d"}' % day for day in (29, 30))


def fill(servers, topic, number, count):
    records = [
        Record(b"u%d" % each, DAY_1 % each, 1_732_838_400_000 + 10 * each) for each in range(count)
    ]
    sender = Sender(servers)
    for record in records:
        sender.send(topic, number, record)
    sender.flush()
    return records


def read(servers, topic, number):
    reader = Reader(servers)
    try:
        return list(reader.records(topic, number))
    finally:
        reader.close()


def test_days_follow_each_other_in_each_partition_with_keys_and_timestamps_as_they_were(
    broker, topic
):
    servers, old, new = broker.bootstrap_servers, topic(2), topic(2)
    there = [fill(servers, old, 0, 300), fill(servers, old, 1, 20)]
    assert send_days(servers, {old: new}, {old: 2}, 2) == 640
    for number, records in enumerate(there):
        assert read(servers, old, number) == records
        assert read(servers, new, number) == [
            *records,
            *(each._replace(value=later(each.value, 1)) for each in records),
        ]
    # Without transactions, offsets count records.
    assert stable_ends(servers, {new: 2}) == {(new, 0): 600, (new, 1): 40}


class TestInRealTime:
    def config(self, broker, old, new, **changes):
        servers = {"from": broker.bootstrap_servers, "to": broker.bootstrap_servers}
        return {
            "servers": servers,
            "topics": {old: new},
            "partitions": {old: 2},
            "rate": 200,
            "first": 50,
            "records": 250,
            **changes,
        }

    def test_every_record_is_at_the_offset_for_which_its_time_was_noted(
        self, broker, topic, tmp_path
    ):
        servers, old, new = broker.bootstrap_servers, topic(2), topic(2)
        there = [fill(servers, old, 0, 300), fill(servers, old, 1, 100)]
        with Child(
            "benchmarks.ad_events.replay", tmp_path / "replay", self.config(broker, old, new)
        ) as replay:
            replay.said("first.json")
            assert sum(stable_ends(servers, {new: 2}).values()) == 50
            before_ns = time.time_ns()
            (tmp_path / "replay" / "go").touch()
            start_ns = replay.said("began.json")["start_ns"]
            sent = by_partition(replay.said("sent.json")["sent"])
        assert before_ns <= start_ns
        assert {partition: len(times) for partition, times in sent.items()} == stable_ends(
            servers, {new: 2}
        )
        for number, records in enumerate(there):
            assert read(servers, new, number) == records[: len(sent[new, number])]
        times = sorted(sent[new, 0] + sent[new, 1])
        assert len(times) == 250
        assert times[49] < before_ns
        # 200 in a second, whatever held them up.
        assert times[50] == start_ns
        assert {b - a for a, b in pairwise(times[50:])} == {5_000_000}

    def test_too_few_records_are_refused_before_anything_is_sent(self, broker, topic, tmp_path):
        old, new = topic(2), topic(2)
        fill(broker.bootstrap_servers, old, 0, 30)
        config = self.config(broker, old, new)
        with (
            Child("benchmarks.ad_events.replay", tmp_path / "replay", config) as replay,
            pytest.raises(MeasurementError, match="250 records are to be sent"),
        ):
            replay.said("first.json")
        assert sum(stable_ends(broker.bootstrap_servers, {new: 2}).values()) == 0
