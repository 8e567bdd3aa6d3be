"""What is asked of executors before a start, and what is said of the answers;
tests/crash/test_executors.py has a real cluster."""

import pickle
import subprocess
import sys
import threading
import time
from dataclasses import astuple
from types import SimpleNamespace

import pytest
from pyspark.cloudpickle import dumps

from onceforall.driver import executors
from onceforall.driver.executors import Answer, complaint
from onceforall.errors import ExecutorCheckError

NEEDED = {
    "pyarrow": "onceforall",
    "confluent_kafka": "onceforall[kafka]",
    "psycopg": "onceforall[postgres]",
    "redis": "redis>=5",
}


def answer(version="1.2", errors=None, host="worker-1", folders="/tmp/a"):
    return Answer(host, "/usr/bin/python3", "3.11.7", folders, version, errors or {})


def test_of_executors_that_have_everything_nothing_is_said():
    assert complaint([answer(), answer(host="worker-2")], NEEDED, "1.2") is None


def test_what_is_missing_is_to_be_installed_in_one_line_in_the_drivers_version():
    text = complaint(
        [answer(None, {"onceforall": "ModuleNotFoundError: No module named 'onceforall'"})],
        NEEDED,
        "1.2",
    )
    assert "pip install 'onceforall[kafka,postgres]==1.2' 'redis>=5';" in text


def test_only_the_extra_that_is_missing_is_to_be_installed():
    text = complaint(
        [answer(errors={"confluent_kafka": "ImportError: librdkafka.so"})], NEEDED, "1.2"
    )
    assert "can't import confluent_kafka" in text
    assert "ImportError: librdkafka.so" in text
    assert "pip install 'onceforall[kafka]==1.2';" in text


def test_what_an_import_says_is_shortened():
    for errors, version in (
        ({"onceforall": "x" * 100_000}, None),
        ({"confluent_kafka": "x" * 100_000}, "1.2"),
    ):
        assert len(complaint([answer(version, errors)], NEEDED, "1.2")) < 1500


@pytest.mark.parametrize(("there", "named"), [(1, 1), (3, 3), (4, 3), (100, 3)])
def test_many_executors_are_not_all_named(there, named):
    text = complaint([answer("1.1", host=f"worker-{i}") for i in range(there)], NEEDED, "1.2")
    assert text.count("has onceforall 1.1, and the driver has 1.2") == named
    assert (f"So it is with {there - 3} others." in text) == (there > 3)
    assert "pip install 'onceforall[kafka,postgres]==1.2' 'redis>=5';" in text


@pytest.mark.parametrize(("length", "cut"), [(500, False), (501, True)])
def test_a_reason_is_cut_only_where_that_is_shorter(length, cut, monkeypatch):
    monkeypatch.setattr(executors, "_LONGEST_REASON", 500)
    reason = executors._shortened("x" * length)
    assert reason == ("x" * 500 + " …" if cut else "x" * 500)


def test_the_function_that_asks_needs_nothing_of_this_library_where_it_runs(tmp_path):
    """The process that loads it is a Python without any package."""
    shipped = tmp_path / "function"
    shipped.write_bytes(dumps(executors.by_value(executors._report)))
    program = (
        f"import pickle; print(pickle.dumps(list(pickle.load(open({str(shipped)!r}, "
        "'rb'))(('json',), ()))).hex())"
    )
    cloudpickle = tmp_path / "pyspark"
    cloudpickle.mkdir()
    (cloudpickle / "__init__.py").touch()
    original = sys.modules["pyspark.cloudpickle"].__path__[0]
    (cloudpickle / "cloudpickle").symlink_to(original)
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.append({str(tmp_path)!r}); {program}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ((_, (_, _, _, _, version, errors)),) = pickle.loads(
        bytes.fromhex(done.stdout.strip())
    )  # our own process wrote it
    assert version is None
    assert "No module named 'onceforall'" in errors["onceforall"]


class Jobs:
    """Jobs that see one more executor each time."""

    def __init__(self, *seen):
        self.seen = list(seen)

    def __call__(self, context, found, modules):
        folders = self.seen.pop(0)
        return SimpleNamespace(
            ended=lambda _: folders is not None,
            answers=lambda: [
                (f"/tmp/{folder}", astuple(answer(folders=f"/tmp/{folder}"))) for folder in folders
            ],
        )


