"""The partitions that the sink chooses itself: those of librdkafka and Java, and in an order
that keeps each partition's."""

import ctypes

import confluent_kafka as ck
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from hypothesis import given, settings
from hypothesis import strategies as st

from onceforall.errors import AttemptFailedError, RefusedRecordError
from onceforall.sinks.kafka.task.partitioning import (
    LONG_KEY,
    NO_KEY,
    UNASSIGNED,
    PartitionRules,
    Partitions,
    key_hashes,
    order_of,
)
from support.topics import delete_topic

LARGEST = 2**31 - 1
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
OURS = PartitionRules(keyed=True, keyless=True, refresh_s=300)
THREE = Partitions(3, (0, 1, 2), 0)


JAVAS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""Out of Apache Kafka's own test of its hash, ``UtilsTest.testMurmur2``."""


def small(rows):
    return np.full(rows, 100, np.uint64)


def librdkafkas(key, count):
    function = ctypes.CDLL(ck.cimpl.__file__).rd_kafka_msg_partitioner_murmur2
    function.restype = ctypes.c_int32
    function.argtypes = (
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_void_p,
    )
    return function(None, key, len(key), count, None, None)


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=70)), max_size=40),
    st.integers(0, 5),
    st.integers(0, 5),
)
@settings(max_examples=300)
def test_a_key_gets_the_partition_that_librdkafka_gives_it(keys, front, behind):
    column = pa.array([b"before"] * front + keys + [b"after"] * behind, pa.binary()).slice(
        front, len(keys)
    )
    hashes = key_hashes(column).tolist()
    assert len(hashes) == len(keys)
    for key, found in zip(keys, hashes, strict=True):
        if key is None:
            assert found == NO_KEY
        else:
            assert (found % LARGEST, found % 7) == (librdkafkas(key, LARGEST), librdkafkas(key, 7))


