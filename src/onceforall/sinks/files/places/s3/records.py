"""The records of uploads that tasks have begun, by which a sweep finds those of dead ones; the
package's docstring has the argument.
"""

from __future__ import annotations

import json

from onceforall.errors import SinkUnavailableError
from onceforall.sinks.files.data_files import attempt_of
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.paths import UPLOADS
from onceforall.sinks.files.places.s3.bucket import Bucket
from onceforall.sinks.files.places.s3.paths import S3Path


def record_of(root: S3Path, attempt: str, ordinal: int) -> S3Path:
    """Return where the record of an attempt's file lies."""
    return root / UPLOADS / attempt / str(ordinal)


def record_body(path: S3Path, *, swept: bool = False) -> bytes:
    """Return the content of a record."""
    return json.dumps({"key": path.key, "swept": swept}, sort_keys=True).encode()


def begin_recorded(bucket: Bucket, path: S3Path, record: S3Path, mark: str) -> str:
    """Begin an upload that a sweep would find, and return its id.

    Raises:
        OSError: the store refused, or the attempt was swept away meanwhile.
    """
    body = record_body(path)
    bucket.put(record, body)
    upload = bucket.begin_upload(path, {MARK: mark})
    try:
        standing = bucket.get(record)
    except FileNotFoundError:
        standing = b""
    if standing != body:
        bucket.abort(path, upload)
        raise PlaceError(
            f"{path} is not written any more: this attempt was given up, and what it had begun was "
            "swept away. A later attempt writes its rows",
            refused=False,
        )
    return upload


def discard(bucket: Bucket, attempt: str) -> bool:
    """Abort the uploads that an attempt has recorded; False when there was no record."""
    folder = bucket.root / UPLOADS / attempt
    records = bucket.names(folder)
    for name in records:
        record = folder / name
        try:
            path = _path_in(bucket, record, attempt)
        except FileNotFoundError:
            continue  # another process was here
        bucket.put(record, record_body(path, swept=True))
        for upload in bucket.uploads(path):
            bucket.abort(path, upload)
        bucket.delete(record)
    return bool(records)


def _path_in(bucket: Bucket, record: S3Path, attempt: str) -> S3Path:
    """Return the key that a record names: only one of the attempt's own, for its uploads are
    aborted.
    """
    try:
        key = str(json.loads(bucket.get(record))["key"])
    except (ValueError, KeyError, TypeError):
        key = ""
    path = S3Path(bucket.root.bucket, key)
    if not key.startswith(f"{bucket.root.key}/") or attempt_of(path.name) != attempt:
        raise SinkUnavailableError(
            f"{record} was not written by FileSink: it names no key of its attempt. Delete it; an "
            "upload that it should have named must be aborted by hand."
        )
    return path


MARK = "onceforall"
"""The name of the metadata by which an object is known as ours."""
