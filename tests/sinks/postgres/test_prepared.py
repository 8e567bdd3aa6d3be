"""The mode "prepared": one prepared transaction per task attempt."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from onceforall.errors import AttemptFailedError, RefusedRecordError, SinkCheckError
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.names import sink_code
from onceforall.sink import StartInfo
from onceforall.sinks.postgres.markers import CONFIRMED, Marker, Owner, raise_to, read
from onceforall.sinks.postgres.names import parsed
from onceforall.sinks.postgres.prepared_transactions import locked, roll_back_prepared
from onceforall.sinks.postgres.sink import PostgresSink
from support.databases import make_database
from support.postgres_sink import KEYED, TABLE, Query, make_role, prepared, rows, staging_tables
from support.waiting import until

pytestmark = pytest.mark.postgres


def markers(query, committables):
    parts = parsed(committables[0]["name"])
    with psycopg.connect(query.url, autocommit=True) as connection:
        owner = Owner("onceforall", parts.query_id, parts.sink_code)
        return [read(connection, owner, c["name"]) for c in committables]


def completed(query):
    """The batch that the sink is complete up to, by its marker; None: by none."""
    with psycopg.connect(query.url, autocommit=True) as connection:
        found = read(connection, Owner("onceforall", query.id, sink_code(query.name)))
        return None if found is None else found.batch


def test_a_batch_that_was_confirmed_is_confirmed_once_more(database):
    """Whose answer was lost asks again."""
    query = Query(database, mode="prepared")
    committables = query.prepare(0, rows(1), rows(2))
    assert list(query.sink.confirm(committables)) == committables
    query.commit(0, committables)
    assert query.ids() == [1, 2]


def test_a_batch_in_doubt_is_marked_as_complete_nowhere(database, postgres):
    query = Query(database, mode="prepared")
    committables = query.prepare(0, rows(1))
    elsewhere = postgres.url(make_database(postgres))
    other = Query(elsewhere, query=query.id, mode="prepared", generation=2)
    assert len(other.commit(0, committables).in_doubt) == 1
    assert completed(other) is None
    query.commit(0, committables)
    assert completed(query) == 0


def test_tasks_prepare_and_the_driver_commits(database):
    query = Query(database, mode="prepared")
    committables = query.prepare(0, *(rows(i) for i in range(7)))
    assert query.ids() == []
    assert sorted(prepared(database)) == sorted(c["name"] for c in committables)
    assert len(query.commit(0, committables).retired) == 7
    assert query.ids() == list(range(7))
    assert staging_tables(database) == []


def test_does_not_exist_is_proved_by_the_marker_and_later_by_that_of_a_later_batch(database):
    query = Query(database, mode="prepared")
    first = query.prepare(0, rows(1), rows(2))
    query.commit(0, first)
    assert None not in markers(query, first)
    assert len(query.commit(0, first).retired) == 2
    query.commit(1, query.prepare(1, rows(3)))
    assert markers(query, first) == [None, None]
    assert len(query.successor().commit(0, first).retired) == 2
    assert query.ids() == [1, 2, 3]


def test_a_foreign_transaction_of_the_name_of_one_that_is_committed_hides_nothing(database):
    query = Query(database, mode="prepared")
    committables = query.prepare(0, rows(1), rows(2))
    query.commit(0, committables)
    gid = committables[0]["name"]
    _, as_stranger = make_role(database)
    with psycopg.connect(as_stranger, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"PREPARE TRANSACTION '{gid}'")
    try:
        # A role of its own, for a superuser may commit the stranger's.
        _, ours = make_role(
            database,
            "GRANT ALL ON ALL TABLES IN SCHEMA public, onceforall TO {role}",
            "GRANT ALL ON SCHEMA public, onceforall TO {role}",
        )
        again = PostgresSink(ours, "t", mode="prepared", retry_for_s=10)
        assert len(again.commit(CommitPermit(1, 1, 0), committables).retired) == 2
        again.close()
    finally:
        query.execute(f"ROLLBACK PREPARED '{gid}'")
    assert query.ids() == [1, 2]


def test_a_foreign_transaction_in_place_of_a_lost_one_is_no_commit(database):
    """As a superuser, who may commit anybody's."""
    query = Query(database, mode="prepared")
    committables = query.prepare(0, rows(1), rows(2))
    gid = committables[0]["name"]
    query.execute(f"ROLLBACK PREPARED '{gid}'")
    with psycopg.connect(make_role(database)[1], autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"PREPARE TRANSACTION '{gid}'")
    report = query.commit(0, committables)
    assert [lost.committable["name"] for lost in report.lost] == [gid]
    assert query.ids() == [2]
    assert not prepared(database)


