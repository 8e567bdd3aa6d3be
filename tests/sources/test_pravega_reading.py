"""The Pravega source on a real server: order over scaling, beginnings, limits, lost events."""

from __future__ import annotations

import random
import socket
import time
import uuid

import pytest

import onceforall as ofa
from onceforall.common.pravega.messages import message
from onceforall.common.pravega.names import StreamName, key_place, segment_name
from onceforall.common.pravega.segments import event_bytes
from onceforall.sources.pravega.client import Segments
from onceforall.sources.pravega.options import Access, parse
from onceforall.sources.pravega.positions import Position, replaced
from onceforall.sources.pravega.source import PravegaReader
from support.source_query import SourceQuery

pytestmark = pytest.mark.pravega
MADE = []


@pytest.fixture(autouse=True)
def stopped():
    """Spark stops its readers; so must a test."""
    yield
    while MADE:
        MADE.pop().stop()


class Query(SourceQuery):
    """A query of a stream, with these options."""

    column = "event"

    def __init__(self, stream, log=None, **options):
        defaults = {**stream.target, "startingPosition": "EARLIEST", "retrySeconds": "5"}
        super().__init__({**defaults, **options}, log)

    def make(self, options):
        MADE.append(PravegaReader(parse(options)))
        return MADE[-1]


def test_a_row_says_where_it_was(events_stream):
    stream = events_stream(segments=1)
    stream.put(2)
    query = Query(stream)
    assert query.plan()
    assert query.rows() == [
        {"event": b"0", "stream": str(stream.name), "segmentId": 0, "offset": 0},
        {"event": b"1", "stream": str(stream.name), "segmentId": 0, "offset": 9},
    ]


def test_a_successor_has_no_event_before_a_later_batch_than_its_predecessors_last(events_stream):
    stream = events_stream(segments=2)
    stream.put(10)
    stream.scale(3)
    stream.put(10)
    stream.scale(2)
    stream.put(10)
    query = Query(stream)
    assert [sorted(batch) for batch in query.drain()] == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 30)),
    ]


def test_segments_that_got_nothing_hold_nothing_up(events_stream):
    stream = events_stream(segments=2)
    query = Query(stream)
    query.plan()
    for segments in (3, 2, 4):
        stream.scale(segments)
    stream.put(8)
    assert [sorted(batch) for batch in query.drain()] == [list(range(8))]
    assert len(query.log[-1]["segments"]) == 4


def test_a_merged_segment_waits_for_all_its_predecessors():
    done, open_ = Position(10, closed=True), Position(10)
    after = {1: {3: (1, 2)}, 2: {3: (1, 2)}}
    assert replaced({1: done, 2: open_}, {1: done, 2: open_}, {1: after[1]}) == {1: done, 2: open_}
    read_now = {1: Position(5), 2: done}
    assert replaced(read_now, {1: done, 2: done}, after) == {1: done, 2: done}
    both = {1: done, 2: done}
    assert replaced(both, both, after) == {3: Position(0, first=0)}


def test_a_segment_that_was_read_to_its_end_does_not_begin_again_beside_a_slow_one():
    """From 1 and 2 came 3 (of 1), 4 (of both) and 5 (of 2); 2 has much, and 3 has become 6."""
    done, slow = Position(10, closed=True), Position(10)
    of_1, of_2 = {3: (1,), 4: (1, 2)}, {4: (1, 2), 5: (2,)}
    found = replaced({1: done, 2: slow}, {1: done, 2: slow}, {1: of_1})
    assert found == {1: done, 2: slow, 3: Position(0, first=0)}
    now = {1: done, 2: slow, 3: done}
    after = {1: of_1, 3: {6: (3,)}}
    found = replaced(now, now, after)
    assert found == {**now, 6: Position(0, first=0)}
    assert replaced(found, found, after) == found
    read = {**now, 2: done, 6: slow}
    found = replaced(read, read, {**after, 2: of_2})
    assert found == {4: Position(0, first=0), 5: Position(0, first=0), 6: slow}


