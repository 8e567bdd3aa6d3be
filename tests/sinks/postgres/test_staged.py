"""The mode "staged": rows wait in staging tables, and one transaction merges all of a batch."""

import json
import re
import threading

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onceforall.errors import AttemptFailedError, RefusedRecordError, SinkUnavailableError
from onceforall.sink import StartInfo
from onceforall.sinks.postgres import merging, replication, staging
from onceforall.sinks.postgres.names import staging_table
from onceforall.sinks.postgres.sink import PostgresSink
from onceforall.sinks.postgres.table_names import quoted
from support.databases import make_database
from support.postgres_sink import KEYED, Query, rows, staging_tables
from support.waiting import until

pytestmark = pytest.mark.postgres


def test_rows_become_visible_at_commit_and_nothing_is_left(database):
    query = Query(database)
    committables = query.prepare(0, rows(1, 2), rows(3))
    assert query.ids() == []
    report = query.commit(0, committables)
    assert len(report.retired) == 2
    assert query.ids() == [1, 2, 3]
    assert staging_tables(database) == []
    query.sink.retire(report.retired)
    assert query.ids() == [1, 2, 3]


def test_a_second_commit_changes_nothing_also_in_another_process_and_much_later(database):
    query = Query(database)
    first = query.prepare(0, rows(1))
    query.commit(0, first)
    assert len(query.commit(0, first).retired) == 1
    query.commit(1, query.prepare(1, rows(2)))
    later = query.successor()
    assert len(later.commit(0, first).retired) == 1
    assert query.ids() == [1, 2]


def test_another_process_merges_again_from_staging_what_was_decided(database):
    query = Query(database)
    committables = query.prepare(0, rows(1, 2), rows(3))
    query.sink.close()
    later = query.successor()
    assert later.ids() == []
    assert len(later.commit(0, committables).retired) == 2
    assert later.ids() == [1, 2, 3]
    assert later.sweep() == 0
    assert staging_tables(database) == []


def test_an_aborted_batch_leaves_nothing_and_can_be_aborted_again(database):
    query = Query(database)
    committables = query.prepare(0, rows(1), rows(2))
    query.sink.abort(committables)
    query.sink.abort(committables)
    assert query.ids() == []
    assert staging_tables(database) == []
    query.commit(0, [*query.prepare(0, rows(3))])
    assert query.ids() == [3]


def test_an_abort_takes_the_staging_tables_that_it_names_and_no_others(database):
    query, other = Query(database), Query(database, None)
    gone, rest, theirs = (
        query.write(0, rows(1)),
        query.write(0, rows(2), partition=1),
        other.write(0, rows(3)),
    )
    query.sink.abort([gone])
    assert sorted(staging_tables(database)) == sorted(
        staging_table(each["name"]) for each in (rest, theirs)
    )
    query.sink.abort([rest])
    other.commit(0, [theirs])
    assert query.ids() == [3]


def test_a_retried_task_has_a_staging_table_of_its_own(database):
    query = Query(database)
    query.write(0, rows(1, 2), slot=0)
    second = query.write(0, rows(1, 2), slot=1)
    query.sink.confirm([second])
    query.commit(0, [second])
    assert query.ids() == [1, 2]
    assert query.sweep(own=True) == 1
    assert staging_tables(database) == []


def test_a_task_that_dies_leaves_nothing_and_a_discarded_one_neither(database):
    query = Query(database)
    transaction = query.sink.begin_transaction(query.attempt())
    query.sink.invoke(transaction, rows(1))
    query.sink.discard(transaction)
    query.sink.discard(transaction)
    assert staging_tables(database) == []


def test_a_staging_table_with_other_rows_than_were_written_is_not_merged(database):
    query = Query(database)
    committable = query.write(0, rows(1, 2))
    query.execute(f"DELETE FROM onceforall.{staging_table(committable['name'])} WHERE id = 1")
    with pytest.raises(AttemptFailedError, match="has 1 rows, but its task wrote 2"):
        query.sink.confirm([committable])
    query.sink.abort([committable])
    assert query.ids() == []


