"""The planted bugs, as data: one TOML file per area, beside this module.

Each is one small change of one file, such as a tired programmer would make, with what it would do
to a user. Its ``checks`` are tried in
their order, cheap ones first, until one fails: tests as pytest takes them, by node id or by file
and ``-k``.

    [[mutant]]
    id = "recovery-completes-what-is-done"   # a slug that says what is broken, unique
    class = "neighbour committed"            # of REQUIRED, where it is one of those
    file = "protocol/transitions/decide.py" # below src/onceforall
    old = "..."                              # stands there exactly once
    new = "..."
    why = "..."                              # what would happen to a user
    checks = ["tests/protocol/test_table.py::test_..."]
    timeout_s = 60                           # of a check, where the default does not do
    every = true                             # each of the checks must fail, not only one

``every`` is for tests that are too dear for a bug each: one broken guard shows of many tests that
they can fail. They run at once, so each of those checks is a node id alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "onceforall"
FOLDER = Path(__file__).resolve().parent
DEFAULT_TIMEOUT_S = 120

REQUIRED = frozenset(
    {
        "decision after commit",
        "no fsync of a log file",
        "no fsync of a log folder",
        "no fsync of a data file",
        "no fsync of a data folder",
        "a symbolic link followed",
        "seal skipped",
        "sweep before seal",
        "neighbour committed",
        "delivery report ignored",
        "id reused too early",
        "marker forgotten, staged",
        "marker forgotten, prepared",
        "digest unused",
        "sweep by EndTxn(abort)",
        "losing attempt's producer committed",
        "retried EndTxn not retired",
        "unsealed chain cleaned",
        "ambiguous append taken for a failure",
        "PRODUCER_FENCED taken for lost",
        "prefixes compared",
        "staging shared by attempts",
        "DONE before the folder is synced",
        "task numbers taken to be stable",
        "a replay accepted beside what is visible",
        "a decision after its time",
        "identity of a target",
    }
)
"""The classes of bugs of which there must be one each, whatever else is planted."""

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
_FIELDS = {"id", "class", "file", "old", "new", "why", "checks", "timeout_s", "every"}


@dataclass(frozen=True)
class Mutant:
    """One planted bug; see the module for what its fields say."""

    id: str
    file: str
    old: str
    new: str
    why: str
    checks: tuple[str, ...]
    required: str | None = None
    timeout_s: int = DEFAULT_TIMEOUT_S
    every: bool = False

    def applied(self, source: Path) -> str:
        """Return the text of its file with the bug in it.

        Args:
            source: the folder of the package.

        Raises:
            ValueError: what is to be replaced doesn't stand there exactly once, or isn't changed.
        """
        text = (source / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"{self.id}: its `old` stands {found} times in {self.file}, and must stand there "
                "once"
            )
        if self.old == self.new:
            raise ValueError(f"{self.id}: it changes nothing")
        return text.replace(self.old, self.new)


def load(folder: Path = FOLDER) -> list[Mutant]:
    """Return all planted bugs, in the order of files and of places in them.

    Raises:
        ValueError: an entry is malformed, or an id stands there twice.
    """
    mutants = [
        _mutant(entry, path.name)
        for path in sorted(folder.glob("*.toml"))
        for entry in _entries(path)
    ]
    ids = [mutant.id for mutant in mutants]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise ValueError(f"these ids stand there twice: {', '.join(twice)}")
    return mutants


def _entries(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        entries: list[dict[str, Any]] = tomllib.load(file)["mutant"]
    return entries


def _mutant(entry: dict[str, Any], where: str) -> Mutant:
    name = entry.get("id")
    if not isinstance(name, str) or not _SLUG.fullmatch(name):
        raise ValueError(f"{where}: {name!r} is no id: words in lower case, joined by hyphens")
    strange, missing = (
        sorted(set(entry) - _FIELDS),
        sorted(_FIELDS - {"class", "timeout_s", "every"} - set(entry)),
    )
    if strange or missing:
        raise ValueError(f"{where}: {name}: unknown fields {strange}, missing fields {missing}")
    if not entry["checks"] or len(entry["why"]) < 20:
        raise ValueError(
            f"{where}: {name} needs a check, and a sentence that says what it does to a user"
        )
    if entry.get("every") and any(" " in check for check in entry["checks"]):
        raise ValueError(f"{where}: {name}: each of its checks must fail, so each is one node id")
    return Mutant(
        name,
        entry["file"],
        entry["old"],
        entry["new"],
        " ".join(entry["why"].split()),
        tuple(entry["checks"]),
        entry.get("class"),
        int(entry.get("timeout_s", DEFAULT_TIMEOUT_S)),
        bool(entry.get("every", False)),
    )
