"""Rules of a bucket's lifecycle that delete what readers of the file sink need; no server is
needed."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.s3.lifecycle import check_lifecycle

MONTH = {"Expiration": {"Days": 30}}


class Bucket:
    """A bucket of which only the rules are known."""

    root = ObjectPath("s3a://lake", "ads")

    def __init__(self, *rules):
        self._rules = [{"Status": "Enabled", **rule} for rule in rules]

    def lifecycle(self):
        return self._rules


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (MONTH, "after 30 days"),
        ({**MONTH, "Prefix": "ads/"}, "after 30 days"),
        ({**MONTH, "Filter": {"Prefix": "ads/_onceforall/"}}, "after 30 days"),
        ({**MONTH, "Filter": {"And": {"Prefix": "ads/_onceforall/folder"}}}, "after 30 days"),
        ({"Expiration": {"Date": datetime(2027, 5, 1, tzinfo=timezone.utc)}}, "on 2027-05-01"),
        ({**MONTH, "Status": "Disabled"}, None),
        ({**MONTH, "Filter": {"Prefix": "ads/day="}}, None),
        ({**MONTH, "Filter": {"Prefix": "ads/_onceforall/uploads/"}}, None),
        ({**MONTH, "Filter": {"Tag": {"Key": "k", "Value": "v"}}}, None),
        ({**MONTH, "Filter": {"And": {"Prefix": "ads/", "Tags": [{"Key": "k"}]}}}, None),
        ({"Expiration": {"ExpiredObjectDeleteMarker": True}}, None),
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, None),
    ],
    ids=str,
)
def test_a_rule_that_deletes_what_readers_need_is_warned_of_whatever_its_age(caplog, rule, words):
    check_lifecycle(Bucket(rule))
    warned = f"{words}, and with them the folder's id and manifests"
    assert (warned in caplog.text) if words else caplog.text == ""
