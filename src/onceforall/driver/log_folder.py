"""Where a checkpoint's commit log lies, found and bound before the first batch; and what a loss
of power took from beside it.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from onceforall.commit_log import binding
from onceforall.commit_log.stores.locations import is_local
from onceforall.commit_log.stores.probing import is_one_place, probe
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.common import logs
from onceforall.common.object_stores import SCHEMES
from onceforall.driver import place
from onceforall.driver.settings import Settings
from onceforall.errors import (
    CheckpointMismatchError,
    CommitLogError,
    MissingExtraError,
    OptionError,
    UnsupportedQueryError,
)
from onceforall.protocol.entries import Claim
from onceforall.protocol.judgement import judge_claim
from onceforall.protocol.state import RunConfig
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import mending
from onceforall.spark.files import SparkFiles
from onceforall.spark.remote_path import AnyPath, RemotePath, store_at
from onceforall.spark.state_files import MANAGER, STATE_FORMAT
from onceforall.spark.stores import Stores
from onceforall.task import kept_rows as kept
from onceforall.task.row_places import RowPlace
from onceforall.task.row_places.hdfs import HdfsRows
from onceforall.task.row_places.local import LocalRows
from onceforall.task.row_places.objects import ObjectRows

logger = logs.logger("onceforall")

_SWALLOWS = "AbortableStreamBasedCheckpointFileManager"
_LEAVES_STATE = "FileSystemBasedCheckpointFileManager"
_FORMAT_WITH_NAMES = 2
"""Each writer's files of state have names of their own."""


def put_back(checkpoint: AnyPath, settings: Settings, stores: Stores) -> None:
    """Put back what a loss of power took from Spark's files, before Spark reads them; see
    ``mending``.
    """
    wanted = None if settings.commit_log is None else stores.log_location(settings.commit_log)
    mending.put_back(checkpoint, wanted, stores=stores, adopt=settings.adopt_checkpoint)


def check_log(checkpoint: AnyPath, stores: Stores, *, adopt: bool) -> None:
    """Refuse the log of a checkpoint that was moved, copied or cloned, before Spark starts
    anything. Nothing is written.

    The first batch looks at the same once more, for another run may have claimed the log by then.
    What can't be read here is told by it, too.

    Args:
        checkpoint: the checkpoint's folder.
        stores: opens the log where it isn't local.
        adopt: it was moved on purpose.

    Raises:
        CheckpointMismatchError: the log is another query's or another checkpoint's.
    """
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    if adopt or not home.is_dir():
        return
    claim = _newest_claim(home, stores)
    if claim is None:
        return
    try:
        query_id = spark_checkpoint.query_id(checkpoint) or claim.query_id
    except CheckpointMismatchError:
        # It is torn, and put back next.
        query_id = claim.query_id
    refusal = judge_claim(
        RunConfig(query_id, "", str(checkpoint), (), **asdict(place.here(checkpoint))), claim
    )
    if refusal is not None:
        raise refusal.error(refusal.message)


def check_identity(checkpoint: AnyPath, stores: Stores) -> None:
    """Refuse a checkpoint that doesn't name its query any more, before its sinks are asked about
    another one.

    Raises:
        CheckpointMismatchError: Spark would begin anew.
    """
    if spark_checkpoint.query_id(checkpoint) is not None:
        return
    claim = _newest_claim(checkpoint / spark_checkpoint.LOG_FOLDER, stores)
    if claim is not None:
        # It was durable before the claim.
        raise CheckpointMismatchError(
            f"{checkpoint / 'metadata'} is missing, which names the query, though the commit log "
            f"belongs to the query {claim.query_id}. Put the file back from a backup; for a new "
            "query, name a new checkpoint."
        )


