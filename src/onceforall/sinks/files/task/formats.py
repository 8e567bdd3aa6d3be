"""The four file formats: their options, their writers, and which types each can store.

- *format* (*compression (the first is the default)*): *options*
- ``parquet`` (snappy, zstd, gzip, lz4, brotli, none): ``_PARQUET``, as of
  ``pyarrow.parquet.ParquetWriter``
- ``orc`` (zstd, snappy, zlib, lz4, none): ``_ORC``, as of ``pyarrow.orc.ORCWriter``
- ``json`` (none, gzip, zstd, bz2): ``ignore_null_fields`` (true)
- ``csv`` (none, gzip, zstd, bz2): ``header`` (true), ``delimiter`` (a comma)

Timestamps with a zone are stored in UTC, whatever the session's zone is. CSV writes null as nothing
and the empty string as ``""``, and NaN and infinity as Spark does (``NaN``, ``Inf``). JSON: see
module ``json_lines``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from onceforall.common.arguments import mapping, shown
from onceforall.errors import OptionError, RefusedRecordError
from onceforall.sinks.files.layout import CSV_NULL

if TYPE_CHECKING:
    import pyarrow as pa

Format: TypeAlias = Literal["parquet", "json", "csv", "orc"]

COMPRESSIONS: Mapping[str, Mapping[str, str]] = {
    "parquet": {
        "snappy": ".snappy",
        "zstd": ".zstd",
        "gzip": ".gz",
        "lz4": ".lz4",
        "brotli": ".br",
        "none": "",
    },
    "orc": {"zstd": ".zstd", "snappy": ".snappy", "zlib": ".zlib", "lz4": ".lz4", "none": ""},
    "json": {"none": "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"},
    "csv": {"none": "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"},
}
"""Per format, what it can be compressed with, the default first, and what stands for it in a
file's name."""


_PARQUET = {
    "compression_level": int,
    "data_page_size": int,
    "data_page_version": str,
    "dictionary_pagesize_limit": int,
    "use_dictionary": (bool, list),
    "version": str,
    "write_page_checksum": bool,
    "write_page_index": bool,
    "write_statistics": (bool, list),
}
_ORC = {
    "compression_block_size": int,
    "dictionary_key_size_threshold": float,
    "row_index_stride": int,
    "stripe_size": int,
}
_ORC_BLOCK = 8 << 20
"""From this compression block on, ORC's C++ writer doesn't raise an error but ends the process."""
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "parquet": _PARQUET,
    "orc": _ORC,
    "json": {"ignore_null_fields": bool},
    "csv": {"header": bool, "delimiter": str},
}


class FormatWriter(Protocol):
    """Writes the rows of one file."""

    def write(self, rows: pa.Table) -> None:
        """Write rows; they may stay in the writer for a while."""

    def close(self) -> None:
        """Write what is missing; the file below stays open."""


@dataclass(frozen=True)
class FileFormat:
    """A format with its options; make it with ``file_format``.

    Attributes:
        kind: ``parquet``, ``orc``, ``json`` or ``csv``.
        compression: one of ``COMPRESSIONS`` of this format.
        options: those of the writer.
    """

    kind: str
    compression: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def extension(self) -> str:
        """How names of files end: of text formats readers tell the compression by it."""
        codec = COMPRESSIONS[self.kind][self.compression]
        return f"{codec}.{self.kind}" if self.kind in {"parquet", "orc"} else f".{self.kind}{codec}"

    def body(self) -> dict[str, Any]:
        """Return, as JSON, what a reader must know."""
        if self.kind == "csv":
            return {
                "format": "csv",
                "header": self.options.get("header", True),
                "delimiter": self.options.get("delimiter", ","),
            }
        return {"format": self.kind}

    def open(self, file: IO[bytes], schema: pa.Schema, max_bytes: int) -> FormatWriter:
        """Begin a file.

        Args:
            file: empty, and open for writing.
            schema: of its rows.
            max_bytes: at which size the file will be ended.
        """
        writer: FormatWriter = _WRITERS[self.kind](self, file, schema, max_bytes)
        return writer


