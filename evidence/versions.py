"""``python -m evidence.versions``: writes ``docs/versions.md``: which tests passed on which version
of pyspark. What ``make compat`` left in ``build/compat`` replaces the record of its version in
``docs/versions.json``, which keeps those of the others.

``--describe`` prints what the environment that runs it consists of, as JSON; ``--failed VERSION``
the tests that failed.
"""

# ruff: noqa: T201  a command prints

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from evidence.digests import ROOT, versions_digest

_PYTHON = "-py"
"""Between a version of pyspark and a Python that isn't the usual one: ``4.2.0-py3.13``."""

RESULTS = ROOT / "build" / "compat"
PAGE = ROOT / "docs" / "versions.md"
RECORDS = ROOT / "docs" / "versions.json"

AREAS = (
    ("tests.crash.test_kills", "kill -9 of driver and workers at every step"),
    ("tests.crash.test_lost", "transactions lost and written again"),
    ("tests.crash.test_stopping", "stops in the middle of a batch"),
    ("tests.crash.test_rolls", "a log that rolls, under kills"),
    ("tests.crash.test_remote_checkpoints", "checkpoints on S3 and HDFS, under kills"),
    ("tests.crash", "other crashes: power cuts, zombies, late state"),
    ("tests.integration.test_redo", "redo: replays and kept rows"),
    ("tests.integration.test_repartitioned", "offline repartitioning of state"),
    ("tests.integration", "queries with one sink and with many; changes between runs"),
    ("tests.connect.test_kills", "Spark Connect: kill -9 of the server"),
    ("tests.connect", "Spark Connect: doors and refusals"),
    ("tests.operators", "operators: attribution, deduplication, windows, lookups"),
    ("tests.sources", "the Kinesis source"),
    ("tests.spark", "plans, checkpoints, offsets, Hadoop's client"),
    ("tests.embedded", "jars of the connectors"),
)
"""The first that begins a test's name has it."""


_HOW = (
    "`make compat` makes an environment for each version, and runs in it the short tests of all "
    "that touches Spark, then, but for other Pythons than 3.11, the long ones that kill at every "
    "step. "
    "`python -m evidence.versions` writes this page from what they came to; a version that "
    "wasn't run again keeps its record (`versions.json`), and the digest of the code that it ran."
)


@dataclass
class Outcomes:
    """What tests came to; ``again`` of the passed ones did so only in a second run, alone."""

    passed: int = 0
    again: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    @property
    def cell(self) -> str:
        """What stands in the table."""
        if self.failed:
            return f"**{len(self.failed)} failed**, {self.passed} passed"
        left_out = self.skipped.total()
        if not self.passed:
            return f"none; {left_out} left out" if left_out else "not run"
        return f"{self.passed}" + (f"; {left_out} left out" if left_out else "")


@dataclass
class Version:
    """One version of pyspark: what it ran in, and what the tests of each area came to."""

    described: Mapping[str, str]
    areas: dict[str, Outcomes] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, name: str, case: ET.Element) -> None:
        """Add one test.

        Raises:
            ValueError: no area has it.
        """
        title = next((title for start, title in AREAS if name.startswith(start)), None)
        if title is None:
            raise ValueError(f"no area has the test {name}")
        outcomes = self.areas.setdefault(title, Outcomes())
        skipped = case.find("skipped")
        if _has_failed(case):
            outcomes.failed.append(_node(case))
        elif skipped is not None:
            outcomes.skipped[_why(skipped)] += 1
        else:
            outcomes.passed += 1

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Version:
        """Return what `record` gave."""
        areas = {
            title: Outcomes(**{**each, "skipped": Counter(each["skipped"])})
            for title, each in record["areas"].items()
        }
        return cls(record["described"], areas, record["seconds"])

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        areas = {
            title: {**vars(each), "skipped": dict(each.skipped)}
            for title, each in self.areas.items()
        }
        return {"described": dict(self.described), "areas": areas, "seconds": self.seconds}

    def add_again(self, case: ET.Element) -> None:
        """Add the second run of a test that had failed."""
        for outcomes in self.areas.values():
            if _node(case) in outcomes.failed and not _has_failed(case):
                # A test can fail twice: itself, and in what it tears down.
                outcomes.failed = [each for each in outcomes.failed if each != _node(case)]
                outcomes.passed += 1
                outcomes.again += 1


def _why(skipped: ET.Element) -> str:
    message = skipped.get("message", "")
    if message == "collection skipped":
        message = (skipped.text or "").rstrip("')\"").rpartition("Skipped: ")[2]
    return message.removeprefix("Skipped: ")


def _has_failed(case: ET.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def _node(case: ET.Element) -> str:
    """Return a test as pytest takes it."""
    parts = str(case.get("classname")).split(".")
    file = next(end for end, part in enumerate(parts, 1) if part.startswith("test_"))
    return "::".join(["/".join(parts[:file]) + ".py", *parts[file:], str(case.get("name"))])


def failed(version: str, folder: Path = RESULTS) -> list[str]:
    """Return the tests that failed in the first run of a version, each once."""
    cases = (case for part in _parts(version) for case in _cases(folder / f"{version}-{part}.xml"))
    return list(dict.fromkeys(_node(case) for case in cases if _has_failed(case)))


def _parts(stem: str) -> tuple[str, ...]:
    return ("short",) if _PYTHON in stem else ("short", "kills")


def _cases(file: Path) -> Iterable[ET.Element]:
    return ET.parse(file).getroot().iter("testcase") if file.exists() else ()  # noqa: S314  our own


def described() -> dict[str, str]:
    """Return what this process runs on: versions of pyspark, Python, Java and Hadoop; the digest of
    the code under test; the day.
    """
    import pyspark

    hadoop = next(Path(pyspark.__path__[0]).glob("jars/hadoop-client-api-*.jar")).stem
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "([^"]+)"', java)
    return {
        "pyspark": pyspark.__version__,
        "Python": platform.python_version(),
        "Java": found[1] if found else "unknown",
        "Hadoop": hadoop.rpartition("-")[2],
        "code": versions_digest(),
        "day": datetime.now(tz=timezone.utc).date().isoformat(),
    }


