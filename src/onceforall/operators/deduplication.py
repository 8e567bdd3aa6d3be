"""Deduplication: of all rows with one id that come within a horizon, one stays, with state that is
bounded.

Two ways, by what becomes of a row that comes too late to be judged:

- ``late="drop"`` is Spark's own ``dropDuplicatesWithinWatermark``: fast, in the JVM, on any state
  store. It keeps *the row of an id that a task reads first*, and which one that is among several of
  one batch may differ in a replay; so rows of one id should be alike (leave out what differs
  between copies, such as Kafka's offset). Late rows are dropped; Spark counts them, with others, as
  ``numRowsDroppedByWatermark`` in the query's progress.
- ``late="keep"`` says of each row what it is, in a column: ``unique``, ``duplicate`` or ``late``;
  nothing is dropped. Which row of a batch is the unique one is decided by its time and content, so
  it is the same on every replay. It is made on ``transformWithState``, in Python, so it costs more
  per id.

Both take a row for late whose time the watermark has reached: it is behind the newest one of the
batches before by the horizon or more. They remember an id until the end of the first batch whose
watermark is a horizon past its row. So two rows of one id are found out if their times are no
further apart than the horizon, and the second one isn't late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from onceforall.common import arguments
from onceforall.errors import OptionError, SchemaError, UnsupportedQueryError
from onceforall.operators import _checks as checks
from onceforall.operators import _clocks as clocks
from onceforall.operators import _columns as columns
from onceforall.operators import _signatures as signatures
from onceforall.operators.triggers import Duration, micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onceforall.operators._keyed import Step

STATUS = "deduplication"
"""The column that says what a row is, with ``late="keep"``: ``unique``, ``duplicate`` or
``late``."""


def deduplicate(
    frame: DataFrame,
    id: str | Sequence[str],  # noqa: A002  what it is
    event_time: str,
    horizon: Duration,
    *,
    late: Literal["drop", "keep"] = "drop",
) -> DataFrame:
    """Return one row of each id.

    Args:
        frame: streaming, without a watermark: this operator sets it.
        id: the column, or columns, that say which record a row is; ``record_id`` makes one. Rows
            with a null in it are one record. It stays the same while there is a checkpoint, and
            so does `event_time`: with ``"keep"`` another one is refused when it meets an id that is
            remembered, with ``"drop"`` the ids of the old columns count as those of the new ones.
        event_time: a TIMESTAMP column, never null: with ``late="keep"`` a row without a time is
            ``late`` or a duplicate, with ``"drop"`` its copies are found out within its batch only.
            Spark drops rows at 1970-01-01T00:00:00Z and before with ``"drop"``, whatever the
            horizon is.
        horizon: a row that is behind the newest one by less than this is not late, and copies are
            found out that lie no further apart; ``"1 hour"`` or a ``timedelta``. The state holds
            the ids of about two horizons. Spark's watermark has milliseconds, to which it is
            rounded up. It may change at a restart; with ``"drop"`` an id that is remembered stays
            so for the old one.
        late: ``"drop"`` or ``"keep"``; see the module.

    Returns:
        A streaming frame for output mode append, with the columns of `frame`, and with
        ``late="keep"`` the column ``deduplication`` besides. Behind ``"drop"`` its watermark is
        that of `event_time`, `horizon` behind; behind ``"keep"`` it has none.

    Raises:
        OptionError: `late` or `horizon` can't be, or with ``"keep"`` there is a column
            ``deduplication`` already.
        SchemaError: a column is missing, or of a type that doesn't fit.
        UnsupportedQueryError: the frame isn't streaming, has a watermark, or, for ``"keep"``, the
            session's state store is not RocksDB.
        MissingExtraError: protobuf is not installed, for ``"keep"`` (extra ``operators``).
    """
    horizon_us = checks.given(
        micros(horizon, "horizon"),
        "horizon",
        "Give how long an id is known, such as '1 hour' or a timedelta.",
    )
    # Spark would cut it: then a row were late that is behind by less.
    horizon_us = -(-horizon_us // 1000) * 1000
    arguments.check_frame(frame, "deduplicate", or_connect=late == "drop")
    if not isinstance(late, str) or late not in {"drop", "keep"}:
        raise OptionError(f"late={arguments.shown(late)} is neither 'drop' nor 'keep'.")
    if not frame.isStreaming:
        raise UnsupportedQueryError(
            "deduplicate takes a streaming DataFrame (spark.readStream). For one that isn't, "
            "dropDuplicates does it."
        )
    ids = checks.columns_named(frame, id, "id")
    checks.check_key(frame, ids)
    if any("spark.watermarkDelayMs" in field.metadata for field in frame.schema.fields):
        raise UnsupportedQueryError(
            "deduplicate sets the watermark itself, by its horizon, and this frame has one "
            "already. Call withWatermark behind it, or not at all."
        )
    checks.check_hidden_watermark(
        frame,
        0,
        "deduplicate sets one itself: call it first, or leave withWatermark out before.",
    )
    arguments.text("event_time", event_time, "the name of a TIMESTAMP column")
    checks.columns_named(frame, event_time, "event_time")
    kind = frame.schema[event_time].dataType.simpleString()
    if kind != "timestamp":
        raise SchemaError(
            f"event_time: the column {event_time!r} is {kind}, not timestamp. Cast it before."
        )
    # Spark takes a plain `a.b` for the field of a struct.
    marked = frame.withWatermark(columns.quoted(event_time), f"{horizon_us} microseconds")
    return (
        marked.dropDuplicatesWithinWatermark(ids)
        if late == "drop"
        else _judged(marked, ids, event_time, horizon_us)
    )


def unique_rows(frame: DataFrame) -> DataFrame:
    """Return the rows that stay: what a sink takes as ``transform=``."""
    arguments.check_frame(frame, "unique_rows", or_connect=True)
    return frame.where(f"{STATUS} = 'unique'").drop(STATUS)


def late_duplicates(frame: DataFrame) -> DataFrame:
    """Return the rows that came too late to be judged."""
    arguments.check_frame(frame, "late_duplicates", or_connect=True)
    return frame.where(f"{STATUS} = 'late'").drop(STATUS)


@dataclass(frozen=True)
class DeduplicationRules:
    """The rule for one id, behind the glue of ``_keyed``: events are ``{"t": time}``; the state is
    the time of the row that stays and, behind a blank, the signature.

    The first batch that brings an id, not late, decides: the row with the smallest (time, content)
    stays.

    Attributes:
        horizon_us: how long, by the watermark, an id is remembered past its row, in microseconds.
        signature: that of the columns by which a row is judged; None: state of any others is taken.
    """

    horizon_us: int
    signature: int | None = None

    def take(
        self,
        state: str | None,
        events: Iterable[tuple[str, str]],
        watermark_us: int,
        timer_ms: int | None = None,
    ) -> Step:
        """Take a batch's rows of one id; see ``_keyed.Rules``. All of them must come in one
        call.
        """
        if state is not None and self._outlives(state, watermark_us, timer_ms):
            state = None
        timed = [(json.loads(event).get("t"), row) for event, row in events]
        in_time = sorted(
            (time, row) for time, row in timed if time is not None and time > watermark_us
        )
        others = sorted(row for time, row in timed if time is None or time <= watermark_us)
        if state is not None:
            return self._step(
                state, [("duplicate", row, None) for row in [*(row for _, row in in_time), *others]]
            )
        if not in_time:
            return self._step(None, [("late", row, None) for row in others])
        (first_us, first), *more = in_time
        copies = [*(row for _, row in more), *others]
        return self._step(
            str(first_us) if self.signature is None else f"{first_us} {self.signature}",
            [("unique", first, None), *(("duplicate", row, None) for row in copies)],
        )

    def due(self, state: str | None, watermark_us: int) -> Step:
        """Forget the id; see ``_keyed.Rules``."""
        over = state is None or self._wake_us(state) <= watermark_us
        return self._step(None if over else state, [])

    def _outlives(self, state: str, watermark_us: int, timer_ms: int | None) -> bool:
        """Tell whether only the timer of a longer horizon, before a restart, has kept an id."""
        wake_us = self._wake_us(state)
        return (
            timer_ms is not None and clocks.timer_ms(wake_us) < timer_ms and wake_us <= watermark_us
        )

    def _step(self, state: str | None, out: list[tuple[str, str, str | None]]) -> Step:
        from onceforall.operators._keyed import Step

        return Step(state, None if state is None else self._wake_us(state), out)

    def _wake_us(self, state: str) -> int:
        return self._time_of(state) + self.horizon_us

    def _time_of(self, state: str) -> int:
        time_us, _, kept = state.partition(" ")
        signatures.check(
            int(kept) if kept else None,
            self.signature,
            "deduplicate",
            "id or event_time, or of another type of one",
        )
        return int(time_us)


def _judged(frame: DataFrame, ids: Sequence[str], event_time: str, horizon_us: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

    from onceforall.operators._keyed import plain_schema, run

    checks.check_frame(frame, "deduplicate(late='keep')")
    for field in frame.schema.fields:
        columns.check_carried(field.dataType, f"The column {field.name!r}")
    if STATUS in {name.lower() for name in frame.columns}:
        raise OptionError(
            f"The frame has a column {STATUS!r}, which deduplicate() adds itself. Rename it before."
        )
    texts = run(
        frame.select(
            columns.key_text(frame, ids).alias("key"),
            columns.to_json(
                F.struct(F.unix_micros(F.col(columns.quoted(event_time))).alias("t"))
            ).alias("event"),
            columns.to_json(
                F.struct(*(F.col(columns.quoted(name)) for name in frame.columns))
            ).alias("row"),
        ),
        DeduplicationRules(
            horizon_us,
            signatures.signature(list(ids), columns.families(frame, ids), event_time),
        ),
    )
    parsed = texts.select(
        columns.from_json(F.col("row"), plain_schema(frame)).alias("r"),
        F.col("status").alias(STATUS),
    )
    return parsed.select(*(F.col("r").getField(name).alias(name) for name in frame.columns), STATUS)
