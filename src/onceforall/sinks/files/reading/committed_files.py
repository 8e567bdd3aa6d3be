"""Reads a folder by its manifests: whole batches only, over all queries and sinks that write there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceforall.common import arguments
from onceforall.errors import ConfigurationError
from onceforall.protocol.names import sink_code
from onceforall.sinks.files.common_types import are_texts
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.layout import CSV_NULL, Layout
from onceforall.sinks.files.manifests.chain import all_of
from onceforall.sinks.files.manifests.content import BatchFiles
from onceforall.sinks.files.paths import HOME, MANIFESTS, local_folder, partition_of
from onceforall.sinks.files.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True)
class CommittedBatch:
    """One committed batch of one sink: Spark's query id, the sink's code (``sink_code`` of its name), and the batch's files."""

    query_id: str
    sink: str
    files: BatchFiles


def read_files(
    path: str | os.PathLike[str],
    *,
    query_id: str | None = None,
    sink: str | None = None,
    from_batch: int | None = None,
    to_batch: int | None = None,
    skip_deleted: bool = False,
) -> CommittedFiles:
    """Return what is committed in a folder of ``FileSink`` at this moment; it needs no Spark.

    Args:
        path: the sink's folder.
        query_id: only this query's.
        sink: only those of the sink of this name.
        from_batch: only batches from this one on.
        to_batch: only batches up to this one, itself included.
        skip_deleted: leave out data files that are gone: deleted by hand, for retention.

    Returns:
        A snapshot of the committed files. Each batch is in it whole or not at all, and with it all earlier ones of its query and sink. A
        later call never returns less. Batches of different queries or sinks are not read at one instant.

    Raises:
        ConfigurationError: the folder is missing, or no FileSink has ever written there; as OptionError: an argument is of a wrong type.
        UnsupportedQueryError: the path is not local.
        CorruptEntryError, ForeignEntryError, NewerEntryError: a manifest is damaged, missing, none of ours or a newer release's.
        OSError: the folder can't be read.
    """
    for name, given in (("query_id", query_id), ("sink", sink)):
        if given is not None:
            arguments.text(name, given)
    for name, batch in (("from_batch", from_batch), ("to_batch", to_batch)):
        if batch is not None:
            arguments.whole(name, batch, 0)
    arguments.flag("skip_deleted", skip_deleted)
    root = local_folder(path)
    if not (root / HOME).is_dir():
        reason = "holds no folder _onceforall: no FileSink has written there" if root.is_dir() else "does not exist"
        raise ConfigurationError(
            f"The folder {root} {reason}. Name the folder that FileSink was given; files of others are read with pyarrow or Spark directly."
        )
    code = None if sink is None else sink_code(sink)
    batches = []
    manifests = all_of(root / MANIFESTS) if (root / MANIFESTS).is_dir() else ()
    for each in manifests:
        if query_id not in {None, each.query_id} or code not in {None, each.sink}:
            continue
        batches += [
            CommittedBatch(each.query_id, each.sink, batch)
            for batch in each.read()
            if (from_batch is None or batch.batch >= from_batch) and (to_batch is None or batch.batch <= to_batch)
        ]
    return CommittedFiles(root, tuple(batches), skip_deleted=skip_deleted)