def read(folder: Path = RESULTS, records: Path = RECORDS) -> dict[str, Version]:
    """Return the results of each version, oldest version first: those of the folder, and the
    records of the other versions.

    Raises:
        ValueError: a version has no results, or none of a part: it would look as if it passed.
    """
    versions = {}
    if records.exists():
        kept = json.loads(records.read_text(encoding="utf-8"))
        versions = {name: Version.of_record(record) for name, record in kept.items()}
    for file in folder.glob("*.json"):
        version = Version(json.loads(file.read_text(encoding="utf-8")))
        for part in _parts(file.stem):
            results = folder / f"{file.stem}-{part}.xml"
            if not results.exists():
                raise ValueError(f"there is no {results}: run tests/compat.sh {file.stem}")
            for suite in ET.parse(results).getroot().iter("testsuite"):  # noqa: S314  our own file
                version.seconds += float(suite.get("time", "0"))
                for case in suite.iter("testcase"):
                    # A module that is left out as a whole has its name in the second one.
                    version.add(str(case.get("classname") or case.get("name")), case)
        for case in _cases(folder / f"{file.stem}-again.xml"):
            version.add_again(case)
        versions[file.stem] = version
    if not versions:
        raise ValueError(f"there are no results in {folder}: run make compat")
    return {name: versions[name] for name in sorted(versions, key=_ordered)}


def page(versions: Mapping[str, Version]) -> str:
    """Return the page."""
    versions = {name.replace(_PYTHON, " on Python "): version for name, version in versions.items()}
    titles = [title for _, title in AREAS]
    lines = [
        "# Which PySpark was tried with what",
        "",
        _begin(versions),
        "",
        *_table(
            ["tests passed", *versions],
            [
                [title, *(_outcomes(version, title).cell for version in versions.values())]
                for title in titles
                if any(title in version.areas for version in versions.values())
            ],
        ),
        "",
        *_of_second_runs(versions),
        "Tests that are left out say why:",
        "",
        *_reasons(versions),
        "",
        "## How it was run",
        "",
        _HOW,
        "",
        *_table(
            ["", *versions],
            [
                *(
                    [key, *(version.described[key] for version in versions.values())]
                    for key in ("Python", "Java", "Hadoop", "day", "code")
                ),
                ["minutes", *(f"{version.seconds / 60:.0f}" for version in versions.values())],
            ],
        ),
        "",
        f"Measured code: `{_code(versions)}`.",
        "",
    ]
    return "\n".join(lines)


def _begin(versions: Mapping[str, Version]) -> str:
    failed = {
        name: sum(len(each.failed) for each in version.areas.values())
        for name, version in versions.items()
    }
    bad = [f"{count} of {name}" for name, count in failed.items() if count]
    passed = sum(each.passed for version in versions.values() for each in version.areas.values())
    names = ", ".join(versions)
    if bad:
        return f"**Not all tests pass on each of {names}**: {', '.join(bad)} fail."
    return (
        f"**The same tests pass on pyspark {names}**: {passed:,} runs of tests, with real brokers, "
        "databases and stores, and kill -9. What a version lacks is left out, and said below."
    )


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _outcomes(version: Version, title: str) -> Outcomes:
    return version.areas.get(title, Outcomes())


def _reasons(versions: Mapping[str, Version]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name, version in versions.items():
        found: Counter[str] = Counter()
        for outcomes in version.areas.values():
            found += outcomes.skipped
        for reason, count in sorted(found.items()):
            by_reason.setdefault(_plain(reason), []).append(f"{count} on {name}")
    return [
        f"- {reason} ({', '.join(counts)})" for reason, counts in sorted(by_reason.items())
    ] or ["- none is."]


def _of_second_runs(versions: Mapping[str, Version]) -> list[str]:
    again = {
        name: sum(each.again for each in version.areas.values())
        for name, version in versions.items()
    }
    told = [f"{count} on {name}" for name, count in again.items() if count]
    if not told:
        return []
    words = (
        "Tests that failed at first, and passed when they ran once more, one after the other (the "
        "machine was busy, or the fault was mended in between: CHANGELOG.md): "
        f"{', '.join(told)}."
    )
    return [words, ""]


def _plain(reason: str) -> str:
    return " ".join(reason.replace("|", "\\|").split())


def _code(versions: Mapping[str, Version]) -> str:
    return " and ".join(sorted({version.described["code"] for version in versions.values()}))


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.replace(_PYTHON, ".").split("."))


def main() -> None:
    """Write the page, or describe the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--describe", action="store_true", help="print the environment, as JSON")
    parser.add_argument("--failed", metavar="VERSION", help="print what failed on it, for pytest")
    arguments = parser.parse_args()
    if arguments.describe:
        print(json.dumps(described()))
        return
    if arguments.failed:
        print("\n".join(failed(arguments.failed)))
        return
    versions = read()
    records = {name: version.record() for name, version in versions.items()}
    RECORDS.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(versions), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
