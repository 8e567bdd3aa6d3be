"""The page docs/own-sink.md does what it says: its sink is short, and passes its own test. Its query: tests/integration."""

from __future__ import annotations

import ast
import json

from support.own_sink import PAGE, blocks, run_block


def rows_of(folder):
    return sorted(json.loads(line)["n"] for file in folder.glob("*.jsonl") for line in file.read_text().splitlines())


def test_the_sink_of_the_page_is_as_short_as_the_page_says():
    tree = ast.parse(blocks()["json_file_sink.py"])
    (sink,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    statements = [node for node in ast.walk(sink) if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef)]
    assert 20 < len(statements) < 45


def test_every_block_of_python_on_the_page_is_run_here():
    assert PAGE.read_text(encoding="utf-8").count("```python") == len(blocks()) == 3
    assert set(blocks()) == {"json_file_sink.py", "test_json_file_sink.py", "query.py"}


def test_the_test_on_the_page_passes(tmp_path, capsys):
    sink = run_block("json_file_sink.py")["JsonFileSink"]
    test = run_block("test_json_file_sink.py", JsonFileSink=sink)["test_the_sink_keeps_the_contract"]
    test(tmp_path)
    assert "42 cases passed" in capsys.readouterr().out
    assert rows_of(tmp_path)
