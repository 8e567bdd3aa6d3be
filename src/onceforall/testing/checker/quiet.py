"""The check of sinks that nobody writes to any more: after the last fault is mended, the last
run has ended, and readers have caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from onceforall.testing.checker import findings
from onceforall.testing.checker.findings import Report, SinkCounts, Violation, examples
from onceforall.testing.checker.looking import Look, look, order_of
from onceforall.testing.checker.rows import Numbers, Rows
from onceforall.testing.checker.states import StateTruth
from onceforall.testing.checker.truth import Truth

Truths = Truth | StateTruth | Mapping[str, Truth | StateTruth]
"""One truth for all sinks, or one per sink where a sink gets other rows than the rest."""


def check_quiet(
    truth: Truths,
    views: Mapping[str, Rows],
    decided: Collection[int],
    leftovers: Mapping[str, Sequence[str]] | None = None,
    *,
    one_lane_per_key: bool = True,
) -> Report:
    """Compare what is in the sinks, when all is quiet, with what must be there.

    Args:
        truth: what the input must leave in the sinks.
        views: all rows that a new reader finds, by sink.
        decided: the batches that are decided; each must be whole in every sink, and no row of
            another one in any.
        leftovers: what observers found that should not be there any more, by sink.
        one_lane_per_key: whether all rows of a key must stand in one lane; not so after a topic got
            more partitions.

    Returns:
        The numbers of each sink, and every violation. It is not ``ok`` when a sink has no row at
        all, or there is none; nor when a sink that has a truth of its own isn't among the views, or
        the truth has keys or contents and the view hasn't.
    """
    left = leftovers or {}
    truths = {sink: _truth_at(truth, sink, decided) for sink in views}
    looks = {sink: look(truths[sink], rows, decided) for sink, rows in views.items()}
    violations = [*_nothing_read(looks), *never_read(sinks_of(truth) - set(views))]
    counts = {}
    for sink, seen in looks.items():
        each = truths[sink]
        order = order_of(each, views[sink], seen)
        counts[sink] = _counts(seen, len(order.later), len(left.get(sink, ())))
        violations += not_looked_at(sink, each, views[sink])
        violations += _of_rows(sink, each, seen)
        violations += _of_order(
            sink,
            each.ids_at(order.later),
            order.scattered if one_lane_per_key else order.scattered[:0],
        )
    violations += _disagreements(looks)
    violations += [
        Violation(findings.LEFTOVER, sink, _list(texts)) for sink, texts in left.items() if texts
    ]
    return Report(counts, tuple(violations))


def check_state(
    state: Mapping[str, Any], expected: Mapping[str, Any], output: Mapping[str, Any]
) -> tuple[Violation, ...]:
    """Compare a stateful query's state with its output and with what the input implies.

    Args:
        state: what the state store has, by key.
        expected: what the input implies, by key.
        output: the last that the output says, by key.

    Returns:
        A violation for each of the two that differs; one for nothing read where there is nothing to
        compare.
    """
    if not expected or not state:
        return (
            Violation(
                findings.NOTHING_READ,
                "",
                "no state was read, or none is expected, so nothing was checked",
            ),
        )
    found = []
    for name, other in (("the input implies", expected), ("the output says", output)):
        differing = sorted(key for key in {*state, *other} if state.get(key) != other.get(key))
        if differing:
            key = differing[0]
            text = (
                f"{len(differing)} keys differ, first {key}: the state is {state.get(key)!r}, "
                f"and {name} {other.get(key)!r}"
            )
            found.append(Violation(findings.STATE, "", text))
    return tuple(found)


def truth_of(truth: Truths, sink: str) -> Truth | StateTruth:
    """Return a sink's truth."""
    return truth if isinstance(truth, (Truth, StateTruth)) else truth[sink]


def sinks_of(truth: Truths) -> frozenset[str]:
    """Return the sinks that have a truth of their own."""
    return frozenset() if isinstance(truth, (Truth, StateTruth)) else frozenset(truth)


def never_read(sinks: Collection[str]) -> list[Violation]:
    """Return a violation for each sink that should have been read and wasn't."""
    text = "the sink was not read, so nothing was checked; give its rows under this name"
    return [Violation(findings.NOTHING_READ, sink, text) for sink in sorted(sinks)]


def not_looked_at(sink: str, truth: Truth, rows: Rows) -> list[Violation]:
    """Return a violation for the keys, and one for the contents, that a truth has and a reader
    didn't look at. Where rows have an order, the truth's keys may be there for that alone.
    """
    none = np.empty(0, np.int64)
    keys = truth.keys_at(none) if rows.keys is None and not rows.is_ordered else None
    contents = truth.contents_at(none) if rows.contents is None else None
    return [
        Violation(
            findings.NOTHING_READ,
            sink,
            f"the truth has {name}, and none were read, so none were checked; read them, or leave "
            "them out of this sink's truth",
        )
        for name, unread in (("keys", keys), ("contents", contents))
        if len(rows) and unread is not None
    ]


