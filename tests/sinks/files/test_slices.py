"""Rows are written in slices, where a file or a row group is full: what is read is what was written,
whatever the slices are."""

import datetime as dt

import pyarrow as pa
import pytest

import onceforall as ofa
from onceforall.sinks.files.task import json_lines, writer
from sinks.files.building import attempt, checked, commit, numbers, permit

POINT = pa.struct([("x", pa.int64()), ("name", pa.string())])


def point(n, every):
    return None if n % every == 0 else {"x": n, "name": f"n{n}"}


COLUMNS = {
    "numbers": (pa.int32(), lambda n: None if n % 3 == 0 else n),
    "texts": (pa.string(), lambda n: None if n % 4 == 0 else f"text {n}"),
    "times": (
        pa.timestamp("us", "UTC"),
        lambda n: dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(seconds=n),
    ),
    "structs": (POINT, lambda n: point(n, 7)),
    "structs in structs": (
        pa.struct([("p", POINT), ("n", pa.int64())]),
        lambda n: None if n % 11 == 0 else {"p": point(n, 5), "n": n},
    ),
    "lists in structs": (
        pa.struct([("l", pa.list_(pa.int64())), ("n", pa.int64())]),
        lambda n: None if n % 7 == 0 else {"l": [n, None][: n % 3], "n": n},
    ),
    "lists": (pa.list_(pa.int64()), lambda n: None if n % 5 == 0 else list(range(n % 4))),
    "lists of structs": (
        pa.list_(POINT),
        lambda n: None if n % 5 == 0 else [point(n + k, 3) for k in range(n % 4)],
    ),
    "structs of lists of structs": (
        pa.struct([("l", pa.list_(POINT))]),
        lambda n: None if n % 7 == 0 else {"l": [point(n + k, 3) for k in range(n % 3)]},
    ),
    "maps of structs": (
        pa.map_(pa.string(), POINT),
        lambda n: None if n % 5 == 0 else [(f"k{k}", point(n + k, 3)) for k in range(n % 3)],
    ),
}


@pytest.mark.parametrize("form", ["parquet", "orc", "json"])
@pytest.mark.parametrize("column", COLUMNS)
def test_values_are_those_of_their_rows(tmp_path, form, column):
    kind, value = COLUMNS[column]
    rows = numbers(300, c=pa.array([value(n) for n in range(300)], kind))
    # A batch that begins inside of another one, as a filter may leave it.
    sliced = numbers(320, c=pa.array([value(n - 20) for n in range(320)], kind)).slice(20)
    for name, given in (("whole", rows), ("sliced", pa.record_batch(
        [pa.array(range(300), pa.int64()), sliced.column("c")], rows.schema.names
    ))):  # fmt: skip
        sink = checked(tmp_path / name, format=form, max_file_bytes=1000)
        commit(sink, 0, given)
        files = ofa.read_files(tmp_path / name)
        # An ORC file is longer than the limit: its first stripe is.
        assert len(files) > 1 or form == "orc", "nothing was sliced"
        found = files.to_arrow().sort_by("n")
        assert found.column("c").to_pylist() == rows.column("c").to_pylist()


def test_what_arrow_needs_beside_the_values_is_bounded_too(tmp_path, monkeypatch):
    """With many folders rows come one by one, and each costs ten times its bytes."""
    monkeypatch.setattr(writer, "MEMORY_BYTES", 2_000_000)
    sink = checked(tmp_path / "out", format="json", partition_by=["folder"])
    joined, parts = [], []
    join = writer.FileTransaction._join

    def recorded(self):
        before = self._parts
        join(self)
        joined.append((before, self._parts, len(self._heaps)))

    monkeypatch.setattr(writer.FileTransaction, "_join", recorded)
    take = writer.FileTransaction.write

    def counted(self, rows):
        take(self, rows)
        parts.append(self._parts)

    monkeypatch.setattr(writer.FileTransaction, "write", counted)
    folders = 100
    batches = [
        numbers(folders, first * folders, folder=pa.array(range(folders), pa.int32()))
        for first in range(30)
    ]
    transaction = sink.begin_transaction(attempt())
    for batch in batches:
        sink.invoke(transaction, batch)
    committable = sink.pre_commit(transaction)
    sink.commit(permit(), sink.confirm([committable]))
    assert joined
    assert all(after <= folders for _, after, _ in joined)
    assert max(parts) * 2 * writer.ARRAY_BYTES <= 2_000_000
    files = ofa.read_files(tmp_path / "out")
    assert len(files) == folders, "rows were written early, though joining made room"
    assert sorted(files.to_arrow().column("n").to_pylist()) == list(range(30 * folders))