def file_format(
    kind: str, compression: str | None, options: Mapping[str, Any] | None
) -> FileFormat:
    """Return a format.

    Args:
        kind: its name.
        compression: None for the format's default.
        options: None for none.

    Raises:
        OptionError: format, compression or an option is unknown or malformed; the message lists the
            known ones.
    """
    if not isinstance(kind, str) or kind not in COMPRESSIONS:
        raise OptionError(
            f"format={shown(kind)} is unknown. FileSink writes {', '.join(COMPRESSIONS)}."
        )
    known = COMPRESSIONS[kind]
    compression = next(iter(known)) if compression is None else compression
    if compression not in known:
        raise OptionError(
            f"compression={compression!r} is unknown for {kind}. It can be {', '.join(known)}."
        )
    options = mapping(
        "options", {} if options is None else options, "a dictionary of the format's options"
    )
    for name, value in options.items():
        wanted = _OPTIONS[kind].get(name)
        if wanted is None:
            raise OptionError(
                f"The option {name!r} is unknown for {kind}. There are: "
                f"{', '.join(sorted(_OPTIONS[kind]))}."
            )
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise OptionError(f"The option {name!r} of {kind} can't be {shown(value)}.")
    if kind == "orc" and options.get("compression_block_size", 0) >= _ORC_BLOCK:
        raise OptionError(
            "The option 'compression_block_size' of orc can't be "
            f"{options['compression_block_size']}. It must be a multiple of 65536 below "
            f"{_ORC_BLOCK} (8 MiB)."
        )
    delimiter = options.get("delimiter", ",")
    if len(delimiter.encode()) != 1 or delimiter in '"\r\n\\':
        raise OptionError(
            "The option 'delimiter' of csv must be one ASCII character other than a quote, a "
            f"backslash or a line's end, not {delimiter!r}."
        )
    made = FileFormat(kind, compression, options)
    _check_accepted(made)
    return made


def _check_accepted(made: FileFormat) -> None:
    """Write a row in memory, so that pyarrow refuses now what it would refuse in a task."""
    import io

    import pyarrow as pa

    try:
        row = pa.table({"c": ["x"]})
        writer = made.open(io.BytesIO(), row.schema, 1 << 20)
        writer.write(row)
        writer.close()
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise OptionError(
            f"pyarrow refuses compression={made.compression!r} with the options {made.options}: "
            f"{error}"
        ) from error


