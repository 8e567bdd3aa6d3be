"""Deferred constraints are checked before the decision, also those that a trigger defers again."""

import logging
import threading
from contextlib import suppress

import psycopg
import pytest

from onceforall.errors import AttemptFailedError, RefusedRecordError, SinkUnavailableError
from onceforall.sinks.postgres import deferred
from support.postgres_sink import KEYED, Query, prepared, rows, staging_tables

pytestmark = pytest.mark.postgres

LIKED = """
CREATE TABLE parent (id bigint PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 9);
CREATE TABLE audit (id bigint CONSTRAINT audit_fk REFERENCES parent DEFERRABLE);
"""
# A deferred trigger that defers the foreign key of what it writes.
AUDITED = f"""
{KEYED}; {LIKED}
CREATE FUNCTION audit_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    SET CONSTRAINTS audit_fk DEFERRED; INSERT INTO audit VALUES (NEW.id); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER audit_it AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION audit_it();
"""
# The same behind a row of tables, each of whose triggers defers the next one.
PASSED_ON = """
CREATE TABLE step{n} (id bigint);
CREATE FUNCTION step{n}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    SET CONSTRAINTS {next} DEFERRED; INSERT INTO {into} VALUES (NEW.id); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER step{n} AFTER INSERT ON step{n} DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION step{n}();
"""


def chain(length):
    """Tables step0, step1, ... of which the last one writes to audit."""
    ends = {length - 1: ("audit_fk", "audit")}
    steps = [
        PASSED_ON.format(n=n, next=ends.get(n, (f"step{n + 1}",))[0],
                         into=ends.get(n, ("", f"step{n + 1}"))[1])
        for n in range(length)
    ]  # fmt: skip
    return f"{LIKED} {' '.join(steps)}"


@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_what_a_deferred_trigger_defers_again_is_refused_before_the_decision(database, mode):
    query = Query(database, AUDITED, mode=mode, key="id")

    def written(batch, *ids):
        committables = [query.write(batch, rows(*ids))]
        return committables if mode == "upsert" else query.sink.confirm(committables)

    first = written(0, 1, 2)
    if mode != "upsert":
        query.commit(0, first)
    assert query.ids() == [1, 2]
    with pytest.raises(RefusedRecordError, match=r"audit_fk.*The first such row: id='10'"):
        written(1, *range(3, 50))
    query.sink.close()
    query.sweep(own=True)
    assert (staging_tables(database), prepared(database)) == ([], [])
    assert query.ids() == [1, 2]


@pytest.mark.parametrize("length", [1, 7, deferred.MOST_PASSES - 3])
def test_triggers_that_defer_one_another_in_turn_are_followed_to_the_end(database, length):
    query = Query(database, KEYED)
    query.execute(chain(length))
    query.execute(
        "CREATE FUNCTION begin_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "SET CONSTRAINTS step0 DEFERRED; INSERT INTO step0 VALUES (NEW.id); RETURN NULL; END $$;"
        "CREATE TRIGGER begin_it AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION begin_it()"
    )
    query.commit(0, query.prepare(0, rows(1, 2)))
    committables = [query.write(1, rows(3, 77))]
    with pytest.raises(RefusedRecordError, match="audit_fk"):
        query.sink.confirm(committables)
    query.sink.abort(committables)
    assert query.ids() == [1, 2]
    assert query.execute("SELECT id FROM audit ORDER BY id") == [(1,), (2,)]


def test_what_is_deferred_where_a_staging_table_is_dropped_is_checked_too(database):
    query = Query(database, KEYED)
    query.execute(LIKED)
    query.execute(
        "CREATE FUNCTION on_drop() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
        "SET CONSTRAINTS audit_fk DEFERRED; INSERT INTO audit VALUES (77); END $$;"
        "CREATE EVENT TRIGGER on_drop ON sql_drop EXECUTE FUNCTION on_drop()"
    )
    committables = [query.write(0, rows(1))]
    with pytest.raises(RefusedRecordError, match="audit_fk"):
        query.sink.confirm(committables)
    query.execute("DROP EVENT TRIGGER on_drop")
    query.sink.abort(committables)
    assert query.ids() == []


ENDLESS = """
CREATE TABLE audit (id bigint);
CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    SET CONSTRAINTS again DEFERRED; INSERT INTO audit VALUES (NEW.id); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER again AFTER INSERT ON audit DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION again();
CREATE FUNCTION begin_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO audit VALUES (NEW.id); RETURN NULL; END $$;
CREATE TRIGGER begin_it AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION begin_it();
"""


