"""The process that is killed."""

from __future__ import annotations

import psutil
import pytest

from onceforall.demo.driver import Driver, is_java
from onceforall.demo.job import DATABASE_VARIABLE


@pytest.fixture
def driver(tmp_path):
    """Start the job with arguments that it takes or not; it is gone after the test."""
    started = []

    def start(*arguments):
        environment = {
            DATABASE_VARIABLE: "postgresql://nobody:hunter2-of-the-demo@127.0.0.1:1/none"
        }
        started.append(
            Driver(arguments, work_dir=tmp_path, log=tmp_path / "job.log", environment=environment)
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()


def job_arguments(folder):
    named = {
        "writer": "spark",
        # Nobody listens there: Spark starts, and waits for the broker until it is killed.
        "bootstrap-servers": "127.0.0.1:1",
        "input": "flights",
        "work-dir": folder,
        "checkpoints": folder,
        "stop-file": folder / "stop",
        "jars": "none.jar",
        "max-offsets-per-trigger": 10,
    }
    return [text for name, value in named.items() for text in (f"--{name}", str(value))]


def test_a_driver_that_ended_by_itself_does_not_count_as_killed_and_says_why(driver):
    ended = driver("--no-such-option")
    assert ended.wait(60)
    assert ended.return_code == 2
    assert not ended.kill()
    assert "usage:" in ended.last_words()


@pytest.mark.spark
def test_a_kill_ends_python_and_its_jvm_by_sigkill_and_leaves_nothing(driver, tmp_path):
    running = driver(*job_arguments(tmp_path))
    tree = []
    # Spark's launcher becomes the JVM.
    while not any(is_java(process) for process in tree):
        assert running.return_code is None, running.last_words()
        tree = psutil.Process(running._process.pid).children(recursive=True)
    java = next(process for process in tree if is_java(process))
    assert "hunter2-of-the-demo" not in " ".join([*java.cmdline(), *java.environ().values()])
    assert running.kill()
    assert running.return_code == -9
    assert not [
        process
        for process in tree
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def test_last_words_are_of_this_life_only(driver, tmp_path):
    (tmp_path / "job.log").write_text("words of an earlier life\n")
    ended = driver("--no-such-option")
    assert ended.wait(60)
    assert "earlier life" not in ended.last_words()
