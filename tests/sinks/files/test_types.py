"""Each format, type and reader: what is read is what was written, over all that Spark can hold, or
the value is refused by name before the decision.

``type_table`` says which; the same table is drawn into the page on files.
"""

import functools
import itertools
import math
import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import from_arrow_schema

import onceforall as ofa
from onceforall.errors import RefusedRecordError, SchemaError
from onceforall.sinks.files import FileSink
from onceforall.sinks.files.task.formats import COMPRESSIONS
from sinks.files.building import attempt, checked, left_in_staging, permit
from sinks.files.plain_values import array_of, plain
from sinks.files.type_table import ARROW, CSV_NULL, DAY, FORMATS, ROWS, SPARK, SPARK_ALONE

pytestmark = pytest.mark.spark

ON_DISK = [form for form in FORMATS if form != "path"]
WRITTEN = {ddl: kind for row in ROWS for ddl, kind in row.members.items() if kind is not None}
CELLS = {
    (ddl, form): cell for row in ROWS for ddl in row.members for form, cell in row.cells.items()
}
INT64 = 1 << 63


@pytest.fixture(scope="module")
def spark(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


# --- values ---------------------------------------------------------------------------------------

_DAYS = [
    0, -1, 1, 20_778, -719_162, -719_163, -719_528, -719_529, -141_427, -141_428, 2_932_896, 2_932_897,
    -12_687_428, -12_687_429, 11_248_737, 11_248_738, -(1 << 31), (1 << 31) - 1,
]  # fmt: skip
_MOMENTS = [
    1, -10**6, -10**6 - 1, -1_500_000, 1_795_429_230_123_456, 9_223_372_036_854_775, 9_223_372_036_854_776, -9_223_372_036_000_000,
    -9_223_372_037_000_000, -INT64, -INT64 + 1, INT64 - 1, *(day * DAY + more for day in _DAYS[:-2] for more in (0, -1)),
]  # fmt: skip
_TEXTS = [
    "", " ", " a ", "\0", "a\0b", *map(chr, range(1, 32)), "\x7f", "\x85", "\r\n", "a\nb", '"', '""', 'a"b', "'", "\\", "a\\", "\\N", "a,b", ",", "#", "//",
    "null", "NULL", "NaN", "-", "{}", "\ufeff", "\ufeffa", "\u2028", "😀", "é", "e\u0301", "\U0010ffff", "\ud7ff", "\ue000", "x" * 5000, "a/b", "..", "%", "a=b",
    "__HIVE_DEFAULT_PARTITION__",
]  # fmt: skip
_FLOATS = [
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    0.1,
    1e7,
    1e16,
    1e22,
    123_456_789_012_345_680.0,
]
_EXTREME = {
    pa.bool_(): [True, False],
    pa.float32(): [
        *_FLOATS,
        1.4e-45,
        1.17549435e-38,
        3.4028234663852886e38,
        -3.4028234663852886e38,
    ],
    pa.float64(): [
        *_FLOATS,
        5e-324,
        2.2250738585072014e-308,
        1.7976931348623157e308,
        -1.7976931348623157e308,
    ],
    pa.string(): [
        *(text.encode() for text in _TEXTS),
        CSV_NULL,
        b"a\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
    ],
    pa.binary(): [b"", b"\0", b"\xff\xfe", bytes(range(256))],
    pa.date32(): _DAYS,
}


def extremes(kind):
    if pa.types.is_integer(kind):
        most = 1 << kind.bit_width - 1
        return [0, 1, -1, most - 1, -most]
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return [0, 1, -1, most, -most]
    return _MOMENTS if pa.types.is_timestamp(kind) else _EXTREME[kind]


def any_of(kind):
    """Return a strategy of plain values of a type."""
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        least, most = min(extremes(kind)), max(extremes(kind))
        return st.integers(least, most)
    if pa.types.is_timestamp(kind):
        return st.one_of(
            st.integers(-INT64, INT64 - 1),
            st.integers(-INT64 // 1000, INT64 // 1000),
            st.integers(-300, 300).map(lambda d: d * DAY + 1),
        )
    if pa.types.is_date32(kind):
        return st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-800_000, 3_000_000))
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pa.types.is_boolean(kind):
        return st.booleans()
    return (
        st.text(max_size=20).map(str.encode) if pa.types.is_string(kind) else st.binary(max_size=20)
    )


