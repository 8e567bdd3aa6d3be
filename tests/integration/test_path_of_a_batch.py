"""The files that a batch passes, as docs/architecture.md lists them for whoever follows one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
HELPERS = ("common/", "failpoints/", "driver/sweeper.py", "driver/swept.py")
"""The sweeper goes by the clock, beside the batches."""


def listed():
    section = PAGE.read_text(encoding="utf-8").split("## Follow one batch")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return sorted(name for row in rows for name in re.findall(r"`([a-z_/]+\.py)`", row))


def test_each_is_listed_once_and_is_there():
    names = listed()
    assert len(names) == len(set(names)) > 20
    source = PAGE.parents[1] / "src" / "onceforall"
    assert [name for name in names if not (source / name).is_file()] == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_batch_from_a_topic_to_a_topic_enters_these_and_no_others(broker, tmp_path):
    for topic in ("in", "out"):
        broker.create_topic(topic, 2)
    hook, notes = tmp_path / "hook", tmp_path / "notes"
    hook.mkdir()
    notes.mkdir()
    (hook / "sitecustomize.py").write_text(
        "from support.batch_path import begin\nbegin()\n", encoding="utf-8"
    )
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(hook), str(tests), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "support.batch_path", broker.bootstrap_servers, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "BATCH_PATH": str(notes)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    entered = json.loads(done.stdout.splitlines()[-1])
    found = [name for name in entered if not name.startswith(HELPERS)]
    assert set(found) ^ set(listed()) == set()
