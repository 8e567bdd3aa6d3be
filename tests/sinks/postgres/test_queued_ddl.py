"""DDL that queues between two transactions of one batch: a deadlock that the server doesn't see."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import StartInfo
from support.postgres_sink import TABLE, Query, prepared, rows, staging_tables
from support.waiting import until

pytestmark = pytest.mark.postgres

# A test that waits for one of these has failed.
LONG = {"lock_timeout_s": 25, "retry_for_s": 10}
BY_PARTITION = (
    "CREATE TABLE t (id bigint, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (1000)"
)


def beside(database, ddl, one, other, **options):
    """Two sinks of one query on one table, in these modes."""
    first = Query(database, ddl, name="a", mode=one, **{**LONG, **options})
    second = Query(database, None, query=first.id, name="b", mode=other, **{**LONG, **options})
    for query, sibling in ((first, second), (second, first)):
        query.sink.check_beside(StartInfo(first.id, query.name), {sibling.name: sibling.sink})
    return first, second


@contextmanager
def queued(query, statement):
    """Within, the statement waits for a lock, behind what the query's sinks have done."""
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'relation'"
    with ThreadPoolExecutor(1) as threads:
        altering = threads.submit(query.execute, statement)
        until(lambda: query.execute(waiting), 30, "the DDL waits")
        try:
            yield
        except BaseException:
            # What the sinks have done stays there, and the statement would wait for ever.
            query.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            )
            raise
        altering.result(30)


def given_up(action, *shown):
    """It is refused soon, with the statement."""
    begun = time.monotonic()
    with pytest.raises(AttemptFailedError) as caught:
        action()
    assert time.monotonic() - begun < 20
    for words in shown:
        assert re.search(words, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("one", ["staged", "prepared"])
def test_ddl_between_the_merges_of_two_sinks_of_a_query_is_named_and_given_way(database, one):
    first, second = beside(database, TABLE, one, "staged")
    done = [first.write(0, rows(1))]
    committables = [second.write(0, rows(2))]
    first.sink.confirm(done)
    with queued(first, "ALTER TABLE t ADD COLUMN extra int"):
        given_up(
            lambda: second.sink.confirm(committables),
            r"'ALTER TABLE t ADD COLUMN extra int' \(pid \d+\) on public\.t",
            "the merge of this sink would wait behind it",
            "another sink's merge" if one == "staged" else "the prepared transactions",
        )
        second.sink.abort(committables)
        first.sink.abort(done)
    for query in (first, second):
        query.commit(1, query.prepare(1, rows(3)))
    assert first.ids() == [3, 3]
    assert (staging_tables(database), prepared(database)) == ([], [])


def test_ddl_between_the_tasks_of_two_prepared_sinks_of_a_query_is_found_too(database):
    first, second = beside(database, TABLE, "prepared", "prepared")
    done = [first.write(0, rows(1))]
    with queued(first, "ALTER TABLE t ADD COLUMN extra int"):
        given_up(lambda: second.write(0, rows(2)), "ADD COLUMN extra int", "mode='staged'")
        first.sink.abort(done)
    assert prepared(database) == []


@pytest.mark.parametrize(
    ("ddl", "statement", "table"),
    [
        (
            (
                "CREATE TABLE parent (id bigint PRIMARY KEY); INSERT INTO parent VALUES (1), (2);"
                "CREATE TABLE t (id bigint REFERENCES parent, v text)"
            ),
            "ALTER TABLE parent ADD COLUMN extra int",
            "public.parent",
        ),
        (
            (
                f"{TABLE}; CREATE TABLE log (id bigint);"
                "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN INSERT INTO log VALUES (NEW.id); RETURN NEW; END';"
                "CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()"
            ),
            "ALTER TABLE log ADD COLUMN extra int",
            "public.log",
        ),
        (TABLE, "CREATE INDEX ON onceforall.markers (at)", "onceforall.markers"),
    ],
    ids=["foreign key", "trigger", "markers"],
)
def test_ddl_on_another_table_that_a_prepared_task_needs_is_named(database, ddl, statement, table):
    query = Query(database, ddl, mode="prepared", lock_timeout_s=1.5)
    done = [query.write(0, rows(1))]
    with queued(query, statement):
        given_up(
            lambda: query.write(0, rows(2), partition=1),
            rf"{re.escape(repr(statement))} \(pid \d+\) on {table}",
        )
        query.sink.abort(done)
    query.commit(1, query.prepare(1, rows(2)))


def test_ddl_on_a_partition_alone_is_named_when_the_lock_was_waited_for_in_vain(database):
    first, second = beside(database, BY_PARTITION, "staged", "staged", lock_timeout_s=2)
    done, committables = [first.write(0, rows(1))], [second.write(0, rows(2))]
    first.sink.confirm(done)
    with queued(first, "ALTER TABLE t0 SET (autovacuum_enabled = off); LOCK TABLE t0"):
        given_up(lambda: second.sink.confirm(committables), r"\(pid \d+\) on public\.t0")
        second.sink.abort(committables)
        first.sink.abort(done)


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("ALTER TABLE t0 ADD CHECK (id < 5000)", "t0"),
        ("CREATE INDEX ON t1 (v)", "t1"),
        ("TRUNCATE t1", "t1"),
    ],
)
def test_ddl_on_a_partition_is_named_where_a_task_locks_each(database, statement, where):
    ddl = f"{BY_PARTITION}; CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1000) TO (2000)"
    query = Query(database, ddl, mode="prepared", **LONG)
    done = [query.write(0, rows(1), partition=0)]
    with queued(query, statement):
        given_up(
            lambda: query.write(0, rows(2), partition=1),
            rf"'{re.escape(statement)}' \(pid \d+\) on public\.{where}",
        )
        query.sink.abort(done)


