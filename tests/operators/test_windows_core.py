"""Windows against their reference on thousands of random streams: cut into batches at random,
crashed, replayed, shuffled."""

import json
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from onceforall.errors import CheckpointMismatchError
from onceforall.operators import _core as core
from onceforall.operators._core import Spec, take
from onceforall.operators._events import Log, Value, read_event, to_text
from onceforall.operators._folding import Column
from onceforall.operators._sequential import SequentialRules
from onceforall.operators._sliding import SlidingRules
from operators.window_reference import Rules, in_processing_time, outputs, split_late

INT, STR = Value("int"), Value("str")
FOLDS = ("count", "sum", "min", "max", "first", "last")
COLUMNS = (*(Column(fold, fold, INT) for fold in FOLDS), Column("rows", "rows", STR))
ORDER = (INT,)
STREAMS = 1000


def spec_of(rules, *, event_time):
    if rules.sliding:
        ours = SlidingRules(*rules.sliding)
    else:
        ours = SequentialRules(
            rules.events,
            rules.gap,
            rules.duration,
            rules.size,
            rules.early_events,
            rules.early,
            numbered=rules.numbered,
        )
    return Spec(ours, COLUMNS, ORDER, event_time)


def event_of(event):
    time, order, tie, value = event
    fields = {
        "t": time,
        "h": tie,
        "o0": order,
        **{f"v{n}": value for n in range(len(FOLDS))},
        f"v{len(FOLDS)}": to_text(value),
    }
    text = json.dumps({name: value for name, value in fields.items() if value is not None})
    return read_event(text, ORDER, [column.value for column in COLUMNS], row=repr(event))


class Key:
    """The state of one key, as a state store has it, and what came out."""

    def __init__(self, spec):
        self.spec = spec
        self.state = (None, (), ())
        self.results = []
        self.late = []

    def step(self, events, clock):
        head, pending, rows = self.state
        logs = Log(lambda: pending), Log(lambda: rows)
        outcome = take(self.spec, head, *logs, events, clock)
        lists = [
            tuple(log.added if log.replaced else (*old, *log.added))
            for log, old in zip(logs, (pending, rows), strict=True)
        ]
        return (outcome.head, *lists), outcome

    def batch(self, events, clock):
        """Do what Spark does with a batch: the input of the key, if there is any, then its
        timer, if that has expired."""
        steps = []
        before = self.state
        if events:
            self.state, outcome = self.step(events, clock)
            steps.append(outcome)
        timer = core.timer_of(self.state[0])
        if timer is not None and timer * 1000 <= clock:
            self.state, outcome = self.step([], clock)
            steps.append(outcome)
        after, self.state = self.state, before
        return after, [r for s in steps for r in s.results], [e for s in steps for e in s.late]

    def accept(self, after, results, late):
        self.state = after
        self.results += results
        self.late += late


def run(spec, history, rng=None):
    """Run a key's history; with a random generator, batches crash and are replayed with their
    rows in another order."""
    key = Key(spec)
    for clock, events in history:
        ours = [event_of(event) for event in events]
        done = key.batch(ours, clock)
        while rng is not None and rng.random() < 0.4:
            rng.shuffle(ours)
            again = key.batch(ours, clock)
            assert again == done, "a replay of the batch gave something else"
        key.accept(*done)
    return key


def said(result):
    row = {
        "kind": result.kind,
        "index": result.index,
        "revision": result.revision,
        "start": result.start_us,
        "end": result.end_us,
        "events": result.events,
        "closed_by": result.closed_by,
        **dict(zip((*FOLDS, "rows"), result.values, strict=True)),
    }
    row["sum"] = None if row["sum"] is None else Fraction(row["sum"])
    row["rows"] = [json.loads(text) for text in row["rows"]]
    return row


def random_rules(rng):
    early = {
        "early_events": rng.choice([None, None, 1, 2, 3]),
        "early": rng.choice([None, None, 1_000, 2_500, 7_000]),
    }
    kind = rng.choice(["sliding", "count", "session", "time"])
    if kind == "sliding":
        size = rng.randint(1, 7)
        return Rules(sliding=(size, rng.randint(1, size)))
    if kind == "count":
        return Rules(events=rng.randint(1, 6), numbered=True, **early)
    if kind == "time":
        return Rules(size=rng.choice([1_000, 5_000, 7_500]), **early)
    while True:
        rules = {
            "gap": rng.choice([None, 1_500, 4_000]),
            "duration": rng.choice([None, 3_000, 9_000]),
            "events": rng.choice([None, 1, 2, 5]),
        }
        if any(rule is not None for rule in rules.values()):
            return Rules(**rules, **early)


