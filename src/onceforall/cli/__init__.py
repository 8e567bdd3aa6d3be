"""The command line, ``onceforall``: one module per group of commands.

A module of `_COMMAND_GROUPS` has ``add_commands(groups)``: it adds one parser to the sub-parsers of
argparse that it is given, and sets on each command a default ``run``, a function from the parsed
arguments to an exit code. Heavy imports belong into ``run``. A command that may be killed at any
moment and repeated has the default ``may_be_repeated``: Ctrl-C ends it though a store's client
waits.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import select
import signal
import sys
from typing import TYPE_CHECKING

from onceforall._version import __version__
from onceforall.cli.interrupting import INTERRUPTED, ends_soon_when_interrupted
from onceforall.errors import OnceForAllError

if TYPE_CHECKING:
    from collections.abc import Callable

_COMMAND_GROUPS = (
    "onceforall.cli.checkpoint",
    "onceforall.cli.cluster",
    "onceforall.cli.demo",
    "onceforall.cli.detach",
    "onceforall.cli.errors",
    "onceforall.cli.files",
    "onceforall.cli.kafka",
    "onceforall.cli.log",
    "onceforall.cli.store",
)

_NOT_READ = 128 + signal.SIGPIPE


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the arguments after the program's name; None: those of this process.

    Returns:
        What the command returns; 2 after an error of this library, whose message is then on stderr;
        130 after Ctrl-C; 141 where nobody reads any more what it prints (``| head``).

    Raises:
        SystemExit: from argparse, after ``--help``, ``--version`` (code 0) or arguments that it
            does not know (code 2).
    """
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    may_be_repeated = getattr(arguments, "may_be_repeated", False)
    try:
        with ends_soon_when_interrupted() if may_be_repeated else contextlib.nullcontext():
            code = run(arguments)
        # Here, and not at the interpreter's end. Without a standard output it does nothing.
        print(end="", flush=True)
    except OnceForAllError as error:
        print(f"onceforall: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        if sys.stdout is None or not _is_left(sys.stdout.fileno()):
            raise
        return _NOT_READ
    return code


def _is_left(output: int) -> bool:
    """Tell whether nobody reads what is printed any more; then the rest goes nowhere, or the
    interpreter would complain at its end.
    """
    looks = select.poll()
    looks.register(output, 0)
    if not looks.poll(0):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="onceforall", description="End-to-end exactly-once for PySpark Structured Streaming."
    )
    parser.add_argument("--version", action="version", version=f"onceforall {__version__}")
    groups = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in _COMMAND_GROUPS:
        importlib.import_module(name).add_commands(groups)
    return parser
