"""A folder whose files lie in folders of different kinds: every reader has all rows, and a start
says what plain readers make of it."""

import datetime as dt
import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

import onceforall as ofa
from onceforall.errors import ConfigurationError, ForeignEntryError
from onceforall.sink import StartInfo
from onceforall.sinks.files import FileSink
from sinks.files.building import QUERY, checked, commit, numbers

HOUR, YEAR = "hour={t:%H}", "{t:%Y}"
YEAR_AND_HOUR = f"{YEAR}/{HOUR}"


def row(number, year=2026):
    at = (year - 1970) * 31_557_600 * 10**6 + number * 3_600 * 10**6
    columns = {"n": pa.array([number], pa.int64()), "p": pa.array([f"p{number}"])}
    return pa.RecordBatch.from_pydict({**columns, "t": pa.array([at], pa.timestamp("us", "UTC"))})


P = {"partition_by": ["p"]}
SHAPES = {
    "p, none": [P, {}],
    "none, p": [{}, P],
    "p, another": [P, {"partition_by": ["hour"], "rename": "hour"}],
    "none, hour": [{}, {"time_bucket": HOUR}],
    "p, year": [P, {"time_bucket": YEAR}],
    "none, year": [{}, {"time_bucket": YEAR}],
    "p, p and hour": [P, {**P, "time_bucket": HOUR}],
    "p and hour, hour": [{**P, "time_bucket": HOUR}, {"time_bucket": HOUR}],
    "year and hour": [{"time_bucket": YEAR_AND_HOUR}, {"time_bucket": YEAR_AND_HOUR}],
    "p, year and hour": [{**P, "time_bucket": YEAR_AND_HOUR}, {"time_bucket": YEAR_AND_HOUR}],
}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("shape", "form"),
    [
        *((shape, "parquet") for shape in SHAPES),
        *(
            (shape, form)
            for form in ("json", "csv", "orc")
            for shape in ("none, p", "p, p and hour")
        ),
        ("none, hour", "csv"),
    ],
)
def test_spark_has_every_row_whatever_folders_the_files_lie_in(spark, tmp_path, shape, form):
    for i, given in enumerate(SHAPES[shape]):
        options = {"format": form, **given}
        rows = row(i, 2020 + i)
        if renamed := options.pop("rename", None):
            rows = rows.rename_columns(["n", renamed, "t"])
        commit(checked(tmp_path, **options), i, rows)
    files = ofa.read_files(tmp_path)
    frame = files.to_spark(spark)
    assert frame.columns == files.schema.names
    found, wanted = frame.toArrow(), files.to_arrow()
    assert files.rows == found.num_rows == wanted.num_rows == 2
    assert [line["n"] for line in found.sort_by("n").to_pylist()] == [0, 1]
    for line in (*found.to_pylist(), *wanted.to_pylist()):
        line.setdefault("p", None)
    assert sorted(map(repr, map(_known, found.to_pylist()))) == sorted(
        map(repr, map(_known, wanted.to_pylist()))
    )


def _known(line):
    return sorted(
        (name, value.timestamp() if name == "t" else value) for name, value in line.items()
    )


@pytest.mark.spark
def test_a_csv_column_that_came_later_and_stands_in_the_middle_is_null_before(spark, tmp_path):
    for header in (True, False):
        folder = tmp_path / str(header)
        sink = checked(folder, format="csv", options={"header": header})
        commit(sink, 0, pa.RecordBatch.from_pydict({"a": [1], "c": ["x"]}))
        commit(sink, 1, pa.RecordBatch.from_pydict({"c": ["y"], "b": [2.5], "a": [3]}))
        files = ofa.read_files(folder)
        assert sorted((r.a, r.b or 0, r.c) for r in files.to_spark(spark).collect()) == [
            (1, 0, "x"),
            (3, 2.5, "y"),
        ]