def random_events(rng, times):
    tie = iter(rng.sample(range(10_000), 12))
    return [
        (
            rng.choice(times),
            rng.choice([None, 0, 1, 2]),
            next(tie),
            rng.choice([None, *range(-3, 9)]),
        )
        for _ in range(rng.choice([0, 0, 1, 2, 3, 8]))
    ]


def random_history(rng, *, event_time):
    """A history of one key: time goes on, events are out of order and a few late; the watermark
    stands still now and then."""
    history, now, watermark = [], 1_000_000, 0
    for _ in range(rng.randint(1, 9)):
        # Batches never share a millisecond: Spark writes its offset log between two of them.
        now += (
            rng.choice([0, 1, 500, 1_000, 3_000, 12_345])
            if event_time
            else rng.choice([1, 2, 4, 9, 50]) * 1_000
        )
        if event_time:
            watermark = max(watermark, rng.choice([watermark, now // 1_000 * 1_000 - 3_000]))
            events = random_events(
                rng,
                [
                    now,
                    *(now + rng.randint(-5_000, 2_000) for _ in range(8)),
                    now // 1_000 * 1_000,
                    None,
                ],
            )
            history.append((watermark, events))
        else:
            history.append((now, random_events(rng, [now])))
    history.append((history[-1][0] + rng.choice([0, 10_000, 100_000]), []))
    return history


@pytest.mark.parametrize("part", range(4))
def test_event_time_windows_are_those_of_the_reference_after_any_crash(part):
    windows = late = 0
    for seed in range(part * STREAMS, (part + 1) * STREAMS):
        rng = random.Random(seed)
        rules, history = random_rules(rng), random_history(rng, event_time=True)
        key = run(spec_of(rules, event_time=True), history, rng)
        on_time, too_late = split_late(history)
        assert [said(result) for result in key.results] == outputs(
            rules, on_time, history[-1][0]
        ), f"seed {seed}: {rules}\n{history}"
        assert [event.row for event in key.late] == [repr(event) for event in too_late], (
            f"seed {seed}"
        )
        windows, late = windows + len(key.results), late + len(key.late)
    assert windows > STREAMS
    assert late > STREAMS


@pytest.mark.parametrize("part", range(2))
def test_processing_time_windows_are_those_of_the_reference_after_any_crash(part):
    windows = 0
    for seed in range(part * STREAMS, (part + 1) * STREAMS):
        rng = random.Random(f"processing {seed}")
        rules, history = random_rules(rng), random_history(rng, event_time=False)
        key = run(spec_of(rules, event_time=False), history, rng)
        expected = outputs(rules, in_processing_time(history), history[-1][0])
        assert [said(result) for result in key.results] == expected, (
            f"seed {seed}: {rules}\n{history}"
        )
        assert key.late == []
        windows += len(key.results)
    assert windows > STREAMS


def test_windows_of_event_time_do_not_depend_on_how_events_were_cut_into_batches():
    windows = 0
    for seed in range(STREAMS):
        rng = random.Random(f"cuts {seed}")
        rules = random_rules(rng)
        times = sorted(rng.randint(1_000, 60_000) for _ in range(rng.randint(1, 25)))
        ties = rng.sample(range(1000), len(times))
        events = [
            (time, rng.choice([None, 1, 2]), tie, rng.randint(0, 9))
            for time, tie in zip(times, ties, strict=True)
        ]
        seen = []
        for _ in range(3):
            arriving = sorted(
                events, key=lambda event: event[0] + rng.randint(0, 5_000)
            )  # never more than 5 ms behind
            history, last = [], 0
            while arriving:
                share, arriving = arriving[: (n := rng.randint(1, 6))], arriving[n:]
                history.append((last, share))
                last = max(last, max(event[0] for event in share) - 5_001)
            seen.append(
                [
                    said(result)
                    for result in run(
                        spec_of(rules, event_time=True), [*history, (10**6, [])]
                    ).results
                ]
            )
        assert seen[0] == seen[1] == seen[2], f"seed {seed}: {rules}"
        windows += len(seen[0])
    assert windows > STREAMS


def test_a_key_without_an_open_session_leaves_no_state():
    rules = Rules(gap=1_000)
    key = run(
        spec_of(rules, event_time=True),
        [(0, [(5_000, None, 1, 1)]), (6_000, []), (7_000, [(3_000, None, 2, 1)])],
    )
    assert len(key.results) == len(key.late) == 1
    assert key.state == (None, (), ())


def test_a_large_window_without_rows_keeps_state_of_one_size():
    spec = Spec(
        SequentialRules(events=10_000, numbered=True), COLUMNS[:-1], ORDER, event_time=False
    )
    sizes = set()
    key = Key(spec)
    for batch in range(200):
        events = [event_of((0, None, 100 * batch + n, 5)) for n in range(10)]
        events = [event._replace(values=event.values[:-1]) for event in events]
        key.accept(*key.batch(events, 10**15 + batch))
        assert key.state[1:] == ((), ())
        sizes.add(len(key.state[0]))
    assert max(sizes) < 400
    assert max(sizes) - min(sizes) < 20


def test_a_clock_that_is_put_back_stands_still_until_it_has_caught_up():
    rules = Rules(duration=10_000)
    key = Key(spec_of(rules, event_time=False))
    for clock, tie in ((50_000, 1), (20_000, 2), (60_000, 3), (60_001, 4)):
        key.accept(*key.batch([event_of((clock, None, tie, tie))], clock))
    (result,) = key.results
    assert (result.start_us, result.end_us, result.events) == (50_000, 60_000, 3)


def test_sessions_that_start_while_the_clock_stands_still_are_told_apart():
    key = Key(spec_of(Rules(events=2), event_time=False))
    for clock, ties in ((50_000, (1,)), (20_000, (2, 3)), (30_000, (4,))):
        key.accept(*key.batch([event_of((clock, None, tie, tie)) for tie in ties], clock))
    assert [(result.start_us, result.index) for result in key.results] == [(50_000, 0), (50_000, 1)]


def test_a_clock_that_is_put_back_over_the_end_of_a_window_makes_another_one_of_its_name():
    """No key that has said everything keeps state, so the page says this of it."""
    key = Key(spec_of(Rules(size=60_000), event_time=False))
    for clock, ties in ((30_000, (1,)), (60_000, ()), (58_000, (2,)), (60_000, ())):
        key.accept(*key.batch([event_of((clock, None, tie, tie)) for tie in ties], clock))
    named = [(result.start_us, result.index, result.events) for result in key.results]
    assert named == [(0, 0, 1), (0, 0, 1)]


def test_limits_of_a_session_may_change_and_its_aggregates_may_not():
    key = run(spec_of(Rules(gap=1_000), event_time=True), [(0, [(5_000, None, 1, 1)]), (5_500, [])])
    key.spec = spec_of(Rules(gap=9_000, events=1, early=3_000), event_time=True)
    key.accept(*key.batch([], 6_000))
    assert key.results == []
    kept = key.spec
    for other in (
        Spec(kept.rules, COLUMNS[1:], ORDER, event_time=True),
        Spec(kept.rules, COLUMNS, (), event_time=True),
        Spec(kept.rules, COLUMNS, ORDER, event_time=False),
        Spec(kept.rules, COLUMNS, ORDER, True, ("key", "campaign")),
        spec_of(Rules(size=9_000), event_time=True),
        spec_of(Rules(sliding=(2, 1)), event_time=True),
    ):
        key.spec = other
        with pytest.raises(
            CheckpointMismatchError,
            match=r"in processing time the first rule of time can't come.* new\s+checkpoint",
        ):
            key.batch([event_of((98_000, None, 2, 1))], 99_000)


def test_state_of_a_column_of_another_type_is_refused_also_by_a_timer_and_that_without_types_is_taken():
    def of_types(key, order, value):
        values = [replace(column.value, family=value) for column in COLUMNS]
        return Spec(
            SequentialRules(gap_us=1_000),
            tuple(replace(c, value=v) for c, v in zip(COLUMNS, values, strict=True)),
            (replace(INT, family=order),),
            event_time=True,
            key=(key,),
        )

    ours = of_types("string", "whole", "date")
    key = run(ours, [(0, [(5_000, None, 1, 1)]), (5_500, [])])
    for other in [
        of_types("whole", "whole", "date"),
        of_types("string", "timestamp", "date"),
        of_types("string", "whole", "timestamp"),
    ]:
        key.spec = other
        for events in ([event_of((98_000, None, 2, 1))], []):
            with pytest.raises(CheckpointMismatchError, match="type of a key, order or aggregated"):
                key.batch(events, 99_000)
    head, *lists = key.state
    before = {name: value for name, value in json.loads(head).items() if name != "types"}
    key.state = (json.dumps(before), *lists)  # as earlier releases wrote it
    key.accept(*key.batch([], 99_000))
    assert len(key.results) == 1


def test_an_event_that_is_behind_the_latest_one_by_the_whole_delay_is_late_and_one_that_is_less_behind_is_not():
    watermark = 100_000 - 5_000  # the latest event of the batches before is at 100,000
    events = [event_of((time, None, time, 1)) for time in (95_000, 95_001)]
    outcome = take(
        spec_of(Rules(gap=1_000), event_time=True), None, Log(tuple), Log(tuple), events, watermark
    )
    assert [event.time_us for event in outcome.late] == [95_000]


@pytest.mark.parametrize("event_time", [True, False])
def test_zeros_of_both_signs_whose_rows_have_one_hash_are_taken_in_one_order(event_time):
    """Also the late ones come out in one, though they differ in their rows only."""
    number = Value("double")
    spec = Spec(SequentialRules(events=2), (Column("f", "first", number),), (), event_time)
    texts = [json.dumps({"t": 5_000, "h": 1, "v0": value}) for value in (0.0, -0.0)]
    late = [('{"t":1,"h":1}', f"row {value}") for value in (0.0, -0.0)]
    found = []
    for step in (1, -1):
        events = [read_event(text, (), (number,), "row") for text in texts[::step]]
        events += [read_event(text, (), (number,), row) for text, row in late[::step]]
        waiting = Log(tuple)
        outcome = take(spec, None, waiting, Log(tuple), events, 2_000)
        left = [event.row for event in outcome.late]
        results = list(outcome.results)
        if event_time:
            kept = waiting.entries()
            again = take(spec, outcome.head, Log(lambda: kept), Log(tuple), [], 9_000)  # noqa: B023  called at once
            results += again.results
        found.append((left, [repr(result.values) for result in results]))
    assert found[0] == found[1]
    assert found[0][1]


def test_a_lowered_number_of_events_closes_a_window_that_holds_more_already():
    key = run(
        spec_of(Rules(events=5), event_time=False),
        [(1_000, [(0, None, tie, tie) for tie in range(4)])],
    )
    key.spec = spec_of(Rules(events=2), event_time=False)
    key.accept(*key.batch([event_of((0, None, 9, 9))], 2_000))
    assert [result.events for result in key.results] == [5]


@pytest.mark.parametrize(
    ("kind", "scale", "raw", "inside", "outside"),
    [
        ("decimal", 2, "-12.30", -1230, "-12.30"),
        ("decimal", 2, "-0.05", -5, "-0.05"),
        ("decimal", 0, "7", 7, "7"),
        ("decimal", 18, "0E-18", 0, "0.000000000000000000"),
        ("decimal", 6, "1E+3", 1_000_000_000, "1000.000000"),
        (
            "decimal",
            10,
            "9999999999999999999999999999.9999999999",
            10**38 - 1,
            "9999999999999999999999999999.9999999999",
        ),
        ("double", 0, "Infinity", float("inf"), float("inf")),
        ("double", 0, 1, 1.0, 1.0),
        ("int", 0, 2**63 - 1, 2**63 - 1, 2**63 - 1),
        ("str", 0, None, None, None),
    ],
)
def test_values_travel_without_loss(kind, scale, raw, inside, outside):
    value = Value(kind, scale)
    assert value.load(raw) == inside
    assert value.dump(value.load(raw)) == outside


def test_not_a_number_is_the_greatest_and_sums_of_it_are_not_a_number():
    from onceforall.operators import _folding as folding

    nan = float("nan")
    smallest, greatest = Column("a", "min", Value("double")), Column("b", "max", Value("double"))
    assert folding.joined(smallest, nan, 5.0) == 5.0
    assert folding.joined(greatest, 5.0, nan) is nan
    assert folding.joined(greatest, nan, 5.0) is nan


def test_a_sum_beyond_its_type_fails():
    from onceforall.operators import _folding as folding

    column = Column("spend", "sum", INT)
    assert folding.result(column, 2**63 - 1) == 2**63 - 1
    assert folding.result(column, -(2**63)) == -(2**63)
    for total in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError, match="spend"):
            folding.result(column, total)


def test_a_sum_of_decimals_has_as_much_room_below_zero_as_above():
    from onceforall.operators import _folding as folding

    column = Column("spend", "sum", Value("decimal", 2), 10**38)
    largest = f"{'9' * 36}.99"
    assert folding.result(column, 10**38 - 1) == largest
    assert folding.result(column, 1 - 10**38) == f"-{largest}"
    for total in (10**38, -(10**38)):
        with pytest.raises(OverflowError, match="spend"):
            folding.result(column, total)
