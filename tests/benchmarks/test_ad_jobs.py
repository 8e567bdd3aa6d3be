"""What the measurement of the ad-events pipeline's jobs makes of checkpoints, of records that
are sent again, and of its results."""

import itertools
import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.ad_events import jobs
from benchmarks.ad_events.batches import (
    Batch,
    BatchLog,
    busy_share,
    by_partition,
    completions,
    counts_of,
    latency_of,
    while_all_last,
)
from benchmarks.ad_events.replay import later, turns
from benchmarks.ad_events.stand import Stand
from benchmarks.report import page
from benchmarks.report.results import Results
from benchmarks.rounds import Plan
from benchmarks.settings import Load
from benchmarks.stands.children import MeasurementError
from benchmarks.stands.processes import Meter
from onceforall.demo.ads.jobs import JOBS, READS, TOPICS
from onceforall.demo.ads.progress import ends_of

S, MS = 10**9, 10**6
CLICKS, ORDERS = ("clicks", 0), ("orders", 0)


def batches(*ends, every_s=2.0, takes_s=1.5):
    """Batches that end each so many seconds; the offsets of one partition."""
    return [
        Batch({CLICKS: end}, int((number * every_s - takes_s) * S), int(number * every_s * S))
        for number, end in enumerate(ends, 1)
    ]


def write_batch(checkpoint, number, *lines, at_s):
    for log, text in (("offsets", "\n".join(["v1", "{}", *lines])), ("commits", "v1\n{}")):
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
        file = checkpoint / log / str(number)
        file.write_text(text)
        os.utime(file, ns=(0, int((at_s if log == "commits" else at_s - 1) * S)))


class TestCheckpoint:
    def test_offsets_are_those_of_all_sources_and_one_without_data_has_none(self):
        assert ends_of(['{"clicks":{"0":7,"1":3}}', '{"orders":{"0":2}}']) == {
            ("clicks", 0): 7,
            ("clicks", 1): 3,
            ("orders", 0): 2,
        }
        assert ends_of(["-", '{"orders":{"0":2}}']) == {("orders", 0): 2}

    def test_batches_are_read_as_they_complete_and_are_known_when_spark_has_removed_them(
        self, tmp_path
    ):
        log = BatchLog(tmp_path)
        assert log.look() == 0
        write_batch(tmp_path, 0, '{"clicks":{"0":10}}', at_s=5)
        (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"clicks":{"0":99}}')
        assert log.look() == 10
        write_batch(tmp_path, 1, '{"clicks":{"0":30}}', at_s=8)
        (tmp_path / "commits" / "0").unlink()
        (tmp_path / "offsets" / "0").unlink()
        assert log.look() == 30
        assert log.batches == [Batch({CLICKS: 10}, 4 * S, 5 * S), Batch({CLICKS: 30}, 7 * S, 8 * S)]

    def test_busy_is_the_share_of_the_window_in_which_a_batch_was_under_way(self):
        found = batches(10, 20, 30, 40)
        assert busy_share(found, 2.0, 8.0) == pytest.approx(0.75)
        # A batch that ended at the begin of the window is none of it.
        assert busy_share(found, 6.0, 8.0) == pytest.approx(0.75)
        assert busy_share(
            [*found[:2], *batches(10, 20, 30, 40, takes_s=2.0)[2:]], 2.0, 8.0
        ) == pytest.approx(5.5 / 6)

    def test_the_steady_state_has_neither_the_first_batches_nor_the_last_ones(self):
        found = batches(*(100 * number for number in range(1, 11)))
        # The first two take half a minute longer each, and the last one does.
        late_s = [30, *[60] * 8, 90]
        slow = [
            Batch(each.ends, each.planned_ns, each.complete_ns + s * S)
            for each, s in zip(found, late_s, strict=True)
        ]
        meter = Meter({})
        meter._cpu = {"job": [(0.0, 0.0), (1e6, 1e6)]}
        log = BatchLog(Path())
        log.batches = slow
        sample = jobs.throughput_of(log, 1000, meter)
        assert (sample["records"], sample["records_per_s"], sample["batches"]) == (1000, 50, 7)

    def test_the_steady_state_ends_with_the_first_of_the_sources(self):
        both = [
            Batch({CLICKS: 100 * n, ORDERS: min(100 * n, 350)}, 2 * n * S, (2 * n + 1) * S)
            for n in range(1, 8)
        ]
        assert while_all_last(both) == both[:4]
        # One that has nothing at all has no end.
        assert (
            while_all_last([Batch({CLICKS: 10 * n, ORDERS: 0}, n, n + 1) for n in range(1, 4)])[
                -1
            ].records
            == 30
        )
        assert while_all_last([]) == []

    def test_a_job_without_batches_is_no_figure(self):
        with pytest.raises(MeasurementError, match="no batch"):
            counts_of([])

    def test_cpu_is_that_of_the_window_though_files_and_meter_have_clocks_of_their_own(self):
        log = BatchLog(Path())
        ahead_ns = int((time.time() - time.monotonic()) * S)
        log.batches = [
            Batch(each.ends, each.planned_ns + ahead_ns, each.complete_ns + ahead_ns)
            for each in batches(*range(100, 1001, 100))
        ]
        meter = Meter({})
        # Busy from 4 to 18 s, which is the window, and much more so around it.
        meter._cpu = {"job": [(0.0, 0.0), (4.0, 1000.0), (18.0, 1007.0), (20.0, 9000.0)]}
        sample = jobs.throughput_of(log, 1000, meter)
        assert sample["seconds"] == 14.0
        assert sample["cpu_s_per_million"]["job"] == pytest.approx(7 / 700 * 1e6, rel=0.01)


