"""As on any store of objects; and an abort that is killed in between."""

from __future__ import annotations

import signal

import pytest

from sinks.files_objects.crashes import *  # noqa: F403
from sinks.files_objects.crashes import WORKER

pytestmark = [pytest.mark.azure, pytest.mark.long]

KILLED_BEHIND_THE_PLACEHOLDER = """
import os, runpy, signal, sys
from onceforall.sinks.files.places.azure.container import Container
delete = Container._delete_placeholder

def killed(container, path):
    if path.name.startswith("part-"):  # the start gives up its probe
        os.kill(os.getpid(), signal.SIGKILL)
    delete(container, path)

Container._delete_placeholder = killed
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_placeholder_that_a_killed_abort_leaves_is_deleted_by_the_sweep(decided):
    place = decided.place
    program = "-c", KILLED_BEHIND_THE_PLACEHOLDER, WORKER
    assert decided.run("abort", program=program) == -signal.SIGKILL
    assert len(place.begun()) == 7
    assert len(place.data()) == 1
    assert place.files().rows == 0
    assert decided.run("abort") == 0
    assert place.left() == []
