"""How a process ends whose queries are to be stopped in order: real processes and signals,
without Spark. tests/crash/test_stopping.py has Spark's part."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from onceforall.common.threads import Threads
from onceforall.driver import stopping
from onceforall.driver.stopping import Stopping, stop_on_sigterm
from onceforall.errors import QueryStoppedError
from support.waiting import until

PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path

from onceforall.driver import stopping
from onceforall.common.threads import Threads

folder = Path(sys.argv[1])
# A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Run:
    def ask_to_stop(self):
        (folder / "asked").touch()

    def settle(self, until_s):
        with Threads(2) as threads:
            threads.submit((folder / "settled").touch).result()


class SlowRun(Run):
    def settle(self, until_s):
        (folder / "settling").touch()
        threading.Event().wait(30)


def ready():
    (folder / "ready").touch()


def wait():
    ready()
    threading.Event().wait(30)
"""


class Program:
    def __init__(self, folder, text):
        self.folder = folder
        script = folder / "program.py"
        script.write_text(PRELUDE + text)
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder)], stderr=subprocess.PIPE, text=True
        )
        self.wait_for("ready")

    def wait_for(self, name):
        until(lambda: (self.folder / name).exists() or self.process.poll() is not None, 30, name)
        assert (self.folder / name).exists(), self.process.stderr.read()

    def send(self, number):
        self.process.send_signal(number)
        return self

    def code(self):
        try:
            self.process.wait(25)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode

    def left(self):
        return {file.name for file in self.folder.iterdir()} - {"program.py", "ready"}


@pytest.fixture
def program(tmp_path):
    made = []

    def start(text):
        made.append(Program(tmp_path, text))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait()
        each.process.stderr.close()


ARMED = "stopping.arm(); stopping.PROCESS.add(Run())\n"


def test_sigterm_stops_the_runs_and_then_ends_the_process_by_the_same_signal_without_its_own_code(
    program,
):
    ended = program(f"{ARMED}try:\n    wait()\nfinally:\n    (folder / 'finally').touch()").send(
        signal.SIGTERM
    )
    assert ended.code() == -signal.SIGTERM
    assert ended.left() == {"asked", "settled"}


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1)],
    ids=["last-line", "exit", "exception"],
)
def test_the_end_of_the_program_stops_the_runs_with_threads_and_keeps_its_exit_code(
    program, end, code
):
    ended = program(f"{ARMED}ready()\n{end}")
    assert ended.code() == code
    assert ended.left() == {"asked", "settled"}


def test_ctrl_c_stops_the_runs(program):
    ended = program(f"{ARMED}wait()").send(signal.SIGINT)
    assert ended.code() == -signal.SIGINT
    assert ended.left() == {"asked", "settled"}


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.sample(1)
def test_a_second_signal_ends_the_process_at_once(program, first, second):
    ended = program("stopping.arm(); stopping.PROCESS.add(SlowRun())\nwait()").send(first)
    ended.wait_for("settling")
    began = time.monotonic()
    assert ended.send(second).code() == -(
        signal.SIGTERM if signal.SIGTERM in {first, second} else signal.SIGINT
    )
    assert time.monotonic() - began < 5


def test_a_signal_that_is_sent_twice_for_one_end_ends_in_order(program):
    """As Spark sends it to its children."""
    ended = program(
        """
class WaitingRun(Run):
    def settle(self, until_s):
        (folder / "settling").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        super().settle(until_s)


stopping.arm(repeats=True)
stopping.PROCESS.add(WaitingRun())
wait()
"""
    ).send(signal.SIGTERM)
    ended.wait_for("settling")
    ended.send(signal.SIGTERM)
    (ended.folder / "go").touch()
    assert ended.code() == 128 + signal.SIGTERM
    assert ended.left() == {"asked", "settling", "go", "settled"}


