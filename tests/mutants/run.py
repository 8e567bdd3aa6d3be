"""Plants each bug in a copy of the package and runs its checks: ``python tests/mutants/run.py``.

Ends with 0 when every bug was noticed, and with 1 when one survived, could not be tried, or was not
reached in time; it names those.
"""

# ruff: noqa: T201  a command prints

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

# As a program, this file finds its neighbours by the name that pytest knows them by.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants import report
from mutants.catalogue import FOLDER, ROOT, Mutant, load
from mutants.running import BROKEN, CAUGHT, Verdict, Workshop
from mutants.servers import started


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says, and return the exit code."""
    options = _parser().parse_args(arguments)
    chosen = [
        mutant
        for mutant in load(options.folder)
        if all(word in f"{mutant.id} {mutant.file}" for word in options.k)
    ]
    # Crash tests take minutes each: what is left when the time is over is the least.
    chosen.sort(key=lambda mutant: mutant.every)
    if not chosen:
        print(f"no mutant has {' and '.join(options.k)} in its id or file", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="onceforall-mutants-") as folder,
        started(chosen) as servers,
    ):
        workshop = Workshop(Path(folder), environment=servers)
        rows = _Run(options, workshop, chosen).rows()
    report.write(options.output, rows, len(chosen))
    if options.publish:
        report.publish(options.output)
    return _tell(rows, chosen, options.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument(
        "-k",
        action="append",
        default=[],
        metavar="WORD",
        help="only those with it in id or file; may be repeated",
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once (2)")
    parser.add_argument(
        "--minutes", type=float, default=40, help="begin no further mutant after so many (40)"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep earlier verdicts, and published ones, of which neither code nor checks have "
        "changed",
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "mutants", help="where the results go"
    )
    parser.add_argument("--publish", action="store_true", help="put the page into docs/, too")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the mutants are")
    return parser


class _Run:
    def __init__(
        self, options: argparse.Namespace, workshop: Workshop, chosen: list[Mutant]
    ) -> None:
        self._options = options
        self._workshop = workshop
        self._chosen = chosen
        self._known = report.earlier(options.output) if options.resume else {}
        self._rows: list[dict[str, Any]] = []

    def rows(self) -> list[dict[str, Any]]:
        """Judge all mutants, and then whether what caught them passes without a bug."""
        self._judge_all()
        # Of an earlier run, too, that was ended before it came to this.
        self._withdraw([row for row in self._rows if not row["confirmed"]])
        return self._rows

    def _judge_all(self) -> None:
        until = time.monotonic() + 60 * self._options.minutes
        todo = []
        for mutant in self._chosen:
            known = self._known.get(mutant.id)
            if known is not None and known["key"] == self._key_of(mutant, known["importers"]):
                self._rows.append(known)
            else:
                todo.append(mutant)
        with ThreadPoolExecutor(self._options.jobs) as threads:
            running: dict[Future[Verdict], Mutant] = {}
            while running or (todo and time.monotonic() < until):
                while todo and len(running) < self._options.jobs and time.monotonic() < until:
                    mutant = todo.pop(0)
                    running[threads.submit(self._workshop.judge, mutant)] = mutant
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    mutant, verdict = running.pop(done), done.result()
                    key = self._key_of(mutant, verdict.importers)
                    row = report.row_of(mutant, verdict, key)
                    self._rows.append(row)
                    report.write(self._options.output, self._rows, len(self._chosen))
                    print(_line(row, len(self._rows), len(self._chosen)), flush=True)

    def _key_of(self, mutant: Mutant, importers: Sequence[str]) -> str:
        whole = report.was_elsewhere(importers)
        return report.key_of(mutant, self._workshop.package, whole=whole)

    def _withdraw(self, rows: list[dict[str, Any]]) -> None:
        """A test that fails without the bug too has noticed nothing: run each that caught one,
        once, on the unchanged copy."""
        nodes = sorted(
            {node for row in rows if row["status"] == CAUGHT for node in report.noticed_by(row)}
        )
        if not nodes:
            return
        print(f"running the {len(nodes)} tests that noticed something without any bug", flush=True)
        files = sorted({node.split("::")[0] for node in nodes})
        groups = [
            [node for node in nodes if files.index(node.split("::")[0]) % self._options.jobs == job]
            for job in range(self._options.jobs)
        ]
        timeout_s = max(mutant.timeout_s for mutant in self._chosen)
        with ThreadPoolExecutor(self._options.jobs) as threads:
            found = threads.map(
                lambda group: self._workshop.failing_without_a_bug(group, timeout_s),
                filter(None, groups),
            )
            wrong = {node: reason for each in found for node, reason in each.items()}
        for row in rows:
            row["confirmed"] = row["status"] == CAUGHT
            red = [node for node in report.noticed_by(row) if node in wrong]
            if red and row["status"] == CAUGHT:
                row["status"], row["confirmed"] = BROKEN, False
                row["words"] = "; ".join(
                    f"{node} fails without the bug too: {wrong[node]}" for node in red
                )


def _line(row: dict[str, Any], count: int, of: int) -> str:
    more = f" and {len(row['also'])} more" if row["also"] else ""
    noticed = (
        f"{row['caught_by']}{more}"
        if row["status"] == CAUGHT
        else f"{row['words']} {row['caught_by'] or ''}"
    )
    return f"{count:3}/{of} {row['status']:8} {row['seconds']:5.1f} s  {row['id']}: {noticed}"


def _tell(rows: list[dict[str, Any]], chosen: list[Mutant], output: Path) -> int:
    counts = report.totals(rows, len(chosen))
    print(
        ", ".join(f"{count} {what}" for what, count in counts.items())
        + f"; see {output / 'results.md'}"
    )
    for row in rows:
        if row["status"] != CAUGHT:
            print(
                f"{row['status'].upper()}: {row['id']} ({row['file']}): {row['words']}",
                file=sys.stderr,
            )
    missing = {mutant.id for mutant in chosen} - {row["id"] for row in rows}
    for name in sorted(missing):
        print(f"NOT RUN: {name}: no time was left (--minutes); --resume goes on", file=sys.stderr)
    return 0 if counts["caught"] == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
