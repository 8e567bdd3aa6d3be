"""The option ``--set NAME=VALUE`` of the commands that reach a checkpoint or a log on a store."""

from __future__ import annotations

import argparse

from onceforall.errors import OptionError


def add_store_settings(command: argparse.ArgumentParser) -> None:
    """Add the option to a command; such a command may be killed at any moment and repeated."""
    command.set_defaults(may_be_repeated=True)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the store, as onceforall.store.NAME; secrets belong in the environment",
    )


def store_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """Return what was given, by name.

    Raises:
        OptionError: something has no name or no value. It is not shown: it may be a secret.
    """
    settings = {}
    for each in arguments.set:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise OptionError("--set needs NAME=VALUE, such as region=eu-central-1.")
        settings[name] = value
    return settings
