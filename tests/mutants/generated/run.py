"""Makes every bug that the operators know, one at a time, and runs the tests that might notice it:
``python tests/mutants/generated/run.py protocol commit_log``; or, with ``--outside``, those that
somebody planted who didn't know the tests.

A bug that the chosen tests let through goes to the simulator, where that drives the module, then to
the slow tests that run its lines, and with ``--beside`` to all tests of ``make test`` in the folders
of its room: those that start servers are not looked at by ``choosing.py``. ``--since COMMIT`` makes
bugs of the lines that were changed since, and ``--tests`` says which tests are to notice them:
behind a mend, both take minutes. Ends with 1 when one survived that nobody has judged
(``verdicts.toml``). What was tried stands in build/mutants/generated.json at any time, and
``--resume`` goes on from there: a bug that was noticed stays noticed as long as its module and the
file of the test are as they were, and one that survived as long as the package and all tests are.
"""

# ruff: noqa: T201  a command prints

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mutants.catalogue import ROOT, SOURCE
from mutants.generated import choosing, outside
from mutants.generated.operators import Generated, bugs_of
from mutants.generated.published import merged, page, publish, read, records_of
from mutants.generated.report import Results
from mutants.generated.verdicts import load
from mutants.running import BROKEN, CAUGHT, SURVIVED, Verdict, Workshop
from mutants.servers import started

SIMULATED = ("protocol/", "commit_log/", "driver/coordinator.py", "driver/transaction.py")
SIMULATOR = 'tests/simulation -m "not long"'
BESIDE = {
    **{room: (room,) for room in ("cli", "commit_log", "connect", "demo", "embedded", "operators")},
    **{room: (room,) for room in ("sources", "testing")},
    **{room: (room, "integration") for room in ("driver", "spark", "task")},
    "operate": ("cli",),
    "protocol": ("protocol", "driver", "integration"),
}
"""The folders of tests of a room; of what lies in none, those of the query's two sides."""
PLACES = {"local": "files", "objects": "files_s3"}
BESIDE_S = 300
HUNG, NO_PROGRAM, UNTESTED = "hung", "no program", "untested"

_UNCOLLECTED = ("collection", "pytest ended with 4: E   _pytest.main.Failed: stopping after")
"""A test file that can't be imported with the bug in the package; without, it was."""

_NO_PROGRAM = ("NameError", "UnboundLocalError", "SyntaxError", "ImportError")


def bugs_in(source: Path, folders: Iterable[str]) -> list[Generated]:
    """Return every bug of the modules below these folders, or of these modules.

    Args:
        source: the folder of the package.
        folders: below it.
    """
    files = []
    for name in folders:
        path = source / name
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [bug for file in files for bug in bugs_of(source, str(file.relative_to(source)))]


def lines_since(commit: str, source: Path = SOURCE) -> dict[str, set[int]]:
    """Return, by module below the package's folder, the lines that aren't as they were in a commit.

    Raises:
        subprocess.CalledProcessError: git knows no such commit.
    """
    command = ["git", "diff", "--unified=0", "--relative", commit, "--", "*.py"]
    told = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True).stdout
    found: dict[str, set[int]] = {}
    file = ""
    for line in told.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(file, set()).update(range(first, first + count))
    return {file: lines for file, lines in found.items() if lines}


def with_checks(
    bug: Generated, chosen: choosing.Chosen, *, slow: bool = True, quick_s: float = math.inf
) -> Generated:
    """Return the bug with the tests that are to notice it, in their order."""
    quick, long = chosen.of(bug.file, bug.lines, quick_s)
    checks = [shlex.join(quick)] if quick else []
    if slow and checks + long and bug.file.startswith(SIMULATED):
        checks.append(SIMULATOR)
    if slow and long:
        checks.append(shlex.join(long))
    return replace(bug, checks=tuple(checks))


def with_whole_folders(bug: Generated) -> Generated:
    """Return the bug with all tests of ``make test`` in the folders of its room behind its checks:
    those that need servers too, whatever lines they run."""
    check = shlex.join([*folders_beside(bug.file), "-m", "not long"])
    return replace(bug, checks=(*bug.checks, check), timeout_s=BESIDE_S)


def folders_beside(file: str) -> list[str]:
    """Return the folders of tests, below the checkout, of the room that a module lies in.

    Args:
        file: the module, below src/onceforall.
    """
    room, *inner = Path(file).parts
    if inner[:2] == ["files", "places"] and len(inner) > 3:
        return [f"tests/sinks/{PLACES.get(inner[2], f'files_{inner[2]}')}"]
    if room == "sinks" and len(inner) > 1:
        return [f"tests/sinks/{inner[0]}"]
    return [f"tests/{folder}" for folder in BESIDE.get(room, ("driver", "task"))]


