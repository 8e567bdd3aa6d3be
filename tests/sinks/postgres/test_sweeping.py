"""Only our own leftovers are found: by role, database, schema, identifier and name, each as a
whole."""

import uuid

import psycopg
import pytest

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.protocol.sweeping import Sweep
from onceforall.sinks.postgres import names, stale_connections
from onceforall.sinks.postgres.driver import sweeping
from onceforall.sinks.postgres.names import staging_table
from support.postgres_sink import (
    KEYED,
    TABLE,
    Query,
    make_role,
    prepared,
    rows,
    staging_tables,
)
from support.waiting import until

pytestmark = pytest.mark.postgres


def test_another_querys_another_prefixs_and_another_roles_things_are_left_alone(database):
    query = Query(database, mode="prepared")
    _, url = make_role(
        database,
        "GRANT ALL ON t TO {role}",
        "GRANT ALL ON SCHEMA onceforall TO {role}",
        "GRANT ALL ON onceforall.markers TO {role}",
    )
    others = [
        Query(database, None, mode="prepared"),
        Query(database, None, mode="prepared", query=query.id, staging_schema="elsewhere"),
        Query(url, None, mode="prepared", query=query.id, name="foreign"),
    ]
    foreign = [others[0].write(0, rows(1)), others[2].write(0, rows(3))]
    staged = [
        Query(database, None),
        Query(database, None, query=query.id, staging_schema="elsewhere", name="b"),
        Query(url, None, query=query.id),
    ]
    tables = [each.write(0, rows(i), partition=5) for i, each in enumerate(staged)]
    look_alike = names.staging_table("somebody else")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE onceforall.{look_alike} (id int)")
        connection.execute(f"COMMENT ON TABLE onceforall.{look_alike} IS '{tables[2]['name']}'")
        connection.execute("CREATE TABLE onceforall.stg_report (id int)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (0, 'their own')")
        connection.execute(f"PREPARE TRANSACTION '{foreign[0]['name']}.more'")
    own = [
        query.write(0, rows(8)),
        Query(database, None, query=query.id).write(0, rows(9), partition=3),
    ]
    before = (
        sorted(prepared(database)),
        sorted(staging_tables(database)),
        staging_tables(database, "elsewhere"),
    )

    assert query.successor().sweep() == 2

    after = (
        sorted(prepared(database)),
        sorted(staging_tables(database)),
        staging_tables(database, "elsewhere"),
    )
    assert after == (
        [gid for gid in before[0] if gid != own[0]["name"]],
        [table for table in before[1] if table != staging_table(own[1]["name"])],
        before[2],
    )
    assert len(after[0]) == 3
    assert len(after[1]) == 4
    for each in (others[0], staged[0], staged[1], Query(url, None, query=query.id, generation=2)):
        each.sweep(own=True)
    query.execute(f"ROLLBACK PREPARED '{foreign[0]['name']}.more'")
    query.execute("DROP TABLE onceforall.stg_report")
    query.execute(f"DROP TABLE onceforall.{look_alike}")
    assert prepared(database) == []


def test_what_another_role_has_prepared_and_left_is_named_with_how_to_roll_it_back(
    database, caplog
):
    """The role of a query was changed behind a crash."""
    query = Query(database, KEYED, mode="prepared", key="id")
    left = query.write(0, rows(1))["name"]
    owner = query.execute("SELECT current_user")[0][0]
    _, url = make_role(
        database,
        "GRANT ALL ON t TO {role}",
        "GRANT ALL ON SCHEMA onceforall TO {role}",
        "GRANT ALL ON onceforall.markers TO {role}",
    )
    later = query.successor(url=url, lock_timeout_s=1)
    with caplog.at_level("WARNING", "onceforall"):
        assert later.sweep() == 0
    (warned,) = [each.getMessage() for each in caplog.records if left in each.getMessage()]
    remedy = f"SET ROLE \"{owner}\"; ROLLBACK PREPARED '{left}'"
    assert f"only the role {owner} that prepared it" in warned
    assert remedy in warned
    with pytest.raises(AttemptFailedError) as raised:
        later.write(0, rows(1, v="newer"))
    assert f"{left} may have it" in str(raised.value)
    assert remedy in str(raised.value)
    query.execute(f"ROLLBACK PREPARED '{left}'")
    later.commit(0, later.prepare(0, rows(1, v="newer")))
    assert query.all() == [(1, "newer")]
    caplog.clear()
    with caplog.at_level("WARNING", "onceforall"):
        later.sweep()
    assert caplog.records == []


def test_what_another_sink_of_the_run_has_prepared_as_another_role_is_not_to_be_rolled_back(
    database,
):
    query = Query(database, KEYED, mode="prepared", key="id")
    first = query.write(0, rows(1))["name"]
    _, url = make_role(
        database,
        "GRANT ALL ON t TO {role}",
        "GRANT ALL ON SCHEMA onceforall TO {role}",
        "GRANT ALL ON onceforall.markers TO {role}",
    )
    other = Query(url, None, query=query.id, name="b", mode="prepared", key="id", lock_timeout_s=1)
    with pytest.raises(AttemptFailedError) as raised:
        other.write(0, rows(1))
    assert "ROLLBACK PREPARED" not in str(raised.value)
    query.execute(f"ROLLBACK PREPARED '{first}'")


def test_what_a_live_task_has_staged_until_its_connection_is_ended_is_swept(database, monkeypatch):
    query = Query(database)
    end = stale_connections.end_older_tasks

    def end_late(*arguments):
        if not staging_tables(database):
            query.write(0, rows(1))
        return end(*arguments)

    later = query.successor()
    monkeypatch.setattr(stale_connections, "end_older_tasks", end_late)
    assert later.sweep() == 1
    assert staging_tables(database) == []


