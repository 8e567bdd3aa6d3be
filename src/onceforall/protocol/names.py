"""The name of a transaction: what everything that a sink leaves in the world bears, and how it is
read back. Pure.

``ofa.<query id>.<sink code>.<generation>.<batch>.<write>.<partition>.<incarnation>.<slot>``.
Letters, digits, dots and hyphens only, 200 characters at the most, so that it may be part of a
file's name or of a prepared transaction's. Each part ends with a separator that no part contains,
and a name is always parsed as a whole, never compared by its
beginning: sink ``a.1`` is not
sink ``a.10``.

No two task attempts of a query have the same name: the slot tells those of a batch apart, and the
incarnation those of batches that may still be alive at the same time.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_NUMBER = r"(0|[1-9][0-9]{0,18})"
_NAME = re.compile(
    rf"ofa\.([0-9A-Za-z-]{{1,40}})\.([0-9A-Za-z-]{{1,40}})\.{_NUMBER}" + rf"\.{_NUMBER}" * 5
)
_NO_WORD = re.compile(r"[^0-9A-Za-z]+")


class TransactionName(NamedTuple):
    """The parts of a name.

    Attributes:
        query_id: Spark's query id, a UUID.
        sink_code: ``sink_code`` of the sink's name.
        generation: that of the run.
        batch: Spark's batch id.
        write: the ordinal of the write within the batch.
        partition: Spark's partition number.
        incarnation: see ``onceforall.sink.TaskAttempt``, as for ``slot``.
        slot: the attempt's number in its batch.
    """

    query_id: str
    sink_code: str
    generation: int
    batch: int
    write: int
    partition: int
    incarnation: int
    slot: int

    def __str__(self) -> str:
        return ".".join(["ofa", *(str(part) for part in self)])


def sink_code(sink: str) -> str:
    """Return what stands for a sink's name in names: readable, at most 40 characters, and
    another one for each sink name.
    """
    word = _NO_WORD.sub("-", sink).strip("-")[:27].strip("-")
    return f"{word or 'sink'}-{hashlib.sha256(sink.encode()).hexdigest()[:12]}"


def parse_name(text: str) -> TransactionName | None:
    """Read a name back; None when it is not exactly what ``str`` makes of one: somebody else's."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    query_id, sink, *numbers = match.groups()
    return TransactionName(query_id, sink, *(int(number) for number in numbers))
