"""Reads committed files with Spark: as many readers as there are kinds of files, and their
union.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.errors import ConfigurationError
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.layout import CSV_NULL, Layout
from onceforall.sinks.files.paths import partition_of
from onceforall.sinks.files.reading.sources import Source
from onceforall.spark.hadoop_settings import hadoop_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

_OF_HADOOP = {
    # Longer lines of JSON are passed over in silence.
    "mapreduce.input.linerecordreader.line.maxlength": str(2**31 - 1),
    # ORC: columns by their place and not by their name; stripes that can't be read are left out;
    # rows that a filter of ORC's own has left out are marked, and Spark doesn't look at the mark.
    "orc.force.positional.evolution": "false",
    "orc.skip.corrupt.data": "false",
    "orc.sarg.to.filter": "false",
    "orc.filter.use.selected": "false",
    "orc.filter.plugin": "false",
    # ORC's days: the calendar of files that don't name theirs, as pyarrow's.
    "orc.proleptic.gregorian": "false",
    "orc.proleptic.gregorian.default": "false",
    # Parquet: records that can't be read; and the order of texts in statistics.
    "parquet.read.bad.record.threshold": "0",
    "parquet.strings.signed-min-max.enabled": "false",
}
"""The settings of the readers below Spark's that change what is read. Spark gives them whatever is
in the session's and the cluster's settings (``spark.hadoop.…``), and options of a read come last.
"""

_PATH_FILTER = "mapreduce.input.pathFilter.class"


def frame_of(
    spark: SparkSession, source: Source, files: Sequence[tuple[DataFile, Layout]], whole: pa.Schema
) -> DataFrame:
    """Return a DataFrame over exactly these files.

    Args:
        spark: the session.
        source: the sink's folder.
        files: each with its layout.
        whole: the columns of all.

    Raises:
        ConfigurationError: a filter of paths is set.
    """
    from pyspark.sql.functions import col, lit
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    # Spark reads every field of a file as nullable, and casts to nothing narrower.
    schema = _nullable(from_arrow_schema(whole, prefer_timestamp_ntz=True))
    _check_path_filter(spark)
    frames, root = [], source.root
    for reading, stored, base, group in _by_reading(files, schema, _parses_otherwise(spark)):
        names = list(stored)
        # A reader of its own for each group, with the group's columns only: Spark derives a read's
        # partition columns from all of its paths together, and passes over files whose folders say
        # nothing where those of others do. CSV goes by columns' positions.
        here = StructType([schema[name] if kind is None else kind for name, kind in stored.items()])
        reader = spark.read.schema(here).option("basePath", source.in_spark(root / base.folder))
        # What the session's settings would choose otherwise.
        reader = reader.options(ignoreMissingFiles=False, ignoreCorruptFiles=False, **_OF_HADOOP)
        if reading["format"] == "parquet":
            reader = reader.options(datetimeRebaseMode="CORRECTED", int96RebaseMode="CORRECTED")
        if reading["format"] in {"json", "csv"}:
            reader = reader.options(
                mode="PERMISSIVE", columnNameOfCorruptRecord=_no_name(schema.names)
            )
        if reading["format"] == "csv":
            # Without lineSep, Spark takes the first line end that it meets, be it in a value, for
            # that of the file. Without charToEscapeQuoteEscaping, it drops a U+0000 of a text that
            # has a quote, too.
            reader = reader.options(
                header=reading["header"], sep=reading["delimiter"], escape='"', charToEscapeQuoteEscaping='"', multiLine=True, lineSep="\n", nullValue=CSV_NULL, enforceSchema=False  # noqa: E501
            )  # fmt: skip
        frame = reader.format(reading["format"]).load(
            [_spark_path(source.in_spark(root / file.path)) for file in group]
        )
        known = {
            name: _as_text_of_a_folder(col(_quoted(name)), stored[name], schema[name])
            for name in names
        } | {name: lit(value) for name, value in base.values.items()}
        frames.append(
            frame.select(
                *(
                    known.get(each.name, lit(None)).cast(each.dataType).alias(each.name)
                    for each in schema.fields
                )
            )
        )
    if not frames:
        return spark.createDataFrame([], StructType([]))
    joined = frames[0]
    for frame in frames[1:]:
        joined = joined.unionByName(frame)
    return joined


def _by_reading(
    files: Sequence[tuple[DataFile, Layout]],
    schema: StructType,
    times_are_texts: bool,  # noqa: FBT001
) -> Iterator[tuple[Mapping[str, Any], dict[str, StructField | None], _Base, list[DataFile]]]:
    """Group the files by how one reader of Spark takes them: each with the columns that it finds
    (see ``_stored``), and the folder that it begins at.
    """
    groups: dict[
        Any, tuple[Mapping[str, Any], dict[str, StructField | None], _Base, list[DataFile]]
    ] = {}
    in_files: dict[str, dict[str, StructField | None]] = {}
    for file, layout in files:
        base, below = _base(file.folder)
        is_csv = layout.reading["format"] == "csv"
        stored = in_files.get(repr(layout))
        if stored is None:
            stored = in_files[repr(layout)] = _stored(layout, schema, times_are_texts)
        # Spark's CSV reader goes by the position of columns, so that files with others must be read
        # on their own. A column that is a partition's here and stands in files there is never both
        # in one read: Spark would take the folder's value for all.
        own = [(name, repr(kind)) for name, kind in stored.items() if kind is not None]
        key = (
            repr(layout)
            if is_csv
            else repr((sorted(layout.reading.items()), layout.partition_by, own)),
            base.folder,
            below,
        )
        _, columns, _, group = groups.setdefault(key, (layout.reading, {}, base, []))
        columns.update({**stored, **dict.fromkeys(below)})
        group.append(file)
    yield from groups.values()


@dataclass(frozen=True)
class _Base:
    """Where Spark begins to look for partition columns: the folder, and the columns that those
    above it say.
    """

    folder: str
    values: Mapping[str, str | None]


def _base(folder: str) -> tuple[_Base, tuple[str, ...]]:
    """Return where Spark must begin, and the partition columns below that.

    Spark goes from a file upwards, passes over plain folders, and ends at the first plain one above
    a ``name=value``: what is above that must be told to it.
    """
    parts = folder.split("/") if folder else []
    end = len(parts)
    while end and "=" not in parts[end - 1]:
        end -= 1
    start = end
    while start and "=" in parts[start - 1]:
        start -= 1
    above = "/".join(parts[:start]) if start < end else ""
    return _Base(above, partition_of(above)), tuple(partition_of("/".join(parts[start:end])))


def _stored(
    layout: Layout,
    schema: StructType,
    times_are_texts: bool,  # noqa: FBT001
) -> dict[str, StructField | None]:
    """Return the columns of a file, each with its own type where Spark must read it by that and
    cast it to that of ``schema``; else with None.

    Of text it must, for a text means what the type says that it was written by: 0.1 of a FLOAT is
    another number than 0.1 of a DOUBLE. Of Parquet's
    decimals it must: a filter by a number with more bytes than the file's decimals have ends the
    read.

    ``times_are_texts``: of a text format, Spark reads dates and timestamps as the texts that they
    are, for its cast of them heeds no setting.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StringType, StructField

    own = _nullable(from_arrow_schema(layout.schema_in_file(), prefer_timestamp_ntz=True))
    form = layout.reading["format"]
    found: dict[str, StructField | None] = {}
    for each in own.fields:
        kind = _narrowed(schema[each.name].dataType, each.dataType)
        if times_are_texts and form in {"json", "csv"}:
            kind = _with_texts_for_times(kind)
        becomes_text = isinstance(schema[each.name].dataType, StringType)
        by_own = (
            becomes_text
            or form in {"json", "csv"}
            or (form == "parquet" and "decimal" in kind.simpleString())
        )
        found[each.name] = (
            StructField(each.name, kind) if by_own and kind != schema[each.name].dataType else None
        )
    return found