class TestLatency:
    def test_it_goes_to_the_completion_of_the_batch_that_read_the_record(self):
        sent = {CLICKS: [0, 1 * S, 2 * S, 3 * S, 4 * S]}
        found = completions(sent, batches(2, 2, 5))
        assert found.tolist() == [[0, S, 2 * S, 3 * S, 4 * S], [2 * S, 2 * S, 6 * S, 6 * S, 6 * S]]

    def test_each_partition_has_its_own_offsets(self):
        found = [
            Batch({CLICKS: 2}, 0, 1 * S),
            Batch({CLICKS: 2, ORDERS: 1}, 1 * S, 2 * S),
            Batch({CLICKS: 3, ORDERS: 1}, 2 * S, 3 * S),
        ]
        pairs = completions({CLICKS: [0, 10, 20], ORDERS: [5]}, found)
        assert sorted(pairs.T.tolist()) == [[0, S], [5, 2 * S], [10, S], [20, 3 * S]]

    def test_a_record_that_no_batch_has_read_is_no_figure(self):
        with pytest.raises(MeasurementError, match=r"2 of 5 records of clicks\[0\]"):
            completions({CLICKS: [0] * 5}, batches(1, 3))

    def test_only_what_was_meant_for_the_window_counts(self):
        sent = {CLICKS: [0, 1000 * MS, 1500 * MS, 3900 * MS, 4500 * MS]}
        sample = latency_of(sent, batches(1, 4, 5), 1 * S, 4 * S)
        assert sample == {
            "records": 3,
            "p50_ms": 2500.0,
            "p99_ms": 3000.0,
            "max_ms": 3000.0,
            "kept_up": True,
        }

    def test_a_job_that_falls_behind_did_not_keep_up(self):
        sent = {CLICKS: [0, 1 * S, 2 * S, 3 * S]}
        assert latency_of(sent, batches(1, 2, 3, 4, every_s=3), 0, 4 * S)["kept_up"] is True
        assert latency_of(sent, batches(1, 2, 3, 4, every_s=3.5), 0, 4 * S)["kept_up"] is False
        # What was sent after the window says nothing about it.
        assert latency_of(sent, batches(1, 2, 3, 4, every_s=3.5), 0, 3 * S)["kept_up"] is True

    def test_what_json_has_made_of_the_partitions_is_undone(self):
        sent = {"clicks": {0: [1, 2], 1: [3]}, "orders": {0: [4]}}
        assert by_partition(json.loads(json.dumps(sent))) == {
            ("clicks", 0): [1, 2],
            ("clicks", 1): [3],
            ("orders", 0): [4],
        }


