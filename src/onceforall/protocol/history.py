"""What the sealed chains decided, folded into one value.

Pure. The caller's sequence: start from ``EMPTY`` or from the seal of a lower chain, ``fold`` each
chain's entries in the order of generations and indexes, and ask ``seal_of`` for the seal of the
last chain folded. Only sealed chains may be folded for a
decision: an unsealed one can still change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onceforall.protocol.entries import Commit, Done, Entry, Seal


@dataclass(frozen=True)
class CommitPermit:
    """The proof that a durable COMMIT names what is about to be committed. The library makes one
    only by ``Decided.permit``.

    Attributes:
        generation: whose chain holds the COMMIT.
        index: its index there.
        batch: the batch that it decides.
    """

    generation: int
    index: int
    batch: int


@dataclass(frozen=True)
class Decided:
    """The newest decision of the highest batch, where it stands, and whether its DONE is known.

    It is made of entries that are durable: those of sealed chains, or an append that was answered.
    """

    commit: Commit
    generation: int
    index: int
    done: bool

    @property
    def permit(self) -> CommitPermit:
        """The permit to commit what it names."""
        return CommitPermit(self.generation, self.index, self.commit.batch)

    def is_complete(self, spark_committed: int) -> bool:
        """Tell whether it is known to be complete on every sink: by its DONE, or by Spark's commit
        log, which has a batch only after foreachBatch returned.

        Args:
            spark_committed: the last batch there.
        """
        return self.done or spark_committed >= self.commit.batch


@dataclass(frozen=True)
class History:
    """All that matters of the sealed past: the last decision, or None when nothing was ever
    decided.
    """

    decided: Decided | None = None


EMPTY = History()


def fold(history: History, generation: int, entries: Iterable[tuple[int, Entry]]) -> History:
    """Add one chain's entries.

    Args:
        history: what lower chains decided.
        generation: the chain's number.
        entries: (index, entry), ascending; gaps are allowed, for old entries of a sealed chain are
            cleaned away.

    Returns:
        The history with them. A COMMIT replaces one of the same batch (a redo) or of a lower one;
        DONE marks its batch.
    """
    decided = history.decided
    for index, entry in entries:
        if isinstance(entry, Commit) and (decided is None or entry.batch >= decided.commit.batch):
            decided = Decided(entry, generation, index, done=False)
        elif (
            isinstance(entry, Done) and decided is not None and entry.batch == decided.commit.batch
        ):
            decided = Decided(decided.commit, decided.generation, decided.index, done=True)
    return History(decided)


def seal_of(history: History) -> Seal:
    """Return the seal that ends the last chain folded into this history."""
    if history.decided is None:
        return Seal(None, None, done=False)
    return Seal(history.decided.generation, history.decided.index, history.decided.done)
