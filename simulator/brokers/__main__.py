"""``python -m simulator.brokers``: see ``docs/simulator.md``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

from simulator.brokers.schedule import play, played
from simulator.page import BROKERS, FOLDER, save
from simulator.violation import Violation

_CHUNK = 250


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status: 0 no violation and complete, 1 a violation, 3
    stopped by ``--minutes``.
    """
    options = _parser().parse_args(arguments)
    if options.replay is not None:
        try:
            sys.stdout.write("\n".join(play(options.replay, tell=True).story) + "\n")
        except Violation as violation:
            sys.stdout.write(f"VIOLATION: {violation}\n")
            return 1
        return 0
    started_s, played, violations = time.monotonic(), 0, 0
    totals: Counter[str] = Counter()
    with ProcessPoolExecutor(options.workers) as processes:
        chunks = _chunks(options.first_seed, options.first_seed + options.schedules)
        for these in _groups(chunks, options.workers):
            for count, counts, found in processes.map(_play, these):
                played += count
                totals.update(counts)
                violations += len(found)
                for words in found:
                    sys.stdout.write(f"VIOLATION: {words}\n")
            elapsed_s = time.monotonic() - started_s
            sys.stdout.write(f"{played:,} schedules in {elapsed_s:.0f} s\n")
            sys.stdout.flush()
            if options.minutes is not None and elapsed_s > 60 * options.minutes:
                break
    save(
        BROKERS,
        options.folder,
        {
            "schedules": played,
            "first_seed": options.first_seed,
            "violations": violations,
            "seconds": round(time.monotonic() - started_s, 1),
            "counts": dict(totals.most_common()),
        },
    )
    sys.stdout.writelines(f"  {count:>10,} {kind}\n" for kind, count in totals.most_common())
    if violations:
        return 1
    return 0 if played == options.schedules else 3


def _chunks(first: int, end: int) -> Iterator[range]:
    for start in range(first, end, _CHUNK):
        yield range(start, min(start + _CHUNK, end))


def _groups(chunks: Iterator[range], workers: int) -> Iterator[list[range]]:
    while group := list(islice(chunks, 4 * workers)):
        yield group


def _play(seeds: range) -> tuple[int, Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    found = []
    for seed in seeds:
        outcome = played(seed)
        if isinstance(outcome, Violation):
            found.append(str(outcome))
        else:
            counts.update(outcome.faults)
            counts.update({f"reported as {k}": n for k, n in outcome.reports.items()})
    return len(seeds), counts, found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator.brokers", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument(
        "--first-seed", type=int, default=0, help="where the seeds begin (default 0)"
    )
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help=f"where the figures go ({FOLDER})"
    )
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="play one schedule and print what happens"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