class TestRecordsSentAgain:
    def test_a_later_day_changes_the_day_on_which_it_happened_and_nothing_else(self):
        value = b'{"record_id":"2024-11-30","happened":"2024-11-29T23:59:05.831Z","micros":4238}'
        assert later(value, 3) == value.replace(b"2024-11-29", b"2024-12-02")

    def test_what_does_not_say_when_it_happened_is_refused(self):
        with pytest.raises(MeasurementError, match="happened"):
            later(b'{"event_time": 1732838405831}', 1)

    def test_partitions_come_to_their_ends_together_and_each_record_has_its_turn(self):
        counts = {("views", 0): 600, ("clicks", 0): 30, ("clicks", 1): 0, ("orders", 0): 7}
        order = list(turns(counts))
        assert Counter(order) == {partition: count for partition, count in counts.items() if count}
        for taken in (64, 320, 500):
            so_far = Counter(order[:taken])
            shares = [so_far[partition] / count for partition, count in counts.items() if count]
            # At most one record of the smallest partition.
            assert max(shares) - min(shares) <= 1 / 7


class TestContenders:
    def test_a_job_comes_after_those_whose_output_it_reads_whoever_begins(self):
        for turn in range(4):
            order = jobs.in_order(tuple(reversed(jobs.CONTENDERS)), turn)
            assert sorted(order) == sorted(jobs.CONTENDERS)
            assert [jobs.split(name)[0] for name in order[::2]] == list(JOBS)
            for name, job in itertools.product(READS, JOBS):
                reads = {jobs.WRITTEN_BY[topic] for topic in READS[job] if topic in jobs.WRITTEN_BY}
                assert all(order.index(before) < order.index(job) for before in reads), (name, job)

    def test_the_writers_take_turns_in_being_first(self):
        pair = ("load", "load-spark")
        assert [jobs.in_order(pair, turn) for turn in (0, 1, 2)] == [pair, pair[::-1], pair]

    def test_an_unknown_one_is_refused_by_name(self):
        with pytest.raises(SystemExit, match="lode"):
            jobs.in_order(("load", "lode"), 0)

    def test_everything_that_a_job_reads_is_the_generators_or_written_by_a_job_before_it(self):
        for job in JOBS[1:]:
            assert all(JOBS.index(jobs.WRITTEN_BY[name]) < JOBS.index(job) for name in READS[job])
        assert set(jobs.WRITTEN_BY) <= set(TOPICS)

    def test_each_job_has_a_text(self):
        texts = [jobs.text_of(name) for name in jobs.CONTENDERS]
        assert set(jobs.DESCRIPTIONS) == set(JOBS)
        assert texts[0].startswith("cleanse")
        assert texts[1] == "the same with Spark's own writers"

    def test_stands_of_the_same_writer_have_topics_of_their_own_and_no_password_in_their_text(self):
        stand = Stand(
            "spark", "b:1", "postgresql://u:secret@h/d", Path("f"), Path("l"), (), 10, "load-spark"
        )
        assert set(stand.inputs("load")) == {
            "load-spark-spend",
            "load-spark-attributed",
            "load-spark-unmatched",
        }
        assert "secret" not in repr(stand)


def sample(rate, *, kept_up=True):
    return {
        "records_per_s": rate,
        "busy": 0.9,
        "cpu_s_per_million": {"total": 40.0, "job": 30.0},
        "peak_mb": {"job": 900.0},
        "latency": {"p50_ms": 700.0, "p99_ms": 1300.0, "max_ms": 1400.0, "kept_up": kept_up},
    }


def test_the_page_shows_each_job_beside_the_same_with_sparks_writers(tmp_path):
    results = Results(tmp_path, source="a")
    plan = Plan(
        ("cleanse", "cleanse-spark", "load"),
        Load(),
        {"events": 1_000_000, "batch": 100_000, "rate": 2000},
    )
    for turn, rate in enumerate((20_000, 30_000)):
        samples = {
            "cleanse": sample(rate),
            "cleanse-spark": sample(rate, kept_up=turn == 0),
            "load": {"error": "x"},
        }
        results.add("ad_jobs", plan.parameters(), turn, plan.contenders, samples, 60)
    text = page.text_of(results, {})
    assert (
        "**1,000,000 events, at most 100,000 records in a batch; latency at 2,000 records/s:**"
        in text
    )
    head, _, *rows = text[text.index("|  | records/s | busy") :].splitlines()[:5]
    assert [row.split(" | ")[-1].strip(" |") for row in rows] == ["", "did not keep up", "failed"]
    assert rows[0].startswith(
        "| cleanse: parse, judge, identify, deduplicate | 25,000 (20,000 to 30,000) | 0.90 (0.90 "
        "to 0.90) | 40.0"
    )
    assert {row.count("|") for row in rows} == {head.count("|")}
