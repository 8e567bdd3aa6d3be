"""The mode "upsert": no two-phase commit, idempotent by key."""

import threading

import psycopg
import pytest

from onceforall.errors import AttemptFailedError, OptionError, RefusedRecordError
from onceforall.sink import BatchAttempt, StartInfo
from onceforall.sinks.postgres.sink import PostgresSink
from onceforall.sinks.postgres.task import upsert
from onceforall.sinks.postgres.task.attempts import apply
from support.postgres_sink import KEYED, Query, make_role, rows, staging_tables
from support.waiting import until

pytestmark = pytest.mark.postgres


def upserting(database):
    return Query(database, KEYED, mode="upsert", key="id")


def test_a_task_writes_and_a_replay_writes_over_it(database):
    query = upserting(database)
    assert query.write(0, rows(1, 2, v="first")) is None
    assert query.all() == [(1, "first"), (2, "first")]
    query.write(0, rows(1, 2, v="again"), slot=1)
    query.write(0, rows(3), partition=1, slot=2)
    assert query.all() == [(1, "again"), (2, "again"), (3, "x")]
    assert staging_tables(database) == []


def test_it_says_that_it_has_no_two_phases_and_needs_each_key_in_one_task(database):
    can = upserting(database).sink.capabilities
    assert not can.two_phase
    assert can.idempotent
    assert can.one_task_per_key == ("id",)
    assert can.output_modes == {"append", "update"}


def test_a_late_task_of_an_earlier_batch_writes_nothing_over_a_later_one(database):
    query = upserting(database)
    late = query.sink.begin_transaction(query.attempt(batch=0))
    query.sink.invoke(late, rows(1, v="old"))
    query.write(1, rows(1, v="new"), slot=1)
    with pytest.raises(AttemptFailedError, match="too late"):
        query.sink.pre_commit(late)
    with pytest.raises(AttemptFailedError, match="too late"):
        query.sink.begin_transaction(query.attempt(batch=0, slot=2))
    assert query.all() == [(1, "new")]


def test_a_later_batch_waits_for_a_task_that_is_about_to_commit(database, monkeypatch):
    """Between its look at the marker and its COMMIT the late task may stand still, and has locked
    no row that the later batch writes by then."""
    query = upserting(database)
    late = query.sink.begin_transaction(query.attempt(batch=0))
    query.sink.invoke(late, rows(1, v="old"))
    later = threading.Thread(target=lambda: query.write(1, rows(2, v="new"), slot=1))
    set_again = upsert.replication.set_again

    def stands_still(connection):
        monkeypatch.setattr(upsert.replication, "set_again", set_again)
        later.start()
        with psycopg.connect(database, autocommit=True) as watching:
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            until(
                lambda: not later.is_alive() or watching.execute(waits).fetchone()[0],
                30,
                "the later batch waits, or is through",
            )
        assert later.is_alive()
        set_again(connection)

    monkeypatch.setattr(upsert.replication, "set_again", stands_still)
    query.sink.pre_commit(late)
    later.join(30)
    assert query.all() == [(1, "old"), (2, "new")]


def test_a_late_task_of_an_earlier_run_writes_nothing_over_a_later_one(database):
    query = upserting(database)
    late = query.sink.begin_transaction(query.attempt(batch=3))
    query.sink.invoke(late, rows(1, v="old"))
    later = query.successor()
    later.write(3, rows(1, v="new"))
    with pytest.raises(AttemptFailedError, match="too late"):
        query.sink.pre_commit(late)
    assert query.all() == [(1, "new")]