def test_a_staging_table_that_is_changed_behind_the_decision_may_be_dropped(database):
    query = Query(database)
    committables = [query.write(0, rows(1, 2)), query.write(0, rows(3), partition=1)]
    query.sink.confirm(committables)
    query.sink.close()
    changed = f"onceforall.{staging_table(committables[0]['name'])}"
    query.execute(f"DELETE FROM {changed} WHERE id = 1")
    with pytest.raises(SinkUnavailableError, match="has 1 rows, but its task wrote 2") as told:
        query.commit(0, committables)
    (remedy,) = re.findall(r"DROP TABLE \S+?(?=;)", str(told.value))
    query.execute(remedy)
    assert len(query.commit(0, committables).lost) == 2
    query.sink.abort(committables)
    assert query.ids() == []


def test_a_staging_table_that_is_gone_fails_the_attempt_before_the_decision(database):
    query = Query(database)
    committables = [query.write(0, rows(1)), query.write(0, rows(2), partition=1)]
    query.execute(f"DROP TABLE onceforall.{staging_table(committables[1]['name'])}")
    with pytest.raises(AttemptFailedError, match="1 of 2 staging tables are gone"):
        query.sink.confirm(committables)
    query.sink.abort(committables)


def test_what_is_gone_after_the_decision_without_a_marker_is_lost_as_a_whole(database):
    query = Query(database)
    committables = query.prepare(0, rows(1), rows(2))
    query.sink.close()
    query.execute(f"DROP TABLE onceforall.{staging_table(committables[1]['name'])}")
    later = query.successor()
    report = later.commit(0, committables)
    assert [lost.committable["name"] for lost in report.lost] == [c["name"] for c in committables]
    assert "marker" in report.lost[0].reason
    later.sink.retire(committables)
    assert staging_tables(database) == []
    again = later.prepare(0, rows(1), rows(2))
    later.commit(0, again)
    assert later.ids() == [1, 2]


@pytest.mark.parametrize("decided", [False, True])
def test_a_staging_table_that_has_lost_a_column_is_as_good_as_gone(database, decided):
    """DROP … CASCADE of a type or a collation takes columns of all tables; NULL would be written in
    the place of their values."""
    query = Query(
        database,
        "CREATE COLLATION own (locale = 'C'); CREATE TABLE t (id bigint, v text COLLATE own)",
    )
    committables = [query.write(0, rows(1))]
    if decided:
        committables = list(query.sink.confirm(committables))
        query.sink.close()
        query = query.successor()
    query.execute('ALTER TABLE t ALTER v TYPE text COLLATE "C"')
    query.execute("DROP COLLATION own CASCADE")
    if decided:
        report = query.commit(0, committables)
        assert [lost.committable["name"] for lost in report.lost] == [committables[0]["name"]]
        query.sink.retire(committables)
    else:
        with pytest.raises(
            AttemptFailedError, match="1 of 1 staging tables are gone, or have lost"
        ):
            query.sink.confirm(committables)
        query.sink.abort(committables)
    query.commit(0, query.prepare(0, rows(1)))
    assert query.execute("TABLE t") == [(1, "x")]


def test_in_another_database_nothing_is_proved(database, postgres):
    query = Query(database)
    committables = query.prepare(0, rows(1))
    query.sink.close()
    other = query.successor()
    moved = [{**committables[0], "database": "1/2"}]
    report = other.commit(0, moved)
    assert "other" not in other.all()
    assert len(report.in_doubt) == 1
    assert "connects to" in report.in_doubt[0].reason
    query.sink.abort(committables)


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_another_database_of_the_same_server_is_another(database, postgres, mode):
    """A dropped and restored one, or a wrong dbname: neither marker nor staging table is there,
    and that proves nothing."""
    query = Query(database, mode=mode)
    committables = query.prepare(0, rows(1))
    query.sink.close()
    other = Query(postgres.url(make_database(postgres)), query=query.id, mode=mode, generation=2)
    report = other.commit(0, committables)
    assert [doubt.committable for doubt in report.in_doubt] == committables
    assert not report.lost
    assert not report.retired
    query.commit(0, committables)
    assert query.ids() == [1]


def test_a_staging_table_has_its_name_before_anybody_else_sees_it(database, monkeypatch):
    """A task that dies behind its COMMIT and before the label would leave a table that no sweep
    finds."""
    seen, label = [], staging.label

    def looking(connection, staged, name):
        seen.append(staging_tables(database))
        label(connection, staged, name)

    monkeypatch.setattr(staging, "label", looking)
    query = Query(database)
    committable = query.write(0, rows(1))
    assert seen == [[]]
    assert len(staging_tables(database)) == 1
    query.sink.abort([committable])


