"""The sink's promises on the oldest supported broker and on the newest, and the refusal of what
is older."""

from __future__ import annotations

import os

import pytest

from onceforall.embedded import EmbeddedKafka
from onceforall.errors import OptionError, SinkCheckError
from onceforall.sinks.kafka.driver import broker_client
from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from onceforall.sinks.kafka.task import librdkafka

from .conftest import Query, read, wait_until
from .test_transactions import prepare_in_a_process_that_is_killed

pytestmark = pytest.mark.kafka


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=pytest.mark.long) for each in ("3.9", "4.3")],
)
def versioned(request):
    with EmbeddedKafka(version=request.param) as broker:
        yield broker


@pytest.fixture
def q(versioned, request):
    name = f"t-{os.urandom(6).hex()}"
    versioned.create_topic(name, partitions=2)
    made = Query(versioned.bootstrap_servers, name)
    made.topic = name
    yield made
    made.sink.close()


def sees(q, broker, values):
    expected = sorted(value.encode() for value in values)
    wait_until(
        lambda: (
            sorted(m.value() for m in read(broker.bootstrap_servers, q.topic, "read_committed"))
            == expected
        )
    )


def test_the_check_passes(q):
    q.check()


def test_a_transaction_is_committed_and_committed_again(q, versioned):
    committable = q.prepare(["a", "b", "c"])
    assert read(versioned.bootstrap_servers, q.topic, "read_committed") == []
    assert q.commit(committable).completed == (committable,)
    again = q.commit(committable)
    assert again.completed + again.retired == (committable,)
    sees(q, versioned, ["a", "b", "c"])


def test_a_transaction_is_committed_after_its_producers_death(q, versioned):
    committable = prepare_in_a_process_that_is_killed(q, 500)
    assert q.commit(committable).completed == (committable,)
    sees(q, versioned, [str(i) for i in range(500)])


def test_a_live_producer_is_used_again_for_the_next_batch(q, versioned):
    first = q.prepare(["one"], batch=1)
    assert q.commit(first).completed == (first,)
    second = q.prepare(["two"], batch=2, reusable=[{**first, "batch": 1}])
    identity = ("name", "producer_id", "producer_epoch")
    assert [second[key] for key in identity] == [first[key] for key in identity]
    assert q.commit(second).completed == (second,)
    sees(q, versioned, ["one", "two"])


def test_a_fenced_transaction_is_reported_as_lost_and_never_seen(q, versioned):
    (committable,) = q.sink.confirm([q.prepare(["gone"])])
    q.sink.abort([committable])
    assert [lost.committable for lost in q.commit(committable).lost] == [committable]
    q.commit(q.prepare(["after"], slot=1))
    sees(q, versioned, ["after"])


def test_a_sweep_ends_what_nobody_decided(q, versioned):
    q.prepare(["undecided"], slot=0)
    kept = q.prepare(["kept"], slot=0, generation=2)
    assert q.sink.recover(q.sweep(2)) == 1
    assert q.sink.recover(q.sweep(2)) == 0
    q.commit(kept)
    sees(q, versioned, ["kept"])


def test_a_broker_below_the_oldest_release_is_refused_with_its_address_and_release(
    q, versioned, monkeypatch
):
    """No older broker is pinned: the bar is raised above the one that runs instead."""
    monkeypatch.setattr(broker_client, "_FETCH_OF_OLDEST_RELEASE", 99)
    with pytest.raises(
        SinkCheckError,
        match=rf"{versioned.bootstrap_servers} is of release \d\.\d or so.*3\.9 and later.*Upgrade",
    ):
        q.check()


def test_the_bar_lies_where_the_oldest_release_does(versioned):
    """Release 3.9 takes version 17 of Fetch and none above; the ones before took 16 (seen on
    3.8.1)."""
    from kafka.protocol.metadata import ApiVersionsRequest

    client = CoordinatorClient(versioned.bootstrap_servers)
    try:
        keys = client.ask_any(lambda: ApiVersionsRequest(version=0)).api_keys
    finally:
        client.close()
    newest = {key.api_key: key.max_version for key in keys}[broker_client._FETCH_KEY]
    assert newest >= broker_client._FETCH_OF_OLDEST_RELEASE
    if "3.9" in versioned._version:
        assert newest == broker_client._FETCH_OF_OLDEST_RELEASE


@pytest.mark.parametrize(
    ("hidden", "version", "reason"),
    [(True, 2, "hides librdkafka's C interface"), (False, 3, "Install a confluent-kafka 2")],
)
def test_a_client_library_that_the_sink_cannot_write_through_is_refused_at_the_check(
    query, topic, monkeypatch, hidden, version, reason
):
    q = query(topic())
    if hidden:
        monkeypatch.setitem(librdkafka._FUNCTIONS, "no_such_function", (None, ()))
    monkeypatch.setattr(librdkafka, "_MAJOR_VERSION", version)
    librdkafka.load.cache_clear()
    try:
        with pytest.raises(OptionError, match=reason):
            q.check()
    finally:
        librdkafka.load.cache_clear()
