"""A stop ends what the driver waits for before a decision: a lock that others keep, a turn, a
server that doesn't answer."""

import itertools
import os
import signal
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest
from pyspark.sql import functions as F

import onceforall as ofa
from onceforall.embedded import EmbeddedPostgres
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import BatchAttempt, StartInfo
from onceforall.sinks.postgres import stoppable
from onceforall.sinks.postgres.driver.staged import Merger
from onceforall.sinks.postgres.statements import patiently
from onceforall.sinks.postgres.stoppable import Stoppable
from support.postgres_sink import KEYED, Query, rows
from support.relay import Relay
from support.waiting import until

pytestmark = pytest.mark.postgres

LONG = {"lock_timeout_s": 60, "retry_for_s": 60}


def in_thread(action):
    """Run it, and return what it came to, when that is known."""
    came_to = []

    def run():
        try:
            came_to.append(action())
        except Exception as error:
            came_to.append(error)

    threading.Thread(target=run, daemon=True).start()
    return came_to


def waiting_for(url, kind):
    with psycopg.connect(url, autocommit=True) as connection:
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "
            "wait_event = %s AND datname = current_database()"
        )
        return connection.execute(query, [kind]).fetchone()[0]


def test_a_merge_that_waits_for_a_row_of_another_session_ends_and_the_batch_can_be_written_later(
    database,
):
    query = Query(database, KEYED, mode="staged", key="id", **LONG)
    with psycopg.connect(database) as other:
        other.execute("INSERT INTO t VALUES (1, 'of another')")
        committables = [query.write(0, rows(1, 2))]
        came_to = in_thread(lambda: query.sink.confirm(committables))
        until(lambda: waiting_for(database, "transactionid") == 1, 10, "the merge waits")
        began = time.monotonic()
        query.sink.stop_waiting()
        until(lambda: came_to, 10, "the wait is over")
        assert time.monotonic() - began < 3
        assert isinstance(came_to[0], AttemptFailedError)
        assert "asked to stop" in str(came_to[0])
        query.sink.abort(committables)
        other.rollback()
    # A stop that came behind the last wait spoils none of the next run's.
    query.sink.stop_waiting()
    assert len(query.commit(1, query.prepare(1, rows(1, 2))).retired) == 1
    assert query.ids() == [1, 2]
    query.sink.close()


def test_a_stop_behind_the_last_try_is_told_as_a_stop_and_not_as_a_server_that_is_away():
    one = Stoppable()

    def hangs():
        one.end()
        raise SinkUnavailableError("the connection was cut off")

    with pytest.raises(AttemptFailedError, match="asked to stop"):
        patiently(hangs, 0.0, "Merging", one)
    with pytest.raises(SinkUnavailableError, match="did not succeed within 0 s"):
        patiently(is_away, 0.0, "Merging", one)


def test_a_stop_between_two_tries_sends_no_statement_again(monkeypatch):
    """It would wait as the first one did, and nobody cancels it."""
    one, tries = Stoppable(), []

    def hangs():
        tries.append(1)
        monkeypatch.setattr(one._mine().asked, "wait", lambda _: one.end())
        raise SinkUnavailableError("a lock is kept")

    with pytest.raises(AttemptFailedError, match="asked to stop"):
        patiently(hangs, 60.0, "Merging", one)
    assert tries == [1]


def is_away():
    raise SinkUnavailableError("the server is away")


def test_a_stop_ends_the_work_that_it_finds_and_no_other_also_not_the_next_work():
    one = Stoppable()
    one.end()

    def stopped():
        with one.work():
            one.check()
            threading.Thread(target=one.end).start()
            one.wait(10)

    with pytest.raises(AttemptFailedError, match="asked to stop"):
        stopped()
    with one.work():
        one.wait(0)


