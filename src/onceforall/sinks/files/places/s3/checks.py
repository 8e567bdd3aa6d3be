"""What is checked of a bucket at start, before any data moves: every request that a batch will
need is made once.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from onceforall.common import logs
from onceforall.errors import SinkCheckError
from onceforall.sinks.files.driver.identity import NAME, make_folder_id
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.paths import HOME, MANIFESTS, SPARK_METADATA, UPLOADS
from onceforall.sinks.files.places.s3.bucket import Bucket, S3Error
from onceforall.sinks.files.places.s3.records import MARK
from onceforall.sinks.files.places.s3.tree import S3Tree

_log = logs.logger("onceforall.sinks.files")

_LEAST_DAYS = 1
_SAFE_DAYS = 7
_PROBES = f"{HOME}/probes"


def check_bucket(bucket: Bucket, tree: S3Tree) -> None:
    """See that the bucket does all that is needed, and give the prefix an id.

    Raises:
        SinkCheckError: naming the bucket, the reason and the remedy.
        CommitLogError: the prefix's id is damaged.
    """
    with _refusing():
        _check_foreign(bucket)
        check_spark_metadata(bucket)
        _check_lifecycle(bucket)
        _check_creation(bucket)
        _check_upload(bucket)
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


def check_spark_metadata(bucket: Bucket) -> None:
    """Refuse a prefix whose readers trust a log of Spark's own file sink.

    Raises:
        SinkCheckError: it has one.
        OSError: the store gave no answer.
    """
    if bucket.names(bucket.root / SPARK_METADATA, most=2):
        raise SinkCheckError(
            f"{bucket.root} holds {SPARK_METADATA}, the log of Spark's own file sink. Spark's "
            "readers trust it, so they would silently not see what is written here. Write to "
            "another prefix."
        )


def _check_foreign(bucket: Bucket) -> None:
    home = bucket.root / HOME
    ours = {NAME, *(name.rpartition("/")[2] for name in (MANIFESTS, UPLOADS, _PROBES))}
    strange = sorted(set(bucket.names(home)) - ours)
    if strange:
        raise SinkCheckError(
            f"{home / strange[0]} was not written by FileSink, and {home} is for its own objects "
            f"only ({len(strange)} such). Move it away."
        )


def _check_creation(bucket: Bucket) -> None:
    """See that of two puts with ``If-None-Match: *`` the second is refused."""
    path = bucket.root / _PROBES / secrets.token_hex(16)
    tree = S3Tree(bucket)
    try:
        first, second = tree.create(path, b"first"), tree.create(path, b"second")
        standing = bucket.get(path)
    except S3Error as error:
        if error.code in {"NotImplemented", "501"}:
            raise _ignores_conditions(bucket) from error
        raise
    finally:
        with contextlib.suppress(PlaceError):
            bucket.delete(path)
    if not first or second or standing != b"first":
        raise _ignores_conditions(bucket)


def _ignores_conditions(bucket: Bucket) -> SinkCheckError:
    return SinkCheckError(
        f"The store of {bucket.root} overwrites an object though the request says If-None-Match: "
        "*. Without that, two runs of a query could both write a batch's manifest. Use a store "
        "that keeps it (Amazon S3, MinIO, versitygw), or a local folder."
    )


def _check_upload(bucket: Bucket) -> None:
    """Make, list, complete and abort an upload, and look at what came out."""
    path = bucket.root / _PROBES / secrets.token_hex(16)
    mark = secrets.token_hex(16)
    upload = bucket.begin_upload(path, {MARK: mark})
    try:
        etag = bucket.send_part(path, upload, 1, b"probe")
        listed, parts = bucket.uploads(path), bucket.parts(path, upload)
        bucket.complete(path, upload, [etag])
        found = bucket.head(path)
        bucket.abort(path, bucket.begin_upload(path, {}))
    finally:
        with contextlib.suppress(PlaceError):
            bucket.abort(path, upload)
        with contextlib.suppress(PlaceError):
            bucket.delete(path)
    if upload not in listed or parts != [(etag, 5)] or found is None or found[0] != 5:
        raise SinkCheckError(
            f"The store of {bucket.root} doesn't list the multipart upload that was just begun, or "
            "its part, or completes it to something else. Use a store that does, or a local folder."
        )
    if found[1].get(MARK) != mark:
        raise SinkCheckError(
            f"The store of {bucket.root} doesn't keep the metadata of a multipart upload, by which "
            "FileSink knows its own objects. Use another store, or a local folder."
        )


def _check_lifecycle(bucket: Bucket) -> None:
    """Refuse a rule that would abort prepared uploads within a day, and warn of one within a
    week.
    """
    try:
        rules = bucket.lifecycle()
    except S3Error as error:
        if not error.refused or error.code in {"NoSuchBucket", "InvalidAccessKeyId"}:
            raise
        if error.code in {"NotImplemented", "MethodNotAllowed"}:
            _log.info("The store of %s knows no lifecycle of buckets.", bucket.root.bucket)
            return
        _log.warning(
            "Whether a rule of the lifecycle of %s aborts incomplete multipart uploads can't be "
            "seen (%s). Such a rule destroys batches that are decided and not complete: grant "
            "s3:GetLifecycleConfiguration, or see to it that there is none below %d days.",
            bucket.root.bucket, error.code, _SAFE_DAYS,
        )  # fmt: skip
        return
    ages = [days for rule in rules if (days := _aborts_after(rule, bucket.root.key)) is not None]
    if not ages:
        return
    days = min(ages)
    words = (
        f"a rule of the lifecycle of {bucket.root.bucket} aborts incomplete multipart uploads "
        f"after {days} days, and with them batches that are decided and not complete"
    )
    if days < _LEAST_DAYS:
        raise SinkCheckError(
            f"{words[0].upper()}{words[1:]}. Raise it to {_SAFE_DAYS} days or more."
        )
    if days < _SAFE_DAYS:
        _log.warning(
            "%s: %s. A query that stands still for longer loses such a batch's uploads, and writes "
            "their rows again. Raise it to %d days or more.",
            bucket.root, words, _SAFE_DAYS,
        )  # fmt: skip


def _aborts_after(rule: Mapping[str, Any], prefix: str) -> int | None:
    """Return after how many days a rule aborts uploads below a prefix; None: it doesn't."""
    days = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
    if days is None or rule.get("Status") != "Enabled":
        return None
    found = rule.get("Filter") or {}
    chosen = str(
        found.get("Prefix") or (found.get("And") or {}).get("Prefix") or rule.get("Prefix") or ""
    )
    ours = f"{prefix}/"
    return int(days) if ours.startswith(chosen) or chosen.startswith(ours) else None
