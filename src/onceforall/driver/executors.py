"""Looks, before any data moves, whether the Python of every executor can run the tasks of a query.

Without that, an executor that lacks this library ends the first batch with ``ModuleNotFoundError``
somewhere in some hundred lines of Java.

A job with a task for each executor that is there imports what the tasks will import, and reports.
Its function must not need this library on the executor, so it is pickled by value (``by_value``).
Spark can't be made to run a task on a given executor, only asked to; so each task tells by the
executor's own folders where it ran, and the job is repeated until as many have answered as there
are.

Promised: an executor that answers and lacks something is named, with the remedy. Not promised: that
every executor is seen. One that comes later (dynamic allocation), or that is busy for longer than
``WITHIN_S``, is not looked at; its tasks then fail in the batch.
"""

from __future__ import annotations

import builtins
import json
import logging
import pickle
import re
import shutil
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onceforall
from onceforall._version import __version__
from onceforall.common.arguments import is_connect
from onceforall.common.sessions import default_parallelism
from onceforall.errors import ExecutorCheckError
from onceforall.sink import TwoPhaseCommitSink
from onceforall.spark import errors as spark_errors

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger("onceforall")

WITHIN_S = 10.0
"""How long a start waits for executors: longer than a standalone cluster takes to start some,
much shorter than a first batch would hang without any."""

_ROUNDS = 3
_NAMED = 3
"""How many executors a message names."""

_NEEDED = {
    "pyarrow": "onceforall",
    "numpy": "onceforall",
    "onceforall.task.write_task": "onceforall",
}
"""What each task imports, and what to install for it, besides what the sinks tell."""

_LONGEST_REASON = 500

_DOCUMENTATION = "docs/options.md#python-on-the-executors"

_checked: dict[str, list[tuple[frozenset[str], frozenset[str]]]] = {}
"""By application and interpreter: the sets of executors that were found to be right, each with
the modules."""


@dataclass(frozen=True)
class Answer:
    """What one executor reports.

    Attributes:
        host: its host, as its operating system says.
        executable: the Python there.
        python: its version.
        folders: Spark's local folders of the executor, which no other one has.
        version: that of this library there; None: it can't be imported.
        errors: for each module that can't be imported, why.
    """

    host: str
    executable: str
    python: str
    folders: str
    version: str | None
    errors: Mapping[str, str]


def check_executors(spark: SparkSession, sinks: Mapping[str, TwoPhaseCommitSink]) -> None:
    """Look whether every executor that is there has this library, in this version, and what the
    sinks' tasks import.

    Args:
        spark: the query's session.
        sinks: the query's sinks by name.

    Raises:
        ExecutorCheckError: one can't; the message names it, and the remedy.

    In local mode with the driver's own interpreter there is nothing to look at. What was found
    right once isn't looked at again.
    """
    needed = {
        **_NEEDED,
        **{
            module: package
            for sink in sinks.values()
            for module, package in sink.task_imports.items()
        },
    }
    if is_connect(spark):
        _check_through_connect(spark, needed)
        return
    context = spark.sparkContext
    if _is_this_python(context):
        return
    key = f"{context.applicationId} {context.pythonExec}"
    known = frozenset(executors_of(context))
    right = _checked.setdefault(key, [])
    if known and any(
        known <= executors and frozenset(needed) <= modules for executors, modules in right
    ):
        return
    answers = _ask(context, tuple(needed))
    message = complaint(answers, needed, __version__)
    if message is not None:
        raise ExecutorCheckError(message)
    if answers:
        right.append((known, frozenset(needed)))


