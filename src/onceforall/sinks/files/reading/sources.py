"""Where the files lie that are read, and how pyarrow and Spark name and open them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from onceforall.common import arguments
from onceforall.errors import OptionError, UnsupportedQueryError
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.paths import local_folder
from onceforall.sinks.files.places import AnyPath, Files
from onceforall.sinks.files.places.azure import azure_target, credential_of_environment, is_azure
from onceforall.sinks.files.places.gcs import gcs_target, is_gcs
from onceforall.sinks.files.places.hdfs import HdfsTarget, hdfs_root, is_hdfs
from onceforall.sinks.files.places.s3 import checked_storage, is_s3, s3_root, s3_target
from onceforall.sinks.files.tree import Tree

if TYPE_CHECKING:
    from pathlib import Path

    from onceforall.sinks.files.places.azure import AzureTarget
    from onceforall.sinks.files.places.gcs import GcsTarget
    from onceforall.sinks.files.places.s3 import S3Target


class Source(Protocol):
    """A sink's folder, for readers."""

    @property
    def root(self) -> AnyPath:
        """The folder."""

    @property
    def tree(self) -> Files:
        """Its small files."""

    def in_arrow(self, file: DataFile) -> tuple[str, Any]:
        """Return a file's path for pyarrow, and the file system that it is of."""

    def stream(self, file: DataFile) -> Any:
        """Open a file with pyarrow, and take its compression off."""

    def in_spark(self, path: AnyPath) -> str:
        """Return a path as Hadoop names it."""


class LocalSource:
    """A local folder."""

    def __init__(self, root: Path) -> None:
        """Nothing is looked at yet."""
        self.root = root
        self.tree = Tree(root)

    def in_arrow(self, file: DataFile) -> tuple[str, Any]:
        """Return the path."""
        from pyarrow import fs

        return str(self.root / file.path), fs.LocalFileSystem()

    def stream(self, file: DataFile) -> Any:
        """Open a file."""
        import pyarrow as pa

        return pa.input_stream(str(self.root / file.path), compression="detect")

    def in_spark(self, path: AnyPath) -> str:
        """Return a ``file:`` URL."""
        return f"file://{path}"


class S3Source:
    """A prefix in a bucket: manifests by boto3, files by pyarrow's own client."""

    def __init__(self, target: S3Target) -> None:
        """Nothing is looked at yet."""
        from onceforall.sinks.files.places.objects.tree import ObjectTree

        self.root = target.root
        self._bucket = target.bucket()
        self.tree = ObjectTree(self._bucket)
        self._settings = self._bucket.settings
        self._files: Any = None

    def in_arrow(self, file: DataFile) -> tuple[str, Any]:
        """Return bucket and key."""
        path = self.root / file.path
        return f"{path.bucket_name}/{path.key}", self._file_system()

    def stream(self, file: DataFile) -> Any:
        """Open a file."""
        path, files = self.in_arrow(file)
        return files.open_input_stream(path, compression="detect")

    def in_spark(self, path: AnyPath) -> str:
        """Return an ``s3a:`` URL: the only scheme of these that Hadoop serves."""
        return f"s3a://{path.bucket_name}/{path.key}".rstrip("/")

    def _file_system(self) -> Any:
        from pyarrow import fs

        if self._files is None:
            given = self._settings
            endpoint = urlsplit(given["endpoint"]) if "endpoint" in given else None
            if endpoint is not None and endpoint.path.strip("/"):
                raise UnsupportedQueryError(
                    f"pyarrow can't read from {given['endpoint']}: it knows no endpoint with a "
                    "path. Read with to_spark, or give an endpoint of this store without one."
                )
            options = {
                "access_key": given.get("access_key_id"),
                "secret_key": given.get("secret_access_key"),
                "session_token": given.get("session_token"),
                # boto3 finds the bucket's by itself, and pyarrow doesn't.
                "region": given.get("region") or self._bucket.region(),
                "endpoint_override": None if endpoint is None else endpoint.netloc,
                "scheme": None if endpoint is None else endpoint.scheme,
                "force_virtual_addressing": given.get("virtual_hosted_style_request") == "true",
            }
            self._files = fs.S3FileSystem(
                **{name: value for name, value in options.items() if value is not None}
            )
        return self._files


