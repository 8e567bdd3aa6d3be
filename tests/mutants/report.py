"""What a run of the mutants came to: ``build/mutants/results.json`` for programs, ``results.md``
for people."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence.digests import digest_of, package_digest
from mutants.catalogue import ROOT, Mutant
from mutants.running import CAUGHT, Verdict


def key_of(mutant: Mutant, package: Path) -> str:
    """Return what tells whether an earlier verdict on a mutant still holds: a hash of it, of the
    package and of the files of its checks, without comments and docstrings."""
    files = sorted(
        path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    named = sorted(
        {
            ROOT / word.split("::")[0]
            for check in mutant.checks
            for word in check.split()
            if word.startswith("tests/")
        }
    )
    return " ".join(
        (
            hashlib.sha256(json.dumps(asdict(mutant), sort_keys=True).encode()).hexdigest()[:16],
            digest_of(files, package),
            digest_of([path for path in named if path.is_file()]),
        )
    )


def earlier(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the verdicts of an earlier run by key; only those on caught mutants are worth
    keeping."""
    path = folder / "results.json"
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["mutants"]
    return {row["key"]: row for row in rows if row["status"] == CAUGHT}


def row_of(mutant: Mutant, verdict: Verdict, key: str) -> dict[str, Any]:
    """Return one mutant's part of the results."""
    return {
        "id": mutant.id,
        "class": mutant.required,
        "file": mutant.file,
        "why": mutant.why,
        "status": verdict.status,
        "caught_by": verdict.caught_by,
        "also": list(verdict.also),
        "words": verdict.words,
        "seconds": round(verdict.seconds, 1),
        "importers": list(verdict.importers),
        "key": key,
    }


def noticed_by(row: Mapping[str, Any]) -> list[str]:
    """Return the tests that noticed a bug: one, or all where each had to."""
    return [node for node in (row["caught_by"], *row.get("also", ())) if node is not None]


def totals(rows: Iterable[Mapping[str, Any]], planted: int) -> dict[str, int]:
    """Return how many were planted, and how many came to each status."""
    counts = {"planted": planted, "caught": 0, "survived": 0, "broken": 0}
    for row in rows:
        counts[row["status"]] += 1
    counts["not run"] = planted - sum(counts[status] for status in ("caught", "survived", "broken"))
    return counts


def write(folder: Path, rows: list[dict[str, Any]], planted: int) -> None:
    """Write both files; the JSON is whole at any time."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = totals(rows, planted)
    rows = sorted(rows, key=lambda row: (row["file"], row["id"]))
    temporary = folder / "results.json.tmp"
    temporary.write_text(
        json.dumps({"totals": counts, "mutants": rows}, indent=1) + "\n", encoding="utf-8"
    )
    temporary.replace(folder / "results.json")
    (folder / "results.md").write_text(_page(rows, counts), encoding="utf-8")


def _page(rows: list[dict[str, Any]], counts: Mapping[str, int]) -> str:
    lines = [
        "# Mutants",
        "",
        (
            "Bugs that were planted in the code, one at a time, and the checks that noticed each. "
            "Written by `make mutants`; `make evidence` says whether it is of the code that is"
        ),
        "checked out.",
        "",
        ", ".join(f"{count} {what}" for what, count in counts.items())
        + f". Package and bugs: digest {package_digest()}.",
        "",
        "## What a sceptic would ask",
        "",
        (
            "- **Is a failing test a noticed bug?** Not if it fails without the bug, too: each test "
            "that noticed something ran once more on the code as it is. Not if the bug is no "
            "program, or the test hung: that is *broken*, and fails the run."
        ),
        (
            "- **Were the bugs chosen so that the tests find them?** Yes: each belongs to a guard, "
            "and names the test that is there for it. So there are others: every bug that a list "
            "of operators makes of whole modules (`make mutants-generated`), and sets that were "
            "planted by somebody who had seen no test (`tests/mutants/generated/outside`)."
        ),
        (
            "- **Was it the changed code that ran?** Each process of a test writes down from where "
            "it imported the package; one that imported another copy makes the bug *broken*."
        ),
        (
            "- **Can I run one?** `.venv/bin/python tests/mutants/run.py -k WORD`, with a word of "
            "its name; all take some hours."
        ),
        "",
        "## The bugs",
        "",
        "| bug | in | what it would do to a user | noticed by | s |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        noticed = (
            ", ".join(f"`{_short(node)}`" for node in noticed_by(row))
            if row["status"] == CAUGHT
            else f"**{row['status']}**: {row['words']}"
        )
        cells = [row["id"], f"`{row['file']}`", row["why"], noticed, f"{row['seconds']:.0f}"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _short(node: str) -> str:
    return node.removeprefix("tests/")
