"""Bugs that somebody planted who didn't know the tests (``outside/*.toml``), to be tried as those
that operators make: against the tests that run their lines, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tomllib

from mutants.catalogue import SOURCE
from mutants.generated.operators import Generated

FOLDER = Path(__file__).parent / "outside"
OUTSIDE = "planted from outside"


def load(folder: Path = FOLDER, source: Path = SOURCE) -> tuple[list[Generated], list[str]]:
    """Return those that can still be planted, in the order of the files and of the entries in
    each, and the ids of the others: the code at their place has changed since.

    An entry has ``id``, ``file`` (below src/onceforall), ``old``, which stands there once, ``new``,
    and ``why``: what the bug would do to a user.

    Raises:
        ValueError: an id stands there twice.
    """
    bugs, gone = [], []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            bug = _read(entry, source)
            if bug is None:
                gone.append(str(entry["id"]))
            else:
                bugs.append(bug)
    names = [*(bug.id for bug in bugs), *gone]
    if len(set(names)) != len(names):
        raise ValueError(f"An id stands in {folder} twice.")
    return bugs, gone


def _read(entry: Mapping[str, str], source: Path) -> Generated | None:
    file, old = source / entry["file"], entry["old"]
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text.count(old) != 1:
        return None
    before = text[: text.index(old)]
    first = before.count("\n") + 1
    return Generated(
        id=entry["id"],
        file=entry["file"],
        line=first,
        lines=tuple(range(first, first + old.rstrip("\n").count("\n") + 1)),
        operator=OUTSIDE,
        within=entry["why"],
        old=old,
        new=entry["new"],
        start=len(before.encode()),
    )
