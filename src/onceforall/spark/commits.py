"""Writes a batch into Spark's own commit log, as Spark would have, where a decided batch is lacking
there.

Only a detachment does that: otherwise Spark's own files are left to Spark (module ``checkpoint``
only reads them).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

from onceforall.errors import CheckpointMismatchError, CommitLogError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.history import Decided
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import AnyPath, RemotePath, create_file

START_ONCE_MORE = (
    "Start the query once more with onceforall, for instance with trigger(availableNow=True), and "
    "detach after that. Nothing is lost or "
    "doubled by it."
)
"""The remedy where only a run of the query can finish its last batch."""


def lacking(checkpoint: AnyPath, decided: Decided | None) -> int | None:
    """Return the last decided batch where Spark's commit log lacks it and it may be entered there;
    None where nothing is lacking.

    Raises:
        CheckpointMismatchError: only Spark can finish the batch, for the query keeps state; or
            Spark's folders contradict the decision.
    """
    if decided is None:
        return None
    batch, committed = decided.commit.batch, spark_checkpoint.last_committed(checkpoint)
    if committed >= batch:
        return None
    if spark_checkpoint.keeps_state(checkpoint):
        raise CheckpointMismatchError(
            f"Batch {batch} is decided, but Spark has not finished it, and the query keeps state: "
            "a plain query "
            f"would write the batch again to rebuild that. {START_ONCE_MORE}"
        )
    planned = spark_checkpoint.last_planned(checkpoint)
    if (
        planned != batch
        or committed not in {batch - 1, -1}
        or spark_checkpoint.offsets_of(checkpoint, batch) != decided.commit.offsets
    ):
        raise CheckpointMismatchError(
            f"Batch {batch} is decided, but Spark's own folders tell another story: the last "
            "planned batch is "
            f"{planned}, the last finished one is {committed}, or the batch has other offsets. If "
            "the machine has lost power, run 'onceforall "
            f"checkpoint mend {checkpoint}', and detach again. Otherwise the checkpoint was "
            "edited, restored or mixed with another one: put back the "
            "folder that belongs to this commit log."
        )
    return batch


def enter(checkpoint: AnyPath, batch: int) -> None:
    """Create Spark's ``commits/<batch>`` as Spark writes it, durably; one that Spark has written
    meanwhile stays.

    Raises:
        CheckpointMismatchError: the entry before can't be read, or is one of a query that keeps
            state.
        CommitLogError: the entry can't be written.
    """
    folder = checkpoint / "commits"
    if isinstance(folder, RemotePath):
        create_file(folder / str(batch), _content(checkpoint, batch))
        return
    target, temporary = folder / str(batch), folder / f".{batch}.{secrets.token_hex(16)}.tmp"
    content = _content(checkpoint, batch)
    try:
        folder.mkdir(exist_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        failpoints.hit("detach.entry.synced")
        if not target.exists():
            # Hadoop's checksum of an entry that is gone would make Spark take ours for damaged;
            # without one, nothing is checked.
            (folder / f".{batch}.crc").unlink(missing_ok=True)
        try:
            os.link(temporary, target)
            failpoints.hit("detach.entry.linked")
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as error:
        raise CommitLogError(
            f"Spark's commit log entry {target} can't be written: {error.strerror}. Mend that, "
            "and detach again; nothing is lost."
        ) from error


def _content(checkpoint: AnyPath, batch: int) -> bytes:
    """Return an entry like the one before, in whatever version that is; version 1, which every
    Spark reads, for the first one.

    Only the watermark differs from batch to batch, and it means nothing to a query without state.
    It never goes back.
    """
    watermark_ms = _watermark_ms(checkpoint, batch)
    version, fields = "v1", {"nextBatchWatermarkMs": watermark_ms}
    before = checkpoint / "commits" / str(batch - 1)
    if before.exists():
        try:
            version, text = before.read_text(encoding="utf-8").splitlines()[:2]
            fields = json.loads(text)
            fields["nextBatchWatermarkMs"] = max(
                int(fields.get("nextBatchWatermarkMs", 0)), watermark_ms
            )
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointMismatchError(
                f"Spark's commit log entry {before} can't be read ({error}), so that the next one "
                f"can't be written like it. {START_ONCE_MORE}"
            ) from error
        if fields.get("stateUniqueIds"):
            raise CheckpointMismatchError(
                f"The query keeps state, so that only Spark can finish batch {batch}. "
                f"{START_ONCE_MORE}"
            )
    return f"{version}\n{json.dumps(fields, separators=(',', ':'))}".encode()


def _watermark_ms(checkpoint: AnyPath, batch: int) -> int:
    try:
        metadata = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[1]
        return int(json.loads(metadata).get("batchWatermarkMs", 0))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0


def make_durable(checkpoint: AnyPath, batch: int) -> None:
    """Sync what Spark has written of a batch, its entries in ``offsets`` and ``commits`` where they
    are there: Spark itself does not.

    Raises:
        CommitLogError: the file system refused.
    """
    if isinstance(checkpoint, RemotePath):
        # A store answers when it has a file; on HDFS Spark's are on as many nodes as any.
        return
    try:
        for folder in (checkpoint / "offsets", checkpoint / "commits"):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(folder / str(batch), os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            with contextlib.suppress(FileNotFoundError):
                sync_folder(folder)
    except OSError as error:
        raise CommitLogError(
            f"Spark's files of batch {batch} in {checkpoint} can't be synced: {error.strerror}. "
            "Mend that, and detach again; nothing is lost."
        ) from error


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has, and under which names."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