def test_a_sweep_beside_a_batch_takes_the_stop_away_from_neither():
    """A sweep asks whether the target is behind, while the batch waits for a lock."""
    one, begun, over = Stoppable(), threading.Barrier(3), threading.Event()

    def waits():
        begun.wait(10)
        over.wait(10)
        one.wait(60)

    came_to = [in_thread(lambda: patiently(waits, 0.0, "Merging", one)) for _ in range(2)]
    begun.wait(10)
    with one.work():  # a third one, that ends while the others wait
        pass
    over.set()
    began = time.monotonic()
    while not all(came_to) and time.monotonic() - began < 20:
        one.end()
        time.sleep(0.01)
    assert [type(each) for each in itertools.chain(*came_to)] == [AttemptFailedError] * 2


def test_work_within_work_gives_the_stop_back_to_it():
    one = Stoppable()

    def outer():
        patiently(lambda: None, 0.0, "Looking", one)
        one.end()

    with pytest.raises(AttemptFailedError, match="asked to stop"):
        patiently(outer, 0.0, "Merging", one)


@pytest.mark.parametrize("asked_again", [True, False])
def test_a_sweep_does_not_wait_for_a_server_that_is_away(database, monkeypatch, asked_again):
    """It comes again, and what it waited for would hold up a stop, and the closing of others."""
    query, tries = Query(database, mode="staged", retry_for_s=1), []

    def away(_):
        tries.append(1)
        raise SinkUnavailableError("away")

    monkeypatch.setattr(query.sink, "_connect", away)
    with pytest.raises(SinkUnavailableError, match="away"):
        query.sink.holds(StartInfo(query.id, "out", asked_again=asked_again), 3)
    assert (len(tries) == 1) == asked_again


def test_work_that_succeeds_although_a_stop_is_asked_for_counts_as_stopped():
    one = Stoppable()
    with pytest.raises(AttemptFailedError, match="asked to stop"), one.work():
        one.end()


def test_a_late_stop_never_meets_what_was_confirmed(database, monkeypatch):
    """Its request to cancel may arrive when the merge has succeeded, and would end what comes
    next on that connection: a COMMIT that waits for a standby, say."""
    query = Query(database, KEYED, mode="staged", key="id", **LONG)
    committables = [query.write(0, rows(1))]
    arrives, arrived, never = threading.Event(), threading.Event(), threading.Event()

    def late(connection):
        arrives.wait(10)
        # So long it is on its way, unless somebody waits for it.
        never.wait(0.5)
        real(connection)
        arrived.set()

    real = stoppable._cancel
    monkeypatch.setattr(stoppable, "_cancel", late)
    apply = Merger._apply

    def stopped_behind_it(*given, **named):
        left = apply(*given, **named)
        query.sink.stop_waiting()
        arrives.set()
        return left

    monkeypatch.setattr(Merger, "_apply", staticmethod(stopped_behind_it))
    with pytest.raises(AttemptFailedError, match="asked to stop"):
        query.sink.confirm(committables)
    assert arrived.is_set(), "a request is under way when the work is over"
    query.sink.abort(committables)
    assert query.ids() == []
    monkeypatch.undo()
    query.commit(1, query.prepare(1, rows(2)))
    assert query.ids() == [2]
    query.sink.close()


def test_a_wait_for_a_turn_that_is_cancelled_when_the_lock_is_there_leaves_no_lock(database):
    query = Query(database, KEYED, mode="prepared", key="id", **LONG)
    batch = BatchAttempt(query.id, query.name, 1, 0)
    query.sink.begin_batch(batch)
    query.sink.end_batch(batch)
    turn = query.sink._turn

    class Cancelled:
        """A session whose statement fails when the server has given the lock: it is the
        session's all the same."""

        def __init__(self, session):
            self.session, self.broken = session, False

        def execute(self, statement, arguments=()):
            self.session.execute(statement, arguments)
            raise psycopg.errors.QueryCanceled

        def close(self):
            self.session.close()

        def fileno(self):
            return self.session.fileno()

    turn._connection = Cancelled(turn._connection)
    with pytest.raises(psycopg.errors.QueryCanceled):
        turn.take(query.id, 1, Stoppable())
    other = Query(database, None, mode="prepared", key="id", lock_timeout_s=10, retry_for_s=10)
    began = time.monotonic()
    other.sink.begin_batch(BatchAttempt(other.id, other.name, 1, 0))
    assert time.monotonic() - began < 5, "the turn is still held"
    query.sink.close()
    other.sink.close()


