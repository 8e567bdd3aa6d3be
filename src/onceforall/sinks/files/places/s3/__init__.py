"""A prefix in a bucket of S3, or of another store that speaks its language.

There is no rename in S3. What takes its place is a multipart upload straight to a file's last key:
its parts are durable, and nobody sees them until somebody who knows the upload's id and its parts
completes it. So:

1. A task writes a *record* of the upload that it is about to begin, below
   ``_onceforall/uploads/<attempt>/``, begins the upload, and looks at the record once more. Then it
   sends parts. Keys have the attempt's name in them: no two attempts have the same.
2. The committable has the upload's id, its parts' ETags, and a mark that is in the metadata of the
   object which the upload becomes.
3. The driver completes the uploads, without any condition, and puts the manifest by
   ``If-None-Match: *``. Then it deletes the records.

**Completing is idempotent.** A second one is answered by 200 or by NoSuchUpload, by the kind of
server. So NoSuchUpload says nothing by itself: where the object is there with our mark and size, it
was done; where it isn't, somebody aborted the upload, and the transaction is lost.

**What a dead task leaves** is found by the records and never by a listing of all uploads, which may
be other people's. A sweep overwrites the record ("swept"), lists the uploads of exactly its key,
aborts them, and deletes the record. A task that is late and begins its upload behind that listing
finds its record swept or gone, and gives up before it has sent anything; one that finds it intact
began before the listing. So at the worst, when it is killed just there, an upload without any part
stays.

**A put whose answer isn't "created" may have been done.** So the key is read back and compared, and
the same bytes are put again where there are none.

A rule of the bucket's lifecycle that aborts incomplete uploads destroys what is prepared: it is
looked for at start.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onceforall.common.arguments import location_shown, shown
from onceforall.common.locations import split_location
from onceforall.errors import OptionError
from onceforall.sinks.files.paths import LONGEST_KEY
from onceforall.sinks.files.places.objects.paths import ObjectPath, unlisted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onceforall.sink import TaskAttempt
    from onceforall.sinks.files.places.objects.place import ObjectPlace
    from onceforall.sinks.files.places.objects.staging import ObjectStaging
    from onceforall.sinks.files.places.s3.bucket import Bucket

SCHEMES = ("s3", "s3a")
_LONGEST_PREFIX = 400
_OPEN = ("endpoint", "region", "virtual_hosted_style_request")
SECRET = ("access_key_id", "secret_access_key", "session_token")


def is_s3(location: object) -> bool:
    """Tell whether a location is one of a bucket."""
    return isinstance(location, str) and location.partition(":")[0].lower() in SCHEMES


def s3_root(location: str) -> ObjectPath:
    """Return the prefix that a URL names.

    Raises:
        OptionError: it names no prefix in a bucket.
    """
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
            "s3a://bucket/lake/ads, and nothing else. Keys are given in Spark's settings or by "
            "storage=."
        )
    if len(parts.path.encode()) > _LONGEST_PREFIX:
        raise OptionError(
            f"path names a folder of {len(parts.path.encode())} bytes. A key of S3 has "
            f"{LONGEST_KEY} at the most; give a folder of up to {_LONGEST_PREFIX}."
        )
    return ObjectPath(f"{parts.scheme}://{parts.authority}", "/".join(names))


def checked_storage(storage: object) -> dict[str, str]:
    """Return the settings of a store.

    Raises:
        OptionError: naming the setting; no value is shown.
    """
    if storage is None:
        return {}
    if not isinstance(storage, Mapping):
        raise OptionError(
            f"storage is {shown(storage)}. Give a dictionary with any of "
            f"{', '.join((*_OPEN, *SECRET))}."
        )
    for name, value in storage.items():
        if name not in (*_OPEN, *SECRET):
            raise OptionError(
                f"storage has {shown(name)} in it. Give any of {', '.join((*_OPEN, *SECRET))}."
            )
        if not isinstance(value, str) or not value.strip():
            raise OptionError(f"storage[{name!r}] must be a text that is not empty.")
    given = dict(storage)
    check_settings(given)
    return given


def check_settings(given: Mapping[str, str]) -> None:
    """See that settings fit together.

    Raises:
        OptionError: naming the setting; no value is shown.
    """
    if ("access_key_id" in given) != ("secret_access_key" in given) or (
        "session_token" in given and "access_key_id" not in given
    ):
        raise OptionError(
            "storage needs access_key_id and secret_access_key together (and session_token only "
            "with them). Give both, or none: then boto3 looks for them in the environment."
        )
    if "endpoint" in given:
        endpoint = urlsplit(given["endpoint"])
        if endpoint.scheme not in {"http", "https"}:
            raise OptionError(
                "storage['endpoint'] must begin with http:// or https://. Write it in full."
            )
        if "@" in endpoint.netloc:
            raise OptionError(
                "storage['endpoint'] names a user or a password, which would be shown. Give keys "
                "as access_key_id and secret_access_key."
            )
    if given.get("virtual_hosted_style_request", "true") not in {"true", "false"}:
        raise OptionError("storage['virtual_hosted_style_request'] must be 'true' or 'false'.")


@dataclass(frozen=True)
class S3Target:
    """A prefix in a bucket, and how to reach the store.

    Attributes:
        root: the prefix.
        settings: what is no secret.
        secrets: the keys; a pickle has none.
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
        """The length of the prefix."""
        return len(self.root.key.encode())

    def unfit(self, folder: str) -> str | None:
        """Return the characters that S3 can't list, for its answers are XML 1.0."""
        character = unlisted(folder)
        return None if character is None else f"the character {character}, which S3 can't list"

    def spelled(self, folder: str) -> str:
        """Any name is possible."""
        return folder

    @property
    def longest_path(self) -> int:
        """What S3 takes for a key."""
        return LONGEST_KEY

    @property
    def imports(self) -> Mapping[str, str]:
        """boto3."""
        return {"boto3": "onceforall[s3]"}

    def with_session(self, spark: SparkSession) -> S3Target:
        """Return the target with Spark's settings of S3A, as far as boto3 knows them."""
        from onceforall.spark.stores import s3a_settings

        return self.with_settings(s3a_settings(spark, self.root.bucket_name))

    def with_settings(self, found: Mapping[str, str]) -> S3Target:
        """Return the same target with settings of Spark's where the user gave none. Keys belong
        together: of a store with keys of its own none of Spark's is taken.
        """
        given = {**self.settings, **self.secrets}
        if any(name in given for name in SECRET):
            found = {name: value for name, value in found.items() if name not in SECRET}
        return s3_target(self.root, {**found, **given})

    def bucket(self, secrets: Mapping[str, str] | None = None) -> Bucket:
        """Return a client of the bucket; ``secrets``: those that came to a task.

        Raises:
            MissingExtraError: boto3 isn't installed.
        """
        from onceforall.sinks.files.places.s3.bucket import Bucket

        return Bucket(self.root, {**self.settings, **(secrets or self.secrets)})

    def staging(self, attempt: TaskAttempt) -> ObjectStaging:
        """Return the uploads of an attempt."""
        from onceforall.sinks.files.places.objects.staging import ObjectStaging

        return ObjectStaging(self.bucket(attempt.secrets), attempt.name)

    def place(self) -> ObjectPlace:
        """Return the driver's side."""
        from onceforall.sinks.files.places.objects.place import ObjectPlace
        from onceforall.sinks.files.places.s3.lifecycle import check_lifecycle

        bucket = self.bucket()
        return ObjectPlace(bucket, functools.partial(check_lifecycle, bucket))


def s3_target(root: ObjectPath, settings: Mapping[str, str]) -> S3Target:
    """Return a target; ``settings`` has the keys too."""
    return S3Target(
        root,
        {name: value for name, value in settings.items() if name not in SECRET},
        {name: value for name, value in settings.items() if name in SECRET},
    )