def test_what_was_rolled_back_by_somebody_is_lost_and_alone(database):
    query = Query(database, mode="prepared")
    committables = query.prepare(0, rows(1), rows(2))
    query.execute(f"ROLLBACK PREPARED '{committables[0]['name']}'")
    report = query.commit(0, committables)
    assert [lost.committable["name"] for lost in report.lost] == [committables[0]["name"]]
    assert [c["name"] for c in report.retired] == [committables[1]["name"]]
    assert query.ids() == [2]


def test_what_was_lost_can_be_written_again_in_another_mode(database):
    query = Query(database, mode="prepared")
    kept, lost = query.prepare(0, rows(1), rows(2))
    query.execute(f"ROLLBACK PREPARED '{lost['name']}'")
    later = query.successor(mode="staged")
    assert len(later.commit(0, [kept, lost]).lost) == 1
    again = later.write(0, rows(2), partition=1)
    later.sink.confirm([again])
    for _ in range(2):
        assert len(later.commit(0, [kept, again]).retired) == 2
    assert query.ids() == [1, 2]


def test_what_is_lost_beside_a_staged_rest_of_the_batch_stays_lost(database):
    """The marker that the staged rest moves would prove the lost ones complete."""
    query = Query(database, mode="prepared")
    one, two = query.prepare(0, rows(1), rows(2))
    query.execute(f"ROLLBACK PREPARED '{two['name']}'")
    later = query.successor(mode="staged")
    again = later.write(0, rows(2), partition=1)
    later.sink.confirm([again])
    # It was decided as (one, again); ``one`` had not been committed yet, and somebody rolls it back
    # now.
    query.execute(f"ROLLBACK PREPARED '{one['name']}'")
    for _ in range(2):
        report = later.commit(0, [one, again])
        assert [lost.committable["name"] for lost in report.lost] == [one["name"], again["name"]]
    last = later.successor()
    last.sink.retire([one, again])
    last.commit(0, last.prepare(0, rows(1), rows(2)))
    assert query.ids() == [1, 2]


def test_a_staged_rest_of_a_prepared_batch_is_merged_behind_it(database):
    """The marker that the merge moves must not be there before it."""
    query = Query(database, mode="prepared")
    one, two = query.prepare(0, rows(1), rows(2))
    query.execute(f"ROLLBACK PREPARED '{two['name']}'")
    later = query.successor(mode="staged")
    again = later.write(0, rows(2), partition=1)
    later.sink.confirm([again])
    for _ in range(2):
        assert len(later.commit(0, [one, again]).retired) == 2
        assert query.ids() == [1, 2]


def test_what_was_rolled_back_before_the_decision_fails_the_attempt(database):
    query = Query(database, mode="prepared")
    committables = [query.write(0, rows(1)), query.write(0, rows(2), partition=1)]
    query.execute(f"ROLLBACK PREPARED '{committables[0]['name']}'")
    with pytest.raises(
        AttemptFailedError, match="1 of 2 prepared transactions of batch 0 are gone"
    ):
        query.sink.confirm(committables)
    query.sink.abort(committables)
    query.sink.abort(committables)
    assert prepared(database) == []


def test_a_retried_task_rolls_back_what_its_predecessor_prepared_and_waits_for_nobody(database):
    query = Query(database, KEYED, mode="prepared", key="id")
    query.write(0, rows(1, 2, v="first"), slot=0)
    second = query.write(0, rows(1, 2, v="second"), slot=1)
    assert prepared(database) == [second["name"]]
    query.sink.confirm([second])
    query.commit(0, [second])
    assert query.all() == [(1, "second"), (2, "second")]


def test_an_attempt_leaves_later_ones_and_those_of_other_tasks_alone(database):
    query = Query(database, mode="prepared")
    later = query.write(0, rows(1), slot=5)
    other = query.write(0, rows(2), partition=1, slot=0)
    early = query.write(0, rows(1), slot=3)
    assert sorted(prepared(database)) == sorted(c["name"] for c in (later, other, early))
    query.sink.abort([later, other, early])


def test_a_late_attempt_rolls_back_nothing_that_was_confirmed(database):
    query = Query(database, KEYED, mode="prepared", key="id")
    committables = query.prepare(0, rows(1))
    with pytest.raises(AttemptFailedError, match="was taken already"):
        query.sink.begin_transaction(query.attempt(slot=7))
    assert len(query.commit(0, committables).retired) == 1
    assert query.ids() == [1]


