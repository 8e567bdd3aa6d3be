"""What a supervisor must know of each error."""

from __future__ import annotations

from typing import NamedTuple

from onceforall.driver.exit_codes import exit_code, restart_table
from onceforall.errors import Restart, documentation_of

__all__ = ["RestartRow", "restarts"]


class RestartRow(NamedTuple):
    """What is to be known of one error.

    Attributes:
        error: the name of its class.
        restart: its class attribute ``restart``.
        exit_code: what ``exit_code`` makes of it.
        page: its heading in the documentation.
    """

    error: str
    restart: Restart
    exit_code: int
    page: str


def restarts() -> list[RestartRow]:
    """Return a row for each error of this library, parents first."""
    rows = []
    for kind, restart in restart_table():
        error = kind.__new__(kind)
        rows.append(
            RestartRow(kind.__name__, restart, int(exit_code(error)), documentation_of(error))
        )
    return rows