def test_ddl_that_waits_for_somebody_else_is_waited_for(database):
    """The sinks of another query, or a person's session: these end without us."""
    first, second = beside(database, TABLE, "staged", "staged")
    stranger = Query(database, None, name="a", **LONG)
    done, committables = [stranger.write(0, rows(1))], [second.write(0, rows(2))]
    done = list(stranger.sink.confirm(done))
    with queued(first, "ALTER TABLE t ADD COLUMN extra int"), ThreadPoolExecutor(1) as threads:
        confirming = threads.submit(second.sink.confirm, committables)
        waiting = "SELECT 1 FROM pg_locks WHERE mode = 'RowExclusiveLock' AND NOT granted"
        until(lambda: first.execute(waiting), 30, "the merge waits")
        time.sleep(2)  # Longer than it waits before it looks.
        assert not confirming.done()
        stranger.commit(0, done)
        committables = list(confirming.result(30))
    second.commit(0, committables)
    assert first.ids() == [1, 2]


def test_a_table_that_stays_locked_is_told_as_such_with_sinks_beside_too(database):
    _, second = beside(database, TABLE, "staged", "staged", lock_timeout_s=1.5, retry_for_s=1)
    committables = [second.write(0, rows(2))]
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE t IN SHARE MODE")
        with pytest.raises(SinkUnavailableError, match="lock timeout"):
            second.sink.confirm(committables)
    second.commit(0, list(second.sink.confirm(committables)))
    assert second.ids() == [2]


@pytest.mark.parametrize(("partitions", "locked"), [(64, 64), (65, 1)])
def test_a_prepared_task_locks_partitions_without_rows_only_where_they_are_few(
    database, partitions, locked
):
    ddl = "CREATE TABLE t (id bigint, v text) PARTITION BY LIST (id);" + ";".join(
        f"CREATE TABLE t{i} PARTITION OF t FOR VALUES IN ({i})" for i in range(partitions)
    )
    query = Query(database, ddl, mode="prepared", **LONG)
    committable = query.write(0, rows(1))
    found = query.execute(
        "SELECT count(DISTINCT relation) FROM pg_locks JOIN pg_class c ON c.oid = relation "
        "WHERE pid IS NULL AND c.relispartition AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    assert found == [(locked,)]
    query.sink.abort([committable])
