"""The transactional ids that the Kafka sink leaves in a cluster: how they are made, and how they
are read back.

``<prefix>:<query id>:<sink>:<generation>:<incarnation>.<slot>.<turn>:``, where query id and sink
are percent-encoded, so that no part contains a separator. Each part ends with one, so no id begins
with another id, and an ACL for the prefix ``<prefix>:`` covers exactly the ids of that prefix. An
id is always parsed as a whole, never compared by its beginning: sink ``a.1`` is not sink ``a.10``.

Whose an id is, its query id says, a UUID. Prefix and sink name may have been changed since it was
made, so reading needs neither.

``slot`` is the task attempt's number in its batch; ``incarnation`` changes when an attempt of an
earlier batch may still be alive, and could take the same slot; ``turn`` tells ids apart that one
slot needed after another, because the earlier one still belongs to a live producer or is in doubt.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from onceforall.common.arguments import shown
from onceforall.errors import OptionError

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
_PARTS = re.compile(
    r"([^:]+):([^:]+):([^:]+):(0|[1-9][0-9]*):(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*):"
)


class TransactionalId(NamedTuple):
    """What a transactional id says, except for its prefix."""

    query_id: str
    sink: str
    generation: int
    incarnation: int
    slot: int
    turn: int


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if transactional ids may begin with it.

    Raises:
        OptionError: it is empty, longer than 100 characters, or has others than letters, digits,
            dot, underscore and hyphen.
    """
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise OptionError(
            f"transactional_id_prefix={shown(prefix)} is not usable. Give 1 to 100 letters, "
            "digits, dots, underscores or hyphens, such as 'onceforall'."
        )
    return prefix


def format_name(prefix: str, name: TransactionalId) -> str:
    """Return the transactional id of ``name``; ASCII, and different for different names."""
    query_id, sink = quote(name.query_id, safe=""), quote(name.sink, safe="")
    return (
        f"{prefix}:{query_id}:{sink}:{name.generation}:{name.incarnation}.{name.slot}.{name.turn}:"
    )


def parse_name(transactional_id: str) -> tuple[str, TransactionalId] | None:
    """Read a transactional id back, whatever its prefix.

    Returns:
        The prefix and what follows it; None when it is not exactly what ``format_name`` makes of
        the two: somebody else's.
    """
    match = _PARTS.fullmatch(transactional_id)
    if match is None or not _PREFIX.fullmatch(match[1]):
        return None
    name = TransactionalId(
        unquote(match[2]), unquote(match[3]), *(int(match[group]) for group in range(4, 8))
    )
    return (match[1], name) if format_name(match[1], name) == transactional_id else None
