"""What measurements make of what they have seen: latencies, recoveries, costs of commits, long
runs, profiles."""

import itertools
import os
import time

import numpy as np
import psutil
import pytest

from benchmarks import long_run
from benchmarks.latency import commits, records
from benchmarks.options import curves
from benchmarks.recovery import restarts
from benchmarks.stands import kafka, traffic
from benchmarks.stands.children import MeasurementError
from benchmarks.stands.generator import Schedule
from benchmarks.steps import profile_path, step_times, threads

S = 10**9
MS = 10**6


class TestLatencies:
    def test_they_count_from_the_intended_time_of_what_was_meant_for_the_window(self):
        intended = np.arange(100, dtype=np.int64) * S
        arrived = intended + np.where(intended < 50 * S, 5000 * MS, 20 * MS)
        found = traffic.latencies(np.stack([intended, arrived]), 50 * S, 90 * S)
        assert found == {"records": 40, "p50_ms": 20.0, "p99_ms": 20.0, "max_ms": 20.0}

    def test_a_window_in_which_nothing_arrived_is_no_figure(self):
        with pytest.raises(MeasurementError):
            traffic.latencies(np.empty((2, 0), dtype=np.int64), 0, S)


class TestPartsOfABatch:
    def test_they_are_those_of_the_later_half(self):
        slow = {"triggerExecution": 900, "addBatch": 800}
        times = {
            "triggerExecution": 100,
            "addBatch": 60,
            "latestOffset": 3,
            "getBatch": 1,
            "queryPlanning": 4,
            "walCommit": 15,
        }
        progress = [
            {"durationMs": each}
            for each in (slow, slow, {**times, "commitOffsets": 17}, {**times, "commitOffsets": 18})
        ]
        steps = [
            line for start in range(4) for line in batch(start, write=0.9 if start < 2 else 0.05)
        ]
        assert records.parts_of(progress, steps) == {
            "batch": 100,
            "plan": 8,
            "offsets_log": 15,
            "commits_log": 17.5,
            "write": 60,
            "job": 50,
            "decide_and_commit": 6,
        }

    def test_what_is_not_ours_has_none_of_our_steps(self):
        found = records.parts_of([{"durationMs": {"triggerExecution": 100, "addBatch": 60}}], [])
        assert set(found) == {"batch", "plan", "offsets_log", "commits_log", "write"}

    def test_without_batches_there_is_nothing_to_tell(self):
        assert records.parts_of([], []) == {}


class TestSchedule:
    def test_every_record_is_due_once_whatever_holds_the_generator_up(self):
        schedule = Schedule(1000, 0)
        moments = [*range(0, 20 * MS, 2 * MS), 500 * MS, 502 * MS]
        found = list(
            itertools.chain.from_iterable(schedule.due(moment, 10_000) for moment in moments)
        )
        assert found == [number * MS for number in range(503)]

    def test_what_is_late_keeps_its_intended_time(self):
        schedule = Schedule(1000, 0)
        assert schedule.due(10 * MS, 5) == [0, MS, 2 * MS, 3 * MS, 4 * MS]
        assert schedule.due(11 * MS, 5) == [5 * MS, 6 * MS, 7 * MS, 8 * MS, 9 * MS]


class TestRecovery:
    def test_what_was_on_its_way_at_the_kill_does_not_count(self):
        intended = np.array([0, 1, 2, 13]) * S
        arrived = np.array([S, 10 * S + 100 * MS, 14 * S, 15 * S])
        found = restarts.gaps(np.stack([intended, arrived]), [(10 * S, 10 * S + 50 * MS)])
        assert found["seconds"] == 4.0

    def test_the_first_record_that_was_sent_after_the_kill_is_told_apart(self):
        arrivals = np.array([[9 * S, 11 * S], [14 * S, 16 * S]])
        found = restarts.gaps(arrivals, [(10 * S, 10 * S)])
        assert (found["seconds"], found["seconds_to_new_input"]) == (4.0, 6.0)

    def test_a_query_that_does_not_come_back_is_no_figure(self):
        with pytest.raises(MeasurementError):
            restarts.gaps(np.array([[0], [S]]), [(10 * S, 10 * S)])