def told(folder, caplog, sink="out", **options):
    made = FileSink(folder, **options)
    made.check(StartInfo(QUERY, sink))
    caplog.clear()
    with caplog.at_level("WARNING", "onceforall"):
        made.columns(from_arrow_schema(row(0).schema))
    return [record.getMessage() for record in caplog.records]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (P, {}, ["p=…", "no folders"]),
        ({}, P, ["p=…", "no folders"]),
        ({}, {"time_bucket": YEAR}, ["no folders", "…"]),
        ({"time_bucket": HOUR}, {"time_bucket": YEAR_AND_HOUR}, ["hour=…", "…/hour=…"]),
        (P, {**P, "time_bucket": HOUR}, ["p=…/hour=…"]),
    ],
)
def test_a_start_says_that_folders_of_another_kind_are_there(
    spark, tmp_path, caplog, before, now, words
):
    commit(checked(tmp_path, **before), 0, row(0))
    (text,) = told(tmp_path, caplog, **now)
    assert all(word in text for word in [*words, str(tmp_path), "read_files"])
    assert told(tmp_path, caplog, **before) == []


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_csv_rows_of_any_length_are_read(tmp_path, compression):
    sink = checked(tmp_path, format="csv", compression=compression)
    texts = ["a", "x" * (3 << 20), "line\n" * (4 << 20), 'b"', "é" * (20 << 20)]
    for i, text in enumerate(texts):
        commit(sink, i, numbers(3, 3 * i, c=["before", text, "behind"]))
    found = ofa.read_files(tmp_path).to_arrow().sort_by("n")
    assert [
        text for text in found.column("c").to_pylist() if text not in {"before", "behind"}
    ] == texts
    assert found.num_rows == 15
    some = ofa.read_files(tmp_path, to_batch=1)
    assert some.dataset().to_table().num_rows == 6


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
@pytest.mark.parametrize("place", ["file", "folder"])
def test_no_reader_follows_a_link_out_of_the_folder(spark, tmp_path, form, place):
    root = tmp_path / "sink"
    commit(
        checked(root, format=form, partition_by=["p"]), 0, numbers(2, p=["a", "b"], c=["x", "y"])
    )
    files = ofa.read_files(root)
    data = Path(files.paths[0])
    replaced = data if place == "file" else data.parent
    replaced.rename(tmp_path / "elsewhere")
    replaced.symlink_to(tmp_path / "elsewhere")
    for given in (files, ofa.read_files(root), ofa.read_files(root, from_batch=0)):
        for read in (given.to_arrow, given.dataset, lambda given=given: given.to_spark(spark)):
            with pytest.raises(
                (ForeignEntryError, OSError),
                match=rf"{replaced}.*symbolic link|symbolic link.*{replaced}",
            ):
                read()
    if place == "file":
        assert len(ofa.read_files(root, skip_deleted=True)) == 2
        data.unlink()
        data.symlink_to(tmp_path / "nowhere")
        assert len(ofa.read_files(root, skip_deleted=True)) == 2, (
            "a broken link was taken for a file that is gone"
        )


SETTINGS = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.columnNameOfCorruptRecord": "c",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.enableVectorizedReader": "false",
    "spark.sql.orc.enableVectorizedReader": "false",
    "spark.sql.sources.useV1SourceList": "",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
}
"""What clusters are known to have set, and what changed what Spark reads."""


@pytest.fixture
def settings(spark):
    """Set settings of the session, and put back what was there."""
    before = {}

    def put(wanted):
        for name, value in wanted.items():
            before.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, value)

    yield put
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def with_times(form):
    early = dt.datetime(1999 if form == "orc" else 1500, 1, 1, tzinfo=dt.UTC)
    at = [dt.datetime(2026, 11, 21, 10, 0, 0, 123456, dt.UTC), early]
    return numbers(
        2,
        c=["x", "y"],
        at=pa.array(at, pa.timestamp("us", "UTC")),
        day=[each.date() for each in at],
    )


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
def test_no_setting_of_the_session_changes_what_is_read(spark, tmp_path, settings, form):
    commit(checked(tmp_path, format=form), 0, with_times(form))
    files = ofa.read_files(tmp_path)
    settings(SETTINGS)
    found = files.to_spark(spark).toArrow().sort_by("n")
    assert found.to_pylist() == files.to_arrow().sort_by("n").to_pylist()
    data = Path(files.paths[0])
    data.write_bytes(b"nothing" if form in {"parquet", "orc"} else b"")
    if form in {"parquet", "orc"}:
        with pytest.raises(Exception, match=r"Parquet|ORC|FAILED_READ_FILE"):
            files.to_spark(spark).toArrow()
    data.unlink()
    with pytest.raises(Exception, match=r"(?i)not.exist"):
        files.to_spark(spark).toArrow()


