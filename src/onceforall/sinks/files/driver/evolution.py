"""Whether readers can take what will be written together with what lies in the folder already: told
at start, by columns.

A column may be added, or left out, or get a wider type of its kind: readers of whole folders join
that. What they can't join is not refused, for some want to read only what is new; but nobody shall
find it out when the folder can't be read any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onceforall.common import logs
from onceforall.errors import OnceForAllError
from onceforall.sinks.files.common_types import are_texts
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.layout import Layout
from onceforall.sinks.files.manifests.chain import all_of
from onceforall.sinks.files.places import Files
from onceforall.sinks.files.time_buckets import TimeBucket, sample_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_log = logs.logger("onceforall.sinks.files")


def warn_of_changes(
    tree: Files,
    schema: StructType,
    form: str,
    partition_by: Sequence[str],
    bucket: TimeBucket | None,
) -> None:
    """Tell in the log what readers can't take together of what lies in a folder and what will be
    written there.

    Args:
        tree: the folder.
        schema: the columns that will be written.
        form: the format.
        partition_by: the columns that go into folders' names.
        bucket: the time bucket.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    root = tree.root
    try:
        files = newest_files(tree)
        mine = (*partition_by, *(bucket.hive_columns if bucket else ()))
        kinds = {
            repr((layout, *file.partition)): (layout, [*file.partition]) for file, layout in files
        }.values()
        found: list[str] = []
        strange: dict[str, str] = {}
        for layout, theirs in kinds:
            old = from_arrow_schema(layout.arrow_schema(), prefer_timestamp_ntz=True)
            here = texts(with_folders(schema, mine), with_folders(old, theirs), {*mine, *theirs})
            strange.update(here)
            found += differences(
                StructType([each for each in schema.fields if each.name not in here]), old, form
            )
    except (OnceForAllError, OSError, ValueError) as error:
        _log.warning(
            "The columns of the files in %s can't be compared with those of the query: %s",
            root,
            error,
        )
        return
    if found:
        _log.warning(
            "Readers can't take the files in %s together with those that this query writes: %s. "
            "Cast or rename, or write to another folder.",
            root, "; ".join(dict.fromkeys(found)),
        )  # fmt: skip
    if strange:
        _log.warning(
            "A column that folders in %s say has another type in files of before: %s. Readers "
            "that know no manifest may fail on both. Give the column "
            "its old type, or partition by another name.",
            root, "; ".join(strange.values()),
        )  # fmt: skip
    new = sample_folder(partition_by, bucket)
    others = {kind_of_folder(file.folder) for file, _ in files} - {kind_of_folder(new)}
    if others:
        _log.warning(
            "The newest files in %s lie in folders of another kind (%s) than those that this "
            "query writes (%s). read_files takes all of them; "
            "spark.read and others that derive columns from folders fail on that, or leave rows "
            "out. Write to another folder if you need these.",
            root, ", ".join(sorted(others)), kind_of_folder(new),
        )  # fmt: skip


def newest_files(tree: Files) -> list[tuple[DataFile, Layout]]:
    """Return the files of the newest batch of each query and sink in a folder; it opens one
    manifest of each.

    Raises:
        CommitLogError: a manifest is damaged.
        OSError: the folder can't be read.
    """
    found: list[tuple[DataFile, Layout]] = []
    for manifests in all_of(tree):
        links = manifests.listing().chain()
        if links:
            found += manifests.read_link(links[-1]).batches[-1].files
    return found


def kind_of_folder(folder: str) -> str:
    """Return, in words, what of a folder is the same for all values: ``day=…/…``."""
    if not folder:
        return "no folders"
    return "/".join(
        f"{part.partition('=')[0]}=…" if "=" in part else "…" for part in folder.split("/")
    )


def with_folders(schema: StructType, said: Collection[str]) -> StructType:
    """Return a schema with the columns that folders say and that are none of the query's: those
    of a time bucket, which are texts.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType(
        [
            *schema.fields,
            *(StructField(name, StringType()) for name in said if name not in schema.names),
        ]
    )


def texts(new: StructType, old: StructType, said: Collection[str]) -> Mapping[str, str]:
    """Return, in words, which columns that folders say have types without a common one, so that
    readers get them as texts, or fail on them.

    Args:
        new: the columns that will be written, ``with_folders``.
        old: those of files that are there, the same.
        said: the columns that folders of one of them say.
    """
    import pyarrow as pa

    found = {}
    for field in new.fields:
        if field.name not in said or field.name not in old.names:
            continue
        before, now = old[field.name].dataType, field.dataType
        changed = f"the column {field.name!r} was {_shown(before)}, and is {_shown(now)} now"
        try:
            if are_texts(field.name, [_arrow(kind) for kind in (before, now)]):
                found[field.name] = f"{changed}, and read_files reads it as STRING"
        except pa.ArrowTypeError:
            found[field.name] = f"{changed}, which read_files can't read together"
    return found


def _arrow(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a simple type; pyspark's own function has other parameters in
    each release. Nested ones have no text, whatever is in them.
    """
    import pyarrow as pa
    from pyspark.sql.types import DecimalType

    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    simple = {
        "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(),  # noqa: E501
        "double": pa.float64(), "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),  # noqa: E501
    }  # fmt: skip
    return simple.get(
        kind.simpleString(),
        pa.string()
        if kind.simpleString().startswith(("string", "char", "varchar"))
        else pa.struct([]),
    )


def differences(new: StructType, old: StructType, form: str = "") -> Iterator[str]:
    """Yield, in words, what readers can't take together in files of a format."""
    by_small = {field.name.lower(): field for field in old.fields}
    for field in new.fields:
        before = by_small.get(field.name.lower())
        if before is None:
            continue
        if before.name != field.name:
            yield f"the column {before.name!r} is {field.name!r} now"
        elif not _joins(before.dataType, field.dataType, form):
            yield (
                f"the column {before.name!r} was {_shown(before.dataType)}, and is "
                f"{_shown(field.dataType)} now"
            )


def _shown(kind: DataType) -> str:
    return kind.simpleString().upper()


def _joins(one: DataType, other: DataType, form: str) -> bool:
    """Tell whether Spark, and pyarrow, read columns of both types as one."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        # Spark's Parquet reader fails on a filter by a number that has more bytes than the file's
        # decimals; without a filter it reads them.
        return one.scale == other.scale and (one.precision == other.precision or form != "parquet")
    if isinstance(one, StructType) and isinstance(other, StructType):
        return not any(differences(other, one, form))
    if isinstance(one, MapType) and isinstance(other, MapType):
        return _joins(one.keyType, other.keyType, form) and _joins(
            one.valueType, other.valueType, form
        )
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return _joins(one.elementType, other.elementType, form)
    names = {type(one).__name__, type(other).__name__}
    return len(names) == 1 or any(names <= kinds for kinds in _KINDS)


_KINDS = (
    {"ByteType", "ShortType", "IntegerType", "LongType"},
    {"FloatType", "DoubleType"},
    {"StringType", "VarcharType", "CharType"},
)

__all__ = ["differences", "warn_of_changes"]
