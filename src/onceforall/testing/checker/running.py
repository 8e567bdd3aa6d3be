"""The check of sinks while drivers write, die and come back: fed with one look after the other.

What may be relied on while a query runs, by the protocol: a batch is written only behind the DONE
of the one before. So as soon as a batch is decided, every earlier one is complete in every sink;
the newest decided batch may be there, or not yet, or in part where a sink's transactions become
visible one by one. Where each batch replaces what was there (``StateTruth``), a reader sees what
one batch left: the newest decided one, or the one before it.

The order of reading makes the comparison exact. In each look the sinks are read first and the
commit log after them, so that whatever is visible must be decided by then. And what an *earlier*
look's log had decided, but for its newest batch, was complete before the sinks were read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from onceforall.testing.checker import findings
from onceforall.testing.checker.findings import Report, SinkCounts, Violation, examples
from onceforall.testing.checker.looking import Look, as_batches, look
from onceforall.testing.checker.quiet import (
    Truths,
    never_read,
    not_looked_at,
    sinks_of,
    strangers,
    truth_of,
)
from onceforall.testing.checker.rows import Numbers, Rows
from onceforall.testing.checker.states import Shown, StateTruth
from onceforall.testing.checker.truth import Truth

_KEPT_PER_KIND = 20


class RunningCheck:
    """Judges a sequence of looks at the sinks of one query.

    Args:
        truth: what the input must leave in the sinks.
        whole: the sinks in which no reader may ever see a part of a batch: files by their
            manifests, a table in ``mode="staged"``.
        settle_s: by sink, for how many seconds a batch may stay invisible that is complete. A Kafka
            broker answers a commit before it writes the markers that show it to readers, so there
            it takes a moment, and as long as a fail-over when a broker is gone or frozen. 0 by
            default.
        first_batch: the first batch that the query writes.
    """

    def __init__(
        self,
        truth: Truths,
        *,
        whole: Collection[str] = (),
        settle_s: Mapping[str, float] | None = None,
        first_batch: int = 0,
    ) -> None:
        self._truth = truth
        self._whole = frozenset(whole)
        self._settle_s = dict(settle_s or {})
        self._first_batch = first_batch
        self._decided: Numbers = np.empty(0, np.int64)
        self._due: dict[int, float] = {}
        self._seen: dict[str, Numbers] = {}
        self._shown: dict[str, Shown] = {}
        self._records: dict[str, int] = {}
        self._torn: dict[str, set[int]] = {}
        self._said: set[tuple[str, str, int]] = set()
        self._violations: list[Violation] = []
        self.looks = 0
        """How many looks there were."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What was found so far: each kind once per sink and batch, and so many of a kind as one
        can read.
        """
        return tuple(self._violations)

    def observe(self, views: Mapping[str, Rows], decided: Collection[int], *, at_s: float) -> None:
        """Take one look.

        Args:
            views: all rows that a reader finds now, by sink; a sink that can't be read now is left
                out.
            decided: the batches with a COMMIT in the commit log, **read after the sinks**.
            at_s: when that was, in seconds, on any clock that never goes back.
        """
        self.looks += 1
        batches = as_batches(decided)
        gone = np.setdiff1d(self._decided, batches)
        if len(gone):
            self._say(
                findings.LOG,
                "",
                gone,
                f"the batches {examples(gone)} were decided, and are not any more",
            )
        for sink, rows in views.items():
            truth = truth_of(self._truth, sink)
            self._records[sink] = max(self._records.get(sink, 0), len(rows))
            if isinstance(truth, StateTruth):
                self._judge_state(sink, rows, truth, int(batches.max(initial=-1)), at_s)
            else:
                for each in not_looked_at(sink, truth, rows):
                    self._add(each, 0)
                seen = look(truth, rows, decided, self._first_batch)
                self._judge(sink, truth, seen, at_s)
        for batch in batches[:-1].tolist():
            self._due.setdefault(batch, at_s)
        self._decided = np.union1d(self._decided, batches)

    def report(self) -> Report:
        """Return what all looks together came to.

        It is not ``ok`` when a sink never showed a row: take one look more when all is quiet; nor
        when a sink was never read that has a truth of its own, or is named in ``whole`` or
        ``settle_s``. What is lost for good, order and leftovers are the business of
        ``check_quiet``.
        """
        counts = {
            sink: SinkCounts(records=records, torn=len(self._torn.get(sink, ())))
            for sink, records in self._records.items()
        }
        violations = list(self._violations)
        violations += [
            Violation(
                findings.NOTHING_READ,
                sink,
                f"no row was read in {self.looks} looks, so nothing was checked",
            )
            for sink, records in self._records.items()
            if not records
        ]
        named = sinks_of(self._truth) | self._whole | set(self._settle_s)
        violations += never_read(named - set(counts))
        if not counts:
            violations.append(
                Violation(
                    findings.NOTHING_READ, "", "no sink was ever read, so nothing was checked"
                )
            )
        return Report(counts, tuple(violations))

    def _judge(self, sink: str, truth: Truth, seen: Look, at_s: float) -> None:
        for each in strangers(sink, truth, seen):
            self._add(each, seen.records)
        if len(seen.duplicated):
            batches = np.unique(truth.batches_at(seen.duplicated))
            ids = examples(truth.ids_at(seen.duplicated))
            self._say(
                findings.DUPLICATED,
                sink,
                batches,
                f"ids {ids} more than once, of the batches {examples(batches)}",
            )
        self._judge_progress(sink, seen, at_s)
        before = self._seen.get(sink)
        if before is not None:
            now = np.zeros(len(before), np.int64)
            now[: min(len(before), len(seen.counts))] = seen.counts[: len(before)]
            fewer = np.flatnonzero(now < before) + seen.base
            if len(fewer):
                batches = np.unique(truth.batches_at(fewer))
                ids = examples(truth.ids_at(fewer))
                self._say(
                    findings.WENT_BACK,
                    sink,
                    batches,
                    f"ids {ids} were read before, and not in look {self.looks}",
                )
        self._seen[sink] = seen.counts

    def _judge_progress(self, sink: str, seen: Look, at_s: float) -> None:
        if sink in self._whole and len(seen.partial):
            self._torn.setdefault(sink, set()).update(seen.partial.tolist())
            self._say(
                findings.TORN,
                sink,
                seen.partial,
                f"a part of the batches {examples(seen.partial)} was seen",
            )
        overdue = [batch for batch in seen.missing.tolist() if self._must_show(sink, batch, at_s)]
        if overdue:
            late = np.asarray(overdue, np.int64)
            text = (
                f"the batches {examples(late)} are not complete, although batch "
                f"{self._decided[-1]} was decided before"
            )
            self._say(findings.BEHIND, sink, late, text)

    def _must_show(self, sink: str, batch: int, at_s: float) -> bool:
        return batch in self._due and at_s - self._due[batch] >= self._settle_s.get(sink, 0.0)

    def _judge_state(
        self, sink: str, rows: Rows, truth: StateTruth, newest: int, at_s: float
    ) -> None:
        shown = self._shown.setdefault(sink, Shown(truth))
        before = shown.batch
        for each in not_looked_at(sink, truth.at(newest), rows):
            self._add(each, 0)
        complete = max((b for b in self._due if self._must_show(sink, b, at_s)), default=-1)
        found = shown.find(rows, max(before, complete), newest)
        if found is not None:
            shown.batch = found
            return
        # What is wrong with it, from the likeliest to the least likely.
        if (early := shown.find(rows, before, newest)) is not None:
            text = f"it shows what batch {early} left, although batch {complete} is complete"
            self._say(findings.BEHIND, sink, np.array([complete]), text)
        elif (old := shown.find(rows, -1, before - 1)) is not None:
            text = f"it shows what batch {old} left, and what batch {before} left was read before"
            self._say(findings.WENT_BACK, sink, np.array([old]), text)
        elif (ahead := shown.find(rows, newest + 1, newest + 2)) is not None:
            text = f"it shows what batch {ahead} left, which nobody decided"
            self._say(findings.UNDECIDED, sink, np.array([ahead]), text)
        else:
            self._judge_no_state(sink, rows, shown, newest)

    def _judge_no_state(self, sink: str, rows: Rows, shown: Shown, newest: int) -> None:
        near, seen = shown.closest(rows, newest)
        wrong = [each for each in strangers(sink, near, seen) if each.kind != findings.ALIEN]
        for each in wrong:
            self._add(each, seen.records)
        if not wrong:
            self._torn.setdefault(sink, set()).add(newest)
            text = (
                f"its {len(rows)} rows, ids {examples(rows.ids)}, are what no decided batch left; "
                f"the newest is batch {newest}"
            )
            self._say(findings.TORN, sink, np.array([newest]), text)

    def _say(self, kind: str, sink: str, batches: Numbers, text: str) -> None:
        fresh = [batch for batch in batches.tolist() if (kind, sink, batch) not in self._said]
        self._said.update((kind, sink, batch) for batch in fresh)
        if fresh:
            self._keep(Violation(kind, sink, text))

    def _add(self, violation: Violation, number: int) -> None:
        mark = (violation.text, violation.sink, number)
        if mark not in self._said:
            self._said.add(mark)
            self._keep(violation)

    def _keep(self, violation: Violation) -> None:
        if (
            sum(
                (each.kind, each.sink) == (violation.kind, violation.sink)
                for each in self._violations
            )
            < _KEPT_PER_KIND
        ):
            self._violations.append(violation)