class _Parquet:
    def __init__(
        self,
        form: FileFormat,
        file: IO[bytes],
        schema: pa.Schema,
        max_bytes: int,  # noqa: ARG002
    ) -> None:
        import pyarrow.parquet as pq

        options = {
            **form.options,
            "write_statistics": _with_statistics(
                schema, form.options.get("write_statistics", True)
            ),
        }
        self._writer = pq.ParquetWriter(file, schema, compression=form.compression, **options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> None:
        self._writer.close()


def _with_statistics(schema: pa.Schema, wanted: bool | Sequence[str]) -> bool | list[str]:  # noqa: FBT001
    """Return the columns of a Parquet file that get a least and a greatest value: of those that are
    wanted all but floating-point ones.

    pyarrow leaves NaN out of them, as the format asks for, and Spark takes NaN for the greatest
    number of all: its reader would pass over a row group of 1, NaN and 2 where it looks for what is
    greater than 5, and lose the NaN. Spark's own writer stores no statistics where there is a NaN
    (https://github.com/apache/parquet-format, ``ColumnOrder``); here they must be chosen before the
    first value is seen.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if wanted is False or not schema.names:
        return False
    empty = pa.BufferOutputStream()
    with pq.ParquetWriter(empty, schema):
        pass
    stored = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    leaves = [stored.column(i) for i in range(len(stored))]
    floating = {leaf.path for leaf in leaves if leaf.physical_type in {"FLOAT", "DOUBLE"}}
    if not floating:
        return wanted if wanted is True else list(wanted)
    return [
        leaf.path
        for leaf in leaves
        if leaf.path not in floating and (wanted is True or leaf.path in wanted)
    ]


class _Orc:
    def __init__(
        self, form: FileFormat, file: IO[bytes], schema: pa.Schema, max_bytes: int
    ) -> None:
        import pyarrow as pa
        from pyarrow import orc

        compression = "uncompressed" if form.compression == "none" else form.compression
        options = {"stripe_size": min(64 << 20, max(max_bytes, 1 << 16)), **form.options}
        self._file = _Unraising(file)
        self._writer = orc.ORCWriter(
            pa.PythonFile(self._file, mode="w"), compression=compression, **options
        )
        self._file.check()
        self._schema = schema
        self._is_empty = True

    def write(self, rows: pa.Table) -> None:
        from onceforall.sinks.files.task.orc_values import check_values

        check_values(rows)
        self._is_empty = False
        self._writer.write(_from_the_beginning(rows))
        self._file.check()

    def close(self) -> None:
        if self._is_empty:
            self._writer.write(self._schema.empty_table())
        self._writer.close()
        self._file.check()


def _from_the_beginning(rows: pa.Table) -> pa.Table:
    """Return rows whose arrays begin at their own beginning.

    Of a slice with STRUCTs that are null, ORCWriter writes the fields of other rows (pyarrow 26.0).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not any(pa.types.is_nested(each.type) for each in rows.schema):
        return rows
    return rows.take(pc.indices_nonzero(pa.repeat(True, rows.num_rows)))  # noqa: FBT003


class _Unraising:
    """A file to write that keeps its first error until it is asked for it.

    ORC's C++ writer closes its file in a destructor, where an exception ends the whole process: a
    full disk would end the Python worker, with whatever else it was doing.
    """

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = 0
        self._failure: BaseException | None = None

    def write(self, content: Any) -> int:
        size = memoryview(content).nbytes
        self._size += size
        if self._failure is None:
            try:
                self._file.write(content)
            except BaseException as error:  # noqa: BLE001  raised by check; an interrupt, too, ends the process
                self._failure = error
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        if self._failure is None:
            try:
                self._file.flush()
            except BaseException as error:  # noqa: BLE001  as above
                self._failure = error

    close = flush

    def check(self) -> None:
        """Raise what was kept; the same each time."""
        if self._failure is not None:
            raise self._failure


class _Unclosed:
    """A file to write whose ``close`` leaves it open."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write
        self.flush = self.close = file.flush


class _Text:
    """A text format, compressed on the way to the file."""

    def __init__(self, form: FileFormat, file: IO[bytes]) -> None:
        import pyarrow as pa

        # A compressing stream closes what is below it, but the file must stay open to be synced.
        self._out: Any = pa.PythonFile(_Unclosed(file), mode="w")
        if form.compression != "none":
            self._out = pa.CompressedOutputStream(self._out, form.compression)
        self._is_compressed = form.compression != "none"

    def close(self) -> None:
        if self._is_compressed:
            self._out.close()
        else:
            self._out.flush()


class _Json(_Text):
    def __init__(
        self,
        form: FileFormat,
        file: IO[bytes],
        schema: pa.Schema,  # noqa: ARG002
        max_bytes: int,  # noqa: ARG002
    ) -> None:
        super().__init__(form, file)
        self._ignore_null_fields = bool(form.options.get("ignore_null_fields", True))

    def write(self, rows: pa.Table) -> None:
        from onceforall.sinks.files.task.json_lines import encoded
        from onceforall.sinks.files.task.texts import check_keys, check_lengths, check_texts
        from onceforall.sinks.files.task.times import check_text, check_times

        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            check_times(name, column, check_text)
            check_texts(name, column)
            check_lengths(name, column)
            check_keys(name, column)
        for batch in rows.to_batches(max_chunksize=10_000):
            self._out.write(encoded(batch, ignore_null_fields=self._ignore_null_fields))


class _Csv(_Text):
    def __init__(
        self,
        form: FileFormat,
        file: IO[bytes],
        schema: pa.Schema,
        max_bytes: int,  # noqa: ARG002
    ) -> None:
        import pyarrow as pa
        from pyarrow import csv

        super().__init__(form, file)
        options = csv.WriteOptions(
            include_header=form.options.get("header", True),
            delimiter=form.options.get("delimiter", ","),
            quoting_style="needed",
        )
        as_text = pa.schema(
            [(f.name, pa.string() if _is_float(f.type) else f.type) for f in schema]
        )
        self._writer = csv.CSVWriter(self._out, as_text, write_options=options)
        self._schema = as_text

    def write(self, rows: pa.Table) -> None:
        import pyarrow as pa

        from onceforall.sinks.files.task.texts import check_texts
        from onceforall.sinks.files.task.times import check_times

        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            check_times(name, column, _check_years)
            check_texts(name, column)
            _check_null(name, column)
        columns = [_spark_floats(c) if _is_float(c.type) else c for c in rows.columns]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
        super().close()


_YEAR_0_DAYS, _YEAR_10000_DAYS = -719_528, 2_932_897


def _check_years(path: str, values: pa.Array) -> None:
    """See that a CSV reader can read a column's times: years have four digits there; nanoseconds
    since 1970 have no others.

    Raises:
        RefusedRecordError: naming the column and the value.
    """
    from onceforall.sinks.files.task.times import outside, refuse

    refuse(
        path,
        values,
        outside(values, _YEAR_0_DAYS, _YEAR_10000_DAYS),
        "CSV's readers take years of four digits only",
    )


def _check_null(name: str, column: pa.ChunkedArray) -> None:
    """See that no text is the one that stands for null where Spark reads CSV.

    Raises:
        RefusedRecordError: naming the column and the value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type) and pc.any(pc.equal(column, CSV_NULL)).as_py():
        raise RefusedRecordError(
            f"Column {name!r} holds {CSV_NULL!r}, which read_files(...).to_spark() would take for "
            "a null in CSV. Filter such rows out, or use "
            "format='parquet'."
        )


def _is_float(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind))


def _spark_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floating-point numbers as texts, the special ones as Spark reads them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column.cast(pa.string())
    for theirs, sparks in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Inf"), ("-inf", "-Inf")):
        texts = pc.if_else(pc.fill_null(pc.equal(texts, theirs), False), sparks, texts)  # noqa: FBT003  pyarrow's argument
    return texts


_WRITERS: Mapping[str, Any] = {"parquet": _Parquet, "orc": _Orc, "json": _Json, "csv": _Csv}


def in_utc(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all timestamps with a zone in UTC, nested ones too, and without
    metadata.
    """
    import pyarrow as pa

    return pa.schema([pa.field(f.name, _in_utc(f.type), f.nullable) for f in schema])


def _in_utc(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(
            pa.field(kind.value_field.name, _in_utc(kind.value_type), kind.value_field.nullable)
        )
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct(
            [kind.field(i).with_type(_in_utc(kind.field(i).type)) for i in range(kind.num_fields)]
        )
    return kind
