"""The library's own tables in a database where others may make tables and schemas: nothing of
theirs runs as the sink's role, or counts for it."""

import psycopg
import pytest

from onceforall.errors import AttemptFailedError, SinkCheckError
from onceforall.operators import _pins as pins
from onceforall.sink import StartInfo
from onceforall.sinks.postgres.driver import marker_table, own_tables
from support.postgres_sink import KEYED, TABLE, Query, make_role, rows, staging_tables

pytestmark = pytest.mark.postgres

COLUMNS = (
    "query_id text NOT NULL, sink text NOT NULL, name text NOT NULL, generation bigint NOT NULL, "
    "batch bigint NOT NULL, names text NOT NULL, "
    "at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (query_id, sink, name)"
)
CAUGHT = "INSERT INTO public.caught VALUES (current_user)"


def execute(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def pair(database):
    """URLs of the sink's role, which may use what is public, and of one that may create schemas,
    with functions that tell as whom they run."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(
        database,
        TABLE,
        "CREATE TABLE caught (by text)",
        "GRANT ALL ON caught, t TO PUBLIC",
        "GRANT ALL ON SCHEMA public TO PUBLIC",
    )
    grant = f'GRANT CREATE ON DATABASE "{name}" TO {{role}}'
    sink, evil = make_role(database, grant), make_role(database, grant)
    execute(
        evil[1],
        "CREATE FUNCTION public.seen() RETURNS bool LANGUAGE plpgsql COST 0.0001 AS $$BEGIN "
        f"{CAUGHT}; RETURN true; END$$",
        "CREATE FUNCTION public.text_of(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$BEGIN "
        f"{CAUGHT}; RETURN $1; END$$",
        "CREATE FUNCTION public.now_of() RETURNS timestamptz LANGUAGE plpgsql AS $$BEGIN "
        f"{CAUGHT}; RETURN now(); END$$",
        f"CREATE FUNCTION public.row_of() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {CAUGHT}; "
        "RETURN NEW; END$$",
    )
    # Of another function of that name the server says the name alone, then.
    execute(database, f"ALTER ROLE {sink[0]} SET search_path = public, pg_catalog")
    yield sink, evil
    for role, _ in (sink, evil):
        execute(database, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def markers_of(url, schema, columns=COLUMNS, *more):
    """Make what looks like our table of markers, for everybody."""
    execute(
        url,
        f"CREATE SCHEMA IF NOT EXISTS {schema}",
        f"GRANT ALL ON SCHEMA {schema} TO PUBLIC",
        f"CREATE TABLE {schema}.markers ({columns})",
        f"GRANT ALL ON {schema}.markers TO PUBLIC",
        *more,
    )


def holds(query, batch):
    return query.sink.holds(StartInfo(query.id, query.name), batch)


FLAWS = {
    "trigger": ("CREATE TRIGGER e BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION public.row_of()", "has the trigger e"),
    "policy": (("CREATE POLICY p ON {0} USING (public.seen()); ALTER TABLE {0} ENABLE ROW LEVEL "
               "SECURITY"), "has row security"),
    "rule": (("CREATE RULE r AS ON INSERT TO {} DO ALSO INSERT INTO public.caught VALUES "
             "(current_user)"), "has the rule r"),
    "check": ("ALTER TABLE {} ADD CONSTRAINT c CHECK (public.text_of(name) IS NOT NULL)", ("has "
                                                                                          "the "
                                                                                          "constraint c")),
    "default": ("ALTER TABLE {} ALTER at SET DEFAULT public.now_of()", ("has the default of column "
                                                                       "at")),
    "clock": (
        """CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT public.now_of()'; \
ALTER TABLE {} ALTER at SET DEFAULT public.clock_timestamp()""",
        "has the default of column at",
    ),
    "sql in a default": (
        ("ALTER TABLE {} ALTER names SET DEFAULT query_to_xml('SELECT public.seen()', true, true, "
        "'')::text"),
        "has the default of column names",
    ),
    "column": ("ALTER TABLE {} ADD more bool DEFAULT public.seen()", ("has other columns, or "
                                                                     "columns of other types")),
    "generated": (("ALTER TABLE {} DROP names, ADD names text GENERATED ALWAYS AS "
                  "(public.text_of(name)) STORED"), "has other columns"),
    "type": ("ALTER TABLE {} ALTER batch TYPE numeric", ("has other columns, or columns of other "
                                                        "types")),
    "type of that name": (("CREATE DOMAIN public.text AS pg_catalog.text; ALTER TABLE {} ALTER "
                          "names TYPE public.text"), "has other columns"),
    "collation": ('ALTER TABLE {} ALTER names TYPE text COLLATE "C"', ("has other columns, or "
                                                                      "columns of other types")),
    "index": ("CREATE INDEX i ON {} (public.text_of(name))", "has the index i"),
    "part of an index": ("CREATE INDEX i ON {} (name) WHERE public.text_of(name) IS NOT NULL", "has the index i"),
    "heir": ("CREATE TABLE public.heir () INHERITS ({})", "has tables that inherit from it"),
    "key": ("ALTER TABLE {} DROP CONSTRAINT markers_pkey", (r"lacks the primary key \(query_id, "
                                                           r"sink, name\)")),
    "unlogged": ("ALTER TABLE {} SET UNLOGGED", "is no plain, permanent table"),
    "view": ("DROP TABLE {0}; CREATE VIEW {0} AS SELECT public.text_of('x') AS query_id", ("is no "
                                                                                          "plain, "
                                                                                          "permanent table")),
}  # fmt: skip


