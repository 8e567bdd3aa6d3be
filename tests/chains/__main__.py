"""``python -m chains``: rounds of the chains over Pravega and Kinesis under random faults, one
after the other, for so many minutes. Ends with 1 when a view is lost, doubled, wrong or out of
order, or a program is stuck; what each round came to stands in chains.json.
"""

# ruff: noqa: T201  a command prints

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chains.pravega import Round
from onceforall.demo.kinesis.main import KinesisOptions, run_kinesis_demo

FAULTS, VIEWS = 10, 3000
KILLS, EVENTS = 6, 8000


def main() -> int:
    """Run rounds until the time is over, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make chaos-chains", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="begin no round after so many")
    parser.add_argument("--seed", type=int, help="of the first round; one is drawn and printed")
    parser.add_argument(
        "--only", choices=["pravega", "kinesis"], nargs="*", default=["pravega", "kinesis"]
    )
    parser.add_argument("--out", type=Path, default=Path("build/chaos-chains"))
    arguments = parser.parse_args()
    # So that all that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    first = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    until, rounds = time.monotonic() + 60 * arguments.minutes, []
    while time.monotonic() < until or len(rounds) < len(arguments.only):
        which = arguments.only[len(rounds) % len(arguments.only)]
        seed = first + len(rounds)
        came = (_pravega if which == "pravega" else _kinesis)(seed, out)
        rounds.append({"chain": which, **came})
        (out / "chains.json").write_text(json.dumps(rounds, indent=1) + "\n", encoding="utf-8")
        print(
            f"{which} {seed}: {came['faults']} {came['failures'] or 'as it should be'}", flush=True
        )
    failed = [each for each in rounds if each["failures"]]
    faults = sum(sum(each["faults"].values()) for each in rounds)
    print(f"{len(rounds)} rounds, {faults} faults, {len(failed)} rounds with a failure")
    return 1 if failed else 0


def _pravega(seed: int, out: Path) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix=f"onceforall-chain-{seed}-"))
    came = Round(seed, folder, FAULTS, VIEWS).run()
    if came.failures:
        kept = out / f"pravega-{seed}"
        shutil.copytree(folder, kept, dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    # asdict counts the pairs of a Counter, before Python 3.12.
    return {**vars(came), "faults": dict(came.faults)}


def _kinesis(seed: int, out: Path) -> dict[str, Any]:
    began = time.monotonic()
    folder = out / f"kinesis-{seed}"
    failures = []
    try:
        if run_kinesis_demo(KinesisOptions(kills=KILLS, seed=seed, events=EVENTS, out=folder)):
            failures.append((folder / "report.json").read_text(encoding="utf-8"))
    except Exception as error:
        failures.append(f"{type(error).__name__}: {error}")
    report = json.loads((folder / "report.json").read_text()) if not failures else {}
    faults = {
        "driver killed": report.get("kills", 0),
        "stream resharded": report.get("reshardings", 0),
    }
    seconds = round(time.monotonic() - began, 1)
    return {
        "seed": seed,
        "views": report.get("events", 0),
        "faults": faults,
        "failures": failures,
        "seconds": seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