def test_an_attempt_that_begins_while_its_batch_is_confirmed_waits_for_that(database):
    """Else it would look before the marker is there, and roll its predecessor back behind the
    decision."""
    query = Query(database, KEYED, mode="prepared", key="id")
    first = query.write(0, rows(1), slot=0)
    parts = parsed(first["name"])
    owner = Owner("onceforall", parts.query_id, parts.sink_code)
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(database, autocommit=True) as confirming, ThreadPoolExecutor(1) as threads:
        with locked(confirming, owner, parts.generation, 0, shared=False):
            late = threads.submit(query.sink.begin_transaction, query.attempt(slot=1))
            until(lambda: query.execute(waiting), 30, "the attempt waits for the lock")
            assert prepared(database) == [first["name"]]
            assert raise_to(confirming, owner, CONFIRMED, Marker(0, parts.generation))
        with pytest.raises(AttemptFailedError, match="was taken already"):
            late.result(30)
    assert query.commit(0, [first]).retired == (first,)
    assert query.ids() == [1]


def test_confirm_waits_for_an_attempt_that_is_rolling_its_predecessor_back_and_then_misses_it(
    database,
):
    """The lock must be its own alone, and it must look for the transactions behind it: else what
    it has seen is gone when it is decided."""
    query = Query(database, KEYED, mode="prepared", key="id")
    first = query.write(0, rows(1), slot=0)
    parts = parsed(first["name"])
    owner = Owner("onceforall", parts.query_id, parts.sink_code)
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(database, autocommit=True) as late, ThreadPoolExecutor(1) as threads:
        with locked(late, owner, parts.generation, 0, shared=True):
            assert read(late, owner, CONFIRMED) is None
            confirming = threads.submit(query.sink.confirm, [first])
            until(
                lambda: confirming.done() or query.execute(waiting),
                30,
                "confirm waits for the lock",
            )
            assert roll_back_prepared(late, first["name"])
        with pytest.raises(
            AttemptFailedError, match="1 of 1 prepared transactions of batch 0 are gone"
        ):
            confirming.result(30)


def test_a_key_twice_in_a_task_is_refused(database):
    query = Query(database, KEYED, mode="prepared", key="id")
    transaction = query.sink.begin_transaction(query.attempt())
    query.sink.invoke(transaction, rows(7, 7))
    with pytest.raises(RefusedRecordError, match="2 rows with the key id='7'"):
        query.sink.pre_commit(transaction)


def test_two_tasks_that_meet_in_a_unique_index_do_not_wait_for_ever(database):
    query = Query(database, KEYED, mode="prepared", lock_timeout_s=0.3)
    first = query.write(0, rows(7))
    with pytest.raises(AttemptFailedError, match="stayed locked.*mode='staged'"):
        query.write(0, rows(7), partition=1)
    query.sink.abort([first])


def test_ddl_that_queues_in_the_midst_of_a_batch_is_named_and_given_way(database):
    """The server sees no deadlock: it waits for a prepared transaction, which waits for the task
    that waits behind it."""
    query = Query(database, KEYED, mode="prepared", key="id", lock_timeout_s=60)
    first = query.write(0, rows(1))
    with ThreadPoolExecutor(1) as threads:
        altering = threads.submit(query.execute, "ALTER TABLE t ADD COLUMN extra int")
        until(
            lambda: query.execute(
                "SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
            ),
            30,
            "the DDL waits",
        )
        begun = time.monotonic()
        try:
            query.write(0, rows(2), partition=1)
        except AttemptFailedError as error:
            told = str(error)
        took_s = time.monotonic() - begun
        query.sink.abort([first])
        altering.result(30)
    assert took_s < 20
    assert re.search(r"'ALTER TABLE t ADD COLUMN extra int' \(pid \d+\) on public.t", told)
    again = query.successor()
    again.commit(0, again.prepare(0, rows(1), rows(2)))
    assert again.ids() == [1, 2]


def test_a_table_that_somebody_else_has_locked_is_waited_for(database):
    query = Query(database, KEYED, mode="prepared", key="id", lock_timeout_s=30)
    with psycopg.connect(database) as other, ThreadPoolExecutor(1) as threads:
        other.execute("LOCK TABLE t IN SHARE MODE")
        writing = threads.submit(query.write, 0, rows(2), partition=1)
        until(
            lambda: query.execute(
                "SELECT 1 FROM pg_locks WHERE mode = 'RowExclusiveLock' AND NOT granted"
            ),
            30,
            "the task waits",
        )
        other.rollback()
        query.sink.abort([writing.result(30)])
    other = Query(database, None, mode="prepared", key="id", lock_timeout_s=0.3)
    with psycopg.connect(database) as locking:
        locking.execute("LOCK TABLE t IN SHARE MODE")
        with pytest.raises(
            AttemptFailedError, match="table public.t stayed locked for as long as lock_timeout_s"
        ):
            other.write(0, rows(2))


