"""What options make of files, and what Spark's reader passes over in them: all readers read all
rows, whatever was chosen."""

import itertools
import math
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

import onceforall as ofa
from onceforall.errors import OptionError, RefusedRecordError
from onceforall.sinks.files import FileSink
from onceforall.sinks.files.task.formats import _OPTIONS
from sinks.files.building import checked, commit, prepared
from sinks.files.plain_values import array_of, plain
from sinks.files.test_types import CELLS, WRITTEN, batch_of, extremes

pytestmark = pytest.mark.spark

VALUES = {
    "parquet": {
        "compression_level": [1, 9],
        "data_page_size": [0, 100, 1 << 40],
        "data_page_version": ["1.0", "2.0"],
        "dictionary_pagesize_limit": [0, 100, 1 << 40],
        "use_dictionary": [True, False, ["t1"], []],
        "version": ["1.0", "2.4", "2.6"],
        "write_page_checksum": [True, False],
        "write_page_index": [True, False],
        "write_statistics": [True, False, ["t0", "t1", "s1.x"], []],
    },
    "orc": {
        "compression_block_size": [1 << 16, (8 << 20) - (1 << 16)],
        "dictionary_key_size_threshold": [0.0, 0.5, 1.0],
        "row_index_stride": [1, 7, 1 << 33],
        "stripe_size": [1, 1 << 16, 1 << 40],
    },
    "json": {"ignore_null_fields": [True, False]},
    "csv": {"header": [True, False], "delimiter": ["|"]},
}
CASES = [
    (form, name, value)
    for form, options in VALUES.items()
    for name, values in options.items()
    for value in values
]


def values_of(ddl, form):
    return [
        v
        for v in extremes(WRITTEN[ddl])
        if not CELLS[ddl, form].refuses(v) and not CELLS[ddl, form].unread(v)
    ]


def test_every_option_has_values_here():
    assert {form: set(options) for form, options in VALUES.items()} == {
        form: set(known) for form, known in _OPTIONS.items()
    }


@pytest.mark.parametrize(
    "form",
    [pytest.param(each, marks=[pytest.mark.long] * (each == "orc")) for each in VALUES],
)
def test_with_every_option_all_readers_read_what_was_written(spark, tmp_path, form):
    rows = batch_of(
        {ddl: values_of(ddl, form) for ddl in ("DOUBLE", "STRING", "BIGINT", "DATE")}, form
    )
    paths = {}
    for _, name, value in (case for case in CASES if case[0] == form):
        compression = "zstd" if name == "compression_level" else None
        folder = tmp_path / f"{name}-{len(paths)}"
        commit(
            checked(folder, format=form, options={name: value}, compression=compression), 0, rows
        )
        assert_same(ofa.read_files(folder).to_arrow(), rows, f"{name}={value!r}, to_arrow")
        paths[name, value if isinstance(value, str | int | float) else repr(value)] = folder
    if form != "csv":  # which Spark reads with these options; the property test chooses among them
        schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
        found = spark.read.schema(schema).format(form).load([str(path) for path in paths.values()])
        found = found.withColumn("file", F.input_file_name()).toArrow()
        for case, folder in paths.items():
            ours = found.filter(
                pa.compute.match_substring(found["file"], f"/{folder.name}/")
            ).sort_by("n")
            assert_same(ours, rows, f"{case}, Spark")


PLAIN_CSV = {
    "escape": '"',
    "charToEscapeQuoteEscaping": '"',
    "multiLine": True,
    "lineSep": "\n",
}
"""The options that docs/files.md names."""


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("text", ["a\rb", "a\r\nb", "a\nb", "\r", "\r\n"])
def test_a_line_end_within_the_first_value_is_not_taken_for_that_of_the_file(
    spark, tmp_path, header, text
):
    rows = pa.RecordBatch.from_pydict({"text": [text, "c", "d\re"], "n": [0, 1, 2]})
    commit(checked(tmp_path, format="csv", options={"header": header}), 0, rows)
    files = ofa.read_files(tmp_path)
    assert_same(files.to_arrow(), rows, "to_arrow")
    assert_same(files.to_spark(spark).toArrow(), rows, "to_spark")
    alone = spark.read.schema("text STRING, n BIGINT").options(header=header, **PLAIN_CSV)
    assert_same(alone.csv(files.paths).toArrow(), rows, "spark.read")


@pytest.mark.parametrize("header", [True, False])
def test_texts_of_whatever_means_something_in_csv_are_read_as_they_were_written(
    spark, tmp_path, header
):
    marks = ["\0", '"', ",", "\n", "\r", "\\", "a"]
    texts = ["".join(each) for size in (1, 2, 3) for each in itertools.product(marks, repeat=size)]
    rows = pa.RecordBatch.from_pydict({"text": texts, "again": texts[::-1], "n": [*range(399)]})
    commit(checked(tmp_path, format="csv", options={"header": header}), 0, rows)
    files = ofa.read_files(tmp_path)
    assert_same(files.to_arrow(), rows, "to_arrow")
    assert_same(files.to_spark(spark).toArrow(), rows, "to_spark")
    alone = spark.read.schema("text STRING, again STRING, n BIGINT")
    alone = alone.options(header=header, **PLAIN_CSV)
    assert_same(alone.csv(files.paths).toArrow(), rows, "spark.read")


