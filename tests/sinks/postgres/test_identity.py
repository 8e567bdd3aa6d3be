"""Which database it is, and whether it has what the commit log says is complete there."""

import copy
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from onceforall.driver.swept import swept
from onceforall.errors import (
    AttemptFailedError,
    CheckpointMismatchError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import StartInfo, Sweep
from support.postgres_sink import KEYED, Query, rows, staging_tables

pytestmark = pytest.mark.postgres

MODES = ["staged", "prepared", "upsert"]


def made(database, mode, **options):
    return Query(database, KEYED, mode=mode, key="id", **options)


def write(query, batch, after=None, number=None):
    """Take a batch to its end as the library does, with the batch before it from the commit log."""
    committable = query.write(batch, rows(batch if number is None else number))
    if committable is not None:
        given = committable if after is None else {**committable, "after": after}
        decided = query.sink.confirm([given])
        assert decided[0]["identity"] == identity(query)
        assert len(query.commit(batch, decided).retired) == 1


def start(query):
    return StartInfo(query.id, query.name)


def identity(query):
    return query.sink.identity(start(query))


def made_again(url):
    """Drop the database and create one of the same name."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(
        psycopg.conninfo.make_conninfo(url, dbname="postgres"), autocommit=True
    ) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def test_a_database_that_was_made_again_under_its_name_is_another_one(database):
    before = identity(made(database, "staged"))
    assert identity(Query(database, None, key="id")) == before
    made_again(database)
    assert identity(made(database, "staged")) != before


@pytest.mark.parametrize("mode", MODES)
def test_it_is_known_which_batches_are_there(database, mode):
    query = made(database, mode)
    assert query.sink.holds(start(query), 0) is False
    write(query, 3)
    assert query.sink.holds(start(query), 3)
    assert query.sink.holds(start(query), 2)
    assert query.sink.holds(start(query), 4) is False
    assert query.sink.holds(StartInfo(query.id, "another"), 3) is False
    for other in MODES:
        assert query.successor(mode=other).sink.holds(start(query), 3), other


def test_what_is_only_confirmed_is_not_there(database):
    query = made(database, "prepared")
    write(query, 0)
    decided = query.prepare(5, rows(1))
    assert query.sink.holds(start(query), 5) is False
    query.sink.abort(decided)


def taken_along(query, schema):
    """As docs/changing.md says."""
    query.execute(f"CREATE SCHEMA {schema}")
    query.execute(f"CREATE TABLE {schema}.markers (LIKE onceforall.markers INCLUDING ALL)")
    query.execute(
        f"INSERT INTO {schema}.markers SELECT * FROM onceforall.markers WHERE query_id = "
        f"'{query.id}'"
    )


def test_markers_in_the_schema_of_before_still_count(database):
    query = made(database, "staged")
    write(query, 0)
    taken_along(query, "elsewhere")
    query.execute("UPDATE elsewhere.markers SET batch = -1")
    moved = query.successor(staging_schema="elsewhere")
    assert moved.sink.holds(start(query), 0)
    assert moved.sink.holds(start(query), 1) is False
    assert moved.sink.holds(replace(start(query), place={"schema": "onceforall"}), 0)
    # What the decision says it had is there, and lacks the batch.
    assert moved.sink.holds(replace(start(query), place={"schema": "elsewhere"}), 0) is False
    # It was renamed since.
    assert moved.sink.holds(replace(start(query), place={"schema": "gone"}), 0)
    write(moved, 1, after=0)
    assert query.ids() == [0, 1]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_copy_of_the_markers_is_no_proof_that_a_restored_database_has_the_batch(database, mode):
    query = made(database, mode)
    write(query, 0)
    write(query, 1, after=0)
    taken_along(query, "set_aside")
    # As a restored backup would be.
    query.execute("DELETE FROM t WHERE id = 1")
    query.execute("UPDATE onceforall.markers SET batch = 0, names = '' WHERE batch = 1")
    place = {"schema": "onceforall"}
    told = replace(start(query), place=place)
    assert query.sink.holds(told, 0)
    assert query.sink.holds(told, 1) is False
    committable = query.write(2, rows(2))
    with pytest.raises(AttemptFailedError, match="restored from an older state"):
        query.sink.confirm([{**committable, "after": 1, "after_place": place}])
    query.sink.abort([committable])


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_what_is_prepared_stays_where_the_database_is_behind_the_log(database, mode):
    """As on a standby that was promoted without the last commit."""
    query = made(database, mode)
    write(query, 0)
    committable = query.write(1, rows(1))
    sweep = Sweep(query.id, query.name, 9, reached=1, place={"schema": "onceforall"})
    with pytest.raises(CheckpointMismatchError, match="may be all that is left of its rows"):
        swept(query.sink, sweep)
    decided = query.sink.confirm([committable])
    assert decided[0]["place"] == sweep.place
    assert len(query.commit(1, decided).retired) == 1
    assert swept(query.sink, sweep) == 0
    assert query.ids() == [0, 1]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_database_that_is_behind_the_log_confirms_nothing(database, mode):
    query = made(database, mode)
    for batch in range(3):
        write(query, batch, after=batch - 1 if batch else None)
    # As a restored backup would be: what batch 2 has written is gone, the markers of batch 1 are
    # there again.
    query.execute("DELETE FROM t WHERE id = 2")
    query.execute("UPDATE onceforall.markers SET batch = 1, names = '' WHERE batch = 2")
    assert query.sink.holds(start(query), 1)
    assert query.sink.holds(start(query), 2) is False
    committable = query.write(3, rows(3))
    with pytest.raises(AttemptFailedError, match="restored from an older state"):
        query.sink.confirm([{**committable, "after": 2}])
    query.sink.abort([committable])
    assert query.ids() == [0, 1]
    write(query, 3, after=1)
    assert query.ids() == [0, 1, 3]


def committed_by_hand(query, *names):
    """As a standby has them that was promoted before the others' COMMIT PREPARED came there."""
    for name in names:
        query.execute(sql.SQL("COMMIT PREPARED {}").format(sql.Literal(name)))


def test_a_database_that_has_a_part_of_a_prepared_batch_is_behind_the_log(database):
    query = made(database, "prepared")
    write(query, 0)
    decided = query.prepare(1, rows(1), rows(2))
    committed_by_hand(query, decided[0]["name"])
    assert query.sink.holds(start(query), 0)
    assert query.sink.holds(start(query), 1) is False
    next_one = query.write(2, rows(3))
    with pytest.raises(AttemptFailedError, match="has batch 1 as a whole"):
        query.sink.confirm([{**next_one, "after": 1}])
    query.sink.abort([next_one])
    assert len(query.successor().commit(1, decided).retired) == 2
    assert query.sink.holds(start(query), 1)
    assert query.ids() == [0, 1, 2]


def test_a_prepared_batch_of_which_a_part_is_lost_is_not_there(database):
    query = made(database, "prepared")
    decided = query.prepare(0, rows(1), rows(2))
    query.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(decided[0]["name"])))
    report = query.commit(0, decided)
    assert (len(report.retired), len(report.lost)) == (1, 1)
    assert query.sink.holds(start(query), 0) is False


