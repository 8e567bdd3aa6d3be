"""Which tests are to notice a bug: those that run one of its lines without it, those of its own
room first, and of these quick ones.

``python tests/mutants/generated/choosing.py TESTS`` runs tests once with coverage by test
(``--cov-context=test``) and writes what each line is run by, and how long each test takes, to
build/mutants/lines.json. A test that fails then is left out: it would notice everything.
"""

# ruff: noqa: T201  a command prints

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mutants.catalogue import ROOT, SOURCE

LINES = ROOT / "build" / "mutants" / "lines.json"
OF_A_KIND = 12
"""At most so many tests of one function: of 300 parameters each hundredth notices as much."""
AT_MOST = 400
QUICK_S, QUICK_BESIDE_S = 3.0, 20.0
"""What a quick test takes, with coverage: elsewhere, and in the module's own room."""


@dataclass(frozen=True)
class Chosen:
    """What runs each line.

    Attributes:
        lines: by file below src/onceforall, then by line: the tests' numbers.
        tests: node ids, by number.
        seconds: how long each of them takes.
    """

    lines: Mapping[str, Mapping[int, list[int]]]
    tests: list[str]
    seconds: list[float]

    def of(
        self, file: str, lines: Iterable[int], limit_s: float = math.inf
    ) -> tuple[list[str], list[str]]:
        """Return the node ids of the quick and of the slow tests that run one of these lines.

        Args:
            file: below src/onceforall.
            lines: of it.
            limit_s: of the quick ones those of the room, and of others the quickest, as long as all
                together take no longer.
        """
        by_line = self.lines.get(file, {})
        numbers = sorted(
            {number for line in lines for number in by_line.get(line, [])},
            key=lambda number: (not self._is_beside(number, file), self.seconds[number], number),
        )
        kinds: dict[str, int] = defaultdict(int)
        quick: list[str] = []
        slow: list[str] = []
        sum_s = 0.0
        for number in numbers:
            kind = self.tests[number].split("[")[0]
            kinds[kind] += 1
            if kinds[kind] > OF_A_KIND:
                continue
            sum_s += self.seconds[number]
            beside = self._is_beside(number, file)
            if self.seconds[number] >= (QUICK_BESIDE_S if beside else QUICK_S):
                slow.append(self.tests[number])
            elif beside or not quick or sum_s <= limit_s:
                quick.append(self.tests[number])
        return quick[:AT_MOST], slow[:AT_MOST]

    def _is_beside(self, number: int, file: str) -> bool:
        """Whether a test is of the module's own room: what runs everything notices less than what
        was written for it, and of quick ones there are more than can be tried."""
        return self.tests[number].startswith(f"tests/{Path(file).parts[0]}/")


def read(path: Path = LINES) -> Chosen:
    """Return what an earlier run wrote.

    Raises:
        FileNotFoundError: there was none.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    lines = {
        file: {int(line): numbers for line, numbers in by_line.items()}
        for file, by_line in found["lines"].items()
    }
    return Chosen(lines, found["tests"], found["seconds"])


def look(arguments: list[str], path: Path = LINES) -> None:
    """Run tests, and write down what they run.

    Args:
        arguments: of pytest.
        path: where to.

    Raises:
        RuntimeError: pytest could not run, or no test ran a line of this package.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data, report = path.with_name("lines.coverage"), path.with_name("lines.jsonl")
    report.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "MUTANT_REPORT": str(report),
        "COVERAGE_FILE": str(data),
        "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(ROOT), str(ROOT / "tests")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.recording"]
    command += ["--cov=onceforall", "--cov-context=test", "--cov-report="]
    code = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=False).returncode
    if code not in {0, 1}:
        raise RuntimeError(f"pytest ended with {code}")
    entries = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    failed = {entry["node"] for entry in entries if entry["failed"]}
    seconds = {entry["node"]: entry["seconds"] for entry in entries if entry["node"] not in failed}
    tests = sorted(seconds)
    numbers = {test: number for number, test in enumerate(tests)}
    written = {
        "lines": _lines(data, numbers),
        "tests": tests,
        "seconds": [seconds[test] for test in tests],
    }
    if not written["lines"]:
        raise RuntimeError(f"{len(tests)} tests ran no line below {SOURCE}")
    path.write_text(json.dumps(written), encoding="utf-8")
    data.unlink()
    print(f"{len(tests)} tests, {len(failed)} failed, {len(written['lines'])} modules")


def _lines(data: Path, numbers: Mapping[str, int]) -> dict[str, dict[str, list[int]]]:
    from coverage import CoverageData

    found = CoverageData(str(data))
    found.read()
    lines: dict[str, Any] = {}
    for name in found.measured_files():
        if Path(name).is_relative_to(SOURCE):
            by_line = {
                str(line): sorted(
                    {
                        numbers[test]
                        for test in (context.rsplit("|", 1)[0] for context in contexts)
                        if test in numbers
                    }
                )
                for line, contexts in found.contexts_by_lineno(name).items()
            }
            lines[str(Path(name).relative_to(SOURCE))] = by_line
    return lines


if __name__ == "__main__":
    look(sys.argv[1:])
