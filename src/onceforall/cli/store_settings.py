"""The option ``--set NAME=VALUE`` of the commands that reach a checkpoint or a log on a store."""

from __future__ import annotations

import argparse


def add_store_settings(command: argparse.ArgumentParser) -> None:
    """Add the option to a command."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the store, as onceforall.store.NAME; secrets belong in the environment",
    )


def store_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """Return what was given, by name."""
    return dict(each.partition("=")[::2] for each in arguments.set)