def test_markers_of_a_release_that_marked_no_batch_as_complete_still_count(database):
    query = made(database, "prepared")
    write(query, 0)
    committed_by_hand(query, *(c["name"] for c in query.prepare(1, rows(1))))
    query.execute("UPDATE onceforall.markers SET names = ''")
    assert query.sink.holds(start(query), 1)
    write(query, 2, after=1)
    assert query.ids() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_batch_that_is_complete_is_not_confirmed_again(database, mode):
    """An older copy of the checkpoint writes it again, by other tasks."""
    query = Query(database, mode=mode)
    for batch in range(2):
        write(query, batch, after=batch - 1 if batch else None)
    later = query.successor()
    again = later.write(1, rows(1))
    with pytest.raises(AttemptFailedError, match="an older copy, then put the newer one back"):
        later.sink.confirm([{**again, "after": 0}])
    later.sink.abort([again])
    assert query.ids() == [0, 1]


def test_a_name_whose_transaction_was_committed_says_that_the_checkpoint_is_older(database):
    query = Query(database, mode="prepared")
    write(query, 0)
    with pytest.raises(AttemptFailedError, match="the checkpoint is an older copy"):
        query.write(0, rows(0))
    assert query.ids() == [0]


@pytest.mark.parametrize("mode", MODES)
def test_a_schema_that_was_renamed_is_told_before_another_one_is_made(database, mode):
    query = made(database, mode)
    write(query, 0)
    query.execute("ALTER SCHEMA onceforall RENAME TO moved")
    for schema in ("onceforall", "fresh"):
        with pytest.raises(
            SinkCheckError,
            match=f"The schema {schema} has no markers of this query and sink, and moved "
            "has.*staging_schema='moved'",
        ):
            query.successor(staging_schema=schema)
        assert not query.execute("SELECT FROM pg_namespace WHERE nspname = %s", schema)
    made_for_others = Query(database, None)
    write(made_for_others, 0, number=50)
    with pytest.raises(SinkCheckError, match="and moved has"):
        query.successor()
    query.execute("DROP SCHEMA onceforall CASCADE")
    query.execute("ALTER SCHEMA moved RENAME TO onceforall")
    write(query.successor(), 1, after=0)


