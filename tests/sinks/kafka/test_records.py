from __future__ import annotations

import ctypes
import random
import time

import confluent_kafka as ck
import pyarrow as pa
import pytest

from onceforall.embedded import EmbeddedKafka
from onceforall.errors import AttemptFailedError, RefusedRecordError, SchemaError
from onceforall.sinks.kafka.task.records import Bytes, Headers
from support.topics import delete_topic

from .conftest import Query, rows

pytestmark = pytest.mark.kafka

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def write_and_prepare(q, transaction, rows):
    q.sink.invoke(transaction, rows)
    return q.sink.pre_commit(transaction)


@pytest.fixture
def write(query, batch_of):
    """Write columns in one committed transaction."""

    def run(name, values, *, servers=None, sink=None, **columns):
        q = query(name, servers=servers, **(sink or {}))
        transaction = q.sink.begin_transaction(q.attempt())
        try:
            q.sink.invoke(transaction, batch_of(values, **columns))
            q.commit(q.sink.pre_commit(transaction))
        except BaseException:
            q.sink.discard(transaction)
            raise

    return run


def test_key_value_tombstone_and_null_key_arrive_as_they_were(write, topic, until, committed):
    name = topic()
    keys = pa.array([b"k1", None, b"k3", b""], pa.binary())
    write(name, ["v1", "v2", None, ""], key=keys)
    messages = until(lambda: committed(name))
    assert [(m.key(), m.value()) for m in messages] == [
        (b"k1", b"v1"),
        (None, b"v2"),
        (b"k3", None),
        (b"", b""),
    ]


def test_headers_partition_and_timestamp_arrive_as_they_were(write, topic, until, committed):
    name = topic(partitions=3)
    headers = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, []], HEADERS
    )
    write(
        name,
        ["x", "y", "z"],
        headers=headers,
        partition=pa.array([2, 0, None], pa.int32()),
        timestamp=pa.array([1_700_000_000_123, None, 5], pa.int64()),
        key=pa.array([b"k", b"k", b"k"]),
    )
    found = {m.value(): m for m in until(lambda: committed(name))}
    assert found[b"x"].headers() == [("a", b"1"), ("a", None)]
    assert found[b"y"].headers() is None
    assert found[b"z"].headers() is None
    assert [found[v].partition() for v in (b"x", b"y")] == [2, 0]
    assert found[b"x"].timestamp() == (ck.TIMESTAMP_CREATE_TIME, 1_700_000_000_123)
    assert abs(found[b"y"].timestamp()[1] - time.time() * 1000) < 60_000
    assert found[b"z"].timestamp()[1] == 5


def test_keys_go_to_the_partitions_that_the_java_producer_chooses(write, topic, until, committed):
    from kafka.partitioner.default import murmur2

    name = topic(partitions=7)
    keys = [b"key-%d" % i for i in range(200)] + [b"", "Zürich".encode(), bytes(range(256))]
    write(name, [str(i) for i in range(len(keys))], key=pa.array(keys, pa.binary()))
    messages = until(lambda: committed(name))
    assert len(messages) == len(keys)
    for message in messages:
        assert message.partition() == (murmur2(message.key() or b"") & 0x7FFFFFFF) % 7


def test_the_topic_column_sends_each_row_to_its_topic(write, topic, sees):
    one, two = topic(), topic()
    write(None, ["a", "b", "c"], topic=pa.array([one, two, one]))
    sees(one, ["a", "c"])
    sees(two, ["b"])


def test_the_topic_option_wins_over_the_column(write, topic, sees):
    one, two = topic(), topic()
    write(one, ["a"], topic=pa.array([two]))
    sees(one, ["a"])
    sees(two, [])


def test_of_a_slice_no_headers_are_looked_at_but_its_own():
    """A large batch of Spark's is sent in slices: the time went with the square of its rows."""
    column = pa.array([[{"key": f"k{n}", "value": b"v"}] * (n % 3) for n in range(99)], HEADERS)
    few = Headers(column.slice(40, 3))
    assert few.counts.tolist() == [1, 2, 0]
    assert few.first.tolist() == [0, 1, 3]
    assert len(few.names) == len(few.values.sizes) == 3
    # Without rows, Arrow lets a column have no offsets, and what stands there is another's memory.
    others = pa.array([-7, -7], pa.int32()).buffers()[1]
    bare = pa.ListArray.from_buffers(HEADERS, 0, [None, others], children=[column.values[:0]])
    for none in (Headers(column.slice(0, 0)), Headers(bare)):
        assert len(none.names) == len(none.counts) == 0


