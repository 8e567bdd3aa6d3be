"""Which click an order is attributed to: the rule, without Spark, clock or I/O.

The caller's sequence, per user and batch, with the watermark that is in force in that batch::

    state = decoded(text)                                   # or NOTHING state, late = take(state,
    clicks, orders, watermark, window)    # the batch's rows of this user, in any order, in one call
    or several ...                                                     # all rows of the batch were
    taken state, decided = decide(state, watermark, window)       # when wake(state, window) <=
    watermark text = encoded(state)                                   # None: nothing is left to
    remember

The rule, in which times are microseconds:

- An order is *late* if its time is not after the watermark of the batch that brings it. It waits
  for nothing, and is attributed to nothing.
- Any other order waits until the watermark has reached its time, and is then *decided*: it goes to
  the latest click of its user that has arrived by then (in this batch too) with ``order - window <=
  click <= order``. Of several clicks at that time it is the one with the greatest tie-breaker, and
  of several of these the one whose row is the greatest text: what is the same row is the same
  click.
- So a click that arrives behind its order counts, and even one behind the watermark does, as long
  as the order is not decided.

What is kept: the orders that wait, the clicks after the watermark, and *one* click before that, the
latest: no later order would go to another one. A click that no order can reach any more is
forgotten. So the state of a user is bounded by what comes within the watermark's delay, not by the
window.

The result depends on the batches and their watermarks alone, and Spark replays both as they were:
not on the order of rows within a batch.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from onceforall.operators import _signatures as signatures

Tie: TypeAlias = "int | str | None"


class Click(NamedTuple):
    """A click.

    Attributes:
        time_us: when it happened, in microseconds since 1970.
        tie: which one of several at that time is taken: the greatest; of one type for all clicks,
            None is the smallest.
        row: all that is to be known of it, as a text.
    """

    time_us: int
    tie: Tie
    row: str

    def rank(self) -> tuple[int, bool, Tie, str]:
        """Return what clicks are compared by."""
        return (
            self.time_us,
            self.tie is not None,
            self.tie if self.tie is not None else 0,
            self.row,
        )


class Order(NamedTuple):
    """An order: its time in microseconds since 1970, and all that is to be known of it, as a
    text.
    """

    time_us: int
    row: str


class State(NamedTuple):
    """What is remembered of one user: clicks, sorted by rank and each at a time of its own, and
    waiting orders, sorted.
    """

    clicks: tuple[Click, ...] = ()
    orders: tuple[Order, ...] = ()


class Decided(NamedTuple):
    """An order, and the click that it goes to; None: none was within the window."""

    order: Order
    click: Click | None


NOTHING = State()


def take(
    state: State,
    clicks: Iterable[Click],
    orders: Iterable[Order],
    watermark_us: int,
    window_us: int,
) -> tuple[State, list[Order]]:
    """Return the state with these rows of one batch, and the orders among them that are late,
    sorted.
    """
    taken = list(orders)
    late = [order for order in taken if order.time_us <= watermark_us]
    waiting = [*state.orders, *(order for order in taken if order.time_us > watermark_us)]
    merged = _needed([*state.clicks, *clicks], waiting, watermark_us, window_us)
    return State(merged, tuple(sorted(waiting))), sorted(late)


def decide(state: State, watermark_us: int, window_us: int) -> tuple[State, list[Decided]]:
    """Return the state without the orders that the watermark has reached, and these, each with its
    click.

    To be called when all rows of the batch have been taken.
    """
    due = [order for order in state.orders if order.time_us <= watermark_us]
    decided = [Decided(order, _latest(state.clicks, order.time_us, window_us)) for order in due]
    waiting = state.orders[len(due) :]
    return State(_needed(state.clicks, waiting, watermark_us, window_us), waiting), decided


def wake(state: State, window_us: int) -> int | None:
    """Return the watermark, in microseconds, from which on ``decide`` has something to do; None for
    an empty state.

    It is after the watermark of the step that gave the state, unless an order of an earlier batch
    is due: that one's time was told before.
    """
    if state.orders:
        return state.orders[0].time_us
    return state.clicks[-1].time_us + window_us if state.clicks else None


def encoded(state: State, signature: int | None = None) -> str | None:
    """Return the state as a text (JSON), None for an empty one.

    Args:
        state: to be remembered.
        signature: a number that whoever reads the text must have, too.
    """
    if not state.clicks and not state.orders:
        return None
    fields = [state.clicks, state.orders, *(() if signature is None else (signature,))]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def decoded(text: str | None, signature: int | None = None) -> State:
    """Return the state that ``encoded`` made a text of.

    Raises:
        CheckpointMismatchError: it was made with another signature.
    """
    if text is None:
        return NOTHING
    clicks, orders, *kept = json.loads(text)
    signatures.check(
        kept[0] if kept else None,
        signature,
        "attribute",
        "user, order_time, click_time or tie, or of another type of one",
    )
    return State(tuple(Click(*click) for click in clicks), tuple(Order(*order) for order in orders))


def _latest(clicks: Sequence[Click], time_us: int, window_us: int) -> Click | None:
    """Return the latest click from a window before a time up to it; by bisection, for one user
    may have very many.
    """
    place = bisect.bisect_right(clicks, time_us, key=lambda click: click.time_us)
    click = clicks[place - 1] if place else None
    return None if click is None or click.time_us < time_us - window_us else click


def _needed(
    clicks: Iterable[Click], waiting: Sequence[Order], watermark_us: int, window_us: int
) -> tuple[Click, ...]:
    """Return the clicks that an order which waits, or comes later, can go to; sorted.

    Below the watermark, and below every order that waits, only the latest one can be anybody's. Of
    several at one time it is the greatest.
    """
    first_us = min(order.time_us for order in waiting) if waiting else watermark_us + 1
    floor_us = min(watermark_us, first_us)
    reached_us = min(watermark_us + 1, first_us) - window_us
    kept: list[Click] = []
    for click in sorted((click for click in clicks if click.time_us >= reached_us), key=Click.rank):
        if kept and (click.time_us <= floor_us or click.time_us == kept[-1].time_us):
            kept[-1] = click
        else:
            kept.append(click)
    return tuple(kept)