def test_who_waits_for_a_turn_gets_none_when_the_query_is_stopped(database):
    one = Query(database, KEYED, mode="prepared", key="id", **LONG)
    other = Query(database, None, mode="prepared", key="id", **LONG)
    one.sink.begin_batch(BatchAttempt(one.id, one.name, 1, 0))
    came_to = in_thread(lambda: other.sink.begin_batch(BatchAttempt(other.id, other.name, 1, 0)))
    until(lambda: waiting_for(database, "advisory") == 1, 10, "the other query waits for its turn")
    began = time.monotonic()
    other.sink.stop_waiting()
    until(lambda: came_to, 10, "the wait is over")
    assert time.monotonic() - began < 3
    assert isinstance(came_to[0], AttemptFailedError)
    one.sink.close()
    other.sink.close()


def test_a_server_that_does_not_answer_is_left():
    with EmbeddedPostgres() as server:
        query = Query(server.url("postgres"), KEYED, mode="staged", key="id", **LONG)
        with psycopg.connect(query.url) as other:
            other.execute("INSERT INTO t VALUES (1, 'of another')")
            committables = [query.write(0, rows(1))]
            came_to = in_thread(lambda: query.sink.confirm(committables))
            until(lambda: waiting_for(query.url, "transactionid") == 1, 10, "the merge waits")
            frozen = _processes(query.url, server)
            for process in frozen:
                os.kill(process, signal.SIGSTOP)
            try:
                began = time.monotonic()
                until(lambda: query.sink.stop_waiting() or came_to, 20, "the wait is over")
                assert time.monotonic() - began < 6
                assert isinstance(came_to[0], AttemptFailedError)
            finally:
                for process in frozen:
                    os.kill(process, signal.SIGCONT)
        query.sink.close()


@contextmanager
def frozen(url, server):
    """A server whose sessions, and the one that takes connections, do nothing."""
    processes = _processes(url, server)
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def assert_left_and_completed(query, committables, came_to, began):
    """A stop ended the commit, and the next run completes the batch, once."""
    assert time.monotonic() - began < 4
    assert isinstance(came_to[0], SinkUnavailableError), came_to
    later = query.successor()
    report = later.commit(0, committables)
    assert not report.lost
    assert not report.in_doubt
    assert later.ids() == [1, 2]
    later.sink.close()
    query.sink.close()


def test_a_stop_ends_a_commit_on_a_server_that_does_not_answer():
    with EmbeddedPostgres() as server:
        url = server.url("postgres")
        query = Query(url, KEYED, mode="staged", key="id", **LONG)
        committables = query.prepare(0, rows(1), rows(2))
        with frozen(url, server):
            came_to = in_thread(lambda: query.commit(0, committables))
            until(lambda: query.sink._committer._commits._connections, 10, "the commit waits")
            assert came_to == []
            began = time.monotonic()
            until(lambda: query.sink.stop_committing() or came_to, 20, "the wait is over")
        assert_left_and_completed(query, committables, came_to, began)


def test_a_stop_ends_a_second_merge_that_waits_for_a_row_of_another_session(database):
    query = Query(database, KEYED, mode="staged", key="id", **LONG)
    committables = query.prepare(0, rows(1), rows(2))
    query.sink.close()
    with psycopg.connect(database) as other:
        other.execute("INSERT INTO t VALUES (1, 'of another')")
        came_to = in_thread(lambda: query.commit(0, committables))
        until(lambda: waiting_for(database, "transactionid") == 1, 10, "the merge waits")
        began = time.monotonic()
        until(lambda: query.sink.stop_committing() or came_to, 10, "the wait is over")
        other.rollback()
    assert_left_and_completed(query, committables, came_to, began)


