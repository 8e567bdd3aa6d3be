"""``python -m benchmarks`` (``make bench``): all measurements in turn, as many rounds as the time
allows; goes on where it ended.

The rounds that the targets need come first, each measurement's first one before anybody's second;
then the rest. A round is begun only when it is likely to end in time, and is kept as a whole or not
at all. Ends with 1 when a contender failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import rounds
from benchmarks.ad_events import jobs
from benchmarks.latency import commits, records
from benchmarks.options import curves, spark_settings
from benchmarks.recovery import restarts
from benchmarks.report import charts
from benchmarks.report.page import write_page
from benchmarks.report.results import Results
from benchmarks.settings import FOLDER
from benchmarks.steps import python_tasks
from benchmarks.throughput import files, pipelines, postgres, three_sinks

MEASUREMENTS = {
    each.MEASUREMENT.name: each.MEASUREMENT
    # Latency at a share of the maximum needs the throughput.
    for each in (
        pipelines,
        records,
        python_tasks,
        restarts,
        commits,
        postgres,
        files,
        three_sinks,
        spark_settings,
        curves,
        jobs,
    )
}


@dataclass(frozen=True)
class Due:
    """A round that is to be taken."""

    measurement: rounds.Measurement
    plan: rounds.Plan
    turn: int


def due(
    results: Results, names: list[str], *, quick: bool, at_least: int = 0, ours: bool = False
) -> list[Due]:
    """Return the rounds that are missing, the lowest numbers first, and what the targets need
    before the rest.

    Args:
        results: what is there.
        names: of the measurements.
        quick: whether the plans are the small ones.
        at_least: how many rounds the targets' plans have; more than their own number may be wanted,
            so that each contender begins as often as any other.
        ours: whether to leave the contenders out with which ours are compared.
    """
    found = [
        Due(MEASUREMENTS[name], plan, turn)
        for name in names
        for plan in map(_only_ours if ours else _all, MEASUREMENTS[name].plans(quick))
        for turn in range(plan.repeats if plan.lag else max(plan.repeats, at_least))
        if not results.has(name, plan.parameters(), turn)
    ]
    return sorted(found, key=lambda each: each.turn + each.plan.lag)


def _all(plan: rounds.Plan) -> rounds.Plan:
    return plan


def _only_ours(plan: rounds.Plan) -> rounds.Plan:
    """Leave others out, where there are others."""
    ours = tuple(name for name in plan.contenders if name.startswith("ours"))
    return replace(plan, contenders=ours or plan.contenders)


def run(results: Results, wanted: list[Due], minutes: float) -> bool:
    """Take rounds until the time is over; return whether no contender failed."""
    until_s = time.monotonic() + 60 * minutes
    took: dict[str, float] = {}
    good = True
    for each in wanted:
        key = f"{each.measurement.name} {each.plan.parameters()}"
        expected_s = took.get(key, 60 * each.plan.minutes)
        if time.monotonic() + expected_s > until_s:
            rounds.say(
                f"{each.measurement.name}, round {each.turn + 1}: left out, it takes "
                f"{expected_s / 60:.0f} minutes"
            )
            continue
        began_s = time.monotonic()
        try:
            samples = rounds.run_round(each.measurement, each.plan, each.turn, results)
        except Exception as error:  # noqa: BLE001  a server that doesn't start must not end the night's run
            rounds.say(
                f"{each.measurement.name}, round {each.turn + 1}: {type(error).__name__}: {error}"
            )
            good = False
            continue
        took[key] = time.monotonic() - began_s
        good = good and not any("error" in sample for sample in samples.values())
    return good


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    minutes = float(os.environ.get("BENCH_MINUTES", "240"))
    parser.add_argument(
        "--minutes", type=float, default=minutes, help=f"how long ({minutes:g}; BENCH_MINUTES)"
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help="at least so many of what a target needs (five)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=sorted(MEASUREMENTS),
        metavar="NAME",
        help=", ".join(MEASUREMENTS),
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small and once, to see that everything works; the figures mean nothing",
    )
    parser.add_argument(
        "--ours",
        action="store_true",
        help="only our own contenders: nothing is compared, so give a --folder of its own",
    )
    parser.add_argument("--list", action="store_true", help="say which rounds are missing, and end")
    parser.add_argument(
        "--page",
        action="store_true",
        help="write the page of what there is (where nothing was measured: of what is published), "
        "and end",
    )
    parser.add_argument("--publish", action="store_true", help="write it into docs/, too")
    parser.add_argument("--folder", type=Path, help="where results are kept")
    arguments = parser.parse_args()
    if arguments.ours and arguments.folder is None:
        parser.error("--ours compares nothing: give it a --folder of its own")
    folder = arguments.folder or (FOLDER / "quick" if arguments.quick else FOLDER)
    if arguments.page:
        print(write_page(Results.to_show(folder), publish=arguments.publish))
        return 0
    results = Results(folder, only_read=arguments.list)
    wanted = due(
        results,
        arguments.only or list(MEASUREMENTS),
        quick=arguments.quick,
        at_least=arguments.rounds,
        ours=arguments.ours,
    )
    expected = sum(each.plan.minutes for each in wanted)
    rounds.say(
        f"{len(wanted)} rounds are missing, about {expected:.0f} minutes; {arguments.minutes:g} "
        "are given"
    )
    if arguments.list:
        for each in wanted:
            print(
                f"{each.measurement.name}, round {each.turn + 1}, about {each.plan.minutes:g} "
                f"minutes: {each.plan.parameters()}"
            )
        return 0
    charts.check()
    results.begin_run(arguments.minutes)
    good = run(results, wanted, arguments.minutes)
    results.save()
    rounds.say(f"{results.file}, {write_page(results, publish=arguments.publish)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
