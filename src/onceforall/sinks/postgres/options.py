"""Which arguments of the sink make sense together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from onceforall.common.arguments import is_encodable, shown
from onceforall.errors import OptionError

Mode: TypeAlias = Literal["staged", "prepared", "upsert"]
OnConflict: TypeAlias = Literal["update", "ignore"]

MODES = get_args(Mode)
STAGED, PREPARED = "staged", "prepared"
"""The modes whose committables wait for a decision; each says in its ``kind`` which it is of."""

_LONGEST_IDENTIFIER = 63


def check_options(table: object, key: Sequence[object], mode: str, on_conflict: str, staging_schema: object) -> None:
    """Check the arguments of ``PostgresSink``.

    Raises:
        OptionError: naming the argument, the reason and what to use instead.
    """
    if not isinstance(table, str) or not table.strip():
        raise OptionError(f"table={shown(table)} is no table's name. Give table or schema.table.")
    if "://" in table:
        # It would stand in messages and, quoted, in statements; and such an address may have a password.
        raise OptionError(
            "table= has an address in it. Give the conninfo first and the table second: PostgresSink('postgresql://…', 'spend')."
        )
    if not isinstance(mode, str) or mode not in MODES:
        raise OptionError(f"mode={shown(mode)} is none of 'staged', 'prepared' and 'upsert'.")
    if not isinstance(on_conflict, str) or on_conflict not in get_args(OnConflict):
        raise OptionError(f"on_conflict={shown(on_conflict)} is neither 'update' nor 'ignore'.")
    _check_together(key, mode, on_conflict)
    if (
        not isinstance(staging_schema, str)
        or not is_encodable(staging_schema)
        or not 0 < len(staging_schema.encode()) <= _LONGEST_IDENTIFIER
        or "\0" in staging_schema
        or staging_schema.startswith("pg_")
    ):
        raise OptionError(
            f"staging_schema={shown(staging_schema)} is no name of a schema: 1 to {_LONGEST_IDENTIFIER} bytes, not beginning with pg_."
        )
    if "%" in staging_schema:
        # The driver takes it for a placeholder, in the midst of a batch.
        raise OptionError(f"staging_schema={staging_schema!r} must not contain a percent sign. Name another schema.")


def _check_together(key: Sequence[object], mode: str, on_conflict: str) -> None:
    if on_conflict == "ignore" and not key:
        raise OptionError("on_conflict='ignore' needs key=, the columns by which a row is found to be there already.")
    if len(set(key)) != len(key) or not all(isinstance(name, str) and name for name in key):
        raise OptionError(f"key={list(key)!r} must be names of columns, each of them once.")
    if mode == "upsert" and not key:
        raise OptionError("mode='upsert' needs key=: without one, a replayed batch would be there twice. Or use mode='staged'.")
    if mode == "upsert" and on_conflict == "ignore":
        raise OptionError("mode='upsert' with on_conflict='ignore' would keep an aborted batch's rows. Use mode='staged'.")


SHORTEST_S, LONGEST_S = 0.001, 2_147_483
"""PostgreSQL counts such times in milliseconds, with 31 bits, and takes 0 for no limit."""


def check_seconds(option: str, value: float) -> None:
    """Check that a time is one.

    Raises:
        OptionError: it isn't.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise OptionError(f"{option}={shown(value)} must be a positive number of seconds.")
    if not SHORTEST_S <= value <= LONGEST_S:
        raise OptionError(f"{option}={shown(value)} is out of range. Give {SHORTEST_S} to {LONGEST_S} seconds.")
