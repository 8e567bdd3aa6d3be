"""What the commit log decided, and whether that makes sense: each batch has one decision that
counts, and every unknown outcome became one or none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onceforall.protocol.entries import Commit, Digest, Done, Entry, Seal, total
from onceforall.protocol.history import EMPTY, fold, seal_of
from onceforall.protocol.names import parse_name
from onceforall.testing.checker.findings import (
    LOG,
    LOST,
    NOTHING_READ,
    UNDECIDED,
    UNRESOLVED,
    Violation,
    examples,
)

Attempts = Mapping[str, Mapping[int, Collection[str]]]
"""By sink and batch: the names of the task attempts whose rows a reader sees."""


@dataclass(frozen=True)
class LogView:
    """The entries of a commit log at one moment.

    Attributes:
        chains: by generation, the (index, entry) pairs that are there, ascending; gaps where old
            entries were cleaned away.
        is_dropped: whether older chains were there, and went as a whole.
    """

    chains: Mapping[int, Sequence[tuple[int, Entry]]]
    is_dropped: bool = False

    def entries(self) -> Iterator[tuple[int, int, Entry]]:
        """Return (generation, index, entry) of all, in the order in which they count."""
        for generation in sorted(self.chains):
            for index, entry in self.chains[generation]:
                yield generation, index, entry

    def steps(self) -> Iterator[tuple[int, int, Entry, bool]]:
        """Return what ``entries`` does, and of each entry whether others may have been cleaned away
        right before it.
        """
        before: tuple[int, int] | None = None
        for generation, index, entry in self.entries():
            if index > 0:
                is_next = before == (generation, index - 1)
            elif before is None:
                is_next = not self.is_dropped
            else:
                is_next = before[0] == generation - 1
            yield generation, index, entry, not is_next
            before = generation, index

    def cleaned(self) -> Sequence[range]:
        """Return the batches of which a decision may have been cleaned away: those below the first
        one that is there (which another log may have decided, too), and those between two that have
        a gap between them; where no DONE stands before the gap, the lower of the two as well.
        """
        found, first, last, is_done = [], 0, -1, True
        is_gap = True
        for _, _, entry, is_behind_gap in self.steps():
            if is_behind_gap and not is_gap:
                is_gap, first = True, last + 1 if is_done else last
            if isinstance(entry, Commit):
                if is_gap:
                    found.append(range(first, entry.batch))
                last, is_done, is_gap = entry.batch, False, False
            elif isinstance(entry, Done):
                is_done = is_done or entry.batch == last
        return found

    @property
    def is_cleaned(self) -> bool:
        """Whether entries were cleaned away, so that decisions of old batches are not there any
        more.
        """
        return any(is_behind_gap for *_, is_behind_gap in self.steps())

    @property
    def effective(self) -> Mapping[int, tuple[int, Commit]]:
        """By batch: the decision that counts, with its generation. A later one of the same batch
        replaces an earlier one.
        """
        return {
            entry.batch: (generation, entry)
            for generation, _, entry in self.entries()
            if isinstance(entry, Commit)
        }

    @property
    def newest(self) -> int:
        """The newest decided batch, or -1."""
        return max(self.effective, default=-1)

    @property
    def newest_done(self) -> int:
        """The newest batch that is known to be complete on every sink, or -1."""
        return max(
            (entry.batch for _, _, entry in self.entries() if isinstance(entry, Done)), default=-1
        )

    def decided(self, first_batch: int = 0) -> range:
        """Return all decided batches; those whose decision was cleaned away, too, for batches
        follow one another.
        """
        return range(first_batch, self.newest + 1)

    def has_commit(self, generation: int, batch: int) -> bool:
        """Tell whether a generation decided a batch."""
        return any(
            isinstance(entry, Commit) and entry.batch == batch
            for _, entry in self.chains.get(generation, ())
        )

    def is_sealed(self, generation: int) -> bool:
        """Tell whether nothing can follow in a chain any more."""
        chain = self.chains.get(generation, ())
        return bool(chain) and isinstance(chain[-1][1], Seal)


def check_log(
    log: LogView,
    *,
    spark_committed: int | None = None,
    attempts: Attempts | None = None,
    unanswered: Collection[tuple[int, int]] = (),
) -> tuple[Violation, ...]:
    """Check a commit log, and what is visible of it, when all is quiet.

    Args:
        log: its entries.
        spark_committed: the last batch in Spark's own commit log, -1 for none; None: not looked at.
        attempts: whose rows are visible, for sinks that tell. An attempt that the decision doesn't
            name must not be visible, and one that it names must be.
        unanswered: (generation, batch) of each COMMIT whose append got no answer. Each must have
            become a decision in its chain, or must be impossible for ever, with nothing of it
            visible.

    Returns:
        The violations.
    """
    found = [Violation(LOG, "", text) for text in _contradictions(log)]
    if not any(log.chains.values()):
        text = "no entry of a commit log was read, so nothing was checked"
        found.append(Violation(NOTHING_READ, "", text))
    if spark_committed is not None and not spark_committed <= log.newest <= spark_committed + 1:
        text = (
            f"batch {log.newest} is the last decided one, and batch {spark_committed} the last "
            "that Spark has finished"
        )
        found.append(Violation(LOG, "", text))
    if attempts is not None:
        found += _of_attempts(log, attempts)
    for generation, batch in sorted(set(unanswered)):
        found += _of_unanswered(log, generation, batch, attempts or {})
    return tuple(found)


def _contradictions(log: LogView) -> Iterator[str]:
    """Walk through all entries as if they were written one after the other: each generation
    starts from what those below it left. Behind a gap nobody knows what was decided last, until the
    next decision.
    """
    is_known = True
    last: Commit | None = None
    decided_by, is_done = -1, False
    history = EMPTY
    for generation, index, entry, is_behind_gap in log.steps():
        is_known = is_known and not is_behind_gap
        where = f"entry {index} of generation {generation}"
        if isinstance(entry, Commit):
            if last is not None and (
                fault := _why_not(
                    last, decided_by, entry, generation, is_done=is_done, is_known=is_known
                )
            ):
                yield f"{where}: {fault}"
            last, decided_by, is_done = entry, generation, False
            is_known = True
        elif isinstance(entry, Done):
            if is_known and (last is None or entry.batch != last.batch):
                yield (
                    f"{where}: DONE of batch {entry.batch}, which is not the one that was "
                    "decided last"
                )
            is_done = is_done or (last is not None and entry.batch == last.batch)
        if isinstance(entry, Seal):
            if is_known and entry != seal_of(history):
                yield (
                    f"{where}: the SEAL says {entry.body()}, and the entries before it "
                    f"{seal_of(history).body()}"
                )
        else:
            history = fold(history, generation, [(index, entry)])
    open_chains = [
        generation for generation in sorted(log.chains)[:-1] if not log.is_sealed(generation)
    ]
    if open_chains:
        yield f"the chains {open_chains} have no SEAL, although a later run has started"


def _why_no_redo(before: Commit, entry: Commit, again: str) -> str:
    if entry.offsets != before.offsets:
        return f"{again} with other offsets"
    names = {str(c.get("name")) for cs in entry.committables.values() for c in cs}
    stays = any(str(c.get("name")) in names for cs in before.committables.values() for c in cs)
    # What is lost as a whole is written anew, and a person may have chosen to pay with rows.
    if not stays or len(entry.losses) > len(before.losses) or _totals(entry) == _totals(before):
        return ""
    return f"{again} with other rows"


def _totals(entry: Commit) -> dict[str, Digest]:
    """The rows of each write, however they are divided among tasks."""
    return {write: total(digests) for write, digests in entry.digests.items()}


def _why_not(
    before: Commit,
    decided_by: int,
    entry: Commit,
    generation: int,
    *,
    is_done: bool,
    is_known: bool,
) -> str:
    """Return why a decision may not follow the one before; empty when it may."""
    if entry.batch == before.batch:
        again = f"a second decision of batch {entry.batch}"
        if generation == decided_by:
            return f"{again} in the same generation"
        if is_done:
            return f"{again}, which was complete"
        return _why_no_redo(before, entry, again)
    if entry.batch != before.batch + 1 and (is_known or entry.batch < before.batch):
        return f"a decision of batch {entry.batch} behind that of batch {before.batch}"
    return (
        ""
        if is_done or not is_known
        else f"a decision of batch {entry.batch}, although batch {before.batch} was not complete"
    )


def _of_attempts(log: LogView, attempts: Attempts) -> Iterator[Violation]:
    effective, cleaned = log.effective, log.cleaned()
    for sink, batches in attempts.items():
        for batch, names in sorted(batches.items()):
            if _is_among(batch, cleaned):
                continue
            if batch not in effective:
                yield Violation(
                    UNDECIDED,
                    sink,
                    f"batch {batch} is visible, and nobody decided it: {examples_of(names)}",
                )
                continue
            generation, commit = effective[batch]
            decided = {
                str(committable["name"]) for committable in commit.committables.get(sink, ())
            }
            if surplus := set(names) - decided:
                text = (
                    f"attempts of batch {batch} are visible that the decision of generation "
                    f"{generation} doesn't name: "
                )
                yield Violation(UNDECIDED, sink, text + examples_of(surplus))
            if lacking := decided - set(names):
                yield Violation(
                    LOST,
                    sink,
                    f"decided attempts of batch {batch} are not visible: {examples_of(lacking)}",
                )
        for batch, (_, commit) in sorted(effective.items()):
            if batch not in batches and commit.committables.get(sink):
                yield Violation(
                    LOST, sink, f"batch {batch} is decided, and nothing of it is visible"
                )


def _of_unanswered(
    log: LogView, generation: int, batch: int, attempts: Attempts
) -> Iterator[Violation]:
    if log.has_commit(generation, batch):
        return
    what = f"the decision of batch {batch} in generation {generation}, whose append got no answer,"
    # A chain that went as a whole was sealed.
    is_gone = generation not in log.chains and generation < max(log.chains, default=-1)
    if not is_gone and not log.is_sealed(generation):
        yield Violation(
            UNRESOLVED, "", f"{what} is not there and may still appear: the chain has no SEAL"
        )
    if _is_among(batch, log.cleaned()):
        return
    for sink, batches in attempts.items():
        parsed = {name: parse_name(name) for name in batches.get(batch, ())}
        own = [
            name
            for name, parts in parsed.items()
            if parts is not None and parts.generation <= generation
        ]
        effective = log.effective.get(batch)
        kept = (
            set()
            if effective is None
            else {str(c["name"]) for c in effective[1].committables.get(sink, ())}
        )
        if ghosts := set(own) - kept:
            yield Violation(
                UNRESOLVED,
                sink,
                f"{what} never happened, and its attempts are visible: {examples_of(ghosts)}",
            )


def _is_among(batch: int, cleaned: Sequence[range]) -> bool:
    return any(batch in each for each in cleaned)


def examples_of(names: Collection[str]) -> str:
    """Return the first few of some names."""
    return examples(np.asarray(sorted(names), np.str_))
