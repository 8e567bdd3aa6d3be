"""A folder in a container of Azure Blob Storage. The steps are those of ``places.objects``, and
the argument is that of ``places.s3``; this says what takes the place of a multipart upload.

A blob's *uncommitted blocks* are durable, and no reader sees them until a Put Block List names
them. An upload's id is the attempt's mark, and the ids of its blocks have it in them. So:

- To begin one asks nothing of the server. A task writes its record, looks at it, and sends blocks.
- Completing is a Put Block List of our blocks with ``If-None-Match: *`` and the mark in the blob's
  metadata. Where a blob stands already, mark and size tell whether it is ours.
- **Aborting is the same request**, with no block and another mark ("given up"): it makes an empty
  blob, the *placeholder*, and discards all blocks. It is deleted at once, and only as it was seen
  (by its ETag). Of a commit and an abort the first one wins, by the one condition of both. A
  placeholder counts as nothing wherever a blob is looked for; where an abort was killed in between,
  the record still stands, and the next sweep finds the placeholder and deletes it.

Put Blob would be the other way to discard blocks. But the emulator takes a blob with only
uncommitted blocks for one that is there.

**Late blocks.** A task that doesn't know that it was swept may send blocks behind that. They can't
become visible, for nothing that names them is decided: the task has lost the earlier ones. (Unless
the network delivers the commit of a lost transaction late, too: see "Not covered" in the pages.)
Azure deletes them a week after the last one was sent. It does the same to those of a decided batch
that stands incomplete for longer; that batch is lost then, is found out, and is written again.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unicodedata import category
from urllib.parse import urlsplit

from onceforall.common.arguments import location_shown, shown
from onceforall.common.locations import split_location
from onceforall.errors import OptionError
from onceforall.sinks.files.paths import LONGEST_KEY
from onceforall.sinks.files.places.objects.paths import ObjectPath, unlisted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onceforall.sink import TaskAttempt
    from onceforall.sinks.files.places.azure.container import Container
    from onceforall.sinks.files.places.objects.place import ObjectPlace
    from onceforall.sinks.files.places.objects.staging import ObjectStaging

SCHEMES = ("abfs", "abfss", "az")
_LONGEST_PREFIX = 400
_OPEN = ("account_name", "endpoint")
SECRET = ("account_key", "sas_token")
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_HOST = ".dfs.core.windows.net"


def is_azure(location: object) -> bool:
    """Tell whether a location is one of a container."""
    return isinstance(location, str) and location.partition(":")[0].lower() in SCHEMES


def azure_target(location: str, storage: object) -> AzureTarget:
    """Return the folder that a URL names, with the settings of its account.

    Raises:
        OptionError: it names no folder in a container, or a setting is wrong.
    """
    root, account = _root(location)
    given = _checked(storage)
    named = given.get("account_name")
    if account is not None and named is not None and account != named:
        raise OptionError(
            "storage['account_name'] names another account than path. Leave it out, or mend one."
        )
    name = account or named or os.environ.get(_ACCOUNT)
    if not name:
        raise OptionError(
            f"path={location_shown(location)!r} names no account. Give it by "
            f"storage={{'account_name': …}} or in {_ACCOUNT}, or write path as "
            "abfss://container@account.dfs.core.windows.net/folder."
        )
    host = root.bucket_name.partition("@")[2] or f"{name}{_HOST}"
    endpoint = f"https://{host.replace('.dfs.', '.blob.', 1)}"
    return _target(root, {"endpoint": endpoint, **given, "account_name": name})


def _root(location: str) -> tuple[ObjectPath, str | None]:
    """Return the folder, and the account where the URL has it."""
    parts = split_location(location, "path")
    seen = location_shown(location)
    names = [name for name in parts.path.split("/") if name]
    container, at, host = parts.authority.partition("@")
    account, _, kind = host.partition(".")
    wrong_host = (
        not account or not kind.startswith(("dfs.", "blob.")) if at else parts.scheme != "az"
    )
    if (
        not container
        or wrong_host
        or ":" in parts.authority
        or not names
        # The service takes a dot at the end of a name away.
        or any(name.endswith(".") for name in names)
        or "\\" in parts.path
        or unlisted(location)
    ):
        raise OptionError(
            f"path={seen!r} must name a container and a folder in it, such as "
            f"abfss://container@account{_HOST}/lake/ads or az://container/lake/ads, and nothing "
            "else. No name may end with a dot. Keys are given in Spark's settings or by storage=."
        )
    if len(parts.path.encode()) > _LONGEST_PREFIX:
        raise OptionError(
            f"path names a folder of {len(parts.path.encode())} bytes. A blob's name has "
            f"{LONGEST_KEY} at the most; give a folder of up to {_LONGEST_PREFIX}."
        )
    root = ObjectPath(f"{parts.scheme}://{parts.authority}", "/".join(names))
    return root, account if at else None


def _checked(storage: object) -> dict[str, str]:
    if storage is None:
        return {}
    every = ", ".join((*_OPEN, *SECRET))
    if not isinstance(storage, Mapping):
        raise OptionError(f"storage is {shown(storage)}. Give a dictionary with any of {every}.")
    for name, value in storage.items():
        if name not in (*_OPEN, *SECRET):
            raise OptionError(f"storage has {shown(name)} in it. On Azure give any of {every}.")
        if not isinstance(value, str) or not value.strip():
            raise OptionError(f"storage[{name!r}] must be a text that is not empty.")
    given = dict(storage)
    _check_settings(given)
    return given


def _check_settings(given: Mapping[str, str]) -> None:
    if all(name in given for name in SECRET):
        raise OptionError("storage has account_key and sas_token. Give one of them, or none.")
    if "account_key" in given:
        try:
            base64.b64decode(given["account_key"], validate=True)
        except (binascii.Error, ValueError):
            raise OptionError(
                "storage['account_key'] is no key of an account, which is in Base64. Give it as "
                "the portal shows it."
            ) from None
    if "sas_token" in given and "sig=" not in given["sas_token"]:
        raise OptionError(
            "storage['sas_token'] has no signature (sig=). Give the whole token, which is what "
            "follows the ? of a URL with it."
        )
    if "endpoint" in given:
        endpoint = urlsplit(given["endpoint"])
        if endpoint.scheme not in {"http", "https"} or not endpoint.netloc:
            raise OptionError(
                "storage['endpoint'] must begin with http:// or https://. Write it in full, such "
                "as https://account.blob.core.windows.net."
            )
        if "@" in endpoint.netloc or endpoint.query or endpoint.fragment:
            raise OptionError(
                "storage['endpoint'] has more in it than an address, which would be shown. Give "
                "a key as account_key, or a token as sas_token."
            )


@dataclass(frozen=True)
class AzureTarget:
    """A folder in a container, and how to reach its account.

    Attributes:
        root: the folder.
        settings: what is no secret; ``account_name`` and ``endpoint`` are always there.
        secrets: the account's key or a SAS token; a pickle has none.
    """

    root: ObjectPath
    settings: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "settings": dict(self.settings), "secrets": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    @property
    def root_bytes(self) -> int:
        """The length of the folder's name."""
        return len(self.root.key.encode())

    def unfit(self, folder: str) -> str | None:
        """Return the characters that can't be listed, because answers are XML 1.0, or that a name
        may not have: control characters and private ones (Microsoft's "Naming and referencing
        containers, blobs, and metadata").
        """
        character = unlisted(folder)
        if character is not None:
            return f"the character {character}, which can't be listed"
        refused = next((each for each in folder if category(each) in {"Cc", "Co"}), None)
        return None if refused is None else f"U+{ord(refused):04X}, which no name may have"

    def spelled(self, folder: str) -> str:
        """Return a folder's name without dots at the end of its parts, which the service takes
        away, and which Hadoop's client refuses. Readers of escaped names take ``%2E`` back.
        """
        return "/".join(
            f"{name[:-1]}%2E" if name.endswith(".") else name for name in folder.split("/")
        )

    @property
    def longest_path(self) -> int:
        """How long a blob's name may be: 1,024 characters."""
        return LONGEST_KEY

    @property
    def imports(self) -> Mapping[str, str]:
        """Azure's client."""
        return {"azure.storage.blob": "onceforall[azure]"}

    def with_session(self, spark: SparkSession) -> AzureTarget:
        """Return the target with the key that a session has, where the user gave no credential."""
        if self.secrets:
            return self
        from onceforall.spark.stores import abfs_settings

        return _target(self.root, {**abfs_settings(spark, self.host), **self.settings})

    @property
    def host(self) -> str:
        """The account's host as Hadoop's settings name it."""
        given = self.root.bucket_name.partition("@")[2]
        if given:
            return given
        account = self.settings["account_name"]
        found = urlsplit(self.settings["endpoint"]).hostname or ""
        if found.startswith(f"{account}.blob."):
            return found.replace(".blob.", ".dfs.", 1)
        return f"{account}{_HOST}"

    def hadoop_url(self, path: ObjectPath) -> str:
        """Return a path's URL as Hadoop has it, which doesn't know ``az:``."""
        container, at, _ = path.bucket_name.partition("@")
        if at:
            return str(path)
        return f"abfss://{container}@{self.host}/{path.key}".rstrip("/")

    def container(self, secrets: Mapping[str, str] | None = None) -> Container:
        """Return a client of the container; ``secrets``: those that came to a task.

        Raises:
            MissingExtraError: azure-storage-blob isn't installed.
        """
        from onceforall.sinks.files.places.azure.container import Container

        return Container(self.root, {**self.settings, **(secrets or self.secrets)})

    def staging(self, attempt: TaskAttempt) -> ObjectStaging:
        """Return the uploads of an attempt."""
        from onceforall.sinks.files.places.objects.staging import ObjectStaging

        return ObjectStaging(self.container(attempt.secrets), attempt.name)

    def place(self) -> ObjectPlace:
        """Return the driver's side."""
        from onceforall.sinks.files.places.azure.giving_up import check_giving_up, warn_of_hierarchy
        from onceforall.sinks.files.places.objects.place import ObjectPlace

        container = self.container()

        def check() -> None:
            warn_of_hierarchy(container)
            check_giving_up(container)

        return ObjectPlace(container, check)


def credential_of_environment() -> dict[str, str]:
    """Return the key or the token of this process's environment, named as obstore has them."""
    found = {
        "account_key": os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"),
        "sas_token": os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
    }
    return next(({name: value} for name, value in found.items() if value), {})


def _target(root: ObjectPath, settings: Mapping[str, str]) -> AzureTarget:
    return AzureTarget(
        root,
        {name: value for name, value in settings.items() if name not in SECRET},
        {name: value for name, value in settings.items() if name in SECRET},
    )
