"""The log on a real S3 API behind a proxy that loses, repeats, delays and refuses requests: obstore's
client. Whatever the network does, one run decides, and each decision is counted once."""

from __future__ import annotations

import threading

import boto3
import pytest

from commit_log.building import CLAIM, commit, folded, open_log, start
from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.commit_log.stores.probing import probe
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.errors import (
    CommitLogError,
    FencedError,
    OptionError,
    OutcomeUnknownError,
    UnsupportedQueryError,
)
from onceforall.protocol.entries import Done
from onceforall.spark.remote_path import RemotePath, files_below
from support.http_faults import HttpProxy

pytestmark = pytest.mark.s3

ENTRIES = r"chains/"


@pytest.fixture
def proxy(s3_server):
    with HttpProxy(s3_server.port) as running:
        yield running


def client_of(server, bucket, endpoint, **settings):
    return ObjectClient(
        f"s3a://{bucket}/ads",
        {
            "endpoint": endpoint,
            "region": server.region,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "virtual_hosted_style_request": "false",
            **settings,
        },
    )


@pytest.fixture
def store(s3_server, s3_bucket, proxy):
    return RemoteStore(client_of(s3_server, s3_bucket, proxy.endpoint), "onceforall")


@pytest.fixture
def direct(s3_server, s3_bucket):
    """The same log, past the proxy."""
    return RemoteStore(client_of(s3_server, s3_bucket, s3_server.endpoint), "onceforall")


def test_an_append_is_one_put_and_a_batch_two(store, proxy):
    log, generation, _ = start(store, keep_ends=True)
    proxy.forget()
    for batch in range(3):
        log.append(generation, commit(batch))
        log.append(generation, Done(batch))
    assert proxy.counts() == {("PUT", "create"): 6}


@pytest.mark.parametrize("fault", ["cut", "lose", "twice", 409, 500, 503])
def test_an_append_survives_what_becomes_of_its_request(store, direct, proxy, fault):
    log, generation, _ = start(store, keep_ends=True)
    if isinstance(fault, int):
        proxy.answer(fault, "PUT", ENTRIES)
    else:
        getattr(proxy, fault)("PUT", ENTRIES)
    log.append(generation, commit(0))
    log.append(generation, Done(0))
    newer, own, history = start(direct, keep_ends=True)
    assert history.decided.commit == commit(0)
    assert history.decided.done
    with pytest.raises(FencedError):
        log.append(generation, commit(1))
    newer.append(own, commit(1))


@pytest.mark.parametrize("arrives", [False, True])
def test_a_decision_waits_for_a_store_that_is_away_says_so_and_is_one(
    store, direct, proxy, caplog, arrives
):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if sum(slept) > 30:
            away.end()

    log, own, _ = start(store, keep_ends=True, sleep=sleep, goes_on=lambda: True)
    if arrives:
        proxy.lose("PUT", ENTRIES)
    away = proxy.cut(count=100_000)
    index = log.append(own, commit(1))
    assert sum(slept) > 30
    told = [record.message for record in caplog.records if "waits for its store" in record.message]
    assert len(told) == 1
    assert "asks again every 5 s" in told[0]
    log.append(own, Done(1))
    assert [entry for _, entry in open_log(direct).entries(own)][index:] == [commit(1), Done(1)]


def test_a_store_that_is_away_is_waited_for_until_the_query_is_stopped(store, proxy):
    asked = []

    def goes_on():
        asked.append(True)
        return len(asked) < 30

    log, own, _ = start(store, keep_ends=True, goes_on=goes_on)
    proxy.answer(503, count=100_000)
    with pytest.raises(OutcomeUnknownError, match="tried [67] times"):
        log.append(own, commit(1))
    assert len(asked) == 30
    with pytest.raises(OutcomeUnknownError, match="the append before got no answer"):
        log.append(own, commit(1))


def test_a_decision_that_came_too_late_behind_a_store_that_is_away_is_in_doubt(store, proxy):
    """What was sent in time may still arrive: it is neither decided nor undecided."""
    asked = []

    def in_time():
        asked.append(True)
        return len(asked) <= 7

    log, own, _ = start(store, keep_ends=True, goes_on=lambda: True)
    proxy.cut("PUT", count=100_000)
    with pytest.raises(OutcomeUnknownError):
        log.append(own, commit(1), in_time)
    assert len(asked) == 8


def test_an_append_that_arrives_long_after_its_writer_gave_up_meets_the_seal(store, direct, proxy):
    log, generation, _ = start(store, keep_ends=True, retry_pauses_ms=())
    late = proxy.late("PUT", ENTRIES)
    with pytest.raises(OutcomeUnknownError):
        log.append(generation, commit(0, "late"))
    late.wait()
    for batch in range(4):
        newer, own, _ = start(direct, keep_ends=True, retain_commits=1, drop_after=1)
        newer.append(own, commit(batch))
        newer.append(own, Done(batch))
        newer.clean(own)
    last, own, before = start(direct, keep_ends=True, retain_commits=1, drop_after=1)
    last.clean(own)
    assert last.oldest_generation() > generation
    answers = late.release()
    assert answers, "the late request came to the server"
    _, _, after = start(direct, keep_ends=True)
    assert after.decided.commit == before.decided.commit == commit(3)
    assert not any(
        entry == commit(0, "late")
        for chain in range(own + 2)
        for _, entry in folded_entries(last, chain)
    )


