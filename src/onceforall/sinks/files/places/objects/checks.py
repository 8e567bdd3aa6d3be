"""What is checked of a store at start, before any data moves: every request that a batch will
need is made once.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence

from onceforall.common import logs
from onceforall.errors import SinkCheckError
from onceforall.sinks.files.driver.identity import NAME, make_folder_id
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.paths import HOME, MANIFESTS, PARTS, SPARK_METADATA, UPLOADS
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.records import MARK
from onceforall.sinks.files.places.objects.store import Store, StoreError
from onceforall.sinks.files.places.objects.tree import ObjectTree

_log = logs.logger("onceforall.sinks.files")

_PROBES = f"{HOME}/probes"


def check_store(store: Store, tree: ObjectTree, check_own: Callable[[], None] | None) -> None:
    """See that the store does all that is needed, and give the prefix an id.

    Args:
        store: the store.
        tree: of the prefix.
        check_own: looks at what only this kind of store has; None: there is no such thing.

    Raises:
        SinkCheckError: naming the prefix, the reason and the remedy.
        CommitLogError: the prefix's id is damaged.
    """
    with _refusing():
        _check_foreign(store)
        check_spark_metadata(store)
        if check_own is not None:
            check_own()
        _check_creation(store)
        _check_upload(store)
        make_folder_id(tree)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except PlaceError as error:
        raise SinkCheckError(f"FileSink {error}.") from error
    except FileNotFoundError as error:
        raise SinkCheckError(
            f"The store doesn't find what was written just now: {error.filename}. FileSink needs "
            "one that reads what it has acknowledged; use another store."
        ) from error


def check_spark_metadata(store: Store) -> None:
    """Refuse a prefix whose readers trust a log of Spark's own file sink.

    Raises:
        SinkCheckError: it has one.
        OSError: the store gave no answer.
    """
    if store.names(store.root / SPARK_METADATA, most=2):
        raise SinkCheckError(
            f"{store.root} holds {SPARK_METADATA}, the log of Spark's own file sink. Spark's "
            "readers trust it, so they would silently not see what is written here. Write to "
            "another prefix."
        )


def kept_for_ever(root: ObjectPath) -> list[str]:
    """Return what the keys begin with that no rule of a lifecycle may ever delete: of the folder's
    id, and of manifests.
    """
    return [f"{root.key}/{HOME}/{NAME}", f"{root.key}/{MANIFESTS}/"]


def warn_of_expiry(root: ObjectPath, when: Sequence[str]) -> None:
    """Warn of rules of a lifecycle that delete what ``kept_for_ever`` names.

    Args:
        root: the folder.
        when: in words, of each such rule.
    """
    if when:
        _log.warning(
            "%s: a rule of the lifecycle of %s deletes objects below %s %s, and with them the "
            "folder's id and manifests. Then readers fail, no batch is committed any more, and "
            "nobody knows what was. Leave that prefix out of the rule.",
            root, root.bucket, root / HOME, " and ".join(when),
        )  # fmt: skip


def _check_foreign(store: Store) -> None:
    home = store.root / HOME
    ours = {NAME, *(name.rpartition("/")[2] for name in (MANIFESTS, PARTS, UPLOADS, _PROBES))}
    strange = sorted(set(store.names(home)) - ours)
    if strange:
        raise SinkCheckError(
            f"{home / strange[0]} was not written by FileSink, and {home} is for its own objects "
            f"only ({len(strange)} such). Move it away."
        )


def _check_creation(store: Store) -> None:
    """See that of two puts with ``If-None-Match: *`` the second is refused."""
    path = store.root / _PROBES / secrets.token_hex(16)
    tree = ObjectTree(store)
    try:
        first, second = tree.create(path, b"first"), tree.create(path, b"second")
        standing = store.get(path)
    except StoreError as error:
        if error.code in {"NotImplemented", "501"}:
            raise _ignores_conditions(store) from error
        raise
    finally:
        with contextlib.suppress(PlaceError):
            store.delete(path)
    if not first or second or standing != b"first":
        raise _ignores_conditions(store)


def _ignores_conditions(store: Store) -> SinkCheckError:
    return SinkCheckError(
        f"The store of {store.root} overwrites an object though the request says If-None-Match: "
        "*. Without that, two runs of a query could both write a batch's manifest. Use a store "
        "that keeps it (Amazon S3, Azure, MinIO, versitygw), or a local folder."
    )


def _check_upload(store: Store) -> None:
    """Make, list, complete and abort an upload, and look at what came out."""
    path = store.root / _PROBES / secrets.token_hex(16)
    mark = secrets.token_hex(16)
    upload = store.begin_upload(path, {MARK: mark})
    try:
        etag = store.send_part(path, upload, 1, b"probe")
        listed, parts = store.uploads(path), store.parts(path, upload)
        store.complete(path, upload, [etag])
        found = store.head(path)
        store.abort(path, store.begin_upload(path, {}))
    finally:
        with contextlib.suppress(PlaceError):
            store.abort(path, upload)
        with contextlib.suppress(PlaceError):
            store.delete(path)
    if upload not in listed or parts != [(etag, 5)] or found is None or found[0] != 5:
        raise SinkCheckError(
            f"The store of {store.root} doesn't list the multipart upload that was just begun, or "
            "its part, or completes it to something else. Use a store that does, or a local folder."
        )
    if found[1].get(MARK) != mark:
        raise SinkCheckError(
            f"The store of {store.root} doesn't keep the metadata of a multipart upload, by which "
            "FileSink knows its own objects. Use another store, or a local folder."
        )