@pytest.mark.parametrize("what", FLAWS)
def test_a_table_of_markers_that_could_run_its_owners_code_is_refused_and_not_touched(
    database, pair, what
):
    """Whoever may create a schema can make ours, and its table, before the sink does."""
    statement, words = FLAWS[what]
    (_, url), (evil, by) = pair
    markers_of(by, "onceforall", COLUMNS, *statement.format("onceforall.markers").split("; "))
    execute(
        by,
        "GRANT ALL ON onceforall.markers TO PUBLIC",
        f"INSERT INTO public.caught VALUES ('{evil}')",
    )
    for looked in (lambda: Query(url, None), lambda: holds(bare(url), 0)):
        with pytest.raises(
            SinkCheckError,
            match=rf"onceforall\.markers \(of the role {evil}\).* {words}.*staging_schema=",
        ):
            looked()
    assert execute(database, "SELECT DISTINCT by FROM caught") == [(evil,)]


def bare(url, **options):
    """A query whose sink was not checked."""
    query = Query.__new__(Query)
    query.id, query.name = "q", "out"
    query.sink = Query.__init__.__globals__["PostgresSink"](url, "t", retry_for_s=2, **options)
    return query


@pytest.mark.parametrize("what", ["policy", "view", "type", "rule"])
def test_markers_that_lie_anywhere_else_run_nothing_and_count_for_nothing(database, pair, what):
    (_, url), (_, by) = pair
    query = Query(url, None)
    markers_of(
        by, "theirs", COLUMNS, f"INSERT INTO theirs.markers VALUES ('{query.id}', '', '', 1, 7, '')"
    )
    execute(
        by,
        *FLAWS[what][0].format("theirs.markers").split("; "),
        "GRANT ALL ON theirs.markers TO PUBLIC",
    )
    execute(database, "DELETE FROM caught")
    assert holds(query, 0) is False
    assert not query.commit(0, query.prepare(0, rows(1))).lost
    assert execute(database, "TABLE caught") == []


def test_another_table_of_that_name_stops_no_start(database, pair):
    """Also where it belongs to somebody trusted: it is another program's."""
    (_, url), _ = pair
    query = Query(url, None)
    markers_of(
        url, "maps", "query_id int, sink int, name int, generation text, batch text, names int"
    )
    assert holds(query, 0) is False
    later = query.successor()
    assert not later.commit(0, later.prepare(0, rows(1))).lost


