"""The glue between Spark's ``transformWithState`` and the core: reads the state, calls ``take``,
writes what changed.

State variables, all of them texts in JSON: ``head`` (one value per key), ``pending`` (a list:
events that wait for the watermark) and ``rows`` (a list: the rows of open windows, for ``Rows``).
To the lists is appended; only when something leaves them are they rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StringType, StructField, StructType

from onceforall.operators import _clocks as clocks
from onceforall.operators import _core as core
from onceforall.operators._events import Event, Log, read_event, to_text
from onceforall.operators._sequential import Result

OUTPUT = StructType([StructField(name, StringType()) for name in ("key", "result", "late")])
_TEXT = StructType([StructField("json", StringType())])


class WindowProcessor(StatefulProcessor):
    """Windows for ``transformWithState``: rows are ``pyspark.sql.Row``."""

    def __init__(self, spec: core.Spec, *, timed: bool) -> None:
        self._spec = spec
        self._timed = timed
        self._keeps_rows = any(column.fold == "rows" for column in spec.columns)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._head = handle.getValueState("head", _TEXT)
        self._lists: dict[str, Any] = {}
        if self._spec.event_time:
            self._lists["pending"] = handle.getListState("pending", _TEXT)
        if self._keeps_rows:
            self._lists["rows"] = handle.getListState("rows", _TEXT)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803  Spark's names
        """Take all rows of one key in this batch."""
        values = [column.value for column in self._spec.columns]
        events = [
            read_event(event, self._spec.order, values, row) for event, row in self._texts(rows)
        ]
        return self._step(key, events, timerValues, None)

    def handleExpiredTimer(  # noqa: N802  Spark's names
        self,
        key: Any,
        timerValues: Any,  # noqa: N803  Spark's names
        expiredTimerInfo: Any,  # noqa: N803  Spark's names
    ) -> Iterator[Any]:
        """Let time pass for one key."""
        return self._step(key, [], timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _step(
        self, key: Any, events: list[Event], times: Any, expired_ms: int | None
    ) -> Iterator[Any]:
        stored = self._head.get()
        head = None if stored is None else stored[0]
        logs = {name: Log(partial(_read, state)) for name, state in self._lists.items()}
        nothing = Log(tuple)
        outcome = core.take(
            self._spec,
            head,
            logs.get("pending", nothing),
            logs.get("rows", nothing),
            events,
            self._clock_us(events, times),
        )
        if outcome.head != head:
            if outcome.head is None:
                self._head.clear()
            else:
                self._head.update((outcome.head,))
        for name, log in logs.items():
            _write(self._lists[name], log)
        self._set_timer(core.timer_of(head), outcome.timer_ms, expired_ms)
        said = [(key[0], to_text(_fields(result)), None) for result in outcome.results]
        return self._output([*said, *((key[0], None, event.row) for event in outcome.late)])

    def _clock_us(self, events: list[Event], times: Any) -> int:
        if self._spec.event_time:
            return clocks.watermark_us(int(times.getCurrentWatermarkInMs()))
        if self._timed:
            return int(times.getCurrentProcessingTimeInMs()) * 1000
        return max(event.time_us or 0 for event in events)

    def _set_timer(self, old_ms: int | None, new_ms: int | None, expired_ms: int | None) -> None:
        """Set the key's one timer. The one that has just expired is Spark's to delete."""
        if not self._timed or old_ms == new_ms:
            return
        if old_ms is not None and old_ms != expired_ms:
            self._handle.deleteTimer(old_ms)
        if new_ms is not None:
            self._handle.registerTimer(new_ms)

    def _texts(self, rows: Iterator[Any]) -> Iterable[tuple[str, str]]:
        return ((row["event"], row["row"] or "") for row in rows)

    def _output(self, texts: list[tuple[str, str | None, str | None]]) -> Iterator[Any]:
        return (Row(key=key, result=result, late=late) for key, result, late in texts)


class PandasWindowProcessor(WindowProcessor):
    """The same for ``transformWithStateInPandas``, the only one that PySpark 4.0 has: rows come
    and go in pandas DataFrames.
    """

    def _texts(self, rows: Iterator[Any]) -> Iterable[tuple[str, str]]:
        for frame in rows:
            yield from (
                (event, row or "") for event, row in zip(frame["event"], frame["row"], strict=True)
            )

    def _output(self, texts: list[tuple[str, str | None, str | None]]) -> Iterator[Any]:
        import pandas as pd

        if texts:
            yield pd.DataFrame(texts, columns=["key", "result", "late"], dtype="object")


def _fields(result: Result) -> dict[str, Any]:
    """Return a result's JSON, with nulls left out; ``v0``, ``v1`` … are the aggregates."""
    fields = {
        "kind": result.kind,
        "index": result.index,
        "start": result.start_us,
        "end": result.end_us,
        "events": result.events,
        "revision": result.revision,
        "closed_by": result.closed_by,
        **{f"v{number}": value for number, value in enumerate(result.values)},
    }
    return {name: value for name, value in fields.items() if value is not None}


def _read(state: Any) -> list[str]:
    return [row[0] for row in state.get()]


def _write(state: Any, log: Log) -> None:
    if log.replaced and not log.added:
        state.clear()
    elif log.replaced:
        state.put([(text,) for text in log.added])
    elif log.added:
        state.appendList([(text,) for text in log.added])
