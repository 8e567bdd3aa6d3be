"""Reads back what a pipeline has written, as anybody would: topics at ``read_committed``, files
by their manifests, the table with SELECT.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from onceforall.demo import observe
from onceforall.demo.ads.jobs import DEAD_LETTERS, LATE, LEDGER, ONCEFORALL, TOPICS, Place
from onceforall.demo.outputs import connected
from onceforall.errors import SinkUnavailableError

TOPIC, FILES, TABLE = "topic", "files", "table"
DESTINATIONS = (TOPIC, FILES, TABLE)
_READ_ROWS = 20_000


def ledger_rows(place: Place, destination: str) -> Iterator[Any]:
    """Return the rows of the ledger in one of `DESTINATIONS`, in the form of `truth`; what can't be
    read comes as it is.

    Raises:
        SinkUnavailableError: the broker or the server does not answer.
        MissingExtraError: a package of the extra ``demo`` is not installed.
    """
    read = {TOPIC: _topic_rows, FILES: _file_rows, TABLE: _table_rows}[destination]
    return map(as_true_row, read(place))


def dead_letters(place: Place) -> list[Mapping[str, Any]]:
    """Return the dead letters."""
    return list(_json_rows(place, DEAD_LETTERS))


def late_ids(place: Place) -> list[str]:
    """Return the ids of the events that were put aside because they came hours late, as often as
    they are there.
    """
    return [str(row.get("event_id")) for row in _json_rows(place, LATE)]


def hidden_partitions(place: Place) -> dict[str, list[int]]:
    """Return, by topic, the partitions in which an open transaction hides records from readers
    at ``read_committed``.
    """
    found = {
        name: observe.hidden_partitions(place.servers, place.topic(name), partitions)
        for name, partitions in TOPICS.items()
    }
    return {name: hidden for name, hidden in found.items() if hidden}


def as_true_row(row: Any) -> Any:
    """Return a row in the form in which `truth` has it: moments as milliseconds, without nulls and
    without what only says where it lies.

    Day and hour stay where they don't fit the moment: such a row lies in the wrong place, and
    differs from the truth.
    """
    if not isinstance(row, Mapping):
        return row
    plain = {name: value for name, value in row.items() if value is not None}
    moment = _moment(plain.pop("happened", None))
    if moment is None:
        return plain
    plain["happened_ms"] = round(moment.timestamp() * 1000)
    place = (str(plain.get("day")), str(plain.get("hour")).zfill(2))
    if place == (f"{moment:%Y-%m-%d}", f"{moment:%H}"):
        del plain["day"], plain["hour"]
    return plain


def _moment(value: Any) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value.astimezone(timezone.utc) if isinstance(value, datetime) else None


def _topic_rows(place: Place) -> Iterator[Any]:
    return _json_rows(place, LEDGER)


def _json_rows(place: Place, topic: str) -> Iterator[Any]:
    return map(json.loads, observe.read_values(place.servers, place.topic(topic), TOPICS[topic]))


def _file_rows(place: Place) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.dataset as ds

    folder = place.folder / "ledger"
    if place.writer == ONCEFORALL:
        if not (folder / "_onceforall").is_dir():
            return
        from onceforall.sinks.files import read_files

        dataset = read_files(folder).dataset()
    elif not any(Path(folder).rglob("*.parquet")):
        return
    else:
        where = ds.partitioning(
            pa.schema([("day", pa.string()), ("hour", pa.string())]), flavor="hive"
        )
        dataset = ds.dataset(folder, format="parquet", partitioning=where)
    for batch in dataset.to_batches():
        yield from batch.to_pylist()


def _table_rows(place: Place) -> Iterable[Any]:
    import psycopg
    from psycopg.rows import dict_row

    with (
        connected(place.database) as connection,
        connection.transaction(),
        connection.cursor("rows", row_factory=dict_row) as cursor,
    ):
        cursor.itersize = _READ_ROWS
        try:
            cursor.execute("SELECT * FROM ledger")
        except psycopg.errors.UndefinedTable:
            return
        except psycopg.OperationalError as error:
            raise SinkUnavailableError(
                f"The table ledger can't be read: {error}. Start the demo again."
            ) from error
        yield from cursor