def test_what_a_stranger_says_in_a_table_of_his_proves_nothing(database, pair):
    (role, url), (evil, by) = pair
    query = Query(url, None)
    assert not query.commit(3, query.prepare(3, rows(1))).lost
    markers_of(by, "theirs", COLUMNS)
    markers_of(url, "own", COLUMNS)
    code = execute(database, "SELECT sink FROM onceforall.markers WHERE sink <> '' LIMIT 1")[0][0]
    said = f"VALUES ('{query.id}', '{code}', '', 1, 7, '')"
    execute(by, f"INSERT INTO theirs.markers {said}")
    assert holds(query, 7) is False
    execute(database, f"GRANT {evil} TO {role}")
    assert holds(query, 7), "of a role that it is a member of"
    execute(database, f"REVOKE {evil} FROM {role}")
    assert holds(query, 7) is False
    execute(url, f"INSERT INTO own.markers {said}")
    assert holds(query, 7)
    execute(database, f"ALTER SCHEMA own OWNER TO {evil}")
    assert holds(query, 7) is False, "who owns the schema can put another table in its place"


def test_a_superuser_trusts_nobody_who_could_not_be_one(database, pair):
    _, (evil, by) = pair
    markers_of(by, "theirs", COLUMNS)
    with psycopg.connect(database) as connection:
        (found,) = own_tables.find(connection, marker_table.FORM)
    assert found.strangers == (evil,)


def test_an_owner_whom_the_role_need_not_trust_is_told(database, pair, caplog):
    """Not refused: roles may share a schema, as the documentation says."""
    (role, url), (evil, by) = pair
    markers_of(by, "onceforall", COLUMNS)

    def told():
        caplog.clear()
        with caplog.at_level("WARNING", "onceforall"):
            query = Query(url, None)
        assert not query.commit(0, query.prepare(0, rows(1))).lost
        return [
            record.getMessage()
            for record in caplog.records
            if "share them only" in record.getMessage()
        ]

    assert [f"belongs to {evil}" in text for text in told()] == [True]
    execute(by, f"ALTER SCHEMA onceforall OWNER TO {evil}")
    execute(database, f"ALTER TABLE onceforall.markers OWNER TO {role}")
    assert [f"belongs to {evil}" in text for text in told()] == [True], "of the schema alone"
    execute(database, f"GRANT {evil} TO {role}")
    assert told() == []
    execute(database, f"REVOKE {evil} FROM {role}", "ALTER SCHEMA onceforall OWNER TO CURRENT_USER")
    assert told() == [], "of an administrator"


def test_what_the_sink_makes_itself_is_as_it_should_be_under_any_search_path(database):
    Query(database, TABLE)
    with psycopg.connect(database, autocommit=True) as connection:
        pins.create(connection, "onceforall")
        for path in ("public", "public, pg_catalog", "''"):
            connection.execute(f"SET search_path = {path}")
            assert [found.flaws for found in own_tables.find(connection, marker_table.FORM)] == [()]
            pins.create(connection, "onceforall")


def test_a_staging_table_that_somebody_put_in_place_of_a_tasks_is_not_read(database, pair):
    (_, url), (evil, by) = pair
    markers_of(by, "onceforall", COLUMNS)
    query = Query(url, None)
    written = query.write(0, rows(1))
    (table,) = staging_tables(database)
    execute(
        by,
        f"DROP TABLE onceforall.{table}",
        f"CREATE TABLE onceforall.{table} (id bigint, v text)",
        f"INSERT INTO onceforall.{table} VALUES (666, 'not the task''s')",
        f"CREATE POLICY p ON onceforall.{table} USING (public.seen())",
        f"ALTER TABLE onceforall.{table} ENABLE ROW LEVEL SECURITY",
        f"GRANT ALL ON onceforall.{table} TO PUBLIC",
        f"COMMENT ON TABLE onceforall.{table} IS '{written['name']}'",
    )
    with pytest.raises(
        AttemptFailedError, match=f"staging table onceforall.{table} belongs to the role {evil}"
    ):
        query.sink.confirm([written])
    assert execute(database, "TABLE caught") == execute(database, "TABLE t") == []


def test_a_table_of_pins_that_could_run_its_owners_code_is_refused(database, pair):
    (_, url), (evil, by) = pair
    execute(
        by,
        "CREATE SCHEMA onceforall",
        "GRANT ALL ON SCHEMA onceforall TO PUBLIC",
        "CREATE TABLE onceforall.lookups (query_id text NOT NULL, lookup text NOT NULL, batch "
        "bigint NOT NULL, key text NOT NULL, value text, "
        "PRIMARY KEY (query_id, lookup, batch, key))",
        "GRANT ALL ON onceforall.lookups TO PUBLIC",
    )
    with psycopg.connect(url, autocommit=True) as connection:
        pins.create(connection, "onceforall")
        execute(
            by,
            "CREATE TRIGGER e BEFORE INSERT ON onceforall.lookups FOR EACH ROW EXECUTE FUNCTION "
            "public.row_of()",
        )
        with pytest.raises(
            SinkCheckError,
            match=rf"onceforall\.lookups \(of the role {evil}\) has the trigger e.*pin_schema=",
        ):
            pins.create(connection, "onceforall")