def _as_text_of_a_folder(column: Column, own: StructField | None, wanted: StructField) -> Column:
    """Return a column's values as ``partition_by`` writes them, and pyarrow, where it is a text
    in the whole: Spark has a sign before years of five digits.
    """
    from pyspark.sql.functions import regexp_replace
    from pyspark.sql.types import DateType, StringType

    if (
        own is None
        or not isinstance(wanted.dataType, StringType)
        or not isinstance(own.dataType, DateType)
    ):
        return column
    return regexp_replace(column.cast("string"), r"^\+", "")


def _narrowed(kind: DataType, own: DataType) -> DataType:
    """Return a type with the fields of ``kind``, in their order, since Spark casts a struct by
    position, and with the simple types of ``own`` in it.
    """
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType) and isinstance(own, StructType):
        of_own = {each.name: each.dataType for each in own.fields}
        narrowed = (
            (each, _narrowed(each.dataType, of_own.get(each.name, each.dataType)))
            for each in kind.fields
        )
        return StructType(
            [StructField(each.name, inner, metadata=each.metadata) for each, inner in narrowed]
        )
    if isinstance(kind, ArrayType) and isinstance(own, ArrayType):
        return ArrayType(_narrowed(kind.elementType, own.elementType))
    if isinstance(kind, MapType) and isinstance(own, MapType):
        return MapType(
            _narrowed(kind.keyType, own.keyType), _narrowed(kind.valueType, own.valueType)
        )
    return own