def status_of(verdict: Verdict) -> str:
    """Return what a verdict says of a bug that nobody chose.

    A test that never ends has noticed it: each of them ended in the run without a bug. An
    error of any kind is a failed test too, but for a name that isn't there, which ends no review.
    """
    if verdict.status != BROKEN:
        return verdict.status
    if any(word in verdict.words for word in _NO_PROGRAM):
        return NO_PROGRAM
    if verdict.words.startswith(_UNCOLLECTED):
        return CAUGHT
    if verdict.words.startswith("Failed: Timeout") or "pytest hung" in verdict.words:
        return HUNG
    return CAUGHT if verdict.caught_by is not None else BROKEN


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says, and return the exit code."""
    options = _parser().parse_args(arguments)
    changed = None if options.since is None else lines_since(options.since)
    found = bugs_in(SOURCE, options.folders or changed or ())
    if changed is not None:
        found = [bug for bug in found if changed.get(bug.file, set()).intersection(bug.lines)]
    if options.outside:
        planted, gone = outside.load()
        print(f"The code at the place of {len(gone)} has changed since: {', '.join(gone) or '-'}")
        found += planted
    if options.tests:
        bugs = [replace(bug, checks=tuple(options.tests)) for bug in found]
    else:
        chosen = choosing.read(options.lines)
        slow, quick_s = options.slow, options.quick_s
        bugs = [with_checks(bug, chosen, slow=slow, quick_s=quick_s) for bug in found]
    if options.beside:
        bugs = [with_whole_folders(bug) for bug in bugs]
    if options.sample is not None:
        bugs = random.Random(options.seed).sample(bugs, min(options.sample, len(bugs)))
    results = Results(options.output / "generated.json")
    known = results.still_true(bugs) if options.resume else set()
    todo = [bug for bug in bugs if bug.id not in known]
    print(f"{len(bugs)} bugs, of which {len(bugs) - len(todo)} were tried before", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="onceforall-generated-") as folder,
        started(todo) as servers,
    ):
        _Run(Workshop(Path(folder), environment=servers), results, options).judge(todo)
    verdicts = load()
    records = records_of(results, bugs_in(SOURCE, sorted({bug.file for bug in bugs})))
    (options.output / "generated.md").write_text(page(records, verdicts), encoding="utf-8")
    if options.publish:
        publish(merged(read(), records), verdicts)
    return _tell(results, bugs, verdicts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="generated", description=__doc__)
    parser.add_argument("folders", nargs="*", help="of modules, or modules, below src/onceforall")
    parser.add_argument(
        "--since", metavar="COMMIT", help="of lines alone that were changed since then"
    )
    parser.add_argument(
        "--tests",
        action="append",
        metavar="ARGUMENTS",
        help="of pytest: what is to notice them, in place of the tests that run their lines; may be "
        "repeated",
    )
    parser.add_argument("--outside", action="store_true", help="those of outside/*.toml")
    parser.add_argument("--jobs", type=int, default=2, help="bugs at once (2)")
    parser.add_argument("--minutes", type=float, default=40, help="begin none after so many (40)")
    parser.add_argument("--sample", type=int, help="try so many only, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="keep what still holds")
    parser.add_argument("--no-slow", dest="slow", action="store_false", help="the quick tests only")
    parser.add_argument(
        "--quick-s", type=float, default=math.inf, help="quick tests of so many seconds only"
    )
    parser.add_argument(
        "--beside", action="store_true", help="then all tests of make test in the room's folders"
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="add these modules to docs/generated-results.md; --minutes 0 tries nothing before",
    )
    parser.add_argument("--lines", type=Path, default=choosing.LINES)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "mutants")
    return parser


class _Run:
    def __init__(self, workshop: Workshop, results: Results, options: argparse.Namespace) -> None:
        self._workshop = workshop
        self._results = results
        self._options = options

    def judge(self, bugs: list[Generated]) -> None:
        until = time.monotonic() + 60 * self._options.minutes
        count, todo = 0, list(bugs)
        with ThreadPoolExecutor(self._options.jobs) as threads:
            running: dict[Future[Verdict], Generated] = {}
            while running or (todo and time.monotonic() < until):
                while todo and len(running) < self._options.jobs and time.monotonic() < until:
                    bug = todo.pop(0)
                    running[threads.submit(self._judge, bug)] = bug
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    bug = running.pop(done)
                    verdict, count = done.result(), count + 1
                    status = UNTESTED if not bug.checks else status_of(verdict)
                    self._results.add(bug, status, verdict)
                    if status not in {CAUGHT, HUNG}:
                        print(f"{count}/{len(bugs)} {status}: {_line(bug)}", flush=True)
        self._withdraw({bug.id for bug in bugs})

    def _judge(self, bug: Generated) -> Verdict:
        if not bug.checks:
            return Verdict(SURVIVED, None, "no test runs it", 0.0)
        return self._workshop.judge(bug)

    def _withdraw(self, ids: set[str]) -> None:
        """A test that fails without a bug has noticed nothing."""
        nodes = sorted(self._results.noticing(ids))
        for first in range(0, len(nodes), 200):
            some = nodes[first : first + 200]
            for node, why in self._workshop.failing_without_a_bug(some, 120).items():
                self._results.withdraw(ids, node, why)


def _line(bug: Generated) -> str:
    old, new = (" ".join(text.split())[:60] for text in (bug.old, bug.new))
    return f"{bug.id} {bug.file}:{bug.line} {bug.operator}: {old} -> {new}"


def _tell(results: Results, bugs: Sequence[Generated], verdicts: Mapping[str, Any]) -> int:
    open_ones = [
        bug
        for bug in bugs
        if results.status(bug.id) in {SURVIVED, UNTESTED, BROKEN} and bug.id not in verdicts
    ]
    print(json.dumps(results.totals(bugs)))
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
