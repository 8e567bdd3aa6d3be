"""Reads committed files with pyarrow, by the columns of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from onceforall.errors import ConfigurationError
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.layout import Layout
from onceforall.sinks.files.reading.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset

CSV_BLOCK, _LARGEST_BLOCK = 16 << 20, (1 << 31) - 1


def dataset_of(
    source: Source, files: Sequence[tuple[DataFile, Layout]], schema: pa.Schema, block: int
) -> Dataset:
    """Return a dataset of files by the columns of the whole; ``block``: how much of CSV is read
    at once, and the longest row.
    """
    from pyarrow import dataset as ds

    parts: list[Any] = []
    for layout, group in _by_layout(files):
        # pyarrow's dataset would read CSV by the types of the whole, where a text may mean another
        # value.
        at_once = layout.reading["format"] == "csv" and any(
            field.type != schema.field(field.name).type for field in layout.schema_in_file()
        )
        in_memory = [file for file in group if at_once or _is_read_at_once(file, layout)]
        parts += [ds.dataset(_text_table(source, file, layout, schema)) for file in in_memory]
        if len(in_memory) < len(group):
            # A block is memory, and a file smaller than one needs none of the full size.
            form = _format(layout, min(block, max(file.bytes for file in group) + 1))
            fragments = [
                _fragment(source, form, file, schema)
                for file in group
                if not at_once and not _is_read_at_once(file, layout)
            ]
            parts.append(ds.FileSystemDataset(fragments, schema, form))
    if len(parts) == 1:
        return parts[0]
    return ds.dataset(parts) if parts else ds.dataset(schema.empty_table())


def _by_layout(files: Sequence[tuple[DataFile, Layout]]) -> Iterator[tuple[Layout, list[DataFile]]]:
    groups: dict[str, tuple[Layout, list[DataFile]]] = {}
    for file, layout in files:
        groups.setdefault(repr(layout), (layout, []))[1].append(file)
    yield from groups.values()


def _fragment(source: Source, form: Any, file: DataFile, schema: pa.Schema) -> Any:
    import pyarrow.compute as pc

    guarantee = None
    for name, text in file.partition.items():
        value = (
            pc.field(name).is_null()
            if text is None
            else pc.field(name) == _value(name, text, schema)
        )
        guarantee = value if guarantee is None else guarantee & value
    path, files = source.in_arrow(file)
    return form.make_fragment(path, filesystem=files, partition_expression=guarantee)


def _value(name: str, text: str | None, schema: pa.Schema) -> Any:
    import pyarrow as pa

    from onceforall.sinks.files.reading.json_lines import days_of

    kind = schema.field(name).type
    if text is not None and pa.types.is_date32(kind):
        return pa.scalar(days_of(text), pa.int32()).cast(kind)
    return pa.scalar(text, pa.string()).cast(kind)


def _text_table(source: Source, file: DataFile, layout: Layout, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    from onceforall.sinks.files.reading.json_lines import decoded

    stored = layout.schema_in_file()

    def read(block: int) -> pa.Table:
        with source.stream(file) as stream:
            if layout.reading["format"] == "csv":
                return csv.read_csv(stream, **_csv(layout, block))
            return decoded(stream.read(), stored)

    table = with_blocks(read)
    columns = []
    for field in schema:
        if field.name in file.partition:
            columns.append(
                pa.repeat(_value(field.name, file.partition[field.name], schema), table.num_rows)
            )
        elif field.name in stored.names:
            columns.append(table.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _is_read_at_once(file: DataFile, layout: Layout) -> bool:
    kind = layout.reading["format"]
    return kind == "json" or (kind == "csv" and not file.name.endswith(".csv"))


def with_blocks(read: Callable[[int], pa.Table], block: int = CSV_BLOCK) -> pa.Table:
    """Read CSV with blocks that are large enough: pyarrow takes no row that begins in one, and
    ends behind the next.
    """
    import pyarrow as pa

    try:
        return read(block)
    except pa.ArrowInvalid as error:
        if "straddl" not in str(error) or block == _LARGEST_BLOCK:
            raise
    return with_blocks(read, min(block * 8, _LARGEST_BLOCK))


def _format(layout: Layout, block: int) -> Any:
    from pyarrow import dataset as ds

    kind = layout.reading["format"]
    if kind == "parquet":
        return ds.ParquetFileFormat()
    if kind == "orc":
        return ds.OrcFileFormat()
    if kind != "csv":
        raise ConfigurationError(
            f"Files of the format {kind!r} were written by a newer release of onceforall. Read "
            "them with that one."
        )
    return ds.CsvFileFormat(**_csv(layout, block))


def _csv(layout: Layout, block: int) -> dict[str, Any]:
    """Return the options with which pyarrow reads CSV as it was written."""
    from pyarrow import csv

    schema = layout.schema_in_file()
    return {
        "parse_options": csv.ParseOptions(
            delimiter=layout.reading["delimiter"], newlines_in_values=True, ignore_empty_lines=False
        ),
        "convert_options": csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
        "read_options": csv.ReadOptions(
            column_names=schema.names,
            skip_rows=1 if layout.reading["header"] else 0,
            block_size=block,
        ),
    }
