"""What the file sink does in a bucket: as on any store of objects; keys, rules of the bucket's
lifecycle, and what a start refuses."""

from __future__ import annotations

import logging
import pickle

import pytest

from onceforall import FileSink, read_files
from onceforall.errors import OptionError
from sinks.files.building import attempt, numbers, permit
from sinks.files_objects.sink import *  # noqa: F403
from sinks.files_objects.sink import refused
from sinks.files_s3.place import Prefix, prefix_on

pytestmark = pytest.mark.s3


class TestKeys:
    def test_no_pickle_and_no_text_shows_one(self, place):
        sink = place.checked()
        secret = place.storage["secret_access_key"]
        assert secret in sink.secrets().values()
        texts = [pickle.dumps(sink), repr(sink).encode(), repr(vars(sink)).encode()]
        texts.append(pickle.dumps(sink.begin_transaction(attempt())._plan))
        assert not [text for text in texts if secret.encode() in text]

    def test_a_task_has_them_from_the_driver(self, place):
        sink = place.checked()
        in_task = pickle.loads(pickle.dumps(sink))
        assert in_task.secrets() == {}
        given = attempt()
        object.__setattr__(given, "secrets", sink.secrets())
        transaction = in_task.begin_transaction(given)
        in_task.invoke(transaction, numbers(2))
        committable = in_task.pre_commit(transaction)
        assert not [v for v in sink.secrets().values() if v in repr(committable["uploads"])]
        sink.commit(permit(), sink.confirm([committable]))
        assert place.numbers() == [0, 1]

    def test_those_of_spark_are_taken_where_storage_has_none(self, place):
        given = place.sink()._given
        spark = {
            "access_key_id": "spark",
            "session_token": "t",
            "region": "r",
            "endpoint": "http://e",
        }
        assert given.with_settings(spark).secrets == given.secrets
        bare = FileSink(place.url)._given.with_settings(spark)
        assert bare.secrets == {"access_key_id": "spark", "session_token": "t"}
        assert bare.settings == {"region": "r", "endpoint": "http://e"}


class TestAStartRefuses:
    def test_a_bucket_that_is_missing(self, place):
        refused(Prefix("no-such-bucket", place.storage), "no such bucket. Create it")

    @pytest.mark.parametrize(
        ("method", "kind", "words"),
        [
            ("GET", "list", "cannot list"),
            ("PUT", "create", "cannot create"),
            ("POST", "begin upload", "cannot begin an upload"),
            ("PUT", "part", "cannot send a part"),
            ("GET", "list parts", "cannot list the parts"),
            ("POST", "complete upload", "cannot complete"),
            ("GET", "get", "cannot read"),
        ],
    )
    def test_a_key_that_may_not_do_what_a_batch_needs(self, place, proxy, method, kind, words):
        proxy.answer(403, method, kind=kind, count=1000, key="" if kind != "get" else "probes")
        found = refused(place.through(proxy.endpoint), words)
        assert "s3:PutObject" in str(found)

    def test_a_bucket_with_a_retention_by_default(self, place, proxy):
        """No server of the tests has one; S3 documents what it answers."""
        proxy.answer(400, "PUT", count=1000)
        refused(place.through(proxy.endpoint), "InvalidRequest.*Object Lock")

    def test_a_store_that_ignores_if_none_match(self, place, proxy):
        proxy.without("if-none-match")
        refused(place.through(proxy.endpoint), "If-None-Match")

    def test_a_rule_that_aborts_uploads_at_once(self, place):
        rule(place, 0)
        refused(place, "aborts incomplete multipart uploads after 0 days.* Raise it")


@pytest.mark.long
@pytest.mark.parametrize("name", ["access_key_id", "secret_access_key"])
def test_a_start_refuses_a_wrong_key(second_s3_server, name):
    bucket = f"keys-{name[:3]}"
    second_s3_server.create_bucket(bucket)
    place = prefix_on(second_s3_server, bucket)
    place.storage[name] = "wrong-key"
    refused(place, "doesn't accept the key|may not do that")


def rule(place, days, prefix="", status="Enabled"):
    with place.client() as client:
        client.put_bucket_lifecycle_configuration(
            Bucket=place.bucket,
            LifecycleConfiguration={
                "Rules": [
                    {
                        "ID": "abort",
                        "Status": status,
                        "Filter": {"Prefix": prefix},
                        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
                    }
                ]
            },
        )


@pytest.mark.parametrize(
    ("days", "prefix", "status", "warns"),
    [
        (1, "", "Enabled", True),
        (6, "lake/", "Enabled", True),
        (6, "lake/ads/day=", "Enabled", True),
        (6, "lake/ads2", "Enabled", False),
        (7, "", "Enabled", False),
        (1, "", "Disabled", False),
    ],
)
def test_a_start_warns_of_a_rule_that_aborts_uploads_within_a_week(
    place, caplog, days, prefix, status, warns
):
    rule(place, days, prefix, status)
    with caplog.at_level(logging.WARNING, "onceforall"):
        place.checked()
    assert ("aborts incomplete multipart uploads" in caplog.text) == warns


def test_a_start_says_so_when_it_may_not_read_the_lifecycle(place, proxy, caplog):
    proxy.answer(403, "GET", kind="list", nth=3)  # behind two listings
    with caplog.at_level(logging.WARNING, "onceforall"):
        place.through(proxy.endpoint).checked()
    assert "s3:GetLifecycleConfiguration" in caplog.text


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("s3a://bucket", {}),
        ("s3a://bucket/", {}),
        ("s3a:///lake", {}),
        ("s3a://key:secret@bucket/lake", {}),
        ("s3a://bucket/a/../b", {}),
        ("s3a://bucket/" + "/".join(["x" * 100] * 5), {}),
        ("s3a://bucket/lake", {"spark_metadata": "continue"}),
        ("s3a://bucket/lake", {"storage": {"endpoint": "127.0.0.1:9000"}}),
        ("s3a://bucket/lake", {"storage": {"access_key_id": "x"}}),
        ("s3a://bucket/lake", {"storage": {"session_token": "x"}}),
        ("s3a://bucket/lake", {"storage": {"retries": "7"}}),
        ("s3a://bucket/lake", {"storage": {"region": 7}}),
        ("s3a://bucket/lake", {"storage": "http://server"}),
        ("/lake", {"storage": {"region": "eu-central-1"}}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(path, options):
    with pytest.raises(OptionError) as caught:
        FileSink(path, **options)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "s3a://lake/a\nb",
        "s3a://lake/a\tb",
        "s3a://la\nke/a",
        "s3a://lake/a\uffffb",
    ],
)
def test_a_prefix_with_characters_that_would_get_lost_is_refused(path):
    with pytest.raises(OptionError, match="path"):
        FileSink(path)


def test_an_endpoint_with_a_password_is_refused_and_does_not_show_it():
    endpoint = "http://user:very-secret@127.0.0.1:9"
    with pytest.raises(OptionError, match="endpoint") as told:
        FileSink("s3a://lake/ads", storage={"endpoint": endpoint})
    assert "very-secret" not in str(told.value)


def test_storage_is_not_for_a_local_path():
    with pytest.raises(OptionError, match="storage is given with a local path"):
        read_files("/lake", storage={"region": "x"})