FIELD = pa.field
X, XY = [FIELD("x", pa.int64())], [FIELD("x", pa.int64()), FIELD("y", pa.int64(), nullable=False)]


@pytest.mark.parametrize("form", ["parquet", "orc", "json"])
@pytest.mark.parametrize(
    ("before", "old", "after", "new"),
    [
        (pa.struct(X), {"x": 1}, pa.struct(XY), {"x": 1, "y": 2}),
        (pa.struct(XY), {"x": 1, "y": 2}, pa.struct(X), {"x": 1}),
        (pa.list_(pa.struct(X)), [{"x": 1}], pa.list_(pa.struct(XY)), [{"x": 1, "y": 2}]),
        (
            pa.map_(pa.string(), pa.struct(X)),
            [("k", {"x": 1})],
            pa.map_(pa.string(), pa.struct(XY)),
            [("k", {"x": 1, "y": 2})],
        ),
    ],
)
def test_a_field_that_can_not_be_null_may_come_and_go(tmp_path, form, before, old, after, new):
    """Spark makes them of literals, of coalesce(), and of current_date()."""
    sink = checked(tmp_path / "out", format=form)
    for batch, (kind, value) in enumerate(((before, old), (after, new))):
        schema = pa.schema([("n", pa.int64()), FIELD("c", kind, nullable=False)])
        columns = [pa.array([batch]), pa.array([value], kind)]
        commit(sink, batch, pa.RecordBatch.from_arrays(columns, schema=schema))
    table = ofa.read_files(tmp_path / "out").to_arrow().sort_by("n")
    assert [without_nulls(value) for value in table.column("c").to_pylist()] == [old, new]


def test_a_column_that_can_not_be_null_and_came_later_is_null_before(tmp_path):
    sink = checked(tmp_path / "out")
    commit(sink, 0, numbers(1))
    schema = pa.schema([("n", pa.int64()), FIELD("source", pa.string(), nullable=False)])
    commit(sink, 1, pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["web"])], schema=schema))
    files = ofa.read_files(tmp_path / "out")
    assert files.schema.field("source").nullable
    table = files.to_arrow().sort_by("n")
    assert table.column("source").to_pylist() == [None, "web"]
    table.validate(full=True)
    assert all(field.nullable for field in table.schema)


def without_nulls(value):
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return (value[0], without_nulls(value[1])) if isinstance(value, tuple) else value


ENTRIES = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())])


@pytest.mark.parametrize("kind", ["lists", "maps"])
def test_of_a_slice_nothing_is_encoded_but_what_is_in_it(monkeypatch, kind):
    """A large batch of Spark's is encoded in slices: the time went with the square of its rows."""
    encoded = []
    monkeypatch.setattr(json_lines, "_scalar", lambda value: encoded.append(value) or str(value))
    values = [[n, n] if kind == "lists" else [(f"k{n}", n)] for n in range(100)]
    type_ = pa.list_(pa.int64()) if kind == "lists" else pa.map_(pa.string(), pa.int64())
    rows = pa.RecordBatch.from_arrays([pa.array(values, type_)], ["v"]).slice(40, 3)
    lines = json_lines.encoded(rows, ignore_null_fields=True).splitlines()
    assert len(encoded) == 6
    assert lines[0] == (b'{"v":[40,40]}' if kind == "lists" else b'{"v":{"k40":40}}')


@pytest.mark.parametrize("type_", [pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())], ids=str)
def test_no_rows_need_no_offsets(type_):
    """Arrow lets a column without rows have none, and what stands there is another's memory."""
    others = pa.array([-7, -7], pa.int32()).buffers()[1]
    inner = pa.array([], type_.value_type if pa.types.is_list(type_) else ENTRIES)
    column = type(pa.array([], type_)).from_buffers(type_, 0, [None, others], children=[inner])
    rows = pa.RecordBatch.from_arrays([column], ["v"])
    assert json_lines.encoded(rows, ignore_null_fields=True) == b""
