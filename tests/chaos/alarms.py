"""Errors that no fault of the campaign excuses: bugs, or a log or a checkpoint that was damaged."""

import contextlib
import json
import re

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

_TEXT_LIMIT = 2000


def alarms(world, allowed=()):
    """Return a line for each run of a world's drivers that ended with an alarming error.

    Args:
        world: with ``drivers``, whose ``errors.json`` and ``status.json`` are read, as far as they
            are there.
        allowed: names from ``ALARMING`` that what was done to the world does excuse.
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
    """The first name that is found; those of Python's own are not a part of a longer name, as
    ``java.lang.AssertionError``."""
    for name in ALARMING:
        before = r"(?<![\w.])" if name in PYTHONS else r"\b"
        if name not in allowed and re.search(rf"{before}{name}\b", error):
            return name
    return ""