def test_a_merged_segment_waits_for_a_predecessor_that_has_not_begun():
    """3 came of 1 alone, 4 of 2, which has much; 5 came of 3 and 4."""
    done, slow = Position(10, closed=True), Position(10)
    now = {3: done, 2: slow}
    assert replaced(now, now, {3: {5: (3, 4)}}) == now
    then = {3: done, 2: done}
    found = replaced(then, then, {3: {5: (3, 4)}, 2: {4: (2,)}})
    assert found == {3: done, 4: Position(0, first=0)}


def test_one_segment_that_lags_behind_several_scalings_brings_nothing_twice(events_stream):
    stream = events_stream(segments=2)
    slow = next(f"k{n}" for n in range(9) if key_place(f"k{n}") >= 0.5)
    stream.put_with(slow, 30)
    query = Query(stream, maxRecordsPerTrigger="2")
    found = []
    for segments in (3, 2, 4, 3):
        stream.scale(segments)
        stream.put(6)
        query.plan()
        found += query.numbers()
    found += [number for batch in query.drain() for number in batch]
    assert sorted(found) == list(range(stream.written))


def test_latest_begins_with_what_comes_after_the_first_start(events_stream):
    stream = events_stream(segments=2)
    stream.put(5)
    query = Query(stream, startingPosition="LATEST")
    assert query.plan()
    assert query.numbers() == []
    stream.put(3)
    assert sorted(Query(stream, query.log, startingPosition="LATEST").drain()[0]) == [5, 6, 7]


def test_a_stream_cut_is_a_beginning(events_stream):
    stream = events_stream(segments=1)
    stream.put(4)
    assert Query(stream, startingPosition='{"0": 18}').drain() == [[2, 3]]
    with pytest.raises(ofa.OptionError, match="which has 0 to 36"):
        Query(stream, startingPosition='{"0": 37}').plan()
    with pytest.raises(ofa.OptionError, match="names segment 9"):
        Query(stream, startingPosition='{"9": 0}').plan()
    wide = events_stream(segments=2)
    with pytest.raises(ofa.OptionError, match="no stream cut"):
        Query(wide, startingPosition='{"1": 0}').plan()


def test_limits_end_a_batch_between_two_events_and_an_event_above_them_comes_alone(events_stream):
    stream = events_stream(segments=1)
    stream.put(10)
    assert Query(stream, maxRecordsPerTrigger="4").drain() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert Query(stream, maxBytesPerTrigger="20").drain() == [[n, n + 1] for n in range(0, 10, 2)]
    assert Query(stream, maxBytesPerTrigger="3").drain() == [[n] for n in range(10)]


@pytest.mark.parametrize("before", [0, 4], ids=["read-to-their-ends", "cut-in-the-middle"])
def test_available_now_ends_where_the_stream_ended_though_it_has_scaled_since(
    events_stream, before
):
    stream = events_stream(segments=2)
    stream.put(6)
    query = Query(stream)
    query.reader.prepareForTriggerAvailableNow()
    stream.put(before)
    stream.scale(3)
    stream.put(4)
    found = [number for batch in query.drain() for number in batch]
    assert sorted(found) == list(range(6))
    later = [number for batch in Query(stream, query.log).drain() for number in batch]
    assert sorted(later) == list(range(6, 10 + before))


def truncate(stream, events):
    """Forget the first events of a stream of one segment, of nine bytes each."""
    stream.controller.truncate_stream(stream.name, {0: 9 * events})


def test_events_that_were_truncated_before_they_were_planned_stop_the_query(events_stream):
    stream = events_stream(segments=1)
    stream.put(2)
    query = Query(stream)
    query.plan()
    stream.put(6)
    truncate(stream, 5)
    with pytest.raises(ofa.DataLossError, match="segment 0 from offset 18 to 45"):
        query.plan()
    assert Query(stream, query.log, failOnDataLoss="false").drain() == [[5, 6, 7]]


def test_events_that_were_truncated_before_they_were_read_stop_the_query(events_stream):
    stream = events_stream(segments=1)
    stream.put(8)
    query = Query(stream)
    query.plan()
    truncate(stream, 5)
    with pytest.raises(ofa.DataLossError, match="segment 0 from offset 0 to 72"):
        query.numbers()
    query = Query(stream, query.log, failOnDataLoss="false")
    assert query.numbers() == [5, 6, 7]
    assert Query(stream).drain() == [[5, 6, 7]]