class AzureSource:
    """A folder in a container: manifests by Azure's client for Python, files by pyarrow's own."""

    def __init__(self, target: AzureTarget) -> None:
        """Nothing is looked at yet."""
        from onceforall.sinks.files.places.objects.tree import ObjectTree

        self.root = target.root
        self.tree = ObjectTree(target.container())
        self._target = target
        self._files: Any = None

    def in_arrow(self, file: DataFile) -> tuple[str, Any]:
        """Return container and name."""
        path = self.root / file.path
        return f"{path.bucket_name.partition('@')[0]}/{path.key}", self._file_system()

    def stream(self, file: DataFile) -> Any:
        """Open a file."""
        path, files = self.in_arrow(file)
        return files.open_input_stream(path, compression="detect")

    def in_spark(self, path: AnyPath) -> str:
        """Return an ``abfss:`` URL."""
        return self._target.hadoop_url(path)

    def _file_system(self) -> Any:
        from pyarrow import fs

        if self._files is None:
            given = self.tree.store.settings
            account, endpoint = given["account_name"], urlsplit(given["endpoint"])
            in_path = endpoint.path.strip("/")
            if endpoint.netloc.startswith(f"{account}.") and not in_path:
                place = endpoint.netloc.removeprefix(account)
            elif in_path == account:
                # As of an emulator; pyarrow puts it there by itself.
                place = endpoint.netloc
            else:
                raise UnsupportedQueryError(
                    f"pyarrow can't read from {given['endpoint']}: it knows only endpoints that "
                    f"begin with the account, such as https://{account}.blob.core.windows.net, or "
                    "have it as their path. Read with to_spark, or give such an endpoint."
                )
            credential = {
                name: given[name] for name in ("account_key", "sas_token") if name in given
            } or credential_of_environment()
            token = credential.get("sas_token", "").lstrip("?")
            if token:
                # pyarrow appends it to URLs as it is.
                credential = {"sas_token": f"?{token}"}
            try:
                files = fs.AzureFileSystem(
                    account,
                    blob_storage_authority=place,
                    blob_storage_scheme=endpoint.scheme,
                    **credential,
                )
            except TypeError as error:
                raise UnsupportedQueryError(
                    "This release of pyarrow reads no files with a SAS token. Install a later one, "
                    "or read with account_key or azure-identity."
                ) from error
            self._files = files
            if token:
                from onceforall.sinks.files.reading.masked import masked_files

                self._files = masked_files(files, token)
        return self._files


class GcsSource:
    """A folder in a bucket of Google's: manifests by Google's client for Python, files by pyarrow's
    own.
    """

    def __init__(self, target: GcsTarget) -> None:
        """Nothing is looked at yet."""
        from onceforall.sinks.files.places.objects.tree import ObjectTree

        self.root = target.root
        self._bucket = target.bucket()
        self.tree = ObjectTree(self._bucket)

    def in_arrow(self, file: DataFile) -> tuple[str, Any]:
        """Return bucket and name."""
        path = self.root / file.path
        return f"{path.bucket_name}/{path.key}", self._bucket.file_system()

    def stream(self, file: DataFile) -> Any:
        """Open a file."""
        path, files = self.in_arrow(file)
        return files.open_input_stream(path, compression="detect")

    def in_spark(self, path: AnyPath) -> str:
        """Return a ``gs:`` URL."""
        return str(path)


class HdfsSource:
    """A folder of HDFS, all by hdfs-native."""

    def __init__(self, target: HdfsTarget) -> None:
        """Nothing is looked at yet."""
        from onceforall.sinks.files.places.hdfs.tree import HdfsTree

        self.root = target.root
        self.tree = HdfsTree(target)
        self._target = target
        self._files: Any = None

    def in_arrow(self, file: DataFile) -> tuple[str, Any]:
        """Return the path without its authority."""
        return (self.root / file.path).path, self._file_system()

    def stream(self, file: DataFile) -> Any:
        """Open a file."""
        path, files = self.in_arrow(file)
        return files.open_input_stream(path, compression="detect")

    def in_spark(self, path: AnyPath) -> str:
        """Return the URL."""
        return str(path)

    def _file_system(self) -> Any:
        from hdfs_native import fsspec
        from pyarrow import fs

        if self._files is None:
            parts = urlsplit(self.root.authority)
            kinds = {"hdfs": fsspec.HdfsFileSystem, "viewfs": fsspec.ViewfsFileSystem}
            host, _, port = parts.netloc.partition(":")
            # fsspec's cache of instances is emptied in a forked process, before that does anything
            # else; there the end of a client waits for threads that a fork doesn't have.
            opened = kinds[parts.scheme](
                host,
                int(port) if port else None,
                skip_instance_cache=True,
                **dict(self._target.settings),
            )
            self._files = fs.PyFileSystem(fs.FSSpecHandler(opened))
        return self._files


def source_of(path: str | os.PathLike[str], storage: Mapping[str, str] | None) -> Source:
    """Return what a path names.

    Raises:
        OptionError: it names no folder, or ``storage`` doesn't fit it.
        UnsupportedQueryError: it is on another kind of file system.
        MissingExtraError: boto3, Azure's or Google's client or hdfs-native isn't installed.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if is_s3(text):
        root = s3_root(arguments.path("path", path))
        return S3Source(s3_target(root, checked_storage(storage)))
    if is_azure(text):
        return AzureSource(azure_target(arguments.path("path", path), storage))
    if is_gcs(text):
        return GcsSource(gcs_target(arguments.path("path", path), storage))
    if storage is not None:
        kind = "a path of HDFS" if is_hdfs(text) else "a local path"
        raise OptionError(
            f"storage is given with {kind}. Leave it out, or give the URL of a bucket (s3a:, gs:) "
            "or a container (abfss:) as path."
        )
    if is_hdfs(text):
        return HdfsSource(HdfsTarget(hdfs_root(arguments.path("path", path))))
    return LocalSource(local_folder(path))
