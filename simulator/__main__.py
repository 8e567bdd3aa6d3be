"""``python -m simulator``: see ``docs/simulator.md``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from simulator.campaign import FAULTS, Campaign, Plan, fixed_by
from simulator.explorer import MOVES, replay
from simulator.violation import Violation


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status: 0 no violation and complete, 1 a violation, 3
    stopped by ``--minutes``.
    """
    options = _parser().parse_args(arguments)
    show = partial(print, flush=True)
    if options.replay is not None:
        try:
            replay(options.replay, options.moves, FAULTS, **fixed_by(options.replay))
        except Violation as violation:
            show(f"VIOLATION: {violation}")
            return 1
        return 0
    plan = Plan(
        options.schedules,
        options.first_seed,
        options.workers,
        options.minutes,
        options.folder,
        options.moves,
    )
    campaign = Campaign(plan, show)
    results = campaign.run()
    if results["violations"]:
        return 1
    return 0 if results["complete"] else 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument(
        "--schedules",
        type=int,
        default=10_000,
        help="how many with five faults or more (default 10000)",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument(
        "--first-seed", type=int, default=0, help="where the seeds begin (default 0)"
    )
    parser.add_argument(
        "--minutes", type=float, help="stop after so long; the same command goes on later"
    )
    parser.add_argument(
        "--moves",
        type=int,
        default=MOVES,
        help=f"moves of a schedule before it is healed (default {MOVES})",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("build/simulator"),
        help="for results.json and the state",
    )
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="play one schedule and print its moves"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