@pytest.mark.parametrize(
    "changes", [{"mode": "staged"}, {"mode": "prepared"}, {"name": "other"}, {"mode": "upsert"}]
)
def test_a_late_task_of_an_earlier_run_writes_nothing_over_one_of_another_mode_or_name(
    database, changes
):
    query = upserting(database)
    query.write(0, rows(1, v="old"))
    late = query.sink.begin_transaction(query.attempt(slot=1))
    # Not ended by the sweep, as one isn't that begins behind its look at the connections.
    late.connection.execute("SET application_name = 'no-task'")
    query.sink.invoke(late, rows(1, v="late"))
    later = query.successor(**changes)
    for _ in range(2):
        later.sweep()
    with pytest.raises(AttemptFailedError, match="too late: it belongs to generation 1"):
        query.sink.pre_commit(late)
    with pytest.raises(AttemptFailedError, match="too late: it belongs to generation 1"):
        query.write(0, rows(1, v="late"), slot=2)
    query.sweep()
    with pytest.raises(AttemptFailedError, match="too late"):
        query.write(0, rows(1, v="late"), slot=3)
    assert query.all() == [(1, "old")]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_late_task_writes_nothing_over_a_batch_of_another_mode_whose_sweep_failed(database, mode):
    """A start goes on without a sweep that fails or hangs, and repeats it later."""
    query = upserting(database)
    late = query.sink.begin_transaction(query.attempt())
    query.sink.invoke(late, rows(1, v="late"))
    later = query.successor(mode=mode)
    later.commit(0, later.prepare(0, rows(1, v="new")))
    with pytest.raises(AttemptFailedError, match="too late: it belongs to generation 1"):
        query.sink.pre_commit(late)
    assert query.all() == [(1, "new")]


@pytest.mark.parametrize("failed_sweep", [False, True])
@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_a_late_task_writes_nothing_over_a_batch_of_another_name_and_staging_schema(
    database, mode, failed_sweep
):
    query = upserting(database)
    query.write(0, rows(1, v="old"))
    late = query.sink.begin_transaction(query.attempt(slot=1))
    # Not ended, as one isn't that connects behind the look at the connections.
    late.connection.execute("SET application_name = 'no-task'")
    query.sink.invoke(late, rows(1, v="late"))
    later = query.successor(name="other", staging_schema="elsewhere", mode=mode)
    if failed_sweep:
        later.sink.begin_batch(BatchAttempt(later.id, later.name, later.generation, 0))
        later.sink.end_batch(BatchAttempt(later.id, later.name, later.generation, 0))
    else:
        later.sweep()
    if mode == "upsert":
        later.write(0, rows(1, v="new"))
    else:
        later.commit(0, later.prepare(0, rows(1, v="new")))
    with pytest.raises(AttemptFailedError, match="too late: it belongs to generation 1"):
        query.sink.pre_commit(late)
    assert query.all() == [(1, "new")]
    later.sink.close()


def test_a_frozen_task_of_another_name_and_staging_schema_is_ended(database):
    query = upserting(database)
    query.write(0, rows(1, v="old"))
    frozen = query.sink.begin_transaction(query.attempt(slot=1))
    frozen.connection.execute("SELECT FROM onceforall.markers FOR SHARE")
    later = query.successor(name="other", staging_schema="elsewhere", mode="staged")
    later.sweep()
    with pytest.raises(psycopg.OperationalError):
        frozen.connection.execute("SELECT 1")
    frozen.close()


def test_where_the_markers_of_another_staging_schema_may_not_be_written_a_sweep_says_so(
    database, caplog
):
    query = upserting(database)
    query.write(0, rows(1, v="old"))
    role, url = make_role(
        database,
        "GRANT ALL ON TABLE t TO {role}",
        "CREATE SCHEMA elsewhere AUTHORIZATION {role}",
        "GRANT USAGE ON SCHEMA onceforall TO {role}",
        "GRANT SELECT ON onceforall.markers TO {role}",
    )
    later = query.successor(url=url, name="other", staging_schema="elsewhere")
    later.sweep()
    assert f"GRANT INSERT, UPDATE ON onceforall.markers TO {role};" in caplog.text


def test_markers_of_others_that_are_dropped_while_they_are_looked_at_end_no_batch(database):
    query = upserting(database)
    with psycopg.connect(database) as dropping:
        dropping.execute("CREATE SCHEMA others")
        dropping.execute("CREATE TABLE others.markers (LIKE onceforall.markers INCLUDING ALL)")
        dropping.commit()
        dropping.execute("DROP SCHEMA others CASCADE")
        errors = []

        def begin():
            try:
                query.sink.begin_batch(BatchAttempt(query.id, query.name, query.generation, 0))
            except Exception as error:
                errors.append(error)

        beginning = threading.Thread(target=begin)
        beginning.start()
        with psycopg.connect(database, autocommit=True) as watching:
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            until(lambda: watching.execute(waits).fetchone()[0], 30, "the look waits")
        dropping.commit()
        beginning.join(30)
    assert errors == []


