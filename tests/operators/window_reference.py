"""What windows must give, computed from the whole history at once: lists, slices and sums; no
state, no clock that ticks.

A history is a list of batches, each (clock, events); an event is (time, order, tie, value). Times
are microseconds.
"""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Rules:
    """One of: sliding (size, slide); tumbling by count (events, numbered); sessions; tumbling by
    time (size_us)."""

    sliding: tuple | None = None
    events: int | None = None
    gap: int | None = None
    duration: int | None = None
    size: int | None = None
    early_events: int | None = None
    early: int | None = None
    numbered: bool = False


def split_late(history):
    """Return the events that came in time, in order, and the late ones batch by batch, for one
    key in event time."""
    on_time = [e for clock, events in history for e in events if e[0] is not None and e[0] > clock]
    late = [
        sorted((e for e in events if e[0] is None or e[0] <= clock), key=arrival)
        for clock, events in history
    ]
    return sorted((e for e in on_time if e[0] <= history[-1][0]), key=arrival), [
        e for batch in late for e in batch
    ]


def arrival(event):
    return (event[0] is not None, event[0] or 0, event[1] is not None, event[1] or 0, event[2])


def in_processing_time(history):
    """Return the events in order, each with the clock of its batch for its time."""
    return [
        (clock, *event[1:])
        for clock, events in history
        for event in sorted(events, key=lambda e: arrival((0, *e[1:])))
    ]


def outputs(rules, events, end):
    """Return everything that windows say about these events (in order) until the clock shows
    ``end``."""
    if rules.sliding:
        size, slide = rules.sliding
        starts = range(0, len(events) - size + 1, slide)
        return [
            _said("window", i, 0, events[s : s + size], None, events[s + size - 1][0], "count")
            for i, s in enumerate(starts)
        ]
    said = []
    index, last_start, number = 0, None, 0
    while events:
        start = events[0][0] if rules.size is None else events[0][0] - events[0][0] % rules.size
        members = 1
        while (
            members < len(events)
            and members != rules.events
            and _belongs(rules, start, events[members - 1], events[members])
        ):
            members += 1
        window, events = events[:members], events[members:]
        index = index + 1 if start == last_start else 0
        last_start = start
        name = number if rules.numbered else index
        number += 1
        closed = _closed(rules, start, window, end)
        shown = _shown_early(rules, start, window, end, closed)
        said += [
            _said("early", name, revision, window[:upto], start, None, None)
            for revision, upto in enumerate(shown)
        ]
        if closed:
            said.append(_said("window", name, len(shown), window, start, closed[1], closed[2]))
    return said


def _belongs(rules, start, before, event):
    return (
        (rules.gap is None or event[0] - before[0] <= rules.gap)
        and (rules.duration is None or event[0] - start <= rules.duration)
        and (rules.size is None or event[0] < start + rules.size)
    )


def _closed(rules, start, window, end):
    """Return (when, the window's end, why), or None while it is open."""
    if len(window) == rules.events:
        return (window[-1][0], window[-1][0], "count")
    candidates = [
        (rules.gap is not None and window[-1][0] + rules.gap, "gap"),
        (rules.duration is not None and start + rules.duration, "duration"),
        (rules.size is not None and start + rules.size - 1, "time"),
    ]
    candidates = [(when, why) for when, why in candidates if when is not False]
    if not candidates:
        return None
    when = min(when for when, _ in candidates)
    why = next(why for time, why in candidates if time == when)
    return (when, when + (why == "time"), why) if when <= end else None


def _shown_early(rules, start, window, end, closed):
    """Return how many events each early result has shown."""
    shown = []
    before = 0
    while before < len(window):
        points = []
        if rules.early_events is not None and before + rules.early_events <= len(window):
            upto = before + rules.early_events
            points.append((window[upto - 1][0], upto))
        if rules.early is not None:
            due = window[before][0] + rules.early
            upto = sum(event[0] <= due for event in window)
            so_far = _closed(
                Rules(gap=rules.gap, duration=rules.duration, size=rules.size),
                start,
                window[:upto],
                due,
            )
            if due <= end and not (so_far and so_far[0] <= due):
                points.append((due, upto))
        if not points:
            return shown
        upto = min(point[1] for point in points)
        if upto == len(window) and closed and closed[2] == "count":
            return shown
        shown.append(upto)
        before = upto
    return shown


def _said(kind, index, revision, window, start, end, why):
    values = [event[3] for event in window]
    known = [value for value in values if value is not None]
    return {
        "kind": kind,
        "index": index,
        "revision": revision,
        "start": window[0][0] if start is None else start,
        "end": end,
        "events": len(window),
        "closed_by": why,
        "count": len(known),
        "sum": sum(map(Fraction, known)) if known else None,
        "min": min(known, default=None),
        "max": max(known, default=None),
        "first": values[0],
        "last": values[-1],
        "rows": values,
    }