def seal(stream):
    name = message("StreamInfo")(scope=stream.scope, stream=stream.stream)
    assert stream.controller._ask("sealStream", name, "Status").status == 0


def make_again(stream):
    """Delete a stream and make another one with its name."""
    stream.controller.delete_stream(stream.name)
    stream.server.create_stream(stream.scope, stream.stream, segments=1)


def of_before(log):
    """Return an offset as it was before streams' first segments were noted."""
    return [{name: value for name, value in log[-1].items() if name != "first"}]


@pytest.mark.parametrize("planned", [False, True], ids=["running", "sealed-and-planned"])
@pytest.mark.parametrize("noted", [True, False], ids=["noted", "old-offset"])
def test_a_stream_that_was_made_again_is_no_continuation(events_stream, planned, noted):
    """Each deletion seals the stream first, and a plan may fall between."""
    stream = events_stream(segments=1)
    stream.put(3)
    query = Query(stream)
    query.plan()
    if planned:
        seal(stream)
        query.plan()
        assert query.log[-1]["segments"]["0"]["closed"]
    make_again(stream)
    stream.put(5)
    log = query.log if noted else of_before(query.log)
    with pytest.raises(ofa.DataLossError, match="was deleted and made again, with segment 1 first"):
        Query(stream, log).plan()


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "old-offset"])
def test_a_query_that_has_read_nothing_of_a_sealed_stream_sees_that_it_was_made_again(
    events_stream, noted
):
    stream = events_stream(segments=1)
    seal(stream)
    query = Query(stream, startingPosition="LATEST")
    query.plan()
    assert query.log[-1]["segments"] == {}
    assert not query.plan()
    make_again(stream)
    log = query.log if noted else of_before(query.log)
    with pytest.raises(ofa.DataLossError, match="is not the one that the query has read"):
        Query(stream, log, startingPosition="LATEST").plan()


def test_a_stream_that_has_scaled_and_forgotten_its_beginning_is_the_same(events_stream):
    stream = events_stream(segments=2)
    stream.put(4)
    query = Query(stream)
    query.drain()
    for segments in (3, 2):
        stream.scale(segments)
        query.drain()
    kept = {each.number: 0 for each in stream.controller.segments(stream.name)}
    stream.controller.truncate_stream(stream.name, kept)
    stream.put(4)
    for log in (query.log, of_before(query.log)):
        assert [sorted(batch) for batch in Query(stream, log).drain()] == [[4, 5, 6, 7]]


def test_one_start_that_accepts_the_loss_goes_on_with_the_stream_that_was_made_again(events_stream):
    stream = events_stream(segments=1)
    stream.put(3)
    query = Query(stream)
    query.plan()
    make_again(stream)
    stream.put(2)
    query = Query(stream, query.log, failOnDataLoss="false")
    assert query.drain() == [[3, 4]]
    stream.put(2)
    query = Query(stream, query.log)
    assert query.drain() == [[5, 6]]
    assert query.numbers(1) == [3, 4]


def test_a_stream_that_is_shorter_than_what_was_read_of_it_is_another_one(events_stream):
    """A cluster that was built anew has segments with the same names."""
    stream = events_stream(segments=1)
    stream.put(3)
    longer = [{"version": 1, "stream": str(stream.name), "first": 0, "segments": {}}]
    longer[0]["segments"] = {"0": {"offset": 90}}
    with pytest.raises(ofa.DataLossError, match="segment 0 ends at 27, and the query has read it"):
        Query(stream, longer).plan()
    query = Query(stream, longer, failOnDataLoss="false")
    assert query.drain() == [[0, 1, 2]]
    stream.put(2)
    assert Query(stream, query.log).drain() == [[3, 4]]
    assert query.numbers(1) == [0, 1, 2]