def test_another_schema_may_be_named_where_the_markers_are_taken_along(database):
    query = made(database, "staged")
    write(query, 0)
    taken_along(query, "fresh")
    write(query.successor(staging_schema="fresh"), 1, after=0)
    assert query.ids() == [0, 1]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
@pytest.mark.parametrize(
    "moving",
    [
        "ALTER SCHEMA onceforall RENAME TO moved",
        "CREATE SCHEMA moved; ALTER TABLE onceforall.markers SET SCHEMA moved",
    ],
)
@pytest.mark.parametrize("knows_its_table", [True, False])
@pytest.mark.sample(3)
def test_a_committed_batch_whose_markers_were_moved_is_in_doubt_and_not_lost(
    database, mode, moving, knows_its_table
):
    """It would be written again, and be there twice."""
    query = made(database, mode)
    write(query, 0)
    decided = query.prepare(1, rows(1))
    if not knows_its_table:
        decided = [
            {key: value for key, value in each.items() if key != "markers"} for each in decided
        ]
    assert len(query.commit(1, decided).retired) == 1
    query.execute(moving)
    fresh(query)
    report = query.commit(1, decided)
    assert not report.lost
    assert not report.retired
    assert (
        "the markers that tell whether batch 1 is complete lie in moved.markers now"
        in report.in_doubt[0].reason
    )
    query.execute("DROP SCHEMA onceforall CASCADE")
    query.execute("ALTER SCHEMA moved RENAME TO onceforall")
    assert len(query.successor().commit(1, decided).retired) == 1
    assert query.ids() == [0, 1]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
@pytest.mark.parametrize("who", ["a start", "a start behind another query's", "the same run"])
def test_a_committed_batch_whose_markers_were_dropped_is_in_doubt_and_not_lost(database, mode, who):
    """A run that asks again would ask for ever, and say that rows wait which nobody has."""
    query = made(database, mode)
    decided = query.prepare(1, rows(1))
    assert len(query.commit(1, decided).retired) == 1
    query.execute("DROP SCHEMA onceforall CASCADE")
    if who == "a start behind another query's":
        fresh(query)
    report = (query if who == "the same run" else query.successor()).commit(1, decided)
    assert not report.lost
    assert not report.retired
    assert "was dropped, and perhaps made again" in report.in_doubt[0].reason


