"""What the file sink does in a bucket: data that nobody sees before the commit, uploads that were
aborted, sweeps, and what a start refuses."""

from __future__ import annotations

import logging
import pickle

import pytest

from onceforall import FileSink, read_files
from onceforall.errors import (
    AttemptFailedError,
    ConfigurationError,
    OptionError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import StartInfo, Sweep
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.places.objects import staging
from onceforall.sinks.files.places.s3.bucket import Bucket
from sinks.files.building import QUERY, attempt, commit, numbers, permit, prepared
from sinks.files_s3.place import Prefix, prefix_on

pytestmark = pytest.mark.s3


def test_rows_are_seen_behind_the_commit_only_and_nothing_is_left(place):
    sink = place.checked(partition_by=["p"])
    kept = sink.confirm([prepared(sink, numbers(4, p=["a", "b", "a/..", None]))])
    assert place.data() == []
    assert place.files().rows == 0
    assert len(place.uploads()) == 4
    report = sink.commit(permit(), kept)
    assert len(report.completed) == 1
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_what_was_committed_is_a_success_when_it_is_committed_again_also_behind_later_batches(
    place,
):
    sink = place.checked()
    first = commit(sink, 0, numbers(2))
    commit(sink, 1, numbers(2, 2))
    before = place.keys()
    report = place.checked().commit(permit(0), first)
    assert report.completed == tuple(first)
    assert place.keys() == before
    assert place.numbers() == [0, 1, 2, 3]


def test_a_file_of_many_parts_is_read_as_it_was_written(place, monkeypatch):
    monkeypatch.setattr(staging, "PART_BYTES", 5 << 20)
    sink = place.checked(format="csv")
    rows = numbers(100_000, t=[f"{number:0150d}" for number in range(100_000)])
    (committable,) = commit(sink, 0, rows)
    ((_, etags),) = committable["uploads"]
    assert len(etags) == 4
    assert place.files().to_arrow().column("t").to_pylist() == rows.column("t").to_pylist()


def test_an_upload_that_somebody_aborted_is_lost_and_only_its_rows_are_written_again(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(2)), prepared(sink, numbers(2, 2), partition=1)])
    place.abort(kept[0])
    report = sink.commit(permit(), kept)
    assert [each.committable for each in report.lost] == [kept[0]]
    assert "lifecycle" in report.lost[0].reason
    assert place.data() == [], "a batch that lost a file leaves no other one in the open"
    sink.retire([kept[0]])
    again = sink.confirm([prepared(sink, numbers(2), generation=1)])
    report = sink.commit(permit(), [*again, kept[1]])
    assert not report.lost
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_of_a_lost_transaction_that_was_completed_in_part_the_rest_is_deleted(place):
    sink = place.checked(partition_by=["p"])
    (kept,) = sink.confirm([prepared(sink, numbers(2, p=["a", "b"]))])
    ids = [upload for upload, _ in kept["uploads"]]
    with place.client() as client:
        for key, upload in place.uploads():
            if upload == ids[0]:
                etags = dict(kept["uploads"])[upload]
                parts = [{"PartNumber": i, "ETag": e} for i, e in enumerate(etags, 1)]
                client.complete_multipart_upload(
                    Bucket=place.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
                )
            else:
                client.abort_multipart_upload(Bucket=place.bucket, Key=key, UploadId=upload)
    (lost,) = sink.commit(permit(), [kept]).lost
    assert len(place.data()) == 1
    sink.retire([lost.committable])
    assert place.data() == []
    assert place.left() == []


def test_uploads_that_wait_for_their_commit_outlive_the_sink_that_made_them(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(2))])
    sink.close()
    del sink
    assert len(place.uploads()) == 1
    assert place.checked().commit(permit(), kept).completed == tuple(kept)
    assert place.numbers() == [0, 1]
    assert place.left() == []


def test_retire_leaves_what_is_committed_and_what_waits_for_its_commit(place):
    sink = place.checked()
    done = commit(sink, 0, numbers(2))
    waiting = sink.confirm([prepared(sink, numbers(2, 2), 1)])
    sink.retire([*done, *waiting])
    assert len(sink.commit(permit(1), waiting).completed) == 1
    assert place.numbers() == [0, 1, 2, 3]


