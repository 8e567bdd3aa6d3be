"""The page docs/own-sink.md does what it says: its sink is short, and passes its own test. Its
query: tests/integration."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from support.own_sink import PAGE, blocks, save


def test_the_sink_of_the_page_is_as_short_as_the_page_says():
    tree = ast.parse(blocks()["json_file_sink.py"])
    (sink,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    statements = [
        node
        for node in ast.walk(sink)
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef)
    ]
    assert 20 < len(statements) < 45


def test_every_block_of_python_on_the_page_is_run_here():
    assert PAGE.read_text(encoding="utf-8").count("```python") == len(blocks()) == 3
    assert set(blocks()) == {"json_file_sink.py", "test_json_file_sink.py", "query.py"}


@pytest.mark.long
def test_the_test_on_the_page_passes_as_it_stands(tmp_path):
    """In a folder and a process of its own, with nothing that the page doesn't have."""
    save(tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        ".",
        "test_json_file_sink.py",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "45 cases passed" in done.stdout
