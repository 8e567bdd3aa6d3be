"""A remote store by Hadoop's client in Spark's JVM: it has Spark's own credentials, whatever
provider they come from.

How a key is created exclusively is each file system's own business:

- **HDFS** (and whatever renames atomically and refuses an existing name): the content goes to a
  temporary file, which is synced (``hsync``) and closed; ``FileContext.rename`` without overwriting
  makes it appear. ``FileSystem.rename`` won't do: it answers False, and some file systems
  overwrite.
- **S3A** from Hadoop 3.4.2 on: one PUT with ``If-None-Match: *``, which
  ``fs.option.create.conditional.overwrite`` asks for
  (https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-common/filesystem/fsdataoutputstreambuilder.html).

The file system object is one of our own, not Spark's: with short time-outs, without the client's
own repetitions of a create, and on HDFS without the pause of 400 ms before a file may be closed.

All calls are made in threads of our own. A batch's own thread is Spark's, which interrupts it when
the query is stopped, and Hadoop's client gives up in the middle of a request then.
"""

from __future__ import annotations

import builtins
import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from onceforall.commit_log.stores.client import Creation
from onceforall.common.threads import Threads
from onceforall.errors import CommitLogError, OptionError

__all__ = ["HadoopClient", "creates_exclusively"]

_T = TypeVar("_T")

_CONDITIONAL = "fs.option.create.conditional.overwrite"
_OURS: Mapping[str, str] = {
    # A create is asked for once; what to make of a lost answer is the commit log's to say.
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.connection.timeout": "30s",
    "fs.s3a.connection.establish.timeout": "5s",
    "fs.s3a.fast.upload.buffer": "bytebuffer",
    # The wait before a file may be closed, doubled at each try; 400 ms otherwise.
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
    "ipc.client.connect.timeout": "5000",
    "ipc.client.connect.max.retries.on.timeouts": "2",
    "ipc.client.rpc-timeout.ms": "30000",
}
_RENAMING = frozenset({"hdfs", "viewfs", "webhdfs", "swebhdfs"})
_EXISTS = ("FileAlreadyExistsException", "RemoteFileChangedException")
_ABSENT = ("FileNotFoundException", "NoSuchFileException")
_REMEDIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    # What to do, and the words by which it is known; the first that fits.
    (
        "There is no such bucket. Create it, or mend the URL",
        ("UnknownStoreException", "NoSuchBucket"),
    ),
    (
        ("Spark has no jar for this scheme. Give it one with spark.jars or spark.jars.packages "
        "(hadoop-aws for s3a)"),
        ("UnsupportedFileSystemException", "ClassNotFoundException", "No FileSystem for scheme"),
    ),
    (
        ("The NameNode is in safe mode and takes no writes. Wait until it leaves it (hdfs dfsadmin "
        "-safemode get)"),
        ("SafeModeException",),
    ),
    (
        "The quota is used up. Raise it, or free some space",
        ("QuotaExceededException", "NSQuotaExceeded", "DSQuotaExceeded"),
    ),
    (
        "The store doesn't accept the key. Give the right access key and secret",
        ("SignatureDoesNotMatch", "InvalidAccessKeyId"),
    ),
    ("The session token has expired. Give a new one", ("ExpiredToken", "TokenRefreshRequired")),
    (
        ("The user of the Spark driver may not do that. Grant it the right to read, write, list "
        "and delete there"),
        ("AccessDeniedException", "AccessControlException", "AccessDenied", "Forbidden"),
    ),
    (
        "No credentials were found. Give Spark some for this store",
        ("NoAuthWithAWS", "NoAwsCredentials", "CredentialInitialization"),
    ),
    (
        "The bucket is in another region. Set fs.s3a.endpoint.region",
        ("AWSRedirectException", "PermanentRedirect", "AuthorizationHeaderMalformed"),
    ),
    (
        ("The store doesn't know conditional puts (If-None-Match), on which the log rests. Use "
        "another store for the commit log"),
        ("NotImplemented",),
    ),
    ("The disks of the store are full", ("could only be written to 0 of the", "No space left")),
    (
        "The store doesn't answer. Mend the network or the endpoint",
        (
            "ConnectException", "UnknownHostException", "SocketTimeoutException",
            "NoRouteToHostException", "EOFException", "ConnectTimeoutException",
            "AWSClientIOException", "RetriableException", "StandbyException",
        ),
    ),
)  # fmt: skip


def creates_exclusively(scheme: str, jvm: Any, configuration: Any, url: str) -> bool:
    """Tell whether Hadoop's client can create a key exclusively and whole in this store.

    Args:
        scheme: the URL's.
        jvm: of a session.
        configuration: Hadoop's.
        url: of the store.

    Raises:
        CommitLogError: the file system can't be opened.
    """
    if scheme in _RENAMING:
        return True
    if scheme != "s3a":
        return False
    with _explained("open", url):
        path = jvm.org.apache.hadoop.fs.Path(url)
        system = path.getFileSystem(configuration)
        return bool(system.hasPathCapability(path, _CONDITIONAL))


