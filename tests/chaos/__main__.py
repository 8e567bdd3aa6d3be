"""``python -m chaos``: run the crash campaign, or a part of it. Ends with 1 when a violation or
a stuck query was found."""

import argparse
import fnmatch
import logging
import os
import sys

from chaos import matrix
from chaos.campaign import AlreadyRunningError, Campaign
from chaos.nemeses import SCENARIOS
from chaos.nemeses_power import power_can_be_cut
from chaos.page import publish, write_page
from chaos.results import FOLDER, PUBLISHED, Results

MOUNTING = {"power", "disk-full", "short-write", "read-only"}


def main():
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=float(os.environ.get("CHAOS_MINUTES", "60")),
        help="how long (CHAOS_MINUTES, 60)",
    )
    parser.add_argument("--lanes", type=int, default=2, help="how many queries at once (2)")
    parser.add_argument(
        "--cells",
        default="*",
        metavar="PATTERN",
        help="cells of the matrix, as 'file.* | all | *', several with commas; '' for none",
    )
    parser.add_argument(
        "--only", nargs="*", metavar="SCENARIO", help="these scenarios; without a name: none"
    )
    parser.add_argument("--seed", type=int, help="of the scenarios' choices")
    parser.add_argument(
        "--seconds", type=float, default=90, help="how long a scenario goes on (90)"
    )
    parser.add_argument(
        "--folder", default=str(FOLDER), help="where results are kept, and what failed"
    )
    parser.add_argument(
        "--without-mounts",
        action="store_true",
        help="this user may mount nothing: leave out the loss of power, and let failpoints stand "
        "in for disks that are full or read-only",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="write the page of what there is, or else of what is published, and end",
    )
    parser.add_argument(
        "--publish", action="store_true", help="with --page: put it into docs/, too"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    if arguments.page:
        results = Results(arguments.folder, only_read=True, published=PUBLISHED)
        print(publish(results) if arguments.publish else write_page(results))
        return 0
    cells = [
        cell
        for cell in matrix.all_cells()
        if any(fnmatch.fnmatch(cell.id, each) for each in arguments.cells.split(","))
    ]
    scenarios = (
        SCENARIOS if arguments.only is None else {name: SCENARIOS[name] for name in arguments.only}
    )
    if arguments.without_mounts:
        scenarios = {name: scenario for name, scenario in scenarios.items() if name != "power"}
    elif MOUNTING & set(scenarios) and not power_can_be_cut():
        print(
            f"make chaos: {', '.join(sorted(MOUNTING & set(scenarios)))} mount file systems of "
            "their own, which takes root, mount, mkfs.ext4, losetup and findmnt. Run it where these "
            "are, or with --without-mounts, which leaves a part out.",
            file=sys.stderr,
        )
        return 2
    try:
        campaign = Campaign(
            arguments.folder,
            arguments.minutes,
            lanes=arguments.lanes,
            seed=arguments.seed,
            cells=cells,
            scenarios=scenarios,
            scenario_s=arguments.seconds,
            results=Results(arguments.folder, published=PUBLISHED),
            mounts=not arguments.without_mounts,
        )
    except AlreadyRunningError as error:
        print(f"make chaos: {error}", file=sys.stderr)
        return 2
    return 0 if campaign.run() else 1


if __name__ == "__main__":
    sys.exit(main())
