"""Opens what a location names: a local folder, or a remote store by one of two clients.

With a session Hadoop's client in its JVM is the choice, for it has Spark's own credentials. obstore
serves where there is no JVM, and where Hadoop's client can't create a key exclusively and whole:
S3A before Hadoop 3.4.2; ABFS, whose file is there, and empty, before its content is; and file
systems of vendors. Both write one format, and may be used at the same time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onceforall.commit_log import LocalStore, Store, binding
from onceforall.commit_log.stores import objects
from onceforall.commit_log.stores.client import StoreClient
from onceforall.commit_log.stores.locations import is_local, remote_url
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.common import arguments, logs
from onceforall.common.arguments import is_connect
from onceforall.errors import OptionError, UnsupportedQueryError
from onceforall.spark import hadoop_paths
from onceforall.spark.hadoop_client import HadoopClient, creates_exclusively
from onceforall.spark.hadoop_settings import hadoop_settings, starting_with
from onceforall.spark.remote_path import AnyPath, RemotePath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Stores", "abfs_settings", "gcs_settings", "s3a_settings"]

logger = logs.logger("onceforall")

_HADOOP_ONLY = ("hdfs", "viewfs")
_NAMES_NO_HOST = re.compile(f"({'|'.join(_HADOOP_ONLY)}):(?!//[^/])")
_OF_HDFS = (
    "dfs.ha.namenodes",
    "dfs.namenode.rpc-address",
    "dfs.client.failover.",
    "dfs.client.block.write.replace-datanode-on-failure.",
    "fs.viewfs.mounttable.",
)
"""The beginnings of Hadoop's settings by which hdfs-native finds a NameNode and writes a block."""

_OF_HDFS_SINGLY = (
    "fs.permissions.umask-mode",
    "dfs.client.use.datanode.hostname",
    "dfs.data.transfer.protection",
    "hadoop.security.authentication",
)
_KNOWN_PROVIDERS = (
    "SimpleAWSCredentialsProvider",
    "TemporaryAWSCredentialsProvider",
    "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
)
"""Where S3A can get its credentials from, as far as obstore gets the same ones."""

_TOLD = ("fs.", "dfs.")
"""How the names of settings begin that Hadoop's file systems look at."""

_CLIENTS: dict[tuple[int, str, tuple[int, ...]], tuple[Any, HadoopClient]] = {}
"""By gateway, URL and what file systems are told: a client has a file system object of its own in
the JVM, which would stay there after each start. A start with other credentials has another one."""


