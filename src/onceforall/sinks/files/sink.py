"""The file sink: Parquet, ORC, JSON lines or CSV in a local or mounted folder, whole batches by
manifests.

A task writes temp files below ``<path>/_onceforall/staging/`` and syncs them; the driver links them
to their targets and then creates the batch's manifest (modules ``committing`` and ``manifests``
have the steps and the argument for each crash).

Promised: ``read_files`` shows a batch whole or not at all, each row once, and never less than
before. What it shows survives a loss of power, as far as the disk keeps what it acknowledged.

Not promised: to readers that know no manifest, that a batch appears at once: its files appear one
after the other, within milliseconds. They never see a row of an aborted attempt, and after a commit
they see each row once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import quote

from onceforall.common import arguments, logs
from onceforall.common.two_sided import TwoSided
from onceforall.errors import OnceForAllError, OptionError, SinkCheckError
from onceforall.failpoints import points as failpoints
from onceforall.protocol import contract
from onceforall.protocol.entries import Committable
from onceforall.protocol.names import sink_code
from onceforall.sink import (
    Capabilities,
    CommitPermit,
    CommitReport,
    StartInfo,
    Sweep,
    TaskAttempt,
    TwoPhaseCommitSink,
)
from onceforall.sinks.files.data_files import slim
from onceforall.sinks.files.folders import asking_again, at_start, failing_the_attempt
from onceforall.sinks.files.layout import layout_of
from onceforall.sinks.files.local_times import is_known, unknown
from onceforall.sinks.files.paths import local_folder
from onceforall.sinks.files.places.azure import AzureTarget, azure_target, is_azure
from onceforall.sinks.files.places.gcs import gcs_target, is_gcs
from onceforall.sinks.files.places.hdfs import HdfsTarget, hdfs_root, is_hdfs
from onceforall.sinks.files.places.local import LocalTarget
from onceforall.sinks.files.places.s3 import S3Target, checked_storage, is_s3, s3_root, s3_target
from onceforall.sinks.files.task.formats import Format, file_format
from onceforall.sinks.files.task.writer import FileTransaction, Plan
from onceforall.sinks.files.time_buckets import time_bucket as parsed_bucket

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

    from onceforall.sinks.files.data_files import DataFile
    from onceforall.sinks.files.driver.committing import Folder
    from onceforall.sinks.files.driver.new_partitions import NewPartition, NewPartitions
    from onceforall.sinks.files.driver.staged_files import StagedFiles
    from onceforall.sinks.files.places import Target

_log = logs.logger("onceforall.sinks.files")


class FileSink(TwoSided, TwoPhaseCommitSink):
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
        storage: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is touched yet.

        Args:
            path: the folder, local or mounted, the same for driver and executors: a path or a
                ``file:`` URL; a prefix in a bucket: an ``s3:`` or ``s3a:`` URL; a folder in a
                container of Azure: an ``abfss:``, ``abfs:`` or ``az:`` URL; a folder in a bucket of
                Google Cloud Storage: a ``gs:`` URL; or a folder of HDFS: an ``hdfs:`` or
                ``viewfs:`` URL with the NameNode or nameservice.
            format: ``parquet``, ``json`` (lines), ``csv`` or ``orc``.
            partition_by: the columns whose values go into folders' names (``day=2026-11-21``), and
                not into the files.
            time_bucket: a template for folders below those, such as ``{event_time:%Y-%m-%d--%H}``;
                the column stays in the files.
            time_bucket_zone: the time zone for it; None: the session's. It says nothing to columns
                without a zone.
            max_file_bytes: at which size a file is ended and the next one begun; it may be exceeded
                by one row group.
            compression: as the format knows it; None: snappy for Parquet, zstd for ORC, none for
                text.
            options: the format's own; module ``formats`` lists them.
            max_open_files: how many files a task has open at most.
            spark_metadata: what to do where Spark's own file sink has left its log: ``refuse`` or
                ``continue``.
            on_new_partitions: called on the driver, after a commit, with the partitions that this
                run writes to for the first time. It is called again for them at the next commit
                when it raises, and after a restart.
            storage: how to reach the bucket: ``endpoint``, ``region``, ``access_key_id``,
                ``secret_access_key``, ``session_token``, ``virtual_hosted_style_request``. What is
                not given comes from Spark's settings ``fs.s3a.*``, and keys that are not there
                either from boto3's own chain, in each process. On Azure: ``account_name``,
                ``endpoint``, and ``account_key`` or ``sas_token``; else a key of Spark's settings
                ``fs.azure.account.key.*``, else azure-identity's chain. On Google Cloud Storage:
                ``credentials_file``, ``project``, ``endpoint``; else the file of Spark's setting
                ``fs.gs.auth.service.account.json.keyfile``, else Google's chain. Secrets are never
                shown or pickled.

        Raises:
            OptionError: naming the argument, the reason and what to use instead.
            UnsupportedQueryError: the path is on another kind of file system.
        """
        location = arguments.path("path", path)
        self._given = _target(location, spark_metadata, storage)
        self._root = self._given.root
        columns = arguments.names(
            "partition_by", partition_by, "the name of a column, or a list of names"
        )
        if len({name.lower() for name in columns}) < len(columns):
            raise OptionError(f"partition_by={partition_by!r} must name different columns.")
        if unseen := [name for name in columns if name[0] in "._"]:
            raise OptionError(
                "partition_by makes folders that Spark, Hive and pyarrow readers pass over: "
                f"{unseen[0]!r} begins with a dot or an underscore. "
                f"Rename the column, such as withColumnRenamed({unseen[0]!r}, "
                f"{unseen[0].lstrip('._') or 'part'!r})."
            )
        for name, template in (
            ("time_bucket", time_bucket),
            ("time_bucket_zone", time_bucket_zone),
            ("compression", compression),
        ):
            if template is not None:
                arguments.text(name, template)
        if time_bucket_zone is not None and time_bucket is None:
            raise OptionError(
                "time_bucket_zone is given without time_bucket. Give both, or leave it out."
            )
        for name, value in (("max_file_bytes", max_file_bytes), ("max_open_files", max_open_files)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(
                    f"{name}={arguments.shown(value)} must be a whole number of at least 1."
                )
        if not isinstance(spark_metadata, str) or spark_metadata not in {"refuse", "continue"}:
            raise OptionError(
                f"spark_metadata={arguments.shown(spark_metadata)} must be 'refuse' or 'continue'."
            )
        if on_new_partitions is not None and not callable(on_new_partitions):
            raise OptionError(
                f"on_new_partitions={arguments.shown(on_new_partitions)} must be a function."
            )
        bucket = None if time_bucket is None else parsed_bucket(time_bucket, time_bucket_zone)
        form = file_format(format, compression, options)
        self._plan = Plan(
            self._given,
            form,
            tuple(columns),
            bucket,
            max_file_bytes,
            max_open_files,
        )
        self._on_new_partitions = on_new_partitions
        self._is_compared = False
        self._begin_driver_side()

    def _make_driver_side(self) -> None:
        self._lock = threading.Lock()
        self._driver_folder: Folder | None = None
        self._new_partitions: NewPartitions | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The callback is the driver's, and may hold what can't be pickled: a session, a connection.
        return {**self._carried(), "_on_new_partitions": None}

    def __repr__(self) -> str:
        return f"FileSink({str(self._root)!r}, format={self._plan.form.kind!r})"

    @property
    def default_name(self) -> str:
        """``file-<path>``."""
        return f"file-{quote(str(self._root), safe='')}"

    @property
    def capabilities(self) -> Capabilities:
        """Two-phase, without any timeout; files are only ever added, so ``append`` is the only
        output mode.
        """
        return Capabilities(two_phase=True, output_modes=frozenset({"append"}))

    @property
    def task_imports(self) -> Mapping[str, str]:
        """The store's client: boto3, Azure's, Google's or hdfs-native."""
        return self._given.imports

    def secrets(self) -> Mapping[str, str]:
        """Return the keys of the bucket or the account; none of a local folder."""
        return self._plan.target.secrets

    @property
    def driver_only(self) -> Mapping[str, Any]:
        """The function that is told of new partitions."""
        told = self._on_new_partitions
        return {} if told is None else {"on_new_partitions": told}

    @property
    def local_paths(self) -> Sequence[str]:
        """Its folder, if that is a local one."""
        return [self._given.location] if isinstance(self._given, LocalTarget) else []

    def restored(self, secrets: Mapping[str, str], driver_only: Mapping[str, Any]) -> FileSink:
        """Return this sink with the keys of its bucket, and with the function."""
        if secrets:
            assert isinstance(self._given, AzureTarget | S3Target)
            self._given = replace(self._given, secrets=dict(secrets))
            self._plan = replace(self._plan, target=self._given)
        self._on_new_partitions = driver_only.get("on_new_partitions")
        return self

    def columns(self, schema: StructType) -> list[Column]:
        """Return all columns, as they are.

        Raises:
            SchemaError: one can't be stored, or one that partition_by or time_bucket name is
                missing or of a wrong type.
            OptionError: the session's time zone is none that time_bucket can be formatted in.
        """
        from onceforall.sinks.files.driver.columns import check_columns, check_delimiter
        from onceforall.sinks.files.driver.evolution import warn_of_changes

        form = self._plan.form
        check_columns(schema, form.kind, self._plan.partition_by, self._plan.bucket)
        self._check_zone(schema)
        if form.kind == "csv":
            check_delimiter(schema, form.options.get("delimiter", ","), self._plan.partition_by)
        if not self._is_compared:
            self._is_compared = True
            if not isinstance(self._given, LocalTarget):
                self._connect(_active_session())
            warn_of_changes(
                self._folder.tree, schema, form.kind, self._plan.partition_by, self._plan.bucket
            )
        return super().columns(schema)

    def _check_zone(self, schema: StructType) -> None:
        """See that the session's zone is one whose local times can be told, where they are asked
        for.
        """
        from pyspark.sql.types import TimestampType

        bucket, spark = self._plan.bucket, _active_session()
        if bucket is None or bucket.zone is not None or spark is None:
            return
        zone = str(spark.conf.get("spark.sql.session.timeZone"))
        in_it = any(isinstance(schema[name].dataType, TimestampType) for name in bucket.columns)
        if in_it and not is_known(zone):
            raise OptionError(unknown(zone))

    # --- in the tasks -----------------------------------------------------------------------------

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
            ``name`` of the attempt, ``files`` (of each the folder where it will be, relative to the
            sink's, its ordinal, rows and bytes) with their ``extension``, and ``layout``: how to
            read them; None without rows. About 100 bytes per file.

        Raises:
            AttemptFailedError, RefusedRecordError: as ``invoke``.
        """
        files = transaction.finish()
        if not files or transaction.schema is None:
            with failing_the_attempt(self._root):
                transaction.staging.discard()
            return None
        layout = layout_of(transaction.schema, self._plan.partition_by, self._plan.form.body())
        return {
            "name": transaction.name,
            "extension": self._plan.form.extension,
            "files": [slim(file) for file in files],
            "layout": layout.body(),
            **transaction.staging.body(),
        }

    @failpoints.around("file.discard")
    def discard(self, transaction: FileTransaction) -> None:
        """Delete the temp files.

        Nothing is done to a transaction that ``pre_commit`` has returned.
        """
        transaction.discard()

    # --- on the driver ----------------------------------------------------------------------------
    # What it takes is imported there: a worker has no use for it.

    @property
    def _folder(self) -> Folder:
        from onceforall.sinks.files.driver.committing import Folder

        with self._lock:
            if self._driver_folder is None:
                self._driver_folder = Folder(self._plan.target.place())
            return self._driver_folder

    def _connect(self, spark: SparkSession | None) -> None:
        """Take from a session what it knows of the target."""
        if spark is None:
            return
        target = self._given.with_session(spark)
        if target != self._plan.target:
            with self._lock:
                self._plan = replace(self._plan, target=target)
                self._driver_folder = None

    def identity(self, start: StartInfo) -> Mapping[str, Any] | None:
        """Return the folder's id; None where there is no folder, or none of a FileSink: a mount
        point whose volume is not mounted, perhaps.

        Raises:
            SinkUnavailableError: the file system gives no answer.
            CommitLogError: the id is damaged.
        """
        from onceforall.sinks.files.driver.identity import folder_id

        self._connect(start.spark)
        with at_start("read the id of the folder", self._root):
            try:
                return {"folder": folder_id(self._folder.tree)}
            except (FileNotFoundError, NotADirectoryError):
                return None

    def holds(self, start: StartInfo, batch: int) -> bool | None:
        """Tell whether the batch has its manifest.

        Raises:
            SinkUnavailableError: the file system gives no answer.
            CommitLogError: a manifest is damaged.
        """
        self._connect(start.spark)
        with at_start("look for the manifest", self._root):
            return (
                self._folder.manifests_of(start.query_id, sink_code(start.sink)).find(batch)
                is not None
            )

    @failpoints.around("file.check")
    def check(self, start: StartInfo) -> None:
        """Make the folder, and see that files can be written and moved there, and that nothing
        foreign lies under our names.

        Raises:
            SinkCheckError: naming the folder, the reason and the remedy.
            CommitLogError: a file of ours is damaged, or something else stands in its place.
            UnsupportedQueryError: paths without a scheme are not local in this session.
        """
        self._connect(start.spark)
        with at_start("look at the folder", self._root):
            self._folder.place.check(start.spark)

    @failpoints.around("file.confirm")
    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """See that every temp file is whole and every target free, and that nothing else can stop a
        commit; make the folders that it needs.

        Returns:
            The committables, with ``folder``: the id of this folder, and with a hash for
            ``layout``; the layouts are under ``shared``, each once.

        Raises:
            AttemptFailedError: a file is missing or changed, a name is taken, a folder can't be
                used, or the batch before has no manifest.
            SinkCheckError: Spark's log has appeared in the folder.
            SinkUnavailableError: the file system gives no answer.
        """
        from onceforall.sinks.files.driver.confirming import confirm
        from onceforall.sinks.files.driver.identity import folder_id
        from onceforall.sinks.files.driver.staged_files import with_shared_layouts

        if not committables:
            return committables
        with asking_again("look at the temp files", self._root):
            confirm(self._folder, [_read(c) for c in committables])
            self._folder.place.confirm_others()
            folder = folder_id(self._folder.tree)
        failpoints.hit("file.confirm.after")
        first, *others = (
            {**committable, "folder": folder} for committable in with_shared_layouts(committables)
        )
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
                staged = [_read(c) for c in committables]
                self._continue_spark_log(permit.batch, staged)
                self._merge(staged[0])
                self._announce([file for each in staged for file in each.files])
        return report

    def _continue_spark_log(self, batch: int, staged: Sequence[StagedFiles]) -> None:
        log = self._folder.place.spark_log()
        if log is not None:
            recorded = self._folder.manifests(staged[0].name).find(batch)
            assert recorded is not None
            log.add([file for file, _ in recorded.files])

    def _merge(self, staged: StagedFiles) -> None:
        try:
            self._folder.manifests(staged.name).merge()
        except (OnceForAllError, OSError) as error:
            _log.warning(
                "Merging the manifests in %s did not succeed and is tried again later: %s",
                self._root,
                error,
            )

    def _announce(self, files: Sequence[DataFile]) -> None:
        if self._on_new_partitions is None:
            return
        from onceforall.sinks.files.driver.new_partitions import NewPartitions

        with self._lock:
            if self._new_partitions is None:
                self._new_partitions = NewPartitions(self._root, self._on_new_partitions)
        self._new_partitions.announce(files)

    @failpoints.around("file.abort")
    def abort(self, committables: Sequence[Committable]) -> None:
        """Delete the temp files of attempts that will never be decided; nothing else.

        Raises:
            SinkUnavailableError: at least one may still be there.
        """
        with asking_again("delete temp files", self._root):
            for committable in committables:
                self._folder.place.discard(_read(committable).attempt)
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
        """Delete the temp files of all attempts that the sweep covers, and return how many attempts
        those were.

        Raises:
            SinkUnavailableError: not all could be looked at.
        """
        count = 0
        with asking_again("look for temp files", self._root):
            try:
                names = self._folder.place.attempts()
            except FileNotFoundError:
                return 0
            self._folder.place.delete_temporary_manifests(sweep.query_id)
            for name in names:
                if sweep.covers_name(name):
                    count += self._folder.place.discard(name)
                    failpoints.hit("file.recover.deleted")
        return count


def _active_session() -> SparkSession | None:
    """Return the session of this thread, or the only one; a start asks for columns before it gives
    the sink a session.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkException:
        return None


def _target(location: str, spark_metadata: object, storage: object) -> Target:
    """Return what a path names.

    Raises:
        OptionError: it is no place of files, or another argument doesn't fit it.
        UnsupportedQueryError: it is on another kind of file system.
    """
    on_s3, on_azure, on_gcs = is_s3(location), is_azure(location), is_gcs(location)
    on_hdfs = is_hdfs(location)
    if storage is not None and not (on_s3 or on_azure or on_gcs):
        raise OptionError(
            f"storage is given with {'a path of HDFS' if on_hdfs else 'a local path'}. Leave it "
            "out, or give the URL of a bucket (s3a:, gs:) or a container (abfss:) as path."
        )
    if spark_metadata == "continue" and (on_s3 or on_azure or on_gcs or on_hdfs):
        raise OptionError(
            "spark_metadata='continue' works on local folders only. Leave it out, and write to a "
            "folder without a log of Spark's own file sink."
        )
    if on_s3:
        return s3_target(s3_root(location), checked_storage(storage))
    if on_azure:
        return azure_target(location, storage)
    if on_gcs:
        return gcs_target(location, storage)
    if on_hdfs:
        return HdfsTarget(hdfs_root(location))
    return LocalTarget(str(local_folder(location)), location, str(spark_metadata))


def _read(committable: Committable) -> StagedFiles:
    from onceforall.sinks.files.driver.staged_files import read_staged

    try:
        return read_staged(committable)
    except ValueError as error:
        raise SinkCheckError(
            f"A committable isn't one of FileSink, or is damaged: {error}. {contract.RESTORE}."
        ) from error


__all__ = ["FileSink"]
