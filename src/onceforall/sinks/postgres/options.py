"""Which arguments of the sink make sense together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from onceforall.common import arguments
from onceforall.common.arguments import is_encodable, shown
from onceforall.errors import OptionError
from onceforall.sinks.postgres.accumulating import check_accumulate

Mode: TypeAlias = Literal["staged", "prepared", "upsert"]
OnConflict: TypeAlias = Literal["update", "ignore"]

MODES = get_args(Mode)
STAGED, PREPARED = "staged", "prepared"
"""The modes whose committables wait for a decision; each says in its ``kind`` which it is of."""

_LONGEST_IDENTIFIER = 63


@dataclass(frozen=True)
class Options:
    """What the user asked for, checked; plain values, pickled to the tasks. ``PostgresSink``
    says what each of them means.
    """

    table: str
    key: tuple[str, ...]
    mode: Mode
    ignore: bool
    accumulate: tuple[tuple[str, str], ...]
    create_table: bool
    staging_schema: str
    lock_timeout_s: float
    retry_for_s: float


def checked_options(
    table: str,
    *,
    key: Sequence[str] | str | None,
    mode: Mode,
    on_conflict: OnConflict,
    accumulate: Mapping[str, str] | None,
    create_table: bool,
    staging_schema: str,
    lock_timeout_s: float,
    retry_for_s: float,
) -> Options:
    """Check the arguments of ``PostgresSink``, and return them.

    Raises:
        OptionError: naming the argument, the reason and what to use instead.
    """
    columns = (
        ()
        if key is None or key == ()
        else arguments.names("key", key, "the name of a column, or a list of names")
    )
    _check_table_and_mode(table, columns, mode, on_conflict, staging_schema)
    added = check_accumulate(accumulate, columns, mode, on_conflict)
    arguments.flag("create_table", create_table)
    check_seconds("lock_timeout_s", lock_timeout_s)
    check_seconds("retry_for_s", retry_for_s)
    ignore = on_conflict == "ignore"
    return Options(
        table,
        columns,
        mode,
        ignore,
        added,
        create_table,
        staging_schema,
        lock_timeout_s,
        retry_for_s,
    )


def _check_table_and_mode(
    table: object, key: Sequence[object], mode: str, on_conflict: str, staging_schema: object
) -> None:
    if not isinstance(table, str) or not table.strip() or "\0" in table or not is_encodable(table):
        raise OptionError(f"table={shown(table)} is no table's name. Give table or schema.table.")
    if "://" in table:
        # It would stand in messages and, quoted, in statements; and such an address may have a
        # password.
        raise OptionError(
            "table= has an address in it. Give the conninfo first and the table second: "
            "PostgresSink('postgresql://…', 'spend')."
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
            f"staging_schema={shown(staging_schema)} is no name of a schema: 1 to "
            f"{_LONGEST_IDENTIFIER} bytes, not beginning with pg_."
        )
    if "%" in staging_schema:
        # The driver takes it for a placeholder, in the midst of a batch.
        raise OptionError(
            f"staging_schema={staging_schema!r} must not contain a percent sign. Name another "
            "schema."
        )


def _check_together(key: Sequence[object], mode: str, on_conflict: str) -> None:
    if on_conflict == "ignore" and not key:
        raise OptionError(
            "on_conflict='ignore' needs key=, the columns by which a row is found to be there "
            "already."
        )
    if len(set(key)) != len(key) or not all(isinstance(name, str) and name for name in key):
        raise OptionError(f"key={list(key)!r} must be names of columns, each of them once.")
    if mode == "upsert" and not key:
        raise OptionError(
            "mode='upsert' needs key=: without one, a replayed batch would be there twice. Or use "
            "mode='staged'."
        )
    if mode == "upsert" and on_conflict == "ignore":
        raise OptionError(
            "mode='upsert' with on_conflict='ignore' would keep an aborted batch's rows. Use "
            "mode='staged'."
        )


SHORTEST_S, LONGEST_S = 0.001, 2_147_483
"""PostgreSQL counts such times in milliseconds, with 31 bits, and takes 0 for no limit."""


def check_seconds(option: str, value: float) -> None:
    """Check that a time is one.

    Raises:
        OptionError: it isn't.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < float("inf")
    ):
        raise OptionError(f"{option}={shown(value)} must be a positive number of seconds.")
    if not SHORTEST_S <= value <= LONGEST_S:
        raise OptionError(
            f"{option}={shown(value)} is out of range. Give {SHORTEST_S} to {LONGEST_S} seconds."
        )
