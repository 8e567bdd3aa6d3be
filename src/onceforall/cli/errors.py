"""``onceforall errors``: which error means what to a supervisor, for people and for programs."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_commands(groups: Any) -> None:
    """Add the command to argparse's sub-parsers (a type that argparse keeps private)."""
    command = groups.add_parser(
        "errors",
        help="which errors a supervisor may restart a query after, and with which exit code",
        description="Prints every error of this library, whether a restart helps (yes; once: if it "
        "comes again, a person is needed; no; stopped: the query was asked to), and the exit code "
        "that onceforall.exit_code gives. Any restart is safe.",
    )
    command.add_argument("--json", action="store_true", help="print it as JSON")
    command.set_defaults(run=_print)


def _print(arguments: argparse.Namespace) -> int:
    from onceforall.operate.restarts import restarts

    rows = restarts()
    if arguments.json:
        print(json.dumps([row._asdict() for row in rows]))
        return 0
    for row in rows:
        print(f"{row.error:28} restart: {row.restart:8} exit code: {row.exit_code:3}  {row.page}")
    return 0
