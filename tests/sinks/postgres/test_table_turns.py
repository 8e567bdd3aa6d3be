"""Two queries that write the same table by key with ``mode="prepared"`` take turns; nobody waits
for ever for a turn."""

import os
import signal
import threading
import time

import psycopg
import pytest

from onceforall.embedded import EmbeddedPostgres
from onceforall.errors import AttemptFailedError
from onceforall.sink import BatchAttempt, StartInfo
from onceforall.sinks.postgres.sink import PostgresSink
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
        [row] = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        ).fetchall()
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
    # Without turns the other query would have prepared key 2 by now, and each would wait for the
    # other.
    mine = [one.write(0, rows(1), partition=0), one.write(0, rows(2), partition=1)]
    assert not got.is_set()
    one.commit(0, list(one.sink.confirm(mine)))
    end(one)
    assert got.wait(10)
    theirs = [
        other.write(0, rows(2, v="y"), partition=0),
        other.write(0, rows(1, v="y"), partition=1),
    ]
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
    assert "written by another query in mode='prepared', or" in caplog.text
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


def test_a_turn_of_an_earlier_run_whose_session_does_not_end_is_named_and_not_waited_for(caplog):
    """A session that waits for a disk that is gone is ended by nobody."""
    with EmbeddedPostgres(settings={"max_prepared_transactions": 10}) as server:
        one = Query(server.url("postgres"), KEYED, mode="prepared", key="id", lock_timeout_s=1)
        begin(one)
        with psycopg.connect(one.url, autocommit=True) as connection:
            ((process,),) = connection.execute(
                "SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
                "WHERE locktype = 'advisory' AND granted AND application_name LIKE 'ofa-q-%'"
            ).fetchall()
        os.kill(process, signal.SIGSTOP)
        try:
            successor = one.successor()
            assert in_thread(lambda: begin(successor)).wait(30)
        finally:
            os.kill(process, signal.SIGCONT)
        assert (
            "not ended the session of an earlier run of this one (connection ofa-q-" in caplog.text
        )
        successor.sink.close()
        one.sink.close()


def test_a_sink_that_is_closed_while_it_waits_keeps_no_turn(database, pair):
    one, other = pair
    begin(one)
    ended = in_thread(lambda: begin(other))
    until(lambda: waiting(database) == 1, 10, "the other query waits")
    other.sink.close()
    end(one)
    assert ended.wait(20)
    begin(one)
    end(one)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    assert one.execute(held) == [(0,)]


def test_the_connection_of_a_turn_stays_from_batch_to_batch(database, pair):
    one, _ = pair
    found = set()
    for batch in range(3):
        begin(one, batch)
        found |= set(
            one.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'ofa-q-%%' AND 1 = %s",
                1,
            )
        )
        end(one, batch)
    assert len(found) == 1


def test_a_partition_and_its_table_have_one_turn(database):
    ddl = (
        "CREATE TABLE t (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE "
        "t1 PARTITION OF t FOR VALUES FROM (0) TO (100)"
    )
    whole = Query(database, ddl, mode="prepared", key="id")
    part = PostgresSink(database, "t1", mode="prepared", key="id", lock_timeout_s=1, retry_for_s=10)
    part.check(StartInfo(whole.id, "part"))
    assert whole.sink.lock_order == part.lock_order
    begin(whole)
    before = time.monotonic()
    part.begin_batch(BatchAttempt("another", "part", 1, 0))
    assert time.monotonic() - before >= 1
    whole.sink.close()
    part.close()


def test_the_order_of_locks_is_that_of_tables_however_they_are_named(database):
    query = Query(database, KEYED, key="id")
    other = PostgresSink(database, 'public."t"', key="id")
    other.check(StartInfo(query.id, "other"))
    assert query.sink.lock_order == other.lock_order != ()
    assert PostgresSink(database, "t", mode="upsert", key="id").lock_order == ()


def test_two_sinks_of_one_query_share_a_turn(database, pair):
    one, _ = pair
    second = Query(
        database, None, query=one.id, name="second", mode="prepared", key="id", lock_timeout_s=20
    )
    begin(one)
    before = time.monotonic()
    begin(second)
    assert time.monotonic() - before < 10
    second.sink.close()


def test_only_tasks_that_lock_rows_by_key_take_turns(database, postgres):
    for options in ({"key": "id"}, {"mode": "prepared"}, {"mode": "upsert", "key": "id"}):
        query = Query(
            database, "CREATE TABLE IF NOT EXISTS t (id bigint PRIMARY KEY, v text)", **options
        )
        begin(query)
        held = query.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert held == [(0,)]
        query.sink.close()
