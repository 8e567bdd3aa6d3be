"""Two queries that write the same table by key with ``mode="prepared"`` take turns; nobody waits for ever for a turn."""

import threading
import time

import psycopg
import pytest

from onceforall.errors import AttemptFailedError
from onceforall.sink import BatchAttempt
from support.postgres_sink import KEYED, Query, rows
from support.waiting import until

pytestmark = pytest.mark.postgres


def begin(query, batch=0):
    query.sink.begin_batch(BatchAttempt(query.id, query.name, query.generation, batch))


def end(query, batch=0):
    query.sink.end_batch(BatchAttempt(query.id, query.name, query.generation, batch))


def waiting(url):
    """How many wait for a turn."""
    with psycopg.connect(url, autocommit=True) as connection:
        [row] = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall()
        return row[0]


@pytest.fixture
def pair(database):
    one = Query(database, KEYED, mode="prepared", key="id", lock_timeout_s=20)
    other = Query(database, None, mode="prepared", key="id", lock_timeout_s=20)
    yield one, other
    for each in (one, other):
        each.sink.close()


def in_thread(action):
    done = threading.Event()

    def run():
        action()
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return done


def test_crossing_keys_of_two_queries_are_written_one_batch_after_the_other(database, pair):
    one, other = pair
    begin(one)
    got = in_thread(lambda: begin(other))
    until(lambda: waiting(database) == 1, 10, "the other query waits")
    # Without turns the other query would have prepared key 2 by now, and each would wait for the other.
    mine = [one.write(0, rows(1), partition=0), one.write(0, rows(2), partition=1)]
    assert not got.is_set()
    one.commit(0, list(one.sink.confirm(mine)))
    end(one)
    assert got.wait(10)
    theirs = [other.write(0, rows(2, v="y"), partition=0), other.write(0, rows(1, v="y"), partition=1)]
    other.commit(0, list(other.sink.confirm(theirs)))
    assert one.all() == [(1, "y"), (2, "y")]


@pytest.mark.parametrize("how", ["end", "close"])
def test_an_attempt_that_ends_gives_its_turn_back(pair, how):
    one, other = pair
    begin(one)
    one.sink.abort([one.write(0, rows(1))])
    if how == "end":
        end(one)
    else:
        one.sink.close()
    before = time.monotonic()
    begin(other)
    assert time.monotonic() - before < 10
    other.commit(0, other.prepare(0, rows(1, v="y")))
    assert other.all() == [(1, "y")]


def test_a_turn_that_is_held_for_too_long_is_named_and_not_waited_for(database, pair, caplog):
    one, other = pair
    begin(one)
    hasty = other.successor(lock_timeout_s=1)
    begin(hasty)
    assert "written by another query in mode='prepared' (connection ofa-q-" in caplog.text
    hasty.commit(0, hasty.prepare(0, rows(3)))
    assert hasty.ids() == [3]
    hasty.sink.close()


def test_a_frozen_driver_of_an_earlier_run_loses_its_turn(pair):
    one, _ = pair
    begin(one)
    successor = one.successor()
    before = time.monotonic()
    begin(successor)
    assert time.monotonic() - before < 10
    successor.commit(0, successor.prepare(0, rows(1)))
    # The frozen one wakes: its turn is gone, and its batch does not come through.
    with pytest.raises(AttemptFailedError):
        one.prepare(0, rows(1))
    one.sweep(own=True)
    successor.sink.close()


def test_two_sinks_of_one_query_share_a_turn(database, pair):
    one, _ = pair
    second = Query(database, None, query=one.id, name="second", mode="prepared", key="id", lock_timeout_s=20)
    begin(one)
    before = time.monotonic()
    begin(second)
    assert time.monotonic() - before < 10
    second.sink.close()


def test_only_tasks_that_lock_rows_by_key_take_turns(database, postgres):
    for options in ({"key": "id"}, {"mode": "prepared"}, {"mode": "upsert", "key": "id"}):
        query = Query(database, "CREATE TABLE IF NOT EXISTS t (id bigint PRIMARY KEY, v text)", **options)
        begin(query)
        held = query.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert held == [(0,)]
        query.sink.close()