def batch(start, *, write=0.1, confirm=0.01, decide=0.002, commit=0.004):
    prepared, decided = start + write, start + write + decide
    return [
        {"step": "confirm:kafka", "start_s": prepared - confirm, "end_s": prepared},
        {"step": "RunWrites", "start_s": start, "end_s": prepared},
        {"step": "AppendCommit", "start_s": prepared, "end_s": decided},
        {"step": "commit:kafka", "start_s": decided, "end_s": decided + commit},
        {"step": "CommitSinks", "start_s": decided, "end_s": decided + commit},
        {"step": "ReturnBatch", "start_s": decided + commit, "end_s": decided + commit},
        {"step": "AppendDone", "start_s": decided + commit, "end_s": decided + commit + 0.5},
    ]


class TestCostOfCommit:
    def test_it_goes_from_the_last_pre_commit_to_the_last_commit(self):
        lines = [
            line for n in range(10) for line in batch(float(n), commit=0.1 if n < 4 else 0.004)
        ]
        costs = step_times.costs_ms(lines, skip=4)
        assert costs["commit"] == pytest.approx([6.0] * 6)
        assert costs["decision"] == pytest.approx([2.0] * 6)
        assert costs["commit:kafka"] == pytest.approx([4.0] * 6)
        assert costs["confirm:kafka"] == pytest.approx([10.0] * 6)

    def test_an_attempt_that_was_aborted_is_no_commit(self):
        aborted = [
            {"step": "RunWrites", "start_s": 0.0, "end_s": 1.0},
            {"step": "AbortAttempt", "start_s": 1.0, "end_s": 2.0},
        ]
        assert step_times.costs_ms([*aborted, *batch(10.0)], skip=0)["commit"] == pytest.approx(
            [6.0]
        )

    def test_a_commit_that_recovery_repeats_is_none_of_a_batch(self):
        again = [{"step": "CommitSinks", "start_s": 20.0, "end_s": 21.0}]
        assert step_times.costs_ms([*batch(10.0), *again], skip=0)["commit"] == pytest.approx([6.0])

    def test_a_sample_of_no_batch_is_refused(self):
        with pytest.raises(MeasurementError):
            commits.sample_of(batch(0.0), [], skip=5)

    def test_checkpoint_time_is_the_logs_the_state_and_the_commit(self):
        progress = [
            {"durationMs": {"walCommit": 30, "commitOffsets": 20}, "stateOperators": []}
        ] * 10
        assert curves.checkpoint_times_ms(progress, batch(0.0))[0] == pytest.approx(56)


