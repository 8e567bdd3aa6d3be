"""Numbers by which an operator knows state that it can't read: that of other columns or types.

A number is kept with each key's state, for the checkpoint has no other place that an operator
reads. So a change is noticed when the first key with such state has a row or a timer.
"""

from __future__ import annotations

import zlib

from onceforall.errors import CheckpointMismatchError


def signature(*parts: object) -> int:
    """Return a number that differs, as good as always, where the parts' ``repr`` does."""
    return zlib.crc32(repr(parts).encode())


def check(kept: int | None, now: int | None, operator: str, what: str) -> None:
    """Check that state is that of this operator.

    Args:
        kept: what the state says; None: it is of a release that kept no such number.
        now: that of the operator as it is; None: nothing is known of it.
        operator: its name.
        what: what may not change.

    Raises:
        CheckpointMismatchError: both are known, and differ.
    """
    if kept is not None and now is not None and kept != now:
        raise CheckpointMismatchError(
            f"The state that {operator} has in the checkpoint is that of another {what}. "
            "Start with a new checkpoint, or as the query was before."
        )