class Stores:
    """Opens stores for one start of a query, or for one command.

    Args:
        spark: a session; None: there is none. One of Spark Connect has settings, and no JVM.
        settings: the user's ``onceforall.store.*``, without that prefix: ``client`` is ``hadoop``
            or ``obstore``; all else is obstore's.
    """

    def __init__(
        self, spark: SparkSession | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        given = (
            {}
            if settings is None
            else arguments.mapping("settings", settings, "a dictionary of texts: {'region': '…'}")
        )
        for name, value in given.items():
            # None is shown: the name of a setting, rather than its look, says that it is secret.
            if not isinstance(value, str) or not value.strip() or not arguments.is_encodable(value):
                raise OptionError(
                    f"settings[{name!r}] is no text, or an empty one, or has half a character in "
                    f"it. Give a text."
                )
        self._client = given.pop("client", None)
        if self._client not in {None, "hadoop", "obstore"}:
            raise OptionError("onceforall.store.client is 'hadoop' or 'obstore'. Give one of them.")
        self._settings = given
        self._gateway: Any = None
        self._configuration: Any = None
        self._is_connect = spark is not None and is_connect(spark)
        if spark is not None:
            self._configuration = hadoop_settings(spark)
            if not self._is_connect:
                context: Any = spark.sparkContext
                self._gateway = context._gateway  # noqa: SLF001
        self._spark = None if self._is_connect else spark

    @property
    def default_fs(self) -> str:
        """The URL that a path without a scheme is relative to."""
        if self._configuration is None:
            return "file:///"
        return str(self._configuration.get("fs.defaultFS", "file:///"))

    def _fs_of(self, location: str) -> str:
        """Return the URL that a location is relative to: of ``hdfs:///…`` Hadoop's own."""
        if self._configuration is None and _NAMES_NO_HOST.match(location):
            self._launch()
        return self.default_fs

    def checkpoint(self, location: str) -> AnyPath:
        """Return the folder of a checkpoint; nothing is created.

        Args:
            location: a path or a URL, as Hadoop takes it.

        Raises:
            OptionError: Hadoop takes it for no path, or it names a host for a local folder.
            UnsupportedQueryError: no client serves this kind of store.
            CommitLogError: the store can't be opened.
        """
        hadoop_paths.split(location)
        if not is_local(location, self.default_fs):
            url = remote_url(location, self._fs_of(location), what="The checkpoint")
            return RemotePath(self.client(url))
        if self._spark is not None:
            return hadoop_paths.checkpoint_folder(self._spark, location)
        scheme = urlsplit(self.default_fs).scheme
        return hadoop_paths.local_folder(location, scheme, "The checkpoint").resolve()

    def log_location(self, text: str) -> str:
        """Return the one way to write where a log lies; errors as ``binding.log_location``."""
        return binding.log_location(text, self._fs_of(text))

    def open(self, location: str) -> Store:
        """Return the store of a location that ``log_location`` gave."""
        if is_local(location):
            return LocalStore(binding.log_path(location))
        return RemoteStore(self.client(location))

    def client(self, url: str) -> StoreClient:
        """Return the client of a remote folder.

        Raises:
            UnsupportedQueryError: none serves this kind of store.
            MissingExtraError: obstore is needed, and isn't installed.
            CommitLogError: the store can't be opened.
        """
        scheme = urlsplit(url).scheme
        if scheme not in _HADOOP_ONLY and scheme not in objects.SCHEMES:
            raise UnsupportedQueryError(
                f"{url} is on {scheme}:, and onceforall keeps its commit log on local file "
                f"systems, {', '.join(_HADOOP_ONLY)} and the object stores "
                f"{', '.join(sorted(objects.SCHEMES))} only. Use one of these, or keep the log "
                "elsewhere than the checkpoint with onceforall.commitLog."
            )
        if scheme in objects.SCHEMES and self._client != "hadoop":
            by_hadoop = (
                self._client is None
                and self._gateway is not None
                and creates_exclusively(scheme, self._gateway.jvm, self._configuration, url)
            )
            if not by_hadoop:
                return objects.ObjectClient(url, self._object_settings(scheme, url))
        if self._is_connect:
            raise UnsupportedQueryError(
                f"{url} can be reached by Hadoop's client alone, and that needs the driver's JVM. "
                "With Spark Connect there is none. Put the checkpoint (or the commit log, with "
                "onceforall.commitLog) on local storage or an object store, and leave "
                "onceforall.store.client=hadoop out."
            )
        if self._gateway is None:
            self._launch()
        told = tuple(self._configuration.getPropsWithPrefix(each).hashCode() for each in _TOLD)
        key = (id(self._gateway), url, told)
        if key not in _CLIENTS:
            client = HadoopClient(self._gateway, self._configuration, url)
            _CLIENTS[key] = (self._gateway, client)
        return _CLIENTS[key][1]

    def settings_of(self, url: str) -> dict[str, str]:
        """Return what a client without a JVM needs to know of a remote folder's store: obstore's
        settings, with the keys, or Hadoop's for hdfs-native, which have no secret.
        """
        scheme = urlsplit(url).scheme
        if scheme in _HADOOP_ONLY:
            return self._hdfs_settings()
        return self._object_settings(scheme, url)

    def _hdfs_settings(self) -> dict[str, str]:
        if self._configuration is None:
            return {}
        found: dict[str, str] = {}
        for prefix in _OF_HDFS:
            found |= starting_with(self._configuration, prefix)
        singly = {name: self._configuration.get(name) for name in _OF_HDFS_SINGLY}
        return {**found, **{name: str(value) for name, value in singly.items() if value}}

    def _launch(self) -> None:
        """Take the JVM of the process's session, or start one with Spark's jars, which Hadoop's
        client is among; one per process.
        """
        from pyspark import SparkContext

        # PySpark asks the JVM of the process's session what an error says, whosever it is.
        known: Any = SparkContext
        self._gateway = known._gateway or _launched_gateway()  # noqa: SLF001
        self._configuration = self._gateway.jvm.org.apache.hadoop.conf.Configuration()

    def _object_settings(self, scheme: str, url: str) -> dict[str, str]:
        """Return obstore's settings: what maps of Hadoop's, overridden by the user's."""
        if scheme not in {"s3", "s3a", "s3n"} or self._configuration is None:
            return self._settings
        found = _from_s3a(self._configuration, urlsplit(url).netloc, _OBSTORE)
        return {**found, **self._settings}


@functools.cache
def _launched_gateway() -> Any:
    from pyspark.java_gateway import launch_gateway

    return launch_gateway()  # type: ignore[no-untyped-call]


def s3a_settings(spark: SparkSession, bucket: str) -> dict[str, str]:
    """Return what boto3 can take of a session's settings of S3A, by obstore's names; the keys
    too.
    """
    return _from_s3a(hadoop_settings(spark), bucket, _BOTO3)


def abfs_settings(spark: SparkSession, host: str) -> dict[str, str]:
    """Return the key of an account that a session's settings of ABFS have, by the name of
    ``FileSink(storage=…)``.

    Args:
        spark: the session.
        host: the account's, such as ``account.dfs.core.windows.net``.
    """
    configuration = hadoop_settings(spark)
    for name in (f"fs.azure.account.key.{host}", "fs.azure.account.key"):
        # As Hadoop does: also from a file of a credential provider (JCEKS).
        value = configuration.getPassword(name)
        if value:
            return {"account_key": "".join(value)}
    for name in (f"fs.azure.account.auth.type.{host}", "fs.azure.account.auth.type"):
        kind = configuration.get(name)
        if kind and kind != "SharedKey":
            logger.warning(_AZURE, host, kind, name)
            break
    return {}


def gcs_settings(spark: SparkSession) -> dict[str, str]:
    """Return what a session's settings of Google's connector say, by the names of
    ``FileSink(storage=…)``.
    """
    configuration = hadoop_settings(spark)
    found = {}
    for ours, theirs in (
        ("credentials_file", "fs.gs.auth.service.account.json.keyfile"),
        ("project", "fs.gs.project.id"),
    ):
        value = configuration.get(theirs)
        if value:
            found[ours] = str(value)
    return found


_AZURE = (
    "The files on %s are written by Azure's client for Python, which doesn't take credentials of "
    "the kind %s (%s). It uses those of the environment or the machine. Give others by "
    "FileSink(storage=…)."
)
_OBSTORE = (
    "The commit log in the bucket %s is written by obstore, which doesn't know the credentials "
    "provider %s of fs.s3a.aws.credentials.provider. It uses keys of the settings, else of the "
    "environment or the machine. Give others by onceforall.store.access_key_id and "
    "onceforall.store.secret_access_key."
)
_BOTO3 = (
    "The files in the bucket %s are written by boto3, which doesn't know the credentials provider "
    "%s of fs.s3a.aws.credentials.provider. It uses keys of the settings, else of the environment "
    "or the machine. Give others by FileSink(storage=…)."
)


def _from_s3a(configuration: Any, bucket: str, unknown_provider: str) -> dict[str, str]:
    def of(name: str) -> str | None:
        for key in (f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}"):
            value = configuration.get(key)
            if value:
                return str(value)
        return None

    def secret(name: str) -> str | None:
        for key in (f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}"):
            # As Hadoop does: also from a file of a credential provider (JCEKS).
            value = configuration.getPassword(key)
            if value:
                return "".join(value)
        return None

    providers = of("aws.credentials.provider") or ""
    unknown = [
        each.strip().rpartition(".")[2]
        for each in providers.split(",")
        if each.strip() and each.strip().rpartition(".")[2] not in _KNOWN_PROVIDERS
    ]
    if unknown:
        logger.warning(unknown_provider, bucket, ", ".join(unknown))
    endpoint = of("endpoint")
    if endpoint and "://" not in endpoint:
        plain = (of("connection.ssl.enabled") or "true").lower() == "false"
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    settings = {
        "endpoint": endpoint,
        "region": of("endpoint.region"),
        "access_key_id": secret("access.key"),
        "secret_access_key": secret("secret.key"),
        "session_token": secret("session.token"),
    }
    if (of("path.style.access") or "").lower() == "true":
        settings["virtual_hosted_style_request"] = "false"
    return {name: value for name, value in settings.items() if value}
