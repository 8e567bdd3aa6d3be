"""Reads paths as Hadoop does, for Spark hands each location to it: nothing is unquoted, and there
are no queries and no fragments.

The rules are those of ``org.apache.hadoop.fs.Path(String)``
(https://hadoop.apache.org/docs/stable/api/org/apache/hadoop/fs/Path.html), which takes
``file:/a%3Db#c?d`` for a folder named ``a%3Db#c?d``. They stand here once more for tools that have
no session, and thus no Hadoop; a test compares the two. With a session, Hadoop is asked itself
(``checkpoint_folder``): a relative path is one of the JVM's working folder, which need not be
Python's.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onceforall.common.arguments import is_connect, location_shown
from onceforall.errors import OptionError, UnsupportedQueryError
from onceforall.spark.hadoop_settings import hadoop_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_DRIVE = re.compile("[A-Za-z]:")


class HadoopPath(NamedTuple):
    """What Hadoop makes of a location.

    Attributes:
        scheme: None where it has none.
        authority: what follows two slashes, such as a host; None where there is none.
        path: normalized, with forward slashes.
    """

    scheme: str | None
    authority: str | None
    path: str


def split(location: str) -> HadoopPath:
    """Split a location as ``Path(String)`` does.

    Raises:
        OptionError: Hadoop takes it for no path.
    """
    scheme, rest = None, location
    colon, slash = location.find(":"), location.find("/")
    if colon != -1 and (slash == -1 or colon < slash):
        scheme, rest = location[:colon], location[colon + 1 :]
    authority = None
    if rest.startswith("//") and len(rest) > 2:
        host, begin, path = rest[2:].partition("/")
        authority, rest = host or None, begin + path
    if scheme is not None and _DRIVE.match(rest):
        # Hadoop takes it for a drive of Windows, on every system.
        rest = f"/{rest}"
    reason = None
    if not location:
        reason = "it is empty"
    elif "\0" in location:
        reason = "it has a null character"
    elif scheme is not None and not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        reason = (
            f"what stands before its first colon, {scheme!r}, is no scheme; write file:/… "
            "before a path with a colon"
        )
    elif scheme is not None and authority is None and not rest.startswith("/"):
        reason = f"it has the scheme {scheme!r} and is not absolute; write {scheme}:/…"
    if reason is not None:
        raise OptionError(f"{location_shown(location)!r} is no path for Hadoop: {reason}.")
    return HadoopPath(scheme, authority, _normalized(rest))


def _normalized(path: str) -> str:
    found = posixpath.normpath(re.sub("/+", "/", path))
    return "" if found == "." else found


def local_folder(location: str, default_scheme: str = "file", what: str = "The path") -> Path:
    """Return the absolute local folder of a location; a relative one is of this process.

    Args:
        location: a path or ``file:`` URL, as Hadoop takes it.
        default_scheme: the scheme of ``fs.defaultFS``, which a location without one has.
        what: what to call it in an error.

    Raises:
        OptionError: it is no path for Hadoop, or names a host.
        UnsupportedQueryError: it is not on a local (or locally mounted) file system.
    """
    found = split(location)
    scheme = found.scheme or default_scheme
    if scheme != "file":
        raise UnsupportedQueryError(
            f"{what} {location_shown(location)} is on {scheme}:, and this works on local or "
            "locally mounted file systems only. Mount it, or use a "
            "path that starts with file:/."
        )
    if found.authority is not None:
        raise OptionError(
            f"{what} {location_shown(location)} names a host. A local folder has one slash or "
            "three: file:/…"
        )
    return Path(posixpath.normpath(posixpath.join(os.getcwd(), found.path)))  # noqa: PTH109  text, not links, as Hadoop does


def default_scheme(spark: SparkSession) -> str:
    """Return the scheme of ``fs.defaultFS``, which paths without one have."""
    return str(hadoop_settings(spark).get("fs.defaultFS", "file:///")).partition(":")[0]


def absolute_location(spark: SparkSession, location: str) -> str:
    """Return a location that is relative as the absolute one that Hadoop makes of it; any other one
    as it is.

    Args:
        spark: the session; a relative path is one of its JVM's working folder, which need not
            be this process's.
        location: what the user says.

    Raises:
        OptionError: it is no path for Hadoop; or it is relative, and the session is one of Spark
            Connect, whose JVM can't be asked.
    """
    found = split(location)
    if found.scheme is not None or found.authority is not None or found.path.startswith("/"):
        return location
    if is_connect(spark):
        check_absolute(f"The checkpoint {location_shown(location)}", location)
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(location)  # noqa: SLF001
    return str(
        path.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(path).toString()  # noqa: SLF001
    )


def check_absolute(what: str, location: str) -> None:
    """Refuse a relative location in a client of Spark Connect.

    Args:
        what: what it is, for the error.
        location: as the user wrote it.

    Raises:
        OptionError: it is relative, or no path for Hadoop.
    """
    found = split(location)
    if found.scheme is None and found.authority is None and not found.path.startswith("/"):
        raise OptionError(
            f"{what} is a relative path. With Spark Connect it would be one of the server's "
            "working folder, which the client can't know. Write it in full."
        )


def checkpoint_folder(spark: SparkSession, location: str) -> Path:
    """Return the local folder that Spark makes of a checkpoint location, by Hadoop's own word;
    nothing is created.

    Args:
        spark: a classic session.
        location: what the user says.

    Raises:
        OptionError: as ``local_folder``, or the JVM's locale can't name the folder.
        UnsupportedQueryError: as ``local_folder``.
    """
    local_folder(location, default_scheme(spark), "The checkpoint")
    context: Any = spark.sparkContext
    jvm = context._jvm  # noqa: SLF001
    path = jvm.org.apache.hadoop.fs.Path(location)
    system = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
    folder = str(system.makeQualified(path).toUri().getPath())
    encoding = str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))
    if not folder.isascii() and encoding.upper().replace("-", "") != "UTF8":
        raise OptionError(
            f"The checkpoint {folder} has characters that the JVM can't name: its locale says "
            f"{encoding}, so Spark would make another folder. "
            "Start with LC_ALL=C.UTF-8, or choose a path of ASCII characters."
        )
    return Path(folder).resolve()