@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_default_privileges_open_nothing_that_the_library_makes(database, mode):
    """Whatever the library makes: tables of each mode, pins, and their schemas."""
    name = database.rsplit("/", 1)[1].partition("?")[0]
    role, url = make_role(
        database,
        "GRANT CREATE ON SCHEMA public TO {role}",
        f'GRANT CREATE ON DATABASE "{name}" TO {{role}}',
    )
    other, _ = make_role(database)
    execute(
        url,
        KEYED,
        f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {other}, PUBLIC",
        f"ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO {other}, PUBLIC",
    )
    query = Query(url, None, mode=mode, key="id")
    with psycopg.connect(url, autocommit=True) as connection:
        pins.create(connection, "pinned")
    committable = query.write(0, rows(1))
    opened = execute(
        database,
        "SELECT relname::text, relacl::text FROM pg_class c, aclexplode(relacl) x WHERE relnamespace "
        "IN ('onceforall'::regnamespace, 'pinned'::regnamespace) AND x.grantee <> relowner",
    )
    schemas = execute(
        database,
        "SELECT nspname::text, nspacl::text FROM pg_namespace n, aclexplode(nspacl) x "
        "WHERE nspname IN ('onceforall', 'pinned') AND x.grantee <> nspowner",
    )
    made = execute(
        database,
        "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relowner = "
        f"'{role}'::regrole AND relnamespace <> 'public'::regnamespace",
    )
    assert (opened, schemas, made) == ([], [], [(3 if mode == "staged" else 2,)])
    if committable:
        query.commit(0, query.sink.confirm([committable]))
    assert query.ids() == [1]


@pytest.mark.parametrize(
    ("grant", "is_told"),
    [
        ("SELECT, INSERT, UPDATE, DELETE", False),  # as a role that shares the schema needs it
        ("TRIGGER", True),
        ("ALL", True),
    ],
)
def test_a_table_that_stands_open_to_others_is_told_at_a_start(
    database, pair, caplog, grant, is_told
):
    (_, url), (other, _) = pair
    Query(url, None)
    execute(database, f"GRANT {grant} ON onceforall.markers TO {other}")
    with caplog.at_level("WARNING", "onceforall"):
        Query(url, None)
    told = [r.getMessage() for r in caplog.records if "is open to" in r.getMessage()]
    assert bool(told) == is_told
    assert all(f"REVOKE ALL ON onceforall.markers FROM {other}" in text for text in told)


def test_a_table_that_everybody_may_write_is_told_at_a_start(database, pair, caplog):
    (_, url), _ = pair
    Query(url, None)
    execute(database, "GRANT UPDATE ON onceforall.markers TO PUBLIC")
    with caplog.at_level("WARNING", "onceforall"):
        Query(url, None)
    assert [r for r in caplog.records if "FROM PUBLIC" in r.getMessage()]


def test_markers_in_a_schema_with_a_percent_sign_in_its_name_are_looked_into(database):
    """No sink has such a schema, but a renamed one, or a copy that was set aside, may."""
    query = Query(database)
    query.commit(0, query.prepare(0, rows(1)))
    execute(
        database,
        'CREATE SCHEMA "50%s of it"',
        'CREATE TABLE "50%s of it".markers (LIKE onceforall.markers INCLUDING ALL)',
    )
    other = query.successor(name="new")
    other.sweep()
    assert not other.sink.holds(StartInfo(query.id, query.name), 1)
    execute(
        database, 'DROP SCHEMA "50%s of it" CASCADE', 'ALTER SCHEMA onceforall RENAME TO "100%s"'
    )
    with pytest.raises(SinkCheckError, match='ALTER SCHEMA "100%s" RENAME TO'):
        query.successor()