def test_a_handler_of_the_program_stays_in_force(program):
    ended = program(f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n{ARMED}wait()").send(
        signal.SIGTERM
    )
    assert ended.code() == 7
    assert ended.left() == {"asked", "settled"}


def test_a_sigterm_that_the_program_ignores_stays_ignored(program):
    ended = (
        program(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{ARMED}wait()")
        .send(signal.SIGTERM)
        .send(signal.SIGINT)
    )
    assert ended.code() == -signal.SIGINT


def test_a_thread_of_the_program_that_is_no_daemon_ends_before_the_runs_are_stopped(program):
    text = """
def later():
    until = time.monotonic() + 20
    while not (folder / "go").exists() and time.monotonic() < until:
        time.sleep(0.01)
    (folder / ("too early" if (folder / "asked").exists() else "in time")).touch()

threading.Thread(target=later).start()
threading.Thread(target=lambda: (threading.main_thread().join(), (folder / "main has ended").touch())).start()
ready()
"""
    ended = program(ARMED + text)
    ended.wait_for("main has ended")
    (ended.folder / "go").touch()
    assert ended.code() == 0
    assert ended.left() == {"go", "main has ended", "in time", "asked", "settled"}


def test_a_child_made_by_fork_ends_at_once_and_stops_nothing(program):
    text = """
child = os.fork()
if child == 0:
    (folder / "ready").touch()
    time.sleep(30)
_, status = os.waitpid(child, 0)
(folder / f"child {os.waitstatus_to_exitcode(status)}, run {'stopped' if (folder / 'asked').exists() else 'goes on'}").touch()
"""
    ended = program(
        f"{ARMED}{text.replace('time.sleep(30)', 'os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)')}"
    )
    assert ended.code() == 0
    assert ended.left() == {"child -15, run goes on", "asked", "settled"}


def test_the_queries_that_a_child_made_by_fork_has_started_are_stopped_when_it_ends(program):
    text = """
child = os.fork()
if child == 0:
    stopping.arm()
    stopping.PROCESS.add(Run())
    ready()
    sys.exit(0)
os.waitpid(child, 0)
(folder / f"child's run {'stopped' if (folder / 'settled').exists() else 'left alone'}").touch()
os._exit(0)
"""
    ended = program(f"{ARMED}{text}")
    assert ended.code() == 0
    assert ended.left() == {"child's run stopped", "asked", "settled"}


def test_another_thread_than_the_main_one_installs_nothing():
    answers = []
    thread = threading.Thread(target=lambda: answers.append(stop_on_sigterm()))
    thread.start()
    thread.join()
    assert answers == [False]


class Recorder:
    def __init__(self):
        self.seen = []

    def ask_to_stop(self):
        self.seen.append("asked")

    def settle(self, until_s):
        self.seen.append("settled")


def test_a_batch_that_is_under_way_ends_before_anything_is_swept_and_none_begins_after_it():
    stopping, run = Stopping(), Recorder()
    stopping.add(run)
    with stopping.batch():
        thread = threading.Thread(target=stopping.stop_all)
        thread.start()
        until(lambda: run.seen == ["asked"], 10, "the stop is asked for")
        with pytest.raises(QueryStoppedError, match="the process is ending"), stopping.batch():
            pass
        with pytest.raises(QueryStoppedError):
            stopping.refuse_new_work()
        assert run.seen == ["asked"]
    thread.join(10)
    assert run.seen == ["asked", "settled"]


def test_a_batch_that_begins_while_the_process_ends_is_refused_or_waited_for():
    """There is no moment between its look and its count."""
    threads = []

    class Slow(Stopping):
        def refuse_new_work(self):
            super().refuse_new_work()
            threads.append(threading.Thread(target=self.stop_all))
            threads[0].start()
            # It is held up by this batch, which is beginning.
            threads[0].join(0.3)

    stopping, run = Slow(), Recorder()
    stopping.add(run)
    with stopping.batch():
        until(lambda: run.seen == ["asked"], 10, "the stop is asked for")
        assert threads[0].is_alive()
    threads[0].join(10)
    assert run.seen == ["asked", "settled"]


def test_a_batch_that_does_not_end_is_left_alone_and_what_it_prepared_is_not_swept(caplog):
    stopping, run = Stopping(), Recorder()
    stopping.add(run)
    with stopping.batch():
        stopping.stop_all(within_s=0.1)
    assert "settled" not in run.seen
    assert "a batch has not ended" in caplog.text


def test_a_run_that_has_ended_is_not_stopped_again():
    stopping, run = Stopping(), Recorder()
    stopping.add(run)
    stopping.remove(run)
    stopping.stop_all()
    assert run.seen == []


def test_a_pool_that_was_shut_down_refuses_work_while_the_program_runs():
    pool = Threads(1)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(len, "")


AFTER_THE_LAST_LINE = """
stop = threading.Event()
threading.Thread(target=stop.wait, args=[30]).start()
threading.Thread(target=lambda: (threading.main_thread().join(), ready()), daemon=True).start()
"""
"""A thread of the program goes on when the main thread has ended, as one that waits for its
query does."""

PYSPARKS = """
def handler(number, frame):
    (folder / "jobs cancelled").touch()
    raise KeyboardInterrupt

handler.__module__ = "pyspark.core.context"
signal.signal(signal.SIGINT, handler)
"""


@pytest.mark.parametrize("handler", ["", PYSPARKS], ids=["python", "pyspark"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_python_waits_for_other_threads_stops_the_runs_before_it_ends(
    program, number, handler
):
    ended = program(f"{handler}{ARMED}{AFTER_THE_LAST_LINE}").send(number)
    assert ended.code() == -number
    assert ended.left() == {"asked", "settled"}


def test_ctrl_c_in_the_program_is_still_answered_by_pyspark(program):
    ended = program(f"{PYSPARKS}{ARMED}wait()").send(signal.SIGINT)
    assert ended.code() == -signal.SIGINT
    assert ended.left() == {"jobs cancelled", "asked", "settled"}


def test_a_handler_of_the_programs_own_for_ctrl_c_stays_in_force_behind_the_last_line_too(program):
    text = "signal.signal(signal.SIGINT, lambda *_: ((folder / 'own').touch(), stop.set()))\n"
    ended = program(f"{text}{ARMED}{AFTER_THE_LAST_LINE}").send(signal.SIGINT)
    assert ended.code() == 0
    assert ended.left() == {"own", "asked", "settled"}


def test_a_child_made_by_fork_has_pythons_own_ctrl_c(program):
    text = """
child = os.fork()
if child == 0:
    os._exit(5 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 6)
_, status = os.waitpid(child, 0)
ready()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    assert program(f"{ARMED}{text}").code() == 5


def test_where_no_thread_can_be_started_behind_the_last_line_the_runs_are_stopped_all_the_same(
    program,
):
    """Pythons 3.12.0 and 3.12.1 refuse it then."""
    text = """
start = threading.Thread.start

def refuses(thread):
    if not threading.main_thread().is_alive():
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start(thread)

stopping.arm()
threading.Thread.start = refuses
stopping.PROCESS.add(Run())
ready()
"""
    ended = program(text)
    assert ended.code() == 0
    assert ended.left() == {"asked", "settled"}


def test_ctrl_c_is_one_whatever_pyspark_s_handler_makes_of_it(monkeypatch):
    """Before 4.2 it raises what became of cancelling the jobs."""

    def handler(number, frame):
        raise RuntimeError("reentrant call inside <_io.BufferedReader name=3>")

    monkeypatch.setattr(stopping, "_wrapped", handler)
    with pytest.raises(KeyboardInterrupt) as caught:
        stopping._on_interrupt(signal.SIGINT, None)
    assert "reentrant call" in str(caught.value.__cause__)
