"""Each way of ending a program, at each moment: readers at read_committed go on at once, and the
next start writes each row once."""

import os
import signal
import time

import pytest

from support.driver import assert_exactly_once
from support.reading import held_back, reads_on
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

WHILE_A_TASK_WRITES = "task.pre_commit.before=delay:60000@3"
AFTER_THE_DECISION = "commit.before=delay:1500@3"
BEFORE_A_JOB = "write.job.before=delay:1500@3"


def to_the_program(driver):
    return lambda number: driver.process.send_signal(number)


def to_the_group(driver):
    """As a terminal does with Ctrl-C, and systemd with SIGTERM: the JVM gets it too."""
    return lambda number: os.killpg(driver.process.pid, number)


def to_the_jvm(driver):
    """As Kubernetes and YARN do where spark-submit has started the program."""
    return lambda number: driver.signal_jvm(number)


def started(pipeline, failpoint, **config):
    """Start a program that just waits for its query, and wait until it is at that failpoint."""
    driver = pipeline.start(failpoint, awaits=True, **config)
    driver.wait_for_failpoint(failpoint.partition("=")[0])
    return driver


def ended(driver, within_s=20):
    """Wait for the program's end, and return its exit code and how long that took; its JVM may
    live on."""
    began = time.monotonic()
    until(lambda: driver.process.poll() is not None, within_s, driver.log())
    return driver.process.returncode, time.monotonic() - began


def assert_nothing_is_left(pipeline):
    reads_on(pipeline.bootstrap, pipeline.topic)
    for driver in pipeline.drivers:
        driver.wait()
    assert held_back(pipeline.bootstrap, pipeline.topic) == 0
    pipeline.run()
    assert_exactly_once(pipeline)


def decided(pipeline):
    return [entry["body"]["batch"] for entry in pipeline.entries("COMMIT")]


def done(pipeline):
    return [entry["body"]["batch"] for entry in pipeline.entries("DONE")]


@pytest.mark.parametrize(
    ("to", "number", "code"),
    [
        pytest.param(to_the_program, signal.SIGTERM, -signal.SIGTERM, id="SIGTERM"),
        pytest.param(
            to_the_group,
            signal.SIGTERM,
            -signal.SIGTERM,
            id="SIGTERM-to-all",
            marks=pytest.mark.long,
        ),
        pytest.param(
            to_the_jvm, signal.SIGTERM, 1, id="SIGTERM-to-the-JVM", marks=pytest.mark.long
        ),
        pytest.param(
            to_the_program, signal.SIGINT, -signal.SIGINT, id="SIGINT", marks=pytest.mark.long
        ),
        pytest.param(
            to_the_group, signal.SIGINT, -signal.SIGINT, id="Ctrl-C", marks=pytest.mark.long
        ),
    ],
)
def test_a_signal_while_a_task_writes_aborts_the_batch_before_the_program_ends(
    pipeline, to, number, code
):
    driver = started(pipeline, WHILE_A_TASK_WRITES)
    until(
        lambda: held_back(pipeline.bootstrap, pipeline.topic) > 0,
        30,
        "a transaction is open, or the test proves nothing",
    )
    before = decided(pipeline)
    to(driver)(number)
    assert ended(driver)[0] == code, driver.log()
    assert decided(pipeline) == before
    assert_nothing_is_left(pipeline)


@pytest.mark.parametrize(
    ("to", "number", "code"),
    [
        pytest.param(
            to_the_program, signal.SIGTERM, -signal.SIGTERM, id="SIGTERM", marks=pytest.mark.long
        ),
        pytest.param(
            to_the_group,
            signal.SIGTERM,
            -signal.SIGTERM,
            id="SIGTERM-to-all",
            marks=pytest.mark.long,
        ),
        pytest.param(
            to_the_jvm, signal.SIGTERM, 1, id="SIGTERM-to-the-JVM", marks=pytest.mark.long
        ),
        pytest.param(
            to_the_group, signal.SIGINT, -signal.SIGINT, id="Ctrl-C", marks=pytest.mark.long
        ),
    ],
)
def test_a_signal_after_the_decision_commits_the_batch_on_all_sinks_before_the_program_ends(
    pipeline, to, number, code
):
    """With two sinks: their commits are made at once, in threads, while Python ends."""
    pipeline.config |= {"sinks": ["kafka", "files"], "files": str(pipeline.folder / "out")}
    driver = started(pipeline, AFTER_THE_DECISION)
    undone = set(decided(pipeline)) - set(done(pipeline))
    assert undone, "nothing is decided and incomplete; the test proves nothing"
    to(driver)(number)
    assert ended(driver)[0] == code, driver.log()
    assert undone <= set(done(pipeline)), driver.log()
    assert_nothing_is_left(pipeline)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_program_at_once_and_the_next_start_mends_it(pipeline, number):
    """The first is being answered: the abort waits for up to four seconds until Spark kills the
    task."""
    driver = started(pipeline, WHILE_A_TASK_WRITES)
    to_the_program(driver)(number)
    until(lambda: "the process is ending" in driver.log(), 10, driver.log())
    driver.process.send_signal(number)
    code, seconds = ended(driver)
    assert code == -number
    assert seconds < 3, seconds
    pipeline.run()
    assert_exactly_once(pipeline)


@pytest.mark.long
@pytest.mark.parametrize("stops", ["query", "spark"])
def test_a_stop_from_another_thread_before_a_job_begins_ends_the_program_in_order_and_soon(
    pipeline, tmp_path, stops
):
    """Spark cancels the batch's jobs when it is asked to stop, and then waits for the batch:
    nobody cancels a job that begins in between."""
    stop_file = tmp_path / "stop"
    driver = started(
        pipeline,
        f"{BEFORE_A_JOB};task.begin.before=delay:15000@5",
        stop_file=str(stop_file),
        stops=stops,
    )
    stop_file.touch()
    code, seconds = ended(driver)
    assert code == (0 if stops == "query" else 1), driver.log()
    assert seconds < 8, f"{seconds}\n{driver.log()}"
    assert_nothing_is_left(pipeline)