@pytest.mark.parametrize("who", ["a start behind another query's", "the same run"])
@pytest.mark.parametrize(
    "ddl", ["DROP TABLE onceforall.markers", "ALTER TABLE onceforall.markers RENAME TO old"]
)
def test_staging_tables_that_a_dump_has_kept_do_not_have_a_committed_batch_merged_again(
    database, ddl, who
):
    """The merge leaves them, and the answer to its COMMIT is lost."""
    query = made(database, "staged")
    with psycopg.connect(database) as dump:
        parts = query.write(1, rows(1)), query.write(1, rows(2), partition=1)
        for table in staging_tables(database):
            dump.execute(f"LOCK TABLE onceforall.{table} IN ACCESS SHARE MODE")
        decided = list(query.sink.confirm(parts))
        held = query.sink._committer._merger.held
        held.connection.execute("COMMIT")
        held.connection.close()
        query.execute(ddl)
        if who == "the same run" and "RENAME" in ddl:
            with pytest.raises(SinkUnavailableError, match=r"lie in onceforall\.old now"):
                query.commit(1, decided)
        fresh(query)
        later = query if who == "the same run" else bare_successor(query)
        assert later.commit(1, decided).in_doubt
        assert query.ids() == [1, 2]
        assert staging_tables(database)
    query.sink.close()
    for table in staging_tables(database):
        query.execute(f"DROP TABLE onceforall.{table}")


def test_a_merge_that_is_held_while_its_schema_is_renamed_may_still_be_committed(database):
    """By a driver that was frozen: its marker is nowhere to be seen, and that proves nothing."""
    frozen = made(database, "staged")
    write(frozen, 0)
    decided = frozen.prepare(1, rows(1))
    frozen.execute("ALTER SCHEMA onceforall RENAME TO moved")
    fresh(frozen)
    report = Query.commit(bare_successor(frozen), 1, decided)
    assert not report.lost
    assert "lie in moved.markers now" in report.in_doubt[0].reason
    assert len(frozen.commit(1, decided).retired) == 1
    assert frozen.ids() == [0, 1]


@pytest.mark.parametrize("who", ["a start", "the same run"])
def test_markers_that_were_taken_along_do_not_lead_a_later_batch_back(database, who):
    """Those of a batch that an upsert began and gave up lie in the schema of before."""
    before = Query(database, KEYED, mode="upsert", key="id")
    before.write(1, rows(1))
    before.sink.close()
    taken_along(before, "fresh")
    query = before.successor(mode="staged", staging_schema="fresh")
    decided = query.prepare(1, rows(1), rows(2))
    merger = query.sink._committer._merger
    later = query
    if who == "the same run":
        query.execute("SELECT pg_terminate_backend(%s)", merger.held.connection.info.backend_pid)
    else:
        merger.release()
        later = bare_successor(query)
    assert later.commit(1, decided).retired == tuple(decided)
    assert query.ids() == [1, 2]


def test_a_batch_is_merged_again_while_somebody_locks_the_markers_of_another_query(database):
    other = Query(database, KEYED, key="id", staging_schema="theirs")
    other.commit(0, other.prepare(0, rows(7)))
    query = Query(database, None, key="id")
    decided = query.prepare(1, rows(1))
    query.sink._committer._merger.release()
    with psycopg.connect(database) as ddl:
        ddl.execute("LOCK TABLE theirs.markers IN ACCESS EXCLUSIVE MODE")
        assert query.commit(1, decided).retired == tuple(decided)
    assert query.ids() == [1, 7]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_what_is_gone_while_the_markers_are_in_their_place_is_lost(database, mode):
    query = made(database, mode)
    write(query, 0)
    decided = query.prepare(1, rows(1))
    query.sink.close()
    query.sink.abort(decided)
    assert len(query.commit(1, decided).lost) == 1


def fresh(query):
    """Let another query make what was moved anew."""
    query.execute("CREATE SCHEMA IF NOT EXISTS onceforall")
    Query(query.url, None)


def bare_successor(query):
    """The next run, of which a start would have been refused."""
    later = copy.copy(query)
    later.generation += 1
    later.sink = copy.copy(query.sink)
    return later