def _newest_claim(home: AnyPath, stores: Stores) -> Claim | None:
    """Return the claim that counts; None: there is none, or it can't be read, which the first
    batch tells, too.
    """
    if not home.is_dir():
        return None
    try:
        bound = binding.find(store_at(home), open_store=stores.open)
        return None if bound is None else bound.log().newest_claim()
    except (CheckpointMismatchError, CommitLogError):
        return None


def bind_log(
    checkpoint: AnyPath, settings: Settings, stores: Stores, *, tested: bool = False
) -> binding.BoundLog:
    """Return the checkpoint's commit log, wherever it lies; a new one is bound to the checkpoint,
    which marks that as ours.

    Args:
        checkpoint: the checkpoint's folder.
        settings: ``commit_log`` and ``adopt_checkpoint`` count.
        stores: opens the log where it isn't local, and tells what paths without a scheme mean.
        tested: a remote store was tested by this start already.

    Raises:
        CheckpointMismatchError: checkpoint, pointer, log and option don't fit together.
        ConfigurationError: an option is wrong.
        CommitLogError: the folder can't be made or read, or Spark's files can't be synced.
    """
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    wanted = None if settings.commit_log is None else stores.log_location(settings.commit_log)
    if wanted is not None and lies_in(wanted, checkpoint):
        raise OptionError(
            f"onceforall.commitLog={settings.commit_log} lies in the checkpoint {checkpoint} "
            "itself. Leave the option out: that is where the "
            "commit log is by default."
        )
    if wanted is not None and contains(wanted, checkpoint):
        raise OptionError(
            f"onceforall.commitLog={settings.commit_log} is a folder in which the checkpoint "
            f"{checkpoint} lies. Name a folder of the log's own, outside of the checkpoint."
        )
    pointers = (
        binding.pointer_of(store_at(folder))
        for folder in spark_checkpoint.detached_logs(checkpoint)
    )
    if isinstance(checkpoint, Path) and not spark_checkpoint.is_ours(checkpoint):
        files = SparkFiles(checkpoint)
        try:
            files.sync_finished()
        finally:
            files.close()
    # Tested before it is trusted, and before anything is in it.
    pointer = binding.pointer_of(store_at(home))
    location = wanted if pointer is None else pointer[1]
    log_place = store_at(home) if location is None else stores.open(location)
    if isinstance(log_place, RemoteStore) and not tested:
        probe(log_place)
    if pointer is None and wanted is not None and is_one_place(log_place, store_at(home)):
        raise OptionError(
            f"onceforall.commitLog={settings.commit_log} is the folder {home} of the checkpoint "
            "itself under another name. Leave the option out: that is where the commit log is by "
            "default."
        )
    return binding.bind(
        store_at(home),
        str(checkpoint),
        wanted,
        query_id=spark_checkpoint.query_id(checkpoint),
        retired=[pointer[0] for pointer in pointers if pointer is not None],
        first_generation=spark_checkpoint.detached_generation(checkpoint) + 1,
        adopt=settings.adopt_checkpoint,
        open_store=stores.open,
    )


def rows_place(checkpoint: AnyPath, settings: Settings, stores: Stores) -> RowPlace | None:
    """Return where the rows of a batch can be kept: beside the log.

    Args:
        checkpoint: the query's.
        settings: ``redo`` counts, and ``commit_log`` where the checkpoint has no log yet.
        stores: opens the log where it isn't local.

    Returns:
        The place; None: a Python worker can't write there without a package that isn't installed,
        and nobody has said that it must.

    Raises:
        MissingExtraError: rows must be kept, and that package is missing.
        OptionError: a setting of the store is wrong.
    """
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    pointer = binding.pointer_of(store_at(home))
    if pointer is not None:
        location = pointer[1]
    else:
        wanted = settings.commit_log
        location = None if wanted is None else stores.log_location(wanted)
    folder = home if location is None else location
    if isinstance(folder, Path):
        return LocalRows(folder / kept.FOLDER)
    if is_local(str(folder)):
        return LocalRows(binding.log_path(str(folder)) / kept.FOLDER)
    try:
        return _remote_rows(f"{folder}/{kept.FOLDER}", stores)
    except MissingExtraError as error:
        if settings.redo == "durable":
            raise
        if settings.redo == "auto":
            logger.warning(
                "Rows can't be kept beside the commit log, which is on a store: %s, for driver and "
                "executors. The query goes on without: should a prepared transaction be lost after "
                "its decision, and a replay of its batch give other rows, it stops "
                "(onceforall.redo=auto).",
                str(error).rstrip("."),
            )
        return None


