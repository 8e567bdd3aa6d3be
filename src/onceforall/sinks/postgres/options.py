"""Which arguments of the sink make sense together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from onceforall.errors import OptionError

MODES = ("staged", "prepared", "upsert")
_LONGEST_IDENTIFIER = 63


def check_options(table: object, key: Sequence[object], mode: str, on_conflict: str, staging_schema: object) -> None:
    """Check the arguments of ``PostgresSink``.

    Raises:
        OptionError: naming the argument, the reason and what to use instead.
    """
    if not isinstance(table, str) or not table.strip():
        raise OptionError(f"table={table!r} is no table's name. Give table or schema.table.")
    if mode not in MODES:
        raise OptionError(f"mode={mode!r} is none of 'staged', 'prepared' and 'upsert'.")
    if on_conflict not in {"update", "ignore"}:
        raise OptionError(f"on_conflict={on_conflict!r} is neither 'update' nor 'ignore'.")
    if on_conflict == "ignore" and not key:
        raise OptionError("on_conflict='ignore' needs key=, the columns by which a row is found to be there already.")
    if len(set(key)) != len(key) or not all(isinstance(name, str) and name for name in key):
        raise OptionError(f"key={list(key)!r} must be names of columns, each of them once.")
    if mode == "upsert" and not key:
        raise OptionError("mode='upsert' needs key=: without one, a replayed batch would be there twice. Or use mode='staged'.")
    if mode == "upsert" and on_conflict == "ignore":
        raise OptionError("mode='upsert' with on_conflict='ignore' would keep an aborted batch's rows. Use mode='staged'.")
    if not isinstance(staging_schema, str) or not 0 < len(staging_schema.encode()) <= _LONGEST_IDENTIFIER:
        raise OptionError(f"staging_schema={staging_schema!r} is no name of a schema: 1 to {_LONGEST_IDENTIFIER} bytes.")
    if "%" in staging_schema:
        # The driver takes it for a placeholder, in the midst of a batch.
        raise OptionError(f"staging_schema={staging_schema!r} must not contain a percent sign. Name another schema.")


def check_seconds(option: str, value: float) -> None:
    """Check that a time is one.

    Raises:
        OptionError: it isn't.
    """
    if not 0 < value < float("inf"):
        raise OptionError(f"{option}={value!r} must be a positive number of seconds.")
