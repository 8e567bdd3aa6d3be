"""URLs, settings, rules and words of errors of the file sink on Google Cloud Storage; no server is
needed."""

from __future__ import annotations

import pickle
import sys
import time
from datetime import datetime, timedelta, timezone

import pytest

from onceforall import FileSink, read_files
from onceforall.errors import MissingExtraError, OptionError, SinkCheckError
from onceforall.sinks.files.places.gcs import client, gcs_target, is_gcs
from onceforall.sinks.files.places.gcs.client import GcsBucket, GcsError
from onceforall.sinks.files.places.gcs.lifecycle import check_lifecycle
from onceforall.sinks.files.places.objects.paths import ObjectPath

URL = "gs://lake/ads"


def test_a_url_names_bucket_and_folder():
    target = gcs_target("gs://lake/ads//days/", {"project": "p"})
    assert str(target.root) == "gs://lake/ads/days"
    assert (target.root.bucket_name, target.settings) == ("lake", (("project", "p"),))
    assert is_gcs("GS://lake/ads")
    assert not is_gcs("gsx://lake/ads")
    assert pickle.loads(pickle.dumps(target)) == target


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("gs://lake", {}, "must name a bucket and a folder"),
        ("gs://lake:1/ads", {}, "must name a bucket and a folder"),
        ("gs://u:hush@lake/ads", {}, "must name a bucket and a folder"),
        ("gs://lake/a/../b", {}, "must name a bucket and a folder"),
        ("gs://lake/a?x=hush", {}, "has a . or a # in it"),
        (f"{URL}/" + "/".join(["x" * 100] * 5), {}, "up to 400"),
        (URL, {"spark_metadata": "continue"}, "local folders only"),
        (URL, {"storage": {"account_key": "hush"}}, "'account_key'"),
        (URL, {"storage": {"project": 7}}, "'project'"),
        (URL, {"storage": "gs"}, "dictionary"),
        (URL, {"storage": {"credentials_file": '{"private_key": "hush"}'}}, "is a key and no file"),
        (URL, {"storage": {"endpoint": "127.0.0.1:4443"}}, "http:// or https://"),
        (URL, {"storage": {"endpoint": "http://u:hush@host"}}, "'endpoint'"),
        (
            URL,
            {"storage": {"endpoint": "http://host", "credentials_file": "/hush.json"}},
            "everybody could read",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused_without_their_values(path, options, words):
    with pytest.raises(OptionError, match=words) as caught:
        FileSink(path, **options)
    assert "hush" not in str(caught.value)


class Configuration:
    def __init__(self, given):
        self._given = given

    def get(self, name, default=None):
        return self._given.get(name, default)


def test_the_file_of_spark_is_taken_where_storage_names_none(monkeypatch):
    found = {"fs.gs.auth.service.account.json.keyfile": "/keys/a.json", "fs.gs.project.id": "p"}
    monkeypatch.setattr("onceforall.spark.stores.hadoop_settings", lambda _: Configuration(found))
    both = (("credentials_file", "/keys/a.json"), ("project", "p"))
    assert gcs_target(URL, None).with_session(None).settings == both
    own = gcs_target(URL, {"credentials_file": "/keys/b.json"})
    assert own.with_session(None) == own


def test_a_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(MissingExtraError, match=r"onceforall\[gcs\]"):
        read_files(URL)


@pytest.mark.parametrize(
    ("code", "refused", "words"),
    [
        ("NoSuchBucket", True, "Create it"),
        ("DefaultCredentialsError", True, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("403", True, "Storage Object Admin"),
        ("403", True, "retention policy"),
        ("ValueError", True, "small letters"),
        ("FileNotFoundError", True, "file of credentials"),
        ("429", False, "Wait"),
        ("ConnectionError", False, "Mend the network"),
        ("500", False, "Mend the cause"),
    ],
)
def test_an_error_says_what_to_do_and_whether_asking_again_can_help(code, refused, words):
    error = GcsError("read", ObjectPath("gs://lake", "k"), code)
    assert error.refused == refused
    assert str(error).startswith(f"cannot read gs://lake/k (the answer was {code}). ")
    assert words in str(error)


class Bucket:
    """A bucket of which only the rules are known."""

    root = ObjectPath("gs://lake", "ads")

    def __init__(self, *conditions, kind="Delete", error=None):
        self._rules = [{"action": {"type": kind}, "condition": each} for each in conditions]
        self._error = error

    def rules(self):
        if self._error is not None:
            raise GcsError("read", self.root, self._error)
        return self._rules, "STANDARD"


NEVER = {
    "another prefix": {"age": 0, "matchesPrefix": ["tmp/"]},
    "files": {"age": 0, "matchesSuffix": [".csv", "x9"]},
    "replaced versions": {"age": 0, "isLive": False},
    "newer versions": {"numNewerVersions": 1},
    "long replaced": {"daysSinceNoncurrentTime": 1},
    "replaced before": {"noncurrentTimeBefore": "2099-01-01"},
    "custom": {"daysSinceCustomTime": 0, "customTimeBefore": "2099-01-01"},
    "old ones": {"age": 0, "createdBefore": "2020-01-01"},
    "another class": {"age": 0, "matchesStorageClass": ["ARCHIVE"]},
}


@pytest.mark.parametrize("name", NEVER)
def test_a_rule_that_deletes_no_part_is_no_obstacle(name, caplog):
    check_lifecycle(Bucket(NEVER[name]))
    assert caplog.text == ""


@pytest.mark.parametrize(
    "condition",
    [
        {"age": 0},
        {"isLive": True},
        {"createdBefore": "2099-01-01"},
        {"matchesPrefix": ["ads/"]},
        {"matchesPrefix": ["tmp/", "ads/_onceforall/parts/"]},
        {"matchesStorageClass": ["STANDARD"]},
        {"matchesSuffix": ["un"]},
        {"matchesSuffix": [".csv", "1"]},
    ],
    ids=str,
)
def test_a_rule_that_deletes_parts_at_once_is_refused(condition):
    with pytest.raises(SinkCheckError, match="after 0 days"):
        check_lifecycle(Bucket({"age": 30}, condition))


def test_a_rule_that_deletes_parts_within_a_week_is_warned_of(caplog):
    check_lifecycle(Bucket({"age": 3, "matchesPrefix": ["ads/_once"]}))
    assert "after 3 days" in caplog.text
    caplog.clear()
    check_lifecycle(Bucket({"age": 7, "matchesPrefix": ["ads/_onceforall/parts/"]}))
    check_lifecycle(Bucket({"age": 0}, kind="SetStorageClass"))
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("condition", "warns"),
    [
        ({"age": 400}, True),
        ({"age": 400, "matchesPrefix": ["tmp/", "ads/"]}, True),
        ({"age": 400, "matchesPrefix": ["ads/_onceforall/manifests/6f"]}, True),
        ({"age": 400, "matchesSuffix": [".csv", "0.json"]}, True),
        ({"age": 400, "matchesPrefix": ["ads/day="]}, False),
        ({"age": 400, "matchesSuffix": [".csv"]}, False),
        ({"age": 400, "isLive": False}, False),
    ],
    ids=str,
)
def test_a_rule_that_deletes_what_readers_need_is_warned_of_whatever_its_age(
    caplog, condition, warns
):
    check_lifecycle(Bucket(condition))
    assert ("after 400 days, and with them the folder's id and manifests" in caplog.text) == warns


def test_rules_that_cant_be_read_are_warned_of(caplog):
    check_lifecycle(Bucket(error="403"))
    assert "storage.buckets.get" in caplog.text
    with pytest.raises(GcsError):
        check_lifecycle(Bucket(error="503"))


def test_an_endpoint_may_end_with_a_slash():
    assert gcs_target(URL, {"endpoint": "http://h:1/"}).settings == (("endpoint", "http://h:1"),)


def test_a_reader_has_one_client_until_its_token_ends(monkeypatch):
    bucket = GcsBucket(ObjectPath("gs://lake", "ads"), {"endpoint": "http://127.0.0.1:1"})
    files = bucket.file_system()
    assert bucket.file_system() is files
    made = []

    def made_anew(_):
        made.append(object())
        return made[-1], datetime.now(timezone.utc) + timedelta(minutes=[2, 9][len(made) > 1])

    monkeypatch.setattr(GcsBucket, "_new_files", made_anew)
    bucket._files = None
    for _ in range(4):
        bucket.file_system()
    assert len(made) == 2
    assert bucket.file_system() is made[1]


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "UTC", "Asia/Tokyo"])
def test_a_token_ends_when_google_says_in_whatever_zone_the_machine_is(monkeypatch, zone):
    """google-auth gives the end in UTC, without saying so."""
    ends = datetime(2026, 11, 27, 12, 0)  # noqa: DTZ001  as it gives it
    monkeypatch.setattr(client, "_token_of", lambda _: ("token", ends))
    monkeypatch.setattr(client._clients, "of", lambda settings: None)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        bucket = client.GcsBucket(ObjectPath("gs://bucket"), {"credentials_file": "/keys/a.json"})
        _, until = bucket._new_files()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert until == ends.replace(tzinfo=timezone.utc)
