"""Which room of the package may import which: the table on the page of the architecture,
compared with every import that there is."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onceforall
from support.pages import ROOT

PACKAGE = Path(onceforall.__file__).parent
ROW = re.compile(r"^\| `([\w/]+)` \| [^|]+ \| ([^|]*)\|$", re.MULTILINE)
TABLE = {
    room: set(filter(None, (used.strip() for used in uses.split(","))))
    for room, uses in ROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
}


def room_of(parts):
    """The room of a module, named by its parts below the package."""
    return "/".join(parts[:2]) if parts[0] == "sinks" and len(parts) > 1 else parts[0]


def used_by(source):
    """The rooms that a source imports from, wherever the statement stands."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import without the package's name is in no table"
            names = (
                [node.module]
                if node.module != "onceforall"
                else [f"onceforall.{alias.name}" for alias in node.names]
            )
        yield from (
            room_of(name.split(".")[1:]) for name in names if name.startswith("onceforall.")
        )


def all_uses():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        room = room_of(tuple(part for part in parts if part != "__init__") or ("__init__",))
        found.setdefault(room, set()).update(
            used for used in used_by(path.read_text(encoding="utf-8")) if used != room
        )
    # It names the public ones, from wherever they come; the folder of the sinks itself holds
    # nothing.
    return {room: uses for room, uses in found.items() if room not in {"__init__", "sinks"}}


USES = all_uses()


def test_each_room_uses_what_the_page_says_and_nothing_else():
    assert USES == TABLE


def test_every_arrow_leads_to_a_room_that_stands_above():
    above = set()
    for room, uses in TABLE.items():
        assert uses <= above, f"{room} uses {uses - above}, which stand below it"
        above.add(room)


LOADED_BY_A_WORKER = """
import pickle, sys
import onceforall.task.write_task
sink = pickle.loads(sys.stdin.buffer.read())
{work}
print(*sys.modules)
"""
OF_THE_DRIVER = re.compile(
    r"(onceforall\.sinks\.\w+\.(driver|reading|manifests)|onceforall\.(driver|operate|commit_log)|kafka)(\..+)?"
)


def loaded_by_a_worker(sink, work=""):
    """Return the modules that no worker needs, and that a fresh process has loaded when it got a
    sink, and worked with it."""
    program = LOADED_BY_A_WORKER.format(work=work)
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(sink),
        capture_output=True,
        timeout=60,
        check=True,
    )
    return [name for name in done.stdout.decode().split() if OF_THE_DRIVER.fullmatch(name)]


@pytest.mark.parametrize(
    "sink",
    [
        pytest.param(
            lambda: onceforall.KafkaSink({"bootstrap.servers": "broker:9092"}), id="kafka"
        ),
        pytest.param(lambda: onceforall.PostgresSink("postgresql://server/db", "t"), id="postgres"),
    ],
)
def test_a_worker_loads_nothing_of_the_driver_with_a_sink(sink):
    assert loaded_by_a_worker(sink()) == []


A_TASK = """
import pyarrow as pa
from onceforall.sink import TaskAttempt
written = sink.begin_transaction(TaskAttempt("9f2b1c1e-1111-4222-8333-444455556666", "out", 0, 0, 0, 0, 0))
sink.invoke(written, pa.RecordBatch.from_pydict({"n": [1]}))
assert sink.pre_commit(written)["files"]
"""


@pytest.mark.parametrize("form", ["parquet", "json", "csv", "orc"])
def test_a_worker_that_writes_files_loads_nothing_of_the_driver_and_nothing_that_reads(
    tmp_path, form
):
    sink = onceforall.FileSink(tmp_path, format=form)
    assert loaded_by_a_worker(sink, A_TASK) == []


def test_what_a_worker_loads_of_the_driver_is_seen(tmp_path):
    sink = onceforall.FileSink(tmp_path)
    assert "onceforall.sinks.files.driver.committing" in loaded_by_a_worker(sink, "sink._folder")


@pytest.mark.parametrize(
    ("sink", "side", "others"),
    [
        ("kafka", "task", "driver"),
        ("postgres", "task", "driver"),
        ("files", "task", "driver|reading|manifests"),
        ("files", "driver", "task|reading"),
        ("files", "reading", "task|driver"),
    ],
)
def test_a_side_of_a_sink_uses_nothing_of_the_others(sink, side, others):
    modules = sorted((PACKAGE / "sinks" / sink / side).glob("*.py"))
    assert len(modules) > 3
    assert [
        path.name
        for path in modules
        if re.search(rf"\b{sink}\.({others})\b", path.read_text(encoding="utf-8"))
    ] == []


def test_what_both_sides_of_the_postgres_sink_use_needs_neither_of_them():
    shared = [
        path for path in (PACKAGE / "sinks" / "postgres").glob("*.py") if path.name != "sink.py"
    ]
    assert len(shared) > 10
    assert [
        path.name
        for path in shared
        if re.search(r"postgres\.(driver|task)\b", path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import onceforall.spark.files", ["spark"]),
        ("def f():\n    from onceforall.driver.doors import exactly_once", ["driver"]),
        ("from onceforall import sink, errors", ["sink", "errors"]),
        ("from onceforall.sinks.kafka import names", ["sinks/kafka"]),
        (
            "if TYPE_CHECKING:\n    from onceforall.sinks.files.sink import FileSink",
            ["sinks/files"],
        ),
        ("import json", []),
    ],
)
def test_an_import_is_seen_wherever_it_stands(source, rooms):
    assert list(used_by(source)) == rooms