def _parses_otherwise(spark: SparkSession) -> bool:
    """Tell whether Spark reads times in text formats as Spark 2 did: 10:00:00.123456 in JSON as
    10:02:03.456, and of the days that the Gregorian reform left out as others.
    """
    return str(spark.conf.get("spark.sql.legacy.timeParserPolicy")).upper() == "LEGACY"


def _with_texts_for_times(kind: DataType) -> DataType:
    """Return a type with texts in place of its dates and timestamps, at each depth."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

    if isinstance(kind, StructType):
        inner = [_with_texts_for_times(each.dataType) for each in kind.fields]
        return StructType(
            [
                StructField(each.name, found, metadata=each.metadata)
                for each, found in zip(kind.fields, inner, strict=True)
            ]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_with_texts_for_times(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _with_texts_for_times(kind.valueType))
    return StringType() if kind.typeName() in _TIMES else kind


_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})


def _check_path_filter(spark: SparkSession) -> None:
    # No value of an option takes it back.
    if spark.conf.get(_PATH_FILTER, None) or hadoop_settings(spark).get(_PATH_FILTER):
        raise ConfigurationError(
            f"The setting {_PATH_FILTER} has Spark pass over files in silence. Unset it for this "
            "session, or read with to_arrow()."
        )


def _no_name(names: Sequence[str]) -> str:
    """Return a column's name that none has: where Spark's readers of text would put a line that
    they can't read.
    """
    name = "_corrupt_record"
    while name in names:
        name = f"_{name}"
    return name


def _nullable(schema: StructType) -> StructType:
    """Return a schema whose fields, elements and values may all be null, at each depth."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    def loosened(kind: DataType) -> DataType:
        if isinstance(kind, StructType):
            return StructType(
                [
                    StructField(
                        each.name, loosened(each.dataType), nullable=True, metadata=each.metadata
                    )
                    for each in kind.fields
                ]
            )
        if isinstance(kind, ArrayType):
            return ArrayType(loosened(kind.elementType))
        if isinstance(kind, MapType):
            return MapType(loosened(kind.keyType), loosened(kind.valueType))
        return kind

    return StructType(
        [
            StructField(each.name, loosened(each.dataType), nullable=True, metadata=each.metadata)
            for each in schema.fields
        ]
    )


def _spark_path(path: str) -> str:
    """Return a path that Spark takes literally: it expands ``*`` and its like."""
    return "".join(f"\\{char}" if char in "*?[]{}\\" else char for char in path)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
