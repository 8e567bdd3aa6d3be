"""Setting a detached query's commit log aside: the renames that make its checkpoint a plain one,
each atomic, durable and told.

The order of a detachment, and what must be true before, are `onceforall.operate.detaching`'s.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from onceforall.commit_log import LocalStore, Store, binding
from onceforall.commit_log.ending import ended_by
from onceforall.commit_log.envelope import DETACHED
from onceforall.commit_log.stores.locations import is_local
from onceforall.common import logs
from onceforall.errors import CommitLogError
from onceforall.failpoints import points as failpoints
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import commits as spark_commits

__all__ = ["alive", "rename", "rename_back", "set_aside_elsewhere", "sync_renamed"]

logger = logs.logger("onceforall")

Say = Callable[[str], None]
"""Takes a sentence for the person who detaches."""


def rename(home: Path, generation: int, say: Say) -> Path | None:
    """Rename the folder of that name, atomically and durably; None: another detachment did it.

    Whether it is the log that was detached is for the caller to look at.
    """
    attempt = 1
    while True:
        name = f"{spark_checkpoint.DETACHED_PREFIX}{generation}" + (
            f".{attempt}" if attempt > 1 else ""
        )
        target = home.with_name(name)
        attempt += 1
        if target.exists():
            continue
        try:
            home.rename(target)
        except FileNotFoundError:
            sync_renamed(home.parent)
            say("Another detachment has renamed the folder of the commit log meanwhile.")
            return None
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                # Another detachment has made it meanwhile.
                continue
            raise CommitLogError(
                f"The folder {home} can't be renamed: {error.strerror}. Until it is, this is a "
                "checkpoint of onceforall. Mend that, and "
                "detach again."
            ) from error
        failpoints.hit("detach.rename.before_sync")
        sync_renamed(home.parent)
        return target


def sync_renamed(checkpoint: Path) -> None:
    """Make another detachment's rename durable: it may have been killed before it could, and
    ours reports success.
    """
    try:
        spark_commits.sync_folder(checkpoint)
    except OSError as error:
        raise CommitLogError(
            f"The folder {checkpoint} can't be synced: {error.strerror}. Mend that, and detach "
            "again."
        ) from error


def alive(checkpoint: Path, open_store: Callable[[str], Store]) -> Path | None:
    """Return the folder of a log that was set aside though a run decides in it; None: there is
    none.

    A detachment that was killed behind its rename, before it saw what it had renamed, leaves that:
    generations above the one that the folder's name has, and no DETACHED entry below them.

    Args:
        checkpoint: the checkpoint's folder, which has no folder ``onceforall``.
        open_store: opens a log elsewhere.
    """
    for folder in spark_checkpoint.detached_logs(checkpoint):
        number = folder.name.removeprefix(spark_checkpoint.DETACHED_PREFIX).partition(".")[0]
        home = LocalStore(folder)
        pointer = binding.pointer_of(home)
        try:
            location = None if pointer is None else pointer[1]
            if (
                pointer is not None
                and location is not None
                and binding.bound_id(location, open_store) != pointer[0]
            ):
                # It was renamed, too, behind all looks.
                continue
            bound = binding.find(home, open_store=open_store)
            newest = None if bound is None else bound.log().newest_generation()
            if bound is None or newest is None or not number.isdecimal():
                continue
            if newest > int(number) and ended_by(bound, DETACHED) is None:
                decided = bound.log().look().decided
                last = spark_checkpoint.last_committed(checkpoint)
                # Where a plain query has gone on since, it was left.
                if decided is None or last <= decided.commit.batch:
                    return folder
        except CommitLogError as error:
            # A store that isn't there any more holds up nobody who left it.
            logger.warning("The log of %s, which was set aside, can't be read: %s", folder, error)
    return None


def rename_back(folder: Path, home: Path) -> None:
    """Undo a rename, durably: the checkpoint is one of onceforall again.

    Raises:
        CommitLogError: another folder has taken its place meanwhile, or the file system refused.
    """
    try:
        folder.rename(home)
    except OSError as error:
        raise CommitLogError(
            f"{folder} holds the log of a run that may be alive, and can't be renamed back to "
            f"{home}: {error.strerror}. Stop every run of the query. If {home} is there, it was "
            f"begun meanwhile: move it away, rename {folder} back, and detach again."
        ) from error
    sync_renamed(home.parent)


def set_aside_elsewhere(folder: Path, log_id: str, location: str | None, say: Say) -> None:
    """Rename a log that lies elsewhere, so that its place is free for a new one.

    The checkpoint is a plain one already.
    """
    if location is not None and not is_local(location):
        say(
            f"Its entries stay in {location}, for a folder there can't be renamed as one. A new "
            "log of this checkpoint needs another place. Delete them when nobody needs them."
        )
        return
    if location is None or binding.bound_id(location) != log_id:
        return
    elsewhere = binding.log_path(location)
    target = elsewhere.with_name(
        elsewhere.name + folder.name.removeprefix(spark_checkpoint.LOG_FOLDER)
    )
    try:
        failpoints.hit("detach.elsewhere.before")
        elsewhere.rename(target)
        failpoints.hit("detach.elsewhere.renamed")
        if binding.bound_id(target.as_uri()) != log_id:
            # The query has returned to that place while this one stood still.
            target.rename(elsewhere)
            spark_commits.sync_folder(target.parent)
            return
        spark_commits.sync_folder(target.parent)
    except OSError as error:
        say(
            f"Its entries stay in {elsewhere}, which can't be renamed ({error.strerror}): move "
            "them away before a new log is to lie there."
        )
        return
    say(f"Its entries lie in {target}. That folder may be deleted.")
