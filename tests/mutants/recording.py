"""A pytest plugin that writes down what each test came to, one JSON object per line, in the file
that ``MUTANT_REPORT`` names."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def _write(**fields: Any) -> None:
    with Path(os.environ["MUTANT_REPORT"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")


def _statement(last: Any) -> str:
    try:
        return str(last.statement).strip()[:100]
    except SyntaxError:
        return ""  # Of a source that isn't Python: what Cython has compiled raises there.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write down a test's success, or the kind and first line of what it raised, in which phase
    (``setup``, ``call``, ``teardown``), and by which statement."""
    report = yield
    if report.failed:
        assert call.excinfo is not None
        kinds = [kind.__name__ for kind in call.excinfo.type.__mro__]
        text = str(call.excinfo.value).strip().splitlines() or [""]
        last = call.excinfo.traceback[-1]
        _write(
            node=item.nodeid,
            failed=True,
            kinds=kinds,
            text=text[0][:300],
            where=str(last.path),
            phase=report.when,
            by=_statement(last),
            error_number=getattr(call.excinfo.value, "errno", None),
        )
    elif report.passed and report.when == "call":
        _write(node=item.nodeid, failed=False, seconds=report.duration)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down that a file could not be collected: that is no test's verdict."""
    if report.failed:
        text = str(report.longrepr).strip().splitlines()[-1][:300]
        _write(
            node=report.nodeid,
            failed=True,
            kinds=["collection"],
            text=text,
            where="",
            phase="",
            by="",
        )
