"""What is checked at start, before any data moves: the folder, its file system, and what lies in
it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from onceforall.errors import SinkCheckError, UnsupportedQueryError
from onceforall.sinks.files.driver.identity import NAME, make_folder_id
from onceforall.sinks.files.driver.spark_metadata import DEFAULT_INTERVAL, SparkMetadata
from onceforall.sinks.files.folders import explained, is_temporary, make_root, sync_folder
from onceforall.sinks.files.manifests.names import has_our_name
from onceforall.sinks.files.paths import HOME, MANIFESTS, SPARK_METADATA, STAGING
from onceforall.sinks.files.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE = ".onceforall-probe-"
_PROBE_LIFE_S = 3600.0
"""A younger probe may be another query's that starts at this moment; an older one is a killed
process's."""


def check_session(spark: SparkSession, location: str) -> int:
    """Refuse a folder that this session would not take for a local one, and return its compact
    interval of Spark's log.

    Raises:
        UnsupportedQueryError: paths without a scheme are not local in this session.
    """
    from onceforall.spark.hadoop_paths import default_scheme

    scheme = default_scheme(spark)
    if scheme != "file" and not location.startswith("file:"):
        raise UnsupportedQueryError(
            f"The folder {location} has no scheme, and fs.defaultFS makes it one on {scheme}:. "
            "FileSink writes to local or locally "
            "mounted file systems only; if this is one, say so with file:/."
        )
    interval = spark.conf.get(
        "spark.sql.streaming.fileSink.log.compactInterval", str(DEFAULT_INTERVAL)
    )
    return int(interval or DEFAULT_INTERVAL)


def check_folder(root: Path) -> None:
    """Make the folder and ours in it, and see that files can be written there and moved to it.

    Raises:
        SinkCheckError: naming the folder, the reason and the remedy.
        CommitLogError: a file of ours is damaged, or something else stands in its place.
    """
    if os.path.lexists(root) and not root.is_dir():
        raise SinkCheckError(
            f"{root} is a file, not a folder. Move it away, or give FileSink another path."
        )
    try:
        make_root(root)
    except OSError as error:
        raise SinkCheckError(f"The folder {root} can't be made: {explained(error)}.") from error
    tree = Tree(root)
    for name in (HOME, STAGING, MANIFESTS):
        folder = root / name
        if folder.is_symlink():
            raise SinkCheckError(
                f"{folder} is a symbolic link, and FileSink follows none below its folder. Put a "
                "folder in its place."
            )
        if os.path.lexists(folder) and not folder.is_dir():
            raise SinkCheckError(
                f"{folder} is no folder, and FileSink needs that name for its own. Move it away."
            )
        try:
            tree.make_folder(folder)
        except OSError as error:
            raise SinkCheckError(
                f"The folder {folder} can't be made: {explained(error)}."
            ) from error
        if folder.stat().st_dev != root.stat().st_dev:
            raise SinkCheckError(
                f"{folder} is on another file system than {root}, so that files can't get from "
                "there to here at once. Undo that mount."
            )
    _check_links(root)
    _check_foreign(root)
    try:
        make_folder_id(tree)
    except OSError as error:
        raise SinkCheckError(
            f"The folder {root} can't be given an id: {explained(error)}."
        ) from error
    try:
        _sync_found(root)
    except OSError as error:
        raise SinkCheckError(f"The folder {root} can't be synced: {explained(error)}.") from error


def _sync_found(root: Path) -> None:
    """Make durable what an earlier start made here: it may have been killed before it could sync
    it.
    """
    Tree(root).sync_all([root, root / HOME])
    for above in root.parents:
        _sync_above(above)


def _sync_above(folder: Path) -> None:
    # What we may not open, no start of ours can have made; and on autofs, or a read-only image,
    # none can be synced. But a disk that failed may have lost a name, and says so only once.
    try:
        sync_folder(folder)
    except OSError as error:
        if error.errno == errno.EIO:
            raise


def _check_links(root: Path) -> None:
    """Do once what every commit does: a link from the temp files' folder to the sink's."""
    tree = Tree(root)
    for old in [*root.glob(f"{_PROBE}*"), *(root / STAGING).glob(f"{_PROBE}*")]:
        with contextlib.suppress(OSError):
            if time.time() - old.lstat().st_mtime > _PROBE_LIFE_S:
                tree.unlink(old)
    name = f"{_PROBE}{secrets.token_hex(8)}"
    temporary, target = root / STAGING / name, root / name
    try:
        tree.open_new(temporary).close()
        tree.link(temporary, target)
    except OSError as error:
        raise SinkCheckError(
            f"FileSink can't write in {root}, or can't make a hard link from {temporary.parent} "
            f"to it: {explained(error)}. It needs a file "
            "system with hard links (ext4, xfs, btrfs, NFS), and a folder that its user owns."
        ) from error
    finally:
        for path in (target, temporary):
            with contextlib.suppress(OSError):
                tree.unlink(path)


def _check_foreign(root: Path) -> None:
    """Refuse what others have put under our names: it could be taken for ours."""
    home = root / HOME
    strange = [
        path
        for path in home.iterdir()
        if path.name not in {"staging", "manifests", NAME} and not is_temporary(path.name)
    ]
    tree = Tree(root)
    for query in (root / MANIFESTS).iterdir():
        if not query.is_symlink() and not query.is_dir():
            strange.append(query)
            continue
        for sink in (query / name for name in _names(tree, query)):
            if not sink.is_symlink() and not sink.is_dir():
                strange.append(sink)
                continue
            strange += _strange_manifests(tree, sink)
    if strange:
        raise SinkCheckError(
            f"{strange[0]} was not written by FileSink, and {home} is for its own files only "
            f"({len(strange)} such). Move it away."
        )


def _names(tree: Tree, folder: Path) -> list[str]:
    """Return what lies in a folder of ours.

    Raises:
        SinkCheckError: a link stands in its place, or it can't be read.
    """
    try:
        return tree.names(folder)
    except OSError as error:
        raise SinkCheckError(f"The folder {folder} can't be read: {explained(error)}.") from error


def _strange_manifests(tree: Tree, sink: Path) -> list[Path]:
    """Return what has no name of ours; what has one must be a file, for whoever opens a pipe waits
    for ever.

    Raises:
        SinkCheckError: a link stands in the folder's place, or it can't be read.
        ForeignEntryError: a link, a pipe or a folder has a name of ours.
    """
    strange = []
    with tree.held(sink):
        for name in _names(tree, sink):
            if has_our_name(name):
                tree.check_file(sink / name)
            elif not name.startswith("."):
                strange.append(sink / name)
    return strange


def check_spark_metadata(root: Path, choice: str, log: SparkMetadata) -> None:
    """Refuse a folder whose readers would not see what we write; with ``choice="continue"``, see
    that its log can be kept.

    Raises:
        SinkCheckError: naming the folder and the choices.
    """
    if not log.exists():
        return
    if choice == "refuse":
        raise SinkCheckError(
            f"{root} holds {SPARK_METADATA}, the log of Spark's own file sink. Spark's readers "
            "trust it, so they would silently not see what "
            "is written here. Set spark_metadata='continue', which keeps that log too (the plain "
            "query must never write there again), or write "
            "to another folder."
        )
    try:
        log.check()
    except OSError as error:
        raise SinkCheckError(
            f"Spark's log {root / SPARK_METADATA} can't be read: {explained(error)}."
        ) from error