BELOW_SPARK = {
    "mapreduce.input.linerecordreader.line.maxlength": "60",
    "orc.force.positional.evolution": "true",
    "orc.skip.corrupt.data": "true",
    "orc.sarg.to.filter": "true",
    "orc.filter.use.selected": "true",
    "orc.filter.plugin": "true",
    "orc.proleptic.gregorian": "true",
    "orc.proleptic.gregorian.default": "true",
    "parquet.read.bad.record.threshold": "1",
    "parquet.strings.signed-min-max.enabled": "true",
}
"""What the readers of Hadoop, ORC and Parquet take from the session."""


@pytest.mark.spark
@pytest.mark.parametrize("sources", ["avro,csv,json,kafka,orc,parquet,text", ""])
@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
def test_no_setting_of_a_reader_below_sparks_changes_what_is_read(
    spark, tmp_path, settings, form, sources
):
    folder = tmp_path / "out"
    for batch, names in enumerate((["n", "a", "b"], ["b", "a", "n"])):
        columns = {"n": [10 * batch, 10 * batch + 1], "a": ["x", "y" * 200], "b": [5, 6]}
        rows = pa.RecordBatch.from_pydict({name: columns[name] for name in names})
        commit(checked(folder, format=form), batch, rows)
    files = ofa.read_files(folder)
    settings({**BELOW_SPARK, "spark.sql.sources.useV1SourceList": sources})
    frame = files.to_spark(spark)
    wanted = files.to_arrow().sort_by("n").to_pylist()
    assert frame.toArrow().sort_by("n").to_pylist() == wanted
    assert [row["n"] for row in wanted] == [0, 1, 10, 11]
    assert frame.where("n = 11").toArrow().to_pylist() == wanted[3:]


