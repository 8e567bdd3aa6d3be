"""Reads Spark's own checkpoint: offset log, commit log, and whether the query keeps state. It
writes nothing of Spark's.

The layout is Spark's (``org.apache.spark.sql.execution.streaming``): ``offsets/<batch>`` holds a
version line, a line of batch metadata and one line per source; ``commits/<batch>`` appears when the
batch is complete; ``state/`` exists when the query is stateful.
"""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

from onceforall.commit_log import binding
from onceforall.errors import CheckpointMismatchError, CommitLogError, ConfigurationError
from onceforall.spark.hadoop_paths import local_folder
from onceforall.spark.offsets import describe_batch
from onceforall.spark.remote_path import AnyPath, RemotePath, store_at

LOG_FOLDER = "onceforall"

DETACHED_PREFIX = f"{LOG_FOLDER}-detached-"
"""How the folder is named after a ``detach``; a generation follows."""


def local_path(location: str) -> Path:
    """Return the local folder of a checkpoint location, for who has no session; with one,
    ``hadoop_paths.checkpoint_folder`` is right.

    Args:
        location: a path or ``file:`` URL, as Hadoop takes it: nothing is unquoted.

    Raises:
        OptionError: Hadoop takes it for no path, or it names a host.
        UnsupportedQueryError: the checkpoint is not on a local (or locally mounted) file system.
    """
    return local_folder(location, what="The checkpoint").resolve()


def offsets_of(checkpoint: AnyPath, batch: int) -> tuple[str, ...]:
    """Return the lines of Spark's offset log for a batch's end, one per source, without version and
    metadata lines.

    Raises:
        CheckpointMismatchError: Spark runs the batch, but its offset log does not have it.
    """
    return _entry(checkpoint, batch)[2:]


def plan_of(checkpoint: AnyPath, batch: int) -> tuple[str, ...]:
    """Return all lines of Spark's offset log for a batch: version, metadata, and one per source.

    Raises:
        CheckpointMismatchError: Spark runs the batch, but its offset log does not have it.
    """
    return _entry(checkpoint, batch)


def header_of(checkpoint: AnyPath, batch: int) -> tuple[str, ...]:
    """Return the first two lines of Spark's offset log for a batch: version, and metadata
    (watermark, time, settings).

    Raises:
        CheckpointMismatchError: Spark's offset log does not have the batch.
    """
    return _entry(checkpoint, batch)[:2]


def known_plan_of(checkpoint: AnyPath, batch: int) -> tuple[str, ...]:
    """Return what ``plan_of`` does; nothing where Spark's offset log doesn't have the batch, or not
    any more.
    """
    try:
        return plan_of(checkpoint, batch)
    except CheckpointMismatchError:
        return ()


def is_planned(checkpoint: AnyPath, batch: int) -> bool:
    """Tell whether Spark's offset log has a batch, or a newer one: a run that goes on deletes old
    plans, and may do so meanwhile.
    """
    return last_planned(checkpoint) >= batch


def last_committed(checkpoint: AnyPath) -> int:
    """Return the last batch in Spark's commit log, or -1."""
    return _last(checkpoint / "commits")


def lines_of(text: str) -> tuple[str, ...]:
    """Split a file of Spark's as Spark does; Python's ``splitlines`` also cuts at characters
    that JSON has in its texts.
    """
    return tuple(re.split(r"\r\n|\n|\r", text.removesuffix("\n")))


def _entry(checkpoint: AnyPath, batch: int) -> tuple[str, ...]:
    file = checkpoint / "offsets" / str(batch)
    try:
        return lines_of(file.read_bytes().decode())
    except OSError as error:
        raise CheckpointMismatchError(
            f"Spark runs batch {batch}, but {file} can't be read ({error.strerror}). Does "
            "checkpointLocation name the query's checkpoint?"
        ) from error
    except UnicodeDecodeError as error:
        raise CheckpointMismatchError(
            f"Spark runs batch {batch}, but {file} is no text: {error}. It is damaged. Stop the "
            "query, and start it again; a start looks at what Spark left."
        ) from error


def last_planned(checkpoint: AnyPath) -> int:
    """Return the last batch in Spark's offset log, or -1."""
    return _last(checkpoint / "offsets")


def _last(folder: AnyPath) -> int:
    return max((int(name) for name in _names(folder) if name.isdecimal()), default=-1)


def _names(folder: AnyPath) -> list[str]:
    """Return the names in a folder of Spark's; one that is missing is empty.

    Raises:
        CommitLogError: it can't be read.
    """
    try:
        return [file.name for file in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "no error code")
        raise CommitLogError(
            f"cannot list {folder}: {error.strerror or error} ({code}). A checkpoint is a folder "
            "that the user of the Spark driver may read and write: mend that, or correct "
            "checkpointLocation, then restart the query."
        ) from error