def test_rights_on_columns_suffice(database):
    query = Query(database, KEYED)
    name = database.rsplit("/", 1)[1].partition("?")[0]
    columns = "GRANT SELECT (id, v), INSERT (id, v), UPDATE (id, v) ON t TO {role}"
    _, url = make_role(database, columns, f'GRANT CREATE ON DATABASE "{name}" TO {{role}}')
    limited = Query(url, None, mode="prepared", key="id", staging_schema="limited")
    limited.commit(0, limited.prepare(0, rows(1), rows(2)))
    assert query.ids() == [1, 2]


def test_a_trigger_that_notifies_is_named(database):
    notify = "BEGIN NOTIFY somebody; RETURN NEW; END"
    query = Query(
        database,
        f"{TABLE}; CREATE FUNCTION n() RETURNS trigger LANGUAGE plpgsql AS $$ {notify} $$; "
        "CREATE TRIGGER n BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION n()",
        mode="prepared",
    )
    with pytest.raises(AttemptFailedError, match="can't be prepared.*mode='staged'"):
        query.write(0, rows(1))
    assert prepared(database) == []


class Conf:
    def get(self, name, default=None):
        return {"spark.sql.shuffle.partitions": "40"}.get(name, default)


class Context:
    defaultParallelism = 40  # noqa: N815

    def getConf(self):  # noqa: N802
        return Conf()


class Session:
    sparkContext, conf = Context(), Conf()  # noqa: N815


def test_a_server_without_room_for_a_batch_is_refused_at_start(database):
    query = Query(database)
    # The session's server has 40; others use some of them.
    query.execute("BEGIN; INSERT INTO t VALUES (0, 'other'); PREPARE TRANSACTION 'somebody else'")

    sink = PostgresSink(database, "t", mode="prepared")
    try:
        with pytest.raises(
            SinkCheckError,
            match=r"at least 41 \(40 for the tasks of a batch, 1 are in use by others\), and the "
            r"server has 40",
        ):
            sink.check(StartInfo("q", "out", Session()))
    finally:
        query.execute("ROLLBACK PREPARED 'somebody else'")


@pytest.mark.parametrize("where", ["another database", "another role"])
def test_what_the_query_itself_left_where_no_sweep_removes_it_counts_as_others(
    postgres, database, where
):
    query = Query(database, mode="prepared")
    query.write(0, rows(1))
    (gid,) = prepared(database)
    query.sweep(own=True)
    left_in = postgres.url(make_database(postgres)) if where == "another database" else database
    role, _ = make_role(left_in, "GRANT USAGE, CREATE ON SCHEMA public TO {role}")
    with psycopg.connect(left_in, autocommit=True) as other:
        if where == "another role":
            other.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        other.execute("CREATE TABLE other (id int)")
        other.execute("BEGIN; INSERT INTO other VALUES (1)")
        other.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        try:
            with pytest.raises(
                SinkCheckError, match=r"at least 41 \(40 .*, 1 are in use by others"
            ):
                query.sink.check(StartInfo(query.id, query.name, Session()))
        finally:
            other.execute(f"ROLLBACK PREPARED '{gid}'".encode())
    query.sink.check(StartInfo(query.id, query.name, Session()))


@pytest.mark.long
def test_a_server_that_is_full_in_mid_batch_fails_the_task_and_is_free_again_behind_the_abort(
    database,
):
    query = Query(database, mode="prepared")
    # The session's server has 40.
    for partition in range(40):
        query.write(0, rows(partition), partition=partition)
    with pytest.raises(AttemptFailedError, match=r"no room.*max_prepared_transactions"):
        query.write(0, rows(40), partition=40)
    assert query.sweep(own=True) == 40
    assert prepared(database) == []


def test_speculation_is_refused_and_so_is_complete(database):
    query = Query(database)

    class Conf:
        def get(self, name, default=None):
            return "true" if name == "spark.speculation" else default

    class Context:
        def getConf(self):  # noqa: N802
            return Conf()

    class Session:
        sparkContext = Context()  # noqa: N815

    sink = PostgresSink(query.url, "t", mode="prepared")
    with pytest.raises(SinkCheckError, match=r"spark\.speculation=true"):
        sink.check(StartInfo("q", "out", Session()))
    assert sink.capabilities.output_modes == {"append"}