def ask(monkeypatch, jobs):
    monkeypatch.setattr(executors, "executors_of", lambda _: {"0": "a", "1": "b"})
    monkeypatch.setattr(executors, "_Job", jobs)
    return {each.folders for each in executors._ask(None, ("json",))}


def test_the_question_is_repeated_until_as_many_executors_have_answered_as_there_are(monkeypatch):
    jobs = Jobs("aa", "ab", "never asked")
    assert ask(monkeypatch, jobs) == {"/tmp/a", "/tmp/b"}
    assert jobs.seen == ["never asked"]


def test_executors_that_do_not_answer_hold_no_start_up(monkeypatch, caplog):
    caplog.set_level("INFO", logger="onceforall")
    assert ask(monkeypatch, Jobs(None)) == set()
    assert "0 of 2 executors have told" in caplog.text


def test_a_job_without_an_executor_is_cancelled_in_time(monkeypatch):
    stuck, cancelled = threading.Event(), []
    monkeypatch.setattr(executors, "_one_task_each", lambda *_: stuck.wait(30))
    context = SimpleNamespace(setJobGroup=lambda *_, **__: None, cancelJobGroup=cancelled.append)
    try:
        job = executors._Job(context, {}, ())
        assert not job.ended(0)
        assert len(cancelled) == 1
    finally:
        stuck.set()


def test_all_executors_that_answer_leave_no_line(monkeypatch, caplog):
    caplog.set_level("INFO", logger="onceforall")
    assert ask(monkeypatch, Jobs("ab")) == {"/tmp/a", "/tmp/b"}
    assert "have told" not in caplog.text


def test_a_python_that_cannot_be_started_there_is_told_with_its_cause(monkeypatch):
    def fails(*_):
        raise RuntimeError("Cannot run program python9")

    monkeypatch.setattr(executors, "_one_task_each", fails)
    told = []
    context = SimpleNamespace(
        setJobGroup=lambda *args, **more: told.append((args, more)), pythonExec="python9"
    )
    job = executors._Job(context, {}, ())
    assert job.ended(time.monotonic() + 30)
    with pytest.raises(ExecutorCheckError, match=r"with python9 .*Cannot run program python9"):
        job.answers()
    ((group, text), more) = told[0]
    assert (group, more) == (job._group, {"interruptOnCancel": True})
    assert "can every executor import it?" in text


def test_what_was_found_right_holds_for_these_executors_and_these_modules_alone(monkeypatch):
    there, asked = {"1": "a"}, []

    def ask(_, modules):
        asked.append(set(modules) & {"kafka_client", "postgres_client"})
        return [answer(executors.__version__)]

    monkeypatch.setattr(executors, "_checked", {})
    monkeypatch.setattr(executors, "is_connect", lambda _: False)
    monkeypatch.setattr(executors, "_is_this_python", lambda _: False)
    monkeypatch.setattr(executors, "executors_of", lambda _: dict(there))
    monkeypatch.setattr(executors, "_ask", ask)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(applicationId="app", pythonExec="python"))
    kafka, postgres = (
        SimpleNamespace(task_imports={f"{name}_client": name}) for name in ("kafka", "postgres")
    )

    def start(*sinks):
        asked.clear()
        executors.check_executors(spark, {str(at): sink for at, sink in enumerate(sinks)})
        return asked

    assert start(kafka) == [{"kafka_client"}]
    assert start(kafka) == []
    assert start(postgres) == [{"postgres_client"}]
    assert start(kafka, postgres) == [{"kafka_client", "postgres_client"}]
    assert start(postgres, kafka) == start(postgres) == start() == []
    there["2"] = "b"
    assert start(kafka) == [{"kafka_client"}]
    del there["1"]
    assert start(kafka) == []
    spark.sparkContext.pythonExec = "another python"
    assert start(kafka) == [{"kafka_client"}]


@pytest.mark.parametrize(
    ("master", "python", "same"),
    [
        ("local[2]", sys.executable, True),
        ("local", sys.executable, True),
        ("local-cluster[2,1,512]", sys.executable, False),
        ("spark://master:7077", sys.executable, False),
        ("local[2]", "/usr/bin/env", False),
        ("local[2]", "no-such-python", False),
    ],
)
def test_only_the_drivers_own_python_in_local_mode_is_not_asked(master, python, same):
    assert executors._is_this_python(SimpleNamespace(master=master, pythonExec=python)) is same