def test_an_older_batch_is_never_written_again(database):
    query = Query(database)
    query.commit(5, query.prepare(5, rows(1)))
    committable = query.write(4, rows(2))
    with pytest.raises(AttemptFailedError, match="already completed batch 5"):
        query.sink.confirm([committable])
    assert len(query.commit(4, [committable]).retired) == 1
    query.sink.abort([committable])
    assert query.ids() == [1]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_query_that_begins_anew_writes_its_first_batches_behind_higher_ones_of_before(
    database, mode
):
    """Its numbers begin at 0 again, below those that the former one's marker has."""
    before = Query(database, mode=mode, generation=7)
    before.commit(5, before.prepare(5, rows(1)))
    anew = Query(database, None, mode=mode, generation=0)
    for batch in range(2):
        (committable,) = anew.prepare(batch, rows(10 + batch))
        report = anew.commit(batch, [committable])
        assert [*report.completed, *report.retired] == [committable]
    assert anew.ids() == [1, 10, 11]


def test_a_held_merge_whose_connection_was_ended_is_merged_again(database):
    query = Query(database)
    committables = query.prepare(0, rows(1), rows(2))
    ended = query.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'ofa-m-%%'"
    )
    assert ended == [(True,)]
    assert len(query.commit(0, committables).retired) == 2
    assert query.ids() == [1, 2]


def test_a_held_merge_that_has_failed_is_rolled_back_by_its_commit_and_merged_again(
    database, monkeypatch
):
    """The server answers ROLLBACK to the COMMIT of a transaction that has failed, and no error."""
    query = Query(database)
    committables = query.prepare(0, rows(1), rows(2))
    commits, answers = replication.commits, []

    def of_a_failed_transaction(connection, statement):
        if not answers:
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("SELECT 1 / 0")
        answers.append(commits(connection, statement))
        return answers[-1]

    monkeypatch.setattr(replication, "commits", of_a_failed_transaction)
    assert len(query.commit(0, committables).retired) == 2
    assert answers == ["ROLLBACK", "COMMIT"]
    assert query.ids() == [1, 2]


def test_what_is_held_is_committed_only_for_the_decision_that_it_was_held_for(database):
    query = Query(database)
    held, decided = query.write(0, rows(1), slot=0), query.write(0, rows(2), slot=1)
    query.sink.confirm([held])
    assert query.commit(0, [decided]).retired == (decided,)
    assert query.ids() == [2]
    query.sink.abort([held])


def test_what_is_held_is_not_committed_for_a_decision_that_has_more(database):
    query = Query(database)
    decided = [query.write(0, rows(1), slot=0), query.write(0, rows(2), slot=1)]
    query.sink.confirm(decided[:1])
    assert query.commit(0, decided).retired == tuple(decided)
    assert query.ids() == [1, 2]


def test_a_batch_that_another_run_completed_with_other_transactions_is_in_doubt(database):
    """Two copies of a checkpoint: which rows are there, nobody can tell from the batch's number."""
    query = Query(database)
    theirs, ours = query.write(0, rows(1), slot=0), query.write(0, rows(2), slot=1)
    assert query.commit(0, [theirs]).retired == (theirs,)
    report = query.commit(0, [ours])
    assert [doubt.committable for doubt in report.in_doubt] == [ours]
    assert "with other transactions" in report.in_doubt[0].reason
    assert query.ids() == [1]
    query.sink.abort([ours])


@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
@pytest.mark.parametrize("columns", [["batch"], ["generation", "batch"]])
def test_numbers_of_markers_stay_numbers_whatever_somebody_makes_of_their_columns(
    database, mode, columns
):
    """As texts 9 is not below 10: a batch would pass for one that is complete."""
    query = Query(database, KEYED, mode=mode, key="id")

    def write(run, batch):
        committables = [run.write(batch, rows(batch))]
        if mode == "upsert":
            return
        assert len(run.commit(batch, list(run.sink.confirm(committables))).retired) == 1

    write(query, 8)
    for column in columns:
        query.execute(f"ALTER TABLE onceforall.markers ALTER {column} TYPE text")
    for batch in (9, 10, 11):
        write(query, batch)
    if mode != "upsert":
        late = query.write(10, rows(77))
        with pytest.raises(AttemptFailedError, match="already completed batch 1[01]"):
            query.sink.confirm([late])
        query.sink.abort([late])
    assert query.ids() == [8, 9, 10, 11]


