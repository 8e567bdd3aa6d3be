"""Attribution without Spark: thousands of random streams, cut, shuffled and crashed at random,
against a reference that remembers everything."""

import random
from collections import defaultdict

import pytest

from onceforall.operators.matching import (
    NOTHING,
    Click,
    Decided,
    Order,
    State,
    decide,
    decoded,
    encoded,
    take,
    wake,
)
from operators.attribution_reference import Stream, reference

STREAMS = 3000


def run_batch(states, watermark, rows, window, draw):
    """One attempt at a batch: rows shuffled, a user's in one call or several, and then the
    timers that have expired."""
    states, found = dict(states), []
    by_user = defaultdict(list)
    for user, row in draw.sample(rows, len(rows)):
        by_user[user].append(row)
    for user, mine in by_user.items():
        cut = draw.randrange(len(mine) + 1)
        for part in (mine[:cut], mine[cut:]):
            clicks = [row for row in part if isinstance(row, Click)]
            orders = [row for row in part if isinstance(row, Order)]
            state, late = take(decoded(states.get(user)), clicks, orders, watermark, window)
            states[user] = encoded(state)
            found += [(user, "late", order, None) for order in late]
    for user in draw.sample(sorted(states), len(states)):
        at = wake(decoded(states[user]), window)
        if at is not None and (
            at <= watermark or draw.random() < 0.1
        ):  # a timer may come too early
            state, decided = decide(decoded(states[user]), watermark, window)
            states[user] = encoded(state)
            found += [
                (user, "unmatched" if click is None else "attributed", order, click)
                for order, click in decided
            ]
    return {user: text for user, text in states.items() if text is not None}, sorted(
        found, key=repr
    )


@pytest.mark.parametrize("part", range(4))
def test_every_order_gets_what_the_reference_gives_it_whatever_the_cuts_the_order_of_rows_and_the_crashes(
    part,
):
    seen = defaultdict(int)
    for seed in range(part, STREAMS, 4):
        stream, draw = Stream(seed), random.Random(seed + 1_000_000)
        expected, states = reference(stream), {}
        for (watermark, rows), wanted in zip(stream.batches, expected, strict=True):
            attempts = 1 + (draw.random() < 0.3)
            for _ in range(
                attempts
            ):  # all but the last attempt are lost in a crash, with their state
                new, found = run_batch(states, watermark, rows, stream.window, draw)
                assert found == wanted, f"seed {seed}"
            states = new
            for user in {user for user, _ in rows} & set(states):
                clicks = [
                    click for click in decoded(states[user]).clicks if click.time_us <= watermark
                ]
                assert len(clicks) <= 1, (
                    f"seed {seed}: more than one click of {user} below the watermark"
                )
            for _, status, *_ in found:
                seen[status] += 1
        assert states == {}, f"seed {seed}: what no order can reach any more is still there"
    assert min(seen[status] for status in ("attributed", "unmatched", "late")) > 300, dict(seen)


def test_a_click_at_the_time_of_the_order_and_one_a_whole_window_before_count():
    for time, counts in [(50, True), (100, True), (49, False), (101, False)]:
        state, _ = take(NOTHING, [Click(time, None, "c")], [Order(100, "o")], 0, 50)
        assert decide(state, 100, 50)[1] == [
            Decided(Order(100, "o"), Click(time, None, "c") if counts else None)
        ]


def test_an_order_waits_until_the_watermark_has_reached_it_so_that_a_late_click_counts():
    state, late = take(NOTHING, [Click(10, None, "early")], [Order(100, "o")], 0, 1000)
    assert (late, wake(state, 1000)) == ([], 100)
    assert decide(state, 99, 1000)[1] == []
    state, _ = take(state, [Click(60, None, "late")], [], 99, 1000)
    assert decide(state, 100, 1000)[1] == [Decided(Order(100, "o"), Click(60, None, "late"))]


def test_an_order_at_the_watermark_is_late():
    assert take(NOTHING, [], [Order(7, "o"), Order(8, "p")], 7, 1) == (
        State((), (Order(8, "p"),)),
        [Order(7, "o")],
    )


def test_a_state_survives_its_text():
    state = State((Click(1, 'tie"', '{"a":"é\\u0000"}'), Click(2, 5, "")), (Order(3, "\n"),))
    assert decoded(encoded(state)) == state
    assert encoded(NOTHING) is None
    assert decoded(None) == NOTHING


def test_a_click_is_forgotten_at_the_very_watermark_from_which_on_no_order_can_reach_it():
    state, _ = take(NOTHING, [Click(10, None, "c")], [], 0, 5)
    assert wake(state, 5) == 15
    assert decide(state, 14, 5) == (state, [])
    assert decide(state, 15, 5) == (NOTHING, [])
    # The first order that is not late then is at 16.
    assert decide(take(state, [], [Order(15, "o")], 14, 5)[0], 15, 5)[1] == [
        Decided(Order(15, "o"), Click(10, None, "c"))
    ]


class Counting(tuple):
    """A tuple that counts how often one of its elements is looked at."""

    __slots__ = ()
    looks = 0

    def __getitem__(self, place):
        Counting.looks += 1
        return super().__getitem__(place)

    def __iter__(self):
        for each in super().__iter__():
            Counting.looks += 1
            yield each


def test_an_order_of_a_user_with_many_clicks_does_not_look_at_all_of_them(monkeypatch):
    monkeypatch.setattr(Counting, "looks", 0)
    number = 4000
    clicks = [Click(10 * n, None, f"c{n}") for n in range(1, number)]
    orders = [Order(10 * n + 5, f"o{n}") for n in range(1, number)]
    state, _ = take(NOTHING, clicks, orders, 0, 100)
    assert len(state.clicks) == len(state.orders) == number - 1
    _, decided = decide(state._replace(clicks=Counting(state.clicks)), 10 * number, 100)
    assert decided == [Decided(order, click) for order, click in zip(orders, clicks, strict=True)]
    # Each click once, and for each order those that bisection looks at.
    assert number <= Counting.looks + 1 < number * 20
