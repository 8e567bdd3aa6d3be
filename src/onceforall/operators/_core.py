"""What an operator does with one key's share of a batch, without Spark: ``take``.

Theory of operation. Two clocks are possible.

*Event time.* An event is late if its time is not after the watermark that the batch runs with; it
is handed back as it came. Any other waits, in the list ``pending``, until the watermark has passed
its time: then nothing can come before it any more, and it is taken, in the order of (time, the
user's order columns, the hash of the row). So every event that was not late is taken in that order,
whatever order it arrived in, and whichever batch it arrived in.

*Processing time.* The time of an event is that of its batch, which Spark writes into its offset log
before the batch runs, so that a replay has the same one. Events of one batch are taken in the order
of (the user's order columns, the hash of the row). A clock that was put back stands still for the
keys that have state until it has caught up.

In either, the outcome is a function of the state, the set of events and the clock: not of the order
in which rows come out of a shuffle, which a replay may change.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onceforall.errors import CheckpointMismatchError
from onceforall.operators import _clocks as clocks
from onceforall.operators import _folding as folding
from onceforall.operators import _signatures as signatures
from onceforall.operators._events import Event, Log, Value, in_order, read_event, to_text
from onceforall.operators._sequential import Result, SequentialRules, SequentialWindows
from onceforall.operators._sliding import SlidingRules, SlidingWindows

_VERSION = 1


@dataclass(frozen=True)
class Spec:
    """What an operator computes; plain values, so that it reaches the workers with the code.

    Args:
        rules: the windows.
        columns: the aggregates.
        order: how the user's order columns travel.
        event_time: whether time is that of the events, or of the batches.
        inputs: the names of the columns that all this is made of.
        key: the families of the key columns' types.
    """

    rules: SequentialRules | SlidingRules
    columns: tuple[folding.Column, ...]
    order: tuple[Value, ...]
    event_time: bool
    inputs: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    @property
    def signature(self) -> int:
        """A number that differs where state written by the one can't be read by the other."""
        shapes = [(column.fold, column.value.kind, column.value.scale) for column in self.columns]
        orders = [(value.kind, value.scale) for value in self.order]
        return signatures.signature(
            _VERSION, self.rules.shape, shapes, orders, self.event_time, self.inputs
        )

    @property
    def types(self) -> int:
        """A number that differs where the columns have types of other families.

        It is apart from ``signature``, for the state of earlier releases has only that.
        """
        return signatures.signature(
            self.key,
            [value.family for value in self.order],
            [column.value.family for column in self.columns],
        )


@dataclass(frozen=True)
class Outcome:
    """What became of one step: the new state, the timer to set (None: none), and what comes out.

    ``head`` is the small part of the state, as JSON (None: the key needs none any more); what
    changed in the lists is in the ``Log`` objects that were passed in.
    """

    head: str | None
    timer_ms: int | None
    results: tuple[Result, ...]
    late: tuple[Event, ...]


def timer_of(head: str | None) -> int | None:
    """Return the timer that this state has set, in milliseconds."""
    return None if head is None else json.loads(head).get("timer")


def take(  # noqa: PLR0917
    spec: Spec, head: str | None, pending: Log, rows: Log, events: Sequence[Event], clock_us: int
) -> Outcome:
    """Take the events that a batch brings for one key, or none where only a timer has expired.

    Args:
        spec: what is computed.
        head: the key's state as the last step left it; None for a new key.
        pending: the key's events that wait for the watermark.
        rows: the rows of its open windows, where ``Rows`` is asked for.
        events: all events of the key in this batch, in any order.
        clock_us: the watermark (event time) or the batch's time (processing time), in microseconds.

    Raises:
        CheckpointMismatchError: the state is that of another kind of window, of other aggregates,
            or of a newer release.
    """
    kept = _read(spec, head)
    events = sorted(events, key=in_order)
    if spec.event_time:
        due, late, next_us = _admit(spec, kept, pending, events, clock_us)
    else:
        clock_us = max(clock_us, kept.get("clock", clock_us))
        due, late, next_us = [(event, clock_us) for event in events], [], None
    machine = _machine(spec, kept.get("windows"), rows)
    for event, time_us in due:
        machine.take(event, time_us)
    machine.settle(clock_us)
    stored = machine.stored()
    timer_ms = _timer_ms(next_us, machine.deadline_us())
    new: dict[str, Any] | None = None
    if stored is not None or next_us is not None:
        new = {"spec": spec.signature, "types": spec.types}
        if stored is not None:
            new["windows"] = stored
        if next_us is not None:
            new["next"] = next_us
        if timer_ms is not None:
            new["timer"] = timer_ms
        if not spec.event_time:
            new["clock"] = clock_us
    return Outcome(
        None if new is None else to_text(new), timer_ms, tuple(machine.results), tuple(late)
    )


def _machine(spec: Spec, stored: Any, rows: Log) -> SequentialWindows | SlidingWindows:
    if isinstance(spec.rules, SlidingRules):
        return SlidingWindows(spec.rules, spec.columns, stored, rows)
    return SequentialWindows(spec.rules, spec.columns, stored, rows)


def _admit(
    spec: Spec, kept: dict[str, Any], pending: Log, events: Sequence[Event], watermark_us: int
) -> tuple[list[tuple[Event, int]], list[Event], int | None]:
    """Sort events into late ones and waiting ones; return what the watermark has passed, what is
    late, and the next time waited for.
    """
    late = []
    next_us: int | None = kept.get("next")
    for event in events:
        if event.time_us is None or event.time_us <= watermark_us:
            late.append(event)
        else:
            pending.append(event.text)
            next_us = event.time_us if next_us is None else min(next_us, event.time_us)
    if next_us is None or next_us > watermark_us:
        return [], late, next_us
    waiting = [
        (event.time_us or 0, event)
        for event in (read_event(t, spec.order, _values(spec)) for t in pending.entries())
    ]
    due = sorted((event for time_us, event in waiting if time_us <= watermark_us), key=in_order)
    rest = [(time_us, event.text) for time_us, event in waiting if time_us > watermark_us]
    pending.replace([text for _, text in rest])
    next_us = min((time_us for time_us, _ in rest), default=None)
    return [(event, event.time_us or 0) for event in due], late, next_us


def _values(spec: Spec) -> list[Value]:
    return [column.value for column in spec.columns]


def _timer_ms(*times_us: int | None) -> int | None:
    """Return the first millisecond that is not before the earliest of these times."""
    earliest = min((time for time in times_us if time is not None), default=None)
    return None if earliest is None else clocks.timer_ms(earliest)


def _read(spec: Spec, head: str | None) -> dict[str, Any]:
    if head is None:
        return {}
    kept: dict[str, Any] = json.loads(head)
    if kept.get("spec") != spec.signature:
        raise CheckpointMismatchError(
            "The state in the checkpoint is that of a window of another kind or size, of other "
            "key, time or order columns, of other "
            "aggregates, or of another release. Gap, number of events, longest duration and "
            "triggers may change (but in processing time the first "
            "rule of time can't come and the last one can't go); anything else needs a new "
            "checkpoint."
        )
    signatures.check(
        kept.get("types"), spec.types, "a window", "type of a key, order or aggregated column"
    )
    return kept