class TestLongRun:
    def points(self, **growth):
        return [
            {
                "s": 10.0 * n,
                "at_ns": 1e10 * n,
                **{name: 100.0 + growth.get(name, 0.0) * n for name in long_run.ALLOWED},
            }
            for n in range(100)
        ]

    def test_nothing_that_is_judged_grows_in_a_flat_run(self):
        assert long_run.sample_of(self.points())["flat"] is True

    @pytest.mark.parametrize("name", long_run.ALLOWED)
    def test_each_of_them_can_fail_it(self, name):
        found = long_run.sample_of(self.points(**{name: 100_000.0}))
        assert found["flat"] is False
        assert [each for each, verdict in found["verdicts"].items() if not verdict["flat"]] == [
            name
        ]

    def test_latencies_are_those_of_the_time_before_a_point(self):
        intended = np.arange(0, 20 * S, S // 10)
        arrived = intended + np.where(intended < 10 * S, 5 * MS, 70 * MS)
        points = [{"s": 10.0, "at_ns": 10e9}, {"s": 20.0, "at_ns": 20e9}]
        found = long_run.with_latencies(points, np.stack([intended, arrived]), 10.0)
        assert [point["p50_ms"] for point in found] == [5.0, 70.0]


def test_own_samples_are_of_the_innermost_function():
    text = "main;read;invoke (writer.py:1) 30\nmain;read 12\nmain;write;invoke (writer.py:1) 8\n\n"
    assert dict(profile_path.own_samples(text)) == {"invoke (writer.py:1)": 38, "read": 12}


def test_every_record_is_produced_once_though_the_queue_is_full_again_and_again():
    class Queue:
        def __init__(self):
            self.room, self.taken = 3, []

        def produce(self, topic, value):
            if not self.room:
                raise BufferError
            self.room -= 1
            self.taken.append((topic, value))

        def poll(self, _seconds):
            self.room = 3

    queue = Queue()
    values = [b"%d" % number for number in range(10)]
    kafka.produce_all(queue, "t", values)
    assert queue.taken == [("t", value) for value in values]


def test_a_restarts_time_is_that_of_the_first_batch():
    progress = [
        {
            "durationMs": {
                "triggerExecution": 4000,
                "addBatch": 3500,
                "queryPlanning": 300,
                "getBatch": 20,
            }
        },
        {"durationMs": {}},
    ]
    steps = [
        {"step": "InspectLog", "start_s": 10.0, "end_s": 10.25},
        {"step": "confirm:kafka", "start_s": 13.0, "end_s": 13.5},
        {"step": "RunWrites", "start_s": 10.5, "end_s": 13.5},
        {"step": "RunWrites", "start_s": 20.0, "end_s": 20.5},
    ]
    assert profile_path.of_restart(8.0, progress, steps) == {
        "all": 12.0,
        "ready": 8.0,
        "batch": 4.0,
        "plan": 0.32,
        "write": 3.5,
        "recover": 0.25,
        "job": 3.0,
    }
    assert "job" not in profile_path.of_restart(8.0, progress, [])
    # The dead driver had decided the batch: it takes a moment only, and the next one writes.
    decided = [{"durationMs": {"triggerExecution": 700, "addBatch": 400}}, *progress]
    assert profile_path.of_restart(8.0, decided, steps) is None


class TestThreads:
    def test_a_threads_name_may_have_brackets_and_blanks(self):
        fields = " ".join(["S", "1", *"0" * 9, "120", "30", "7", "7"])
        assert threads.parsed(f"41 (GC Thread#0 (a)) {fields}") == ("GC Thread#0 (a)", 150)

    def test_each_kind_has_its_share_of_what_was_spent_between_two_looks(self):
        jit, task = (
            threads.kind_of("jvm", "C2 CompilerThre"),
            threads.kind_of("jvm", "Executor task l"),
        )
        python, sends = (
            threads.kind_of("workers", "python3"),
            threads.kind_of("workers", "rdk:broker1"),
        )
        assert len({jit, task, python, sends, threads.kind_of("broker", "C2 CompilerThre")}) == 5
        before = {(1, 1, jit): 10.0, (1, 2, task): 5.0}
        after = {(1, 1, jit): 11.0, (1, 2, task): 7.0, (2, 1, python): 1.0}
        assert threads.shares(before, after) == {task: 0.5, jit: 0.25, python: 0.25}
        assert threads.shares(after, after) == {}

    def test_this_process_is_found_with_the_time_it_took(self):
        found = threads.seconds_of({"workers": [psutil.Process()]})
        assert {pid for pid, _, _ in found} == {os.getpid()}
        assert sum(found.values()) > 0


def test_measurements_are_listed_until_they_are_there(tmp_path):
    from benchmarks.__main__ import MEASUREMENTS, due
    from benchmarks.report.results import Results

    results = Results(tmp_path, source="a")
    wanted = due(results, list(MEASUREMENTS), quick=False)
    places = [each.turn + each.plan.lag for each in wanted]
    assert places == sorted(places)
    first = wanted[0]
    results.add(
        first.measurement.name,
        first.plan.parameters(),
        0,
        ["ours"],
        {"ours": {"records_per_s": 1}},
        time.monotonic(),
    )
    assert len(due(results, list(MEASUREMENTS), quick=False)) == len(wanted) - 1


def test_more_rounds_may_be_wanted_of_what_a_target_needs(tmp_path):
    from benchmarks.__main__ import due
    from benchmarks.report.results import Results

    results = Results(tmp_path, source="a")
    plain, more = (due(results, ["throughput"], quick=False, at_least=count) for count in (0, 8))
    targets = [each for each in more if not each.plan.lag]
    assert {each.turn for each in targets} == set(range(8))
    assert [each for each in more if each.plan.lag] == [each for each in plain if each.plan.lag]
    begun = [each.plan.order(each.turn)[0] for each in targets]
    assert {begun.count(name) for name in begun} == {len(targets) // 4}
