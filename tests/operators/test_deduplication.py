"""Deduplication: the rule on random streams against a reference that remembers everything, and
both ways in Spark."""

import json
import random
import re
from collections import defaultdict
from datetime import datetime, timezone

import pytest

import onceforall as ofa
from onceforall.errors import OptionError, SchemaError, UnsupportedQueryError
from onceforall.operators.deduplication import (
    DeduplicationRules,
    deduplicate,
    late_duplicates,
    unique_rows,
)
from operators.conftest import watermarks

STREAMS = 1500


class Stream:
    """A random stream: per batch the watermark that is in force, and (id, time or None, row)."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.horizon = draw.choice([1, 5, 30])
        now, watermark, newest, number, self.batches = 0, 0, 0, 0, []
        for _ in range(draw.randrange(1, 10)):
            rows = []
            for _ in range(draw.choice([0, 2, 6])):
                now += draw.randrange(8)
                number += draw.random() < 0.6
                time = (
                    None
                    if draw.random() < 0.03
                    else max(1, now - draw.choice([0, draw.randrange(60)]))
                )
                rows.append((draw.randrange(6), time, f"r{number}"))
            self.batches.append((watermark, rows))
            newest = max([newest, *(time or 0 for _, time, _ in rows)])
            watermark = max(watermark, newest - self.horizon)
        self.batches += [(watermark, []), (now + 1000, [])]


def reference(stream):
    """What each batch must say of its rows, from all that was unique before: per batch the
    sorted (id, status, row)."""
    unique, results = defaultdict(list), []
    marks = [mark for mark, _ in stream.batches]
    for number, (watermark, rows) in enumerate(stream.batches):
        # Forgotten at the end of the first batch whose watermark is a horizon behind.
        known = {
            i
            for i, at in unique.items()
            if any(max(marks[batch:number]) < time + stream.horizon for batch, time in at)
        }
        found = []
        for i in {i for i, _, _ in rows}:
            mine = [(time, row) for other, time, row in rows if other == i]
            in_time = [each for each in mine if each[0] is not None and each[0] > watermark]
            first = None if i in known or not in_time else min(in_time)
            if first:
                unique[i].append((number, first[0]))
                mine.remove(first)
                found.append((i, "unique", first[1]))
            found += [(i, "duplicate" if first or i in known else "late", row) for _, row in mine]
        results.append(sorted(found))
    return results


def run_batch(states, watermark, rows, rules, draw):
    states, found = dict(states), []
    by_id = defaultdict(list)
    for i, time, row in draw.sample(rows, len(rows)):
        by_id[i].append((json.dumps({} if time is None else {"t": time}), row))
    for i, events in by_id.items():
        step = rules.take(states.get(i, (None,))[0], events, watermark)
        states[i] = (step.state, step.wake_us)
        found += [(i, status, row) for status, row, _ in step.out]
    for i, (state, wake) in list(states.items()):
        if wake is not None and (
            wake <= watermark or draw.random() < 0.1
        ):  # a timer may come too early
            step = rules.due(state, watermark)
            states[i] = (step.state, step.wake_us)
    return {i: each for i, each in states.items() if each[0] is not None}, sorted(found)


def test_each_row_is_told_as_the_reference_tells_it_whatever_its_place_in_the_batch_and_after_crashes():
    seen = defaultdict(int)
    for seed in range(STREAMS):
        stream, draw, states = Stream(seed), random.Random(~seed), {}
        for (watermark, rows), wanted in zip(stream.batches, reference(stream), strict=True):
            for _ in range(
                1 + (draw.random() < 0.3)
            ):  # what is not the last attempt is lost in a crash
                new, found = run_batch(
                    states, watermark, rows, DeduplicationRules(stream.horizon), draw
                )
                assert found == wanted, f"seed {seed}"
            states = new
            for _, status, _ in found:
                seen[status] += 1
        assert states == {}, f"seed {seed}: an id is still remembered"
    assert min(seen[status] for status in ("unique", "duplicate", "late")) > 500, dict(seen)


def test_a_row_that_is_behind_the_newest_one_by_the_whole_horizon_is_late_and_one_that_is_less_behind_is_not():
    watermark = 1000 - 60  # the newest row of the batches before is at 1000
    for time, status in [(940, "late"), (941, "unique")]:
        (result,) = (
            DeduplicationRules(60).take(None, [(json.dumps({"t": time}), "r")], watermark).out
        )
        assert result == (status, "r", None)


SCHEMA = "id string, at timestamp, n int"


def text(seconds):
    return datetime.fromtimestamp(1_700_000_000 + seconds, timezone.utc).isoformat()


def row(i, seconds, n):
    return {"id": i, "at": text(seconds), "n": n}


@pytest.mark.spark
class TestInSpark:
    @pytest.fixture
    def events(self, rocksdb, folder):
        return folder("events", SCHEMA)

    def writer(self, frame, tmp_path, *outputs):
        made = ofa.write_stream(frame)
        for name, transform in outputs:
            made.to(
                ofa.FileSink(str(tmp_path / name), format="parquet"), name=name, transform=transform
            )
        return made.option("checkpointLocation", str(tmp_path / "cp")).option(
            "onceforall.onDivergence", "fail"
        )

    def read(self, spark, tmp_path, name):
        return sorted(each["n"] for each in ofa.read_files(tmp_path / name).to_arrow().to_pylist())

    @pytest.mark.long
    def test_nothing_is_dropped_and_the_row_that_stays_is_the_same_after_a_replay(
        self, events, spark, runs, tmp_path
    ):
        def writer():
            frame = deduplicate(
                events.stream(2).repartition(3), "id", "at", "60 seconds", late="keep"
            )
            outputs = [
                ("unique", unique_rows),
                ("late", late_duplicates),
                ("all", lambda f: f.where("deduplication <> 'x'")),
            ]
            return self.writer(frame, tmp_path, *outputs)

        events.add(*(row("a", 100, n) for n in (9, 1, 5)), row("b", 101, 10), row(None, 100, 11))
        events.add(row("a", 99, 7), row("c", 200, 12), row(None, 101, 13))
        runs.whole(writer())
        events.add(
            row("a", 150, 20),
            row("d", 130, 21),
            row("c", 200, 22),
            row("d", 141, 23),
            row("e", 139, 24),
        )
        runs.failing(writer(), "append_commit.after=raise")
        events.add(row("e", 400, 30))
        events.add(row("a", 401, 31), row("c", 330, 32))
        runs.whole(writer())
        events.add(row("a", 402, 40), row("c", 330, 41))
        runs.whole(writer())
        marks = [mark // 1000 - 1_700_000_000 for mark in watermarks(tmp_path / "cp")[1:6]]
        assert marks == [140, 140, 140, 341, 341]
        # By (time, content) a at 99 stays, and it is known until the watermark is at 159.
        assert self.read(spark, tmp_path, "unique") == [7, 10, 11, 12, 23, 30, 40]
        assert self.read(spark, tmp_path, "late") == [24, 41]
        assert self.read(spark, tmp_path, "all") == [
            1,
            5,
            7,
            9,
            10,
            11,
            12,
            13,
            20,
            21,
            22,
            23,
            24,
            30,
            31,
            32,
            40,
            41,
        ]

    @pytest.mark.long
    def test_ids_that_are_no_utf8_and_differ_in_a_byte_are_two_ids(
        self, events, spark, runs, tmp_path
    ):
        from pyspark.sql import functions as F

        events.add(row("FF", 100, 1), row("FE", 100, 2), row("61FF", 100, 3))
        events.add(row("FF", 101, 4), row("FD", 101, 5))
        frame = events.stream().withColumn("id", F.unhex("id").cast("string"))
        judged = deduplicate(frame, "id", "at", "60 seconds", late="keep")
        runs.whole(self.writer(judged, tmp_path, ("unique", unique_rows)))
        assert self.read(spark, tmp_path, "unique") == [1, 2, 3, 5]

    def test_in_the_jvm_copies_within_the_horizon_and_late_rows_are_dropped(
        self, events, spark, runs, tmp_path
    ):
        events.add(row("a", 100, 1), row("b", 100, 2))
        events.add(row("a", 110, 3), row("c", 200, 4))
        events.add(row("c", 190, 5), row("a", 120, 6), row("d", 150, 7))
        frame = deduplicate(events.stream(), "id", "at", "60 seconds")
        runs.whole(self.writer(frame, tmp_path, ("unique", None)))
        assert self.read(spark, tmp_path, "unique") == [1, 2, 4, 7]

    @pytest.mark.long
    def test_rows_of_1970_and_before_are_judged_and_a_horizon_has_whole_milliseconds(
        self, folder, rocksdb, spark, runs, tmp_path
    ):
        events = folder("early", SCHEMA)
        for number, times in enumerate((("1969-12-31T23:59:59Z",), ("1970-01-01T00:00:00Z",))):
            events.add(*({"id": f"e{number}", "at": time, "n": number} for time in times))
        events.add({"id": "e0", "at": "1969-12-31T23:59:58Z", "n": 2})
        events.add({"id": "a", "at": "2026-01-01T00:00:10.010000Z", "n": 3})
        # Behind by 1.1 ms, which is less than 1.9 ms.
        events.add({"id": "b", "at": "2026-01-01T00:00:10.008900Z", "n": 4})
        events.add({"id": "c", "at": "1970-01-01T00:00:01Z", "n": 5})
        judged = deduplicate(events.stream(), "id", "at", "1900 microseconds", late="keep")
        runs.whole(
            self.writer(judged, tmp_path, ("unique", unique_rows), ("late", late_duplicates))
        )
        assert self.read(spark, tmp_path, "unique") == [0, 1, 3, 4]
        assert self.read(spark, tmp_path, "late") == [5]

    @pytest.mark.long
    def test_another_id_is_refused_at_a_restart(self, folder, rocksdb, spark, tmp_path):
        from pyspark.errors import StreamingQueryException

        events = folder("orders", "order_id string, line string, at timestamp")

        def run(name):
            judged = deduplicate(events.stream(), name, "at", "60 seconds", late="keep")
            query = (
                judged.writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / "cp"))
                .trigger(availableNow=True)
                .start()
            )
            try:
                assert query.awaitTermination(120)
            finally:
                query.stop()

        events.add({"order_id": "7", "line": "1", "at": text(1)})
        run("order_id")
        events.add({"order_id": "8", "line": "7", "at": text(2)})
        with pytest.raises(StreamingQueryException, match="CheckpointMismatchError: .* another id"):
            run("line")
        run("order_id")

    @pytest.mark.parametrize("name", ["a.b", "a`b", "a b"])
    @pytest.mark.parametrize("late", ["drop", "keep"])
    def test_an_event_time_of_any_name_is_the_column_and_not_a_field(
        self, events, rocksdb, name, late
    ):
        frame = events.stream().selectExpr(
            "id", f"at AS `{name.replace('`', '``')}`", "struct(timestamp'2000-01-01' AS b) AS a"
        )
        plan = deduplicate(frame, "id", name, "1 hour", late=late)._jdf.queryExecution().analyzed()
        assert re.search(f"EventTimeWatermark [^\\n]*{re.escape(name)}#", plan.toString())

    def test_what_cannot_be_is_refused_before_anything_starts(self, events, spark):
        frame = events.stream()
        for arguments, error, words in [
            (("x", "at", "1 hour"), SchemaError, "no column 'x'"),
            (("id", "n", "1 hour"), SchemaError, "not timestamp"),
            (("id", "at", "soon"), OptionError, "horizon"),
        ]:
            with pytest.raises(error, match=words):
                deduplicate(frame, *arguments)
        with pytest.raises(OptionError, match="neither 'drop' nor 'keep'"):
            deduplicate(frame, "id", "at", "1 hour", late="no")
        with pytest.raises(UnsupportedQueryError, match="has one already"):
            deduplicate(frame.withWatermark("at", "1 hour"), "id", "at", "1 hour")
        with pytest.raises(UnsupportedQueryError, match="not|isn't"):
            deduplicate(spark.range(1), "id", "id", "1 hour")
