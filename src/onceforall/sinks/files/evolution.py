"""Whether readers can take what will be written together with what lies in the folder already: told at start, by columns.

A column may be added, or left out, or get a wider type of its kind: readers of whole folders join that. What they can't join is not refused,
for some want to read only what is new; but nobody shall find it out when the folder can't be read any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onceforall.sinks.files.layout import MANIFESTS, DataFile
from onceforall.sinks.files.manifests import Layout, all_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.types import DataType, StructType


def newest_files(root: Path) -> list[tuple[DataFile, Layout]]:
    """Return the files of the newest batch of each query and sink in a folder; it opens one manifest of each.

    Raises:
        CommitLogError: a manifest is damaged.
        OSError: the folder can't be read.
    """
    found: list[tuple[DataFile, Layout]] = []
    for manifests in all_of(root / MANIFESTS) if (root / MANIFESTS).is_dir() else ():
        links = manifests.listing().chain()
        if links:
            found += manifests.read_link(links[-1]).batches[-1].files
    return found


def kind_of_folder(folder: str) -> str:
    """Return, in words, what of a folder is the same for all values: ``day=…/…``."""
    if not folder:
        return "no folders"
    return "/".join(f"{part.partition('=')[0]}=…" if "=" in part else "…" for part in folder.split("/"))


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
            yield f"the column {before.name!r} was {_shown(before.dataType)}, and is {_shown(field.dataType)} now"


def _shown(kind: DataType) -> str:
    return kind.simpleString().upper()


def _joins(one: DataType, other: DataType, form: str) -> bool:
    """Tell whether Spark, and pyarrow, read columns of both types as one."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        # Spark's Parquet reader fails on a filter by a number that has more bytes than the file's decimals; without a filter it reads them.
        return one.scale == other.scale and (one.precision == other.precision or form != "parquet")
    if isinstance(one, StructType) and isinstance(other, StructType):
        return not any(differences(other, one, form))
    if isinstance(one, MapType) and isinstance(other, MapType):
        return _joins(one.keyType, other.keyType, form) and _joins(one.valueType, other.valueType, form)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return _joins(one.elementType, other.elementType, form)
    names = {type(one).__name__, type(other).__name__}
    return len(names) == 1 or any(names <= kinds for kinds in _KINDS)


_KINDS = (
    {"ByteType", "ShortType", "IntegerType", "LongType"},
    {"FloatType", "DoubleType"},
    {"StringType", "VarcharType", "CharType"},
)

__all__ = ["differences", "kind_of_folder", "newest_files"]