@pytest.mark.parametrize("mode", ["staged", "upsert"])
def test_a_table_of_an_application_that_is_called_markers_is_not_waited_for(database, mode):
    query = Query(database, KEYED, mode=mode, key="id", lock_timeout_s=0.5, retry_for_s=1)
    with psycopg.connect(database) as locking:
        locking.execute(
            "CREATE TABLE public.markers (id serial, lat float8, twice float8 "
            "GENERATED ALWAYS AS (lat * 2) STORED)"
        )
        locking.commit()
        locking.execute("LOCK public.markers IN ACCESS EXCLUSIVE MODE")
        query.sink.begin_batch(BatchAttempt(query.id, query.name, query.generation, 0))
        query.sweep()


def test_the_sweeps_of_a_run_do_not_wait_for_its_own_tasks(database):
    query = upserting(database)
    other = Query(database, None, query=query.id, name="other", mode="upsert", key="id")
    query.sweep()
    one, two = (each.sink.begin_transaction(each.attempt()) for each in (query, other))
    with psycopg.connect(database) as committing:
        committing.execute("SELECT FROM onceforall.markers FOR SHARE")
        query.sweep()
    query.sink.invoke(one, rows(1))
    other.sink.invoke(two, rows(2))
    query.sink.pre_commit(one)
    other.sink.pre_commit(two)
    assert query.ids() == [1, 2]


def test_the_fence_of_a_query_proves_no_batch(database):
    query = Query(database, KEYED, mode="staged", key="id")
    query.sweep()
    assert not query.sink.holds(StartInfo(query.id, query.name), 0)


def test_an_attempt_that_is_stuck_with_its_rows_locked_does_not_hold_back_its_repetitions(database):
    query = Query(database, KEYED, mode="upsert", key="id", lock_timeout_s=0.3)
    stuck = query.sink.begin_transaction(query.attempt())
    query.sink.invoke(stuck, rows(1, v="old"))
    stuck.finish()
    apply(stuck)
    with pytest.raises(AttemptFailedError, match="stayed locked"):
        query.write(0, rows(1, v="new"), slot=1)
    query.write(0, rows(1, v="new"), slot=2)
    with pytest.raises(AttemptFailedError):
        query.sink.pre_commit(stuck)
    assert query.all() == [(1, "new")]


def test_a_refused_row_is_named(database):
    query = Query(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY CHECK (id < 5), v text)",
        mode="upsert",
        key="id",
    )
    with pytest.raises(RefusedRecordError, match="a check is violated.*The first such row: id='5'"):
        query.write(0, rows(3, 4, 5, 6))
    assert query.ids() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "upsert"}, "needs key="),
        ({"mode": "upsert", "key": "id", "on_conflict": "ignore"}, "keep an aborted batch's rows"),
        ({"mode": "sideways"}, "none of"),
        ({"on_conflict": "ignore"}, "needs key="),
        ({"on_conflict": "overwrite", "key": "id"}, "neither"),
        ({"key": ["id", "id"]}, "each of them once"),
        ({"key": [""]}, "the name of a column"),
        ({"lock_timeout_s": 0}, "positive"),
        ({"retry_for_s": float("inf")}, "positive"),
        ({"lock_timeout_s": 0.0005}, "out of range"),
        ({"lock_timeout_s": 2_147_484}, "out of range"),
        ({"staging_schema": ""}, "no name of a schema"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        PostgresSink("postgresql://127.0.0.1/none", "t", **options)


@pytest.mark.parametrize("table", ["", " ", "t\0", "half \ud800", None])
def test_a_name_that_no_table_can_have_is_refused_before_anything_is_asked(table):
    with pytest.raises(OptionError, match=r"is no table's name. Give table or schema.table"):
        PostgresSink("postgresql://127.0.0.1/none", table)
