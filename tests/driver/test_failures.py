"""``error_of``: the error of a failed run is found again, in this process and from text alone;
and one line of the log says it."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import traceback
import uuid
import weakref

import pytest

import onceforall as ofa
from onceforall import errors
from onceforall.driver import failures
from onceforall.driver import query_run as runs
from support.waiting import until

pytestmark = pytest.mark.usefixtures("forgotten")

QUERY_ID, RUN_ID = "4e00b5ce-b4d6-4d71-b70b-ec7634087e91", "87dcf855-b913-4e9b-9d9f-b6931bc2be87"
NOTES = sys.version_info >= (3, 11)


@pytest.fixture
def forgotten(monkeypatch):
    """As in a process that has not seen any run fail."""
    monkeypatch.setattr(failures, "_kept", failures._Kept())


def _call_proxy(raising):
    """py4j's function of this name is the first frame of what leaves ``foreachBatch``."""
    try:
        raising()
    except Exception as error:
        failures.tell(error, batch=7, run_id=RUN_ID, query_id=QUERY_ID, query_name="ads of März")
        return traceback.format_exc(), error
    raise AssertionError("nothing was raised")


def spark_text(raising, *, by="query.awaitTermination"):
    """What Spark makes of an error that leaves ``foreachBatch``, as two of its releases and
    methods have it."""
    text, _ = _call_proxy(raising)
    python = f"An exception was raised by the Python Proxy. Return Message: {text}"
    java = (
        "\tat py4j.Protocol.getReturnValue(Protocol.java:476)\n\tat "
        "jdk.proxy3/jdk.proxy3.$Proxy62.call(Unknown Source)\n"
    )
    if by == "query.awaitTermination":
        return (
            f"[STREAM_FAILED] Query [id = {QUERY_ID}, runId = {RUN_ID}] terminated with "
            "exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error "
            f"occurred in the user provided function in foreach batch sink. Reason: {python} "
            "SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query "
            f"===\nIdentifier: ads of März [id = {QUERY_ID}, runId = {RUN_ID}]\nCurrent Committed "
            f"Offsets: {{}}\n\nCurrent State: ACTIVE\n\n\nJVM "
            f"stacktrace:\norg.apache.spark.sql.streaming.StreamingQueryException: {python}\n{java}"
        )
    return f"{python}\n\nJVM stacktrace:\n{java}\n"


def caused(message="the topic t is full", kind=errors.RefusedRecordError):
    def raising():
        try:
            raise ValueError(
                "first\n\nThe above exception was the direct cause of the following "
                "exception:\n\nsecond"
            )
        except ValueError as error:
            ours = kind.__new__(kind, message)
            ours.sink, ours.transaction = "out", "ofa.1"
            raise ours from error

    return raising


MESSAGES = {
    "short": "no",
    "empty": "",
    "long": "x" * 30_000,
    "lines": "one\n  two\n\nthree\n",
    "unicode": "März — \u2028 \N{SNOWMAN} \U0001f600 \x85 end",
    "a trace of a task": textwrap.dedent(
        """\
        a job of the batch failed: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
          File "worker.py", line 1, in main
            process()
        onceforall.errors.SchemaError: another one

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "worker.py", line 2, in main
        onceforall.errors.FencedError: not this one
        """
    ),
    "a note": 'text\n[onceforall] {"batch": 1000}',
    "a broken note": "text\n[onceforall] {",
}


@pytest.mark.skipif(
    not NOTES, reason="Python 3.10 prints no notes, so the text doesn't have the fields"
)
@pytest.mark.parametrize("by", ["query.awaitTermination", "query.exception"])
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_an_error_of_another_process_is_read_from_its_text_as_it_was(message, by):
    text = spark_text(caused(message), by=by)
    error = failures.from_text(text)
    assert type(error) is errors.RefusedRecordError
    assert str(error) == message
    fields = (
        error.query_name,
        error.query_id,
        error.run_id,
        error.batch,
        error.sink,
        error.transaction,
    )
    assert fields == ("ads of März", QUERY_ID, RUN_ID, 7, "out", "ofa.1")


