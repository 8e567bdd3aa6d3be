"""What the PostgreSQL sink leaves in a server is found by these names, each of them read as a
whole. Pure.

- A *staging table* lies in the sink's own schema and is called ``stg_<40 hexadecimal digits>``:
  identifiers end at 63 bytes, where the attempt's name may have 200. The whole name is the table's
  comment, set in the transaction that makes it; the digits are a hash of it, so that a comment
  which somebody else wrote fits no table.
- A *prepared transaction*'s id is the attempt's name itself.
- A *connection* says in its ``application_name`` whose it is: of which query and sink (as a hash),
  of which generation, and of which task. The server ends what is longer than 63 bytes, so such a
  name is not recognised, and nobody ends that connection for us.
"""

from __future__ import annotations

import hashlib
import re

from onceforall.protocol.names import TransactionName, parse_name, sink_code

_STAGING = re.compile(r"stg_[0-9a-f]{40}")


def staging_table(name: str) -> str:
    """Return the identifier of the staging table of a task attempt.

    Args:
        name: the attempt's, or a committable's.
    """
    return f"stg_{_digest(name, 40)}"


def is_staging_table(table: str, comment: str | None) -> bool:
    """Tell whether a table is a staging table of ours, by its identifier and its comment."""
    return (
        comment is not None
        and _STAGING.fullmatch(table) is not None
        and table == staging_table(comment)
    )


def parsed(name: str) -> TransactionName:
    """Read an attempt's name.

    Raises:
        ValueError: it is not one; a committable that no ``pre_commit`` of ours made.
    """
    found = parse_name(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a transaction of onceforall.")
    return found


def parse_gid(gid: str, query_id: str) -> TransactionName | None:
    """Read the id of a prepared transaction; None when it is not this query's."""
    found = parse_name(gid)
    return found if found is not None and found.query_id == query_id else None


def whose(query_id: str, sink: str) -> str:
    """Return what stands in names of connections for a query and its sink, given by its name."""
    return whose_code(query_id, sink_code(sink))


def whose_code(query_id: str, code: str) -> str:
    """Return the same, from the sink's code."""
    return _digest(f"{query_id}\n{code}", 16)


def driver_connection(owner: str, generation: int) -> str:
    """Return the application name of a connection that merges, on a driver.

    Args:
        owner: of ``whose``.
        generation: of the run that decided, or will decide, what is merged.
    """
    return f"ofa-m-{owner}-{generation}"


def query_connection(query_id: str, generation: int) -> str:
    """Return the application name of a connection that stands for a run of a query, whichever
    the sink.
    """
    return f"ofa-q-{_digest(query_id, 16)}-{generation}"


def query_connections(query_id: str) -> str:
    """Return a pattern of the names of all runs of a query; its group is the generation."""
    return f"^ofa-q-{_digest(query_id, 16)}-([0-9]{{1,18}})$"


def task_connection(name: str) -> str:
    """Return the application name of a task attempt's connection."""
    parts = parsed(name)
    return f"ofa-t-{whose_code(parts.query_id, parts.sink_code)}-{parts.generation}-{task_digest(parts)}-{parts.slot}"  # noqa: E501


def task_digest(parts: TransactionName) -> str:
    """Return what stands in a connection's name for the task whose attempt this is."""
    return _digest(f"{parts.batch}.{parts.write}.{parts.partition}.{parts.incarnation}", 12)


def lock_number(text: str) -> int:
    """Return a number for an advisory lock: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def names_digest(names: list[str]) -> str:
    """Return what stands in a marker for a set of transactions."""
    return _digest("\n".join(sorted(names)), 40)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
