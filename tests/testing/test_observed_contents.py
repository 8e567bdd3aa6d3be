"""Observers on real servers read what rows bear besides id and key, as ``contents_of`` writes it;
one changed value, header, timestamp or partition is found in each kind of sink."""

from __future__ import annotations

import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import confluent_kafka as ck
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onceforall.protocol.history import CommitPermit
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.sinks.files import FileSink
from onceforall.testing.checker import UniformTruth, check_quiet, contents_of, findings
from onceforall.testing.observers import FileObserver, KafkaObserver, PostgresObserver

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

ROWS = 20
QUERY = "7f000001-0000-4000-8000-000000000001"
START = datetime(2026, 11, 26, 7, 0, 0, 123456, tzinfo=timezone.utc)


def columns(ids):
    """A value of each type for each id, with nulls here and there."""
    return {
        "note": [None if n % 7 == 3 else f'ü☃𝄞 "{n}"\t\\\n' for n in ids],
        "price": [None if n % 5 == 4 else Decimal(n * 125) / 10_000 for n in ids],
        "at": [START + timedelta(seconds=n, microseconds=n) for n in ids],
        "local": [None if n == 6 else datetime(1999, 12, 31, 23, n, 59, n) for n in ids],  # noqa: DTZ001
        "day": [date(1900 + n, 2, 3) for n in ids],
        "raw": [None if n % 11 == 5 else n.to_bytes(8, "big") for n in ids],
        "ratio": [n / 3 if n else -0.0 for n in ids],
        "few": [None if n == 2 else float(np.float32(n / 3)) for n in ids],
        "flag": [None if n % 13 == 7 else n % 3 == 0 for n in ids],
        "number": [n * 10**12 for n in ids],
    }


def contents(ids):
    return contents_of(list(columns(ids.tolist()).values()))


NAMES = tuple(columns([0]))
TRUTH = UniformTruth(ROWS, contents=contents)
OTHER = {
    "note": "another",
    "price": Decimal("0.0001"),
    "at": START + timedelta(hours=1, microseconds=1),
    "local": datetime(2026, 1, 1),  # noqa: DTZ001
    "day": date(2026, 1, 1),
    "raw": b"\0",
    "ratio": 0.1,
    "few": 0.5,
    "flag": True,
    "number": 7,
}
CHANGED = 1
"""The row of which a value is changed; none of its own values is null, or one of ``OTHER``."""


def found_in(rows, truth=TRUTH):
    return check_quiet(truth, {"out": rows}, range(1))