def test_a_segment_that_was_read_to_its_end_and_goes_on_is_another_ones(events_stream):
    stream = events_stream(segments=1)
    stream.put(3)
    closed = [{"version": 1, "stream": str(stream.name), "first": 0, "segments": {}}]
    closed[0]["segments"] = {"0": {"offset": 18, "closed": True}}
    with pytest.raises(ofa.DataLossError, match="segment 0 doesn't end at 18"):
        Query(stream, closed).plan()
    query = Query(stream, closed, failOnDataLoss="false")
    assert query.drain() == [[0, 1, 2]]


def test_a_planned_batch_that_a_shorter_stream_does_not_have_is_lost(events_stream):
    stream = events_stream(segments=1)
    stream.put(3)
    begin = {"version": 1, "stream": str(stream.name), "first": 0}
    log = [begin | {"segments": {"0": {"offset": end}}} for end in (9, 90)]
    with pytest.raises(ofa.DataLossError, match="segment 0 from offset 9 to 90 .*ends at 27"):
        Query(stream, log).rows()
    assert Query(stream, log, failOnDataLoss="false").rows() == []


def test_a_stream_that_is_gone_is_said_to_be_gone(events_stream):
    stream = events_stream(segments=1)
    stream.put(3)
    query = Query(stream)
    query.plan()
    stream.controller.delete_stream(stream.name)
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(ofa.SourceError, match="There is no stream .* it was deleted"):
            Query(stream, query.log, **options).plan()


def test_available_now_ends_on_a_sealed_stream(events_stream):
    stream = events_stream(segments=2)
    stream.put(6)
    seal(stream)
    query = Query(stream)
    for found in ([list(range(6))], []):
        query.reader.prepareForTriggerAvailableNow()
        assert [sorted(batch) for batch in query.drain()] == found
        query = Query(stream, query.log)


def write_bytes(stream, *blocks):
    with stream.store() as store:
        writer, segment, end = uuid.uuid4(), segment_name(stream.name, 0), 0
        store.begin_append(segment, writer)
        for number, block in enumerate(blocks, 1):
            assert store.append(segment, writer, number, end, block)
            end += len(block)


@pytest.mark.parametrize("options", [{}, {"maxRecordsPerTrigger": "1"}], ids=["all", "one-by-one"])
def test_an_event_above_8_mib_is_read(events_stream, options):
    """Pravega's client for Java writes such ones with enableLargeEvents."""
    stream = events_stream(segments=1)
    large = bytes(range(256)) * (10 << 12)
    every = b"".join(map(event_bytes, (b"before", large, b"behind")))
    write_bytes(stream, *(every[at : at + (4 << 20)] for at in range(0, len(every), 4 << 20)))
    query, found = Query(stream, **options), []
    while query.plan():
        found += query.rows()
    assert [row["event"] == large for row in found] == [False, True, False]
    assert [row["offset"] for row in found] == [0, 14, 14 + 8 + len(large)]


def test_bytes_that_are_no_events_are_not_read(events_stream):
    stream = events_stream(segments=1)
    write_bytes(stream, b"plain bytes")
    query = Query(stream)
    query.plan()
    with pytest.raises(ofa.SourceError, match="no event"):
        query.numbers()


def test_a_server_that_is_away_is_asked_until_retry_seconds_are_over(events_stream):
    stream = events_stream(segments=1)
    with pytest.raises(ofa.SourceUnavailableError, match="retrySeconds"):
        Query(stream, controller="tcp://127.0.0.1:1", retrySeconds="0.3").plan()


def test_a_server_that_is_silent_is_given_up_when_retry_seconds_are_over():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        name = StreamName("tests", "s")
        segments = Segments(Access(f"127.0.0.1:{port}", name, retry_s=1.0))
        segments._places[0] = ("127.0.0.1", port)
        for question in (
            lambda: segments.ask(lambda controller: controller.first_segment(name)),
            lambda: segments.info(0),
        ):
            began = time.monotonic()
            with pytest.raises(ofa.SourceUnavailableError, match="for 1 s"):
                question()
            assert time.monotonic() - began < 8