def keeps_state(checkpoint: AnyPath) -> bool:
    """Tell whether a batch of this query has ever kept state."""
    return bool(_names(checkpoint / "state"))


def query_id(checkpoint: AnyPath) -> str | None:
    """Return the id that Spark gave the query; None before its first start.

    Raises:
        CheckpointMismatchError: the file that holds it is damaged.
    """
    file = checkpoint / "metadata"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["id"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatchError(
            f"The query's id can't be read from {file} ({type(error).__name__}: {error}). "
            "'onceforall checkpoint mend' puts it back where the commit log has it; else put the "
            "file back from a backup."
        ) from error
    return str(found)


def check_is_of_query(checkpoint: AnyPath, expected: str) -> None:
    """See that a folder is the checkpoint of the query that runs, by the id that Spark has written
    there.

    Raises:
        CheckpointMismatchError: it isn't, so that the commit log would lie in a foreign folder.
    """
    found = query_id(checkpoint)
    if found != expected:
        of = "no query's checkpoint" if found is None else f"the checkpoint of the query {found}"
        raise CheckpointMismatchError(
            f"Spark runs the query {expected}, and {checkpoint}, which should be its checkpoint, "
            f"is {of}. Driver and Spark must see one file "
            "system under this path; nothing was written."
        )


def check_take_over(checkpoint: AnyPath, takeover: str | None) -> None:
    """Refuse a plain query's checkpoint whose last batch may already be in the sinks, in part.
    Nothing is written.

    The mark of one of ours is its pointer to a commit log: with it, an unfinished batch is known to
    be one of ours. A detachment writes another one.

    Args:
        checkpoint: the checkpoint's folder.
        takeover: ``accept`` lets that batch be written (again, perhaps).

    Raises:
        CheckpointMismatchError: the last batch is planned but not committed, and no commit log says
            what became of it.
        ConfigurationError: ``takeover`` is neither None nor ``accept``.
    """
    if takeover not in {None, "accept"}:
        raise ConfigurationError(f"takeover={takeover!r} is unknown; the only value is 'accept'.")
    planned, committed = last_planned(checkpoint), last_committed(checkpoint)
    if takeover is None and planned > committed and not is_ours(checkpoint):
        raise CheckpointMismatchError(
            f"Batch {planned} of the checkpoint {checkpoint} was begun without onceforall and not "
            "finished: its rows may already be in the "
            "sink, all or some of them, and writing them again would double them. Its input is "
            f"{describe_batch(checkpoint, planned)}. "
            "Let the plain query finish it first, or accept that with the option "
            "onceforall.takeover=accept (takeover='accept')."
        )


def is_ours(checkpoint: AnyPath) -> bool:
    """Tell whether a checkpoint has a commit log, and wasn't made a plain query's since."""
    return binding.is_bound(store_at(checkpoint / LOG_FOLDER))


def was_begun(checkpoint: AnyPath) -> bool:
    """Tell whether a start has come as far as the folder of the commit log at least, and the
    checkpoint wasn't made a plain query's since.
    """
    home = checkpoint / LOG_FOLDER
    if isinstance(home, RemotePath):
        # A start that tests the store leaves a folder behind before it binds anything.
        return is_ours(checkpoint)
    return home.exists() and not binding.is_detached(store_at(home))


def is_plain(checkpoint: AnyPath) -> str:
    """Return what is to be said of a checkpoint that was detached, where one of ours is needed."""
    return (
        f"{checkpoint} was made a plain Spark query's by a detachment: onceforall has nothing to "
        "do there until the query is started with it again."
    )


def detached_logs(checkpoint: AnyPath) -> list[Path]:
    """Return the folders to which a release before 0.2 has renamed commit logs from which it
    detached this checkpoint, oldest first; on a store there are none.
    """
    if isinstance(checkpoint, RemotePath):
        return []
    folders = (each for each in checkpoint.glob(f"{DETACHED_PREFIX}*") if each.is_dir())
    return sorted(folders, key=lambda folder: folder.stat().st_mtime_ns)


def detached_generation(checkpoint: AnyPath) -> int:
    """Return the newest generation of all commit logs from which this checkpoint was detached,
    or -1; the pointers tell it, and the names of the folders of earlier releases.
    """
    names = (
        folder.name.removeprefix(DETACHED_PREFIX).partition(".")[0]
        for folder in detached_logs(checkpoint)
    )
    return max(
        binding.detached_generation(store_at(checkpoint / LOG_FOLDER)),
        *(int(name) for name in names if name.isdecimal()),
        -1,
    )
