"""What the campaign has done so far, in ``build/chaos/results.json``: it is kept over runs, as
long as the production code is the same. Where there is none, what is published is gone on from."""

import json
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

from evidence.digests import digest_of, query_digest, run_by

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "chaos"
SHOWING = ("page.py", "__main__.py")
"""What shows results and judges none: the page is written of them again at any time."""

PUBLISHED = ROOT / "docs" / "chaos-results.json"
"""The results behind the published page; another clone goes on from them."""

NUMBERS = ("lost", "duplicated", "torn", "leftovers", "violations")


def harness_digest(root=ROOT):
    """A digest of what judges and of what does the faults, which judge too, with what that imports
    of the tests' own tools: results of a weaker harness don't count for a stronger one.

    Args:
        root: of the checkout.
    """
    tests, package = root / "tests", root / "src" / "onceforall"
    others = {tests / "chaos" / name for name in SHOWING}
    campaign = [
        file
        for file in sorted((tests / "chaos").rglob("*.py"))
        if file not in others and not _is_test(file)
    ]
    return digest_of(
        (
            file
            for file in run_by(campaign, package, root)
            if file.is_relative_to(package / "testing") or file.is_relative_to(tests)
            if file not in others and not _is_test(file)
        ),
        root,
    )


def _is_test(file):
    return file.name.startswith(("test_", "conftest"))


def commit_of():
    """The commit that is checked out, with ``+`` when files differ from it; empty outside a
    clone."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "src", "tests"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


class Results:
    """Cells of the matrix and scenarios with their numbers, totals, and the runs that it took."""

    def __init__(self, folder=FOLDER, *, only_read=False, published=None):
        self._only_read = only_read
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "results.json"
        self._lock = threading.Lock()
        self.source = query_digest()
        self.harness = harness_digest()
        self.data = (
            self._earlier()
            or self._published(published)
            or {
                "source": self.source,
                "harness": self.harness,
                "cells": {},
                "scenarios": {},
                "runs": [],
                "kills_by_process": {},
                "kills": 0,
                "records": 0,
                "violations": 0,
                "stuck": 0,
                "found": [],
            }
        )
        self._started = time.monotonic()

    def _earlier(self):
        if not self.file.exists():
            return None
        data = json.loads(self.file.read_text())
        if (data["source"], data.get("harness")) == (self.source, self.harness):
            return data
        if not self._only_read:
            self.file.rename(
                self.folder
                / f"results-{data['source']}-{data.get('harness')}-{int(self.file.stat().st_mtime)}.json"
            )
        return data if self._only_read else None

    def _published(self, file):
        """What another clone did with the same code, and the same judges; of which code, matters
        to nobody who only reads."""
        if file is None or not file.exists():
            return None
        data = json.loads(file.read_text())
        is_of_today = (data["source"], data["harness"]) == (self.source, self.harness)
        return data if is_of_today or self._only_read else None

    def begin_run(self, minutes):
        self.data["runs"].append(
            {
                "commit": commit_of(),
                "at": time.strftime("%Y-%m-%d %H:%M"),
                "minutes": 0,
                "wanted": minutes,
            }
        )
        self.save()

    def is_covered(self, cell_id):
        return self.data["cells"].get(cell_id, {}).get("reached", False)

    def add_unit(self, unit, results, verdict, world):
        """Add a unit of the matrix: each of its cells, and its rows and kills once."""
        with self._lock:
            for result in results:
                cell = self.data["cells"].setdefault(result.cell.id, _empty())
                _add(cell, verdict, faults=result.kills)
                cell["reached"] = cell.get("reached", False) or result.reached
                cell["note"] = "" if cell["reached"] else result.note
                if result.recovery_s is not None:
                    cell["recovery_s"].append(round(result.recovery_s, 2))
            self._add_world(unit.id, verdict, world)

    def add_scenario(self, name, faults, verdict, worlds, recoveries):
        """Add one run of a scenario."""
        with self._lock:
            entry = self.data["scenarios"].setdefault(
                name, {**_empty(), "kills": {}, "by_fault": {}}
            )
            _add(entry, verdict, faults=sum(faults.values()))
            entry["by_fault"] = dict(Counter(entry["by_fault"]) + Counter(faults))
            entry["recovery_s"] += [round(seconds, 2) for seconds in recoveries]
            for world in worlds:
                entry["kills"] = dict(Counter(entry["kills"]) + world.tally.kills)
            self._add_world(name, verdict, *worlds)

    def fail(self, name, error):
        """Add a unit or scenario that came to no judgement: that is a violation, too."""
        with self._lock:
            self.data["violations"] += 1
            self.data["found"].append({"in": name, "what": [f"no judgement: {error}"[:2000]]})
            self._save()

    def stuck(self, name, why, violations=()):
        """Add a scenario whose query did not go on when all had healed, and the violations that
        were seen before."""
        with self._lock:
            self.data["stuck"] += 1
            self.data["violations"] += len(violations)
            self.data["found"].append({"in": name, "what": [f"stuck: {why}"[:2000], *violations]})
            self._save()

    def _add_world(self, name, verdict, *worlds):
        for world in worlds:
            self.data["kills_by_process"] = dict(
                Counter(self.data["kills_by_process"]) + world.tally.kills
            )
        self.data["kills"] = sum(self.data["kills_by_process"].values())
        self.data["records"] += verdict.records
        self.data["violations"] += len(verdict.violations)
        if verdict.violations:
            self.data["found"].append({"in": name, "what": verdict.violations[:20]})
        self._save()

    def save(self):
        with self._lock:
            self._save()

    def _save(self):
        if self.data["runs"]:
            self.data["runs"][-1]["minutes"] = round((time.monotonic() - self._started) / 60, 1)
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.data, indent=1, sort_keys=True))
        new.rename(self.file)


def _empty():
    return {"runs": 0, "faults": 0, "records": 0, **dict.fromkeys(NUMBERS, 0), "recovery_s": []}


def _add(entry, verdict, faults):
    entry["runs"] += 1
    entry["faults"] += faults
    entry["records"] += verdict.records
    for number in NUMBERS:
        found = getattr(verdict, number)
        entry[number] += found if isinstance(found, int) else len(found)