@pytest.mark.parametrize(
    "message", ["no", "one\n  two\n\nthree", MESSAGES["unicode"]], ids=["short", "lines", "unicode"]
)
@pytest.mark.parametrize("by", ["query.awaitTermination", "query.exception"])
def test_without_notes_the_class_and_the_message_are_read_all_the_same(monkeypatch, message, by):
    text = spark_text(caused(message), by=by)
    kept = "\n".join(line for line in text.split("\n") if not line.startswith(failures.NOTE))
    error = failures.from_text(kept)
    assert (type(error), str(error)) == (errors.RefusedRecordError, message)
    assert error.run_id == (RUN_ID if by == "query.awaitTermination" else None)


@pytest.mark.parametrize("name", [name for name in ofa.__all__ if name.endswith("Error")])
def test_every_class_of_errors_comes_back_from_text(name):
    kind = getattr(ofa, name)
    error = failures.from_text(spark_text(caused("what happened. What to do.", kind)))
    if kind is errors.QueryStoppedError:
        assert type(error) is errors.QueryStoppedError
    assert (type(error), str(error)) == (kind, "what happened. What to do.")


def test_a_class_of_ours_that_is_not_loaded_is_an_error_of_ours_at_least_and_others_are_none():
    text = spark_text(caused()).replace(
        "onceforall.errors.RefusedRecordError", "onceforall.later.BrandNewError"
    )
    assert type(failures.from_text(text)) is errors.OnceForAllError
    assert failures.from_text(spark_text(lambda: 1 / 0)) is None
    assert failures.from_text("") is None
    assert ofa.error_of("nothing of the kind") is None


def test_an_error_of_start_in_a_log_is_read_too():
    lines = [
        "INFO starting",
        "Traceback (most recent call last):",
        '  File "job.py", line 3, in <module>',
        "onceforall.errors.OptionError: no such option",
    ]
    error = ofa.error_of("\n".join(lines))
    assert (type(error), str(error)) == (errors.OptionError, "no such option")


@pytest.mark.parametrize("by", ["py4j", "Spark Connect's worker"])
def test_a_name_of_ours_in_somebodys_words_is_not_what_was_raised(by):
    said = "the page said:\nonceforall.errors.FencedError: another run has taken over\n"
    text, _ = _call_proxy(caused(said, errors.AttemptFailedError))
    if by != "py4j":
        worker = 'File "/opt/pyspark.zip/pyspark/sql/connect/streaming/worker/foreach_batch_worker.py", line 85, in main'
        text, found = re.subn(r'File ".*", line \d+, in _call_proxy', worker, text)
        assert found == 1
    error = failures.from_text(text)
    assert type(error) is errors.AttemptFailedError
    assert "the page said" in str(error)


def test_in_this_process_the_very_error_comes_back_with_its_cause_and_traceback():
    text, raised = _call_proxy(caused())
    for given in (text, RuntimeError(text), raised):
        assert ofa.error_of(given) is raised, type(given)
    assert isinstance(raised.__cause__, ValueError)
    assert "raise ValueError" in "".join(traceback.format_exception(raised.__cause__))


def test_an_error_of_ours_is_found_among_the_causes_of_another():
    ours = errors.FencedError("a newer run")
    wrapper = RuntimeError("my own wrapper")
    wrapper.__cause__ = ours
    assert ofa.error_of(wrapper) is ours


class _FalsyError(Exception):
    """As a group of errors that is empty, or one whose truth can't be told."""

    def __init__(self, truth):
        super().__init__("falsy")
        self._truth = truth

    def __bool__(self):
        return self._truth()


