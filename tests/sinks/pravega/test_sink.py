"""The Pravega sink on a real server: what becomes of transactions, and what is refused."""

import copy
import itertools
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import onceforall as ofa
from onceforall.common.pravega import answers, segments
from onceforall.common.pravega.answers import NoAnswerError
from onceforall.common.pravega.controller import Controller, Ping, State
from onceforall.common.pravega.messages import message
from onceforall.common.pravega.names import StreamName
from onceforall.embedded import EmbeddedPravega
from onceforall.protocol.entries import Target
from onceforall.protocol.identity import judge
from onceforall.protocol.sweeping import Sweep
from onceforall.sink import TaskAttempt
from onceforall.sinks.pravega import PravegaSink, target
from onceforall.sinks.pravega.columns import pravega_columns
from onceforall.sinks.pravega.target import FORGOTTEN_FROM
from support.pravega import EventStream
from support.waiting import until

pytestmark = pytest.mark.pravega
QUERY = str(uuid.uuid4())


def rows(numbers, keys=None):
    columns = {"event": pa.array([None if n is None else b"%d" % n for n in numbers], pa.binary())}
    if keys is not None:
        columns["routingKey"] = pa.array(keys, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def schema_of(*columns):
    kinds = {"STRING": StringType(), "INT": IntegerType()}
    return StructType([StructField(name, kinds[kind]) for name, kind in map(str.split, columns)])


def attempt(slot=0, generation=1):
    return TaskAttempt(QUERY, "out", generation, 0, 0, slot, slot)


def sink_of(of, /, **more):
    sink = PravegaSink(**{**of.target, **more})
    sink.check(None)
    return sink


def prepared(sink, numbers, keys=None, slot=0):
    transaction = sink.begin_transaction(attempt(slot))
    sink.invoke(transaction, rows(numbers, keys))
    return sink.pre_commit(transaction)


def state(stream, committable):
    return stream.controller.state(stream.name, uuid.UUID(committable["txn"]))


def until_it_is(stream, committable, *states):
    until(lambda: state(stream, committable) in states, 30, f"one of {states}")


# --- transactions -------------------------------------------------------------------------------


def test_nothing_is_seen_before_the_commit_and_everything_after_it(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    one, two = prepared(sink, [1, 2, 3]), prepared(sink, [4], slot=1)
    assert stream.contents() == []
    confirmed = sink.confirm([one, two])
    assert stream.contents() == []
    report = sink.commit(None, confirmed)
    assert (list(report.completed), report.lost, report.in_doubt) == (confirmed, (), ())
    assert sorted(stream.contents()) == [b"1", b"2", b"3", b"4"]


def test_many_blocks_of_events_come_whole_and_in_the_order_of_their_key(events_stream):
    stream = events_stream(segments=3)
    sink = sink_of(stream)
    transaction = sink.begin_transaction(attempt())
    for first in range(0, 4000, 1000):
        numbers = range(first, first + 1000)
        events = pa.array([b"%d" % n + b"." * 1000 for n in numbers], pa.binary())
        keys = pa.array([f"k{n % 11}" for n in numbers])
        sink.invoke(transaction, pa.RecordBatch.from_pydict({"event": events, "routingKey": keys}))
    sink.commit(None, sink.confirm([sink.pre_commit(transaction)]))
    found = [int(content.rstrip(b".")) for content in stream.contents()]
    assert sorted(found) == list(range(4000))
    for key in range(11):
        of_key = [number for number in found if number % 11 == key]
        assert of_key == sorted(of_key)


def test_a_transaction_whose_stream_has_scaled_meanwhile_is_committed(events_stream):
    stream = events_stream(segments=1)
    sink = sink_of(stream)
    confirmed = sink.confirm([prepared(sink, [1, 2, 3])])
    stream.scale(3)
    assert list(sink.commit(None, confirmed).completed) == confirmed
    assert sorted(stream.contents()) == [b"1", b"2", b"3"]


def test_a_second_commit_adds_nothing_and_an_abort_behind_it_takes_nothing(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    confirmed = sink.confirm([prepared(sink, [1])])
    for _ in range(3):
        assert list(sink_of(stream).commit(None, confirmed).completed) == confirmed
        sink.abort(confirmed)
    assert stream.contents() == [b"1"]


def test_a_transaction_whose_lease_ran_out_before_the_decision_is_not_decided(events_stream):
    stream = events_stream()
    sink = sink_of(stream, lease_s=1)
    committable = prepared(sink, [1])
    until_it_is(stream, committable, State.ABORTED)
    with pytest.raises(ofa.AttemptFailedError, match="ABORTED.*raise lease_s"):
        sink.confirm([committable])


def test_a_transaction_whose_lease_ran_out_behind_the_decision_is_lost(events_stream):
    stream = events_stream()
    sink = sink_of(stream, lease_s=1)
    lost, kept = sink.confirm([prepared(sink, [1]), prepared(sink, [2], slot=1)])
    assert list(sink.commit(None, [kept]).completed) == [kept]
    until_it_is(stream, lost, State.ABORTED)
    report = sink.commit(None, [lost, kept])
    assert list(report.completed) == [kept]
    assert [each.committable for each in report.lost] == [lost]
    assert "lease" in report.lost[0].reason
    assert report.in_doubt == ()
    assert stream.contents() == [b"2"]


def test_confirm_lets_the_lease_begin_anew(events_stream):
    stream = events_stream()
    sink = sink_of(stream, lease_s=1)
    committable = prepared(sink, [1])
    sink_of(stream, lease_s=60).confirm([committable])
    other = prepared(sink, [2], slot=1)
    until_it_is(stream, other, State.ABORTED)
    assert state(stream, committable) is State.OPEN


def test_a_transaction_that_pravega_has_forgotten_is_in_doubt(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    (confirmed,) = sink.confirm([prepared(sink, [1])])
    forgotten = {**confirmed, "txn": str(uuid.UUID(int=2**62))}
    assert state(stream, forgotten) is State.UNKNOWN
    report = sink.commit(None, [forgotten, confirmed])
    assert [each.committable for each in report.in_doubt] == [forgotten]
    assert "transaction.ttl.hours" in report.in_doubt[0].reason
    assert (list(report.completed), report.lost) == ([confirmed], ())


def test_a_batch_of_another_pravega_is_in_doubt_and_nothing_here_is_committed(events_stream):
    """Transactions are counted from 1 in each cluster, so an id may be somebody else's."""
    stream = events_stream()
    sink = sink_of(stream)
    (confirmed,) = sink.confirm([prepared(sink, [1])])
    report = sink.commit(None, [{**confirmed, "target": "another"}])
    assert "Another Pravega" in report.in_doubt[0].reason
    assert state(stream, confirmed) is State.OPEN


def test_a_stream_that_was_made_again_has_another_identity(events_stream):
    stream = events_stream()
    sink = PravegaSink(**stream.target)
    assert sink.identity(None) is None
    sink.check(None)
    first = sink.identity(None)
    sink.check(None)
    assert sink.identity(None) == first == PravegaSink(**stream.target).identity(None)
    for suffix in ("", target.SUFFIX, target.OPEN_SUFFIX):
        stream.controller.delete_stream(type(stream.name)(stream.scope, stream.stream + suffix))
    assert sink.identity(None) is None
    stream.server.create_stream(stream.scope, stream.stream)
    sink.check(None)
    assert sink.identity(None) not in (None, first)


def test_a_stream_is_another_one_when_it_alone_was_made_again_and_only_then(events_stream):
    """The id beside it stays where it is."""
    stream = events_stream()
    sink = sink_of(stream)
    first = sink.identity(None)
    stream.put(20)
    stream.scale(4)
    stream.controller.truncate_stream(
        stream.name, {each.number: 0 for each in stream.controller.segments(stream.name)}
    )
    stream.scale(2)
    assert sink.identity(None) == first
    stream.seal()
    assert sink.identity(None) == first
    for _ in range(2):
        stream.make_again()
        sink.check(None)
        made = sink.identity(None)
        refusal = judge({"out": Target(first, 3)}, {"out": made})
        assert refusal is not None
        assert "first_segment" in refusal.message
        assert made["id"] == first["id"]
        first = made


def test_what_a_log_without_the_first_segment_knows_is_compared(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    found = sink.identity(None)
    assert judge({"out": Target({"id": found["id"]}, 3)}, {"out": found}) is None
    (confirmed,) = sink.confirm([prepared(sink, [1])])
    assert confirmed["identity"] == found
    old = {key: value for key, value in confirmed.items() if key != "first_segment"}
    assert list(sink.commit(None, [old]).completed) == [old]


def test_a_half_committed_batch_of_a_stream_that_was_made_again_is_in_doubt(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    confirmed = sink.confirm([prepared(sink, [1]), prepared(sink, [2], slot=1)])
    sink.commit(None, confirmed[:1])
    stream.make_again()
    report = sink_of(stream).commit(None, confirmed)
    assert (report.completed, report.lost) == ((), ())
    assert [each.committable for each in report.in_doubt] == confirmed
    assert "deleted and made again" in report.in_doubt[0].reason
    stream.controller.delete_stream(stream.name)
    report = sink.commit(None, confirmed)
    assert "it was deleted" in report.in_doubt[1].reason
    with pytest.raises(ofa.AttemptFailedError, match="was deleted while"):
        sink.confirm(confirmed)


def test_a_stream_that_is_sealed_is_named_as_such(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    confirmed = sink.confirm([prepared(sink, [1])])
    stream.seal()
    until_it_is(stream, confirmed[0], State.ABORTED)
    with pytest.raises(ofa.SinkCheckError, match="is sealed") as refused:
        sink.check(None)
    assert "lease" not in str(refused.value)
    with pytest.raises(ofa.AttemptFailedError, match="ABORTED.* is sealed"):
        sink.confirm(confirmed)
    (lost,) = sink.commit(None, confirmed).lost
    assert "sealed" in lost.reason
    assert "lease" not in lost.reason


def test_first_starts_at_the_same_moment_find_one_identity(events_stream):
    stream = events_stream()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: sink_of(stream).identity(None), range(8)))
    assert found == [found[0]] * 8


def test_a_stream_that_somebody_else_makes_is_there_though_the_own_request_has_no_answer():
    asked = []

    class Answering(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(getattr(self, details.method.split("/")[-1]))

        def checkStreamExists(self, request, context):  # noqa: N802  Pravega's name
            return message("Exists")(exists=len(asked) > 1).SerializeToString()

        def createStream(self, request, context):  # noqa: N802
            asked.append(request)
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "somebody else is at it")

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Answering()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        Controller(f"127.0.0.1:{port}").make_stream(StreamName("s", "t"))
        assert len(asked) == 2
        del asked[1:]
        # Without any time, the look for the stream may have no answer either.
        with pytest.raises(NoAnswerError, match="createStream|checkStreamExists"):
            Controller(f"127.0.0.1:{port}", deadline_s=0).make_stream(StreamName("s", "t"))
    finally:
        server.stop(None)


@pytest.mark.parametrize(("creating", "is_there"), [(3, True), (10**6, False)])
def test_a_stream_that_is_being_created_is_waited_for(creating, is_there):
    asked = itertools.count()

    class Answering(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(self.answer)

        def answer(self, request, context):
            if next(asked) < creating:
                context.abort(grpc.StatusCode.INTERNAL, "Stream: t State: CREATING")
            return message("Exists")(exists=True).SerializeToString()

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Answering()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        controller = Controller(f"127.0.0.1:{port}", deadline_s=0.5 if not is_there else 30)
        if is_there:
            assert controller.exists(StreamName("s", "t"))
        else:
            with pytest.raises(NoAnswerError, match="CREATING"):
                controller.exists(StreamName("s", "t"))
    finally:
        server.stop(None)


@pytest.mark.long
def test_a_frozen_server_is_unavailable_and_the_commit_is_done_behind_it(monkeypatch):
    monkeypatch.setattr("onceforall.common.pravega.controller._DEADLINE_S", 1.0)
    with EmbeddedPravega() as server:
        stream = EventStream(server, 1)
        sink = sink_of(stream)
        # The default was taken when the class was made.
        sink._controller = lambda: type(stream.controller)(server.address, 1.0)
        confirmed = sink.confirm([prepared(sink, [1])])
        server.freeze()
        with pytest.raises(ofa.SinkUnavailableError, match="address"):
            sink.commit(None, confirmed)
        server.thaw()
        assert list(sink.commit(None, confirmed).completed) == confirmed
        assert stream.contents() == [b"1"]


# --- what is left behind ------------------------------------------------------------------------


def test_what_is_given_up_is_aborted(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, rows([1]))
    (noted,) = stream.noted().still_open()
    sink.discard(transaction)
    assert state(stream, noted) in {State.ABORTING, State.ABORTED}
    sink.discard(transaction)


def test_a_sweep_aborts_what_nobody_decided_and_nothing_else(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    found = [prepared(sink, [number], slot=number) for number in range(3)]
    sweep = Sweep(QUERY, "out", generation=2, spared={found[1]["name"]})
    assert sink.recover(sweep) == 2
    assert sink.recover(sweep) == 0
    assert state(stream, found[1]) is State.OPEN
    assert {state(stream, found[0]), state(stream, found[2])} <= {State.ABORTING, State.ABORTED}


def test_what_has_ended_is_forgotten_up_to_what_is_open(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    ended = prepared(sink, [1])
    sink.abort([ended])
    until_it_is(stream, ended, State.ABORTED)
    noted = stream.noted()
    for number in range(FORGOTTEN_FROM):
        noted.note(f"n{number}", uuid.UUID(ended["txn"]))
    still = prepared(sink, [2], slot=1)
    noted.note("behind", uuid.UUID(ended["txn"]))
    assert [each["txn"] for each in noted.still_open()] == [still["txn"]]
    with target.Beside(stream.controller, noted._beside) as beside:
        assert len(beside.events()) == 2
    assert [each["txn"] for each in noted.still_open()] == [still["txn"]]


@pytest.mark.parametrize(
    "foreign", [b"\xff\xfe", b"[]", b'{"name": "n", "txn": "no id"}', b"{}", b"[" * 100_000]
)
def test_what_a_stranger_has_noted_is_passed_over(events_stream, foreign, caplog):
    stream = events_stream()
    sink = sink_of(stream)
    with target.Beside(stream.controller, stream.noted()._beside) as beside:
        beside.add(foreign)
    committable = prepared(sink, [1])
    assert sink.recover(Sweep(QUERY, "out", generation=2, spared=frozenset())) == 1
    assert state(stream, committable) in {State.ABORTING, State.ABORTED}
    assert "not one of the sink's" in caplog.text


def test_bytes_that_are_no_events_where_transactions_are_noted_are_named(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    with target.Beside(stream.controller, stream.noted()._beside) as beside:
        writer = uuid.uuid4()
        beside._store.begin_append(beside._segment, writer)
        beside._store.append_at_end(beside._segment, writer, 1, b"a line of text\n")
    with pytest.raises(ofa.SinkUnavailableError, match=r"onceforall-open.*Delete that stream"):
        sink.recover(Sweep(QUERY, "out", generation=2, spared=frozenset()))


def test_a_run_that_commits_much_forgets_what_has_ended(events_stream, monkeypatch):
    monkeypatch.setattr(target, "FORGOTTEN_FROM", 4)
    stream = events_stream()
    sink = sink_of(stream)
    for number in range(4):
        sink.commit(None, sink.confirm([prepared(sink, [number], slot=number)]))

    def noted():
        with target.Beside(stream.controller, stream.noted()._beside) as beside:
            return beside.events()

    until(lambda: not noted(), 30, "what was noted is forgotten")
    assert len(stream.contents()) == 4


def test_a_sweep_reads_on_where_another_query_forgets_meanwhile(events_stream, monkeypatch):
    stream = events_stream()
    sink = sink_of(stream)
    for number in range(4):
        sink.commit(None, sink.confirm([prepared(sink, [number], slot=number)]))
    left = prepared(sink, [4], slot=4)
    read, forgotten = segments.SegmentStore.everything, []

    def read_late(store, *where):
        if not forgotten:
            forgotten.append(True)
            monkeypatch.setattr(target, "FORGOTTEN_FROM", 4)
            stream.noted().still_open()
        return read(store, *where)

    monkeypatch.setattr(segments.SegmentStore, "everything", read_late)
    assert sink.recover(Sweep(QUERY, "out", generation=2, spared=frozenset())) == 1
    assert state(stream, left) in {State.ABORTING, State.ABORTED}


def test_what_is_noted_and_can_not_be_read_is_named(events_stream, monkeypatch):
    stream = events_stream()
    sink = sink_of(stream)
    prepared(sink, [1])

    def read(_store, segment, *_where):
        raise answers.GoneError(f"{segment}: it begins later")

    monkeypatch.setattr(segments.SegmentStore, "everything", read)
    with pytest.raises(ofa.SinkUnavailableError, match="it begins later"):
        sink.recover(Sweep(QUERY, "out", generation=2, spared=frozenset()))


# --- what is refused ----------------------------------------------------------------------------


def test_a_lease_that_the_controller_does_not_allow_is_named(events_stream):
    with pytest.raises(ofa.SinkCheckError, match=r"lease_s=601.*lease\.count\.max"):
        sink_of(events_stream(), lease_s=601)
    with pytest.raises(ofa.SinkCheckError, match=r"lease_s=0\.5"):
        sink_of(events_stream(), lease_s=0.5)


def test_a_missing_stream_and_a_missing_controller_are_named(events_stream):
    stream = events_stream()
    with pytest.raises(ofa.SinkCheckError, match="no Pravega stream tests/none"):
        sink_of(stream, stream="none")
    with pytest.raises(ofa.SinkUnavailableError, match="Check its address"):
        sink_of(stream, controller="tcp://127.0.0.1:1")


@pytest.mark.parametrize("host", ["store..example", "a" * 64])
def test_a_segment_store_that_advertises_what_no_host_can_be_gives_no_answer(host):
    with pytest.raises(NoAnswerError, match=f"The segment store {host}:12345"):
        segments.SegmentStore(host, 12345, 5.0)


@pytest.mark.parametrize(
    ("content", "match"), [(None, "no event"), (b"x" * (8 * 1024 * 1024 + 1), "8388608 are the")]
)
def test_a_row_that_can_be_no_event_is_refused(events_stream, content, match):
    sink = sink_of(events_stream())
    transaction = sink.begin_transaction(attempt())
    with pytest.raises(ofa.RefusedRecordError, match=match):
        sink.invoke(
            transaction, pa.RecordBatch.from_pydict({"event": pa.array([content], pa.binary())})
        )
    sink.discard(transaction)


def test_a_transaction_that_was_aborted_takes_no_rows(events_stream):
    stream = events_stream()
    sink = sink_of(stream)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, rows([1]))
    (noted,) = stream.noted().still_open()
    sink.abort([noted])
    until_it_is(stream, noted, State.ABORTED)
    with pytest.raises(ofa.AttemptFailedError, match="lease_s"):
        sink.pre_commit(transaction)
    sink.discard(transaction)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"controller": "tls://h:1"}, "TLS"),
        ({"controller": "user:secret@h:1"}, "without a user"),
        ({"controller": "h"}, "no address"),
        ({"scope": "a/b"}, "scope='a/b' is no name"),
        ({"stream": "_x"}, "stream='_x' is no name"),
        ({"stream": "x" * 240}, "at most 239"),
        ({"stream": ".."}, "/.. takes no transactions"),
        ({"scope": "."}, "stream ./"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": 0.0001}, "lease_s"),
        ({"lease_s": 1e18}, "lease_s"),
        ({"lease_s": 10**400}, "lease_s"),
    ],
)
def test_wrong_arguments_are_named(wrong, match):
    right = {"controller": "h:9090", "scope": "s", "stream": "t"}
    with pytest.raises(ofa.OptionError, match=match) as told:
        PravegaSink(**{**right, **wrong})
    assert "secret" not in str(told.value)


@pytest.mark.spark
@pytest.mark.parametrize("name", ["routingKey", "routingkey", "ROUTINGKEY"])
def test_a_column_is_found_in_upper_and_lower_case(spark, name):
    rows = spark.createDataFrame([("e", "k")], f"Event STRING, `{name}` STRING")
    written = rows.select(pravega_columns(rows.schema))
    assert written.columns == ["event", "routingKey"]
    assert written.first() == (b"e", "k")


def test_a_key_column_of_another_type_or_twice_is_refused():
    with pytest.raises(ofa.SchemaError, match="'routingkey' is of type int"):
        pravega_columns(schema_of("event STRING", "routingkey INT"))
    with pytest.raises(ofa.SchemaError, match="routingkey, ROUTINGKEY"):
        pravega_columns(schema_of("event STRING", "routingkey STRING", "ROUTINGKEY STRING"))


def test_a_sink_can_be_copied_and_pickled():
    sink = PravegaSink("h:9090", scope="s", stream="t", lease_s=30)
    for other in (copy.copy(sink), pickle.loads(pickle.dumps(sink))):
        assert repr(other) == "PravegaSink('s/t')"
        assert other.capabilities.transaction_timeout_ms == 30_000
        other.stop_committing()
    assert not sink._stopping.is_set()
    assert sink.default_name == "pravega-s-t"


def test_a_ping_tells_an_open_transaction_from_ended_ones(events_stream):
    """What the sink relies on, of the server itself."""
    stream = events_stream()
    sink = sink_of(stream)
    open_, aborted, committed = (prepared(sink, [n], slot=n) for n in range(3))
    sink.abort([aborted])
    sink.commit(None, [committed])
    until_it_is(stream, aborted, State.ABORTED)
    pings = [
        stream.controller.ping(stream.name, uuid.UUID(each["txn"]), 5000)
        for each in (open_, aborted, committed)
    ]
    assert pings == [Ping.OK, Ping.ABORTED, Ping.COMMITTED]
    for each in (open_, aborted, committed):
        stream.controller.abort(stream.name, uuid.UUID(each["txn"]))
    assert [state(stream, each) for each in (aborted, committed)] == [
        State.ABORTED,
        State.COMMITTED,
    ]