@pytest.mark.parametrize("decided", [9, 10])
def test_a_decided_batch_is_merged_again_whatever_type_its_marker_has_by_then(database, decided):
    query = Query(database, KEYED, key="id")
    query.commit(decided - 1, query.prepare(decided - 1, rows(1)))
    committables = query.prepare(decided, rows(2))
    query.sink.close()
    query.execute("ALTER TABLE onceforall.markers ALTER batch TYPE text")
    assert len(query.commit(decided, committables).retired) == 1
    assert query.ids() == [1, 2]


def test_with_a_key_a_row_replaces_the_one_that_is_there(database):
    query = Query(database, KEYED, key="id")
    query.commit(0, query.prepare(0, rows(1, 2, v="old")))
    query.commit(1, query.prepare(1, rows(2, v="new"), rows(3, v="new")))
    assert query.all() == [(1, "old"), (2, "new"), (3, "new")]


def test_a_row_whose_key_is_there_can_be_ignored(database):
    query = Query(database, KEYED, key="id", on_conflict="ignore")
    query.commit(0, query.prepare(0, rows(1, 2, v="old")))
    query.commit(1, query.prepare(1, rows(2, 3, v="new")))
    assert query.all() == [(1, "old"), (2, "old"), (3, "new")]


@pytest.mark.parametrize("in_one_statement", [True, False])
@pytest.mark.parametrize("on_conflict", ["update", "ignore"])
def test_a_key_twice_in_one_batch_is_refused_and_named(
    database, monkeypatch, on_conflict, in_one_statement
):
    if not in_one_statement:
        # As with hundreds of tasks: of two statements the server doesn't find it by itself.
        monkeypatch.setattr(staging, "TABLES_PER_STATEMENT", 1)
    query = Query(database, KEYED, key="id", on_conflict=on_conflict)
    committables = [query.write(0, rows(1, 7)), query.write(0, rows(7, 8), partition=1)]
    with pytest.raises(RefusedRecordError, match="2 rows with the key id='7'"):
        query.sink.confirm(committables)
    query.sink.abort(committables)
    assert query.ids() == []


def ids_alone(*numbers):
    return pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64())})


def edges(*pairs):
    left, right = zip(*pairs, strict=True)
    return pa.RecordBatch.from_pydict({"left": pa.array(left), "right": pa.array(right)})


@pytest.mark.parametrize(
    "names", [("left", "right"), ("count", "shown 0"), ("times shown", "text")]
)
@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_key_may_be_called_as_the_functions_that_look_for_it_twice(database, mode, names):
    one, other = map(quoted, names)
    ddl = f"CREATE TABLE t ({one} bigint, {other} bigint, PRIMARY KEY ({one}, {other}))"
    query = Query(database, ddl, mode=mode, key=list(names), on_conflict="ignore")
    query.commit(0, query.prepare(0, edges((1, 2), (1, 3)).rename_columns(names)))
    assert sorted(query.execute("SELECT * FROM t")) == [(1, 2), (1, 3)]
    with pytest.raises(
        RefusedRecordError, match=f"2 rows with the key {names[0]}='2', {names[1]}='2'"
    ):
        query.prepare(1, edges((2, 2), (2, 2)).rename_columns(names))
    query.sweep(own=True)


@pytest.mark.parametrize("parts", [[(7, 7)], [(1, 7), (7,)]])
@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_a_key_twice_is_refused_also_where_rows_are_nothing_but_the_key(database, mode, parts):
    if mode != "staged":
        parts = [sum(parts, ())]  # Spark brings each key to one task
    query = Query(database, KEYED, mode=mode, key="id")
    with pytest.raises(RefusedRecordError, match="2 rows with the key id='7'"):
        query.prepare(0, *[ids_alone(*part) for part in parts])
    assert query.ids() == []
    query.sweep(own=True)


def test_equal_rows_that_an_earlier_release_decided_are_written_once(database, monkeypatch):
    query = Query(database, KEYED, key="id")
    with monkeypatch.context() as earlier:
        earlier.setattr("onceforall.sinks.postgres.merging.refuse_doubled_keys", lambda *_: None)
        decided = query.prepare(0, ids_alone(7, 7))
    query.sink.close()
    assert len(query.successor().commit(0, decided).retired) == 1
    assert query.ids() == [7]