@pytest.mark.spark
def test_a_session_that_filters_paths_is_refused(spark, tmp_path, settings):
    commit(checked(tmp_path), 0, numbers(2))
    settings({"mapreduce.input.pathFilter.class": "org.apache.hadoop.fs.GlobFilter"})
    with pytest.raises(ConfigurationError, match=r"pathFilter.class has Spark pass over"):
        ofa.read_files(tmp_path).to_spark(spark)
    spark.conf.unset("mapreduce.input.pathFilter.class")
    assert ofa.read_files(tmp_path).to_spark(spark).count() == 2


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_a_session_that_parses_times_as_spark_2_did_reads_the_same(spark, tmp_path, settings, form):
    """The days that the Gregorian reform left out are others for it, and so are microseconds in
    JSON."""
    settings({"spark.sql.legacy.timeParserPolicy": "legacy"})
    days = [dt.date(1582, 10, 4), dt.date(1582, 10, 10), dt.date(9999, 12, 31)]
    at = [dt.datetime(each.year, each.month, each.day, 10, 0, 0, 123456, dt.UTC) for each in days]
    columns = {
        "day": pa.array(days),
        "at": pa.array(at, pa.timestamp("us", "UTC")),
        "local": pa.array(at, pa.timestamp("us")),
        "said": pa.array(days),
    }
    if form != "csv":
        structs = [{"d": day, "a": [time]} for day, time in zip(days, at, strict=True)]
        kind = pa.struct({"d": pa.date32(), "a": pa.list_(pa.timestamp("us", "UTC"))})
        columns |= {
            "s": pa.array([*structs[:2], None], kind),
            "m": pa.array([[("k", days[1])], None, []], pa.map_(pa.string(), pa.date32())),
        }
    commit(checked(tmp_path, format=form, partition_by=["said"]), 0, numbers(3, **columns))
    files = ofa.read_files(tmp_path)
    found = files.to_spark(spark).toArrow().sort_by("n")
    wanted = files.to_arrow().sort_by("n")
    assert wanted["day"].to_pylist() == days
    assert found.select(wanted.schema.names).to_pylist() == wanted.to_pylist()


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
def test_a_filter_on_a_decimal_that_became_wider_finds_the_rows_of_before_and_of_now(
    spark, tmp_path, caplog, form
):
    for batch, (precision, value) in enumerate(
        [(5, "999.99"), (20, "42949673.96"), (38, "-" + "9" * 36 + ".00")]
    ):
        kind = pa.decimal128(precision, 2)
        rows = numbers(
            1,
            batch,
            c=pa.array([decimal.Decimal(value)], kind),
            s=pa.array([[decimal.Decimal(value)]], pa.list_(kind)),
        )
        commit(
            checked(tmp_path, format=form),
            batch,
            rows if form != "csv" else rows.select(["n", "c"]),
        )
    frame = ofa.read_files(tmp_path).to_spark(spark)
    found = {
        where: sorted(row.n for row in frame.filter(where).collect())
        for where in ("c < 42949673.97", "c = 42949673.96", "c > 1000", "c < 0")
    }
    assert found == {
        "c < 42949673.97": [0, 1, 2],
        "c = 42949673.96": [1],
        "c > 1000": [1],
        "c < 0": [2],
    }
    caplog.clear()
    now = numbers(1, 3, c=pa.array([None], pa.decimal128(22, 2)))
    with caplog.at_level("WARNING", "onceforall"):
        FileSink(tmp_path, format=form).columns(from_arrow_schema(now.schema))
    assert ("was DECIMAL(38,2), and is DECIMAL(22,2)" in caplog.text) == (form == "parquet")


# --- a column that folders say, with types that have no common one --------------------------------

DAY = dt.date(2026, 11, 21)
STRANGE = {
    "a DATE and a bucket": (
        "day",
        pa.array([DAY], pa.date32()),
        {"partition_by": ["day"]},
        "day={t:%Y-%m-%d}",
        "2026-11-21",
    ),
    "an INT and a bucket": (
        "hour",
        pa.array([7], pa.int32()),
        {"partition_by": ["hour"]},
        HOUR,
        "7",
    ),
    "a plain DATE and a bucket": (
        "day",
        pa.array([DAY], pa.date32()),
        {},
        "day={t:%Y-%m-%d}",
        "2026-11-21",
    ),
    "a plain BIGINT and a bucket": (
        "hour",
        pa.array([-(1 << 63)], pa.int64()),
        {},
        HOUR,
        str(-(1 << 63)),
    ),
    "a plain BOOLEAN and a bucket": ("hour", pa.array([True]), {}, HOUR, "true"),
    "a plain DECIMAL and a bucket": (
        "hour",
        pa.array([decimal.Decimal("-0.000001")], pa.decimal128(20, 6)),
        {},
        HOUR,
        "-0.000001",
    ),
    "a far DATE and a bucket": (
        "day",
        pa.array([2_932_897], pa.int32()).cast(pa.date32()),
        {},
        "day={t:%Y-%m-%d}",
        "10000-01-01",
    ),
    "a DATE and a STRING": (
        "day",
        pa.array([DAY], pa.date32()),
        {"partition_by": ["day"]},
        None,
        "2026-11-21",
    ),
    "a BOOLEAN and a STRING": ("day", pa.array([False]), {"partition_by": ["day"]}, None, "false"),
}


