"""The glue between Spark's ``transformWithState`` and rules of one key that know no Spark: one text
of state and one timer per key.

The rules are an object that can be pickled, with two methods (``Rules``). Per key, a batch costs
one read of the state, and one write where it has changed. Events and results are texts; see
``_columns``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType

from onceforall.operators import _clocks as clocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTPUT = StructType([StructField(name, StringType()) for name in ("status", "row", "other")])
_STATE = StructType([StructField("timer_ms", LongType()), StructField("json", StringType())])

Output = tuple[str, str, "str | None"]
"""A status, and up to two rows as texts."""


class Step(NamedTuple):
    """What the rules made of a key.

    Attributes:
        state: to be remembered; None: nothing.
        wake_us: the watermark, in microseconds, that ``due`` waits for; None: none.
        out: the results.
    """

    state: str | None
    wake_us: int | None
    out: Sequence[Output]


class Rules(Protocol):
    """What an operator does with one key."""

    def take(
        self,
        state: str | None,
        events: Iterable[tuple[str, str]],
        watermark_us: int,
        timer_ms: int | None = None,
    ) -> Step:
        """Take rows of one batch, in any order; a batch may bring a key's rows in several calls.

        Args:
            state: what the key's last step gave.
            events: (event, whole row), as texts.
            watermark_us: that of the batch, in microseconds; before all times while there is none.
            timer_ms: the watermark that the state waits for, in milliseconds. It is later than the
                rules would have it if they were others when it was set.
        """
        ...

    def due(self, state: str | None, watermark_us: int) -> Step:
        """Do what the watermark allows; called behind all ``take`` of a batch when it has
        reached ``wake_us``, or before.
        """
        ...


class KeyedProcessor(StatefulProcessor):
    """For ``transformWithState``: rows are ``pyspark.sql.Row``."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._state = handle.getValueState("state", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002  Spark's names
        """Take all rows of one key in this batch."""
        timer_ms, state = self._stored()
        return self._kept(
            timer_ms,
            state,
            self._rules.take(state, self._texts(rows), _watermark_us(timerValues), timer_ms),
            None,
        )

    def handleExpiredTimer(  # noqa: N802  Spark's names
        self,
        key: Any,  # noqa: ARG002
        timerValues: Any,  # noqa: N803  Spark's names
        expiredTimerInfo: Any,  # noqa: N803  Spark's names
    ) -> Iterator[Any]:
        """Let the watermark pass for one key."""
        timer_ms, state = self._stored()
        step = self._rules.due(state, _watermark_us(timerValues))
        return self._kept(timer_ms, state, step, expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _stored(self) -> tuple[int | None, str | None]:
        stored = self._state.get()
        return (None, None) if stored is None else (stored[0], stored[1])

    def _kept(
        self, timer_ms: int | None, state: str | None, step: Step, expired_ms: int | None
    ) -> Iterator[Any]:
        wake_ms = None if step.wake_us is None else clocks.timer_ms(step.wake_us)
        pending_ms = None if timer_ms == expired_ms else timer_ms
        if pending_ms is not None and wake_ms is not None and pending_ms <= wake_ms:
            # One that comes too early asks again, which is cheaper than to move it with each row.
            wake_ms = pending_ms
        if wake_ms != pending_ms:
            if pending_ms is not None:
                self._handle.deleteTimer(pending_ms)
            if wake_ms is not None:
                self._handle.registerTimer(wake_ms)
        if step.state is None:
            if state is not None:
                self._state.clear()
        elif (wake_ms, step.state) != (timer_ms, state):
            self._state.update((wake_ms, step.state))
        return self._output(step.out)

    def _texts(self, rows: Iterator[Any]) -> Iterable[tuple[str, str]]:
        return ((row["event"], row["row"]) for row in rows)

    def _output(self, out: Sequence[Output]) -> Iterator[Any]:
        return (Row(status=status, row=row, other=other) for status, row, other in out)


class PandasKeyedProcessor(KeyedProcessor):
    """The same for ``transformWithStateInPandas``, the only one that PySpark 4.0 has: rows come
    and go in pandas DataFrames.
    """

    def _texts(self, rows: Iterator[Any]) -> Iterable[tuple[str, str]]:
        for frame in rows:
            yield from zip(frame["event"], frame["row"], strict=True)

    def _output(self, out: Sequence[Output]) -> Iterator[Any]:
        import pandas as pd

        if out:
            yield pd.DataFrame(list(out), columns=["status", "row", "other"], dtype="object")


def run(prepared: DataFrame, rules: Rules) -> DataFrame:
    """Return the results of rules as a streaming frame with the columns of ``OUTPUT``.

    Args:
        prepared: with the columns ``key``, ``event`` and ``row``, all of them texts, and no column
            with Spark's mark of a watermark: by that mark Spark would drop late rows before the
            rules see them. The watermark itself lives in the plan.
        rules: what is done with each key.
    """
    grouped = prepared.groupBy("key")
    if hasattr(grouped, "transformWithState"):
        return grouped.transformWithState(KeyedProcessor(rules), OUTPUT, "Append", "EventTime")
    return grouped.transformWithStateInPandas(
        PandasKeyedProcessor(rules), OUTPUT, "Append", "EventTime"
    )


def plain_schema(frame: DataFrame) -> StructType:
    """Return a frame's schema without the marks on its columns: that of a watermark would come
    out with a column, and mean nothing there.
    """
    return StructType(
        [StructField(field.name, field.dataType, field.nullable) for field in frame.schema.fields]
    )


def _watermark_us(times: Any) -> int:
    return clocks.watermark_us(int(times.getCurrentWatermarkInMs()))