# --- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture(params=["UTC", "Asia/Kolkata"])
def filled(database, request):
    """A table of every type in a database with a time zone, a form of dates and of bytes of its
    own, and a connection to it."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as connection:
        for setting in (
            f"timezone TO '{request.param}'",
            "datestyle TO 'German'",
            "bytea_output TO 'escape'",
            "extra_float_digits TO -5",
        ):
            connection.execute(f'ALTER DATABASE "{name}" SET {setting}')
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE out (key text, value text, note text, price numeric(20,6), at timestamptz, "
            "local timestamp, day date, raw bytea, ratio double precision, few real, flag boolean, "
            "number bigint)"
        )
        for row in zip(range(ROWS), *columns(range(ROWS)).values(), strict=True):
            connection.execute(
                f"INSERT INTO out VALUES ('k', %s{', %s' * len(NAMES)})", (str(row[0]), *row[1:])
            )
        yield database, connection


@pytest.mark.parametrize("ids", ["numbers", "texts"])
def test_a_table_has_the_contents_that_were_written(filled, ids):
    database, _ = filled
    observer = PostgresObserver(database, "out", content=NAMES, key_column=None, ids=ids)
    rows = observer.rows()
    numbers = rows.ids.astype(np.int64)
    assert rows.contents.tolist() == contents(numbers).tolist()
    assert sorted(numbers.tolist()) == list(range(ROWS))


def test_a_changed_value_of_any_column_of_a_table_is_reported(filled):
    database, connection = filled
    observer = PostgresObserver(database, "out", content=NAMES, key_column=None)
    for name, values in columns([CHANGED]).items():
        update = sql.SQL("UPDATE out SET {} = %s WHERE value = %s").format(sql.Identifier(name))
        for value in (None, OTHER[name]):
            connection.execute(update, (value, str(CHANGED)))
            report = found_in(observer.rows())
            assert report.kinds() == {findings.WRONG_VALUE}, (name, value)
            assert f"ids {CHANGED}" in str(report.violations[0])
        connection.execute(update, (values[0], str(CHANGED)))
        assert found_in(observer.rows()).ok


@pytest.mark.parametrize("name", [name for name in NAMES if name != "note"])
def test_a_column_that_became_text_is_reported(filled, name):
    database, connection = filled
    connection.execute(f"ALTER TABLE out ALTER {name} TYPE text")
    observer = PostgresObserver(database, "out", content=NAMES, key_column=None)
    report = found_in(observer.rows())
    nulls = columns(range(ROWS))[name].count(None)
    assert report.kinds() == {findings.WRONG_VALUE}
    assert report.sinks["out"].changed == ROWS - nulls


def test_an_empty_table_and_infinite_dates_can_be_read(filled):
    database, connection = filled
    observer = PostgresObserver(database, "out", content=NAMES, key_column=None)
    connection.execute("UPDATE out SET at = 'infinity' WHERE value = '3'")
    assert found_in(observer.rows()).sinks["out"].changed == 1
    connection.execute("TRUNCATE out")
    assert len(observer.rows()) == 0


# --- files ----------------------------------------------------------------------------------------


def written(path, format_, changed=None, swapped=(), texts=None, **more):
    """A folder of ``FileSink`` with one batch of which one value is another one."""
    sink = FileSink(path, format=format_)
    sink.check(StartInfo(QUERY, "files"))
    values = columns(range(ROWS)) | (texts or {})
    if changed is not None:
        values[changed][CHANGED] = OTHER[changed]
    ids = list(range(ROWS))
    for one, other in swapped:
        ids[one], ids[other] = other, one
    values = {name: [column[n] for n in ids] for name, column in values.items()}
    types = {
        "price": pa.decimal128(20, 6),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "few": pa.float32(),
        "labels": pa.map_(pa.string(), pa.list_(pa.int64())),
    }
    arrays = {"value": pa.array([str(n) for n in ids])}
    arrays |= {name: pa.array(column, types.get(name)) for name, column in values.items()}
    transaction = sink.begin_transaction(TaskAttempt(QUERY, "files", 0, 0, 0, 0, 0))
    sink.invoke(transaction, pa.RecordBatch.from_pydict(arrays))
    sink.commit(CommitPermit(0, 1, 0), sink.confirm([sink.pre_commit(transaction)]))
    return FileObserver(path, key_column=None, content=NAMES, **more)


@pytest.mark.parametrize("format_", ["json", "parquet", "orc"])
def test_files_have_the_contents_that_were_written(tmp_path, format_):
    rows = written(tmp_path, format_).rows()
    assert rows.contents.tolist() == contents(rows.ids).tolist()
    assert found_in(rows).ok


@pytest.mark.parametrize("format_", ["json", "parquet", "orc"])
def test_a_map_in_a_file_is_the_map_that_was_written(tmp_path, format_):
    labels = [{"b": [n], "a": []} if n % 3 else None for n in range(ROWS)]
    written(tmp_path, format_, texts={"labels": labels})
    found = FileObserver(tmp_path, key_column=None, content=["labels"]).rows().contents
    assert found.tolist() == contents_of([labels]).tolist()


@pytest.mark.parametrize("name", ["number", "flag", "day"])
def test_a_column_of_a_file_that_became_text_is_reported(tmp_path, name):
    texts = [None if each is None else str(each).lower() for each in columns(range(ROWS))[name]]
    report = found_in(written(tmp_path, "parquet", texts={name: texts}).rows())
    assert report.kinds() == {findings.WRONG_VALUE}
    assert report.sinks["out"].changed == ROWS - texts.count(None)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_value_in_a_file_is_reported(tmp_path, name):
    report = found_in(written(tmp_path, "json", name).rows())
    assert report.kinds() == {findings.WRONG_VALUE}
    assert f"ids {CHANGED}" in str(report.violations[0])


def test_rows_of_a_file_in_another_order_are_reported_where_order_is_looked_at(tmp_path):
    truth = UniformTruth(ROWS, keys=5, tasks=1, contents=contents)
    assert found_in(written(tmp_path / "right", "parquet", ordered=True).rows(), truth).ok
    # 3 and 13 are of one key, 4 is of another.
    other_keys = written(tmp_path / "other", "parquet", swapped=[(3, 4)], ordered=True)
    assert found_in(other_keys.rows(), truth).ok
    wrong = written(tmp_path / "wrong", "parquet", swapped=[(3, 13)], ordered=True)
    assert found_in(wrong.rows(), truth).kinds() == {findings.MISORDERED}
    assert found_in(written(tmp_path / "not", "parquet", swapped=[(3, 13)]).rows()).ok


def test_a_folder_without_rows_has_no_contents(tmp_path):
    assert len(FileObserver(tmp_path, content=NAMES).rows()) == 0


# --- Kafka ----------------------------------------------------------------------------------------


def headers(n):
    return [] if n % 5 == 4 else [("a", n.to_bytes(8, "big")), ("a", None), ("b", "ü☃".encode())]


def timestamp_ms(n):
    return int(START.timestamp() * 1000) + n * 1003


def record_contents(ids):
    ns = ids.tolist()
    return contents_of(
        [[headers(n) for n in ns], [timestamp_ms(n) for n in ns], [n % 2 for n in ns]]
    )


RECORDS = UniformTruth(ROWS, contents=record_contents)
CONTENT = ("headers", "timestamp", "partition")


@pytest.fixture
def records(broker, topic):
    """Write a batch, with changes of one record, and return what an observer finds."""
    name = topic(partitions=2)

    def write_and_read(content=CONTENT, **changes):
        producer = ck.Producer({"bootstrap.servers": broker.bootstrap_servers})
        for n in range(ROWS):
            record = {"headers": headers(n), "timestamp": timestamp_ms(n), "partition": n % 2}
            record |= changes if n == CHANGED else {}
            producer.produce(name, str(n), **record)
        assert producer.flush(20) == 0
        observer = KafkaObserver(broker.bootstrap_servers, name, keys=None, content=content)
        rows = observer.rows()
        observer.close()
        return rows

    return write_and_read


def test_a_topic_has_the_contents_that_were_written(records):
    rows = records()
    assert found_in(rows, RECORDS).ok
    assert rows.contents.tolist() == record_contents(rows.ids).tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"headers": [*headers(CHANGED), ("c", b"")]},
        {"headers": headers(CHANGED)[:-1]},
        {"headers": []},
        {"headers": headers(CHANGED)[::-1]},
        {"headers": [("a", CHANGED.to_bytes(8, "big")), ("a", b""), ("b", "ü☃".encode())]},
        {"timestamp": timestamp_ms(CHANGED) + 1},
        {"partition": 0},
    ],
    ids=["one more header", "one header less", "no headers", "in another order",
         "empty and not null", "timestamp", "partition"],
)  # fmt: skip
def test_a_changed_header_timestamp_or_partition_is_reported(records, change):
    report = found_in(records(**change), RECORDS)
    assert report.kinds() == {findings.WRONG_VALUE}
    assert f"ids {CHANGED}" in str(report.violations[0])


def test_only_what_is_asked_for_is_a_records_content(records):
    truth = UniformTruth(
        ROWS, contents=lambda ids: contents_of([[headers(n) for n in ids.tolist()]])
    )
    assert found_in(records(content=["headers"], timestamp=1000, partition=0), truth).ok
    with pytest.raises(ValueError, match="headers, timestamp, partition"):
        KafkaObserver("127.0.0.1:9", str(uuid.uuid4()), content=["value"])
