"""Whatever the table refuses is found before the decision, and the first offending row is named."""

import re

import psycopg
import pyarrow as pa
import pytest

from onceforall.errors import (
    AttemptFailedError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import StartInfo
from onceforall.sinks.postgres import PostgresSink, merging, refusals
from support.postgres_sink import KEYED, Query, make_role, prepared, rows, staging_tables

pytestmark = pytest.mark.postgres

PARENT = (
    "CREATE TABLE parent (id bigint PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 9);"
)
TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.id = 10 THEN RAISE EXCEPTION 'ten is not liked'; END IF; RETURN NEW; END $$;
CREATE TABLE t (id bigint, v text);
CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse();
"""
LATE_TRIGGER = TRIGGER.replace(
    "TRIGGER refuse BEFORE INSERT", "CONSTRAINT TRIGGER refuse AFTER INSERT"
).replace("FOR EACH ROW", "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW")
# Of the ids 0 to 49, written by two tasks, 10 is the first that each of these refuses.
TABLES = {
    "not null": (("CREATE TABLE t (id bigint, v text, w bigint GENERATED ALWAYS AS (nullif(id, "
                 "10)) STORED NOT NULL)"), "a null is not allowed"),
    "unique": ("CREATE TABLE t (id bigint UNIQUE, v text); INSERT INTO t VALUES (10, 'there')", "a unique constraint"),
    "deferred unique": (
        ("CREATE TABLE t (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, v text); INSERT INTO t "
        "VALUES (10, 'there')"),
        "a unique constraint",
    ),
    "foreign key": (f"{PARENT} CREATE TABLE t (id bigint REFERENCES parent, v text)", ("a foreign "
                                                                                      "key")),
    "deferred foreign key": (
        (f"{PARENT} CREATE TABLE t (id bigint REFERENCES parent DEFERRABLE INITIALLY DEFERRED, v "
        "text)"),
        "a foreign key",
    ),
    "check": ("CREATE TABLE t (id bigint CHECK (id < 10), v text)", "a check"),
    "exclusion": (
        ("CREATE TABLE t (id bigint, v text, EXCLUDE USING btree (id WITH =)); INSERT INTO t "
        "VALUES (10, 'there')"),
        "an exclusion constraint",
    ),
    "range": (("CREATE TABLE t (id bigint, v text, w smallint GENERATED ALWAYS AS (id * 3277) "
              "STORED)"), "a value is refused"),
    "partition": (
        ("CREATE TABLE t (id bigint, v text) PARTITION BY RANGE (id); CREATE TABLE t0 PARTITION OF "
        "t FOR VALUES FROM (0) TO (10)"),
        "a check",
    ),
    "index row": (
        ("CREATE FUNCTION long() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT "
        "string_agg(md5(g::text), '') FROM generate_series(1, 400) g $$; "
        "CREATE TABLE t (id bigint, v text); "
        "CREATE INDEX ON t ((CASE WHEN id = 10 THEN long() ELSE v END))"),
        "what an index keeps of it, is too large",
    ),
    "trigger": (TRIGGER, "ten is not liked"),
    "deferred trigger": (LATE_TRIGGER, "ten is not liked"),
    "trigger with a code of its own": (
        TRIGGER.replace("not liked'", "not liked' USING ERRCODE = '45000'"),
        "a row is refused. PostgreSQL says: ten is not liked",
    ),
    "trigger with a routine's code": (
        TRIGGER.replace("not liked'", "not liked' USING ERRCODE = '38000'"),
        "a row is refused. PostgreSQL says: ten is not liked",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_the_first_offending_row_is_named(database, name):
    ddl, why = TABLES[name]
    query = Query(database, ddl)
    before = query.ids()
    committables = [
        query.write(0, rows(*range(7))),
        query.write(0, rows(*range(7, 50), v="it's me"), partition=1),
    ]
    with pytest.raises(RefusedRecordError) as caught:
        query.sink.confirm(committables)
    assert why in str(caught.value)
    assert "id='10', v=\"it's me\"" in str(caught.value)
    query.sink.abort(committables)
    assert query.ids() == before
    assert staging_tables(database) == []


def test_two_sinks_of_a_batch_and_a_foreign_key_between_them_are_told_the_way_out(database):
    """Each has a transaction of its own, and mending the data would not help."""
    parent = Query(database, "CREATE TABLE t (id bigint PRIMARY KEY, v text)", name="parent")
    parent.execute("ALTER TABLE t RENAME TO parent")
    child = Query(
        database,
        "CREATE TABLE t (id bigint REFERENCES parent, v text)",
        query=parent.id,
        name="child",
    )
    committable = child.write(0, rows(1))
    with pytest.raises(
        RefusedRecordError,
        match="If another sink of this query writes the rows that are referred to: .* by two "
        "queries",
    ):
        child.sink.confirm([committable])
    child.sink.abort([committable])


def test_a_row_that_no_page_takes_is_refused(database):
    names = [f"c{n}" for n in range(900)]
    columns = ", ".join(f"{name} text" for name in names)
    query = Query(database, f"CREATE TABLE t (id bigint, {columns})")
    cells = {name: pa.array([None, "ten bytes."]) for name in names}
    given = pa.RecordBatch.from_pydict({"id": pa.array([9, 10], pa.int64()), **cells})
    with pytest.raises(RefusedRecordError, match=r"row is too big.*Correct the data"):
        query.write(0, given)
    query.sweep(own=True)


@pytest.mark.parametrize("when", ["", " DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_row_that_refers_to_one_of_another_task_needs_the_mode_staged(database, mode, when):
    ddl = f"CREATE TABLE t (id bigint PRIMARY KEY, v bigint REFERENCES t{when})"
    query = Query(database, ddl, mode=mode, retry_for_s=2)

    def row(number, parent):
        return pa.RecordBatch.from_pydict(
            {"id": pa.array([number], pa.int64()), "v": pa.array([parent], pa.int64())}
        )

    if mode == "staged":
        query.commit(0, query.prepare(0, row(1, None), row(2, 1)))
        assert query.all() == [(1, None), (2, 1)]
        return
    first = query.write(0, row(1, None))
    with pytest.raises(RefusedRecordError, match="Use mode='staged'"):
        query.write(0, row(2, 1), partition=1)
    query.sink.abort([first])


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("", id="there"),
        pytest.param(
            "ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE UNIQUE INDEX t_pkey_ccnew ON t (id);",
            id="gone since",
        ),
    ],
)
@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_violation_of_the_keys_own_index_is_no_rows_fault(database, monkeypatch, mode, before):
    """As one that ``REINDEX CONCURRENTLY`` builds, where another session writes the same key."""
    query, merge, tries = Query(database, KEYED, key="id", mode=mode), merging.merge, []

    def fail_once(connection, *arguments, **options):
        tries.append(arguments)
        if len(tries) == 1:
            connection.execute(f"{before} INSERT INTO t VALUES (1, 'one'), (1, 'other')")
        merge(connection, *arguments, **options)

    monkeypatch.setattr(merging, "merge", fail_once)
    if mode == "prepared":
        # Spark runs the task again.
        with pytest.raises(AttemptFailedError, match="the same key at that moment"):
            query.write(0, rows(1, 2))
    query.commit(0, query.prepare(0, rows(1, 2)))
    assert len(tries) == 2
    assert query.ids() == [1, 2]


def test_a_row_that_an_index_of_the_key_still_refuses_while_it_is_built_is_tried_again(
    database, monkeypatch
):
    query, merge, first = Query(database, KEYED, key="id"), merging.merge, refusals._first
    query.execute("CREATE UNIQUE INDEX t_pkey_ccnew ON t (id)")
    query.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 't_pkey_ccnew'::regclass"
    )
    tries = []

    def fail_once(connection, *arguments, **options):
        tries.append(arguments)
        if len(tries) == 1:
            connection.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
            connection.execute("INSERT INTO t VALUES (1, 'one'), (1, 'other')")
        merge(connection, *arguments, **options)

    def still_refused(*arguments):
        assert first(*arguments) is None
        return "id='1'", psycopg.errors.UniqueViolation()

    monkeypatch.setattr(merging, "merge", fail_once)
    monkeypatch.setattr(refusals, "_first", still_refused)
    query.commit(0, query.prepare(0, rows(1, 2)))
    assert len(tries) == 2
    assert query.ids() == [1, 2]


def test_a_trigger_that_violates_the_key_each_time_refuses_the_row(database):
    query = Query(
        database,
        f"""{KEYED}; CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF pg_trigger_depth() = 1 THEN INSERT INTO t VALUES (NEW.id, 'again'); END IF;
        RETURN NULL; END $$;
        CREATE TRIGGER again AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION again()""",
        key="id",
        retry_for_s=2,
    )
    committable = query.write(0, rows(1, 2))
    with pytest.raises(RefusedRecordError, match="constraint t_pkey.*The first such row: id='1'"):
        query.sink.confirm([committable])
    query.sink.abort([committable])


def test_a_violation_of_another_unique_index_is_a_rows_fault(database):
    query = Query(database, KEYED, key="id", retry_for_s=2)
    query.execute("CREATE UNIQUE INDEX other ON t (v)")
    query.execute("INSERT INTO t VALUES (7, 'taken')")
    committable = query.write(0, rows(1, v="taken"))
    with pytest.raises(RefusedRecordError, match="constraint other.*The first such row: id='1'"):
        query.sink.confirm([committable])
    query.sink.abort([committable])


@pytest.mark.parametrize("name", ["unique", "deferred foreign key", "check", "index row"])
def test_in_the_mode_prepared_the_task_names_it(database, name):
    ddl, why = TABLES[name]
    query = Query(database, ddl, mode="prepared")
    transaction = query.sink.begin_transaction(query.attempt())
    query.sink.invoke(transaction, rows(*range(50)))
    with pytest.raises(RefusedRecordError, match=rf"{why}.*The first such row: id='10'"):
        query.sink.pre_commit(transaction)
    query.sink.discard(transaction)
    assert prepared(database) == []


def test_a_column_that_is_not_there_any_more_fails_the_attempt_with_its_name(database):
    query = Query(database)
    committable = query.write(0, rows(1))
    query.execute("ALTER TABLE t DROP COLUMN v")
    with pytest.raises(Exception, match='column "v"') as caught:
        query.sink.confirm([committable])
    assert not isinstance(caught.value, psycopg.Error)
    query.sink.abort([committable])


def test_long_values_are_cut_and_a_null_is_shown(database):
    query = Query(database, "CREATE TABLE t (id bigint CHECK (id < 10), v text)")
    committable = query.write(0, rows(10, v="y" * 5000))
    with pytest.raises(RefusedRecordError) as caught:
        query.sink.confirm([committable])
    assert len(str(caught.value)) < 1500
    query.sink.abort([committable])
    nulls = query.write(1, rows(11, v=None))
    with pytest.raises(RefusedRecordError, match="v=null"):
        query.sink.confirm([nulls])
    query.sink.abort([nulls])


def test_a_label_that_is_added_while_the_query_runs_asks_for_a_restart(database):
    query = Query(database, "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE t (id bigint, v mood)")
    query.execute("ALTER TYPE mood ADD VALUE 'glad'")
    with pytest.raises(
        RefusedRecordError, match="'glad' .* had at the query's start: sad. .* start"
    ):
        query.write(0, rows(1, v="glad"))
    later = query.successor()
    later.commit(0, later.prepare(0, rows(1, v="glad")))
    assert later.all() == [(1, "glad")]
    query.sink.close()


@pytest.fixture
def under_policies(database):
    """A role to which a policy of the table's applies: it may write only what is above 0."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    role, url = make_role(database, f'GRANT CREATE ON DATABASE "{name}" TO {{role}}')
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(KEYED)
        connection.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        connection.execute(f"GRANT ALL ON t TO {role}")
        connection.execute(f"CREATE POLICY p ON t TO {role} USING (true) WITH CHECK (id > 0)")
    return role, url


@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_a_row_that_a_policy_refuses_is_named(under_policies, mode):
    _, url = under_policies
    query = Query(url, None, mode=mode, key="id")
    with pytest.raises(  # noqa: PT012  either raises
        RefusedRecordError, match="policy of row security refuses it.*first such row: id=.-2"
    ):
        committables = [query.write(0, rows(1, -2, 3))]
        query.sink.confirm(committables)
    query.sweep(own=True)
    query.sink.close()


def test_a_role_whose_sessions_refuse_row_security_is_refused_at_start(database, under_policies):
    role, url = under_policies
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {role} SET row_security = off")
    with pytest.raises(SinkCheckError, match=f"ALTER ROLE {role} SET row_security = on"):
        Query(url, None)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {role} BYPASSRLS")
    Query(url, None)


@pytest.mark.parametrize("as_another", [False, True])
def test_a_right_that_is_lost_behind_the_decision_is_named_with_its_grant(database, as_another):
    """To the role that the session works as, which may have logged in as another one."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    role, url = make_role(database, f'GRANT CREATE ON DATABASE "{name}" TO {{role}}')
    with psycopg.connect(database, autocommit=True) as connection:
        if as_another:
            login, url = make_role(database, f"GRANT {role} TO {{role}}")
            connection.execute(f"ALTER ROLE {login} SET role = {role}")
        connection.execute(KEYED)
        connection.execute(f"GRANT SELECT, INSERT, UPDATE ON t TO {role}")
        query = Query(url, None, key="id")
        committables = query.prepare(0, rows(1))
        query.sink.close()
        connection.execute(f"REVOKE INSERT ON t FROM {role}")
        with pytest.raises(SinkUnavailableError, match="is decided") as raised:
            query.commit(0, committables)
        grant = re.search(r"GRANT SELECT, INSERT, UPDATE ON public\.t TO \w+;", str(raised.value))
        connection.execute(grant.group())
    assert query.commit(0, committables).retired
    query.sink.close()


@pytest.fixture
def owned(database):
    """A role with a name that needs quotes, which owns nothing any more; and what takes from it."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    role, url = make_role(database, f'GRANT CREATE ON DATABASE "{name}" TO {{role}}')
    dashed = role.replace("_", "-") + "-Etl"
    url = url.replace(role, dashed)
    other, _ = make_role(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f'ALTER ROLE {role} RENAME TO "{dashed}"')
        connection.execute(KEYED)
        connection.execute(f'GRANT SELECT, INSERT, UPDATE ON t TO "{dashed}"')

    def execute(*statements):
        with psycopg.connect(database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    taken = {
        "schema": f"ALTER SCHEMA onceforall OWNER TO {other}",
        # A prepared transaction has a lock on it, which another owner would wait for.
        "markers": f'REVOKE ALL ON onceforall.markers FROM "{dashed}"',
    }
    return url, execute, taken


def follow(error, execute):
    """Run each GRANT that an error names, as it stands there."""
    grants = re.findall(r"GRANT [A-Z, ]+ ON [^;]*? TO [^;]+;", str(error))
    assert grants
    execute(*grants)


@pytest.mark.parametrize("what", ["schema", "markers"])
@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_right_on_the_sinks_own_tables_that_is_lost_behind_the_decision_comes_back_by_the_grants(
    owned, mode, what
):
    url, execute, taken = owned
    query = Query(url, None, key="id", mode=mode)
    committables = query.prepare(0, rows(1))
    query.sink.close()
    execute(taken[what])
    named = "the commit" if mode == "prepared" else "the merge"
    for _ in range(2):  # Behind the first one, what was prepared is committed.
        with pytest.raises(SinkUnavailableError, match="permission denied") as raised:
            query.commit(0, committables)
        assert f"lacks a right that {named} needs; PostgreSQL says" in str(raised.value)
        assert f"{named} is tried again" in str(raised.value)
    follow(raised.value, execute)
    query.commit(0, committables)
    assert query.execute("SELECT id FROM t") == [(1,)]
    query.sink.close()


@pytest.mark.parametrize(
    ("what", "words"), [("schema", "whom this role need not trust"), ("markers", "may not be read")]
)
def test_markers_that_this_role_may_not_read_are_not_held_for_markers_without_the_batch(
    owned, what, words
):
    """The target would be called older than the log, and a backup be put in its place."""
    url, execute, taken = owned
    query = Query(url, None, key="id")
    query.commit(0, query.prepare(0, rows(1)))
    query.sink.close()
    execute(taken[what])
    sink = PostgresSink(url, "t", key="id", staging_schema="fresh")
    start = StartInfo(query.id, query.name, place={"schema": "onceforall"})
    with pytest.raises(SinkCheckError, match=f"onceforall.markers, which.*{words}"):
        sink.holds(start, 0)
    sink.close()


def test_markers_that_were_read_and_do_not_have_the_batch_prove_that_it_is_not_here(owned):
    url, execute, taken = owned
    query = Query(url, None, key="id")
    query.commit(0, query.prepare(0, rows(1)))
    start = StartInfo(query.id, query.name, place={"schema": "onceforall"})
    sink = PostgresSink(url, "t", key="id", staging_schema="fresh")
    assert sink.holds(start, 0)
    assert sink.holds(start, 1) is False
    sink.close()
    execute(taken["schema"])
    with pytest.raises(SinkCheckError) as raised:
        query.sink.holds(start, 0)
    follow(raised.value, execute)
    assert query.sink.holds(start, 0)
    assert query.sink.holds(start, 1) is False
    query.sink.close()


def test_a_sweep_needs_no_right_to_make_tables(owned):
    """What a dead run has prepared keeps its locks until it is swept."""
    url, execute, _ = owned
    query = Query(url, None, key="id", mode="prepared")
    query.commit(0, query.prepare(0, rows(1)))
    role = psycopg.conninfo.conninfo_to_dict(url)["user"]
    execute(f'REVOKE CREATE ON SCHEMA onceforall FROM "{role}"')
    assert query.sink.holds(StartInfo(query.id, query.name, asked_again=True), 0)
    query.sink.close()


@pytest.mark.parametrize("what", ["schema", "markers"])
@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_a_right_on_the_sinks_own_tables_that_is_lost_is_named_by_the_first_that_a_start_asks(
    owned, mode, what
):
    """Of a query that has a log, that is whether the target has the last batch."""
    url, execute, taken = owned
    query = Query(url, None, key="id", mode=mode)
    written = query.write(0, rows(1))
    if written is not None:
        query.commit(0, list(query.sink.confirm([written])))
    execute(taken[what])
    start = StartInfo(query.id, query.name)
    with pytest.raises(SinkCheckError) as raised:
        query.sink.holds(start, 0)
    assert "staging_schema=" not in str(raised.value)
    follow(raised.value, execute)
    assert query.sink.holds(start, 0)
    query.sink.close()
