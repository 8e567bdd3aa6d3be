"""Durations, triggers, and what importing the operators costs."""

import subprocess
import sys
from datetime import timedelta

import pytest

from onceforall import operators
from onceforall.errors import OptionError
from onceforall.operators import _checks
from onceforall.operators.triggers import Trigger, micros


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 second", 1_000_000),
        ("10 seconds", 10_000_000),
        ("1 hour 30 minutes", 5_400_000_000),
        (" 2 Weeks 1day ", 15 * 86_400_000_000),
        ("250milliseconds", 250_000),
        ("7 microseconds", 7),
        (timedelta(minutes=1, microseconds=1), 60_000_001),
    ],
)
def test_durations_are_read(text, expected):
    assert micros(text, "gap") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "1 month",
        "seconds",
        "1.5 hours",
        "-1 second",
        "1 secondss",
        "5 seconds ago",
        "100000000 weeks",
        f"{'9' * 5000} days",
        10,
        None,
    ],
)
def test_what_is_no_duration_is_refused(text):
    if text is None:
        assert micros(text, "gap") is None
        return
    with pytest.raises(OptionError, match="gap"):
        micros(text, "gap")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"count": 0},
        {"count": True},
        {"count": 1.5},
        {"every": "0 seconds"},
        {"every": timedelta()},
        {"every": "soon"},
    ],
)
def test_a_trigger_that_would_never_or_always_fire_is_refused(arguments):
    with pytest.raises(OptionError, match="Trigger"):
        Trigger(**arguments)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: operators.count_window(None, key="k", size=None, aggregates={}), "size"),
        (lambda: operators.tumbling_window(None, key="k", size=None, aggregates={}), "size"),
        (lambda: operators.deduplicate(None, "id", "at", None), "horizon"),
        (
            lambda: operators.attribute(
                None, None, user="u", order_time="at", click_time="at", window=None
            ),
            "window",
        ),
        (lambda: _checks.columns_named(None, None, "key"), "key"),
    ],
    ids=["count_window", "tumbling_window", "deduplicate", "attribute", "a column"],
)
def test_none_for_what_an_operator_needs_is_refused_by_name_and_with_what_to_give(call, named):
    with pytest.raises(OptionError, match=rf"^{named} is None.* [Gg]ive "):
        call()


def test_rows_of_the_same_column_twice_are_refused():
    with pytest.raises(OptionError, match="twice"):
        operators.Rows("page", "page")


def test_every_public_name_is_there_and_others_are_not():
    for name in operators.__all__:
        assert getattr(operators, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = operators.nothing_of_this_name


def test_importing_the_operators_imports_neither_pandas_nor_spark():
    code = (
        "import sys, onceforall.operators as o; o.Trigger(count=1); print(sorted({'pandas', "
        "'pyspark', 'google'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