def assert_same(found, rows, what):
    found = found.sort_by("n")
    for name in rows.schema.names:
        pairs = zip(plain(rows.column(name)), plain(found.column(name)), strict=True)
        wrong = [pair for pair in pairs if repr(pair[0]) != repr(pair[1])]
        assert not wrong, f"{what}: column {name}, {wrong[:3]}"


@pytest.mark.parametrize(
    ("form", "options", "compression"),
    [
        ("orc", {"compression_block_size": 1000}, None),
        ("orc", {"bloom_filter_columns": ["a"]}, None),
        ("parquet", {"use_byte_stream_split": True}, None),
        ("parquet", {"compression_level": 77}, "gzip"),
        ("parquet", {"compression_level": 3}, "snappy"),
    ],
)
def test_an_option_that_pyarrow_refuses_or_spark_cant_read_is_refused_at_once(
    form, options, compression
):
    with pytest.raises(OptionError, match=next(iter(options))):
        FileSink("/unused", format=form, options=options, compression=compression)


@pytest.mark.parametrize("size", [8 << 20, 1 << 40])
def test_a_block_with_which_orcs_writer_aborts_ends_no_process(size):
    program = (
        "import onceforall; onceforall.FileSink('/unused', format='orc', "
        f"options={{'compression_block_size': {size}}})"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "OptionError: The option 'compression_block_size'" in ended.stderr


# --- what a reader passes over --------------------------------------------------------------------

LITERALS = {
    "BOOLEAN": lambda value: F.lit(bool(value)),
    "FLOAT": lambda value: F.expr(f"float('{value}')"),
    "DOUBLE": lambda value: F.expr(f"double('{value}')"),
    "DATE": lambda value: F.expr(f"date_from_unix_date(cast({value} as int))"),
    "TIMESTAMP": lambda value: F.expr(f"timestamp_micros(cast('{value}' as bigint))"),
    "STRING": lambda value: F.expr(f"decode(unhex('{value.hex()}'), 'utf-8')"),
    **{
        ddl: lambda value, ddl=ddl: F.expr(f"cast('{value}' as {ddl})")
        for ddl in ("TINYINT", "SMALLINT", "INT", "BIGINT")
    },
}
COMPARED = {
    "<": lambda column, value: column < value,
    "=": lambda column, value: column == value,
    ">": lambda column, value: column > value,
}


def stored(ddl, form):
    """Return the values of a type; of -0.0 Spark's reader loses those of its own writer's files,
    too, as docs/files.md says."""
    return [
        v
        for v in values_of(ddl, form)
        if not (isinstance(v, float) and v == 0 and math.copysign(1, v) < 0)
    ]


@pytest.mark.parametrize(
    ("form", "options"),
    [
        pytest.param("parquet", {"write_page_index": True}, marks=pytest.mark.long),
        pytest.param("parquet", {}, marks=pytest.mark.long),
        pytest.param("orc", {}, marks=pytest.mark.long),
        pytest.param("orc", {"row_index_stride": 1}, marks=pytest.mark.long),
    ],
)
def test_a_filter_that_spark_looks_up_in_the_files_finds_what_it_finds_in_the_rows(
    spark, tmp_path, form, options
):
    choose, names = random.Random(7), {}
    held = {ddl: stored(ddl, form) for ddl in LITERALS}
    folder = tmp_path / form
    sink = checked(folder, format=form, options=options)
    # Few values in a file, so that its least and greatest say something; NaN among numbers, alone,
    # and not at all.
    files = [
        {
            ddl: [1.0, math.nan, 2.0] if ddl in {"FLOAT", "DOUBLE"} else values[:3]
            for ddl, values in held.items()
        },
        {
            ddl: [math.nan] if ddl in {"FLOAT", "DOUBLE"} else values[-1:]
            for ddl, values in held.items()
        },
        *(
            {ddl: choose.sample(values, min(3, len(values))) for ddl, values in held.items()}
            for _ in range(6)
        ),
    ]
    for i, values in enumerate(files):
        columns = {}
        for number, ddl in enumerate(held):
            names[ddl] = f"t{number}"
            each = (values[ddl] * 3)[:3]
            columns[f"t{number}"] = array_of(each, WRITTEN[ddl])
            columns[f"s{number}"] = array_of(
                [(value,) for value in each], pa.struct([("x", WRITTEN[ddl])])
            )
        commit(sink, i, pa.RecordBatch.from_pydict(columns))
    frame = ofa.read_files(folder).to_spark(spark)
    questions = []
    for ddl, values in held.items():
        is_floating = ddl in {"FLOAT", "DOUBLE"}
        asked = [0.0, 5.0, math.nan] if is_floating else choose.sample(values, min(2, len(values)))
        for value, (word, compare), path in itertools.product(
            asked, COMPARED.items(), "ts" if is_floating else "t"
        ):
            column = F.col(names[ddl]) if path == "t" else F.col(names[ddl].replace("t", "s"))["x"]
            questions.append(
                (f"{path}: {ddl} {word} {value!r}", compare(column, LITERALS[ddl](value)))
            )
    wanted = counted(frame, [question for _, question in questions], filtered=False)
    found = counted(frame, [question for _, question in questions], filtered=True)
    wrong = [(q, w, f) for (q, _), w, f in zip(questions, wanted, found, strict=True) if w != f]
    assert not wrong, f"{len(wrong)} of {len(questions)}: {wrong[:8]}"
    assert sum(wanted) > 0


def counted(frame, questions, *, filtered):
    """Count the rows that answer each question: by a filter, which Spark takes to the files, or
    by looking at every row."""
    if not filtered:
        row = frame.select(
            [F.count_if(question).alias(f"q{i}") for i, question in enumerate(questions)]
        ).collect()[0]
        return list(row)
    counts = []
    for some in _parts(questions, 40):
        whole = None
        for i, question in enumerate(some):
            one = frame.filter(question).agg(F.lit(i).alias("i"), F.count("*").alias("n"))
            whole = one if whole is None else whole.unionByName(one)
        counts += [row.n for row in sorted(whole.collect())]
    return counts


def _parts(items, size):
    return [items[i : i + size] for i in range(0, len(items), size)]


def test_no_floating_point_column_has_a_least_or_greatest_value_in_parquet(tmp_path):
    kinds = {
        "d": pa.float64(), "f": pa.float32(), "n": pa.int64(), "l": pa.list_(pa.float64()), "m": pa.map_(pa.string(), pa.float32()),
        "s": pa.struct([("d", pa.float64()), ("n", pa.int64())]), "a.b": pa.float64(), "a": pa.struct([("b", pa.int64())]),
    }  # fmt: skip
    values = {"l": [1.0], "m": [(b"k", 1.0)], "s": (1.0, 1), "a": (1,)}
    rows = pa.RecordBatch.from_pydict(
        {name: array_of([values.get(name, 1)], kind) for name, kind in kinds.items()}
    )
    for i, (wanted, most) in enumerate(
        [
            (None, {"n", "m.key_value.key", "s.n"}),
            (True, {"n", "m.key_value.key", "s.n"}),
            (["n", "d"], {"n"}),
            (False, set()),
        ]
    ):
        folder = tmp_path / str(i)
        commit(
            checked(folder, options={} if wanted is None else {"write_statistics": wanted}), 0, rows
        )
        (path,) = ofa.read_files(folder).paths
        group = pq.read_metadata(path).row_group(0)
        columns = [group.column(at) for at in range(group.num_columns)]
        assert {column.path_in_schema for column in columns if column.is_stats_set} == most


# --- how long -------------------------------------------------------------------------------------


MAP = pa.map_(pa.string(), pa.map_(pa.string(), pa.int32()))
LONGEST = [
    ("STRING", pa.string(), lambda length: b"x" * length, 20_000_000),
    (
        "two units a character",
        pa.string(),
        lambda length: "😀".encode() * (length // 2) + b"x" * (length % 2),
        20_000_000,
    ),
    ("a key", MAP, lambda length: [(b"x" * length, None)], 50_000),
    ("a key in a map", MAP, lambda length: [(b"k", [(b"x" * length, 1)])], 50_000),
]


@pytest.mark.parametrize(
    ("kind", "make", "most"), [each[1:] for each in LONGEST], ids=[each[0] for each in LONGEST]
)
def test_the_longest_json_text_that_spark_reads_is_written_and_a_longer_one_is_refused(
    spark, tmp_path, kind, make, most
):
    rows = pa.RecordBatch.from_pydict(
        {"n": pa.array([1, 2], pa.int64()), "c": array_of([make(most), None], kind)}
    )
    commit(checked(tmp_path, format="json"), 0, rows)
    files = ofa.read_files(tmp_path)
    assert files.to_arrow().to_batches()[0].equals(rows)
    assert files.to_spark(spark).filter("c IS NOT NULL AND n = 1").count() == 1
    longer = pa.RecordBatch.from_pydict({"n": pa.array([1]), "c": array_of([make(most + 1)], kind)})
    with pytest.raises(RefusedRecordError, match=r"Column 'c[.a-z]*' holds \d+ characters"):
        prepared(checked(tmp_path, format="json"), longer, 1)


def test_base64_of_any_length_is_read_by_spark(spark, tmp_path):
    held = [b"x" * 16_500_000, b"y"]
    rows = pa.RecordBatch.from_pydict(
        {
            "n": pa.array([1, 2], pa.int64()),
            "c": array_of(held, pa.binary()),
            "s": array_of([(held[0],), None], pa.struct([("b", pa.binary())])),
        }
    )
    commit(checked(tmp_path, format="json"), 0, rows)
    found = (
        ofa.read_files(tmp_path)
        .to_spark(spark)
        .orderBy("n")
        .selectExpr("length(c) c", "length(s.b) b")
        .collect()
    )
    assert [tuple(row) for row in found] == [(16_500_000, 16_500_000), (1, None)]
