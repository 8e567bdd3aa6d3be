"""CPU and memory of trees of processes, and child programs of a measurement."""

import os
import resource
import signal
import subprocess
import sys

import psutil
import pytest

from benchmarks.stands import processes
from benchmarks.stands.children import Child, MeasurementError
from support.waiting import until

BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


def test_the_time_of_a_child_that_has_ended_is_still_counted():
    script = (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', "
        f"{BUSY!r}])\nprint(flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        parent.stdout.readline()
        assert processes.cpu_seconds(processes.tree(parent.pid)) >= 0.3
        assert processes.proportional_mb(processes.tree(parent.pid)) > 1
        parent.stdin.close()


def test_the_meter_tells_what_was_spent_between_two_moments():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            with processes.Meter({"busy": busy.pid, "nobody": 2**22}) as meter:
                until(lambda: len(meter._cpu["busy"]) > 3, 60, "some looks")
            moments = [moment for moment, _ in meter._cpu["busy"]]
            spent = meter.cpu_between(moments[0], moments[-1])
            assert set(spent) == {"busy"}
            assert 0 < spent["busy"] <= 1.5 * (moments[-1] - moments[0]) + 0.1
            assert meter.peak_mb()["busy"] > 1
        finally:
            busy.kill()


class TestChild:
    def test_what_it_says_is_read_and_it_is_killed_with_everything_below_it(self, tmp_path):
        script = (
            "import json, pathlib, subprocess, sys\n"
            "below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            "pathlib.Path('new').write_text(json.dumps(below.pid))\n"
            "pathlib.Path('new').rename('pid.json')\n"
            "below.wait()\n"
        )
        with Child([sys.executable, "-c", script], tmp_path / "work") as child:
            below = psutil.Process(child.said("pid.json"))
            pid = child.pid
        until(
            lambda: not below.is_running() or below.status() == psutil.STATUS_ZOMBIE,
            20,
            "the end of what was below",
        )
        assert not psutil.pid_exists(pid)

    def test_one_that_fails_is_told_with_its_last_words(self, tmp_path):
        with Child(
            [sys.executable, "-c", "raise SystemExit('no luck today')"], tmp_path / "work"
        ) as child:
            with pytest.raises(MeasurementError, match="no luck today"):
                child.said("ready.json")
            with pytest.raises(MeasurementError, match="ended with 1"):
                child.check()

    def test_one_that_ended_well_may_have_left_what_is_waited_for(self, tmp_path):
        with Child([sys.executable, "-c", "pass"], tmp_path / "work") as child:
            child.wait(60)
            looks = iter([False, False, True])
            assert child.until(lambda: next(looks), 60, "the third look")

    def test_lines_that_are_still_being_written_are_left_out(self, tmp_path):
        with Child(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], tmp_path / "work"
        ) as child:
            (tmp_path / "work" / "steps.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a":')
            assert child.lines("steps.jsonl") == [{"a": 1}, {"a": 2}]
            assert child.lines("none.jsonl") == []
            os.kill(child.pid, signal.SIGKILL)


def test_memory_is_touched_and_given_back():
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_stime
    assert processes.warm_memory(1.0) > 0
    # The kernel has cleared so many pages for it.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_stime > before + 0.02
