"""What a failpoint does when it is switched on, each in a process of its own, and that nothing
unknown can be switched on."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from onceforall.failpoints import points as failpoints
from support.waiting import until

PROGRAM = """
import sys
from onceforall.failpoints import points as failpoints

@failpoints.around("test.whole")
def whole():
    print("inside", flush=True)

for _ in range(int(sys.argv[1])):
    try:
        failpoints.hit("test.here")
    except Exception as error:
        print(type(error).__name__, getattr(error, "errno", ""), flush=True)
    else:
        print("passed", flush=True)
whole()
"""

IN_A_THREAD = """
import os, threading, time
from onceforall.failpoints import points as failpoints

def pass_it():
    ready.wait()
    for _ in range(2 * os.cpu_count()):
        if os.fork() == 0:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                pass
            os._exit(0)
    failpoints.hit("test.here")
    os.write(1, b"went on\\n")

ready = threading.Event()
thread = threading.Thread(target=pass_it)
thread.start()
# All processors are busy soon, and this thread, which would take a signal to the process, is the one that can wait.
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
ready.set()
thread.join()
"""


def start(specification, hits=1, command=(), **variables):
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(failpoints.VARIABLE)
    }
    arguments = [*command, sys.executable, "-c", PROGRAM, str(hits)]
    return subprocess.Popen(
        arguments,
        env={
            **environment,
            failpoints.VARIABLE: specification,
            **{key: str(value) for key, value in variables.items()},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process):
    out, errors = process.communicate(timeout=60)
    return process.returncode, out.split("\n")[:-1], errors


class TestActions:
    def test_kill_ends_the_process_at_the_named_hit(self):
        code, lines, _ = ended(start("test.here=kill@3", hits=5))
        assert (code, lines) == (-signal.SIGKILL, ["passed", "passed"])

    def test_kill_jvm_ends_the_parent_as_well(self):
        parent = "import subprocess, sys; print(subprocess.call(sys.argv[1:]), flush=True)"
        code, lines, _ = ended(start("test.here=kill-jvm", command=(sys.executable, "-c", parent)))
        assert (code, lines) == (-signal.SIGKILL, [])

    def test_raise_raises_once(self):
        code, lines, _ = ended(start("test.here=raise@2", hits=3))
        assert (code, lines) == (0, ["passed", "FailpointError ", "passed", "inside"])

    def test_error_raises_the_error_of_the_operating_system(self):
        code, lines, _ = ended(start("test.here=error:ENOSPC", hits=2))
        assert (code, lines) == (0, ["OSError 28", "passed", "inside"])

    def test_a_plus_acts_at_each_later_hit_too(self):
        code, lines, _ = ended(start("test.here=error:EROFS@2+", hits=4))
        assert (code, lines) == (0, ["passed", "OSError 30", "OSError 30", "OSError 30", "inside"])

    def test_freeze_stops_the_process_until_it_is_told_to_go_on(self):
        process = start("test.here=freeze")
        until(
            lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED,
            30,
            "the process is frozen",
        )
        process.send_signal(signal.SIGCONT)
        code, lines, _ = ended(process)
        assert (code, lines) == (0, ["passed", "inside"])

    def test_freeze_stops_the_thread_that_is_there_before_it_goes_on(self):
        """A signal to the process may be taken by any of its threads, and those that have not
        heard go on for a while."""
        variables = {**os.environ, failpoints.VARIABLE: "test.here=freeze"}
        command = [sys.executable, "-c", IN_A_THREAD]
        with subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            try:
                until(
                    lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED,
                    60,
                    "the process is frozen",
                )
                os.set_blocking(process.stdout.fileno(), False)
                assert process.stdout.read() is None
            finally:
                process.send_signal(signal.SIGCONT)
            os.set_blocking(process.stdout.fileno(), True)
            assert process.stdout.read() == b"went on\n"

    def test_delay_waits_and_goes_on(self):
        began = time.monotonic()
        code, lines, _ = ended(start("test.here=delay:700", hits=2))
        assert (code, lines) == (0, ["passed", "passed", "inside"])
        assert time.monotonic() - began >= 0.7

    def test_around_lies_before_and_behind_the_call(self):
        assert ended(start("test.whole.asked=kill"))[:2] == (-signal.SIGKILL, ["passed"])
        assert ended(start("test.whole.answered=kill"))[:2] == (
            -signal.SIGKILL,
            ["passed", "inside"],
        )


class TestOverProcesses:
    def test_with_a_folder_for_what_was_seen_it_acts_once_over_all(self, tmp_path):
        seen = {failpoints.SEEN_VARIABLE: tmp_path}
        assert ended(start("test.here=kill", **seen))[0] == -signal.SIGKILL
        assert [path.name for path in tmp_path.iterdir()] == ["test.here"]
        assert ended(start("test.here=kill", **seen))[:2] == (0, ["passed", "inside"])

    def test_what_is_passed_is_recorded_whether_it_acts_or_not(self, tmp_path):
        code, lines, _ = ended(start("", hits=2, **{failpoints.RECORD_VARIABLE: tmp_path}))
        assert (code, lines) == (0, ["passed", "passed", "inside"])
        expected = ["test.here@driver", "test.whole.answered@driver", "test.whole.asked@driver"]
        assert sorted(path.name for path in tmp_path.iterdir()) == expected


class TestSpecification:
    def test_an_unknown_name_is_refused_at_the_start_with_those_near_to_it(self):
        code, lines, errors = ended(start("append_comit.after=kill"))
        assert (code, lines) == (1, [])
        assert "no failpoint 'append_comit.after'" in errors
        assert "append_commit.after" in errors

    @pytest.mark.parametrize(
        "entry", ["claim.before", "claim.before=", "claim.before=die", "claim.before=kill@0", "claim.before=kill@x",
                  "claim.before=error:NOSUCH", "claim.before=error:", "claim.before=delay:soon", "claim.before=kill:9"],
    )  # fmt: skip
    def test_a_wrong_action_is_refused(self, entry):
        with pytest.raises(ValueError, match="is not name=action"):
            failpoints._Failpoints(entry, None)

    def test_several_entries_are_read(self):
        made = failpoints._Failpoints(" claim.before=raise@2 ; test.mine=delay:5;", None)
        assert made._plans.keys() == {"claim.before", "test.mine"}


class TestArming:
    def test_a_running_process_can_be_armed(self, monkeypatch):
        monkeypatch.setattr(failpoints, "_failpoints", None)
        failpoints.hit("test.here")
        failpoints.arm("test.here=raise")
        with pytest.raises(failpoints.FailpointError, match=r"test\.here"):
            failpoints.hit("test.here")
        with pytest.raises(ValueError, match="no failpoint"):
            failpoints.arm("no.such=raise")


class TestOff:
    def test_a_marked_function_is_the_function_itself(self):
        assert failpoints._failpoints is None, "this test runs without failpoints"

        def function():
            raise AssertionError

        assert failpoints.around("test.whole")(function) is function
        assert failpoints.hit("test.here") is None
