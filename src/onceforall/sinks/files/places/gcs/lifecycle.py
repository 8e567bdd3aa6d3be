"""Rules of a bucket's lifecycle that delete what is prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import SinkCheckError
from onceforall.sinks.files.paths import PARTS
from onceforall.sinks.files.places.gcs.client import GcsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceforall.sinks.files.places.gcs.client import GcsBucket

_log = logs.logger("onceforall.sinks.files")

_LEAST_DAYS = 1
_SAFE_DAYS = 7


def check_lifecycle(bucket: GcsBucket) -> None:
    """Refuse a rule that would delete parts within a day, and warn of one within a week.

    Raises:
        SinkCheckError: naming the rule's age.
        PlaceError: the store gave no answer.
    """
    try:
        rules = list(bucket.rules())
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
    ages = [days for rule in rules if (days := _deletes_after(rule, bucket)) is not None]
    if not ages:
        return
    days = min(ages)
    words = (
        f"a rule of the lifecycle of {bucket.root.bucket} deletes objects after {days} days, and "
        "with them batches that are decided and not complete"
    )
    if days < _LEAST_DAYS:
        raise SinkCheckError(
            f"{words[0].upper()}{words[1:]}. Raise it to {_SAFE_DAYS} days or more, or leave out "
            f"{bucket.root / PARTS}."
        )
    if days < _SAFE_DAYS:
        _log.warning("%s: %s. Raise it to %d days or more.", bucket.root, words, _SAFE_DAYS)


def _deletes_after(rule: Mapping[str, Any], bucket: GcsBucket) -> int | None:
    """Return after how many days a rule deletes parts; None: it doesn't, or for another reason."""
    condition = rule.get("condition", {})
    age = condition.get("age")
    if rule.get("action", {}).get("type") != "Delete" or age is None:
        return None
    ours = f"{(bucket.root / PARTS).key}/"
    chosen = [str(each) for each in condition.get("matchesPrefix", ())]
    if chosen and not any(ours.startswith(each) or each.startswith(ours) for each in chosen):
        return None
    # Parts have no suffix of a file's.
    return None if condition.get("matchesSuffix") else int(age)
