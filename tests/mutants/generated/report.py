"""What became of each generated bug, on disk at any time."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from mutants.catalogue import ROOT, SOURCE
from mutants.generated.operators import Generated
from mutants.running import BROKEN, Verdict

NOTICED = ("caught", "hung")
LET_THROUGH = ("survived", "untested")


class Results:
    """The rows of ``generated.json``, one per bug."""

    def __init__(self, path: Path) -> None:
        """Read what is there; nothing if the file isn't."""
        self._path = path
        self._lock = threading.Lock()
        self._tests: str | None = None
        self._modules: dict[str, str] = {}
        self._rows: dict[str, dict[str, Any]] = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        )

    def add(self, bug: Generated, status: str, verdict: Verdict) -> None:
        """Write down what became of a bug."""
        with self._lock:
            self._rows[bug.id] = {
                "file": bug.file,
                "line": bug.line,
                "operator": bug.operator,
                "within": bug.within,
                "old": bug.old,
                "new": bug.new,
                "status": status,
                "caught_by": verdict.caught_by,
                "words": verdict.words[:200],
                "seconds": round(verdict.seconds, 1),
                "key": self._key(bug.file, status, verdict.caught_by),
            }
            self._write()

    def withdraw(self, ids: Collection[str], node: str, why: str) -> None:
        """A test fails without any bug too: what it noticed is unknown."""
        with self._lock:
            for name, row in self._rows.items():
                if name in ids and row["caught_by"] == node:
                    row["status"], row["words"] = BROKEN, f"{node} fails without it too: {why}"
            self._write()

    def noticing(self, ids: Collection[str]) -> set[str]:
        """Return the tests by which these bugs were noticed."""
        return {
            row["caught_by"]
            for name, row in self._rows.items()
            if name in ids and row["status"] in NOTICED and row["caught_by"]
        }

    def status(self, name: str) -> str | None:
        """Return what became of a bug; None: not tried."""
        row = self._rows.get(name)
        return row["status"] if row else None

    def row(self, name: str) -> Mapping[str, Any]:
        """Return all that is known of a bug."""
        return self._rows[name]

    def still_true(self, bugs: Iterable[Generated]) -> set[str]:
        """Return the bugs of which neither module nor tests have changed since they were tried."""
        return {
            bug.id
            for bug in bugs
            if (row := self._rows.get(bug.id)) is not None
            and row["status"] != BROKEN
            and row["key"] == self._key(bug.file, row["status"], row["caught_by"])
        }

    def totals(self, bugs: Iterable[Generated]) -> dict[str, int]:
        """Return how many bugs came to each end."""
        return dict(Counter(self.status(bug.id) or "not tried" for bug in bugs))

    def _key(self, file: str, status: str, caught_by: str | None) -> str:
        module = self._modules.setdefault(file, _digest([SOURCE / file]))
        if status in NOTICED and caught_by:
            test = caught_by.split("::")[0]
            if test not in self._modules:
                self._modules[test] = _digest([ROOT / test])
            return f"{module}-{self._modules[test]}"
        if self._tests is None:
            self._tests = _digest([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("test_*.py")])
        return f"{module}-{self._tests}"

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._rows, indent=0), encoding="utf-8")
        temporary.replace(self._path)


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        if path.exists():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