def test_headers_of_a_slice_are_those_of_its_rows(query, topic, until, committed, batch_of):
    name = topic()
    q = query(name)
    headers = pa.array(
        [
            [{"key": "a", "value": b"1"}],
            None,
            [{"key": "b", "value": b"2"}, {"key": "c", "value": b"3"}],
            [],
        ],
        HEADERS,
    )
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["0", "1", "2", "3"], headers=headers).slice(1, 2))
    q.commit(q.sink.pre_commit(transaction))
    messages = until(lambda: committed(name))
    assert [(m.value(), m.headers()) for m in messages] == [
        (b"1", None),
        (b"2", [("b", b"2"), ("c", b"3")]),
    ]


def test_a_row_without_topic_is_refused(write, topic, sees):
    name = topic()
    with pytest.raises(RefusedRecordError, match="topic"):
        write(None, ["a", "b"], topic=pa.array([name, None]))
    sees(name, [])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a\0b", "ü", "a\n", "x" * 250, "x" * 513, "x" * 100_000]
)
def test_a_name_that_no_topic_can_have_is_refused(write, topic, name):
    """librdkafka has no handle for a long one, and would follow a null pointer to its end; of one
    with a zero character it would take what stands before that."""
    with pytest.raises(
        RefusedRecordError, match="can't be written: Kafka's names.*Correct"
    ) as told:
        write(None, ["x", "y"], topic=pa.array([topic(), name]))
    assert len(str(told.value)) < 400


def test_the_longest_name_that_a_topic_can_have_is_looked_for(write, topic):
    with pytest.raises(RefusedRecordError, match="'x{249}' does not exist"):
        write(None, ["x"], topic=pa.array(["x" * 249]))


def test_an_unknown_topic_is_named_before_anything_goes_to_it(write, topic, sees):
    name = topic()
    with pytest.raises(RefusedRecordError, match="'misspelt'"):
        write(None, ["a", "b"], topic=pa.array([name, "misspelt"]))
    sees(name, [])


@pytest.mark.parametrize("partition", [2, -1, 2**31 - 1])
def test_an_unknown_partition_is_named(write, topic, partition):
    with pytest.raises(RefusedRecordError, match=rf"partition {partition} .* 0 to 1"):
        write(topic(partitions=2), ["a"], partition=pa.array([partition], pa.int32()))


@pytest.mark.parametrize("timestamp", [0, -1])
def test_a_time_that_kafka_cannot_hold_is_refused(write, topic, timestamp):
    with pytest.raises(RefusedRecordError, match="1970"):
        write(topic(), ["a"], timestamp=pa.array([timestamp], pa.int64()))


@pytest.mark.parametrize("header", [{"key": None, "value": b"x"}, None])
def test_a_header_without_key_is_refused(write, topic, header):
    with pytest.raises(RefusedRecordError, match="header"):
        write(topic(), ["a"], headers=pa.array([[header]], HEADERS))


def test_a_record_above_the_clients_limit_is_named_with_size_and_limit(write, topic):
    name = topic()
    with pytest.raises(
        RefusedRecordError,
        match=rf"5000 bytes to topic '{name}' .*message\.max\.bytes of the sink is 2000",
    ):
        write(name, ["small", "x" * 5000], sink={"options": {"message.max.bytes": 2000}})


def test_a_record_above_the_topics_limit_is_named_with_size_and_limit(query, topic, batch_of):
    name = topic(config={"max.message.bytes": "20000"})
    q = query(name, options={"message.timeout.ms": 3000})
    q.check()
    transaction = q.sink.begin_transaction(q.attempt())
    with pytest.raises(
        RefusedRecordError, match=r"50000 bytes .*max\.message\.bytes of the topic is 20000"
    ):
        write_and_prepare(q, transaction, batch_of(["a", "x" * 50_000, "b"]))
    q.sink.discard(transaction)


def test_many_small_records_fit_into_a_topic_with_a_small_limit(query, topic, until, committed):
    name = topic(config={"max.message.bytes": "20000"})
    q = query(name)
    q.check()
    q.commit(q.prepare([f"{i:0100d}" for i in range(2000)]))
    until(lambda: len(committed(name)) == 2000)