def both(folder, form, case, turned=False):
    """Commit a row with the column, and one in a folder that says it in another way; return the
    column and what it says by row."""
    name, values, options, bucket, text = STRANGE[case]
    first = row(0).append_column(name, values), {"format": form, **options}
    plain = row(1) if bucket is not None else row(1).append_column(name, pa.array(["no day"]))
    second = (
        plain,
        {
            "format": form,
            **({"time_bucket": bucket} if bucket is not None else {"partition_by": [name]}),
        },
    )
    for batch, (rows, given) in enumerate([second, first] if turned else [first, second]):
        commit(checked(folder, **given), batch, rows)
    at = row(1).column("t")[0].as_py()
    return name, {
        0: text,
        1: "no day" if bucket is None else at.strftime("%H" if name == "hour" else "%Y-%m-%d"),
    }


@pytest.mark.spark
@pytest.mark.parametrize(
    ("case", "form"),
    [
        (case, form)
        for case in STRANGE
        for form in ("parquet", "orc", "json", "csv")
        if ("far" not in case or form != "csv")  # CSV takes no such year.
    ],
)
@pytest.mark.sample(12)
def test_a_column_that_folders_say_is_read_as_text_where_its_types_have_no_common_one(
    spark, tmp_path, case, form
):
    name, wanted = both(tmp_path, form, case, turned=form in {"orc", "csv"})
    files = ofa.read_files(tmp_path)
    assert files.schema.field(name).type == pa.string()
    for table in (files.to_arrow(), files.dataset().to_table(), files.to_spark(spark).toArrow()):
        assert table.schema.field(name).type == pa.string()
        assert (
            dict(zip(table.column("n").to_pylist(), table.column(name).to_pylist(), strict=True))
            == wanted
        )
    for number, text in wanted.items():
        found = (
            files.dataset().to_table(filter=pc.field(name) == text),
            files.to_spark(spark).filter(F.col(name) == text).toArrow(),
        )
        assert [table.column("n").to_pylist() for table in found] == [[number], [number]]


@pytest.mark.spark
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("a DATE and a bucket", "DATE"),
        ("an INT and a bucket", "INT"),
        ("a plain DATE and a bucket", "DATE"),
        ("a DATE and a STRING", "DATE"),
    ],
)
def test_a_start_says_once_that_readers_get_such_a_column_as_text(
    spark, tmp_path, caplog, case, words, turned
):
    name, values, options, bucket, _ = STRANGE[case]
    mine = (row(0).append_column(name, values), options)
    plain = row(1) if bucket is not None else row(1).append_column(name, pa.array(["no day"]))
    other = (plain, {"time_bucket": bucket} if bucket is not None else {"partition_by": [name]})
    (before, given), (now, options) = (other, mine) if turned else (mine, other)
    commit(checked(tmp_path, **given), 0, before)
    sink = checked(tmp_path, **options)
    with caplog.at_level("WARNING", "onceforall"):
        for _ in range(2):
            sink.columns(from_arrow_schema(now.schema))
    was, is_now = ("STRING", words) if turned else (words, "STRING")
    (text,) = [
        each.getMessage()
        for each in caplog.records
        if "read_files reads it as STRING" in each.getMessage()
    ]
    assert f"the column {name!r} was {was}, and is {is_now} now" in text
    assert str(tmp_path) in text
    assert "can't take" not in caplog.text


@pytest.mark.spark
def test_a_column_whose_type_has_no_text_is_refused_by_name_and_told_at_start(
    spark, tmp_path, caplog
):
    now = row(1).append_column("hour", row(0).column("t"))
    commit(checked(tmp_path, time_bucket=HOUR), 0, row(0))
    sink = checked(tmp_path)
    with caplog.at_level("WARNING", "onceforall"):
        sink.columns(from_arrow_schema(now.schema))
    assert (
        "'hour' was STRING, and is TIMESTAMP now, which read_files can't read together"
        in caplog.text
    )
    commit(sink, 1, now)
    with pytest.raises(pa.ArrowTypeError, match=r"'hour' has the types .* timestamp.* from_batch="):
        ofa.read_files(tmp_path).to_arrow()
    assert ofa.read_files(tmp_path, to_batch=0).to_arrow().num_rows == 1