def test_an_object_of_somebody_else_under_a_files_key_is_in_doubt_and_stays(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    ((key, _),) = place.uploads()
    place.abort(kept)
    with place.client() as client:
        client.put_object(Bucket=place.bucket, Key=key, Body=b"x" * kept["files"][0][3])
    report = sink.commit(permit(), [kept])
    assert [each.committable for each in report.in_doubt] == [kept]
    assert "isn't ours" in report.in_doubt[0].reason
    sink.retire([kept])
    assert len(place.data()) == 1


@pytest.mark.parametrize("what", ["aborted", "taken", "grown"])
def test_confirm_refuses_an_upload_that_could_not_be_completed(place, what):
    sink = place.checked()
    committable = prepared(sink, numbers(2))
    ((key, upload),) = place.uploads()
    with place.client() as client:
        if what == "aborted":
            client.abort_multipart_upload(Bucket=place.bucket, Key=key, UploadId=upload)
        elif what == "taken":
            client.put_object(Bucket=place.bucket, Key=key, Body=b"theirs")
        else:
            client.upload_part(
                Bucket=place.bucket, Key=key, UploadId=upload, PartNumber=2, Body=b"more"
            )
    with pytest.raises(AttemptFailedError, match="Nothing of this batch is decided"):
        sink.confirm([committable])


def test_a_sweep_aborts_the_uploads_that_it_covers_and_nobody_elses(place):
    sink = place.checked()
    with place.client() as client:
        client.create_multipart_upload(Bucket=place.bucket, Key=f"{place.key}/part-theirs")
    theirs = place.uploads()
    spared = prepared(sink, numbers(1))
    prepared(sink, numbers(1, 1))
    prepared(sink, numbers(1, 2), query="6f1c2d3e-0000-4000-8000-000000000002")
    prepared(sink, numbers(1, 3), generation=2)
    assert len(place.uploads()) == 5
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 1
    assert len(place.uploads()) == 4
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 0
    assert sink.recover(Sweep(QUERY, "out", 3, spared={spared["name"]})) == 1
    assert set(theirs) < set(place.uploads())
    (kept,) = sink.confirm([spared])
    assert len(sink.commit(permit(), [kept]).completed) == 1


def test_abort_and_discard_leave_nothing_and_may_come_again(place):
    sink = place.checked(partition_by=["p"])
    committable = prepared(sink, numbers(2, p=["a", "b"]))
    sink.abort([committable])
    sink.abort([committable])
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2, p=["a", "b"]))
    sink.discard(transaction)
    sink.discard(transaction)
    assert place.left() == []


def test_a_late_task_whose_record_was_swept_sends_nothing(place, monkeypatch):
    sink = place.checked()
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2))
    begin = Bucket.begin_upload

    def begin_late(bucket, path, metadata):
        # The sweep comes between the record and the upload.
        assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
        return begin(bucket, path, metadata)

    monkeypatch.setattr(Bucket, "begin_upload", begin_late)
    with pytest.raises(AttemptFailedError, match="swept"):
        sink.pre_commit(transaction)
    sink.discard(transaction)
    assert place.left() == []


def test_a_sweep_that_was_killed_behind_its_word_stops_the_late_task_too(place, monkeypatch):
    sink = place.checked()
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2))
    begin = Bucket.begin_upload
    list_uploads = Bucket.uploads

    def no_answer(bucket, path):
        found = list_uploads(bucket, path)
        raise OSError(f"killed when it had listed {found}")

    def begin_late(bucket, path, metadata):
        with monkeypatch.context() as here, pytest.raises(SinkUnavailableError):  # noqa: PT012
            here.setattr(Bucket, "uploads", no_answer)
            place.sink().recover(Sweep(QUERY, "out", 1))
        return begin(bucket, path, metadata)

    monkeypatch.setattr(Bucket, "begin_upload", begin_late)
    with pytest.raises(AttemptFailedError, match="swept"):
        sink.pre_commit(transaction)
    assert place.uploads() == []
    assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
    assert place.left() == []


def test_a_record_that_names_another_key_aborts_nothing(place):
    sink = place.checked()
    committable = prepared(sink, numbers(1))
    (record,) = place.keys("_onceforall/uploads/")
    with place.client() as client:
        theirs = client.create_multipart_upload(Bucket=place.bucket, Key="theirs")["UploadId"]
        client.put_object(
            Bucket=place.bucket, Key=f"{place.key}/{record}", Body=b'{"key": "theirs"}'
        )
    with pytest.raises(SinkUnavailableError, match="not written by FileSink"):
        sink.abort([committable])
    assert ("theirs", theirs) in place.uploads()