def test_a_checkpoint_of_another_stream_or_a_later_release_is_refused(events_stream):
    stream, other = events_stream(segments=1), events_stream(segments=1)
    query = Query(stream)
    query.plan()
    with pytest.raises(ofa.SourceError, match="The checkpoint is of the Pravega stream"):
        Query(other, query.log).plan()
    with pytest.raises(ofa.SourceError, match="version 2"):
        Query(stream, [{"version": 2}]).plan()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"controller": "a:1", "scope": "s"}, "needs the option stream"),
        ({"controller": "a:1", "scope": "s", "stream": "/"}, "no name of Pravega's"),
        ({"controller": "u:pw@a:1", "scope": "s", "stream": "t"}, "without a user"),
        ({"controller": "a:1", "scope": "s", "stream": "t", "password": "pw"}, "no option"),
        ({"controller": "a:1", "scope": "s", "stream": "t", "STREAM": "t"}, "given twice"),
        ({"controller": "a:1", "scope": "s", "stream": "t", "startingPosition": "?"}, "EARLIEST"),
        (
            {"controller": "a:1", "scope": "s", "stream": "t", "startingPosition": '{"0": -1}'},
            "no usable place",
        ),
    ],
)
def test_wrong_options_are_named(given, match):
    with pytest.raises(ofa.OptionError, match=match) as told:
        parse(given)
    assert "pw" not in str(told.value)


def test_keys_go_where_pravegas_clients_send_them():
    """The places were printed by Guava's murmur3_128, which Pravega's Java client uses."""
    places = {
        "": 0.24117842791623523,
        "a": 0.9433912753816884,
        "key-1": 0.3829162539760538,
        "user-4711": 0.1981654826554584,
        "0123456789abcdef": 0.1651193933618651,
        "\u00fc\u20ac\U0001f600x": 0.5819796205634418,
    }
    assert {key: key_place(key) for key in places} == places


@pytest.mark.parametrize("seed", range(300))
def test_in_any_scaling_each_segment_begins_once_and_behind_all_its_predecessors(seed):
    """Segments have random lengths and are read at random speeds, over random scalings."""
    chance = random.Random(seed)
    epochs = [chance.randint(1, 4) for _ in range(chance.randint(2, 6))]
    spans = {
        (epoch, place): (place / count, (place + 1) / count)
        for epoch, count in enumerate(epochs)
        for place in range(count)
    }
    number = {key: key[0] << 32 | key[1] for key in spans}
    length = {each: chance.choice([0, 0, 1, 2, 9]) for each in number.values()}
    predecessors = {
        number[key]: tuple(
            number[other]
            for other, (low, high) in spans.items()
            if other[0] == key[0] - 1 and low < spans[key][1] and spans[key][0] < high
        )
        for key in spans
    }
    last = len(epochs) - 1
    at = {each: Position(0, first=0) for each in number.values() if each >> 32 == 0}
    begun, order, ended = {}, list(at), {}
    for batch in range(200):
        found, looked_at = dict(at), set()
        while True:
            closed = [each for each, position in found.items() if position.closed]
            after = {
                each: {n: of for n, of in predecessors.items() if each in of} for each in closed
            }
            found = replaced(begun, found, after)
            order += [each for each in found if each not in at and each not in looked_at]
            fresh = [n for n, p in found.items() if n not in looked_at and not p.closed]
            if not fresh:
                break
            for each in fresh:
                position = found[each]
                to = min(length[each], position.offset + chance.randint(0, 2))
                if to > position.offset:
                    ended[each] = batch
                is_closed = to == length[each] and each >> 32 < last
                found[each] = Position(to, position.first, closed=is_closed)
            looked_at |= set(fresh)
        for each in found.keys() - at.keys():
            for one in predecessors[each]:
                assert ended.get(one, -1) < ended.get(each, batch + 1)
        at = begun = {each: position.begun() for each, position in found.items()}
    assert sorted(set(order)) == sorted(number.values())
    assert {each for each in at if each >> 32 == last} == {
        each for each in number.values() if each >> 32 == last
    }
    assert all(at[each].offset == length[each] for each in at)
    assert len(order) == len(set(order)), "a segment has begun twice"
