"""Reads a folder by its manifests: whole batches only, over all queries and sinks that write
there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from onceforall.common import arguments
from onceforall.errors import ConfigurationError
from onceforall.protocol.names import sink_code
from onceforall.sinks.files.common_types import are_texts, nullable
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.layout import Layout
from onceforall.sinks.files.manifests.chain import all_of
from onceforall.sinks.files.manifests.content import BatchFiles
from onceforall.sinks.files.paths import HOME
from onceforall.sinks.files.reading import with_arrow, with_spark
from onceforall.sinks.files.reading.sources import Source, source_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class CommittedBatch:
    """One committed batch of one sink: Spark's query id, the sink's code (``sink_code`` of its
    name), and the batch's files.
    """

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
    storage: Mapping[str, str] | None = None,
) -> CommittedFiles:
    """Return what is committed in a folder of ``FileSink`` at this moment; it needs no Spark.

    Args:
        path: the sink's folder, or the URL of its prefix in a bucket.
        query_id: only this query's.
        sink: only those of the sink of this name.
        from_batch: only batches from this one on.
        to_batch: only batches up to this one, itself included.
        skip_deleted: leave out data files that are gone: deleted by hand, for retention.
        storage: how to reach the bucket, as ``FileSink`` takes it; what it doesn't say, boto3 and
            pyarrow look for in the environment.

    Returns:
        A snapshot of the committed files. Each batch is in it whole or not at all, and with it all
        earlier ones of its query and sink. A later call never returns less. Batches of different
        queries or sinks are not read at one instant.

    Raises:
        ConfigurationError: the folder is missing, or no FileSink has ever written there; as
            OptionError: an argument is of a wrong type.
        UnsupportedQueryError: the path is not local.
        CorruptEntryError, ForeignEntryError, NewerEntryError: a manifest is damaged, missing, none
            of ours or a newer release's.
        OSError: the folder can't be read.
    """
    for name, given in (("query_id", query_id), ("sink", sink)):
        if given is not None:
            arguments.text(name, given)
    for name, batch in (("from_batch", from_batch), ("to_batch", to_batch)):
        if batch is not None:
            arguments.whole(name, batch, 0)
    arguments.flag("skip_deleted", skip_deleted)
    source = source_of(path, storage)
    tree, root = source.tree, source.root
    if not tree.is_folder(root / HOME):
        reason = (
            "holds no folder _onceforall: no FileSink has written there"
            if tree.is_folder(root)
            else "does not exist"
        )
        raise ConfigurationError(
            f"The folder {root} {reason}. Name the folder that FileSink was given; files of "
            "others are read with pyarrow or Spark directly."
        )
    code = None if sink is None else sink_code(sink)
    batches = []
    for each in all_of(tree):
        if query_id not in {None, each.query_id} or code not in {None, each.sink}:
            continue
        batches += [
            CommittedBatch(each.query_id, each.sink, batch)
            for batch in each.read()
            if (from_batch is None or batch.batch >= from_batch)
            and (to_batch is None or batch.batch <= to_batch)
        ]
    return CommittedFiles(source, tuple(batches), skip_deleted=skip_deleted)


class CommittedFiles:
    """A snapshot of the committed files of a folder. It doesn't change when more is committed."""

    def __init__(
        self, source: Source, batches: Sequence[CommittedBatch], *, skip_deleted: bool = False
    ) -> None:
        root = source.root
        self._source = source
        self._root = root
        self._tree = source.tree
        self.batches = tuple(batches)
        files = [pair for batch in batches for pair in batch.files.files]
        self._files: list[tuple[DataFile, Layout]] = [
            (file, layout)
            for file, layout in files
            if not skip_deleted or self._tree.is_there(root / file.path)
        ]

    def __repr__(self) -> str:
        return f"CommittedFiles({str(self._root)!r}, {len(self._files)} files, {self.rows} rows)"

    def __len__(self) -> int:
        return len(self._files)

    @property
    def paths(self) -> list[str]:
        """The absolute paths of the files, or their URLs, for any reader that takes a list of
        them.
        """
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
        """The columns of all files, with the partition columns and those that a time bucket makes;
        without files: none. Any of them may be null, also within others: files may have been
        written before a column or a field came.

        A column that folders say has the type STRING where the types that it had at different times
        have no common one.

        Raises:
            pyarrow.ArrowTypeError: files that were written at different times have types that have
                no common one, and no folder says the column, or one of the types is none of those
                that folders can say.
        """
        import pyarrow as pa

        found: dict[str, pa.Schema] = {}
        said: dict[str, None] = {}
        buckets: dict[str, None] = {}
        for file, layout in self._files:
            if layout.schema not in found:
                found[layout.schema] = layout.arrow_schema()
            said.update(dict.fromkeys(file.partition))
            buckets.update(
                dict.fromkeys(name for name in file.partition if name not in layout.partition_by)
            )
        schemas = [*found.values(), pa.schema([(name, pa.string()) for name in buckets])]
        texts = {
            name
            for name in said
            if are_texts(name, [each.field(name).type for each in schemas if name in each.names])
        }
        schemas = [
            pa.schema(
                [pa.field(f.name, pa.string()) if f.name in texts else nullable(f) for f in each]
            )
            for each in schemas
        ]
        return pa.unify_schemas(schemas, promote_options="permissive")

    def dataset(self) -> Dataset:
        """Return a pyarrow dataset.

        JSON and compressed CSV are read into memory at once: pyarrow's own dataset of JSON doesn't
        know all types, and that of CSV doesn't recognise zstd; so is CSV of which a column has
        another type than in the schema, because later files have a wider one. Of other CSV it reads
        rows of up to 16 MiB; ``to_arrow`` takes longer ones.

        Raises:
            ForeignEntryError: a link, a pipe or a folder stands where a data file must be.
            OSError: a link stands in the place of a folder on the way to one.
        """
        return self._dataset(with_arrow.CSV_BLOCK)

    def _dataset(self, block: int) -> Dataset:
        self._check_files()
        return with_arrow.dataset_of(self._source, self._files, self.schema, block)

    def to_arrow(self) -> pa.Table:
        """Read everything into memory; errors as those of ``dataset``."""
        return with_arrow.with_blocks(lambda block: self._dataset(block).to_table())

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return a DataFrame over exactly these files, with their partition columns.

        Args:
            spark: a classic session whose executors see the folder under the same path.

        Raises:
            UnsupportedQueryError: the session is one of Spark Connect.
            OptionError: it is no session.
            ForeignEntryError: a link, a pipe or a folder stands where a data file must be.
            OSError: a link stands in the place of a folder on the way to one.
            ConfigurationError: a setting has Spark pass over files.

        The other settings of the session don't change what is read. A file that is missing or
        damaged is an error, whatever ``spark.sql.files.ignoreMissingFiles`` and
        ``ignoreCorruptFiles`` say.
        """
        arguments.check_session(spark, "read_files(…).to_spark")
        self._check_files()
        return with_spark.frame_of(spark, self._source, self._files, self.schema)

    def _check_files(self) -> None:
        """See that no reader is led out of the folder: by a link in the place of a data file, or
        of a folder on the way to one.
        """
        for folder, files in groupby(
            sorted(self._root / file.path for file, _ in self._files), key=lambda path: path.parent
        ):
            with self._tree.held(folder):
                for file in files:
                    self._tree.check_file(file)
