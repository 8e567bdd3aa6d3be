"""``onceforall checkpoint``: looks after Spark's part of a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

from onceforall.cli.store_settings import add_store_settings, store_settings


def add_commands(groups: Any) -> None:
    """Add the group to argparse's sub-parsers (a type that argparse keeps private)."""
    checkpoint = groups.add_parser(
        "checkpoint", help="mend a checkpoint after a loss of power, or move it"
    )
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
    mend.add_argument(
        "--adopt-checkpoint",
        action="store_true",
        help="the checkpoint was moved here, and the old one will never run again",
    )
    add_store_settings(mend)
    mend.add_argument("--dry-run", action="store_true", help="look and tell only")
    mend.set_defaults(run=_mend)
    move = commands.add_parser(
        "move",
        help="take a stopped query's checkpoint, with its commit log, to another disk or store",
        description="Stop the query first; a run that is still alive is fenced. Everything is "
        "copied, read back and compared. The old place is sealed, so that it can't run on with "
        "onceforall, and keeps its files. The command may be repeated, and goes on where it "
        "stopped. Credentials are those of the environment (AWS_…, GOOGLE_…, AZURE_…), or Hadoop's "
        "for hdfs.",
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


def _mend(arguments: argparse.Namespace) -> int:
    from onceforall.spark.mending import mend

    done = mend(
        arguments.checkpoint,
        commit_log=arguments.commit_log,
        adopt_checkpoint=arguments.adopt_checkpoint,
        dry_run=arguments.dry_run,
        settings=store_settings(arguments),
    )
    if done.dry_run and done.steps:
        print("Nothing is changed; this is what would be done:")
    told = [*done.steps, *([done.amiss] if done.amiss else [])]
    for step in told or ("Nothing is to be mended: Spark's files are as the commit log says.",):
        print(step)
    return 1 if done.amiss else 0


def _move(arguments: argparse.Namespace) -> int:
    from onceforall.operate.moving_checkpoint import move_checkpoint

    settings = store_settings(arguments)
    moved = move_checkpoint(
        arguments.checkpoint,
        arguments.to,
        adopt_checkpoint=arguments.adopt_checkpoint,
        settings=settings,
    )
    print(
        f"The checkpoint lies in {moved.location} now ({moved.files} of Spark's files, "
        f"{moved.entries} entries of the commit log). Start the query with that "
        "checkpointLocation. When it runs, and no process of it is alive that was started before, "
        "delete the old folder."
    )
    return 0
