"""A reader beside the job: it looks again and again at files and tables, and notes how many rows
each batch has there.

A batch that is committed as a whole is either not there or there with all its rows. When the run
has ended it is known how many these are, and so which looks saw a part. (The topic is left out: the
transactions of a batch end one after the other there, and a reader who polls would have to read
everything each time.)
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from onceforall.demo.outputs import Output, connected, data_files
from onceforall.demo.truth import Batches

if TYPE_CHECKING:
    import psycopg
    from typing_extensions import Self

WATCHED = ("files", "postgres")
_PAUSE_S = 0.2
# It shall not take the processors from those whom it looks at.
_PAUSES_PER_LOOK = 10

Look = Callable[[], Mapping[int, int]]
"""Returns the number of rows by batch that a reader finds now; batches that are too old to
change may be left out."""


@dataclass(frozen=True)
class Seen:
    """What a reader of one sink saw.

    Attributes:
        reads: how often it found something.
        partial_batches: how many batches it ever saw a part of.
    """

    reads: int
    partial_batches: int

    def as_dict(self) -> dict[str, int]:
        """Return the numbers for the report."""
        return asdict(self)


class Onlooker:
    """Looks in a thread of its own.

    Use it as a context manager; `seen` tells afterwards what it saw.
    """

    def __init__(self, looks: Mapping[tuple[str, str], Look], pause_s: float = _PAUSE_S) -> None:
        """Take how to look at each (sink, query), and how long to pause after a round at least,
        in seconds.
        """
        self._looks = looks
        self._pause_s = pause_s
        self._counts: dict[tuple[str, str], set[tuple[int, int]]] = {
            place: set() for place in looks
        }
        self._reads = dict.fromkeys(looks, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._go_on, name="onceforall-demo-onlooker", daemon=True
        )
        self.rounds = 0
        """How often it has looked at everything."""
        self.failure: Exception | None = None
        """What ended the looking early, for example a file that is named in a manifest and not
        there."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _go_on(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                for place, look in self._looks.items():
                    found = look()
                    self._counts[place].update(found.items())
                    self._reads[place] += bool(found)
                self.rounds += 1
                self._stop.wait(max(self._pause_s, _PAUSES_PER_LOOK * (time.monotonic() - began)))
        except Exception as error:  # noqa: BLE001  the report says it
            self.failure = error

    def seen(self, final: Mapping[tuple[str, str], Batches]) -> dict[str, Seen]:
        """Compare what was seen with what there is in the end.

        Args:
            final: by (sink, query).

        Returns:
            By sink.
        """
        result: dict[str, Seen] = {}
        for place, counts in self._counts.items():
            before = result.get(place[0], Seen(0, 0))
            torn = {batch for batch, rows in counts if is_partial(final[place], batch, rows)}
            result[place[0]] = Seen(
                before.reads + self._reads[place], before.partial_batches + len(torn)
            )
        return result


def is_partial(final: Batches, batch: int, rows: int) -> bool:
    """Tell whether so many rows are a part of a batch.

    One that was wholly doubled in the end had been whole before.
    """
    whole = final.get(batch)
    return whole is None or rows > whole.total() or rows % len(whole) != 0


@contextlib.contextmanager
def looks_at(outputs: Mapping[str, Output]) -> Iterator[dict[tuple[str, str], Look]]:
    """Return how to look at the files and tables of these outputs, by query."""
    tables = {query: _TableLook(output) for query, output in outputs.items()}
    looks: dict[tuple[str, str], Look] = {}
    for query, output in outputs.items():
        looks["files", query] = _FileLook(output)
        looks["postgres", query] = tables[query]
    try:
        yield looks
    finally:
        for table in tables.values():
            table.close()


class _FileLook:
    """Counts by the files' own footers.

    A file is of one batch and never changes: each is opened once.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._known: dict[str, tuple[int, int]] = {}

    def __call__(self) -> Mapping[int, int]:
        import pyarrow.parquet as pq

        counts: dict[int, int] = {}
        for path in data_files(self._output):
            if path not in self._known:
                footer = pq.read_metadata(path)
                self._known[path] = _batch_of(footer), footer.num_rows
            batch, rows = self._known[path]
            counts[batch] = counts.get(batch, 0) + rows
        return counts


def _batch_of(footer: Any) -> int:
    column = footer.schema.to_arrow_schema().names.index("batch")
    return int(footer.row_group(0).column(column).statistics.min)


class _TableLook:
    """Counts the newest batches in one statement, which sees one moment of the table."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._connection: psycopg.Connection[Any] | None = None
        self._is_there = False
        self._newest = 0

    def __call__(self) -> Mapping[int, int]:
        from psycopg import sql

        connection = self._connection = self._connection or connected(self._output.database)
        if not self._is_there:
            row = connection.execute(
                "SELECT pg_catalog.to_regclass(pg_catalog.quote_ident(%s)) IS NOT NULL",
                [self._output.table],
            ).fetchone()
            self._is_there = row is not None and bool(row[0])
            if not self._is_there:
                return {}
        table = sql.Identifier(self._output.table)
        query = sql.SQL(
            "SELECT batch, pg_catalog.count(*) FROM {} WHERE batch OPERATOR(pg_catalog.>=) %s "
            "GROUP BY batch"
        ).format(table)
        found = dict(connection.execute(query, [self._newest]).fetchall())
        self._newest = max(found, default=self._newest)
        return found

    def close(self) -> None:
        """Let go of the server."""
        if self._connection is not None:
            self._connection.close()