class HadoopClient:
    """A folder of a file system of Hadoop's.

    Args:
        gateway: py4j's to a JVM with Hadoop's classes; that of a session's context.
        configuration: Hadoop's, which is copied.
        url: of the folder; it need not exist.

    Raises:
        CommitLogError: the file system can't be opened.
        OptionError: the URL isn't one.
    """

    def __init__(self, gateway: Any, configuration: Any, url: str) -> None:
        self.url = url.rstrip("/")
        self._gateway = gateway
        self._jvm = jvm = gateway.jvm
        self._threads = Threads(4, thread_name_prefix="onceforall-hadoop")
        own = jvm.org.apache.hadoop.conf.Configuration(configuration)
        for name, value in _OURS.items():
            own.set(name, value)
        with _explained("open", self.url):
            root = jvm.org.apache.hadoop.fs.Path(self.url)
            self._uri = root.toUri()
            if self._uri.getScheme() is None:
                raise OptionError(f"{url} has no scheme. Write it in full, such as hdfs://host/…")
            self._renames = str(self._uri.getScheme()) in _RENAMING
            self._system = jvm.org.apache.hadoop.fs.FileSystem.newInstance(self._uri, own)
            self._context = (
                jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._uri, own)
                if self._renames
                else None
            )
        self.is_far = not self._renames
        self._made: set[str] = set()

    def __repr__(self) -> str:
        return f"HadoopClient({self.url!r})"

    def read(self, key: str) -> bytes | None:
        """Return a file's content; None where there is none."""
        return self._do("read", key, lambda: self._read(key))

    def create(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> Creation:
        """Create a file whole, if there is none; see the module for how."""
        create = self._create_by_rename if self._renames else self._create_by_condition
        return self._do("create", key, lambda: create(key, content, in_time))

    def replace(self, key: str, content: bytes) -> None:
        """Write a file whole, whatever stands there."""
        replace = self._replace_by_rename if self._renames else self._write
        self._do("write", key, lambda: replace(self._path(key), content))

    def delete(self, key: str) -> None:
        """Delete a file, and its folder where nothing else is in it."""
        self._do("delete", key, lambda: self._delete(key))

    def exists(self, key: str) -> bool:
        """Tell whether there is a file or a folder."""
        return self._do("look for", key, lambda: bool(self._system.exists(self._path(key))))

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, those of folders with a slash behind."""
        return self._do("list", folder, lambda: self._list(folder))

    def move(self, key: str, to: str) -> None:
        """Rename a file; nothing is overwritten on HDFS."""
        self._do("move", key, lambda: self._move(key, to))

    # --- in a thread of our own -------------------------------------------------------------------

    def _do(self, action: str, key: str, call: Callable[[], _T]) -> _T:
        def explained() -> _T:
            with _explained(action, f"{self.url}/{key}"):
                return call()

        return self._threads.submit(explained).result()

    def _path(self, key: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{key}" if key else self.url)

    def _read(self, key: str) -> bytes | None:
        try:
            stream = self._system.open(self._path(key))
        except Exception as error:
            if _is(error, _ABSENT):
                return None
            raise
        try:
            # S3A looks for the object when the first byte is read, where it is told to.
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _create_by_condition(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None
    ) -> Creation:
        path = self._path(key)
        builder = self._system.createFile(path).must(_CONDITIONAL, True)
        # No look at what stands there and above: the condition tells.
        stream = builder.opt("fs.s3a.create.performance", True).recursive().build()
        try:
            stream.write(bytearray(content))
            if in_time is not None and not in_time():
                stream.abort()
                return "too late"
            # This is the request.
            stream.close()
        except Exception as error:
            if _is(error, _EXISTS):
                return "exists"
            raise
        return "created"

    def _create_by_rename(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None
    ) -> Creation:
        path = self._path(key)
        folder, _, name = key.rpartition("/")
        # In the root, where a crashed writer's are found without a look into each chain.
        temporary = self._path(f".{name}.{secrets.token_hex(16)}.tmp")
        self._write(temporary, content)
        try:
            if folder not in self._made:
                self._system.mkdirs(path.getParent())
                self._made.add(folder)
            if in_time is not None and not in_time():
                return "too late"
            return self._rename(temporary, path)
        finally:
            with contextlib.suppress(Exception):
                self._system.delete(temporary, False)

    def _replace_by_rename(self, path: Any, content: bytes) -> None:
        # Whoever is killed while a file is written over leaves a part of it.
        temporary = self._path(f".{path.getName()}.{secrets.token_hex(16)}.tmp")
        self._write(temporary, content)
        try:
            self._rename(temporary, path, over=True)
        finally:
            with contextlib.suppress(Exception):
                self._system.delete(temporary, False)

    def _rename(
        self, temporary: Any, path: Any, *, over: bool = False, again: bool = True
    ) -> Creation:
        options = self._jvm.org.apache.hadoop.fs.Options
        how = self._gateway.new_array(options.Rename, 1)
        how[0] = options.Rename.OVERWRITE if over else options.Rename.NONE
        assert self._context is not None
        try:
            self._context.rename(temporary, path, how)
        except Exception as error:
            if _is(error, _EXISTS):
                return "exists"
            if not again or not _is(error, (*_ABSENT, "ParentNotDirectoryException")):
                raise
            # A cleaner has deleted the folder with the last file that was in it.
            self._system.mkdirs(path.getParent())
            return self._rename(temporary, path, over=over, again=False)
        return "created"

    def _write(self, path: Any, content: bytes) -> None:
        stream = self._system.create(path, True)
        try:
            stream.write(bytearray(content))
            if self._renames:
                stream.hsync()
        finally:
            stream.close()

    def _delete(self, key: str) -> None:
        path = self._path(key)
        self._system.delete(path, False)
        if self._renames and "/" in key:
            folder = key.rpartition("/")[0]
            with contextlib.suppress(Exception):
                # Not recursive: one that has anything in it is refused.
                if self._system.delete(path.getParent(), False):
                    self._made.discard(folder)

    def _list(self, folder: str) -> builtins.list[str]:
        try:
            found = self._system.listStatus(self._path(folder))
        except Exception as error:
            if _is(error, _ABSENT):
                return []
            raise
        if len(found) == 1 and found[0].isFile():
            itself = found[0].getPath().toUri().getPath()
            if itself == self._path(folder).toUri().getPath():
                # Hadoop lists a file as if it lay in itself.
                return []
        names = (f"{each.getPath().getName()}{'/' * bool(each.isDirectory())}" for each in found)
        return sorted(str(name) for name in names)

    def _move(self, key: str, to: str) -> None:
        path = self._path(to)
        self._system.mkdirs(path.getParent())
        if self._renames:
            self._rename(self._path(key), path)
        elif not self._system.rename(self._path(key), path):
            raise CommitLogError(f"cannot move {self.url}/{key} to {to}: the store refused.")

    def clean_temporary_files(self, older_than_s: float = 900.0) -> int:
        """Delete what crashed writers left, and return the number of files."""
        if not self._renames:
            return 0
        return self._do("clean", "", lambda: self._clean(older_than_s))

    def _clean(self, older_than_s: float) -> int:
        deleted = 0
        now_ms = int(self._jvm.java.lang.System.currentTimeMillis())
        try:
            found = self._system.listStatus(self._path(""))
        except Exception as error:
            if _is(error, _ABSENT):
                return 0
            raise
        for each in found:
            name = str(each.getPath().getName())
            age_ms = now_ms - int(each.getModificationTime())
            if name.startswith(".") and name.endswith(".tmp") and age_ms > older_than_s * 1000:
                deleted += bool(self._system.delete(each.getPath(), False))
        return deleted


def _chain(error: BaseException) -> str:
    """Return the names and messages of an error of Java's and of its causes."""
    said = [type(error).__name__]
    cause: Any = getattr(error, "java_exception", None)
    for _ in range(10):
        if cause is None:
            break
        said.append(f"{cause.getClass().getName()}: {cause.getMessage()}")
        cause = cause.getCause()
    return "\n".join(said) if len(said) > 1 else f"{type(error).__name__}: {error}"


def _is(error: BaseException, names: tuple[str, ...]) -> bool:
    first = _chain(error).splitlines()
    return any(name in line.partition(":")[0] for line in first[:3] for name in names)


@contextlib.contextmanager
def _explained(action: str, where: str) -> Iterator[None]:
    try:
        yield
    except (CommitLogError, OptionError):
        raise
    except Exception as error:  # noqa: BLE001  py4j raises what Java threw
        raise CommitLogError(f"cannot {action} {where}: {_sentence(_chain(error))}") from None


def _sentence(said: str) -> str:
    lines = said.splitlines()
    line = next((line for line in lines[1:] if line), lines[0])
    name, _, message = line.partition(": ")
    shown = f"{name.rpartition('.')[2]}: {message[:200]}".rstrip(": ")
    for remedy, words in _REMEDIES:
        if any(word in said for word in words):
            return f"{remedy} ({shown}), then restart the query."
    return f"{shown}. Mend the cause, then restart the query."