@pytest.mark.parametrize("truth", [lambda: False, lambda: 1 / 0])
def test_the_truth_of_an_error_does_not_matter(truth):
    outer, between, inner = RuntimeError("outer"), _FalsyError(truth), ofa.FencedError("fenced")
    outer.__cause__, between.__cause__ = between, inner
    assert ofa.error_of(outer) is inner


def test_what_is_none_of_ours_comes_back_as_it_was_given_and_nothing_as_none():
    theirs = KeyError("of the user's program")
    assert ofa.error_of(theirs) is theirs
    assert ofa.error_of(None) is None


@pytest.mark.parametrize(
    "wrong", [7, [], object(), {}, b"x"], ids=lambda wrong: type(wrong).__name__
)
def test_what_is_neither_query_nor_error_is_refused(wrong):
    with pytest.raises(ofa.OptionError, match="StreamingQuery"):
        ofa.error_of(wrong)


class Query:
    """A query as far as ``error_of`` looks at it; the real one is in the test with Spark."""

    def __init__(self, run_id, raised):
        self.runId, self._raised = run_id, raised

    def exception(self):
        return self._raised


def test_each_run_of_a_query_has_its_own_error_and_a_run_that_has_not_failed_has_none():
    first, second = errors.FencedError("same words"), errors.FencedError("same words")
    runs = [str(uuid.uuid4()) for _ in range(3)]
    for run_id, error in zip(runs, (first, second), strict=False):
        failures.tell(error, batch=1, run_id=run_id, query_id=QUERY_ID, query_name=None)
    spark = RuntimeError("Spark's own")
    assert [ofa.error_of(Query(run_id, spark)) for run_id in runs] == [first, second, spark]
    assert ofa.error_of(Query(runs[0], None)) is None


def test_the_errors_of_the_newest_runs_are_kept_and_no_more():
    kept = []
    for number in range(failures.KEPT_RUNS + 20):
        error = errors.FencedError(f"run {number}")
        failures.tell(error, batch=1, run_id=f"run-{number}", query_id=QUERY_ID, query_name=None)
        kept.append(weakref.ref(error))
        del error
    gc.collect()
    assert [ref() is not None for ref in kept] == [False] * 20 + [True] * failures.KEPT_RUNS


def test_what_a_kept_error_was_raised_beside_is_let_go():
    class Large:
        pass

    seen = []

    def raising():
        large = Large()
        seen.append(weakref.ref(large))
        raise ValueError("beside something large")

    _, error = _call_proxy(raising)
    gc.collect()
    assert failures._kept.of(RUN_ID) is error
    assert seen[0]() is None


def _from_none(raising):
    try:
        raising()
    except ValueError:
        raise errors.AttemptFailedError("a job has failed") from None


def _in_a_group(raising):
    try:
        raising()
    except ValueError as error:
        raise ExceptionGroup("several", [error])  # noqa: B904, F821  Python 3.11 has them


@pytest.mark.parametrize(
    "hide",
    [
        _from_none,
        pytest.param(
            _in_a_group,
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of Python 3.11"),
        ),
    ],
)
def test_what_the_frames_behind_a_hidden_error_hold_is_let_go(hide):
    class Large:
        pass

    seen = []

    def raising():
        large = Large()
        seen.append(weakref.ref(large))
        raise ValueError("beside something large")

    _call_proxy(lambda: hide(raising))
    gc.collect()
    assert seen[0]() is None


def test_one_line_at_level_error_says_the_error_with_query_batch_message_and_address(caplog):
    with caplog.at_level(logging.INFO, "onceforall"):
        _call_proxy(caused("two\nlines"))
    (record,) = [record for record in caplog.records if record.name == "onceforall"]
    assert record.levelno == logging.ERROR
    assert (
        record.getMessage() == "query ads of März failed in batch 7: RefusedRecordError: two lines "
        "(docs/errors.md#refusedrecorderror)"
    )


def test_the_line_of_an_endless_message_ends(caplog):
    _call_proxy(caused("x" * 100_000))
    assert len(caplog.records[-1].getMessage()) < 3000