def test_many_small_records_to_a_topic_that_a_column_names_fit_into_what_all_brokers_take():
    with EmbeddedKafka(config={"message.max.bytes": "20000"}) as strict:
        strict.create_topic("t")
        q = Query(strict.bootstrap_servers, None)
        q.check()
        values = [f"{i:0100d}" for i in range(2000)]
        transaction = q.sink.begin_transaction(q.attempt())
        write_and_prepare(q, transaction, rows(values, topic=pa.array(["t"] * len(values))))
        q.sink.close()


def test_a_batch_above_the_limit_of_a_topic_that_a_column_names_is_not_held_for_a_large_record(
    query, topic, batch_of
):
    """Once the record was said to be above the sink's limit, which it was far below."""
    name = topic(config={"max.message.bytes": "20000"})
    q = query(None)
    q.check()
    transaction = q.sink.begin_transaction(q.attempt())
    values = [f"{i:0100d}" for i in range(2000)]
    with pytest.raises(RefusedRecordError, match=r"has 100 bytes.* Give the sink a batch\.size"):
        write_and_prepare(q, transaction, batch_of(values, topic=pa.array([name] * len(values))))
    q.sink.discard(transaction)


def test_a_topic_whose_limit_was_lowered_under_the_query_is_told_from_a_large_record(
    query, topic, batch_of
):
    q = query(topic(config={"max.message.bytes": "20000"}))
    q.check()
    q.sink._topic_max_bytes = q.sink._batch_max_bytes = 900_000
    transaction = q.sink.begin_transaction(q.attempt())
    with pytest.raises(RefusedRecordError, match="was 900000 when the query started"):
        write_and_prepare(q, transaction, batch_of([f"{i:0100d}" for i in range(2000)]))
    q.sink.discard(transaction)


def test_a_full_queue_loses_nothing_and_keeps_the_order(write, topic, until, committed):
    name = topic()
    values = [f"{i:05d}" for i in range(20_000)]
    write(name, values, sink={"options": {"queue.buffering.max.messages": 100, "linger.ms": 0}})
    messages = until(lambda: committed(name))
    assert [m.value().decode() for m in messages] == values


