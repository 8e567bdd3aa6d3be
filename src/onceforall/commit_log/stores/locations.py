"""Where a commit log or a checkpoint lies: one way to write each location."""

from __future__ import annotations

import posixpath
from urllib.parse import urlsplit

from onceforall.common.arguments import location_shown
from onceforall.common.locations import split_location
from onceforall.errors import OptionError

__all__ = ["is_local", "remote_url"]


def is_local(location: str, default_fs: str = "file:///") -> bool:
    """Tell whether a location is on a local, or locally mounted, file system.

    Args:
        location: a path or a URL.
        default_fs: ``fs.defaultFS``, which a path without a scheme is relative to.
    """
    return (_scheme(location) or urlsplit(default_fs).scheme) == "file"


def remote_url(location: str, default_fs: str = "file:///", *, what: str) -> str:
    """Return the URL of a folder that is not local, the same for each way to write it.

    Args:
        location: an absolute path or a URL.
        default_fs: ``fs.defaultFS``; a path without a scheme, or a scheme without a host, is on it.
        what: what to call it in an error.

    Raises:
        OptionError: it names no folder, or a user and a password, or has a character in it that not
            everybody reads alike (``common.locations``).
    """
    default = urlsplit(default_fs)
    given_scheme, authority, path = split_location(location, what)
    if not given_scheme:
        authority, path = "", location
    scheme = given_scheme or default.scheme
    if not authority and scheme == default.scheme:
        authority = default.netloc
    user, _, _ = authority.rpartition("@")
    in_bucket = scheme in {"s3", "s3a", "s3n", "gs"}
    # A password that isn't escaped may have slashes of its own.
    if ":" in user or (in_bucket and (user or ":" in authority)):
        # Such as s3a://key:secret@bucket, which Hadoop took long ago.
        raise OptionError(
            f"{what} {location_shown(location)} names a user and a password. Take them out, and "
            "give them in Spark's settings (spark.hadoop.…) or in the environment."
        )
    if not authority and scheme != "hdfs":
        raise OptionError(
            f"{what} {location_shown(location)} names no bucket. Write it in full, such as "
            f"{scheme}://bucket/path."
        )
    # Hadoop takes a path as it is: nothing is unquoted.
    normalized = posixpath.normpath("/" + path.lstrip("/"))
    if not path.startswith("/") and path:
        raise OptionError(
            f"{what} {location_shown(location)} is not an absolute path: another working folder "
            "would give another place. Write it in full."
        )
    return f"{scheme}://{authority}{normalized}".rstrip("/")


def _scheme(location: str) -> str:
    before, colon, _ = location.partition(":")
    return before.lower() if colon and before and "/" not in before else ""