def test_an_error_whose_text_cannot_be_read_is_kept_and_told_all_the_same(caplog):
    class UnreadableError(Exception):
        def __str__(self):
            raise AttributeError("response")

    error = UnreadableError()
    failures.tell(error, batch=7, run_id=RUN_ID, query_id=QUERY_ID, query_name="ads")
    assert (
        "query ads failed in batch 7: UnreadableError: (its text can't be read: AttributeError)"
        in caplog.text
    )
    assert ofa.error_of(f"[id = {QUERY_ID}, runId = {RUN_ID}]") is error
    assert ofa.error_of("another text") is None
    assert ofa.error_of(error) is error


def test_an_error_with_a_field_that_is_no_json_is_told_all_the_same(caplog):
    error = errors.RefusedRecordError("the row is too long")
    error.sink = {"out"}
    failures.tell(error, batch=7, run_id=RUN_ID, query_id=QUERY_ID, query_name=None)
    assert "the row is too long" in caplog.text


def test_a_stop_is_no_failure_and_its_text_stays_as_spark_must_see_it(caplog):
    with caplog.at_level(logging.INFO, "onceforall"):
        text, error = _call_proxy(
            caused("java.lang.InterruptedException)", errors.QueryStoppedError)
        )
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert failures.NOTE not in text
    assert failures._kept.of(RUN_ID) is None
    assert error.batch == 7


def test_an_error_with_its_fields_can_be_sent_to_another_process():
    error = errors.FencedError("a newer run")
    failures.tell(error, batch=7, run_id=RUN_ID, query_id=QUERY_ID, query_name="ads")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.batch, again.run_id) == (
        errors.FencedError,
        "a newer run",
        7,
        RUN_ID,
    )


def test_the_package_offers_its_errors_without_importing_what_finds_them():
    code = (
        "import onceforall, sys; onceforall.FencedError; print([m for m in sys.modules if "
        "m.startswith('onceforall.') or m == 'pyspark'])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "['onceforall._version', 'onceforall.errors']"


# --- with Spark -----------------------------------------------------------------------------------


def rows_of(spark):
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 5)
        .option("numPartitions", 1)
        .load()
    )


def write(spark, folder, transform, name):
    writer = ofa.write_stream(rows_of(spark)).to(
        ofa.FileSink(folder / "out", format="json"), name="files", transform=transform
    )
    return writer.queryName(name).option("checkpointLocation", str(folder / "checkpoint")).start()


