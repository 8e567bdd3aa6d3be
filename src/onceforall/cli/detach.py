"""``onceforall detach``: makes a plain Spark query's checkpoint of one of onceforall's."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceforall.cli.store_settings import add_store_settings, store_settings
from onceforall.errors import OptionError, described, text_of


def add_commands(groups: Any) -> None:
    """Add the command to argparse's sub-parsers (a type that argparse keeps private)."""
    detach = groups.add_parser(
        "detach",
        help="go back to a plain Spark query: complete what is in doubt, and end the commit log",
        description="Completes what is decided on the sinks, aborts what isn't, and turns the "
        "checkpoint into that of a plain Spark query, which "
        "then goes on without loss or duplicate. Stop the query first: a run that is still alive "
        "is fenced. It may be repeated after a "
        "crash. Ends with 0 when the checkpoint is a plain one.",
    )
    detach.add_argument("checkpoint", metavar="CHECKPOINT", help="the query's checkpointLocation")
    detach.add_argument(
        "--sinks",
        required=True,
        metavar="MODULE:NAME",
        help="where the query's sinks are: a dictionary from name to sink, or a function without "
        "arguments that returns one; MODULE is "
        "looked for in the current folder too",
    )
    detach.add_argument(
        "--commit-log",
        metavar="FOLDER",
        help="where the commit log lies; the checkpoint's pointer says so too",
    )
    detach.add_argument(
        "--adopt-checkpoint",
        action="store_true",
        help="the checkpoint was moved here, and the old one will never run again",
    )
    detach.add_argument(
        "--adopt-target",
        action="append",
        default=[],
        metavar="SINK",
        help="the target of this sink was replaced, or put back to an older state, on purpose; "
        "may be given several times",
    )
    detach.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to wait for a sink to answer (default: 300)",
    )
    add_store_settings(detach)
    detach.add_argument("--dry-run", action="store_true", help="look and tell only")
    detach.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from onceforall.operate.detaching import detach

    done = detach(
        arguments.checkpoint,
        load_sinks(arguments.sinks),
        commit_log=arguments.commit_log,
        adopt_checkpoint=arguments.adopt_checkpoint,
        adopt_target=arguments.adopt_target,
        timeout_s=arguments.timeout,
        dry_run=arguments.dry_run,
        settings=store_settings(arguments),
    )
    for step in done.steps:
        print(step)
    return 0


def load_sinks(specification: str) -> Mapping[str, Any]:
    """Return the sinks that ``module:name`` leads to.

    Raises:
        OptionError: there is no such thing, or it is no dictionary of sinks.
    """
    from onceforall.sink import TwoPhaseCommitSink

    module, colon, name = specification.partition(":")
    if not (module and colon and name):
        raise OptionError(f"--sinks {specification} is not of the form module:name.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a name that is none, or whatever the module does
        raise OptionError(
            f"--sinks {specification}: the module can't be imported ({text_of(error)}). Is it in "
            "PYTHONPATH?"
        ) from error
    except SystemExit as error:  # whose code 0 would say that the checkpoint is a plain one
        raise OptionError(
            f"--sinks {specification}: the module can't be imported ({described(error)}): it ends "
            "the process. Let what runs the program stand behind if __name__ == '__main__', or "
            "give the sinks a module of their own."
        ) from error
    sinks = getattr(found, name, None)
    if callable(sinks):
        try:
            sinks = sinks()
        except (Exception, SystemExit) as error:  # it is the user's
            said = described(error) if isinstance(error, SystemExit) else text_of(error)
            raise OptionError(
                f"--sinks {specification}: calling it without arguments failed: {said}."
            ) from error
    if not isinstance(sinks, Mapping) or not all(
        isinstance(key, str) and isinstance(value, TwoPhaseCommitSink)
        for key, value in sinks.items()
    ):
        raise OptionError(
            f"--sinks {specification} is "
            f"{'missing' if sinks is None else f'a {type(sinks).__name__}'}, and not a dictionary "
            "from sink names to "
            "sinks, nor a function that returns one."
        )
    return sinks
