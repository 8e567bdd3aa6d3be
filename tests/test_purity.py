"""The protocol decides and does nothing: these tests keep everything else out of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ALLOWED = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "re",
    "typing",
    "onceforall.errors",
}
FORBIDDEN_CALLS = {
    "open",
    "print",
    "input",
    "exec",
    "eval",
    "__import__",
    "breakpoint",
    "globals",
    "vars",
    "id",
    "hash",
}

SOURCE = Path(find_spec("onceforall").origin).parent
MODULES = sorted((SOURCE / "protocol").glob("**/*.py"))
PURE = [*MODULES, SOURCE / "errors.py"]


def imported(source):
    """The modules that a source imports, wherever the statement stands; a relative import is its
    own kind."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def impurities(source):
    """What in this source is not pure, as far as names tell."""
    found = [
        m
        for m in imported(source)
        if m not in ALLOWED
        and m != "onceforall.protocol"
        and not m.startswith("onceforall.protocol.")
    ]
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in FORBIDDEN_CALLS
        ):
            found.append(f"{node.func.id}()")
        if isinstance(node, (ast.Global, ast.Nonlocal, ast.AsyncFunctionDef, ast.Await)):
            found.append(type(node).__name__)
    return found


def test_there_are_modules_to_look_at():
    names = {path.stem for path in MODULES}
    assert names >= {
        "decisions",
        "entries",
        "events",
        "history",
        "judgement",
        "machine",
        "state",
        "sweeping",
    }


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_a_module_of_the_protocol_has_only_pure_imports(path):
    assert impurities(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "import collections.abc, time",
        "from datetime import datetime",
        "def f():\n    import random",
        "from onceforall.commit_log import CommitLog",
        "from onceforall import errors",
        "from . import machine",
        "from onceforall.protocolx import a",
        "print(1)",
        "open('x')",
        "def f():\n    global x",
    ],
)
def test_what_is_impure_is_recognised(source):
    assert impurities(source)


def test_all_values_of_the_protocol_are_frozen():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or not node.decorator_list:
                continue
            (decorator,) = node.decorator_list
            frozen = isinstance(decorator, ast.Call) and any(
                k.arg == "frozen" and isinstance(k.value, ast.Constant) and k.value.value is True
                for k in decorator.keywords
            )
            assert frozen, f"{path.name}: {node.name}"


LOADS_NOTHING = """
import importlib.util, sys, types

root, names = sys.argv[1], sys.argv[2:]
before = set(sys.modules)
package = types.ModuleType("onceforall")  # without its own __init__, which opens the doors to Spark
package.__path__ = [root]
sys.modules["onceforall"] = package
for name in names:
    __import__(name)
loaded = {m.partition(".")[0] for m in set(sys.modules) - before}
ours = {m for m in sys.modules if m.startswith("onceforall.")}
unwanted = loaded & {
    "asyncio", "confluent_kafka", "datetime", "kafka", "logging", "numpy", "pandas", "pathlib", "pyarrow", "pyspark", "random",
    "secrets", "socket", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}
strangers = {m for m in ours if not m.startswith("onceforall.protocol") and m != "onceforall.errors"}
print(sorted(unwanted | strangers))
"""


def module_name(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_a_fresh_interpreter_loads_nothing_else_with_the_protocol():
    assert "onceforall.protocol.transitions.decide" in map(module_name, MODULES)
    # -S: what site-packages load at start (.pth files) is not the protocol's doing.
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        LOADS_NOTHING,
        str(SOURCE),
        *map(module_name, MODULES),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.stdout.strip(), answer.stderr, answer.returncode) == ("[]", "", 0)
