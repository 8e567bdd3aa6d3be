"""Errors that no fault of the campaign excuses: bugs, or a log or a checkpoint that was damaged.

A run may end with an error that `EXPLAINED` has, for a fault leads to it. Every other one alarms.
"""

import builtins
import contextlib
import importlib
import json
import re
from functools import cache
from http.client import HTTPException

import psycopg
import pyspark.errors
from confluent_kafka import KafkaException
from py4j import protocol as py4j
from pyspark.errors import PySparkException

from onceforall import errors
from onceforall.failpoints.points import FailpointError

OURS = (
    "ProtocolViolationError",
    "CheckpointMismatchError",
    "NondeterministicReplayError",
    "DivergenceError",
    "CorruptEntryError",
    "ForeignEntryError",
    "NewerEntryError",
    "OptionError",
    "SchemaError",
    "UnsupportedQueryError",
)
PYTHONS = (
    "AssertionError",
    "TypeError",
    "ValueError",
    "AttributeError",
    "KeyError",
    "IndexError",
    "NameError",
    "UnboundLocalError",
    "RecursionError",
)
ALARMING = OURS + PYTHONS
"""Alarming wherever they stand in what a run ended with, also as the cause of another error."""

EXPLAINED = {
    errors.OnceForAllError: "a run of ours that ends in order, but for those of `OURS`",
    FailpointError: "an armed failpoint raises it",
    PySparkException: "Spark says that a query, a job or a task failed; what failed stands in it",
    py4j.Py4JError: "the driver's JVM was killed, or a call into it failed as above",
    OSError: "a disk or a volume was full, read-only or away, a server or a process was killed",
    EOFError: "the other end of a pipe or a socket was killed",
    HTTPException: "a proxy cut an answer of a store",
    KafkaException: "a broker or a right was away, a transaction was fenced or timed out",
    psycopg.OperationalError: "PostgreSQL or a backend was killed, or had no more slots",
    psycopg.InterfaceError: "a connection that PostgreSQL's end has closed",
}
"""With what a fault of the campaign makes a run end, and why."""

_MODULES = (builtins, errors, pyspark.errors, py4j, psycopg)
"""Where a name without a module is looked for."""

_TRACEBACK = "Traceback (most recent call last):\n"
_LAST = re.compile(r"(?:[ \t].*\n|\n)*([A-Za-z_][\w.]*)(?=:|\s|$)")
_CAUSE = re.compile(
    r"\n\n(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n\n$"
)

_TEXT_LIMIT = 2000


def alarms(world, allowed=()):
    """Return a line for each run of a world's drivers that ended with an alarming error.

    Args:
        world: with ``drivers``, whose ``errors.json`` and ``status.json`` are read, as far as they
            are there.
        allowed: names that what was done to the world does excuse.
    """
    found = []
    for driver in world.drivers:
        for error in dict.fromkeys(_errors(driver)):
            name = _alarming(error, allowed)
            if name:
                found.append(f"{driver.work}: a run ended with {name}: {error[-_TEXT_LIMIT:]}")
    return found


def _errors(driver):
    yield from driver.errors()
    with contextlib.suppress(FileNotFoundError):
        status = json.loads((driver.work / "status.json").read_text())
        yield from status.get("errors", [])
        if status["error"] is not None:
            yield status["error"]


def _alarming(error, allowed):
    """The first name that alarms; empty: none. Those of Python's own are not a part of a longer
    name, as ``java.lang.AssertionError``."""
    for name in ALARMING:
        before = r"(?<![\w.])(?:builtins\.)?" if name in PYTHONS else r"\b"
        if name not in allowed and re.search(rf"{before}{name}\b", error):
            return name
    for name in _last_ones(error):
        if name.rpartition(".")[2] not in (*allowed, *ALARMING) and not _is_explained(name):
            return name
    return ""


def _last_ones(error):
    """The name with which a text begins, as ``OSError: full``, and that of the last exception of
    each traceback in it; what is only the cause of another one in the same traceback is handled."""
    if begins := re.match(r"(\w+)(?=: |$)", error):
        yield begins[1]
    for traceback in error.split(_TRACEBACK)[1:]:
        found = _LAST.match(traceback)
        if found and not _CAUSE.search(traceback):
            yield found[1]


@cache
def _is_explained(name):
    """Whether it is the name of an error that `EXPLAINED` has, and of none of Python's own kinds,
    as ``PySparkTypeError`` is."""
    kind = _kind(name)
    own = tuple(getattr(builtins, each) for each in PYTHONS)
    is_ours = kind is not None and kind.__module__.startswith("onceforall.")
    return (
        kind is not None
        and issubclass(kind, tuple(EXPLAINED))
        and (is_ours or not issubclass(kind, own))
    )


def _kind(name):
    """The class of a name, with or without its module; None: there is none."""
    module, _, last = name.rpartition(".")
    if module == "cimpl":
        # What confluent_kafka's own module in C calls itself.
        module = "confluent_kafka"
    places = _MODULES
    if module:
        with contextlib.suppress(ImportError):
            places = (importlib.import_module(module),)
    found = next((getattr(each, last) for each in places if hasattr(each, last)), None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