def _check_through_connect(spark: SparkSession, needed: Mapping[str, str]) -> None:
    """Look, where the context can't be asked for its executors: by a job of as many tasks as Spark
    makes by default, in a thread of its own.

    In local mode the tasks have the Python of this process, which the server has started, too.
    """
    if _is_local_master(str(spark.conf.get("spark.master", ""))):
        return
    key = f"connect {id(spark)}"
    right = _checked.setdefault(key, [])
    if any(frozenset(needed) <= modules for _, modules in right):
        return
    found: list[str] = []
    raised: list[Exception] = []
    count = default_parallelism(spark)
    tag = f"onceforall-check-{uuid.uuid4()}"

    def ask() -> None:
        spark.addTag(tag)
        try:
            numbers = spark.range(0, count, 1, count)
            report = _in_arrow(by_value(_report), tuple(needed))
            found.extend(
                row["answer"] for row in numbers.mapInArrow(report, "answer string").collect()
            )
        except Exception as error:  # noqa: BLE001  the other thread tells it
            raised.append(error)

    thread = threading.Thread(target=ask, name="onceforall-check", daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    if thread.is_alive():
        spark.interruptTag(tag)
        logger.info("no executor has told within %.0f s whether it has onceforall", WITHIN_S)
        return
    if raised:
        raise ExecutorCheckError(
            f"The executors can't run the tasks (Python {sys.version_info[0]}."
            f"{sys.version_info[1]} with pyarrow is needed, as on the server): "
            f"{_cause(raised[0])}. No data has moved. Install onceforall {__version__} there "
            f"({_DOCUMENTATION})."
        ) from raised[0]
    message = complaint((Answer(*json.loads(answer)) for answer in found), needed, __version__)
    if message is not None:
        raise ExecutorCheckError(message)
    right.append((frozenset(), frozenset(needed)))


def complaint(answers: Iterable[Answer], needed: Mapping[str, str], version: str) -> str | None:
    """Return what is wrong, in a few sentences; None: nothing.

    Args:
        answers: those of the executors.
        needed: the modules that the tasks import, and what to install for each.
        version: the driver's version of this library.
    """
    wrong: dict[str, str] = {}
    packages: dict[str, None] = {}
    for answer in answers:
        where = f"on {answer.host} (Python {answer.python}, {answer.executable})"
        if answer.version is None:
            reason = _shortened(answer.errors.get("onceforall", ""))
            wrong.setdefault(where, f"The executor {where} can't import onceforall: {reason}.")
            packages.update(dict.fromkeys(needed.values()))
        elif answer.version != version:
            wrong.setdefault(
                where,
                f"The executor {where} has onceforall {answer.version}, and the driver has "
                f"{version}.",
            )
            packages.update(dict.fromkeys(needed.values()))
        elif answer.errors:
            module, reason = next(iter(answer.errors.items()))
            wrong.setdefault(
                where,
                f"The executor {where} can't import {module}, which the tasks of this query need: "
                f"{_shortened(reason)}.",
            )
            packages.update(dict.fromkeys(needed[name] for name in answer.errors if name in needed))
    if not wrong:
        return None
    named = " ".join(list(wrong.values())[:_NAMED])
    more = f" So it is with {len(wrong) - _NAMED} others." if len(wrong) > _NAMED else ""
    install = " ".join(f"'{package}'" for package in _installable(packages, version))
    return (
        f"{named}{more} No data has moved. Install it there, for that Python: pip install "
        f"{install}; or ship an environment that has it, and let "
        f"PYSPARK_PYTHON name its interpreter before the session is made ({_DOCUMENTATION})."
    )


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} …"


def _installable(packages: Iterable[str], version: str) -> list[str]:
    """Return what to give to pip: this library in the driver's version, with the extras in one
    pair of brackets.
    """
    extras, others, own = [], [], False
    for package in packages:
        name, _, rest = package.partition("[")
        if name == "onceforall":
            own = True
            extras += [extra for extra in rest.rstrip("]").split(",") if extra]
        else:
            others.append(package)
    ours = f"onceforall[{','.join(extras)}]=={version}" if extras else f"onceforall=={version}"
    return ([ours] if own else []) + others


def _is_this_python(context: SparkContext) -> bool:
    """Tell whether the workers are this very Python on this machine, which has imported
    everything already.
    """
    if not _is_local(context):
        return False
    found = shutil.which(context.pythonExec)
    if found is None or Path(found).absolute() != Path(sys.executable).absolute():
        return False
    # Only the driver's path has the folder of its program.
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {Path.cwd(), *([] if program is None else [Path(program).absolute().parent])}
    return Path(str(onceforall.__file__)).parents[1] not in own


def _is_local(context: SparkContext) -> bool:
    return _is_local_master(str(context.master))


def _is_local_master(master: str) -> bool:
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def executors_of(context: SparkContext) -> dict[str, str]:
    """Return the host of each executor that is there, by its id; the driver counts in local mode
    only.
    """
    listed: Any = context._jsc.sc().statusStore().executorList(True)  # noqa: FBT003, SLF001  a Java method has no names
    each = [listed.apply(i) for i in range(listed.size())]
    found = {str(one.id()): str(one.hostPort()).rpartition(":")[0] for one in each}
    others = {executor: host for executor, host in found.items() if executor != "driver"}
    return others or (found if _is_local(context) else {})


def ask_each(
    context: SparkContext,
    ask: Callable[[Iterable[Any]], Iterator[tuple[str, Any]]],
    within_s: float,
) -> tuple[list[Any], int]:
    """Run a function on each executor that is there.

    Args:
        context: of the session.
        ask: what each executor runs; it takes nothing, needs nothing of this library there (see
            ``by_value``), and yields one pair: ``SPARK_LOCAL_DIRS`` there, by which executors are
            told apart, and the answer.
        within_s: how long to wait, in seconds.

    Returns:
        The answers, one of each executor, as far as they came in time; and how many executors there
        are.

    Raises:
        ExecutorCheckError: no Python could be started there, or it is another one than the
            driver's.
    """
    until_s = time.monotonic() + within_s
    answers: dict[str, Any] = {}
    for _ in range(_ROUNDS):
        job = _Job(context, executors_of(context), ask)
        if not job.ended(until_s):
            break
        answers.update(dict(job.answers()))
        if len(answers) >= len(executors_of(context)):
            break
    return list(answers.values()), len(executors_of(context))


def _ask(context: SparkContext, modules: tuple[str, ...]) -> list[Answer]:
    """Return an answer of each executor, as far as they come in time."""
    found, there = ask_each(context, partial(by_value(_report), modules), WITHIN_S)
    answers = [Answer(*each) for each in found]
    if len(answers) < there:
        logger.info(
            "%d of %d executors have told within %.0f s whether they have onceforall %s; the "
            "others are not looked at",
            len(answers),
            there,
            WITHIN_S,
            __version__,
        )
    return answers