def _remote_rows(url: str, stores: Stores) -> RowPlace:
    settings = stores.settings_of(url)
    if urlsplit(url).scheme in SCHEMES:
        return ObjectRows(url, settings)
    return HdfsRows(url, tuple(sorted(settings.items())))


def check_state_files(checkpoint: AnyPath, manager: str, state_format: int) -> None:
    """Refuse a class of Spark's that doesn't write state files over those of an attempt that came
    to nothing.

    It renames a temporary file, and where the file system refuses that because the name is taken
    (HDFS and S3A do, a local one doesn't), it goes on as if nothing were
    (``FileSystemBasedCheckpointFileManager.renameTempFile``). In format 1 the state of a batch that
    was never decided then stays in the place of the replay's.

    Raises:
        UnsupportedQueryError: naming the setting and what to use instead.
    """
    if (
        isinstance(checkpoint, RemotePath)
        and manager.endswith(_LEAVES_STATE)
        and state_format < _FORMAT_WITH_NAMES
    ):
        raise UnsupportedQueryError(
            f"The query keeps state in {checkpoint}, and {MANAGER} is {_LEAVES_STATE}. On a store "
            "it leaves the state of an attempt that was never decided in the place of the one that "
            f"counts. Leave it out; or begin a new checkpoint with {STATE_FORMAT}=2 and the "
            "RocksDB provider."
        )


def check_place(
    checkpoint: AnyPath,
    settings: Settings,
    stores: Stores,
    manager: str = "",
    state_format: int = 1,
) -> None:
    """Refuse what can't be kept where the checkpoint lies.

    Args:
        checkpoint: the query's.
        settings: the user's.
        stores: opens what isn't local.
        manager: Spark's ``spark.sql.streaming.checkpointFileManagerClass``; empty where it isn't
            set.
        state_format: Spark's ``spark.sql.streaming.stateStore.checkpointFormatVersion``.

    Raises:
        UnsupportedQueryError: the manager loses what it can't write, or state that counts.
        MissingExtraError: rows must be kept there, and tasks can't without another package.
        CommitLogError: the store doesn't answer.
    """
    if isinstance(checkpoint, RemotePath) and manager.endswith(_SWALLOWS):
        raise UnsupportedQueryError(
            f"{MANAGER} is {_SWALLOWS}, which takes a file of the checkpoint for written when the "
            "store has refused it: the query would go on without the plan of a batch, which then "
            "can't be replayed. Leave it out."
        )
    if spark_checkpoint.keeps_state(checkpoint):
        check_state_files(checkpoint, manager, state_format)
    if settings.redo == "durable":
        rows_place(checkpoint, settings, stores)


def lies_in(location: str, checkpoint: AnyPath) -> bool:
    """Tell whether the place of a log (a URL) lies in a checkpoint."""
    if isinstance(checkpoint, RemotePath):
        return f"{location}/".startswith(f"{checkpoint}/")
    return is_local(location) and binding.log_path(location).is_relative_to(checkpoint)


def contains(location: str, checkpoint: AnyPath) -> bool:
    """Tell whether a checkpoint lies in the place of a log (a URL)."""
    if isinstance(checkpoint, RemotePath):
        return f"{checkpoint}/".startswith(f"{location}/")
    return is_local(location) and checkpoint.is_relative_to(binding.log_path(location))
