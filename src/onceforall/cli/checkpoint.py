"""``onceforall checkpoint``: looks after Spark's part of a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any


def add_commands(groups: Any) -> None:
    """Add the group to argparse's sub-parsers (a type that argparse keeps private)."""
    checkpoint = groups.add_parser("checkpoint", help="mend a checkpoint after a loss of power")
    commands = checkpoint.add_subparsers(title="commands", required=True, metavar="COMMAND")
    mend = commands.add_parser(
        "mend",
        help="put back Spark's plan of the last decided batch, as the commit log has it",
        description="Spark does not sync its own files, so a loss of power can take away, tear or "
        "change what it planned for a batch that onceforall "
        "has decided; the query's start is then refused. This puts the plan back as it was "
        "decided, and sets aside what is torn. Stop the query "
        "first. It changes nothing where nothing is wrong, deletes nothing, and may be repeated.",
    )
    mend.add_argument("checkpoint", metavar="CHECKPOINT", help="the query's checkpointLocation")
    mend.add_argument(
        "--commit-log",
        metavar="FOLDER",
        help="where the commit log lies; the checkpoint's pointer says so too",
    )
    mend.add_argument("--dry-run", action="store_true", help="look and tell only")
    mend.set_defaults(run=_mend)


def _mend(arguments: argparse.Namespace) -> int:
    from onceforall.spark.mending import mend

    done = mend(arguments.checkpoint, commit_log=arguments.commit_log, dry_run=arguments.dry_run)
    if done.dry_run and done.steps:
        print("Nothing is changed; this is what would be done:")
    for step in done.steps or (
        "Nothing is to be mended: Spark's files are as the commit log says.",
    ):
        print(step)
    return 0
