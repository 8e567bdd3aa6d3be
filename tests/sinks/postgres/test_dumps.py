"""A pg_dump of the database keeps each table that it has seen locked to its end."""

import logging
import re
import shlex
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from onceforall.embedded.postgres_binaries import find_binaries
from onceforall.errors import SinkUnavailableError
from onceforall.sink import StartInfo
from onceforall.sinks.postgres import staging
from support.databases import drop_database, make_database
from support.postgres_sink import KEYED, Query, rows, staging_tables

pytestmark = pytest.mark.postgres

PAGE = Path(__file__).parents[3] / "docs" / "postgres.md"
HOLDS = r"pg_dump \(pid \d+\) has them locked.*--exclude-table='onceforall\.stg_\*'"


@contextmanager
def dumping(url, *, but=0):
    """A session as pg_dump's, in the middle of the dump."""
    with psycopg.connect(url, application_name="pg_dump") as dump:
        dump.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for table in sorted(staging_tables(url))[but:]:
            dump.execute(
                sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(
                    sql.Identifier("onceforall", table)
                )
            )
        yield
        dump.rollback()


def test_a_merge_leaves_the_staging_tables_that_a_dump_has_locked_and_a_later_batch_drops_them(
    database, caplog
):
    query = Query(database, KEYED, key="id", lock_timeout_s=30, retry_for_s=60)
    query.commit(0, query.prepare(0, rows(1)))
    committables = [query.write(1, rows(1, 2), partition=0), query.write(1, rows(3), partition=1)]
    with dumping(database, but=1), caplog.at_level(logging.INFO, "onceforall"):
        began = time.monotonic()
        committables = list(query.sink.confirm(committables))
        assert len(query.commit(1, committables).retired) == 2
        assert time.monotonic() - began < 15
        assert query.ids() == [1, 2, 3]
        left = staging_tables(database)
        assert len(left) == 1
        assert re.search(rf"1 of the staging tables .*{left[0]}.*{HOLDS}", caplog.text)
        # What is left is not merged again, by whomever.
        assert len(query.successor().commit(1, committables).retired) == 2
        query.commit(2, query.prepare(2, rows(4)))
        assert staging_tables(database) == left
    query.commit(3, query.prepare(3, rows(5)))
    assert staging_tables(database) == []
    assert query.all() == [(n, "x") for n in range(1, 6)]


def test_a_second_merge_does_not_wait_for_a_dump_and_the_next_run_sweeps_what_it_left(database):
    query = Query(database, KEYED, key="id", lock_timeout_s=30)
    committables = query.prepare(0, rows(1), rows(2))
    query.sink.close()  # The driver dies behind the decision.
    later = query.successor()
    with dumping(database):
        assert len(later.commit(0, committables).retired) == 2
        assert later.ids() == [1, 2]
        assert len(staging_tables(database)) == 2
    assert later.sweep() == 2
    assert staging_tables(database) == []
    assert len(later.commit(0, committables).retired) == 2
    assert later.ids() == [1, 2]


def test_what_can_not_be_removed_for_a_dump_names_it_and_the_remedy(database):
    query = Query(database, KEYED, key="id", lock_timeout_s=30)
    committables = [query.write(0, rows(1), partition=0), query.write(0, rows(2), partition=1)]
    with dumping(database, but=1):
        with pytest.raises(SinkUnavailableError, match=HOLDS):
            query.sink.abort(committables)
        assert len(staging_tables(database)) == 1
        with pytest.raises(SinkUnavailableError, match=HOLDS):
            query.successor().sweep()
    query.sink.abort(committables)
    assert staging_tables(database) == []


def program(name):
    found = shutil.which(name, path=find_binaries().folder) or shutil.which(name)
    assert found, f"no {name}: install PostgreSQL's client, such as postgresql-client"
    return found


def test_the_dump_of_the_page_succeeds_while_batches_are_written_and_its_restore_has_the_markers(
    postgres, database, tmp_path
):
    page = PAGE.read_text()
    command = re.search(r"`(pg_dump [^`]*)`", page).group(1)
    assert "onceforall.stg_" in command
    words = [database if word == "ads" else word for word in shlex.split(command)[1:]]
    query = Query(database, KEYED, key="id")
    for n in range(100):
        query.execute(f"CREATE TABLE other{n} (id bigint PRIMARY KEY)")
    query.commit(0, query.prepare(0, rows(0)))
    end, failed = threading.Event(), []

    def write():
        batch = 0
        try:
            while not end.is_set():
                batch += 1
                query.commit(batch, query.prepare(batch, rows(batch), rows(-batch)))
        except Exception as error:
            failed.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for n in range(4):
            done = subprocess.run(
                [program("pg_dump"), *words, "-f", str(tmp_path / f"{n}.sql")],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
    finally:
        end.set()
        writing.join()
    assert failed == []
    name = make_database(postgres)
    try:
        restored = postgres.url(name)
        subprocess.run(
            [program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(tmp_path / "3.sql"),
             "-d", restored],
            capture_output=True, check=True,
        )  # fmt: skip
        assert staging_tables(restored) == []
        copy = Query(restored, None, query=query.id, key="id")
        last = max(copy.ids())
        assert copy.ids() == list(range(-last, last + 1))
        start = StartInfo(copy.id, copy.name)
        assert [copy.sink.holds(start, batch) for batch in (last, last + 1)] == [True, False]
        copy.sink.close()
    finally:
        drop_database(postgres, name)


@pytest.mark.parametrize(
    ("applications", "is_dump"),
    [(["pg_dump"], True), ([""], True), (["ofa-m-1-2"], False), (["ofa-m-1-2", "pg_dump"], True)],
)
def test_the_remedy_for_a_locked_staging_table_goes_by_who_has_it_locked(
    monkeypatch, applications, is_dump
):
    found = [staging.Holder("stg_1", pid, each) for pid, each in enumerate(applications)]
    monkeypatch.setattr(staging, "holders", lambda *_: found)
    words = staging.kept_locked(None, "onceforall", ["stg_1"])
    assert ("pg_dump need not" in words) == is_dump
    assert ("pg_terminate_backend" in words) == (not is_dump)


@pytest.mark.parametrize(
    ("kept", "drops", "left"),
    [
        (["b"], {("a", "c"): True}, ["b"]),
        (["b"], {("a", "c"): False}, ["a", "b", "c"]),
        ([], {}, ["a", "b", "c"]),
        (["a", "b", "c"], {}, ["a", "b", "c"]),
    ],
)
def test_what_could_not_be_dropped_is_left_whoever_keeps_it_by_now(monkeypatch, kept, drops, left):
    """Who kept it may have ended between the drop and the look."""
    monkeypatch.setattr(staging, "set_lock_timeout", lambda *_: None)
    monkeypatch.setattr(
        staging, "holders", lambda *_: [staging.Holder(table, 1, "pg_dump") for table in kept]
    )
    monkeypatch.setattr(staging, "_dropped", lambda _, __, some: drops.get(tuple(some), False))
    assert staging.drop_unlocked(None, "onceforall", ["a", "b", "c"], 1.0) == left