def folded_entries(log, chain):
    return [] if chain < log.oldest_generation() else log.entries(chain)


def test_drivers_that_race_claim_generations_of_their_own_and_one_decides(s3_server, s3_bucket):
    logs = [
        open_log(
            RemoteStore(client_of(s3_server, s3_bucket, s3_server.endpoint), "onceforall"),
            keep_ends=True,
        )
        for _ in range(4)
    ]
    claimed, decided, fenced = [], [], []

    def race(log):
        generation = log.claim(CLAIM).generation
        claimed.append(generation)
        try:
            log.seal_below(generation)
            log.append(generation, commit(0, f"g{generation}"))
            decided.append(generation)
        except FencedError:
            fenced.append(generation)

    threads = [threading.Thread(target=race, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(claimed) == [0, 1, 2, 3]
    assert max(claimed) in decided
    last, own, history = start(logs[0]._store, keep_ends=True)
    assert history.decided.generation == max(claimed)
    assert len(decided) + len(fenced) == 4
    assert folded(last, own) == history


def test_a_start_after_many_generations_takes_few_requests(store, proxy):
    for batch in range(14):
        log, own, _ = start(store, keep_ends=True)
        log.append(own, commit(batch))
        log.append(own, Done(batch))
        log.clean(own)
    proxy.forget()
    start(store, keep_ends=True)
    assert proxy.count() < 60, proxy.counts()


def test_the_test_of_a_start_takes_few_requests(store, proxy):
    probe(store)
    assert 5 <= proxy.count() <= 8, proxy.counts()
    assert proxy.count(kind="delete") == 1


def test_a_store_that_ignores_the_condition_is_refused(s3_server, s3_bucket, monkeypatch):
    client = client_of(s3_server, s3_bucket, s3_server.endpoint)
    put = client._obstore.put

    class Ignoring:
        def __getattr__(self, name):
            return getattr(client_obstore, name)

        @staticmethod
        def put(store, key, content, **_):
            return put(store, key, content, use_multipart=False)

    client_obstore = client._obstore
    client._obstore = Ignoring()
    with pytest.raises(UnsupportedQueryError, match="If-None-Match"):
        probe(RemoteStore(client))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (403, "Grant it"),
        (503, "overloaded"),
        ("cut", "doesn't answer"),
    ],
)
def test_a_store_that_refuses_or_is_silent_is_told_in_a_sentence(store, proxy, fault, words):
    if isinstance(fault, int):
        proxy.answer(fault, count=1000)
    else:
        proxy.cut(count=1000)
    with pytest.raises(CommitLogError, match=words) as told:
        store.create("chains/00000000/00000000.json", b"x")
    assert "s3a://" in str(told.value)
    assert "Debug source" not in str(told.value)


def test_a_missing_bucket_and_wrong_settings_are_told(s3_server):
    with pytest.raises(CommitLogError, match="There is no such bucket"):
        RemoteStore(client_of(s3_server, "no-such-bucket", s3_server.endpoint)).create("a/b", b"")
    with pytest.raises(CommitLogError, match="There is no such bucket"):
        RemoteStore(client_of(s3_server, "no-such-bucket", s3_server.endpoint)).read("a/b")
    with pytest.raises(OptionError, match="http://"):
        client_of(s3_server, "bucket", "localhost:99")
    with pytest.raises(OptionError, match="unknown") as told:
        client_of(s3_server, "bucket", s3_server.endpoint, no_such_setting="secret-value")
    assert "secret-value" not in str(told.value)


def test_no_key_is_shown(s3_server, s3_bucket):
    client = client_of(s3_server, s3_bucket, "http://127.0.0.1:9", secret_access_key="very-secret")
    assert "very-secret" not in repr(client)
    with pytest.raises(CommitLogError) as told:
        client.create("a", b"")
    assert "very-secret" not in str(told.value)


def test_a_mark_of_a_folder_is_no_file_in_it(s3_server, s3_bucket):
    """S3A writes an empty object whose key ends with a slash for each empty folder."""
    client = client_of(s3_server, s3_bucket, s3_server.endpoint)
    raw = boto3.client("s3", **s3_server.client_arguments)
    for key in ("ads/", "ads/state/", "ads/state/0/_metadata/", "ads/state/1"):
        raw.put_object(Bucket=s3_bucket, Key=key, Body=b"")
    assert client.list("") == ["state/"]
    assert client.list("state") == ["0/", "1"]
    assert client.list("state/0") == ["_metadata/"]
    assert client.list("state/0/_metadata") == []
    assert not (RemotePath(client, "state") / "0" / "_metadata").is_dir()
    assert [str(file)[-7:] for file in files_below(RemotePath(client))] == ["state/1"]


def test_a_gateways_404_is_not_taken_for_an_object_that_is_not_there(s3_server, s3_bucket, proxy):
    """A gateway answers so while it has no store behind it."""
    client, key = client_of(s3_server, s3_bucket, proxy.endpoint), "_probe/there"
    client.replace(key, b"content")
    assert client.read("_probe/not there") is None
    for requests in (1, 2):
        proxy.bare_404("GET", count=requests)
        with pytest.raises(CommitLogError, match="404"):
            client.read(key)
    assert client.read(key) == b"content"
    proxy.bare_404("HEAD")
    assert client.exists(key)
    assert not client.exists("_probe/not there")
