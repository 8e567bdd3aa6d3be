"""A log on a remote store: what a lost answer means is decided in one place, over any client."""

from __future__ import annotations

import pytest

from commit_log.building import commit, open_log, start
from commit_log.stores import MemoryStore
from onceforall.commit_log import binding
from onceforall.commit_log.creating import Creator
from onceforall.commit_log.store import AlreadyExists, Created, TooLate
from onceforall.commit_log.stores.locations import is_local, remote_url
from onceforall.commit_log.stores.probing import check, probe
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.errors import (
    BatchTooSlowError,
    CommitLogError,
    OptionError,
    OutcomeUnknownError,
    ProtocolViolationError,
    UnsupportedQueryError,
)
from onceforall.protocol.entries import Done


class ScriptedClient:
    """A store in a dictionary. What becomes of each create is told by ``script``, one word each:

    - ``lost``: it takes effect, and the answer doesn't come;
    - ``dropped``: it doesn't take effect, and no answer comes;
    - ``retried``: the answer is lost, the client asks again by itself, and is told "exists";
    - ``409``: two creates met, and this one is told "exists" though nothing was stored.
    """

    url = "s3a://bucket/checkpoints/ads"
    is_far = True

    def __init__(self, *script):
        self.contents = {}
        self.script = list(script)
        self.creates = 0

    def read(self, key):
        return self.contents.get(key)

    def exists(self, key):
        return key in self.contents

    def create(self, key, content, in_time=None):
        if in_time is not None and not in_time():
            return "too late"
        self.creates += 1
        word = self.script.pop(0) if self.script else ""
        if word == "409":
            return "exists"
        if word == "dropped":
            raise CommitLogError(f"cannot create {key}: connection reset")
        stood = key in self.contents
        self.contents.setdefault(key, content)
        if word == "lost":
            raise CommitLogError(f"cannot create {key}: time-out")
        return "exists" if stood or word == "retried" else "created"

    def delete(self, key):
        self.contents.pop(key, None)

    def list(self, folder):
        prefix = f"{folder}/" if folder else ""
        rest = [key[len(prefix) :] for key in self.contents if key.startswith(prefix)]
        return sorted({name.partition("/")[0] + "/" * ("/" in name) for name in rest})

    def replace(self, key, content):
        self.contents[key] = content

    def move(self, key, to):
        self.contents[to] = self.contents.pop(key)


def creator(client):
    return Creator(RemoteStore(client, "onceforall"), (0, 0), lambda _: None)


@pytest.mark.parametrize("word", ["lost", "dropped", "409"])
def test_a_create_whose_answer_is_lost_is_asked_again_and_recognises_itself(word):
    client = ScriptedClient(word)
    content, repeated = creator(client)("chains/00000000/00000001.json", b"mine")
    assert (content, repeated) == (b"mine", True)
    assert client.creates == 2
    assert client.contents == {"onceforall/chains/00000000/00000001.json": b"mine"}


def test_an_own_create_whose_answer_was_lost_counts_as_asked_again():
    """The client's own repetition is told "exists", and nobody else asked again."""
    client = ScriptedClient("retried")
    assert creator(client)("a/b", b"mine") == (b"mine", True)
    assert client.creates == 1


@pytest.mark.parametrize("word", ["", "lost", "dropped", "409"])
def test_what_another_has_created_wins_whatever_becomes_of_the_answer(word):
    client = ScriptedClient(word)
    client.contents["onceforall/a/b"] = b"theirs"
    content, _ = creator(client)("a/b", b"mine")
    assert content == b"theirs"
    assert client.contents["onceforall/a/b"] == b"theirs"


def test_a_plain_create_is_one_request_and_no_read():
    client = ScriptedClient()
    client.read = None
    assert RemoteStore(client).create("a/b", b"mine") == Created()


def test_what_comes_too_late_is_not_created():
    client = ScriptedClient()
    assert RemoteStore(client).create("a/b", b"mine", lambda: False) == TooLate()
    assert not client.contents
    with pytest.raises(BatchTooSlowError):
        creator(client)("a/b", b"mine", lambda: False)


@pytest.mark.parametrize("key", ["../b", "a//b", "a/.b", "", "a b", "é"])
def test_no_key_leads_out_of_the_log(key):
    store = RemoteStore(ScriptedClient(), "onceforall")
    for act in (lambda: store.read(key), lambda: store.delete(key), lambda: store.create(key, b"")):
        with pytest.raises(ProtocolViolationError):
            act()


def test_a_log_on_a_remote_store_appends_with_one_request_each_and_says_so_in_its_pointer():
    client = ScriptedClient()
    home = RemoteStore(client, "onceforall")
    bound = binding.bind(home, "s3a://bucket/checkpoints/ads", None, query_id=None)
    assert bound.keep_ends
    assert binding.find(RemoteStore(client, "onceforall")).keep_ends
    assert bound.log()._keep_ends
    log, generation, _ = start(home, keep_ends=True)
    client.creates, client.read, client.list = 0, None, None
    log.append(generation, commit(0))
    log.append(generation, Done(0))
    assert client.creates == 2