class CommittedFiles:
    """A snapshot of the committed files of a folder. It doesn't change when more is committed."""

    def __init__(self, root: Path, batches: Sequence[CommittedBatch], *, skip_deleted: bool = False) -> None:
        self._root = root
        self._tree = Tree(root)
        self.batches = tuple(batches)
        files = [pair for batch in batches for pair in batch.files.files]
        self._files: list[tuple[DataFile, Layout]] = [
            (file, layout) for file, layout in files if not skip_deleted or self._tree.is_there(root / file.path)
        ]

    def __repr__(self) -> str:
        return f"CommittedFiles({str(self._root)!r}, {len(self._files)} files, {self.rows} rows)"

    def __len__(self) -> int:
        return len(self._files)

    @property
    def paths(self) -> list[str]:
        """The absolute paths of the files, for any reader that takes a list of them."""
        return [str(self._root / file.path) for file, _ in self._files]

    @property
    def rows(self) -> int:
        """How many rows they have; no file is opened for that."""
        return sum(file.rows for file, _ in self._files)

    @property
    def bytes(self) -> int:
        """Their size."""
        return sum(file.bytes for file, _ in self._files)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all files, with the partition columns and those that a time bucket makes; without files: none.

        A column that folders say has the type STRING where the types that it had at different times have no common one.

        Raises:
            pyarrow.ArrowTypeError: files that were written at different times have types that have no common one, and no folder says the column, or
                one of the types is none of those that folders can say.
        """
        import pyarrow as pa

        found: dict[str, pa.Schema] = {}
        said: dict[str, None] = {}
        buckets: dict[str, None] = {}
        for file, layout in self._files:
            if layout.schema not in found:
                found[layout.schema] = layout.arrow_schema()
            said.update(dict.fromkeys(file.partition))
            buckets.update(dict.fromkeys(name for name in file.partition if name not in layout.partition_by))
        schemas = [*found.values(), pa.schema([(name, pa.string()) for name in buckets])]
        texts = {name for name in said if are_texts(name, [each.field(name).type for each in schemas if name in each.names])}
        schemas = [pa.schema([pa.field(f.name, pa.string()) if f.name in texts else f for f in each]) for each in schemas]
        return pa.unify_schemas(schemas, promote_options="permissive")

    def dataset(self) -> Dataset:
        """Return a pyarrow dataset.

        JSON and compressed CSV are read into memory at once: pyarrow's own dataset of JSON doesn't know all types, and that of CSV
        doesn't recognise zstd; so is CSV of which a column has another type than in the schema, because later files have a wider one. Of other CSV it reads rows of up to 16 MiB; ``to_arrow`` takes longer ones.

        Raises:
            ForeignEntryError: a link, a pipe or a folder stands where a data file must be.
            OSError: a link stands in the place of a folder on the way to one.
        """
        return self._dataset(_CSV_BLOCK)

    def _dataset(self, block: int) -> Dataset:
        from pyarrow import dataset as ds

        self._check_files()
        parts: list[Any] = []
        for layout, files in self._by_layout():
            # pyarrow's dataset would read CSV by the types of the whole, where a text may mean another value.
            at_once = layout.reading["format"] == "csv" and any(
                field.type != self.schema.field(field.name).type for field in _in_file(layout)
            )
            in_memory = [file for file in files if at_once or _is_read_at_once(file, layout)]
            parts += [ds.dataset(self._text_table(file, layout)) for file in in_memory]
            if len(in_memory) < len(files):
                # A block is memory, and a file smaller than one needs none of the full size.
                form = _format(layout, min(block, max(file.bytes for file in files) + 1))
                fragments = [self._fragment(form, file) for file in files if not at_once and not _is_read_at_once(file, layout)]
                parts.append(ds.FileSystemDataset(fragments, self.schema, form))
        if len(parts) == 1:
            return parts[0]
        return ds.dataset(parts) if parts else ds.dataset(self.schema.empty_table())

    def to_arrow(self) -> pa.Table:
        """Read everything into memory; errors as those of ``dataset``."""
        return _with_blocks(lambda block: self._dataset(block).to_table())

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return a DataFrame over exactly these files, with their partition columns.

        Args:
            spark: a classic session whose executors see the folder under the same path.

        Raises:
            UnsupportedQueryError: the session is one of Spark Connect.
            OptionError: it is no session.
            ForeignEntryError: a link, a pipe or a folder stands where a data file must be.
            OSError: a link stands in the place of a folder on the way to one.
            ConfigurationError: files are JSON with timestamps, and ``spark.sql.legacy.timeParserPolicy`` is LEGACY.

        The other settings of the session don't change what is read. A file that is missing or damaged is an error, whatever ``spark.sql.files.ignoreMissingFiles`` and
        ``ignoreCorruptFiles`` say.
        """
        arguments.check_session(spark, "read_files(…).to_spark")
        from pyspark.sql.functions import col, lit
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        self._check_files()
        # Spark reads every field of a file as nullable, and casts to nothing narrower.
        schema = _nullable(from_arrow_schema(self.schema, prefer_timestamp_ntz=True))
        frames = []
        for reading, stored, base, files in self._by_reading(schema):
            names = list(stored)
            _check_time_parser(spark, reading, schema)
            # A reader of its own for each group, with the group's columns only: Spark derives a read's partition columns from all of its
            # paths together, and passes over files whose folders say nothing where those of others do. CSV goes by columns' positions.
            here = StructType([schema[name] if kind is None else kind for name, kind in stored.items()])
            reader = spark.read.schema(here).option("basePath", f"file://{self._root / base.folder}")
            # What the session's settings would choose otherwise.
            reader = reader.options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
            if reading["format"] == "parquet":
                reader = reader.options(datetimeRebaseMode="CORRECTED", int96RebaseMode="CORRECTED")
            if reading["format"] in {"json", "csv"}:
                reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=_no_name(schema.names))
            if reading["format"] == "csv":
                reader = reader.options(
                    header=reading["header"], sep=reading["delimiter"], escape='"', multiLine=True, nullValue=CSV_NULL, enforceSchema=False
                )  # fmt: skip
            frame = reader.format(reading["format"]).load([_spark_path(self._root / file.path) for file in files])
            known = {name: _as_text_of_a_folder(col(_quoted(name)), stored[name], schema[name]) for name in names} | {
                name: lit(value) for name, value in base.values.items()
            }
            frames.append(
                frame.select(*(known.get(each.name, lit(None)).cast(each.dataType).alias(each.name) for each in schema.fields))
            )
        if not frames:
            return spark.createDataFrame([], StructType([]))
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def _check_files(self) -> None:
        """See that no reader is led out of the folder: by a link in the place of a data file, or of a folder on the way to one."""
        for folder, files in groupby(sorted(self._root / file.path for file, _ in self._files), key=lambda path: path.parent):
            with self._tree.held(folder):
                for file in files:
                    self._tree.check_file(file)

    def _by_layout(self) -> Iterator[tuple[Layout, list[DataFile]]]:
        groups: dict[str, tuple[Layout, list[DataFile]]] = {}
        for file, layout in self._files:
            groups.setdefault(repr(layout), (layout, []))[1].append(file)
        yield from groups.values()

    def _by_reading(
        self, schema: StructType
    ) -> Iterator[tuple[Mapping[str, Any], dict[str, StructField | None], _Base, list[DataFile]]]:
        """Group the files by how one reader of Spark takes them: each with the columns that it finds (see ``_stored``), and the folder that it begins at."""
        groups: dict[Any, tuple[Mapping[str, Any], dict[str, StructField | None], _Base, list[DataFile]]] = {}
        in_files: dict[str, dict[str, StructField | None]] = {}
        for file, layout in self._files:
            base, below = _base(file.folder)
            is_csv = layout.reading["format"] == "csv"
            stored = in_files.get(repr(layout))
            if stored is None:
                stored = in_files[repr(layout)] = _stored(layout, schema)
            # Spark's CSV reader goes by the position of columns, so that files with others must be read on their own. A column that is a
            # partition's here and stands in files there is never both in one read: Spark would take the folder's value for all.
            own = [(name, repr(kind)) for name, kind in stored.items() if kind is not None]
            key = (
                repr(layout) if is_csv else repr((sorted(layout.reading.items()), layout.partition_by, own)),
                base.folder,
                below,
            )
            _, columns, _, files = groups.setdefault(key, (layout.reading, {}, base, []))
            columns.update({**stored, **dict.fromkeys(below)})
            files.append(file)
        yield from groups.values()

    def _fragment(self, form: Any, file: DataFile) -> Any:
        import pyarrow.compute as pc
        from pyarrow import fs

        guarantee = None
        for name, text in file.partition.items():
            value = pc.field(name).is_null() if text is None else pc.field(name) == self._value(name, text)
            guarantee = value if guarantee is None else guarantee & value
        path = str(self._root / file.path)
        return form.make_fragment(path, filesystem=fs.LocalFileSystem(), partition_expression=guarantee)

    def _value(self, name: str, text: str | None) -> Any:
        import pyarrow as pa

        from onceforall.sinks.files.reading.json_lines import days_of

        kind = self.schema.field(name).type
        if text is not None and pa.types.is_date32(kind):
            return pa.scalar(days_of(text), pa.int32()).cast(kind)
        return pa.scalar(text, pa.string()).cast(kind)

    def _text_table(self, file: DataFile, layout: Layout) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv

        from onceforall.sinks.files.reading.json_lines import decoded

        schema = _in_file(layout)

        def read(block: int) -> pa.Table:
            with pa.input_stream(str(self._root / file.path), compression="detect") as stream:
                if layout.reading["format"] == "csv":
                    return csv.read_csv(stream, **_csv(layout, block))
                return decoded(stream.read(), schema)

        table = _with_blocks(read)
        columns = []
        for field in self.schema:
            if field.name in file.partition:
                columns.append(pa.repeat(self._value(field.name, file.partition[field.name]), table.num_rows))
            elif field.name in schema.names:
                columns.append(table.column(field.name).cast(field.type))
            else:
                columns.append(pa.nulls(table.num_rows, field.type))
        return pa.Table.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class _Base:
    """Where Spark begins to look for partition columns: the folder, and the columns that those above it say."""

    folder: str
    values: Mapping[str, str | None]