def _truth_at(truth: Truths, sink: str, decided: Collection[int]) -> Truth:
    """Return a sink's truth; where each batch replaces what was there, the last one's."""
    found = truth_of(truth, sink)
    return found.at(max(decided, default=-1)) if isinstance(found, StateTruth) else found


def _counts(seen: Look, misordered: int, leftovers: int) -> SinkCounts:
    return SinkCounts(
        records=seen.records,
        expected=int(seen.sizes.sum()),
        lost=int((seen.sizes - seen.present).sum()),
        duplicated=len(seen.kept) - int(np.count_nonzero(seen.counts)),
        alien=len(seen.alien) + len(seen.undecided),
        wrong=len(seen.wrong),
        changed=len(seen.changed),
        torn=len(seen.partial),
        misordered=misordered,
        leftovers=leftovers,
    )


def _nothing_read(looks: Mapping[str, Look]) -> list[Violation]:
    if not looks:
        return [Violation(findings.NOTHING_READ, "", "no sink was read, so nothing was checked")]
    return [
        Violation(findings.NOTHING_READ, sink, "no row was read, so nothing was checked")
        for sink, seen in looks.items()
        if not seen.records
    ]


def _of_rows(sink: str, truth: Truth, seen: Look) -> list[Violation]:
    found = []
    lost = lost_ordinals(truth, seen)
    if len(lost):
        text = (
            f"{len(lost)} rows, ids {examples(truth.ids_at(lost))}, of the batches "
            f"{examples(seen.missing)}"
        )
        found.append(Violation(findings.LOST, sink, text))
    if len(seen.partial):
        found.append(
            Violation(
                findings.TORN, sink, f"only a part of the batches {examples(seen.partial)} is there"
            )
        )
    if len(seen.duplicated):
        extra = int(seen.counts[seen.counts > 1].sum()) - len(seen.duplicated)
        text = (
            f"{extra} rows more than once, ids {examples(truth.ids_at(seen.duplicated))}, of "
            "the batches "
        )
        text += examples(np.unique(truth.batches_at(seen.duplicated)))
        found.append(Violation(findings.DUPLICATED, sink, text))
    return found + strangers(sink, truth, seen)


def strangers(sink: str, truth: Truth, seen: Look) -> list[Violation]:
    """Return violations for rows that should not be there at all, or not like this."""
    found = []
    if len(seen.alien):
        found.append(
            Violation(
                findings.ALIEN,
                sink,
                f"{len(seen.alien)} rows that no input has, ids {examples(seen.alien)}",
            )
        )
    if len(seen.undecided):
        batches = np.unique(truth.batches_at(seen.undecided))
        text = (
            f"{len(seen.undecided)} rows of the batches {examples(batches)}, which nobody "
            "decided, ids "
        )
        found.append(
            Violation(findings.UNDECIDED, sink, text + examples(truth.ids_at(seen.undecided)))
        )
    if len(seen.wrong):
        text = (
            f"{len(seen.wrong)} rows under another key than their input's, ids "
            f"{examples(seen.wrong)}"
        )
        found.append(Violation(findings.WRONG_KEY, sink, text))
    if len(seen.changed):
        text = (
            f"{len(seen.changed)} rows with another content than their input's, ids "
            f"{examples(truth.ids_at(seen.changed))}"
        )
        found.append(Violation(findings.WRONG_VALUE, sink, text))
    return found


def lost_ordinals(truth: Truth, seen: Look) -> Numbers:
    """Return the ordinals of required rows that aren't there."""
    absent = np.flatnonzero(seen.counts == 0) + seen.base
    required = np.isin(truth.batches_at(absent), seen.missing)
    return absent[required]


def _of_order(sink: str, ids: Any, scattered: Any) -> list[Violation]:
    found = []
    if len(ids):
        text = f"{len(ids)} rows stand behind later rows of their key, ids {examples(ids)}"
        found.append(Violation(findings.MISORDERED, sink, text))
    if len(scattered):
        text = (
            f"{len(scattered)} keys stand in more than one lane each, so that they have no "
            f"order: {examples(scattered)}"
        )
        found.append(Violation(findings.MISORDERED, sink, text))
    return found


def _list(texts: Sequence[str]) -> str:
    return f"{len(texts)}: {examples(np.asarray(texts, np.str_))}"


def _disagreements(looks: Mapping[str, Look]) -> list[Violation]:
    """Compare, batch by batch, which sinks have it wholly.

    A sink that must have no row of it has it.
    """
    found = []
    for (one, first), (other, second) in zip(
        list(looks.items())[:-1], list(looks.items())[1:], strict=True
    ):
        differing = np.setxor1d(first.missing, second.missing)
        if len(differing):
            text = (
                f"the batches {examples(differing)} are whole in one of the sinks {one} and "
                f"{other} only"
            )
            found.append(Violation(findings.DISAGREEING, "", text))
    return found