@pytest.mark.parametrize(
    ("mode", "on_conflict"),
    [
        ("staged", "update"),
        ("staged", "ignore"),
        ("prepared", "update"),
        ("prepared", "ignore"),
        ("upsert", "update"),
    ],
)
def test_a_table_may_be_called_as_the_server_calls_rows_in_conflict(database, mode, on_conflict):
    query = Query(database, KEYED, mode=mode, key="id", on_conflict=on_conflict)
    query.execute("CREATE TABLE excluded (LIKE t INCLUDING ALL)")
    query.sink = PostgresSink(database, "excluded", key="id", mode=mode, on_conflict=on_conflict)
    query.sink.check(StartInfo(query.id, query.name))
    for batch, value in enumerate(["old", "new"]):
        written = query.write(batch, rows(1, v=value))
        if mode != "upsert":
            query.commit(batch, list(query.sink.confirm([written])))
    assert query.execute("SELECT id, v FROM excluded") == [
        (1, "new" if on_conflict == "update" else "old")
    ]
    query.sink.close()


def test_a_key_that_is_twice_is_found_among_more_tables_than_one_statement_takes(
    database, monkeypatch
):
    monkeypatch.setattr("onceforall.sinks.postgres.staging.TABLES_PER_STATEMENT", 2)
    query = Query(database, KEYED, key="id")
    with pytest.raises(RefusedRecordError, match="2 rows with the key id='1'"):
        query.prepare(0, rows(1, 2), rows(3), rows(4), rows(5), rows(1))
    query.sweep(own=True)
    query.commit(1, query.prepare(1, *[rows(number) for number in range(5)]))
    assert query.ids() == [0, 1, 2, 3, 4]
    assert query.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'onceforall'") == [(1,)]


@pytest.mark.long
def test_the_servers_stack_is_deep_enough_for_any_number_of_tasks(database):
    query = Query(database, KEYED, key="id")
    written = query.write(0, rows(1))
    one = staging.Staged("onceforall", staging_table(written["name"]), ("id", "v"), 1)
    with psycopg.connect(database) as connection:
        assert merging.doubled_key(
            connection, merging.Target("public", "t", ("id",)), [one] * 10_000
        ) == (["1"], 10_000)
        connection.rollback()
    query.sink.abort([written])


