"""What was measured, in ``build/bench/results.json``: kept over runs, as long as the code that is
measured and the harness are the same.

The file::

    {"source": digest, "harness": digest, "machine": {…}, "runs": [{…}], "units": {id: unit}}

A unit is one round of one measurement under one set of parameters: ``{"measurement", "parameters",
"round", "at", "commit", "seconds", "order", "samples": {contender:
{figure: value}}}``. It is added as a whole, so that what is compared was measured together. A
contender that failed has ``{"error": text}``. A unit that measures restarts has the digest of all
that a query runs, too (``"whole"``), and is missing where that has changed.

The file never holds figures of two codes or of two machines: where either has changed, it begins
anew. The code is what a batch runs once the query has started (``evidence.digests.speed_digest``).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from typing_extensions import Self

from benchmarks.settings import FOLDER, ROOT
from evidence.digests import digest_of, query_digest, speed_digest

SOURCE = ROOT / "src" / "onceforall"
HARNESS = ROOT / "benchmarks"
_NO_JUDGES = {
    "__main__.py",
    "acceptance.py",
    "footprint/__init__.py",
    "footprint/__main__.py",
    "footprint/recorder.py",
    "footprint/site/sitecustomize.py",
    "options/functions.py",
    "options/partition_order.py",
    "options/state_backends.py",
    "report/charts.py",
    "report/markdown.py",
    "report/missed.py",
    "report/page.py",
    "report/profile_page.py",
    "steps/profile_path.py",
    "steps/threads.py",
}
"""What shows results, or measures something that isn't among them."""
_PACKAGES = ("pyspark", "confluent-kafka", "kafka-python", "pyarrow", "numpy", "psycopg")

STARTS = frozenset({"curves", "recovery"})
"""The measurements that start queries again, and so measure what a start does."""

PUBLISHED = ROOT / "docs" / "performance.json"
"""The results behind the published page; another clone goes on from them."""

Sample = dict[str, Any]


def harness_digest() -> str:
    """Return a digest of what measures."""
    return digest_of(
        file
        for file in sorted(HARNESS.rglob("*.py"))
        if file.relative_to(HARNESS).as_posix() not in _NO_JUDGES
    )


def unit_id(measurement: str, parameters: Mapping[str, Any], turn: int) -> str:
    """Return what a unit is known by: measurement, parameters and round."""
    text = json.dumps(parameters, sort_keys=True)
    return f"{measurement} {hashlib.sha256(text.encode()).hexdigest()[:8]} {turn}"


def machine() -> dict[str, Any]:
    """Return what the machine is, without its name."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
        model = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
        )
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "memory_gb": round(psutil.virtual_memory().total / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def commit() -> str:
    """Return the commit that is checked out, with ``+`` when files differ from it; empty outside
    a clone.
    """
    try:
        found = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "src", "benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found + ("+" if changed else "")


class Results:
    """The file, and what is in it."""

    def __init__(
        self,
        folder: Path = FOLDER,
        *,
        only_read: bool = False,
        source: str | None = None,
        published: Path | None = None,
    ) -> None:
        """Read what there is; results of other code are moved aside, unless they are only read.

        Args:
            folder: where the file is.
            only_read: whether nothing will be added.
            source: the digest of the measured code; None: it is taken.
            published: results to go on from where there are none, if they are of this code and of
                such a machine; None: for the usual folder, those that are published.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "results.json"
        self._source = speed_digest() if source is None else source
        self._whole = query_digest() if source is None else source
        self._harness = harness_digest()
        self._began_s = time.monotonic()
        self._published = PUBLISHED if published is None and folder == FOLDER else published
        self.data = self._kept(only_read=only_read) or {
            "source": self._source,
            "harness": self._harness,
            "machine": machine(),
            "runs": [],
            "units": {},
        }
        if not only_read:
            self.data["units"] = {
                name: unit
                for name, unit in self.data["units"].items()
                if unit["measurement"] not in STARTS or unit.get("whole") == self._whole
            }

    @classmethod
    def to_show(cls, folder: Path = FOLDER, published: Path = PUBLISHED) -> Self:
        """Return what a page is made of, whatever code it measured: what the folder holds, or
        what is published where nothing was measured there.
        """
        results = cls(folder, only_read=True)
        if not results.file.exists() and published.exists():
            results.data = json.loads(published.read_text(encoding="utf-8"))
        return results

    def begin_run(self, minutes: float) -> None:
        """Note that a run begins."""
        run = {
            "commit": commit(),
            "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "minutes": 0.0,
            "wanted": minutes,
        }
        self.data["runs"].append({**run, "load": os.getloadavg()[0]})
        self.save()

    def has(self, measurement: str, parameters: Mapping[str, Any], turn: int) -> bool:
        """Tell whether a unit is there, with a figure of each contender."""
        unit = self.data["units"].get(unit_id(measurement, parameters, turn))
        return unit is not None and not any(
            "error" in sample for sample in unit["samples"].values()
        )

    def add(  # noqa: PLR0917
        self,
        measurement: str,
        parameters: Mapping[str, Any],
        turn: int,
        order: Sequence[str],
        samples: Mapping[str, Sample],
        seconds: float,
    ) -> None:
        """Add a unit, and write the file; ``order`` is that of the contenders in the plan, for
        tables.
        """
        self.data["units"][unit_id(measurement, parameters, turn)] = {
            "measurement": measurement,
            "parameters": dict(parameters),
            "round": turn,
            "at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            "commit": commit(),
            "seconds": round(seconds, 1),
            "order": list(order),
            "samples": dict(samples),
            **({"whole": self._whole} if measurement in STARTS else {}),
        }
        self.save()

    def units(self, measurement: str | None = None) -> list[dict[str, Any]]:
        """Return the units of a measurement (None: of all), in the order in which they were
        taken.
        """
        found = [
            unit
            for unit in self.data["units"].values()
            if measurement in {None, unit["measurement"]}
        ]
        return sorted(found, key=lambda unit: (unit["at"], unit["round"]))

    def save(self) -> None:
        """Write the file: whole, or not at all."""
        if self.data["runs"]:
            self.data["runs"][-1]["minutes"] = round((time.monotonic() - self._began_s) / 60, 1)
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.rename(self.file)

    def _kept(self, *, only_read: bool) -> dict[str, Any] | None:
        if not self.file.exists():
            return self._of_another_clone()
        data: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        if only_read or (data["source"], data["harness"]) == (self._source, self._harness):
            return data
        aside = f"results-{data['source']}-{data['harness']}-{int(self.file.stat().st_mtime)}.json"
        self.file.rename(self.folder / aside)
        return None

    def _of_another_clone(self) -> dict[str, Any] | None:
        if self._published is None or not self._published.exists():
            return None
        data: dict[str, Any] = json.loads(self._published.read_text(encoding="utf-8"))
        is_ours = (data["source"], data["harness"], data["machine"]) == (
            self._source,
            self._harness,
            machine(),
        )
        return data if is_ours else None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
