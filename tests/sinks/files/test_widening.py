"""A column that became wider: what earlier files hold is read as it was written, by every
reader, in every format, at every depth."""

import itertools
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

import onceforall as ofa
from onceforall.sinks.files.driver.evolution import differences
from sinks.files.building import checked, commit
from sinks.files.plain_values import array_of, plain
from sinks.files.test_types import CELLS, FEW, ON_DISK, VALUES, WRITTEN, around

pytestmark = pytest.mark.spark

DECIMALS = {
    "DECIMAL(5, 2)": pa.decimal128(5, 2),
    "DECIMAL(20, 2)": pa.decimal128(20, 2),
    "DECIMAL(38, 2)": pa.decimal128(38, 2),
}
DRAWN = {
    "DECIMAL(5, 2)": [0, 1, -1, 99999, -99999],
    "DECIMAL(20, 2)": [10**20 - 1, -(10**20 - 1)],
    "DECIMAL(38, 2)": [10**38 - 1],
}
KINDS = {**WRITTEN, **DECIMALS}


def joins(one, other):
    """Tell whether a start passes a change of types in silence."""
    schemas = [
        from_arrow_schema(pa.schema([("c", kind)]), prefer_timestamp_ntz=True)
        for kind in (one, other)
    ]
    return not any(differences(*schemas))


PAIRS = [pair for pair in itertools.combinations(KINDS, 2) if joins(*(KINDS[ddl] for ddl in pair))]


def cell(ddl, form):
    return CELLS[ddl if ddl in WRITTEN else "DECIMAL(9, 2)", form]


def batch_of(pairs, which, values, form, first):
    """Return a batch in which each pair of types has its columns, with the values of one of the
    two."""
    columns = {}
    for i, pair in enumerate(pairs):
        ddl = pair[which]
        held = [
            v
            for v in values[ddl]
            if not cell(ddl, form).refuses(v) and not cell(ddl, form).unread(v)
        ]
        for name, kind, _ in around(None, KINDS[ddl], form):
            columns[f"{name}{i}"] = (
                kind,
                [
                    next(v for n, _, v in around(value, KINDS[ddl], form) if n == name)
                    for value in held
                ],
            )
    count = max(len(held) for _, held in columns.values())
    made = {
        name: array_of([*held, *[None] * (count - len(held))], kind)
        for name, (kind, held) in columns.items()
    }
    return pa.RecordBatch.from_pydict(
        {"n": pa.array(range(first, first + count), pa.int64()), **made}
    )


def readers(spark, folder):
    files = ofa.read_files(folder)
    yield "to_spark", lambda: files.to_spark(spark).toArrow()
    yield "to_arrow", files.to_arrow
    yield "dataset", lambda: files.dataset().to_table()


@pytest.mark.parametrize("form", ON_DISK)
@FEW
@given(drawn=VALUES, data=st.data())
@pytest.mark.sample(1)
def test_what_was_written_before_a_column_became_wider_is_read_as_it_was_written(
    spark, tmp_path, form, drawn, data
):
    pairs = [pair for pair in PAIRS if not any(cell(ddl, form).at_start for ddl in pair)]
    assert {("FLOAT", "DOUBLE"), ("INT", "BIGINT"), ("DECIMAL(5, 2)", "DECIMAL(38, 2)")} <= set(
        pairs
    )
    if data.draw(st.booleans(), label="narrower later"):
        pairs = [pair[::-1] for pair in pairs]
    folder, values = Path(tempfile.mkdtemp(dir=tmp_path)), {**drawn, **DRAWN}
    before = batch_of(pairs, 0, values, form, 0)
    now = batch_of(pairs, 1, values, form, before.num_rows)
    for batch, rows in enumerate((before, now)):
        commit(checked(folder, format=form), batch, rows)
    for name, read in readers(spark, folder):
        table = read().sort_by("n")
        for column in before.schema.names:
            wanted = plain(before.column(column)) + plain(now.column(column))
            wrong = [
                p
                for p in zip(wanted, plain(table.column(column)), strict=True)
                if repr(p[0]) != repr(p[1])
            ]
            pair = "" if column == "n" else pairs[int(column[1:])]
            assert not wrong, (
                f"{name} of {form}, {pair}, column {column}: {len(wrong)} of {len(wanted)}, as "
                f"{wrong[:3]}"
            )


@pytest.mark.parametrize("form", [form for form in ON_DISK if form != "csv"])
def test_a_struct_that_got_a_field_in_front_and_wider_ones_is_read_by_names(spark, tmp_path, form):
    decimal = {"d": pa.decimal128(5, 2)}, {"d": pa.decimal128(30, 2)}
    before = pa.struct([("f", pa.float32()), ("d", decimal[0]["d"]), ("i", pa.int32())])
    now = pa.struct(
        [("new", pa.string()), ("i", pa.int64()), ("d", decimal[1]["d"]), ("f", pa.float64())]
    )
    values = [(0.1, 150, 7), None], [("x", 1 << 40, 10**30 - 1, 0.1)]
    for batch, (kind, held) in enumerate(zip((before, now), values, strict=True)):
        each = {
            "s": (kind, held),
            "l": (pa.list_(kind), [[v, None] for v in held]),
            "m": (pa.map_(pa.string(), kind), [[(b"k", v)] for v in held]),
        }
        made = {name: array_of(rows, whole) for name, (whole, rows) in each.items()}
        commit(
            checked(tmp_path, format=form),
            batch,
            pa.RecordBatch.from_pydict(
                {"n": pa.array(range(2 * batch, 2 * batch + len(held)), pa.int64()), **made}
            ),
        )
    float_of = pa.scalar(0.1, pa.float32()).as_py()
    for name, read in readers(spark, tmp_path):
        found = read().sort_by("n").to_pylist()
        first = {"new": None, "i": 7, "f": float_of, "d": "1.50"}
        second = {"new": "x", "i": 1 << 40, "f": 0.1, "d": f"{10**28 - 1}.99"}
        for row, wanted in zip(found, (first, None, second), strict=True):
            told = row["s"], *row["l"][:1], dict(row["m"])["k"]
            assert [v and {**v, "d": str(v["d"])} for v in told] == [wanted] * 3, name
            assert row["l"][1] is None