@pytest.mark.parametrize("on_conflict", ["update", "ignore"])
def test_no_statement_names_more_tables_the_more_tasks_there_are(
    database, monkeypatch, on_conflict
):
    monkeypatch.setattr("onceforall.sinks.postgres.staging.TABLES_PER_STATEMENT", 2)
    named = []
    execute = psycopg.Connection.execute

    def recorded(self, query, *arguments, **options):
        text = query.as_string(self) if isinstance(query, sql.Composable) else str(query)
        named.append(len(set(re.findall("stg_[0-9a-f]{40}", text))))
        return execute(self, query, *arguments, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", recorded)
    query = Query(database, KEYED, key="id", on_conflict=on_conflict)
    query.commit(0, query.prepare(0, *[rows(number) for number in range(7)]))
    decided = query.prepare(1, *[rows(number) for number in range(7, 14)])
    query.successor().commit(1, decided)
    query.sink.abort([query.write(2, rows(number), partition=number) for number in range(7)])
    assert max(named) == 2
    assert query.ids() == list(range(14))


def test_two_writes_with_other_columns_are_merged_together_and_their_keys_compared(database):
    query = Query(database, KEYED, key="id")
    committables = [query.write(0, rows(1)), query.write(0, ids_alone(5), write=1, slot=1)]
    query.sink.confirm(committables)
    query.commit(0, committables)
    assert query.all() == [(1, "x"), (5, None)]
    doubled = [
        query.write(1, rows(9)),
        query.write(1, pa.RecordBatch.from_pydict({"id": pa.array([9])}), write=1, slot=1),
    ]
    with pytest.raises(RefusedRecordError, match="id='9'"):
        query.sink.confirm(doubled)
    query.sink.abort(doubled)


def test_complete_replaces_all_rows_also_with_none(database):
    query = Query(database, output_mode="complete")
    query.commit(0, query.prepare(0, rows(1, 2)))
    query.commit(1, query.prepare(1, rows(2, 3)))
    assert query.ids() == [2, 3]
    assert query.sink.capabilities.empty_batches
    empty = query.write(2)
    query.sink.confirm([empty])
    assert query.ids() == [2, 3]
    query.commit(2, [empty])
    assert query.ids() == []
    assert staging_tables(database) == []


def test_a_reader_never_sees_part_of_a_batch(database):
    query = Query(database)
    seen, end = set(), threading.Event()

    def read():
        with psycopg.connect(database, autocommit=True) as connection:
            while not end.is_set():
                seen.add(connection.execute("SELECT count(*) FROM t").fetchone()[0])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        until(lambda: 0 in seen, 10, "the reader reads")
        for batch in range(8):
            base = 3000 * batch
            committables = query.prepare(
                batch, *(rows(*range(base + 1000 * i, base + 1000 * (i + 1))) for i in range(3))
            )
            query.commit(batch, committables)
            until(lambda batch=batch: 3000 * (batch + 1) in seen, 10, "the reader sees the batch")
    finally:
        end.set()
        reader.join()
    assert seen == {3000 * batch for batch in range(9)}


def test_a_conflict_that_came_after_the_decision_is_told_and_waited_for(database):
    query = Query(database, "CREATE TABLE t (id bigint UNIQUE, v text)")
    committables = query.prepare(0, rows(1, 2, 3))
    query.sink.close()
    query.execute("INSERT INTO t VALUES (2, 'foreign')")
    later = query.successor()
    for _ in range(2):
        with pytest.raises(
            SinkUnavailableError,
            match=r"is decided.*The first such row: id='2'.*Remove the conflict",
        ):
            later.commit(0, committables)
    query.execute("DELETE FROM t WHERE v = 'foreign'")
    assert len(later.commit(0, committables).retired) == 1
    assert later.ids() == [1, 2, 3]


def test_rows_that_somebody_keeps_locked_fail_the_batch_in_time_and_with_a_hint(database):
    query = Query(database, KEYED, key="id", lock_timeout_s=0.2, retry_for_s=0.5)
    query.execute("INSERT INTO t VALUES (1, 'old')")
    committable = query.write(0, rows(1, v="new"))
    with psycopg.connect(database) as somebody:
        somebody.execute("UPDATE t SET v = 'theirs' WHERE id = 1")
        with pytest.raises(SinkUnavailableError, match=r"lock timeout.*pg_locks"):
            query.sink.confirm([committable])
        somebody.rollback()
    query.sink.confirm([committable])
    query.commit(0, [committable])
    assert query.all() == [(1, "new")]


def test_two_that_commit_the_same_batch_at_once_merge_it_once(database):
    query = Query(database)
    committables = query.prepare(0, rows(*range(500)))
    query.sink.close()
    others = [query.successor() for _ in range(3)]
    reports = []
    threads = [
        threading.Thread(target=lambda other=other: reports.append(other.commit(0, committables)))
        for other in others
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(report.retired) for report in reports] == [1, 1, 1]
    assert query.ids() == list(range(500))


def test_a_committable_is_small_plain_json_without_secrets(database):
    query = Query(database)
    committable = query.write(0, rows(1))
    text = json.dumps(committable)
    assert len(text) < 600
    assert committable["count"] == 1
    password = query.sink.secrets()["password"]
    assert password not in text
    assert password not in repr(query.sink)
    query.sink.abort([committable])


def test_an_event_trigger_that_changes_staging_tables_is_told(database):
    # The merge would write the column that it adds over the table's own default.
    query = Query(database, "CREATE TABLE t (id bigint, v text, at text DEFAULT 'the table')")
    query.execute(
        "CREATE FUNCTION adds() RETURNS event_trigger LANGUAGE plpgsql AS $$ DECLARE r record; "
        "BEGIN FOR r IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP EXECUTE "
        "'ALTER TABLE ' || r.object_identity || ' ADD COLUMN at text DEFAULT ''the trigger'''; "
        "END LOOP; END $$"
    )
    query.execute(
        "CREATE EVENT TRIGGER adds ON ddl_command_end WHEN TAG IN ('CREATE TABLE', "
        "'CREATE TABLE AS') EXECUTE FUNCTION adds()"
    )
    with pytest.raises(AttemptFailedError, match=r"has \['id', 'v', 'at'\]: an event trigger"):
        query.write(0, rows(1))
    query.execute("DROP EVENT TRIGGER adds")
    query.commit(0, query.prepare(0, rows(1)))
    assert query.execute("SELECT id, at FROM t") == [(1, "the table")]
