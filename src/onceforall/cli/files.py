"""``onceforall files``: checks the manifests of a FileSink's folder, and mends them."""

from __future__ import annotations

import argparse
from typing import Any

from onceforall.cli.store_settings import store_settings


def add_commands(groups: Any) -> None:
    """Add the group to argparse's sub-parsers (a type that argparse keeps private)."""
    files = groups.add_parser("files", help="check and mend the manifests of a folder of FileSink")
    commands = files.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="tell what is wrong with the manifests",
        description="Reads all manifests of a folder, and tells where a chain of batches is "
        "broken. Nothing is changed. Ends with 0 when nothing "
        "is wrong, else with 1.",
    )
    check.set_defaults(run=_check)
    mend = commands.add_parser(
        "mend",
        help="mend manifests that pass over another one, and put back the last one",
        description="Mends a manifest that was written from a stale listing (on NFS) and passes "
        "over a batch whose manifest is there, so that "
        "readers can go on, and puts a last manifest that was deleted back from its second name. "
        "Stop the query first. Only what is provable is "
        "mended, no data file is touched, and the old manifest stays beside the new one under a "
        "hidden name. It may be repeated. Ends with 0 when "
        "nothing is wrong any more, else with 1.",
    )
    mend.add_argument(
        "--id",
        metavar="ID",
        help="write the file folder.json again, where it is missing, with this id: the one that "
        "the query's error names",
    )
    mend.set_defaults(run=_mend)
    for command in (check, mend):
        command.set_defaults(may_be_repeated=True)
        command.add_argument("folder", metavar="FOLDER", help="the folder that FileSink was given")
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting of the bucket, as FileSink(storage=…) takes it; secrets belong in the "
            "environment",
        )


def _check(arguments: argparse.Namespace) -> int:
    from onceforall.sinks.files.reading.mending import check_files

    found = check_files(arguments.folder, storage=store_settings(arguments) or None)
    for finding in found:
        print(finding)
    if not found:
        print("Nothing is wrong: each batch follows the one before it.")
    return 1 if found else 0


def _mend(arguments: argparse.Namespace) -> int:
    from onceforall.sinks.files.reading.mending import mend_files

    found = mend_files(
        arguments.folder, folder=arguments.id, storage=store_settings(arguments) or None
    )
    for finding in found:
        print(finding)
    if not found:
        print("Nothing is to be mended.")
    return 1 if any(finding.mended is None for finding in found) else 0