@pytest.mark.spark
def test_the_error_of_a_real_query_comes_back_in_this_process_and_from_its_text_in_another(
    spark, tmp_path, caplog
):
    boom = ValueError("boom\nand a second line: März \N{SNOWMAN}")

    def fails(frame):
        raise boom

    query = write(spark, tmp_path, fails, "ads")
    with pytest.raises(Exception, match="boom") as raised:
        query.awaitTermination(60)
    error = ofa.error_of(query)
    assert type(error) is ofa.AttemptFailedError
    assert error.__cause__ is boom
    assert "mend the cause first: ValueError: boom\nand a second line: März \N{SNOWMAN}" in str(
        error
    )
    assert (error.query_name, error.query_id, error.run_id, error.batch) == (
        "ads",
        query.id,
        query.runId,
        0,
    )
    assert ofa.error_of(raised.value) is ofa.error_of(query.exception()) is error

    (tmp_path / "trace.txt").write_text(
        json.dumps([str(raised.value), str(query.exception())]), encoding="utf-8"
    )
    code = """
import json, sys, onceforall as ofa
for text in json.load(open(sys.argv[1], encoding="utf-8")):
    error = ofa.error_of(text)
    print(json.dumps([type(error).__name__, str(error), error.batch, error.run_id, error.documentation]))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "trace.txt")]
    answers = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    batch = 0 if NOTES else None
    for answer in map(json.loads, answers):
        assert answer == [
            "AttemptFailedError",
            str(error),
            batch,
            query.runId,
            "docs/errors.md#attemptfailederror",
        ]
    assert len(answers) == 2
    last = [record for record in caplog.records if record.name.startswith("onceforall")][-1]
    assert (last.levelno, last.getMessage().partition(":")[0]) == (
        logging.ERROR,
        "query ads failed in batch 0",
    )

    again = write(spark, tmp_path, lambda frame: frame, "ads")
    until(lambda: again.lastProgress is not None, 60, "a batch of the restarted query")
    assert ofa.error_of(again) is None
    again.stop()
    assert ofa.error_of(query) is error


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_a_function_that_would_end_the_process_ends_its_query_with_an_error(spark, tmp_path):
    """Spark's caller of Python dies of a ``SystemExit``, and the query would wait for its answer
    for ever: so it does without us."""
    query = write(spark, tmp_path, lambda _: sys.exit(3), "exits")
    with pytest.raises(Exception, match="SystemExit: 3"):
        query.awaitTermination(60)
    error = ofa.error_of(query)
    assert (type(error), type(error.__cause__)) == (ofa.AttemptFailedError, SystemExit)


class Unheard(BaseException):
    """As asyncio.CancelledError: no Exception, and nothing that ends a process."""


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_what_is_no_exception_fails_its_attempt_as_any_error_does(spark, tmp_path):
    """What has been prepared is aborted at once; readers of a topic would wait behind it until
    the next start."""

    def cancelled(_):
        raise Unheard("the task was cancelled")

    query = write(spark, tmp_path, cancelled, "cancelled")
    with pytest.raises(Exception, match="Unheard: the task was cancelled"):
        query.awaitTermination(60)
    error = ofa.error_of(query)
    assert (type(error), type(error.__cause__.__cause__)) == (ofa.AttemptFailedError, Unheard)


@pytest.mark.spark
def test_a_sink_that_would_end_the_process_before_any_batch_ends_the_query_with_an_error(
    spark, tmp_path, monkeypatch
):
    monkeypatch.setattr(runs.QueryRun, "open", lambda *_: sys.exit(3))
    query = write(spark, tmp_path, lambda frame: frame, "exits")
    with pytest.raises(
        Exception, match="SystemExit: 3 was raised in a batch, which can't end the process"
    ):
        query.awaitTermination(60)
    assert type(ofa.error_of(query)) is ofa.StoppedError


@pytest.mark.spark
def test_a_batch_whose_jobs_others_cancel_has_failed_and_was_not_stopped(spark, tmp_path, caplog):
    began, context = threading.Event(), spark.sparkContext

    def slow(frame):
        began.set()
        return frame.filter("java_method('java.lang.Thread', 'sleep', 60000L) IS NULL")

    query = write(spark, tmp_path, slow, "cancelled")
    assert began.wait(60)
    until(
        lambda: cancelled(context, str(query.runId)) or not query.isActive, 60, "the query notices"
    )
    with pytest.raises(Exception, match="a job of the batch was cancelled"):
        query.awaitTermination(60)
    error = ofa.error_of(query)
    assert (type(error), error.batch) == (ofa.AttemptFailedError, 0)
    assert [record.levelname for record in caplog.records if record.name == "onceforall"][
        -1
    ] == "ERROR"


def cancelled(context, group):
    if context.statusTracker().getJobIdsForGroup(group):
        context.cancelJobGroup(group)
    return False


@pytest.mark.spark
def test_an_error_that_a_sink_raises_in_a_batch_names_the_sink(spark, tmp_path):
    query = write(
        spark,
        tmp_path,
        lambda frame: frame.selectExpr("value", "interval 1 month AS v"),
        "interval",
    )
    with pytest.raises(Exception, match="interval"):
        query.awaitTermination(60)
    error = ofa.error_of(query)
    assert (type(error), error.sink) == (ofa.AttemptFailedError, "files")
    assert isinstance(error.__cause__, ofa.SchemaError)
