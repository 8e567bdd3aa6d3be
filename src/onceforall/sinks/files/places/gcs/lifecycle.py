"""Rules of a bucket's lifecycle that delete what is prepared, or what readers need."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import SinkCheckError
from onceforall.sinks.files.paths import PARTS
from onceforall.sinks.files.places.gcs.client import GcsError
from onceforall.sinks.files.places.objects.checks import kept_for_ever, warn_of_expiry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onceforall.sinks.files.places.gcs.client import GcsBucket

_log = logs.logger("onceforall.sinks.files")

_LEAST_DAYS = 1
_SAFE_DAYS = 7


def check_lifecycle(bucket: GcsBucket) -> None:
    """Refuse a rule that would delete parts within a day, and warn of one within a week, and of
    each that would delete the folder's id or manifests some day.

    Raises:
        SinkCheckError: naming the rule's age.
        PlaceError: the store gave no answer.
    """
    try:
        rules, storage_class = bucket.rules()
    except GcsError as error:
        if error.code != "403":
            raise
        _log.warning(
            "Whether a rule of the lifecycle of %s deletes new objects can't be seen (403). Such a "
            "rule destroys batches that are decided and not complete: grant storage.buckets.get, "
            "or see to it that there is none below %d days.",
            bucket.root.bucket, _SAFE_DAYS,
        )  # fmt: skip
        return
    kept = kept_for_ever(bucket.root)
    expiring = [
        days
        for rule in rules
        if (days := _deletes_after(rule, kept, _ends_manifests, storage_class)) is not None
    ]
    warn_of_expiry(bucket.root, [f"after {days} days" for days in expiring])
    parts = [f"{(bucket.root / PARTS).key}/"]
    ages = [
        days
        for rule in rules
        if (days := _deletes_after(rule, parts, _ends_parts, storage_class)) is not None
    ]
    if not ages:
        return
    days = min(ages)
    words = (
        f"a rule of the lifecycle of {bucket.root.bucket} deletes objects after {days} days, and "
        "with them batches that are decided and not complete"
    )
    if days < _LEAST_DAYS:
        raise SinkCheckError(
            f"{words[0].upper()}{words[1:]}. Give it an age of {_SAFE_DAYS} days or more, or leave "
            f"out {bucket.root / PARTS}."
        )
    if days < _SAFE_DAYS:
        _log.warning("%s: %s. Give it an age of %d days or more.", bucket.root, words, _SAFE_DAYS)


_OF_NO_PART = frozenset(
    {
        "customTimeBefore",
        "daysSinceCustomTime",
        "daysSinceNoncurrentTime",
        "noncurrentTimeBefore",
        "numNewerVersions",
    }
)
"""Conditions that only objects with a time of the user's meet, or versions that were replaced."""


def _ends_parts(suffix: str) -> bool:
    return "/begun".endswith(suffix) or not suffix.strip("0123456789")


def _ends_manifests(suffix: str) -> bool:
    return ".json".endswith(suffix) or suffix.endswith(".json")


def _deletes_after(
    rule: Mapping[str, Any], ours: Sequence[str], ends: Callable[[str], bool], storage_class: str
) -> int | None:
    """Return after how many days a rule deletes objects of ours; None: it doesn't.

    Args:
        rule: one of the bucket's.
        ours: what their keys begin with.
        ends: tells whether such a key may have this end.
        storage_class: of new objects.

    All conditions of a rule must be met, and one that says no age is met at once
    (https://cloud.google.com/storage/docs/lifecycle#conditions).
    """
    condition = rule.get("condition", {})
    if rule.get("action", {}).get("type") != "Delete" or not _meets(condition, ours, ends):
        return None
    classes = condition.get("matchesStorageClass")
    if classes and storage_class and storage_class not in classes:
        return None
    return int(condition.get("age") or 0)


def _meets(condition: Mapping[str, Any], ours: Sequence[str], ends: Callable[[str], bool]) -> bool:
    """Tell whether an object of ours may meet a condition some day, whatever its age and storage
    class.
    """
    if condition.get("isLive") is False or any(condition.get(name) for name in _OF_NO_PART):
        return False
    before = condition.get("createdBefore")
    if before is not None and str(before) <= datetime.now(timezone.utc).date().isoformat():
        return False
    prefixes = [str(each) for each in condition.get("matchesPrefix") or ()]
    if prefixes and not any(
        key.startswith(each) or each.startswith(key) for each in prefixes for key in ours
    ):
        return False
    suffixes = [str(each) for each in condition.get("matchesSuffix") or ()]
    return not suffixes or any(ends(each) for each in suffixes)