def test_several_arrow_batches_and_slices_are_written_in_order(
    query, topic, until, committed, batch_of
):
    name = topic()
    q = query(name)
    transaction = q.sink.begin_transaction(q.attempt())
    whole = batch_of(
        [f"{i:04d}" for i in range(3000)],
        key=pa.array([None if i % 3 else b"%d" % i for i in range(3000)]),
    )
    for start in range(0, 3000, 700):
        q.sink.invoke(transaction, whole.slice(start, 700))
    q.sink.invoke(transaction, whole.slice(0, 0))
    committable = q.sink.pre_commit(transaction)
    assert committable["records"] == 3000
    q.commit(committable)
    messages = until(lambda: committed(name))
    assert [(m.key(), m.value()) for m in messages] == [
        (None if i % 3 else b"%d" % i, b"%04d" % i) for i in range(3000)
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.sample(3)
def test_random_rows_arrive_as_they_were_in_order_within_their_partition(
    query, topic, until, committed, seed
):
    rng = random.Random(seed)
    names = [topic(partitions=3), topic(partitions=2)]
    count, each = rng.randrange(1, 400), seed % 2 == 0

    def maybe(make, share=0.2):
        return [None if rng.random() < share else make() for _ in range(count)]

    def blob(most):
        return rng.randbytes(rng.randrange(most))

    rows = {
        "value": maybe(lambda: blob(300)),
        "key": maybe(lambda: blob(9)),
        "topic": [rng.choice(names) for _ in range(count)],
        "partition": maybe(lambda: rng.randrange(2), 0.5),
    }
    types = {
        "value": pa.large_binary() if seed % 3 else pa.binary(),
        "key": pa.binary(),
        "partition": pa.int32(),
    }
    if each:
        header = [
            {"key": rng.choice(["a", "ü", ""]), "value": None if rng.random() < 0.3 else blob(5)}
            for _ in range(3 * count)
        ]
        rows |= {
            "headers": maybe(lambda: [header.pop() for _ in range(rng.randrange(4))]),
            "timestamp": maybe(lambda: rng.randrange(1, 2**40)),
        }
        types |= {"headers": HEADERS, "timestamp": pa.int64()}
    batch = pa.RecordBatch.from_pydict(
        {name: pa.array(column, types.get(name)) for name, column in rows.items()}
    )
    q = query(None, options={"queue.buffering.max.messages": rng.choice([50, 100_000])})
    transaction = q.sink.begin_transaction(q.attempt())
    for start in range(0, count, 90):
        q.sink.invoke(transaction, batch.slice(start, 90))
    q.commit(q.sink.pre_commit(transaction))
    asked = list(zip(*(rows.get(name, [None] * count) for name in FIELDS), strict=True))
    found = []
    for name in names:
        wanted = sum(topic == name for topic in rows["topic"])
        found += until(
            lambda name=name, wanted=wanted: len(m := committed(name)) == wanted and (m or [None]),
            30,
        )
    found = [message for message in found if message is not None]
    assert len(found) == count > 0
    for topic_name in names:
        for partition in range(3):
            got = [m for m in found if (m.topic(), m.partition()) == (topic_name, partition)]
            got.sort(key=lambda m: m.offset())
            here = iter(asked)
            for message in got:
                # The rows that went here, in their order, with others between them that went
                # elsewhere.
                assert any(_is(message, row) for row in here), (message.value(), message.key())


FIELDS = ("value", "key", "topic", "partition", "headers", "timestamp")


def _is(message, row):
    value, key, topic, partition, headers, timestamp = row
    pairs = None if not headers else [(header["key"], header["value"]) for header in headers]
    return (
        (message.value(), message.key(), message.topic(), message.headers())
        == (value, key, topic, pairs)
        and partition in {None, message.partition()}
        and timestamp in {None, message.timestamp()[1]}
    )


def test_a_header_whose_key_librdkafka_would_cut_is_refused(write, topic):
    headers = pa.array([[{"key": "a\0b", "value": b"1"}]], HEADERS)
    with pytest.raises(RefusedRecordError, match="zero character"):
        write(topic(), ["x"], headers=headers)


def seen_at(found):
    return [
        ctypes.string_at(int(at), int(size)) if at else None
        for at, size in zip(found.addresses, found.sizes, strict=True)
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_columns_are_pointed_into_whatever_their_arrow_type(kind):
    values = [b"a", None, b"", "ü".encode(), b"last"]
    array = pa.array(values, pa.binary()).cast(kind)
    assert seen_at(Bytes.of(array)) == values
    assert seen_at(Bytes.of(array[1:4])) == values[1:4]
    assert seen_at(Bytes.of(array[:0])) == []
    assert seen_at(Bytes.of(pa.array([None, None], kind))) == [None, None]
    assert seen_at(Bytes.of(pa.array(["", ""], pa.string()).cast(kind))) == [b"", b""]


def test_a_column_of_another_type_is_refused():
    with pytest.raises(SchemaError, match="int64"):
        Bytes.of(pa.array([1]))


@pytest.mark.parametrize(
    ("config", "columns", "says"),
    [
        (
            {"cleanup.policy": "compact"},
            {"key": pa.nulls(1, pa.string())},
            "without a key.*compacted",
        ),
        (
            {"message.timestamp.before.max.ms": "1000"},
            {"timestamp": pa.array([10**12], pa.timestamp("us", "UTC"))},
            "message.timestamp.before.max.ms",
        ),
    ],
    ids=["no key in a compacted topic", "an old timestamp"],
)
def test_a_record_that_no_broker_takes_is_refused_with_the_reason(
    query, topic, batch_of, config, columns, says
):
    q = query(topic(config=config))
    transaction = q.sink.begin_transaction(q.attempt())
    with pytest.raises(RefusedRecordError, match=says):
        write_and_prepare(q, transaction, batch_of(["a"], **columns))
    q.sink.discard(transaction)


def test_a_topic_that_is_deleted_in_mid_transaction_fails_the_attempt(
    query, topic, broker, batch_of
):
    name = topic()
    q = query(name, options={"message.timeout.ms": 3000})
    transaction = q.sink.begin_transaction(q.attempt())
    q.sink.invoke(transaction, batch_of(["a"]))
    transaction.flush()
    delete_topic(broker.bootstrap_servers, name)
    with pytest.raises(AttemptFailedError, match=name):
        write_and_prepare(q, transaction, batch_of(["b"]))
    q.sink.discard(transaction)
