"""``python -m simulator.database``: see ``docs/simulator.md``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from simulator.database.schedule import MODES, play
from simulator.database.server import Server
from simulator.page import DATABASE, FOLDER, save
from simulator.violation import Violation

_PARTS = 20


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status: 0 no violation, 1 a violation."""
    options = _parser().parse_args(arguments)
    if options.replay is not None:
        return _replay(options.replay, options.mode)
    started_s, played, violations = time.monotonic(), 0, 0
    totals: Counter[str] = Counter()
    end = options.first_seed + options.schedules
    size = max(1, -(-options.schedules // (_PARTS * options.workers)))
    parts = [range(at, min(at + size, end)) for at in range(options.first_seed, end, size)]
    with ProcessPoolExecutor(options.workers) as processes:
        for count, counts, found in processes.map(_play, parts, [options.mode] * len(parts)):
            played += count
            totals.update(counts)
            violations += len(found)
            for words in found:
                sys.stdout.write(f"VIOLATION: {words}\n")
            sys.stdout.write(f"{played:,} schedules in {time.monotonic() - started_s:.0f} s\n")
            sys.stdout.flush()
    save(
        DATABASE,
        options.folder,
        {
            "schedules": played,
            "first_seed": options.first_seed,
            "violations": violations,
            "seconds": round(time.monotonic() - started_s, 1),
            "counts": dict(totals.most_common()),
        },
    )
    sys.stdout.writelines(f"  {count:>10,} {what}\n" for what, count in totals.most_common())
    return 1 if violations else 0


def _replay(seed: int, mode: str | None) -> int:
    with _quiet(), Server() as server:
        try:
            sys.stdout.write("\n".join(play(server, seed, mode, tell=True).story) + "\n")
        except Violation as violation:
            sys.stdout.write(f"VIOLATION: {violation}\n")
            return 1
    return 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Say no warnings: the server is one that forgets, and each start would tell."""
    logger = logging.getLogger("onceforall")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _play(seeds: range, mode: str | None) -> tuple[int, Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    found = []
    with _quiet(), Server() as server:
        for seed in seeds:
            try:
                outcome = play(server, seed, mode)
            except Violation as violation:  # noqa: PERF203  the others are played, too
                found.append(str(violation))
            else:
                counts.update(outcome.counts)
                counts["steps"] += outcome.steps
    return len(seeds), counts, found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator.database", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument(
        "--first-seed", type=int, default=0, help="where the seeds begin (default 0)"
    )
    parser.add_argument("--mode", choices=MODES, help="of the sink (default: the seed chooses)")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help=f"where the figures go ({FOLDER})"
    )
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="play one schedule and print what happens"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
