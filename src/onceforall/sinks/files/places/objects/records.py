"""The records of uploads that tasks have begun, by which a sweep finds those of dead ones; the
package's docstring has the argument.
"""

from __future__ import annotations

import json

from onceforall.errors import SinkUnavailableError
from onceforall.sinks.files.data_files import attempt_of
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.paths import UPLOADS
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.store import Store


def record_of(root: ObjectPath, attempt: str, ordinal: int) -> ObjectPath:
    """Return where the record of an attempt's file lies."""
    return root / UPLOADS / attempt / str(ordinal)


def record_body(path: ObjectPath, *, swept: bool = False) -> bytes:
    """Return the content of a record."""
    return json.dumps({"key": path.key, "swept": swept}, sort_keys=True).encode()


def begin_recorded(store: Store, path: ObjectPath, record: ObjectPath, mark: str) -> str:
    """Begin an upload that a sweep would find, and return its id.

    Raises:
        OSError: the store refused, or the attempt was swept away meanwhile.
    """
    body = record_body(path)
    store.put(record, body)
    upload = store.begin_upload(path, {MARK: mark})
    try:
        standing = store.get(record)
    except FileNotFoundError:
        standing = b""
    if standing != body:
        store.abort(path, upload)
        raise PlaceError(
            f"{path} is not written any more: this attempt was given up, and what it had begun was "
            "swept away. A later attempt writes its rows",
            refused=False,
        )
    return upload


def discard(store: Store, attempt: str) -> bool:
    """Abort the uploads that an attempt has recorded; False when there was no record."""
    folder = store.root / UPLOADS / attempt
    records = store.names(folder)
    for name in records:
        record = folder / name
        try:
            path = _path_in(store, record, attempt)
        except FileNotFoundError:
            continue  # another process was here
        store.put(record, record_body(path, swept=True))
        for upload in store.uploads(path):
            store.abort(path, upload)
        store.delete(record)
    return bool(records)


def _path_in(store: Store, record: ObjectPath, attempt: str) -> ObjectPath:
    """Return the key that a record names: only one of the attempt's own, for its uploads are
    aborted.
    """
    try:
        key = str(json.loads(store.get(record))["key"])
    except (ValueError, KeyError, TypeError):
        key = ""
    path = ObjectPath(store.root.bucket, key)
    if not key.startswith(f"{store.root.key}/") or attempt_of(path.name) != attempt:
        raise SinkUnavailableError(
            f"{record} was not written by FileSink: it names no key of its attempt. Delete it; an "
            "upload that it should have named must be aborted by hand."
        )
    return path


MARK = "onceforall"
"""The name of the metadata by which an object is known as ours."""
