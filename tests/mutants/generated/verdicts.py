"""What was said of bugs that survived: ``verdicts.toml`` beside this module.

[[verdict]]
id = "0123456789ab"            # of the bug, as the run names it
file = "protocol/machine.py"   # for who reads it; the bug must be there
old = "..."                    # what it changes, on one line
why = "..."                    # why no user could tell it from the code as it is
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tomllib

FILE = Path(__file__).with_name("verdicts.toml")


@dataclass(frozen=True)
class Judged:
    """A bug that is none: the program does the same with it."""

    id: str
    file: str
    old: str
    why: str


def load(path: Path = FILE) -> dict[str, Judged]:
    """Return what was judged, by the bug's id.

    Raises:
        ValueError: an entry gives no reason, or stands there twice.
    """
    with path.open("rb") as file:
        entries = tomllib.load(file).get("verdict", [])
    judged: dict[str, Judged] = {}
    for entry in entries:
        one = Judged(entry["id"], entry["file"], entry["old"], " ".join(entry["why"].split()))
        if len(one.why) < 20:
            raise ValueError(f"{one.id}: a verdict needs a sentence that says why")
        if one.id in judged:
            raise ValueError(f"{one.id} stands there twice")
        judged[one.id] = one
    return judged
