"""What a run of the mutants came to: ``build/mutants/results.json`` for programs, ``results.md``
for people."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from evidence.digests import digest_of, run_by
from mutants.catalogue import FOLDER, ROOT, SOURCE, Mutant, load
from mutants.running import CAUGHT, Verdict

PUBLISHED = ROOT / "docs" / "mutants-results.json"
"""The verdicts behind the published page; another clone goes on from them."""


@cache
def _digest_of_what_runs(files: tuple[Path, ...], package: Path, *, whole: bool) -> str:
    ran = {*run_by(files, package), *(package.rglob("*.py") if whole else ())}
    of_the_package = sorted(path for path in ran if path.is_relative_to(package))
    of_tests = sorted(ran.difference(of_the_package))
    return f"{digest_of(of_the_package, package)} {digest_of(of_tests)}"


def digest_of_today(published: Path = PUBLISHED, folder: Path = FOLDER) -> str:
    """Return the digest that the published page would bear if each bug's verdict were of today's
    code."""
    rows = (
        json.loads(published.read_text(encoding="utf-8"))["mutants"] if published.exists() else []
    )
    elsewhere = {row["id"] for row in rows if was_elsewhere(row["importers"])}
    return digest_of_all(key_of(one, whole=one.id in elsewhere) for one in load(folder))


def key_of(mutant: Mutant, package: Path = SOURCE, *, whole: bool = True) -> str:
    """Return what tells whether an earlier verdict on a mutant still holds: a hash of it, of the
    tests that judge it with all of the project that they import, and of the package; without
    comments and docstrings.

    Args:
        mutant: the bug.
        package: the folder of ``onceforall``.
        whole: all of the package counts; else what those tests and the changed module import of it,
            which is enough where no other program than pytest imported the package.
    """
    tests = {
        ROOT / word.split("::")[0]
        for check in mutant.checks
        for word in check.split()
        if word.startswith("tests/")
    }
    files = (*sorted(path for path in tests if path.is_file()), package / mutant.file)
    bug = hashlib.sha256(json.dumps(asdict(mutant), sort_keys=True).encode()).hexdigest()[:16]
    return f"{bug} {_digest_of_what_runs(files, package, whole=whole)}"


def was_elsewhere(importers: Iterable[str]) -> bool:
    """Whether another program than pytest imported the package; its own servers for tests don't
    count."""
    return any(
        name != "pytest" and not name.startswith("onceforall.embedded.") for name in importers
    )


def digest_of_all(keys: Iterable[str]) -> str:
    """Return one digest for the keys of all bugs."""
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]


def earlier(folder: Path, published: Path | None = PUBLISHED) -> dict[str, dict[str, Any]]:
    """Return the rows of an earlier run by id, else those that are published; only those of caught
    mutants are worth keeping."""
    rows = []
    for path in filter(None, (published, folder / "results.json")):
        if path.exists():
            rows += json.loads(path.read_text(encoding="utf-8"))["mutants"]
    return {row["id"]: row for row in rows if row["status"] == CAUGHT}


def publish(folder: Path, docs: Path = PUBLISHED.parent) -> None:
    """Put the page and the results behind it into the documentation."""
    shutil.copy(folder / "results.md", docs / "mutants-results.md")
    body = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    # By what a test failed may name folders of the machine.
    rows = [{**row, "words": ""} if row["status"] == CAUGHT else row for row in body["mutants"]]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    (docs / PUBLISHED.name).write_text(
        f'{{\n "digest": "{digest_of_all(row["key"] for row in body["mutants"])}",\n'
        f' "totals": {json.dumps(body["totals"])},\n "mutants": [\n{lines}\n ]\n}}\n',
        encoding="utf-8",
    )


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
        "confirmed": False,
    }


def noticed_by(row: Mapping[str, Any]) -> list[str]:
    """Return the tests that noticed a bug: one, or all where each had to."""
    return [node for node in (row["caught_by"], *row.get("also", ())) if node is not None]


def unconfirmed(rows: Iterable[Mapping[str, Any]]) -> int:
    """Return of how many noticed bugs the test that noticed it didn't run without the bug yet."""
    return sum(row["status"] == CAUGHT and not row["confirmed"] for row in rows)


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
        + (
            f"; of {unconfirmed(rows)} the test that noticed it has yet to run without the bug"
            if unconfirmed(rows)
            else ""
        )
        + f". Digest of package, bugs and tests: {digest_of_all(row['key'] for row in rows)}.",
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
