"""``python -m cluster``: the four jobs of the ad events on a cluster of two machines, under faults.
Ends with 1 when a ledger differs from the truth, or a job is stuck."""

import argparse
import json
import secrets
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from cluster.ads import AdsOnCluster
from cluster.network import NoRightsError, check_rights


def main():
    parser = argparse.ArgumentParser(prog="make chaos-cluster", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="how many (200)")
    parser.add_argument("--events", type=int, default=400_000, help="of the day (400000)")
    parser.add_argument("--seed", type=int, help="of events and faults; one is drawn and printed")
    parser.add_argument("--only", nargs="*", metavar="FAULT", help="these kinds of faults")
    parser.add_argument("--out", default="build/chaos-cluster", help="folder of the result")
    parser.add_argument("--folder", help="of logs and data; a temporary one")
    arguments = parser.parse_args()
    try:
        check_rights()
    except NoRightsError as error:
        print(f"make chaos-cluster: {error}", file=sys.stderr)
        return 2
    # So that all that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="onceforall-cluster-")).absolute()
    print(f"seed {seed}, in {folder}", flush=True)
    began = time.monotonic()
    with AdsOnCluster(
        folder,
        seed=seed,
        faults=arguments.faults,
        events=arguments.events,
        only=arguments.only,
        say=lambda text: print(text, flush=True),
    ) as run:
        result = run.run()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{seed}.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
    print(
        f"{result.struck} faults, {sum(result.ends.values())} ends of jobs by themselves, "
        f"{time.monotonic() - began:.0f} s"
    )
    if result.starved:
        print(f"killed for having no executor: {result.starved}")
    for name, account in result.accounts.items():
        print(f"{name}: {account}")
    for failure in result.failures:
        print(f"VIOLATION: {failure}")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
