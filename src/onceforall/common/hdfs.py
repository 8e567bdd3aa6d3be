"""HDFS by hdfs-native, for where there is no JVM: a client per place, and what its errors mean.

Users and Kerberos are as in Hadoop: ``HADOOP_USER_NAME``, the ticket cache, or the delegation
tokens that YARN gives to a container (``HADOOP_TOKEN_FILE_LOCATION``). What no setting says comes
from the files in ``HADOOP_CONF_DIR``.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from onceforall.errors import MissingExtraError

__all__ = ["HdfsError", "client_of", "explained", "folder_mode", "hdfs_native"]

_ATTEMPTS = "dfs.client.failover.max.attempts"
# Its own default, 15, is three minutes of waiting for a NameNode that isn't there.
_FEW_ATTEMPTS = "5"
_UMASK = "fs.permissions.umask-mode"
_OF_SERVER = re.compile(r'RPCError\("(?:[\w$]+\.)*([\w$]+)", "(.*?)(?:\\n|"\)$)', re.DOTALL)
_REMEDIES = {
    # By the exception of the NameNode's: what helps, and whether asking again can't.
    "AccessControlException": ("Grant the user of driver and executors rights there", True),
    "AuthorizationException": ("Let this user use the cluster", True),
    "ParentNotDirectoryException": ("Move away what stands in a folder's place", True),
    "SafeModeException": ("Wait until the NameNode has left its safe mode", False),
    "NSQuotaExceededException": ("Raise the quota of names, or delete some", False),
    "DSQuotaExceededException": ("Raise the quota of space, or free some", False),
    "StandbyException": ("Name the nameservice in place of one NameNode", False),
    "ConnectException": ("Start the NameNode, or mend the network or the address", False),
}


class HdfsError(OSError):
    """What HDFS refuses, or gives no answer to; ``strerror`` says what happened.

    Attributes:
        remedy: what helps.
        refused: whether asking again can't help.
    """

    def __init__(self, words: str, remedy: str, *, refused: bool) -> None:
        super().__init__(errno.EACCES if refused else errno.EIO, words)
        self.remedy = remedy
        self.refused = refused


def hdfs_native() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: it isn't installed.
    """
    try:
        import hdfs_native as module
    except ImportError as error:
        raise MissingExtraError("hdfs-native", "hdfs") from error
    return module


def client_of(url: str, settings: Mapping[str, str]) -> Any:
    """Return the client of a file system, one per process: it has threads and connections. Safe
    for several threads.

    Args:
        url: with the scheme and the NameNode or nameservice.
        settings: Hadoop's.

    Raises:
        MissingExtraError: hdfs-native isn't installed.
        HdfsError: the URL names no file system that it knows.
    """
    # A fork has none of its parent's threads.
    key = url, tuple(sorted(settings.items())), os.getpid()
    if key not in _clients:
        with explained("reach", url):
            _clients[key] = hdfs_native().Client(url, {_ATTEMPTS: _FEW_ATTEMPTS, **settings})
    return _clients[key]


_clients: dict[tuple[str, tuple[tuple[str, str], ...], int], Any] = {}
"""None is ever given up: in a forked process the end of a client waits for threads that aren't
there."""


def folder_mode(settings: Mapping[str, str]) -> int:
    """Return the permissions of new folders: all but those of Hadoop's umask."""
    try:
        return 0o777 & ~int(settings.get(_UMASK, "022"), 8)
    except ValueError:
        # It may be symbolic, too.
        return 0o755


@contextmanager
def explained(action: str, path: object) -> Iterator[None]:
    """Say what happened in one line: an error of hdfs-native has the server's stack behind it.

    Raises:
        FileNotFoundError, FileExistsError: as hdfs-native does, with the path.
        HdfsError: anything else.
    """
    try:
        yield
    except (MissingExtraError, HdfsError):
        raise
    except (FileNotFoundError, FileExistsError) as error:
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
        raise type(error)(code, _first_line(str(error)) or os.strerror(code), str(path)) from None
    except Exception as error:  # noqa: BLE001  its errors have no class of their own
        text = str(error)
        found = _OF_SERVER.search(text)
        name, words = (found[1], found[2]) if found else (type(error).__name__, _first_line(text))
        if "refused" in words or "timed out" in words.lower():
            name = "ConnectException"
        remedy, refused = _REMEDIES.get(name, ("Mend the cause", False))
        raise HdfsError(
            f"cannot {action} {path} ({name}: {words})", remedy, refused=refused
        ) from None


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
