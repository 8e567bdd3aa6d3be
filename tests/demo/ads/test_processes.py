"""A job's process."""

from __future__ import annotations

import random
import signal

import pytest

from onceforall.demo.ads.processes import ProgramProcess
from support.waiting import until

PROGRAM = """
import os, signal, sys
print(sys.argv[1:], os.environ.get("GIVEN"), os.environ.get("TAKEN_AWAY"), flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
open("ready", "w").close()
while True:
    signal.pause()
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("TAKEN_AWAY", "still there")
    (tmp_path / "program.py").write_text(PROGRAM)
    started = []

    def begin():
        environment = {"GIVEN": "given", "TAKEN_AWAY": None}
        log = tmp_path / "program.log"
        life = ProgramProcess(
            tmp_path / "program.py",
            ["--one", "two"],
            work_dir=tmp_path,
            log=log,
            environment=environment,
        )
        started.append(life)
        until(
            lambda: (tmp_path / "ready").exists() or life.return_code is not None,
            30,
            "the program's start",
        )
        return life

    yield begin
    for life in started:
        life.kill()


def test_a_program_has_its_arguments_and_environment_and_ends_when_asked(start):
    life = start()
    assert life.last_words() == "['--one', 'two'] given None"
    life.send_signal(signal.SIGTERM)
    assert life.wait(30)
    assert life.return_code == 3
    # One that has ended takes no signal, and was not killed.
    life.send_signal(signal.SIGTERM)
    assert not life.kill()


def test_a_program_without_a_jvm_has_no_workers_to_kill_and_can_be_killed_itself(start):
    life = start()
    assert life.kill_workers(random.Random(1)) == 0
    assert life.kill()
    assert life.return_code == -signal.SIGKILL