VALUES = st.fixed_dictionaries(
    {ddl: st.lists(any_of(kind), max_size=15) for ddl, kind in WRITTEN.items()}
).map(lambda drawn: {ddl: [*extremes(WRITTEN[ddl]), *values] for ddl, values in drawn.items()})


OPTIONS = {
    "parquet": st.just({}),
    "orc": st.just({}),
    "json": st.fixed_dictionaries({"ignore_null_fields": st.booleans()}),
    # Of all ASCII characters that stand in no value.
    "csv": st.fixed_dictionaries(
        {
            "header": st.booleans(),
            "delimiter": st.sampled_from(
                [*",;|\t#/_~`'!$%&()*<=>?@[]^{}", *map(chr, range(1, 9)), "\x1f", "\x7f"]
            ),
        }
    ),
}


NOT_OF_SPARK = {("parquet", "brotli")}
"""What Spark, as it comes, has no codec for; the page on files says so."""


def around(value, kind, form):
    """Return the columns that hold a value of a type, itself and in others, each with a way to
    wrap it."""
    yield "t", kind, value
    if CELLS["ARRAY<INT>", form].at_start:
        return
    yield "a", pa.list_(kind), [value, None, value]
    yield (
        "s",
        pa.struct([("x", kind), ("y", pa.list_(pa.struct([("z", kind)])))]),
        (value, [(value,), None]),
    )
    yield "m", pa.map_(pa.string(), kind), [(b"k", value), (b"", None)]
    if kind == pa.string() or not CELLS["MAP<INT, INT>", form].at_start:
        yield "k", pa.map_(kind, pa.int32()), [(value, 1)]


EMPTY = {
    "t": [None],
    "a": [None, [], [None]],
    "s": [None, (None, None), (None, [])],
    "m": [None, []],
    "k": [None, []],
}


def batch_of(values, form):
    """Return a record batch with a row for each value, nulls and empties behind them, all types
    side by side; the values are those of ``values``."""
    columns = {}
    for i, (ddl, held) in enumerate(values.items()):
        kind = WRITTEN[ddl]
        for name, whole, _ in around(None, kind, form):
            each = [next(v for n, _, v in around(value, kind, form) if n == name) for value in held]
            columns[f"{name}{i}"] = whole, [*each, *EMPTY[name]]
    count = max(len(each) for _, each in columns.values())
    made = {
        name: array_of([*each, *[None] * (count - len(each))], kind)
        for name, (kind, each) in columns.items()
    }
    return pa.RecordBatch.from_pydict({"n": pa.array(range(count), pa.int64()), **made})


def written(folder, form, rows, **options):
    """Commit rows as a batch; what is refused is discarded, as a task does it."""
    sink = checked(folder, format=form, **options)
    transaction = sink.begin_transaction(attempt())
    try:
        sink.invoke(transaction, rows)
        decided = sink.confirm([sink.pre_commit(transaction)])
    finally:
        sink.discard(transaction)
    assert sink.commit(permit(), decided).completed
    return ofa.read_files(folder)


# --- readers --------------------------------------------------------------------------------------


def readers(spark, folder, form, schema, options):
    """Return all readers of a folder, by name, with the word by which the table knows each."""
    from pyarrow import dataset

    files = ofa.read_files(folder)
    alone = spark.read.schema(from_arrow_schema(schema, prefer_timestamp_ntz=True))
    if form == "csv":
        alone = alone.options(
            header=options["header"],
            sep=options["delimiter"],
            escape='"',
            charToEscapeQuoteEscaping='"',
            multiLine=True,
            lineSep="\n",
        )
    yield "to_spark", SPARK, lambda: files.to_spark(spark).toArrow()
    yield "spark.read", SPARK_ALONE, lambda: alone.format(form).load(str(folder)).toArrow()
    yield "to_arrow", ARROW, files.to_arrow
    if form in {"parquet", "orc"}:
        yield (
            "pyarrow's dataset",
            ARROW,
            lambda: dataset.dataset(files.paths, format=form, partitioning="hive").to_table(),
        )


