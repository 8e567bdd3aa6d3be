"""Count windows, which Spark does not have, and tumbling time windows with triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from onceforall.errors import OptionError
from onceforall.operators import _checks as checks
from onceforall.operators import _operator as operator
from onceforall.operators._sequential import SequentialRules
from onceforall.operators._sliding import SlidingRules
from onceforall.operators.aggregates import Aggregate
from onceforall.operators.triggers import Duration, Trigger, micros, positive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def count_window(
    frame: DataFrame,
    *,
    key: str | Sequence[str],
    size: int,
    slide: int | None = None,
    time: str | None = None,
    order_by: str | Sequence[str] = (),
    aggregates: Mapping[str, Aggregate],
    trigger: Trigger | None = None,
    name: str = "count_window",
) -> DataFrame:
    """Windows of ``size`` events of a key: one after the other, or one every ``slide`` events.

    Args:
        frame: a streaming DataFrame.
        key: the columns that say whose events are counted together.
        size: how many events a window holds.
        slide: a window starts every so many events, at most ``size``; by default ``size``: no event
            is in two windows.
        time: the column of the events' time (TIMESTAMP, with ``withWatermark``): events are counted
            in its order, once the watermark has passed them. Without it, they are counted batch by
            batch, as they come.
        order_by: columns that put events of the same time (or of the same batch) in order; the hash
            of the whole row decides where they are equal or none is named. So the order is the same
            in every replay.
        aggregates: output column -> ``Count``, ``Sum``, ``Min``, ``Max``, ``First``, ``Last`` or
            ``Rows``; may be empty.
        trigger: early results of a window that is not full; not for sliding windows, which say
            something every ``slide`` events.
        name: under this name the query's progress counts ``window``, ``early`` and ``late``
            (``observedMetrics``).

    Returns:
        The key columns, and: ``kind`` (``window``: complete; ``early``; ``late``: a late row),
        ``window_start`` and ``window_end`` (times of its first and last event; an early result has
        no end), ``window_index`` (the number of the window of this key, from 0 on), ``revision``
        (the number of the result of this window, from 0 on), ``events`` (how many it holds),
        ``closed_by`` (``count``), the aggregates, and, with ``time``, ``late``: a struct of the
        row's own columns, where ``kind`` is ``late``.

    Raises:
        OptionError: ``size``, ``slide``, the trigger or an aggregate's name.
        SchemaError: a column is missing or has a type that does not fit.
        UnsupportedQueryError: the frame is not streaming, the state store is not RocksDB, or the
            time column has no watermark.
        MissingExtraError: protobuf is not installed.

    A key has state from its first event on, for ever: its number, and its open windows. Where keys
    come and go, use ``session_window`` with ``max_events`` and ``gap``, which forgets a key whose
    session has closed.
    """
    checks.given(
        positive(size, "size"), "size", "Give how many events a window holds, such as 100."
    )
    positive(slide, "slide")
    if slide is not None and slide > size:
        raise OptionError(
            f"slide={slide} is more than size={size}: the events between two windows would be in "
            "none."
        )
    if slide is None or slide == size:
        events, every = checks.trigger_of(trigger)
        rules: SequentialRules | SlidingRules = SequentialRules(
            events=size, early_events=events, early_us=every, numbered=True
        )
    elif trigger is not None:
        raise OptionError(
            "A sliding count window says something every slide events; leave trigger= out, or "
            "make slide smaller."
        )
    else:
        rules = SlidingRules(size, slide)
    return operator.windows(frame, "count_window", rules, key, time, order_by, aggregates, name)


def tumbling_window(
    frame: DataFrame,
    *,
    key: str | Sequence[str],
    size: Duration,
    time: str | None = None,
    order_by: str | Sequence[str] = (),
    aggregates: Mapping[str, Aggregate],
    trigger: Trigger | None = None,
    name: str = "tumbling_window",
) -> DataFrame:
    """Tumbling windows of time, as Spark's own ``window``, with early results by count, by time or
    either, and late rows kept.

    Without a trigger and without a use for late rows take Spark's ``window``: it does not send a
    row through Python.

    Args:
        frame: a streaming DataFrame.
        key: the columns that say whose events are taken together.
        size: the length of a window: ``"1 hour"`` or a ``timedelta``. Windows start at its
            multiples since 1970-01-01T00:00:00 UTC.
        time: as for ``count_window``; without it, the windows are those of processing time.
        order_by: as for ``count_window``.
        aggregates: as for ``count_window``.
        trigger: early results of a window that is open.
        name: as for ``count_window``.

    Returns:
        The columns of ``count_window``. ``window_start`` and ``window_end`` are the bounds of the
        window, the end not included; ``closed_by`` is ``time``.

    Raises:
        OptionError: ``size``, the trigger or an aggregate's name.
        SchemaError: a column is missing or has a type that does not fit.
        UnsupportedQueryError: the frame is not streaming, the state store is not RocksDB, or the
            time column has no watermark.
        MissingExtraError: protobuf is not installed.

    Like all windows here, those of event time take events when the watermark passes them: early
    results are behind by its delay.
    """
    events, every = checks.trigger_of(trigger)
    size_us = checks.given(
        micros(size, "size"), "size", "Give how long a window is, such as '1 hour' or a timedelta."
    )
    rules = SequentialRules(size_us=size_us, early_events=events, early_us=every)
    return operator.windows(frame, "tumbling_window", rules, key, time, order_by, aggregates, name)
