"""What the suite is told of a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onceforall.protocol.entries import Committable
from onceforall.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SinkUnderTest:
    """What the suite must be told of a sink. Rows are numbers to it: each non-negative integer is
    one row, and never written twice on purpose.

    Attributes:
        make_sink: makes a new sink on the same target, each time it is called. It is called in
            other processes, too, as a restarted program would make its sink anew: it is pickled by
            cloudpickle, so close over paths and addresses, not over connections.
        rows: makes the rows of these numbers, as ``invoke`` gets them; pickled in the same way.
        read: the numbers of all rows that a reader sees at this moment, with those that it sees
            twice twice; their order doesn't count. Rows that lie in the target beforehand must
            stay, and nobody else may write there meanwhile: a number that the suite never gave is
            a row that the sink made up. Return one, -1 for instance, for a row whose values aren't
            those that ``rows`` made.
        leftovers: a word for each thing that lies in the target and is no result: a temp file, an
            open or prepared transaction, a staging table. The suite expects none after each case
            (and forgives those that were there before), and at least one while a transaction of a
            sink with two-phase commit is prepared.
        lose: destroys prepared transactions as the system itself may do it, by a timeout for
            instance; None: it never does.
        secrets: values that must not appear in pickles, representations, committables and errors,
            as they are or as these, JSON and URLs escape them. (What is in base64, for instance,
            isn't found.)
        twin_attempts: False for a sink that doesn't serve two living attempts of one task, and
            refuses speculative execution in ``check``.
        crash_points: at how many lines within each method a process is killed; each costs a few
            processes. They are lines of the sink's own code: of its class's package, and of each
            file that is neither Python's, nor onceforall's, nor in ``site-packages``. 0: only
            between calls.
        preload: modules that the sink imports late and that take long; they are imported once
            instead of in each process.
        another_target: returns a context manager: while it is entered, another target, new and
            empty, lies under the name and address of the sink's own, which comes back as it was at
            the end. None: the suite doesn't look whether ``identity`` tells them apart.
        patience_s: how long a reader's view, a clean-up or an answer may take, in seconds, from the
            last call on.
    """

    make_sink: Callable[[], TwoPhaseCommitSink]
    rows: Callable[[Sequence[int]], pa.RecordBatch]
    read: Callable[[], Iterable[int]]
    leftovers: Callable[[], Iterable[str]]
    lose: Callable[[Sequence[Committable]], object] | None = None
    secrets: Sequence[str] = field(default=(), repr=False)
    twin_attempts: bool = True
    crash_points: int = 5
    preload: Sequence[str] = ()
    patience_s: float = 20.0
    another_target: Callable[[], AbstractContextManager[object]] | None = None
