"""What Spark asks of a source whose positions live in its offsets, whatever it reads from.

How a batch comes to be:

1. Spark asks the reader, which lives in one process beside the driver, where the batch ends
   (`latestOffset`). The reader looks as far as the batch may go (a `Planner`).
2. Spark writes the end into its offset log. From then on the batch is fixed.
3. Spark asks for the partitions between start and end. Tasks read them, now and in each replay.

Nothing is stored anywhere else. What the reader keeps in memory saves requests, and may be lost at
any time.

**The first batch.** Spark doesn't store where a query begins; when it replays the first batch after
a restart, it asks again. So the beginning is a constant, and the first end carries where each part
began. That end is given out even when there is nothing yet: LATEST is the moment at which the query
was started first.

**Spark's versions.** From 4.2 on Spark says where the batch begins, and what limits it. Before, it
calls ``latestOffset()`` without either, and the reader starts from the last end that it heard of by
``partitions(start, end)``: Spark calls that for each batch, and at a restart with the checkpoint's
last end as both. There a query with ``availableNow`` reads one batch, for Spark asks for one end.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from onceforall.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # pyspark before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for pyspark's."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment,misc]

_MANY_ROWS = 2**62


def check_schema(source: str, columns: str, given: StructType) -> None:
    """See that a query hasn't given a source other columns than it has: rows are handed over by
    place, so some of Spark's versions would call one column's values another's.

    Args:
        source: its name.
        columns: what it has, as ``name TYPE, …``.
        given: what Spark says that it has.

    Raises:
        OptionError: the query has.
    """
    said = ", ".join(f"{one.name} {_type_name(one.dataType)}" for one in given.fields)
    if said != columns.replace("TIMESTAMP_LTZ", "TIMESTAMP"):
        raise OptionError(
            f"The source {source} was given the schema {said}, and has other columns. Leave "
            "schema(…) out, and select and cast the columns behind load()."
        )


def _type_name(found: DataType) -> str:
    # With a collation a text is the same.
    return found.simpleString().partition(" collate ")[0].upper()


@dataclass(frozen=True)
class Limits:
    """How far a batch may go: about so many rows, bytes and seconds; None: as far as there is
    something. Each part of the source gives at least one record.
    """

    rows: int | None = None
    size: int | None = None
    seconds: float | None = None


class AnyOffset(Protocol):
    """How far a query has read."""

    def to_json(self) -> dict[str, Any]:
        """Return Spark's offset."""


O = TypeVar("O", bound=AnyOffset)  # noqa: E741
U = TypeVar("U")


class Planner(Protocol[O, U]):
    """Plans the batches of one query."""

    def now(self) -> U:
        """Return the moment up to which a query with ``availableNow`` reads."""

    def plan(self, start: O, limits: Limits, until: U | None = None) -> O:
        """Return where a batch ends; the start itself when there is nothing new."""

    def close(self) -> None:
        """Release what it holds."""


class OffsetReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[O, U]):
    """Plans a query's batches; what it plans with and from is its subclass's.

    ``_options`` is all that a task's copy has.
    """

    def __init__(self, options: Any) -> None:
        self._options = options
        self._planner: Any = None
        self._heard: Mapping[str, Any] | None = None
        self._until: U | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task needs: it has no planner."""
        return {"_options": self._options, "_planner": None, "_heard": None, "_until": None}

    @abc.abstractmethod
    def _new_planner(self) -> Planner[O, U]:
        """Return what plans."""

    @abc.abstractmethod
    def _limits(self) -> Limits:
        """Return what limits a batch."""

    @abc.abstractmethod
    def _offset(self, found: Mapping[str, Any]) -> O:
        """Read Spark's offset."""

    @abc.abstractmethod
    def _beginning(self) -> O:
        """Return the beginning of any query."""

    @abc.abstractmethod
    def _parts(self, start: O, end: O) -> list[InputPartition]:
        """Return the parts of a batch."""

    def _planning(self) -> Planner[O, U]:
        if self._planner is None:
            self._planner = self._new_planner()
        planner: Planner[O, U] = self._planner
        return planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the beginning of any query."""
        return self._beginning().to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return that a batch has a limit, or Spark would ask for all that there is."""
        return ReadMaxRows(self._limits().rows or _MANY_ROWS)

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return where the next batch ends.

        Args:
            start: where it begins; None: where the last one ended that Spark has told of.
            limit: Spark's.

        Raises:
            DataLossError: records between here and what is there may be gone.
            SourceError: the source refuses, or doesn't answer.
        """
        begun = start if start is not None else self._heard or self.initialOffset()
        limits, until = self._limits(), self._until
        if limit is not None and isinstance(limit, ReadAllAvailable):
            # All that is there now: what is written while it is read would never end.
            limits, until = Limits(), until or self._planning().now()
        offset = self._offset(begun)
        end = self._planning().plan(offset, limits, until)
        return dict(begun) if end is offset else end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the moment up to which the query is to read."""
        self._until = self._planning().now()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the parts of a batch.

        Args:
            start: where it begins.
            end: where it ends.

        Raises:
            SourceError: they don't belong together.
        """
        self._heard = end
        return self._parts(self._offset(start), self._offset(end))

    def stop(self) -> None:
        """Release what planning holds."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None