def test_a_stop_ends_the_commit_of_prepared_transactions(database):
    parts = urlsplit(database)
    with Relay(parts.hostname, parts.port) as relay:
        query = Query(database, KEYED, mode="prepared", key="id", **LONG)
        through = query.successor(url=relay.url(database))
        committables = through.prepare(0, rows(1), rows(2))
        relay.hang_at(b"COMMIT PREPARED", connections=10)
        came_to = in_thread(lambda: through.commit(0, committables))
        until(lambda: relay.hung == 2, 10, "both wait")
        began = time.monotonic()
        until(lambda: through.sink.stop_committing() or came_to, 10, "the wait is over")
        relay.work_again()
        assert_left_and_completed(through, committables, came_to, began)
        query.sink.close()


def test_a_stop_ends_a_sweeps_look_at_the_markers(database):
    """It is the first request of a sweep between two batches."""
    query = Query(database, KEYED, mode="staged", key="id", **LONG)
    query.commit(0, query.prepare(0, rows(1)))
    start = StartInfo(query.id, query.name, asked_again=True)
    assert query.sink.holds(start, 0)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE onceforall.markers IN ACCESS EXCLUSIVE MODE")
        came_to = in_thread(lambda: query.sink.holds(start, 0))
        until(lambda: waiting_for(database, "relation") == 1, 10, "the look waits")
        assert came_to == []
        until(lambda: query.sink.stop_committing() or came_to, 10, "the wait is over")
        assert isinstance(came_to[0], SinkUnavailableError)
        other.rollback()
    assert query.sink.holds(start, 0)
    query.sink.close()


def test_a_stop_of_no_commit_spoils_no_later_one(database):
    query = Query(database, KEYED, key="id")
    query.sink.stop_committing()
    assert query.commit(0, query.prepare(0, rows(1))).retired
    query.sink.stop_committing()
    assert query.commit(1, query.prepare(1, rows(2))).retired
    assert query.ids() == [1, 2]
    query.sink.close()


def _processes(url, server):
    """The server's own process, which takes requests to cancel, and those of its sessions."""
    with psycopg.connect(url, autocommit=True) as connection:
        sessions = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname IS NOT NULL AND pid <> pg_backend_pid()"
        ).fetchall()
    return [server.pid, *(pid for (pid,) in sessions)]


@pytest.mark.spark
def test_a_stop_of_a_real_query_that_waits_for_a_lock_is_a_stop_and_soon(spark, database, tmp_path):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (value text PRIMARY KEY)")
    events = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 20)
        .load()
        .select(F.col("value").cast("string"))
    )
    with psycopg.connect(database) as other:
        other.execute("INSERT INTO t VALUES ('30')")
        query = (
            ofa.write_stream(events)
            .to(ofa.FileSink(tmp_path / "out"), name="files")
            .to(ofa.PostgresSink(database, table="t", key="value", **LONG), name="rows")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        until(lambda: waiting_for(database, "transactionid") == 1, 60, "the merge of a batch waits")
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 8
        assert query.exception() is None
        assert ofa.read_files(tmp_path / "out").to_arrow().num_rows == 20
        assert not list((tmp_path / "out" / "_onceforall" / "staging").iterdir())


@pytest.mark.spark
def test_a_stop_of_a_real_query_whose_commit_has_no_answer_is_in_doubt_and_completed_by_the_next_start(
    spark, database, tmp_path
):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (value bigint PRIMARY KEY)")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"value": 1}\n')
    events = spark.readStream.schema("value BIGINT").json(str(tmp_path / "in"))
    parts = urlsplit(database)

    def start(url):
        sink = ofa.PostgresSink(url, table="t", key="value", mode="prepared", **LONG)
        return (
            ofa.write_stream(events)
            .to(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )

    def count():
        with psycopg.connect(database) as connection:
            return connection.execute("SELECT count(*) FROM t").fetchone()[0]

    with Relay(parts.hostname, parts.port) as relay:
        relay.hang_at(b"COMMIT PREPARED", connections=1000)
        query = start(relay.url(database))
        until(lambda: relay.hung, 60, "the commit has no answer")
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 15
        assert count() == 0
        query = start(database)
        query.processAllAvailable()
        query.stop()
    assert count() == 1
