"""Rules of a bucket's lifecycle that abort incomplete uploads: they destroy what is prepared. And
those that delete objects: they destroy what readers need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceforall.common import logs
from onceforall.errors import SinkCheckError
from onceforall.sinks.files.places.objects.checks import kept_for_ever, warn_of_expiry
from onceforall.sinks.files.places.s3.bucket import Bucket, S3Error

_log = logs.logger("onceforall.sinks.files")

_LEAST_DAYS = 1
_SAFE_DAYS = 7


def check_lifecycle(bucket: Bucket) -> None:
    """Refuse a rule that would abort prepared uploads within a day, and warn of one within a
    week, and of each that would delete the folder's id or manifests some day.
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
    kept = kept_for_ever(bucket.root)
    warn_of_expiry(bucket.root, [when for rule in rules if (when := _deletes(rule, kept))])
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
    return int(days) if _is_for(rule, f"{prefix}/") else None


def _deletes(rule: Mapping[str, Any], ours: Sequence[str]) -> str | None:
    """Return when a rule deletes objects whose keys begin so; None: it doesn't. They have no
    tags.
    """
    expiration, found = rule.get("Expiration", {}), rule.get("Filter") or {}
    if rule.get("Status") != "Enabled" or "Tag" in found or (found.get("And") or {}).get("Tags"):
        return None
    if not any(_is_for(rule, each) for each in ours):
        return None
    if "Days" in expiration:
        return f"after {expiration['Days']} days"
    return f"on {str(expiration['Date'])[:10]}" if "Date" in expiration else None


def _is_for(rule: Mapping[str, Any], ours: str) -> bool:
    """Tell whether a rule is for keys that begin so, or for some of them."""
    found = rule.get("Filter") or {}
    chosen = str(
        found.get("Prefix") or (found.get("And") or {}).get("Prefix") or rule.get("Prefix") or ""
    )
    return ours.startswith(chosen) or chosen.startswith(ours)
