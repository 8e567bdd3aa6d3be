"""A folder in a bucket of Google Cloud Storage. The steps are those of ``places.objects``, and the
argument is that of ``places.s3``; this says what takes the place of a multipart upload.

The *parts* of an upload are objects of their own, below
``_onceforall/parts/<name>/<mark>/``, where no reader looks. So:

- To begin an upload writes one object there, ``begun``.
- Completing is a compose of the parts to the file's last key, with ``ifGenerationMatch=0`` (never
  over another object) and the mark in the metadata. A compose takes 32 objects; more parts are
  composed to larger ones first. Then the parts are deleted, and ``begun`` with them.
- Aborting deletes ``begun`` first and then the parts. A task looks for ``begun`` behind each part
  that it has sent: one that is late finds it gone, deletes that part, and gives up. One that finds
  it has sent the part before the sweep lists them. A part that comes when its record is gone (the
  task was killed just there, or the network delivered it late) is found by a sweep that lists all
  parts: they lie in a folder of the sink's own.
- A driver that has composed larger ones looks for ``begun`` before the last compose: where it is
  gone, the sweep's listing may have been before these, and they are deleted.
- A driver that was killed between the compose and the deletion of the parts is followed by one that
  finds the object, by mark and size, and deletes what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onceforall.common.arguments import location_shown, shown
from onceforall.common.locations import split_location
from onceforall.errors import OptionError
from onceforall.sinks.files.paths import LONGEST_KEY
from onceforall.sinks.files.places.objects.paths import ObjectPath, unlisted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onceforall.sink import TaskAttempt
    from onceforall.sinks.files.places.gcs.client import GcsBucket
    from onceforall.sinks.files.places.objects.place import ObjectPlace
    from onceforall.sinks.files.places.objects.staging import ObjectStaging

_LONGEST_PREFIX = 400
_SETTINGS = ("credentials_file", "project", "endpoint")


def is_gcs(location: object) -> bool:
    """Tell whether a location is one of a bucket of Google's."""
    return isinstance(location, str) and location.partition(":")[0].lower() == "gs"


def gcs_target(location: str, storage: object) -> GcsTarget:
    """Return the folder that a URL names, with the settings.

    Raises:
        OptionError: it names no folder in a bucket, or a setting is wrong.
    """
    return GcsTarget(_root(location), tuple(sorted(_checked(storage).items())))


def _root(location: str) -> ObjectPath:
    parts = split_location(location, "path")
    names = [name for name in parts.path.split("/") if name]
    if (
        not parts.authority
        or "@" in parts.authority
        or ":" in parts.authority
        or not names
        or any(name in {".", ".."} for name in names)
        or "\\" in parts.path
        or unlisted(location)
    ):
        raise OptionError(
            f"path={location_shown(location)!r} must name a bucket and a folder in it, such as "
            "gs://bucket/lake/ads, and nothing else. Credentials are given by storage= or by "
            "Google's own chain."
        )
    if len(parts.path.encode()) > _LONGEST_PREFIX:
        raise OptionError(
            f"path names a folder of {len(parts.path.encode())} bytes. An object's name has "
            f"{LONGEST_KEY} at the most; give a folder of up to {_LONGEST_PREFIX}."
        )
    return ObjectPath(f"gs://{parts.authority}", "/".join(names))


def _checked(storage: object) -> dict[str, str]:
    if storage is None:
        return {}
    every = ", ".join(_SETTINGS)
    if not isinstance(storage, Mapping):
        raise OptionError(f"storage is {shown(storage)}. Give a dictionary with any of {every}.")
    for name, value in storage.items():
        if name not in _SETTINGS:
            raise OptionError(
                f"storage has {shown(name)} in it. On Google Cloud Storage give any of {every}."
            )
        if not isinstance(value, str) or not value.strip():
            raise OptionError(f"storage[{name!r}] must be a text that is not empty.")
    given = dict(storage)
    if given.get("credentials_file", "").lstrip().startswith("{"):
        raise OptionError(
            "storage['credentials_file'] is a key and no file. Give the path of a file that has "
            "it, which is on the driver and on every executor."
        )
    if "endpoint" in given:
        _check_endpoint(given)
        given["endpoint"] = given["endpoint"].rstrip("/")
    return given


def _check_endpoint(given: Mapping[str, str]) -> None:
    endpoint = urlsplit(given["endpoint"])
    if endpoint.scheme not in {"http", "https"} or not endpoint.netloc:
        raise OptionError(
            "storage['endpoint'] must begin with http:// or https://. Write it in full."
        )
    if "@" in endpoint.netloc or endpoint.query or endpoint.fragment:
        raise OptionError(
            "storage['endpoint'] has more in it than an address, which would be shown. Give "
            "only that."
        )
    if endpoint.scheme == "http" and "credentials_file" in given:
        raise OptionError(
            "storage['endpoint'] begins with http://, over which everybody could read the "
            "credentials that storage['credentials_file'] has. Write https://, or, for an "
            "emulator, leave the file out."
        )


@dataclass(frozen=True)
class GcsTarget:
    """A folder in a bucket, and how to reach it.

    Attributes:
        root: the folder.
        settings: ``credentials_file``, ``project``, ``endpoint``; none is a secret.
    """

    root: ObjectPath
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def root_bytes(self) -> int:
        """The length of the folder's name."""
        return len(self.root.key.encode())

    @property
    def longest_path(self) -> int:
        """How long an object's name may be."""
        return LONGEST_KEY

    def unfit(self, folder: str) -> str | None:
        """Return the characters that tools can't list: the XML interface is theirs."""
        character = unlisted(folder)
        return None if character is None else f"the character {character}, which can't be listed"

    def spelled(self, folder: str) -> str:
        """Return a folder's name as it is."""
        return folder

    @property
    def secrets(self) -> Mapping[str, str]:
        """There are none: credentials are a file, or Google's own chain."""
        return {}

    @property
    def imports(self) -> Mapping[str, str]:
        """Google's client."""
        return {"google.cloud.storage": "onceforall[gcs]"}

    def with_session(self, spark: SparkSession) -> GcsTarget:
        """Return the target with the file of credentials that a session's settings name."""
        from onceforall.spark.stores import gcs_settings

        given = dict(self.settings)
        if "credentials_file" in given or "endpoint" in given:
            return self
        return GcsTarget(self.root, tuple(sorted({**gcs_settings(spark), **given}.items())))

    def bucket(self) -> GcsBucket:
        """Return a client of the bucket.

        Raises:
            MissingExtraError: google-cloud-storage isn't installed.
        """
        from onceforall.sinks.files.places.gcs.client import GcsBucket

        return GcsBucket(self.root, dict(self.settings))

    def staging(self, attempt: TaskAttempt) -> ObjectStaging:
        """Return the uploads of an attempt."""
        from onceforall.sinks.files.places.objects.staging import ObjectStaging

        return ObjectStaging(self.bucket(), attempt.name)

    def place(self) -> ObjectPlace:
        """Return the driver's side."""
        from onceforall.sinks.files.places.gcs.lifecycle import check_lifecycle
        from onceforall.sinks.files.places.objects.place import ObjectPlace

        bucket = self.bucket()
        return ObjectPlace(bucket, lambda: check_lifecycle(bucket))