def _base(folder: str) -> tuple[_Base, tuple[str, ...]]:
    """Return where Spark must begin, and the partition columns below that.

    Spark goes from a file upwards, passes over plain folders, and ends at the first plain one above a ``name=value``: what is above that must
    be told to it.
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


def _is_read_at_once(file: DataFile, layout: Layout) -> bool:
    kind = layout.reading["format"]
    return kind == "json" or (kind == "csv" and not file.name.endswith(".csv"))


def _in_file(layout: Layout) -> pa.Schema:
    """Return the columns that stand in a file itself."""
    import pyarrow as pa

    return pa.schema([field for field in layout.arrow_schema() if field.name not in layout.partition_by])


_CSV_BLOCK, _LARGEST_BLOCK = 16 << 20, (1 << 31) - 1


def _stored(layout: Layout, schema: StructType) -> dict[str, StructField | None]:
    """Return the columns of a file, each with its own type where Spark must read it by that and cast it to that of ``schema``; else with None.

    Of text it must, for a text means what the type says that it was written by: 0.1 of a FLOAT is another number than 0.1 of a DOUBLE. Of Parquet's
    decimals it must: a filter by a number with more bytes than the file's decimals have ends the read.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StringType, StructField

    own = _nullable(from_arrow_schema(_in_file(layout), prefer_timestamp_ntz=True))
    form = layout.reading["format"]
    found: dict[str, StructField | None] = {}
    for each in own.fields:
        kind = _narrowed(schema[each.name].dataType, each.dataType)
        becomes_text = isinstance(schema[each.name].dataType, StringType)
        by_own = becomes_text or form in {"json", "csv"} or (form == "parquet" and "decimal" in kind.simpleString())
        found[each.name] = StructField(each.name, kind) if by_own and kind != schema[each.name].dataType else None
    return found