def test_a_log_on_a_disk_does_not_keep_the_ends():
    home = MemoryStore()
    assert not binding.bind(home, "/checkpoints/ads", None, query_id=None).keep_ends
    assert not binding.find(home).keep_ends


def test_an_append_without_an_answer_is_unknown_and_nothing_follows_it():
    client = ScriptedClient()
    home = RemoteStore(client, "onceforall")
    log, generation, _ = start(home, keep_ends=True, retry_pauses_ms=(0,))
    client.script = ["dropped", "dropped"]
    with pytest.raises(OutcomeUnknownError):
        log.append(generation, commit(0))
    with pytest.raises(OutcomeUnknownError):
        log.append(generation, Done(0))


# --- testing a store --------------------------------------------------------------------------


class Ignoring(ScriptedClient):
    """Takes no notice of If-None-Match, as some that claim to speak S3."""

    def create(self, key, content, in_time=None):
        self.contents[key] = content
        return "created"


class BothWin(ScriptedClient):
    """Answers "created" to the first two, whoever stored something."""

    def create(self, key, content, in_time=None):
        super().create(key, content)
        return "created" if self.creates % 3 else "exists"


class Forgetting(ScriptedClient):
    """Shows nothing of what was created."""

    def read(self, key):
        return None


@pytest.mark.parametrize("kind", [Ignoring, BothWin])
def test_a_store_that_does_not_create_exclusively_is_refused_with_that_reason(kind):
    client = kind()
    with pytest.raises(UnsupportedQueryError, match="If-None-Match"):
        probe(RemoteStore(client))
    assert not client.contents, "the test leaves nothing behind"
    found = check(lambda: RemoteStore(client), creators=3, rounds=3)
    assert not found.kept
    assert not found.verdicts[0].kept
    assert not client.contents


def test_a_store_that_shows_nothing_of_what_was_created_is_refused():
    with pytest.raises((UnsupportedQueryError, CommitLogError)):
        probe(RemoteStore(Forgetting()))


@pytest.mark.parametrize("script", [(), ("lost",), ("409",), ("dropped", "409", "lost")])
def test_a_good_store_passes_also_where_answers_are_lost(script):
    client = ScriptedClient(*script)
    probe(RemoteStore(client))
    assert not client.contents
    found = check(lambda: RemoteStore(client), creators=4, rounds=5)
    assert found.kept, found.verdicts
    assert found.latency_ms["create"]["p50"] >= 0
    assert not client.contents


# --- locations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "default", "url"),
    [
        ("s3a://bucket/a/b/", "file:///", "s3a://bucket/a/b"),
        ("s3a://bucket//a/./b", "file:///", "s3a://bucket/a/b"),
        ("s3a://bucket", "file:///", "s3a://bucket"),
        ("/a/b", "hdfs://nn:8020", "hdfs://nn:8020/a/b"),
        ("hdfs:///a/b", "hdfs://nn:8020", "hdfs://nn:8020/a/b"),
        ("s3a://bucket/50%25", "file:///", "s3a://bucket/50%25"),
        (
            "abfss://c@acc.dfs.core.windows.net/x",
            "file:///",
            "abfss://c@acc.dfs.core.windows.net/x",
        ),
    ],
)
def test_a_remote_place_is_the_same_however_it_is_written(text, default, url):
    assert not is_local(text, default)
    assert remote_url(text, default, what="The checkpoint") == url


@pytest.mark.parametrize(
    "text",
    [
        "s3a://key:secret@bucket/a",
        "s3a://key@bucket/a",
        "hdfs://user:pass@host/a",
        "s3a://bucket/a?versionId=3",
        "s3a://bucket/a#b",
        "s3a:///a",
    ],
)
def test_a_remote_place_with_a_password_or_without_a_bucket_is_refused_and_no_secret_shown(text):
    with pytest.raises(OptionError) as refused:
        remote_url(text, what="The checkpoint")
    assert "secret" not in str(refused.value)
    assert "pass@" not in str(refused.value)


@pytest.mark.parametrize("text", ["/a", "file:/a", "file:///a", "a/b:c"])
def test_local_places_are_local(text):
    assert is_local(text)


def test_two_clients_of_one_store_share_a_log():
    """One driver with each: the same keys, the same bytes."""
    client = ScriptedClient()
    first, second = RemoteStore(client, "onceforall"), RemoteStore(client, "onceforall")
    log, generation, _ = start(first, keep_ends=True)
    log.append(generation, commit(0))
    _, newer, history = start(second, keep_ends=True)
    assert newer == generation + 1
    assert history.decided.commit == commit(0)
    assert isinstance(first.create("chains/00000000/00000000.json", b"x"), AlreadyExists)
    assert open_log(first, keep_ends=True).is_sealed(generation)
