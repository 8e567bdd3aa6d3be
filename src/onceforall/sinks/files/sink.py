"""The file sink: Parquet, ORC, JSON lines or CSV in a local or mounted folder, whole batches by manifests.

A task writes temp files below ``<path>/_onceforall/staging/`` and syncs them; the driver links them to their targets and then creates
the batch's manifest (modules ``committing`` and ``manifests`` have the steps and the argument for each crash).

Promised: ``read_files`` shows a batch whole or not at all, each row once, and never less than before. What it shows survives a loss of power,
as far as the disk keeps what it acknowledged.

Not promised: to readers that know no manifest, that a batch appears at once: its files appear one after the other, within milliseconds. They
never see a row of an aborted attempt, and after a commit they see each row once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple
from urllib.parse import quote

from onceforall.common import arguments, logs
from onceforall.errors import OnceForAllError, OptionError, SinkCheckError, UnsupportedQueryError, text_of
from onceforall.failpoints import points as failpoints
from onceforall.protocol.entries import Committable
from onceforall.protocol.names import sink_code
from onceforall.sink import Capabilities, CommitPermit, CommitReport, StartInfo, Sweep, TaskAttempt, TwoPhaseCommitSink
from onceforall.sinks.files.data_files import slim
from onceforall.sinks.files.driver.columns import check_columns, check_delimiter
from onceforall.sinks.files.driver.committing import Folder, Prepared, read_prepared, with_shared_layouts
from onceforall.sinks.files.driver.evolution import differences, kind_of_folder, newest_files, texts, with_folders
from onceforall.sinks.files.driver.identity import folder_id
from onceforall.sinks.files.driver.spark_metadata import DEFAULT_INTERVAL, SparkMetadata
from onceforall.sinks.files.driver.start_checks import check_folder, check_spark_metadata
from onceforall.sinks.files.folders import asking_again
from onceforall.sinks.files.layout import layout_of
from onceforall.sinks.files.paths import STAGING, local_folder
from onceforall.sinks.files.task.formats import Format, file_format
from onceforall.sinks.files.task.writer import FileTransaction, Plan
from onceforall.sinks.files.time_buckets import sample_folder
from onceforall.sinks.files.time_buckets import time_bucket as parsed_bucket

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

_log = logs.logger("onceforall.sinks.files")


class NewPartition(NamedTuple):
    """A folder of partition values, for ``on_new_partitions``.

    Attributes:
        path: the folder, absolute.
        values: what its name says, by column, as texts; None is null.
    """

    path: str
    values: Mapping[str, str | None]


class FileSink(TwoPhaseCommitSink):
    """Writes rows to files in a folder."""

    kind: ClassVar[str] = "file"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: Format = "parquet",  # noqa: A002  Spark's own word
        partition_by: Sequence[str] = (),
        time_bucket: str | None = None,
        time_bucket_zone: str | None = None,
        max_file_bytes: int = 256 << 20,
        compression: str | None = None,
        options: Mapping[str, Any] | None = None,
        max_open_files: int = 50,
        spark_metadata: Literal["refuse", "continue"] = "refuse",
        on_new_partitions: Callable[[list[NewPartition]], object] | None = None,
    ) -> None:
        """Nothing is touched yet.

        Args:
            path: the folder, local or mounted, the same for driver and executors; a path or a ``file:`` URL.
            format: ``parquet``, ``json`` (lines), ``csv`` or ``orc``.
            partition_by: the columns whose values go into folders' names (``day=2026-11-21``), and not into the files.
            time_bucket: a template for folders below those, such as ``{event_time:%Y-%m-%d--%H}``; the column stays in the files.
            time_bucket_zone: the time zone for it; None: the session's. It says nothing to columns without a zone.
            max_file_bytes: at which size a file is ended and the next one begun; it may be exceeded by one row group.
            compression: as the format knows it; None: snappy for Parquet, zstd for ORC, none for text.
            options: the format's own; module ``formats`` lists them.
            max_open_files: how many files a task has open at most.
            spark_metadata: what to do where Spark's own file sink has left its log: ``refuse`` or ``continue``.
            on_new_partitions: called on the driver, after a commit, with the partitions that this run writes to for the first time. It
                is called again for them at the next commit when it raises, and after a restart.

        Raises:
            OptionError: naming the argument, the reason and what to use instead.
            UnsupportedQueryError: the path is on another kind of file system.
        """
        self._location = arguments.path("path", path)
        self._root = local_folder(path)
        columns = arguments.names("partition_by", partition_by, "the name of a column, or a list of names")
        if len({name.lower() for name in columns}) < len(columns):
            raise OptionError(f"partition_by={partition_by!r} must name different columns.")
        if unseen := [name for name in columns if name[0] in "._"]:
            raise OptionError(
                f"partition_by makes folders that Spark, Hive and pyarrow readers pass over: {unseen[0]!r} begins with a dot or an underscore. "
                f"Rename the column, such as withColumnRenamed({unseen[0]!r}, {unseen[0].lstrip('._')!r})."
            )
        for name, template in (
            ("time_bucket", time_bucket),
            ("time_bucket_zone", time_bucket_zone),
            ("compression", compression),
        ):
            if template is not None:
                arguments.text(name, template)
        if time_bucket_zone is not None and time_bucket is None:
            raise OptionError("time_bucket_zone is given without time_bucket. Give both, or leave it out.")
        for name, value in (("max_file_bytes", max_file_bytes), ("max_open_files", max_open_files)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name}={arguments.shown(value)} must be a whole number of at least 1.")
        if not isinstance(spark_metadata, str) or spark_metadata not in {"refuse", "continue"}:
            raise OptionError(f"spark_metadata={arguments.shown(spark_metadata)} must be 'refuse' or 'continue'.")
        if on_new_partitions is not None and not callable(on_new_partitions):
            raise OptionError(f"on_new_partitions={arguments.shown(on_new_partitions)} must be a function.")
        bucket = None if time_bucket is None else parsed_bucket(time_bucket, time_bucket_zone)
        form = file_format(format, compression, options)
        self._plan = Plan(str(self._root), form, tuple(columns), bucket, max_file_bytes, max_open_files)
        self._spark_metadata = spark_metadata
        self._interval = DEFAULT_INTERVAL
        self._on_new_partitions = on_new_partitions
        self._is_compared = False
        self._make_driver_side()

    def _make_driver_side(self) -> None:
        self._folder = Folder(self._root)
        self._lock = threading.Lock()
        self._announced: set[str] = set()
        self._unannounced: dict[str, NewPartition] = {}

    def __getstate__(self) -> dict[str, Any]:
        # The callback is the driver's, and may hold what can't be pickled: a session, a connection.
        return {**self._copied(), "_on_new_partitions": None}

    def _copied(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in {"_folder", "_lock", "_announced", "_unannounced"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_driver_side()

    def __copy__(self) -> FileSink:
        made = FileSink.__new__(type(self))
        made.__setstate__(self._copied())
        return made

    def __repr__(self) -> str:
        return f"FileSink({str(self._root)!r}, format={self._plan.form.kind!r})"

    @property
    def default_name(self) -> str:
        """``file-<path>``."""
        return f"file-{quote(str(self._root), safe='')}"

    @property
    def capabilities(self) -> Capabilities:
        """Two-phase, without any timeout; files are only ever added, so ``append`` is the only output mode."""
        return Capabilities(two_phase=True, output_modes=frozenset({"append"}))

    def columns(self, schema: StructType) -> list[Column]:
        """Return all columns, as they are.

        Raises:
            SchemaError: one can't be stored, or one that partition_by or time_bucket name is missing or of a wrong type.
        """
        form = self._plan.form
        check_columns(schema, form.kind, self._plan.partition_by, self._plan.bucket)
        if form.kind == "csv":
            check_delimiter(schema, form.options.get("delimiter", ","), self._plan.partition_by)
        if not self._is_compared:
            self._is_compared = True
            self._compare(schema)
        return super().columns(schema)

    def _compare(self, schema: StructType) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        try:
            files = newest_files(self._root)
            mine = (*self._plan.partition_by, *(self._plan.bucket.hive_columns if self._plan.bucket else ()))
            kinds = {repr((layout, *file.partition)): (layout, [*file.partition]) for file, layout in files}.values()
            found: list[str] = []
            strange: dict[str, str] = {}
            for layout, theirs in kinds:
                old = from_arrow_schema(layout.arrow_schema(), prefer_timestamp_ntz=True)
                here = texts(with_folders(schema, mine), with_folders(old, theirs), {*mine, *theirs})
                strange.update(here)
                found += differences(
                    StructType([each for each in schema.fields if each.name not in here]), old, self._plan.form.kind
                )
        except (OnceForAllError, OSError, ValueError) as error:
            _log.warning("The columns of the files in %s can't be compared with those of the query: %s", self._root, error)
            return
        if found:
            _log.warning(
                "Readers can't take the files in %s together with those that this query writes: %s. Cast or rename, or write to another folder.",
                self._root, "; ".join(dict.fromkeys(found)),
            )  # fmt: skip
        if strange:
            _log.warning(
                "A column that folders in %s say has another type in files of before: %s. Readers that know no manifest may fail on both. Give the column "
                "its old type, or partition by another name.",
                self._root, "; ".join(strange.values()),
            )  # fmt: skip
        new = sample_folder(self._plan.partition_by, self._plan.bucket)
        others = {kind_of_folder(file.folder) for file, _ in files} - {kind_of_folder(new)}
        if others:
            _log.warning(
                "The newest files in %s lie in folders of another kind (%s) than those that this query writes (%s). read_files takes all of them; "
                "spark.read and others that derive columns from folders fail on that, or leave rows out. Write to another folder if you need these.",
                self._root, ", ".join(sorted(others)), kind_of_folder(new),
            )  # fmt: skip

    # --- in the tasks ------------------------------------------------------------------------------------------------------

    @failpoints.around("file.begin")
    def begin_transaction(self, attempt: TaskAttempt) -> FileTransaction:
        """Make the attempt's folder; errors as those of ``FileTransaction``."""
        return FileTransaction(self._plan, attempt)

    @failpoints.around("file.invoke")
    def invoke(self, transaction: FileTransaction, rows: pa.RecordBatch) -> None:
        """Write rows to temp files.

        Raises:
            AttemptFailedError: the file system refuses; the message names the folder.
            RefusedRecordError: a value that can't be stored.
        """
        transaction.write(rows)

    @failpoints.around("file.pre_commit")
    def pre_commit(self, transaction: FileTransaction) -> Committable | None:
        """End and sync the temp files.

        Returns:
            ``name`` of the attempt, ``files`` (of each the folder where it will be, relative to the sink's, its ordinal, rows and bytes) with their
            ``extension``, and ``layout``: how to read them; None without rows. About 100 bytes per file.

        Raises:
            AttemptFailedError, RefusedRecordError: as ``invoke``.
        """
        files = transaction.finish()
        if not files or transaction.schema is None:
            transaction.tree.delete_folder_of_files(transaction.staging)
            return None
        layout = layout_of(transaction.schema, self._plan.partition_by, self._plan.form.body())
        return {
            "name": transaction.name,
            "extension": self._plan.form.extension,
            "files": [slim(file) for file in files],
            "layout": layout.body(),
        }

    @failpoints.around("file.discard")
    def discard(self, transaction: FileTransaction) -> None:
        """Delete the temp files. Nothing is done to a transaction that ``pre_commit`` has returned."""
        transaction.discard()

    # --- on the driver -----------------------------------------------------------------------------------------------------

    def identity(self, start: StartInfo) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return the folder's id; None where there is no folder, or none of a FileSink: a mount point whose volume is not mounted, perhaps.

        Raises:
            SinkUnavailableError: the file system gives no answer.
            CommitLogError: the id is damaged.
        """
        with asking_again("read the id of the folder", self._root):
            try:
                return {"folder": folder_id(self._root)}
            except (FileNotFoundError, NotADirectoryError):
                return None

    def holds(self, start: StartInfo, batch: int) -> bool | None:
        """Tell whether the batch has its manifest.

        Raises:
            SinkUnavailableError: the file system gives no answer.
            CommitLogError: a manifest is damaged.
        """
        with asking_again("look for the manifest", self._root):
            return self._folder.manifests_of(start.query_id, sink_code(start.sink)).find(batch) is not None

    @failpoints.around("file.check")
    def check(self, start: StartInfo) -> None:
        """Make the folder, and see that files can be written and moved there, and that nothing foreign lies under our names.

        Raises:
            SinkCheckError: naming the folder, the reason and the remedy.
            CommitLogError: a file of ours is damaged, or something else stands in its place.
            UnsupportedQueryError: paths without a scheme are not local in this session.
        """
        if start.spark is not None:
            self._check_session(start.spark)
        check_folder(self._root)
        check_spark_metadata(self._root, self._spark_metadata, self._spark_log())

    def _check_session(self, spark: SparkSession) -> None:
        from onceforall.spark.hadoop_paths import default_scheme

        scheme = default_scheme(spark)
        if scheme != "file" and not self._location.startswith("file:"):
            raise UnsupportedQueryError(
                f"The folder {self._location} has no scheme, and fs.defaultFS makes it one on {scheme}:. FileSink writes to local or locally "
                "mounted file systems only; if this is one, say so with file:/."
            )
        interval = spark.conf.get("spark.sql.streaming.fileSink.log.compactInterval", str(DEFAULT_INTERVAL))
        self._interval = int(interval or DEFAULT_INTERVAL)

    def _spark_log(self) -> SparkMetadata:
        return SparkMetadata(self._root, self._interval)

    @failpoints.around("file.confirm")
    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """See that every temp file is whole and every target free, and that nothing else can stop a commit.

        Returns:
            The committables, with ``folder``: the id of this folder, and with a hash for ``layout``; the layouts are under ``shared``, each once.

        Raises:
            AttemptFailedError: a file is missing or changed, a name is taken, a folder can't be used, or the batch before has no manifest.
            SinkCheckError: Spark's log has appeared in the folder.
            SinkUnavailableError: the file system gives no answer.
        """
        if not committables:
            return committables
        with asking_again("look at the temp files", self._root):
            self._folder.confirm([_read(c) for c in committables])
            check_spark_metadata(self._root, self._spark_metadata, self._spark_log())
            folder = folder_id(self._root)
        failpoints.hit("file.confirm.after")
        first, *others = ({**committable, "folder": folder} for committable in with_shared_layouts(committables))
        return [{**first, "identity": {"folder": folder}}, *others]

    @failpoints.around("file.commit")
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Give the files their names, and the batch its manifest; see module ``committing``.

        Raises:
            SinkUnavailableError: the file system refuses; to be asked again.
            CommitLogError: a manifest is damaged; to be asked again when it is restored.
        """
        if not committables:
            return CommitReport()
        with asking_again(f"commit batch {permit.batch}", self._root):
            report = self._folder.commit(permit.batch, committables)
            if not report.lost and not report.in_doubt:
                prepared = [_read(c) for c in committables]
                self._continue_spark_log(permit.batch, prepared)
                self._merge(prepared[0])
                self._announce(prepared)
        return report

    def _continue_spark_log(self, batch: int, prepared: Sequence[Prepared]) -> None:
        log = self._spark_log()
        if self._spark_metadata == "continue" and log.exists():
            recorded = self._folder.manifests(prepared[0].name).find(batch)
            assert recorded is not None
            log.add([file for file, _ in recorded.files])

    def _merge(self, prepared: Prepared) -> None:
        try:
            self._folder.manifests(prepared.name).merge()
        except (OnceForAllError, OSError) as error:
            _log.warning("Merging the manifests in %s did not succeed and is tried again later: %s", self._root, error)

    def _announce(self, prepared: Sequence[Prepared]) -> None:
        if self._on_new_partitions is None:
            return
        with self._lock:
            for file in (file for transaction in prepared for file in transaction.files):
                folder = _hive_part(file.folder)
                if file.partition and folder not in self._announced:
                    self._unannounced[folder] = NewPartition(str(self._root / folder), dict(file.partition))
            todo = dict(self._unannounced)
        if not todo:
            return
        try:
            self._on_new_partitions(list(todo.values()))
        except Exception as error:  # noqa: BLE001  a user's function can't undo a commit
            _log.warning(
                "on_new_partitions failed and is called again with the next batch, for %d partitions in %s: %s: %s",
                len(todo), self._root, type(error).__name__, text_of(error),
            )  # fmt: skip
            return
        with self._lock:
            self._announced.update(todo)
            for folder in todo:
                self._unannounced.pop(folder, None)

    @failpoints.around("file.abort")
    def abort(self, committables: Sequence[Committable]) -> None:
        """Delete the temp files of attempts that will never be decided; nothing else.

        Raises:
            SinkUnavailableError: at least one may still be there.
        """
        with asking_again("delete temp files", self._root):
            for committable in committables:
                self._folder.tree.delete_folder_of_files(self._folder.staging(_read(committable).attempt))
                failpoints.hit("file.abort.deleted")

    @failpoints.around("file.retire")
    def retire(self, committables: Sequence[Committable]) -> None:
        """Delete what is left of lost transactions; committed ones keep their files.

        Raises:
            SinkUnavailableError: at least one is not gone yet.
        """
        with asking_again("delete the rest of lost files", self._root):
            for committable in committables:
                self._folder.retire(_read(committable))

    @failpoints.around("file.recover")
    def recover(self, sweep: Sweep) -> int:
        """Delete the temp files of all attempts that the sweep covers, and return how many attempts those were.

        Raises:
            SinkUnavailableError: not all could be looked at.
        """
        count = 0
        with asking_again("look for temp files", self._root):
            try:
                names = self._folder.tree.names(self._root / STAGING)
            except FileNotFoundError:
                return 0
            self._folder.delete_temporary_manifests(sweep.query_id)
            for name in names:
                if sweep.covers_name(name):
                    count += self._folder.tree.delete_folder_of_files(self._root / STAGING / name)
                    failpoints.hit("file.recover.deleted")
        return count


def _hive_part(folder: str) -> str:
    """Return a folder without what follows its last ``name=value``: a catalogue knows no other folders."""
    parts = folder.split("/")
    while parts and "=" not in parts[-1]:
        parts.pop()
    return "/".join(parts)


def _read(committable: Committable) -> Prepared:
    try:
        return read_prepared(committable)
    except ValueError as error:
        raise SinkCheckError(f"A committable of FileSink is damaged: {error}. Restore the commit log from a backup.") from error


__all__ = ["FileSink", "NewPartition"]
