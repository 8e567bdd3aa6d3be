"""``onceforall store``: looks whether a store keeps what a commit log needs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from onceforall.cli.store_settings import add_store_settings, store_settings


def add_commands(groups: Any) -> None:
    """Add the group to argparse's sub-parsers (a type that argparse keeps private)."""
    store = groups.add_parser("store", help="test a store before a commit log is trusted to it")
    commands = store.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="test what a commit log needs: exclusive creates, reads of what was written",
        description="Creates, reads and deletes some thousand small objects in the folder 'probe' "
        "of the URL, with many creators at once, and says of each guarantee whether anything was "
        "found against it. Each start of a query makes a small test of the same. Credentials are "
        "those of the environment (AWS_…, GOOGLE_…, AZURE_…), or Hadoop's for hdfs. "
        "Exit code 0: nothing was found; 1: the store can't hold a commit log.",
    )
    check.add_argument("url", metavar="URL", help="a folder, such as s3a://bucket/checkpoints")
    check.add_argument("--creators", type=int, default=20, metavar="N", help="at once (20)")
    check.add_argument("--rounds", type=int, default=100, metavar="N", help="keys (100)")
    add_store_settings(check)
    check.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from onceforall.operate.stores import check_store

    found = check_store(
        arguments.url,
        creators=arguments.creators,
        rounds=arguments.rounds,
        settings=store_settings(arguments),
    )
    if arguments.json:
        print(json.dumps({**asdict(found), "kept": found.kept}))
        return 0 if found.kept else 1
    print(found.where)
    for verdict in found.verdicts:
        print(f"{'kept   ' if verdict.kept else 'BROKEN '} {verdict.guarantee}: {verdict.found}")
    for name, each in found.latency_ms.items():
        print(f"{name}: " + ", ".join(f"{key} {value} ms" for key, value in each.items()))
    print(
        "Nothing was found against this store."
        if found.kept
        else "This store can't hold a commit log."
    )
    return 0 if found.kept else 1