def test_what_a_decision_names_is_spared_and_so_is_ones_own_generation(database):
    query = Query(database)
    decided, undecided = query.write(0, rows(1)), query.write(0, rows(2), partition=1)
    assert query.sweep() == 0
    later = query.successor()
    assert later.sweep(spared=[decided]) == 1
    assert staging_tables(database) == [staging_table(decided["name"])]
    later.commit(0, [decided])
    assert query.ids() == [1]
    assert later.sweep(spared=[undecided]) == 0


def test_a_start_in_another_mode_finds_what_was_left_and_completes_what_was_decided(database):
    query = Query(database, mode="prepared")
    decided = query.prepare(0, rows(1))
    rest = query.write(0, rows(1), partition=9)
    later = query.successor(mode="staged")
    assert len(later.commit(0, decided).retired) == 1
    assert later.sweep(spared=decided) == 1
    assert rest["name"] not in prepared(database)
    staged = later.prepare(1, rows(2))
    last = later.successor(mode="prepared")
    later.sink.close()
    assert len(last.commit(1, staged).retired) == 1
    assert query.ids() == [1, 2]


def test_only_connections_of_this_query_and_sink_and_of_earlier_generations_are_ended(database):
    query_id = str(uuid.uuid4())
    Query(database, TABLE, query=query_id)
    # Without any right but to log in: a role may end its own sessions.
    _, url = make_role(database)
    own = names.whose(query_id, "out")
    attempt = Query(database, None, query=query_id, generation=4).attempt(slot=3)
    ended = {
        names.driver_connection(own, 4): True,
        names.driver_connection(own, 5): False,
        names.driver_connection(names.whose(query_id, "other"), 4): False,
        names.driver_connection(own, 4) + "1": False,
        "x" + names.driver_connection(own, 4): False,
    }
    connections = {name: psycopg.connect(url, application_name=name) for name in ended}
    task = psycopg.connect(url, application_name=names.task_connection(attempt.name))
    for connection in (*connections.values(), task):
        connection.execute("SELECT 1")
    with psycopg.connect(url, autocommit=True) as watcher:
        watcher.execute("SELECT pg_sleep(1.1)")
        assert stale_connections.end_silent_merges(watcher, own, 4) == 1
        assert stale_connections.end_older_tasks(watcher, own, 4) == 0
        assert stale_connections.end_older_tasks(watcher, own, 5) == 1
    for name, connection in connections.items():
        if ended[name]:
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        else:
            connection.execute("SELECT 1")
        connection.close()
    task.close()


def test_a_sweep_leaves_the_merge_of_its_own_run_alone(database):
    """Its decision may take longer than a frozen run's silence: the store of the log is slow."""
    query_id = str(uuid.uuid4())
    Query(database, TABLE, query=query_id)
    own = names.whose(query_id, "out")
    merges = {
        generation: psycopg.connect(
            database, application_name=names.driver_connection(own, generation)
        )
        for generation in (3, 4, 5, 6)
    }
    for connection in merges.values():
        connection.execute("SELECT 1")
    with psycopg.connect(database, autocommit=True) as watcher:
        watcher.execute("SELECT pg_sleep(1.1)")
        sweeping.sweep_all(watcher, Sweep(query_id, "out", 5), "onceforall")
    for generation, connection in merges.items():
        if generation < 5:
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        else:
            connection.execute("SELECT 1")
        connection.close()


def test_a_role_whose_name_needs_quotes_finds_its_own(database):
    Query(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE ROLE \"Ad-Spend\" LOGIN SUPERUSER PASSWORD 'of-a-role'")
    try:
        query = Query(
            database.replace(database.split("//")[1].split("@")[0], "Ad-Spend:of-a-role"), None
        )
        query.write(0, rows(1))
        assert query.successor().sweep() == 1
        assert staging_tables(database) == []
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute('REASSIGN OWNED BY "Ad-Spend" TO CURRENT_USER; DROP ROLE "Ad-Spend"')


def test_a_login_that_becomes_another_role_ends_its_own_connections(database):
    """As a store of short-lived credentials makes them: ``ALTER ROLE v_1 SET role = app``."""
    query_id = str(uuid.uuid4())
    Query(database, TABLE, query=query_id)
    app, _ = make_role(
        database,
        "GRANT ALL ON t TO {role}",
        "GRANT ALL ON SCHEMA onceforall TO {role}",
        "GRANT ALL ON onceforall.markers TO {role}",
    )
    _, url = make_role(
        database, f"GRANT {app} TO {{role}}", f"ALTER ROLE {{role}} SET role = {app}"
    )
    frozen = Query(url, None, query=query_id)
    decided = frozen.prepare(0, rows(1))
    until(lambda: "idle in transaction" in states(database), 10, "the merge is held")
    later = frozen.successor()
    until(
        lambda: completed(later, decided),
        20,
        "the successor has ended the connection that held the marker",
    )
    assert query_ids(database) == [1]
    frozen.sink.close()


def states(url):
    query = (
        "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND "
        "application_name LIKE 'ofa-m-%%'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        return [state for (state,) in connection.execute(query).fetchall()]


def completed(query, committables):
    try:
        return len(query.commit(0, committables).retired) == 1
    except SinkUnavailableError:
        return False


def query_ids(url):
    with psycopg.connect(url, autocommit=True) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM t").fetchall()]
