"""``onceforall log``: moves a query's commit log."""

from __future__ import annotations

import argparse
from typing import Any

from onceforall.cli.store_settings import add_store_settings, store_settings


def add_commands(groups: Any) -> None:
    """Add the group to argparse's sub-parsers (a type that argparse keeps private)."""
    log = groups.add_parser("log", help="move the commit log of a stopped query")
    commands = log.add_subparsers(title="commands", required=True, metavar="COMMAND")
    move = commands.add_parser(
        "move",
        help="take the log to another disk or store, and make the checkpoint point there",
        description="Stop the query first; a run that is still alive is fenced. Everything that "
        "still counts is copied, read back and compared. The old place is sealed, so that it can't "
        "run on, and keeps its files. The checkpoint itself stays where it is. The command may be "
        "repeated, and goes on where it stopped. Credentials are those of the environment "
        "(AWS_…, GOOGLE_…, AZURE_…), or Hadoop's for hdfs.",
    )
    move.add_argument("checkpoint", metavar="CHECKPOINT", help="the query's checkpointLocation")
    move.add_argument("to", metavar="URL", help="an empty folder on a disk or a store")
    move.add_argument(
        "--adopt-checkpoint",
        action="store_true",
        help="the checkpoint was moved or renamed by other means, and the old one will never run "
        "again",
    )
    add_store_settings(move)
    move.set_defaults(run=_move)


def _move(arguments: argparse.Namespace) -> int:
    from onceforall.operate.moving import move_log

    settings = store_settings(arguments)
    moved = move_log(
        arguments.checkpoint,
        arguments.to,
        adopt_checkpoint=arguments.adopt_checkpoint,
        settings=settings,
    )
    print(
        f"The commit log lies in {moved.location} now ({moved.entries} entries). Start the query "
        "as before: the checkpoint points there."
    )
    return 0
