"""A COMMIT that waits for a synchronous standby is no success before the standby has it."""

import threading
from contextlib import contextmanager

import pytest

from onceforall.embedded.postgres import EmbeddedPostgres
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sinks.postgres import replication
from support.databases import make_database
from support.postgres_sink import KEYED, Query, prepared, rows
from support.waiting import until

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server():
    with EmbeddedPostgres(settings={"max_prepared_transactions": 10}) as server:
        yield server


@pytest.fixture
def query(server, request):
    mode = request.getfixturevalue("mode") if "mode" in request.fixturenames else "staged"
    query = Query(server.url(make_database(server)), KEYED, key="id", mode=mode, retry_for_s=3)
    yield query
    wait_for_standby(query, "")
    query.sink.close()


def wait_for_standby(query, name):
    query.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    query.execute("SELECT pg_reload_conf()")
    until(lambda: query.execute("SHOW synchronous_standby_names") == [(name,)])


def waiting(query, statement="%"):
    """The sessions that wait for a standby."""
    found = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE %s"
    return [pid for (pid,) in query.execute(found, statement)]


@contextmanager
def in_background(action):
    """What the action came to, filled in when it ends; it has ended behind the block."""
    came_to = []

    def run():
        try:
            came_to.append(action())
        except Exception as error:
            came_to.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield came_to
    finally:
        thread.join(60)
    assert came_to


@pytest.mark.parametrize("mode", ["staged", "prepared"])
@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_whose_wait_for_a_standby_ends_early_is_asked_again(query, mode, how):
    committables = query.prepare(0, rows(1))
    wait_for_standby(query, "nobody")
    with in_background(lambda: query.commit(0, committables)) as came_to:
        try:
            until(lambda: waiting(query))
            (first,) = waiting(query)
            query.execute(f"SELECT {how}(%s)", first)
            until(lambda: came_to or waiting(query, "%emit_message%"))
            assert not came_to or isinstance(came_to[0], SinkUnavailableError)
            assert query.ids() == [1]
        finally:
            wait_for_standby(query, "")
    assert len(query.successor().commit(0, committables).retired) == 1
    assert query.ids() == [1]


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_marker_that_a_crash_left_without_a_standby_is_no_proof_until_it_is_replicated(
    server, query, mode
):
    committables = query.prepare(0, rows(1))
    wait_for_standby(query, "nobody")
    with in_background(lambda: query.commit(0, committables)):
        until(lambda: waiting(query))
        server.kill()
    server.restart()
    assert (query.ids(), prepared(query.url)) == ([1], [])
    successor = query.successor()
    with in_background(lambda: successor.commit(0, committables)) as came_to:
        try:
            until(lambda: came_to or waiting(query))
            assert not came_to
            query.execute("SELECT pg_cancel_backend(%s)", *waiting(query))
            until(lambda: came_to)
            assert isinstance(came_to[0], SinkUnavailableError)
            assert "standby was cancelled" in str(came_to[0])
        finally:
            wait_for_standby(query, "")
    assert len(successor.commit(0, committables).retired) == 1
    assert query.ids() == [1]


@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_a_task_that_waits_for_a_standby_is_told_in_the_log(query, mode, caplog, monkeypatch):
    monkeypatch.setattr(replication, "_TELL_AFTER_S", 0.05)
    wait_for_standby(query, "nobody")
    with in_background(lambda: query.prepare(0, rows(1))):
        try:
            until(lambda: "has no answer for" in caplog.text, deadline_s=60)
            (session,) = waiting(query)
        finally:
            wait_for_standby(query, "")
    told = next(line for line in caplog.messages if "has no answer" in line)
    assert f"session {session} of" in told
    assert "synchronous_standby_names" in told


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_who_commits_locally_waits_for_no_standby_when_a_marker_is_read(query, mode):
    committables = query.prepare(0, rows(1))
    query.commit(0, committables)
    name = query.execute("SELECT quote_ident(current_database())")[0][0]
    query.execute(f"ALTER DATABASE {name} SET synchronous_commit = local")
    wait_for_standby(query, "nobody")
    assert len(query.successor().commit(0, committables).retired) == 1