def _as_text_of_a_folder(column: Column, own: StructField | None, wanted: StructField) -> Column:
    """Return a column's values as ``partition_by`` writes them, and pyarrow, where it is a text in the whole: Spark has a sign before years of five digits."""
    from pyspark.sql.functions import regexp_replace
    from pyspark.sql.types import DateType, StringType

    if own is None or not isinstance(wanted.dataType, StringType) or not isinstance(own.dataType, DateType):
        return column
    return regexp_replace(column.cast("string"), r"^\+", "")


def _narrowed(kind: DataType, own: DataType) -> DataType:
    """Return a type with the fields of ``kind``, in their order, since Spark casts a struct by position, and with the simple types of ``own`` in it."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType) and isinstance(own, StructType):
        of_own = {each.name: each.dataType for each in own.fields}
        narrowed = ((each, _narrowed(each.dataType, of_own.get(each.name, each.dataType))) for each in kind.fields)
        return StructType([StructField(each.name, inner, metadata=each.metadata) for each, inner in narrowed])
    if isinstance(kind, ArrayType) and isinstance(own, ArrayType):
        return ArrayType(_narrowed(kind.elementType, own.elementType))
    if isinstance(kind, MapType) and isinstance(own, MapType):
        return MapType(_narrowed(kind.keyType, own.keyType), _narrowed(kind.valueType, own.valueType))
    return own


def _check_time_parser(spark: SparkSession, reading: Mapping[str, Any], schema: StructType) -> None:
    if (
        reading["format"] == "json"
        and str(spark.conf.get("spark.sql.legacy.timeParserPolicy")).upper() == "LEGACY"
        and any("timestamp" in field.dataType.simpleString() for field in schema.fields)
    ):
        raise ConfigurationError(
            "With spark.sql.legacy.timeParserPolicy=LEGACY Spark reads 10:00:00.123456 in JSON as 10:02:03.456. Set it to CORRECTED for this session, or "
            "read with to_arrow()."
        )


def _no_name(names: Sequence[str]) -> str:
    """Return a column's name that none has: where Spark's readers of text would put a line that they can't read."""
    name = "_corrupt_record"
    while name in names:
        name = f"_{name}"
    return name