def as_read(column, ddl, form, reader):
    """Return what a reader makes of a column, by the table."""
    change = CELLS[ddl, form].reads.get(reader)
    values = plain(column)
    return (
        values
        if change is None
        else [value if value is None else change(value) for value in values]
    )


def assert_read(spark, folder, form, rows, by_name, options, only=(SPARK, SPARK_ALONE, ARROW)):
    for name, word, read in readers(spark, folder, form, rows.schema, options):
        if word not in only:
            continue
        table = read().sort_by("n")
        for column in rows.schema.names:
            ddl = by_name(column)
            wanted = (
                plain(rows.column(column))
                if ddl is None
                else as_read(rows.column(column), ddl, form, word)
            )
            found = plain(table.column(column))
            wrong = [
                pair for pair in zip(wanted, found, strict=True) if repr(pair[0]) != repr(pair[1])
            ]
            assert not wrong, (
                f"{name} of {form}, {ddl}, column {column}: {len(wrong)} of {len(found)}, as "
                f"{wrong[:3]}"
            )


def by_position(values):
    names = list(values)
    return lambda column: names[int(column[1:])] if len(column) > 1 else None


# --- the property ---------------------------------------------------------------------------------

# One example holds all types with all their extremes, and many drawn values: few are enough, and
# each costs jobs of Spark.
# Nor is a failure made smaller: the message names type and value.
FEW = settings(
    max_examples=3,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@pytest.mark.parametrize(
    "form",
    [pytest.param(each, marks=[pytest.mark.long] * (each in {"orc", "json"})) for each in ON_DISK],
)
@FEW
@given(drawn=VALUES, data=st.data())
def test_every_value_of_every_type_is_read_by_every_reader_as_it_was_written_or_refused_by_name(
    spark, tmp_path, form, drawn, data
):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    options = data.draw(OPTIONS[form], label="options")
    compression = data.draw(
        st.sampled_from(
            [codec for codec in COMPRESSIONS[form] if (form, codec) not in NOT_OF_SPARK]
        ),
        label="compression",
    )
    drawn = {ddl: values for ddl, values in drawn.items() if not CELLS[ddl, form].at_start}
    kept = {
        ddl: [v for v in values if not CELLS[ddl, form].refuses(v)] for ddl, values in drawn.items()
    }
    for_all = {
        ddl: [v for v in values if not CELLS[ddl, form].unread(v)] for ddl, values in kept.items()
    }
    rows = batch_of(for_all, form)
    written(folder / "all", form, rows, options=options, compression=compression)
    assert_read(spark, folder / "all", form, rows, by_position(for_all), options)
    for_spark = {
        ddl: [v for v in values if CELLS[ddl, form].unread(v)] for ddl, values in kept.items()
    }
    if any(for_spark.values()):
        rows = batch_of(for_spark, form)
        written(folder / "spark", form, rows)
        assert_read(
            spark,
            folder / "spark",
            form,
            rows,
            by_position(for_spark),
            options,
            only=(SPARK, SPARK_ALONE),
        )
        for name, word, read in readers(spark, folder / "spark", form, rows.schema, options):
            if word == ARROW:
                assert_raises(
                    pa.ArrowInvalid,
                    "out of range",
                    read,
                    f"{name} of {form} read what the table says that it refuses",
                )
    assert_refused(folder / "refused", form, drawn)


def assert_raises(error, words, call, otherwise):
    """See that a call raises an error with these words; else say what it means."""
    raised = None
    try:
        call()
    except error as found:
        raised = str(found)
    assert raised is not None, otherwise
    assert re.search(words, raised), f"{otherwise}: {raised}"


def assert_refused(folder, form, drawn):
    """See that each value that the table says is refused is, wherever it stands, by the column's
    name and its own, and leaves nothing."""
    for ddl, values in drawn.items():
        for value in itertools.islice((v for v in values if CELLS[ddl, form].refuses(v)), 12):
            for _, kind, whole in around(value, WRITTEN[ddl], form):
                rows = pa.RecordBatch.from_pydict(
                    {"n": pa.array([1, 2]), "c": array_of([None, whole], kind)}
                )
                write = functools.partial(written, folder, form, rows)
                assert_raises(
                    RefusedRecordError,
                    r"Column 'c[a-z.]*' holds \S*[0-9\\]",
                    write,
                    f"{form} took {value!r} as {kind}",
                )
    if folder.exists():
        assert ofa.read_files(folder).rows == 0
        assert left_in_staging(folder) == []


@FEW
@given(drawn=VALUES)
def test_every_value_of_a_partition_column_is_read_as_it_was_written_or_refused_by_name(
    spark, tmp_path, drawn
):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    drawn = {ddl: values for ddl, values in drawn.items() if not CELLS[ddl, "path"].at_start}
    kept = {
        ddl: [v for v in values if not CELLS[ddl, "path"].refuses(v)]
        for ddl, values in drawn.items()
    }
    count = max(map(len, kept.values())) + 1
    columns = {
        f"t{i}": array_of((v + [None] * count)[:count], WRITTEN[d])
        for i, (d, v) in enumerate(kept.items())
    }
    rows = pa.RecordBatch.from_pydict({"n": pa.array(range(count), pa.int64()), **columns})
    files = written(folder / "all", "parquet", rows, partition_by=list(columns))
    names = by_position(kept)
    for word, read in (
        (SPARK, lambda: files.to_spark(spark).toArrow()),
        (
            SPARK_ALONE,
            lambda: (
                spark.read.schema(from_arrow_schema(rows.schema))
                .parquet(str(folder / "all"))
                .toArrow()
            ),
        ),
        (ARROW, files.to_arrow),
    ):
        table = read().sort_by("n")
        for column in columns:
            wanted = as_read(rows.column(column), names(column), "path", word)
            assert plain(table.column(column)) == wanted, f"{word}, {names(column)}"
    for ddl, values in drawn.items():
        for value in itertools.islice((v for v in values if CELLS[ddl, "path"].refuses(v)), 12):
            rows = pa.RecordBatch.from_pydict(
                {"n": pa.array([1]), "c": array_of([value], WRITTEN[ddl])}
            )
            write = functools.partial(
                written, folder / "refused", "parquet", rows, partition_by=["c"]
            )
            assert_raises(
                RefusedRecordError,
                "Column 'c' holds|c=x",
                write,
                f"a folder's name took {value!r} as {ddl}",
            )


@pytest.mark.parametrize("form", FORMATS)
def test_a_type_is_taken_or_refused_at_start_as_the_table_says(spark, tmp_path, form):
    options = {"partition_by": ["c"]} if form == "path" else {"format": form}
    for row in ROWS:
        for ddl in row.members:
            if ddl == "TIME(6)" and not hasattr(spark_types, "TimeType"):
                continue  # it came with Spark 4.1
            schema = spark_types.StructType.fromDDL(f"n BIGINT, c {ddl}")
            if not row.cells[form].at_start:
                FileSink(tmp_path, **options).columns(schema)
                continue
            take = functools.partial(FileSink(tmp_path, **options).columns, schema)
            assert_raises(SchemaError, "Column 'c", take, f"{form} took a column of {ddl}")


def test_a_delimiter_that_stands_in_values_is_refused_at_start_by_the_columns_name(spark, tmp_path):
    """What is quoted may hold it: each character of a value that is written elsewhere must be
    refused for its type."""
    for ddl, kind in WRITTEN.items():
        if CELLS[ddl, "csv"].at_start or kind == pa.string():
            continue
        values = [value for value in extremes(kind) if not CELLS[ddl, "csv"].refuses(value)]
        rows = pa.RecordBatch.from_pydict({"c": array_of(values, kind)})
        files = written(tmp_path / ddl, "csv", rows, options={"header": False})
        inside = set(
            re.sub('"[^"]*"', "", "".join(Path(path).read_text() for path in files.paths))
        ) - {"\n"}
        for delimiter in inside:
            columns = FileSink(tmp_path, format="csv", options={"delimiter": delimiter}).columns
            take = functools.partial(columns, spark_types.StructType.fromDDL(f"t STRING, c {ddl}"))
            assert_raises(
                SchemaError,
                "Column 'c' is .* may hold the delimiter",
                take,
                f"CSV took {delimiter!r} beside {ddl}",
            )
    FileSink(tmp_path, format="csv", options={"delimiter": " "}).columns(
        spark_types.StructType.fromDDL("a STRING, b STRING, c INT")
    )