def test_manifests_are_merged_and_read_whole(place, monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    sink = place.checked()
    for batch in range(7):
        commit(sink, batch, numbers(1, batch))
    assert place.numbers() == list(range(7))
    assert any("-" in key.rpartition("/")[2] for key in place.keys("_onceforall/manifests/"))
    with place.client() as client:
        (newest,) = [key for key in place.keys("_onceforall/manifests/") if key.endswith("/6.json")]
        client.delete_object(Bucket=place.bucket, Key=f"{place.key}/{newest}")
    with pytest.raises(Exception, match="second name"):
        place.files()


@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_each_format_is_read_back(place, form, compression):
    sink = place.checked(format=form, compression=compression, partition_by=["p"])
    commit(sink, 0, numbers(3, p=["a", "ü +%/?", None]))
    table = place.files().to_arrow().sort_by("n")
    assert table.column("n").to_pylist() == [0, 1, 2]
    assert table.column("p").to_pylist() == ["a", "ü +%/?", None]
    assert sum(batch.num_rows for batch in place.files().dataset().to_batches()) == 3


def test_another_id_means_another_target(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(1))])
    other = Prefix(place.bucket, place.storage, "lake/other")
    assert other.sink().identity(StartInfo(QUERY, "out")) is None
    assert sink.identity(StartInfo(QUERY, "out")) != other.checked().identity(
        StartInfo(QUERY, "out")
    )
    (doubt,) = other.sink().commit(permit(), kept).in_doubt
    assert "was decided for the folder with the id" in doubt.reason
    assert other.data() == []


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
    def refused(self, place, match):
        sink = place.sink()
        with pytest.raises(SinkCheckError, match=match) as caught:  # noqa: PT012  either raises
            sink.identity(StartInfo(QUERY, "out"))
            sink.check(StartInfo(QUERY, "out"))
        assert place.storage["secret_access_key"] not in str(caught.value)
        return caught.value

    def test_a_bucket_that_is_missing(self, place):
        self.refused(Prefix("no-such-bucket", place.storage), "no such bucket. Create it")

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
        found = self.refused(place.through(proxy.endpoint), words)
        assert "s3:PutObject" in str(found)

    def test_a_store_that_ignores_if_none_match(self, place, proxy):
        proxy.without("if-none-match")
        self.refused(place.through(proxy.endpoint), "If-None-Match")

    def test_a_log_of_sparks_own_sink(self, place):
        with place.client() as client:
            client.put_object(
                Bucket=place.bucket, Key=f"{place.key}/_spark_metadata/0", Body=b"v1\n"
            )
        self.refused(place, "_spark_metadata")

    def test_something_foreign_under_our_name(self, place):
        with place.client() as client:
            client.put_object(Bucket=place.bucket, Key=f"{place.key}/_onceforall/x", Body=b"")
        self.refused(place, "was not written by FileSink")

    def test_a_rule_that_aborts_uploads_at_once(self, place):
        rule(place, 0)
        self.refused(place, "aborts incomplete multipart uploads after 0 days.* Raise it")


@pytest.mark.long
@pytest.mark.parametrize("name", ["access_key_id", "secret_access_key"])
def test_a_start_refuses_a_wrong_key(second_s3_server, name):
    bucket = f"keys-{name[:3]}"
    second_s3_server.create_bucket(bucket)
    place = prefix_on(second_s3_server, bucket)
    place.storage[name] = "wrong-key"
    TestAStartRefuses().refused(place, "doesn't accept the key|may not do that")


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


@pytest.mark.parametrize("character", ["\ufffe", "\uffff"])
def test_a_partition_that_no_listing_could_show_is_refused_with_its_row(place, character):
    """One such key, and moto can list nothing of the bucket any more."""
    sink = place.checked(partition_by=["p"])
    with pytest.raises(RefusedRecordError, match=r"U\+FFF[EF], which S3 can't list"):
        prepared(sink, numbers(1, p=[f"a{character}b"]))
    assert sink.recover(Sweep(QUERY, "out", 1)) == 0
    commit(sink, 0, numbers(2, p=["\ufffd", "ü"]))
    assert place.numbers() == [0, 1]


def test_what_does_not_work_on_s3_says_so(place):
    place.checked()
    with pytest.raises(OptionError, match="storage is given with a local path"):
        read_files("/lake", storage={"region": "x"})
    with pytest.raises(ConfigurationError, match="holds no folder _onceforall|does not exist"):
        read_files(f"s3a://{place.bucket}/nothing", storage=place.storage)
