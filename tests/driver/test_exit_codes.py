"""The exit code of a driver program: by the class of what its query failed with."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from pyspark.errors import AnalysisException, PySparkRuntimeError

import onceforall as ofa
from onceforall.cli import main
from onceforall.driver.exit_codes import restart_table
from onceforall.errors import documentation_of
from onceforall.protocol.events import BatchRequested
from onceforall.protocol.judgement import judge
from onceforall.protocol.messages import failed
from protocol.building import history, offsets
from support.pages import ROOT

ROW = re.compile(r"^\| \[`(\w+)`\]\(#\w+\) \| ([^|]*) \| [^|]+ \|$", re.MULTILINE)


def rows_of_the_page():
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    return dict(ROW.findall(page.partition("## All errors")[2].partition("\n## ")[0]))


def test_the_page_says_of_each_error_what_its_class_says():
    said = rows_of_the_page()
    of_the_classes = {kind.__name__: restart for kind, restart in restart_table()}
    assert set(said) == set(of_the_classes)
    words = {"yes": "yes", "once": "once", "no": "no", "stopped": "as you like"}
    told = {name: text.replace("*", "") for name, text in said.items()}
    # Those that nobody meets: the root, and servers of tests.
    for name in ("OnceForAllError", "EmbeddedServerError"):
        assert told.pop(name) == ""
    # "yes, once" is the lost transaction's, and the parent of five says yes at the end.
    assert told.pop("TransactionLostError") == "yes, once"
    assert told.pop("StoppedError").endswith("for this class itself: yes")
    for name, text in told.items():
        assert text.startswith(words[of_the_classes[name]]), name
    assert of_the_classes["TransactionLostError"] == "once"
    assert of_the_classes["StoppedError"] == "yes"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, ofa.ExitCode.ENDED),
        (ofa.QueryStoppedError("asked to"), ofa.ExitCode.ENDED),
        (ofa.SinkUnavailableError("away"), ofa.ExitCode.RESTART),
        (ofa.InDoubtError("decided"), ofa.ExitCode.RESTART),
        (ofa.FormerSinkError("a sink is no longer there"), ofa.ExitCode.MEND),
        (ofa.TransactionLostError("gone"), ofa.ExitCode.RESTART),
        (ofa.SchemaError("no column"), ofa.ExitCode.MEND),
        (ofa.CorruptEntryError("torn"), ofa.ExitCode.MEND),
        (ofa.FencedError("another run"), ofa.ExitCode.REPLACED),
        (ofa.OvertakenError("another run, which is fenced"), ofa.ExitCode.RESTART),
        (ofa.AttemptFailedError("RuntimeError: a bug"), ofa.ExitCode.RESTART),
        (ofa.AttemptFailedError(failed(7, "SchemaError: no column")), ofa.ExitCode.MEND),
        (ofa.AttemptFailedError(failed(7, "SinkUnavailableError: away")), ofa.ExitCode.RESTART),
        (ofa.PlanOverwrittenError("begins elsewhere"), ofa.ExitCode.RESTART),
        (ofa.CheckpointMismatchError("another query's"), ofa.ExitCode.MEND),
        (AnalysisException("no such column"), ofa.ExitCode.MEND),
        (PySparkRuntimeError("the JVM is gone"), ofa.ExitCode.RESTART),
        (OSError("no space"), ofa.ExitCode.RESTART),
    ],
)
def test_an_error_has_the_exit_code_that_helps(error, code):
    assert ofa.exit_code(error) is code


def test_a_cause_says_more_than_the_words_of_the_message():
    error = ofa.AttemptFailedError(failed(7, "SchemaError: said by somebody"))
    error.__cause__ = RuntimeError("SchemaError: said by somebody")
    assert ofa.exit_code(error) is ofa.ExitCode.RESTART
    error.__cause__ = ofa.SchemaError("no column")
    assert ofa.exit_code(error) is ofa.ExitCode.MEND


def test_an_error_of_ours_among_the_causes_of_another_counts():
    outer = RuntimeError("the job failed")
    outer.__cause__ = ofa.FencedError("another run")
    assert ofa.exit_code(outer) is ofa.ExitCode.REPLACED


def test_a_text_without_an_error_is_no_failure():
    for text in ("all is well", "", "INFO: 0 errors, no Exception\nthe query has ended"):
        assert ofa.exit_code(text) is ofa.ExitCode.ENDED


SPARKS = (
    "pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query [id = "
    "8e9a4e2c-1111-2222-3333-444455556666, runId = 8e9a4e2c-1111-2222-3333-444455556666] "
    "terminated with exception: Job aborted due to stage failure: java.io.IOException: disk full"
)
TRACE = 'Traceback (most recent call last):\n  File "job.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SPARKS, ofa.ExitCode.RESTART),
        (SPARKS.partition(": ")[2], ofa.ExitCode.RESTART),
        (f"{TRACE}ValueError: x\n", ofa.ExitCode.RESTART),
        (f"starting\n{TRACE}mine.Trouble\n", ofa.ExitCode.RESTART),
        ("KeyboardInterrupt\n", ofa.ExitCode.RESTART),
        (f"{TRACE}pyspark.errors.AnalysisException: no such column\n", ofa.ExitCode.MEND),
        (
            f"{TRACE}AnalysisException: no column\n\nDuring handling:\n\n{TRACE}OSError: x\n",
            ofa.ExitCode.RESTART,
        ),
    ],
)
def test_the_text_of_somebody_elses_failure_has_the_code_of_the_exception(text, code):
    assert ofa.exit_code(text) is code


@pytest.mark.parametrize(
    "reason",
    [
        "ValueError: my SchemaError: x",
        "RuntimeError: could not decode: OptionError: bad",
        "ValueError: mend the cause first: SchemaError: x",
        "PythonException: \n  requests.SchemaError: x",
    ],
)
def test_what_a_user_says_in_a_text_of_his_own_is_no_error_of_ours(reason):
    assert ofa.exit_code(ofa.AttemptFailedError(failed(7, reason))) is ofa.ExitCode.RESTART


def test_where_a_refusal_says_start_again_its_code_says_so_too():
    elsewhere = judge(
        BatchRequested(8, offsets(8), stateful=False, start=offsets(6)), history(7), 7
    )
    assert "start again" in elsewhere.message
    assert ofa.exit_code(elsewhere.error(elsewhere.message)) is ofa.ExitCode.RESTART


def test_no_code_is_one_that_python_or_a_signal_gives():
    codes = {int(code) for code in ofa.ExitCode}
    assert codes == {0, 75, 78, 79}
    assert not codes & {1, 2, 126, 127, *range(129, 160)}


def test_a_program_ends_with_it():
    program = (
        "import sys, onceforall as ofa\n"
        "try:\n    raise ofa.FencedError('another run has taken over')\n"
        "except Exception as error:\n    sys.exit(ofa.exit_code(error))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 79


def test_the_command_prints_every_error_for_programs_and_for_people(capsys):
    assert main(["errors", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["error"] for row in rows] == [kind.__name__ for kind, _ in restart_table()]
    assert len(rows) > 20
    for row in rows:
        kind = getattr(ofa, row["error"])
        assert (row["restart"], row["page"]) == (
            kind.restart,
            documentation_of(kind("a text", "b"))
            if row["error"] == "MissingExtraError"
            else documentation_of(kind("a text")),
        )
    assert {row["error"]: row["exit_code"] for row in rows}["FencedError"] == 79
    assert main(["errors"]) == 0
    assert re.search(
        r"^FencedError +restart: no +exit code:  79 ", capsys.readouterr().out, re.MULTILINE
    )