class _Job:
    """One job that asks each executor, in a thread and a job group of its own: a start in
    ``foreachBatch`` is in those of the query.
    """

    def __init__(
        self,
        context: SparkContext,
        executors: Mapping[str, str],
        ask: Callable[[Iterable[Any]], Iterator[tuple[str, Any]]],
    ) -> None:
        self._context = context
        self._group = f"onceforall-check-{uuid.uuid4()}"
        self._executors = executors
        self._ask = ask
        self._results: list[tuple[str, Any]] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="onceforall-check", daemon=True)
        self._thread.start()

    def ended(self, until_s: float) -> bool:
        """Wait for the job's end; one that takes longer is cancelled."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if not self._thread.is_alive():
            return True
        self._context.cancelJobGroup(self._group)
        return False

    def answers(self) -> list[tuple[str, Any]]:
        """Return what the executors have answered.

        Raises:
            ExecutorCheckError: no Python could be started there, or it is another one than the
                driver's.
        """
        if self._error is not None:
            raise ExecutorCheckError(
                f"The executors can't run the tasks with {self._context.pythonExec} (Python "
                f"{sys.version_info[0]}.{sys.version_info[1]} is needed, as on the "
                f"driver): {_cause(self._error)}. No data has moved. Let PYSPARK_PYTHON name an "
                f"interpreter that is there, with onceforall {__version__} "
                f"installed, before the session is made ({_DOCUMENTATION})."
            ) from self._error
        return self._results

    def _run(self) -> None:
        try:
            self._context.setJobGroup(
                self._group,
                f"onceforall {__version__}: can every executor import it?",
                interruptOnCancel=True,
            )
            self._results = (
                _one_task_each(self._context, self._executors).mapPartitions(self._ask).collect()
            )
        except Exception as error:  # noqa: BLE001  the other thread tells it
            self._error = error


def _cause(error: Exception) -> str:
    """Return the one line that tells why no Python runs there."""
    lines = [
        line.strip().removeprefix("Caused by: ")
        for line in str(spark_errors.translated(error, stop_requested=False)).splitlines()
        if line.strip()
    ]
    telling = [
        line for line in lines if "Cannot run program" in line or "PYTHON_VERSION_MISMATCH" in line
    ]
    return (telling or lines or [repr(error)])[-1 if not telling else 0].rstrip(".")[
        :_LONGEST_REASON
    ]


def _one_task_each(context: SparkContext, executors: Mapping[str, str]) -> RDD[Any]:
    """Return an RDD of a partition for each executor, which prefers to be computed there; of one
    partition where none is known.
    """
    from pyspark.core.rdd import RDD
    from pyspark.serializers import NoOpSerializer

    jvm: Any = context._jvm  # noqa: SLF001
    assert jvm is not None
    # As Spark names an executor in a preference (ExecutorCacheTaskLocation).
    places = [[f"executor_{host}_{executor}"] for executor, host in executors.items()] or [[]]
    to_seq = jvm.PythonUtils.toSeq
    pairs = [jvm.scala.Tuple2(bytearray(pickle.dumps(None)), to_seq(place)) for place in places]
    tag = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").apply(
        jvm.java.lang.Class.forName("[B")
    )
    made = context._jsc.sc().makeRDD(to_seq(pairs), tag)  # noqa: SLF001
    java = jvm.org.apache.spark.api.java.JavaRDD.fromRDD(made, tag)
    return RDD(java, context, NoOpSerializer())


def _report(modules: tuple[str, ...], _rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Report what can be imported; it runs in the executor's Python, and needs nothing but
    Python there.
    """
    import importlib
    import os
    import platform
    import socket
    import sys

    version, errors = None, {}
    for module in ("onceforall", *modules):
        try:
            found = importlib.import_module(module)
        except Exception as error:  # noqa: BLE001, PERF203  a package that is damaged may raise anything
            errors[module] = f"{type(error).__name__}: {error}"
            if module == "onceforall":
                break
        else:
            if module == "onceforall":
                version = getattr(found, "__version__", "of an unknown version")
    folders = os.environ.get("SPARK_LOCAL_DIRS", "")
    yield (
        folders,
        (
            socket.gethostname(),
            sys.executable,
            platform.python_version(),
            folders,
            version,
            errors,
        ),
    )


def _in_arrow(report: Callable[..., Any], modules: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function for ``mapInArrow`` that reports; as a function within another one it is
    pickled as code.
    """

    def reports(batches: Iterable[Any]) -> Iterator[Any]:
        import json

        import pyarrow as pa

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict(
            {"answer": [json.dumps(answer) for _, answer in report(modules, ())]}
        )

    return reports


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is pickled as code, for it belongs to ``__main__``; by its module's
    name it could only be loaded where this library is.
    """
    made = types.FunctionType(function.__code__, {"__builtins__": builtins}, function.__name__)
    made.__module__ = "__main__"
    return made