@pytest.mark.parametrize("mode", ["prepared", "upsert"])
def test_a_task_whose_triggers_defer_themselves_without_end_fails_and_does_not_hang(database, mode):
    """PREPARE TRANSACTION and the task's COMMIT would run them for ever."""
    query = Query(database, KEYED, mode=mode, key="id")
    query.execute(ENDLESS)
    # No time-out of the server's ends what runs behind its last statement.
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^ofa-t'"
    watch = threading.Timer(15, query.execute, [end])
    watch.start()
    try:
        with pytest.raises(AttemptFailedError, match=r"public\.t.*SET CONSTRAINTS … DEFERRED"):
            query.write(0, rows(1))
    finally:
        watch.cancel()
    assert (query.ids(), prepared(database)) == ([], [])


@pytest.mark.parametrize("mode", ["prepared", "upsert"])
def test_what_a_task_looks_for_with_leaves_no_marker_but_its_own(database, mode):
    query = Query(database, KEYED, mode=mode, key="id")
    committable = query.write(0, rows(1))
    if mode == "prepared":
        query.commit(0, query.sink.confirm([committable]))
    found = {name for (name,) in query.execute("SELECT name FROM onceforall.markers")}
    assert found == (
        {"fence", "upserting"}
        if mode == "upsert"
        else {"", "confirmed", "fence", committable["name"]}
    )


def test_a_trigger_that_defers_itself_without_end_is_refused_and_not_decided(database):
    """At COMMIT the server would run it for ever."""
    query = Query(database, KEYED, retry_for_s=3)
    query.execute(ENDLESS)
    committables = [query.write(0, rows(1))]
    with pytest.raises(AttemptFailedError, match=r"public\.t.*SET CONSTRAINTS … DEFERRED"):
        query.sink.confirm(committables)
    query.sink.abort(committables)
    assert query.ids() == []


def test_a_batch_that_defers_nothing_writes_the_marker_only_for_two_looks(database):
    """Each look leaves a dead row in the table of markers."""
    query = Query(database)
    query.commit(0, query.prepare(0, rows(1)))
    committables = [query.write(1, rows(2))]
    query.sink.confirm(committables)
    held = query.sink._committer._merger.held.connection
    written = held.execute(
        "SELECT n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = 'markers'"
    ).fetchone()
    assert written == (3,)
    query.commit(1, committables)


REFUSES_AT_COMMIT = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'not today'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse();
"""


def test_a_commit_that_the_server_refuses_is_no_lost_answer_and_no_change_of_the_database(
    database, monkeypatch, caplog
):
    """As for a batch that an earlier release decided, which left something deferred."""
    monkeypatch.setattr(deferred, "check", lambda connection: None)
    monkeypatch.setattr(deferred, "exhaust", lambda *given: None)
    query = Query(database, KEYED)
    query.execute(REFUSES_AT_COMMIT)
    committables = query.prepare(0, rows(1))
    with (
        caplog.at_level(logging.WARNING, "onceforall"),
        pytest.raises(SinkUnavailableError) as caught,
    ):
        query.commit(0, committables)
    logged = " ".join(record.getMessage() for record in caplog.records)
    assert "refused the COMMIT: not today" in logged
    assert "COMMIT is lost" not in logged
    told = str(caught.value)
    assert "Batch 0 is decided" in told
    assert "refuses the COMMIT" in told
    assert "not today" in told
    assert "changed" not in told
    with pytest.raises(SinkUnavailableError, match="refuses the COMMIT.*not today"):
        query.commit(0, committables)
    query.execute("DROP TRIGGER refuse ON t")
    assert len(query.commit(0, committables).retired) == 1
    assert query.ids() == [1]


def test_the_answer_of_a_server_that_ends_the_connection_is_lost(database, caplog):
    query = Query(database, KEYED)
    committables = query.prepare(0, rows(1))
    held = query.sink._committer._merger.held.connection
    query.execute("SELECT pg_terminate_backend(%s, 5000)", held.info.backend_pid)
    with caplog.at_level(logging.WARNING, "onceforall"), suppress(psycopg.Error):
        query.commit(0, committables)
    assert "the answer to COMMIT is lost" in caplog.text
    assert query.ids() == [1]