def test_the_hash_is_javas():
    assert key_hashes(pa.array(list(JAVAS))).tolist() == [
        value & 0x7FFFFFFF for value in JAVAS.values()
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_all_types_of_a_key_are_hashed(kind):
    keys = ["", "a", "abcd", "Zürich", "x" * 1000]
    assert key_hashes(pa.array(keys, kind)).tolist() == [
        key_hashes(pa.array([k.encode()]))[0] for k in keys
    ]
    assert key_hashes(pa.array(keys, kind))[3] % 7 == librdkafkas(keys[3].encode(), 7)


def test_keys_of_nothing_at_all_are_hashed():
    assert key_hashes(pa.array([], pa.binary())).tolist() == []
    assert key_hashes(pa.array([None, None], pa.binary())).tolist() == [NO_KEY, NO_KEY]
    assert key_hashes(pa.array([b""], pa.binary())) % LARGEST == [librdkafkas(b"", LARGEST)]


def test_a_key_that_is_too_long_to_be_worth_it_is_left_to_librdkafka():
    column = pa.array([b"k" * 1024, b"k" * 1025])
    hashes = key_hashes(column)
    assert hashes.tolist() == [key_hashes(column[:1])[0], LONG_KEY]
    assert OURS.place(None, hashes, small(2), THREE, 0).tolist() == [
        librdkafkas(b"k" * 1024, 3),
        UNASSIGNED,
    ]


def test_a_row_that_names_its_partition_gets_it_and_the_others_that_of_their_key():
    hashes = key_hashes(pa.array([b"a", b"b", None]))
    given = np.array([2, UNASSIGNED, 1], np.int32)
    assert OURS.place(given, hashes, small(3), THREE, 0).tolist() == [2, librdkafkas(b"b", 3), 1]


def test_records_without_a_key_go_to_one_partition_with_a_leader_per_slice():
    topic = Partitions(4, (1, 3), 0)
    placed = [OURS.place(None, None, small(5), topic, turn).tolist() for turn in range(4)]
    assert placed == [[1] * 5, [3] * 5, [1] * 5, [3] * 5]
    nulls = key_hashes(pa.array([None, None], pa.binary()))
    assert OURS.place(None, nulls, small(2), topic, 1).tolist() == [3, 3]


def test_large_records_without_a_key_go_to_the_next_partition_after_a_mebibyte():
    sizes = np.full(10, 400_000, np.uint64)
    assert OURS.place(None, None, sizes, THREE, 2).tolist() == [2, 2, 0, 0, 0, 1, 1, 2, 2, 2]
    mixed = key_hashes(pa.array([b"a"] + [None] * 9))
    assert OURS.place(None, mixed, sizes, THREE, 2).tolist() == [
        librdkafkas(b"a", 3),
        2,
        0,
        0,
        0,
        1,
        1,
        2,
        2,
        2,
    ]


@pytest.mark.parametrize("led", [(1, 3), (2,), ()])
def test_a_key_keeps_its_partition_while_others_have_no_leader(led):
    keys = [f"k{number}".encode() for number in range(40)]
    placed = OURS.place(None, key_hashes(pa.array(keys)), small(40), Partitions(4, led, 0), 0)
    assert placed.tolist() == [librdkafkas(key, 4) for key in keys]


def test_where_no_partition_has_a_leader_librdkafka_waits_for_one():
    assert OURS.place(None, None, small(2), Partitions(2, (), 0), 0).tolist() == [UNASSIGNED] * 2


def test_another_partitioner_is_left_to_librdkafka():
    rules = PartitionRules.of({"partitioner": "consistent"})
    assert rules.place(None, None, small(3), THREE, 0) is None
    given = np.array([1, UNASSIGNED], np.int32)
    assert rules.place(given, None, small(2), THREE, 0) is given


def test_the_options_of_librdkafka_are_followed():
    assert PartitionRules.of({}) == OURS
    assert PartitionRules.of({"partitioner": "murmur2_random"}) == OURS
    sticky = PartitionRules.of(
        {"sticky.partitioning.linger.ms": "50", "topic.metadata.refresh.interval.ms": "1500"}
    )
    assert (sticky.keyed, sticky.keyless, sticky.refresh_s) == (True, False, 1.5)
    assert PartitionRules.of({"topic.metadata.refresh.interval.ms": -1}).refresh_s == float("inf")


@given(st.lists(st.integers(0, 40_000), max_size=200))
def test_the_records_of_a_partition_follow_one_another_in_their_own_order(placed):
    placed = np.array(placed, np.int32)
    order = order_of(placed)
    order = np.arange(len(placed)) if order is None else order
    assert [(placed[i], i) for i in order] == sorted((p, i) for i, p in enumerate(placed))


def test_records_stay_as_they_are_while_librdkafka_has_to_choose_for_one():
    assert order_of(np.array([2, UNASSIGNED, 1], np.int32)) is None


@pytest.fixture
def all_of(until, committed):
    """Return a topic's messages when there are so many: one partition may show them before
    another does."""

    def read(name, count):
        found = until(lambda: len(seen := committed(name)) >= count and seen)
        assert len(found) == count
        return found

    return read


@pytest.fixture
def write(query, batch_of):
    """Write columns in one committed transaction; the producer may live on to the next."""

    def run(q, values, batch=1, **columns):
        transaction = q.sink.begin_transaction(q.attempt(batch))
        q.sink.invoke(transaction, batch_of(values, **columns))
        report = q.commit(q.sink.pre_commit(transaction))
        q.reusable = tuple({**c, "batch": batch} for c in report.completed)
        return transaction.producer

    return run


@pytest.mark.kafka
@pytest.mark.parametrize("more", ["", "headers", "timestamp"])
def test_each_key_keeps_its_order_whatever_else_a_row_has(query, write, topic, all_of, more):
    rows = 5_000
    keys = [b"k%d" % (i % 97) for i in range(rows)]
    columns = {
        "headers": pa.array([[{"key": "n", "value": b"%d" % i}] for i in range(rows)], HEADERS),
        "timestamp": pa.array(range(1, rows + 1), pa.int64()),
    }
    name = topic(partitions=5)
    write(
        query(name),
        [str(i) for i in range(rows)],
        key=pa.array(keys),
        **({more: columns[more]} if more else {}),
    )
    found = all_of(name, rows)
    by_partition = {}
    for message in found:
        number = int(message.value())
        assert message.key() == keys[number]
        assert message.partition() == librdkafkas(keys[number], 5)
        if more == "headers":
            assert message.headers() == [("n", b"%d" % number)]
        if more == "timestamp":
            assert message.timestamp()[1] == number + 1
        by_partition.setdefault(message.partition(), []).append((message.offset(), number))
    assert len(by_partition) == 5
    for seen in by_partition.values():
        numbers = [number for _, number in sorted(seen)]
        assert numbers == sorted(numbers)


@pytest.mark.kafka
def test_rows_of_several_topics_go_to_the_partitions_of_each(query, write, topic, all_of):
    one, five = topic(), topic(partitions=5)
    keys = [b"k%d" % i for i in range(200)]
    topics = pa.array([(one, five)[i % 2] for i in range(200)])
    write(query(None), [str(i) for i in range(200)], key=pa.array(keys), topic=topics)
    all_of(one, 100)
    found = all_of(five, 100)
    assert sorted(m.key() for m in found) == sorted(keys[1::2])
    assert all(m.partition() == librdkafkas(m.key(), 5) for m in found)
    assert len({m.partition() for m in found}) == 5


@pytest.mark.kafka
def test_records_without_a_key_reach_all_partitions_in_time(query, write, topic, all_of):
    name = topic(partitions=3)
    write(query(name), [str(i) for i in range(30_000)])
    found = all_of(name, 30_000)
    assert {message.partition() for message in found} == {0, 1, 2}


@pytest.mark.kafka
@pytest.mark.parametrize("refresh_ms", [0, 300_000])
def test_partitions_that_are_added_are_found_by_a_producer_that_lives_on(
    query, write, topic, until, all_of, broker, refresh_ms
):
    name = topic(partitions=1)
    q = query(name, options={"topic.metadata.refresh.interval.ms": refresh_ms})
    keys = pa.array([b"%d" % i for i in range(100)])
    producer = write(q, ["before"] * 100, 1, key=keys)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(name, 4)])[name].result(30)
    until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 4)
    assert write(q, ["after"] * 100, 2, key=keys) is producer
    found = [m for m in all_of(name, 200) if m.value() == b"after"]
    assert {m.partition() for m in found} == ({0, 1, 2, 3} if refresh_ms == 0 else {0})


@pytest.mark.kafka
def test_a_topic_that_was_made_anew_with_fewer_partitions_fails_the_attempt_and_not_the_query(
    query, write, topic, until, broker, batch_of
):
    name = topic(partitions=4)
    q = query(name)
    keys = pa.array([b"%d" % i for i in range(100)])
    producer = write(q, ["before"] * 100, 1, key=keys)
    delete_topic(broker.bootstrap_servers, name)
    broker.create_topic(name)
    # librdkafka has heard of it.
    until(lambda: producer.client.partitions(name, 10)[0].count == 1)
    transaction = q.sink.begin_transaction(q.attempt(2))
    assert transaction.producer is producer
    with pytest.raises(AttemptFailedError, match="fewer partitions") as failure:
        q.sink.invoke(transaction, batch_of(["after"] * 100, key=keys))
    assert not isinstance(failure.value, RefusedRecordError)
    q.sink.discard(transaction)
    assert write(q, ["after"] * 100, 2, key=keys) is not producer