FUNCTION = "CREATE FUNCTION {} RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {} RETURN new; END'"
LATER = "AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (new.n {}) EXECUTE"
LATE = [
    "CREATE TABLE late (n int)",
    FUNCTION.format("begins()", "INSERT INTO late VALUES (4);"),
    FUNCTION.format(
        "goes_on()", "SET CONSTRAINTS ALL DEFERRED; INSERT INTO late SELECT new.n - 1;"
    ),
    "CREATE TRIGGER begins AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION begins()",
    f"CREATE CONSTRAINT TRIGGER goes_on {LATER.format('> 0')} FUNCTION goes_on()",
    f"CREATE CONSTRAINT TRIGGER sets {LATER.format('= 0')} FUNCTION sets()",
]
"""Deferred again and again, so that it runs behind all that is usually run before a COMMIT."""
TRIGGERS = {
    "at once": ["CREATE TRIGGER sets BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION sets()"],
    "late": LATE,
}


def trigger_that_sets(query, setting, when="at once"):
    for statement in [FUNCTION.format("sets()", f"SET LOCAL {setting};"), *TRIGGERS[when]]:
        query.execute(statement)


@pytest.mark.parametrize("mode", ["staged"])
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "merged again"])
@pytest.mark.parametrize("when", TRIGGERS)
@pytest.mark.parametrize("setting", ["client_min_messages = error", "synchronous_commit = local"])
def test_what_a_trigger_sets_for_its_transaction_hides_no_missing_standby(
    query, mode, is_held, setting, when
):
    trigger_that_sets(query, setting, when)
    committables = query.prepare(0, rows(1))
    if not is_held:
        query.sink.close()
    wait_for_standby(query, "nobody")
    with in_background(lambda: query.commit(0, committables)) as came_to:
        try:
            until(lambda: came_to or waiting(query))
            assert not came_to
            query.execute("SELECT pg_cancel_backend(%s)", *waiting(query))
            until(lambda: came_to or waiting(query, "%emit_message%"))
            assert not came_to or isinstance(came_to[0], SinkUnavailableError)
        finally:
            wait_for_standby(query, "")
    assert len(query.successor().commit(0, committables).retired) == 1
    assert query.ids() == [1]


@pytest.mark.parametrize("mode", ["upsert"])
@pytest.mark.parametrize("setting", ["client_min_messages = error", "synchronous_commit = local"])
def test_what_a_trigger_sets_for_a_task_hides_no_missing_standby(query, mode, setting):
    query.write(0, rows(1))
    trigger_that_sets(query, setting)
    wait_for_standby(query, "nobody")
    with in_background(lambda: query.write(0, rows(2))) as came_to:
        try:
            until(lambda: came_to or waiting(query))
            assert not came_to
            query.execute("SELECT pg_cancel_backend(%s)", *waiting(query))
            until(lambda: came_to)
        finally:
            wait_for_standby(query, "")
    assert isinstance(came_to[0], AttemptFailedError)
    assert "standby was cancelled" in str(came_to[0])


@pytest.mark.parametrize("mode", ["upsert"])
def test_a_task_whose_wait_for_a_standby_is_cancelled_fails(query, mode):
    query.write(0, rows(1))
    wait_for_standby(query, "nobody")
    with in_background(lambda: query.write(0, rows(2))) as came_to:
        try:
            until(lambda: came_to or waiting(query))
            query.execute("SELECT pg_cancel_backend(%s)", *waiting(query))
            until(lambda: came_to)
        finally:
            wait_for_standby(query, "")
    assert isinstance(came_to[0], AttemptFailedError)
    assert "standby was cancelled" in str(came_to[0])
