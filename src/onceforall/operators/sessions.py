"""Sessions that close by a gap, by a number of events, or by a longest duration, whichever comes
first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from onceforall.errors import OptionError
from onceforall.operators import _checks as checks
from onceforall.operators import _operator as operator
from onceforall.operators._sequential import SequentialRules
from onceforall.operators.aggregates import Aggregate
from onceforall.operators.triggers import Duration, Trigger, micros, positive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def session_window(
    frame: DataFrame,
    *,
    key: str | Sequence[str],
    gap: Duration | None = None,
    max_events: int | None = None,
    max_duration: Duration | None = None,
    time: str | None = None,
    order_by: str | Sequence[str] = (),
    aggregates: Mapping[str, Aggregate],
    trigger: Trigger | None = None,
    name: str = "session_window",
) -> DataFrame:
    """Sessions of a key: events that follow each other, until something closes the session.

    Args:
        frame: a streaming DataFrame.
        key: the columns that say whose session it is.
        gap: it closes when no event came for longer than this: ``"30 minutes"`` or a ``timedelta``.
            An event at exactly the gap after the one before still belongs to the session, as in
            Spark's ``session_window``.
        max_events: it closes with this many events.
        max_duration: it lasts no longer than this: an event later than that after the first one
            starts the next session.
        time: the column of the events' time (TIMESTAMP, with ``withWatermark``). Without it,
            processing time.
        order_by: as for ``count_window``.
        aggregates: as for ``count_window``.
        trigger: early results of a session that is open.
        name: under this name the query's progress counts ``window``, ``early`` and ``late``
            (``observedMetrics``).

    At least one of ``gap``, ``max_events`` and ``max_duration`` is needed; a session that only a
    number of events closes may stay open for ever. With ``max_events`` and ``max_duration`` and no
    gap it is what is called a window by count or time: a result after so many events, or so long
    after the first one.

    Returns:
        The columns of ``count_window``. ``window_start`` is the time of the first event;
        ``window_end`` is the last event's time and the gap (``closed_by`` is ``gap``), the first
        event's time and the longest duration (``duration``), or the last event's time (``count``).
        ``window_index`` is 0, and counts on for sessions of a key that start at the same time, so
        that key, ``window_start``, ``window_index`` and ``revision`` identify a result.

    Raises:
        OptionError: no limit is given, one is not positive, or the trigger or an aggregate's name
            does not fit.
        SchemaError: a column is missing or has a type that does not fit.
        UnsupportedQueryError: the frame is not streaming, the state store is not RocksDB, or the
            time column has no watermark.
        MissingExtraError: protobuf is not installed.

    A key whose session has closed, and for which no event waits, leaves nothing in the state store.
    """
    if gap is None and max_events is None and max_duration is None:
        raise OptionError(
            "session_window needs gap=, max_events= or max_duration=: nothing would ever close a "
            "session."
        )
    events, every = checks.trigger_of(trigger)
    rules = SequentialRules(
        events=positive(max_events, "max_events"),
        gap_us=micros(gap, "gap"),
        duration_us=micros(max_duration, "max_duration"),
        early_events=events,
        early_us=every,
    )
    return operator.windows(frame, "session_window", rules, key, time, order_by, aggregates, name)