def _with_blocks(read: Callable[[int], pa.Table], block: int = _CSV_BLOCK) -> pa.Table:
    """Read CSV with blocks that are large enough: pyarrow takes no row that begins in one, and ends behind the next."""
    import pyarrow as pa

    try:
        return read(block)
    except pa.ArrowInvalid as error:
        if "straddl" not in str(error) or block == _LARGEST_BLOCK:
            raise
    return _with_blocks(read, min(block * 8, _LARGEST_BLOCK))


def _format(layout: Layout, block: int) -> Any:
    from pyarrow import dataset as ds

    kind = layout.reading["format"]
    if kind == "parquet":
        return ds.ParquetFileFormat()
    if kind == "orc":
        return ds.OrcFileFormat()
    if kind != "csv":
        raise ConfigurationError(
            f"Files of the format {kind!r} were written by a newer release of onceforall. Read them with that one."
        )
    return ds.CsvFileFormat(**_csv(layout, block))


def _csv(layout: Layout, block: int) -> dict[str, Any]:
    """Return the options with which pyarrow reads CSV as it was written."""
    from pyarrow import csv

    schema = _in_file(layout)
    return {
        "parse_options": csv.ParseOptions(
            delimiter=layout.reading["delimiter"], newlines_in_values=True, ignore_empty_lines=False
        ),
        "convert_options": csv.ConvertOptions(
            column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
        "read_options": csv.ReadOptions(
            column_names=schema.names, skip_rows=1 if layout.reading["header"] else 0, block_size=block
        ),
    }


def _nullable(schema: StructType) -> StructType:
    """Return a schema whose fields, elements and values may all be null, at each depth."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    def loosened(kind: DataType) -> DataType:
        if isinstance(kind, StructType):
            return StructType(
                [StructField(each.name, loosened(each.dataType), nullable=True, metadata=each.metadata) for each in kind.fields]
            )
        if isinstance(kind, ArrayType):
            return ArrayType(loosened(kind.elementType))
        if isinstance(kind, MapType):
            return MapType(loosened(kind.keyType), loosened(kind.valueType))
        return kind

    return StructType(
        [StructField(each.name, loosened(each.dataType), nullable=True, metadata=each.metadata) for each in schema.fields]
    )


def _spark_path(path: Path) -> str:
    """Return a path that Spark takes literally: it expands ``*`` and its like."""
    escaped = "".join(f"\\{char}" if char in "*?[]{}\\" else char for char in str(path))
    return f"file://{escaped}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
