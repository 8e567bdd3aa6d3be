"""Which database it is, and whether it has what the commit log says is complete there."""

import psycopg
import pytest
from psycopg import sql

from onceforall.errors import AttemptFailedError
from onceforall.sink import StartInfo
from support.postgres_sink import KEYED, Query, rows

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
    with psycopg.connect(psycopg.conninfo.make_conninfo(url, dbname="postgres"), autocommit=True) as connection:
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


def test_markers_in_the_schema_of_before_still_count(database):
    query = made(database, "staged")
    write(query, 0)
    moved = query.successor(staging_schema="elsewhere")
    assert moved.sink.holds(start(query), 0)
    assert moved.sink.holds(start(query), 1) is False
    write(moved, 1, after=0)
    assert query.ids() == [0, 1]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_database_that_is_behind_the_log_confirms_nothing(database, mode):
    query = made(database, mode)
    for batch in range(3):
        write(query, batch, after=batch - 1 if batch else None)
    # As a restored backup would be: what batch 2 has written is gone, the markers of batch 1 are there again.
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
