"""Whoever may create in a schema of the search_path must not get code of his run as the sink's
role.

PostgreSQL looks functions and operators up along the ``search_path``, and one with fitter argument
types wins over that of ``pg_catalog``, though this comes first
(https://www.postgresql.org/docs/current/typeconv-func.html). So every function, operator and
relation in a statement of ours is qualified.

Nor must whoever owns the type of a column: casts have no schema, and the owner of a type makes them
(https://www.postgresql.org/docs/current/sql-createcast.html). So no value is cast whose type isn't
the server's own.
"""

import ast
import contextlib
import re
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import onceforall
from onceforall.errors import AttemptFailedError, RefusedRecordError, SchemaError
from onceforall.operators import _pins as pins
from onceforall.operators.postgres_lookup import PostgresLookup
from onceforall.sink import StartInfo
from onceforall.sinks.postgres import staging
from onceforall.testing.checker import contents_of
from onceforall.testing.observers.postgres import PostgresObserver
from support.postgres_sink import Query, make_role, rows

pytestmark = pytest.mark.postgres

# A shadow of each function and operator of the server's, with the same arguments; whoever calls one
# gets its name in an error.
SHADOWS = """
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE FUNCTION evil.row_number() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''shadow of row_number''; END';
CREATE FUNCTION evil.step(bigint) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''shadow of count''; END';
CREATE AGGREGATE evil.count(*) (sfunc = evil.step, stype = bigint, initcond = '0');
DO $$
DECLARE r record; made int := 0;
BEGIN
  FOR r IN
    SELECT p.oid, p.proname, p.proargtypes, oidvectortypes(p.proargtypes) AS arguments, format_type(p.prorettype, NULL) AS result, p.proretset
    FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0
    AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = ANY (p.proargtypes::oid[] || p.prorettype) AND t.typtype = 'p'
                    AND t.typname NOT IN ('anyarray', 'anyelement', 'record', 'void'))
  LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS %L', r.proname, r.arguments,
        CASE WHEN r.proretset THEN 'SETOF' ELSE '' END, r.result, format('BEGIN RAISE EXCEPTION %L; END', 'shadow of ' || r.proname));
      made := made + 1;
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
  END LOOP;
  FOR r IN
    SELECT o.oid, o.oprname, o.oprleft, format_type(o.oprleft, NULL) AS l, format_type(o.oprright, NULL) AS r, format_type(o.oprresult, NULL) AS result
    FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprleft <> 0
  LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION evil.op_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', r.oid, r.l, r.r, r.result,
        format('BEGIN RAISE EXCEPTION %L; END', 'shadow of operator ' || replace(r.oprname, '%', '%%')));
      EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.op_%s, LEFTARG = %s, RIGHTARG = %s)', r.oprname, r.oid, r.l, r.r);
      made := made + 1;
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
  END LOOP;
  IF made < 2500 THEN RAISE EXCEPTION 'only % shadows', made; END IF;
END $$;
"""

# Types of a plain login, and casts of each to and from the server's. They count their calls where no
# ROLLBACK undoes it: an error that they raise may be caught.
CASTS = """
CREATE SEQUENCE owned.called;
GRANT USAGE ON SEQUENCE owned.called TO PUBLIC;
CREATE TYPE owned.mood AS ENUM ('sad', 'ok');
CREATE DOMAIN owned.humour AS owned.mood;
CREATE TYPE owned.pair AS (a int, b text);
CREATE TYPE owned.span AS RANGE (subtype = int8);
DO $$
DECLARE one text; other text; pair text[]; made int := 0;
BEGIN
  FOREACH one IN ARRAY ARRAY['owned.mood', 'owned.mood[]', 'owned.pair', 'owned.pair[]', 'owned.span'] LOOP
    FOREACH other IN ARRAY ARRAY['text', 'varchar', 'bpchar', 'name', 'bytea', 'bool', 'timestamptz', 'date', 'int8', 'numeric', 'float8', 'json', 'text[]'] LOOP
      FOREACH pair SLICE 1 IN ARRAY ARRAY[[one, other], [other, one]] LOOP
        made := made + 1;
        EXECUTE format('CREATE FUNCTION owned.cast_%s(%s) RETURNS %s LANGUAGE plpgsql AS %L', made, pair[1], pair[2],
          $f$BEGIN PERFORM pg_catalog.nextval('owned.called'); RAISE EXCEPTION 'a cast of the owner'; END$f$);
        EXECUTE format('CREATE CAST (%s AS %s) WITH FUNCTION owned.cast_%s(%s) AS {context}', pair[1], pair[2], made, pair[1]);
      END LOOP;
    END LOOP;
  END LOOP;
END $$;
"""


def admin(database, *statements):
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def victim(database):
    """The URL of a role for which every name means somebody else's first."""
    role, url = make_role(
        database,
        "GRANT pg_monitor TO {role}",
        "CREATE SCHEMA onceforall AUTHORIZATION {role}",
        "ALTER ROLE {role} SET search_path = evil, public, pg_catalog",
        "CREATE TABLE public.t (id bigint PRIMARY KEY, v text CHECK (v <> 'refused'))",
        "GRANT ALL ON public.t TO {role}",
    )
    admin(database, SHADOWS)
    with (
        psycopg.connect(url) as connection,
        pytest.raises(psycopg.errors.RaiseException, match="shadow of operator ="),
    ):
        connection.execute("SELECT 1 = 1")
    yield url
    admin(database, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


@pytest.fixture(params=["ASSIGNMENT", "IMPLICIT"])
def context(request):
    """Where the casts of a type's owner are called without being asked for."""
    return request.param


@pytest.fixture
def typed(database, context):
    """The URL of a role, where another owns the types of columns; his casts must not be called."""
    role, victim = make_role(
        database,
        "CREATE SCHEMA onceforall AUTHORIZATION {role}",
        "CREATE TABLE public.t (id bigint PRIMARY KEY, v text)",
        "GRANT ALL ON public.t TO {role}",
    )
    owner, url = make_role(database, "CREATE SCHEMA owned AUTHORIZATION {role}")
    admin(url, CASTS.replace("{context}", context), "GRANT USAGE ON SCHEMA owned TO PUBLIC")
    with (
        psycopg.connect(victim) as connection,
        pytest.raises(psycopg.errors.RaiseException, match="a cast of the owner"),
    ):
        connection.execute("SELECT 'ok'::owned.mood::text")
    admin(database, "ALTER SEQUENCE owned.called RESTART")
    yield victim
    with psycopg.connect(database) as connection:
        (called,) = connection.execute("SELECT is_called FROM owned.called").fetchone()
    for each in (role, owner):
        admin(database, f"DROP OWNED BY {each} CASCADE", f"DROP ROLE {each}")
    assert not called, "a cast of the type's owner ran"


def written(query, batch, part):
    if query.options.get("mode") == "upsert":
        query.write(batch, part)
    else:
        assert not query.commit(batch, query.prepare(batch, part)).lost


def moods(*pairs):
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array([number for number, _ in pairs], pa.int64()),
            "m": pa.array([mood for _, mood in pairs], pa.string()),
        }
    )


def ids(database):
    with psycopg.connect(database, autocommit=True) as connection:
        return sorted(
            number for (number,) in connection.execute("SELECT id FROM public.t").fetchall()
        )


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_no_statement_of_ours_calls_what_lies_in_another_schema(database, victim, mode):
    query = Query(victim, None, mode=mode, key="id")
    first = query.prepare(0, rows(1, 2), rows(3))
    assert not query.commit(0, first).lost
    assert query.sink.identity(StartInfo(query.id, "out"))
    assert query.sink.holds(StartInfo(query.id, "out"), 0) in {True, None}
    assert not query.commit(0, first).lost, "once more, by its marker"
    query.prepare(1, rows(4))
    later = query.successor()
    later.sweep()
    second = later.prepare(1, rows(4), rows(5))
    assert not later.successor().commit(1, second).lost, "by another process, which merges again"
    with pytest.raises(RefusedRecordError, match="a check is violated.*first such row: id='6'"):
        later.prepare(2, rows(6, v="refused"))
    if mode == "staged":
        with pytest.raises(RefusedRecordError, match="key"):
            later.prepare(3, rows(7, 7))
    later.sweep(own=True)
    assert ids(database) == [1, 2, 3, 4, 5]
    for each in (query, later):
        each.sink.close()


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_adding_up_calls_nothing_of_others_either(database, victim, mode):
    admin(database, "ALTER TABLE public.t ADD n bigint", "ALTER TABLE public.t DROP v")
    query = Query(victim, None, mode=mode, key="id", accumulate={"n": "sum"})
    added = pa.RecordBatch.from_pydict(
        {"id": pa.array([1, 2], pa.int64()), "n": pa.array([5, 6], pa.int64())}
    )
    for batch in range(2):
        assert not query.commit(batch, query.prepare(batch, added)).lost
    with psycopg.connect(database, autocommit=True) as connection:
        assert sorted(connection.execute("SELECT id, n FROM public.t").fetchall()) == [
            (1, 10),
            (2, 12),
        ]


def test_an_upsert_calls_nothing_of_others_either(database, victim):
    query = Query(victim, None, mode="upsert", key="id")
    query.write(0, rows(1, 2, v="first"))
    query.write(1, rows(2, 3, v="again"))
    query.successor().write(1, rows(3))
    with pytest.raises(RefusedRecordError, match="a check is violated"):
        query.successor().successor().write(2, rows(4, v="refused"))
    assert ids(database) == [1, 2, 3]


def test_a_batch_that_replaces_all_calls_nothing_of_others_either(database, victim):
    query = Query(victim, None, mode="staged", output_mode="complete")
    for batch, numbers in enumerate(([1, 2], [2, 3])):
        assert not query.commit(batch, query.prepare(batch, rows(*numbers))).lost
    assert ids(database) == [2, 3]


def test_a_lookup_and_its_pins_call_nothing_of_others_either(database, victim):
    admin(
        database,
        "CREATE TABLE public.known (k text, at timestamptz, v text, flag boolean, raw bytea)",
        "INSERT INTO public.known VALUES ('a', '2026-01-01', 'x', true, 'y')",
        "GRANT ALL ON public.known TO PUBLIC",
    )
    columns = {"v": "string", "flag": "boolean", "raw": "binary", "at": "timestamp"}
    lookup = PostgresLookup(victim, "public.known", key="k", columns=columns, valid_from="at")
    try:
        (versions,) = lookup.fetch([("a",)]).values()
        assert versions[0].values[:3] == ("x", "true", "79")
        with psycopg.connect(victim, autocommit=True) as connection:
            pins.create(connection, "onceforall")
        pinned = pins.Pins(lookup, "onceforall", "q", 10)
        for _ in range(2):
            assert pinned.settle([("a",), ("b",)], lambda _: {("a",): ("1",)}) == {
                ("a",): ("1",),
                ("b",): None,
            }
        pinned._delete({"sa": None})
        pinned.clean()
    finally:
        lookup.close()


def test_a_key_of_an_extensions_type_is_compared_as_that_type_does(database):
    admin(
        database,
        "CREATE EXTENSION IF NOT EXISTS citext",
        "CREATE TABLE known (k citext, v text)",
        "INSERT INTO known VALUES ('Ab', 'x')",
    )
    lookup = PostgresLookup(database, "known", key="k", columns={"v": "string"})
    try:
        assert [versions[0].values for versions in lookup.fetch([("aB",)]).values()] == [("x",)]
    finally:
        lookup.close()


def test_what_lies_in_public_does_not_run_as_the_sinks_role(database):
    """The attack as it was shown, with a search_path as everybody has it: fitter arguments win
    over pg_catalog's."""
    admin(
        database,
        "CREATE TABLE t (id bigint, v text)",
        "CREATE TABLE caught (by text)",
        "CREATE FUNCTION public.obj_description(oid, text) RETURNS text LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO public.caught VALUES (current_user); RETURN "
        "pg_catalog.obj_description($1, $2::name); END'",
        "CREATE FUNCTION public.alike(name, name) RETURNS bool LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO public.caught VALUES (current_user); RETURN $1 "
        "OPERATOR(pg_catalog.~~) $2::text; END'",
        "CREATE OPERATOR public.~~ (FUNCTION = public.alike, LEFTARG = name, RIGHTARG = name)",
    )
    query = Query(database, None, mode="staged")
    assert not query.commit(0, query.prepare(0, rows(1))).lost
    query.write(1, rows(2))
    observer = PostgresObserver(database, "public.t", column="id", key_column=None)
    assert len(observer.leftovers()) == 1
    query.successor().sweep()
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT by FROM caught").fetchall() == []
    assert observer.leftovers() == []


def test_an_observer_calls_nothing_of_others_either(database, victim):
    query = Query(victim, None, key="id")
    query.commit(0, query.prepare(0, rows(1, 2)))
    query.write(1, rows(3))
    for ids in ("numbers", "texts"):
        observer = PostgresObserver(
            victim, "public.t", column="id", key_column="v", ids=ids, content=["id", "v"]
        )
        assert len(observer.rows().contents) == 2
    (left,) = observer.leftovers()
    assert left.startswith("staging table onceforall.stg_")
    query.sweep(own=True)
    assert observer.leftovers() == []


@pytest.mark.parametrize(
    ("mode", "type_"),
    [
        ("staged", "owned.mood"),
        ("staged", "owned.humour"),
        ("prepared", "owned.mood"),
        ("upsert", "owned.mood"),
    ],
)
def test_no_row_is_refused_by_a_cast_of_its_types_owner(database, typed, mode, type_):
    admin(database, f"ALTER TABLE public.t DROP v, ADD m {type_}, ADD CHECK (id < 100)")
    query = Query(typed, None, mode=mode, key="id")
    with pytest.raises(RefusedRecordError, match="a check is violated.*row: id='500', m='ok'"):
        query.prepare(0, moods((1, "sad"), (500, "ok")))
    with pytest.raises(RefusedRecordError, match="'glad' in column m"):
        query.successor().prepare(0, moods((2, "glad")))
    query = query.successor().successor()
    written(query, 0, moods((1, "sad"), (2, None)))
    assert ids(database) == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "staged"},
        {"mode": "staged", "on_conflict": "ignore"},
        {"mode": "prepared", "on_conflict": "ignore"},
        {"mode": "prepared"},
        {"mode": "upsert"},
    ],
    ids=lambda options: "-".join(options.values()),
)
@pytest.mark.sample(4)
def test_no_key_is_shown_by_a_cast_of_its_types_owner(database, typed, options):
    admin(database, "ALTER TABLE public.t DROP v, DROP CONSTRAINT t_pkey, ADD m owned.mood")
    admin(database, "ALTER TABLE public.t ADD PRIMARY KEY (m, id)")
    query = Query(typed, None, key=["m", "id"], **options)
    with pytest.raises(RefusedRecordError, match="has 2 rows with the key m='sad', id='7'"):
        query.prepare(0, moods((7, "sad"), (7, "sad")))
    query = query.successor()
    written(query, 0, moods((7, "sad"), (7, "ok")))
    assert ids(database) == [7, 7]


def test_a_batch_of_more_tables_than_a_statement_takes_casts_no_key_either(
    database, typed, monkeypatch
):
    monkeypatch.setattr(staging, "TABLES_PER_STATEMENT", 1)
    admin(
        database,
        "ALTER TABLE public.t DROP v, DROP CONSTRAINT t_pkey, ADD m owned.mood PRIMARY KEY",
    )
    query = Query(typed, None, key="m")
    with pytest.raises(RefusedRecordError, match="has 2 rows with the key m='sad'"):
        query.prepare(0, moods((1, "sad")), moods((2, "ok")), moods((3, "sad")))
    query.sweep(own=True)


def test_a_batch_that_replaces_all_casts_nothing_either(database, typed):
    admin(database, "ALTER TABLE public.t DROP v, ADD m owned.mood, ADD CHECK (id < 100)")
    query = Query(typed, None, mode="staged", output_mode="complete")
    for batch in range(2):
        assert not query.commit(batch, query.prepare(batch, moods((1, "sad"), (2, "ok")))).lost
    with pytest.raises(RefusedRecordError, match="row: id='500', m='ok'"):
        query.prepare(2, moods((500, "ok")))
    query.sweep(own=True)


def test_adding_up_casts_nothing_either(database, typed, context):
    admin(database, "ALTER TABLE public.t DROP v, DROP id, ADD m owned.mood PRIMARY KEY")
    admin(database, "ALTER TABLE public.t ADD id bigint, ADD best owned.mood")
    query = Query(typed, None, key="m", accumulate={"id": "sum", "best": "max"})
    added = pa.RecordBatch.from_pydict(
        {"m": ["ok", "ok"], "best": ["sad", "ok"], "id": pa.array([1, 2], pa.int64())}
    )
    if context == "IMPLICIT":  # So the server can't tell which "max" is meant, and calls none.
        with pytest.raises(AttemptFailedError, match="max.owned.mood. is not unique"):
            query.prepare(0, added)
        query.sweep(own=True)
        return
    for batch in range(2):
        written(query, batch, added)
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT m, id, best FROM public.t").fetchall()
    assert found == [("ok", 6, "ok")]


def test_the_server_shows_its_own_types_as_ever(database):
    """By its casts, which write other texts than its output functions: ``true``, no padding."""
    query = Query(
        database, "CREATE TABLE t (f bool, c char(5), n int CHECK (n < 100))", mode="staged"
    )
    row = {"f": [True], "c": ["a"], "n": pa.array([500], pa.int32())}
    with pytest.raises(RefusedRecordError, match="row: f='true', c='a', n='500'"):
        query.prepare(0, pa.RecordBatch.from_pydict(row))
    query.sweep(own=True)


def test_a_lookup_calls_no_cast_of_a_types_owner(database, typed):
    admin(
        database,
        "CREATE TABLE public.known (k int, m owned.humour, ms owned.mood[], p owned.pair, "
        "ps owned.pair[], s owned.span, f char(3))",
        "INSERT INTO public.known VALUES (1, 'ok', '{sad,ok}', '(1,x)', '{\"(2,y)\"}', '[1,3)', "
        "'a'), (2, NULL, NULL, '(,)', NULL, NULL, NULL)",
        "GRANT ALL ON public.known TO PUBLIC",
    )
    columns = dict.fromkeys(["m", "ms", "p", "ps", "s", "f"], "string")
    lookup = PostgresLookup(typed, "public.known", key="k", columns=columns)
    with contextlib.closing(lookup):
        lookup.check(1)
        found = lookup.fetch([(1,), (2,)])
    assert {key: [version.values for version in versions] for key, versions in found.items()} == {
        (1,): [("ok", "{sad,ok}", "(1,x)", '{"(2,y)"}', "[1,3)", "a")],
        (2,): [(None, None, "(,)", None, None, None)],
    }


def test_a_lookups_keys_are_read_by_no_cast_of_their_types_owner(database, typed, context):
    admin(
        database,
        "CREATE TABLE public.known (m owned.mood, n int)",
        "INSERT INTO public.known VALUES ('ok', 1), ('sad', 2)",
        "GRANT ALL ON public.known TO PUBLIC",
    )
    lookup = PostgresLookup(typed, "public.known", key="m", columns={"n": "int"})
    with contextlib.closing(lookup):
        if context == "IMPLICIT":  # So the server can't tell which "=" is meant, and calls none.
            with pytest.raises(AttemptFailedError, match="operator is not unique"):
                lookup.fetch([("ok",)])
            return
        found = lookup.fetch([("ok",), ("glad",)])
    assert {key: versions[0].values for key, versions in found.items()} == {("ok",): ("1",)}


def test_a_lookups_keys_are_compared_by_no_operator_that_anybody_may_make(database):
    """In the schema of the key's type, where others may create."""
    stranger, url = make_role(database)
    admin(
        database,
        "CREATE SCHEMA shared",
        "GRANT ALL ON SCHEMA shared TO PUBLIC",
        "CREATE TYPE shared.mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE public.known (m shared.mood, n int)",
        "INSERT INTO public.known VALUES ('ok', 1), ('sad', 2)",
    )
    admin(
        url,
        "CREATE FUNCTION shared.same(shared.mood, shared.mood) RETURNS bool LANGUAGE plpgsql AS "
        "'BEGIN RETURN true; END'",
        "CREATE OPERATOR shared.= "
        "(FUNCTION = shared.same, LEFTARG = shared.mood, RIGHTARG = shared.mood)",
    )
    try:
        with contextlib.closing(
            PostgresLookup(database, "public.known", key="m", columns={"n": "int"})
        ) as lookup:
            found = lookup.fetch([("ok",), ("glad",)])
        assert {key: versions[0].values for key, versions in found.items()} == {("ok",): ("1",)}
    finally:
        admin(database, f"DROP OWNED BY {stranger} CASCADE", f"DROP ROLE {stranger}")


@pytest.mark.parametrize(
    ("columns", "times"),
    [
        ({"id": "string"}, {"valid_from": "m"}),
        ({"id": "string"}, {"valid_from": "at", "valid_to": "m"}),
        ({"m": "binary"}, {}),
        ({"m": " Timestamp"}, {}),
    ],
)
def test_a_lookup_that_needs_a_cast_of_a_types_owner_is_refused(database, typed, columns, times):
    admin(
        database,
        "CREATE TABLE public.known (id bigint, m owned.mood, at timestamptz)",
        "INSERT INTO public.known VALUES (1, 'ok', '2026-01-01')",
        "GRANT ALL ON public.known TO PUBLIC",
    )
    lookup = PostgresLookup(typed, "public.known", key="id", columns=columns, **times)
    for look in (lambda: lookup.check(1), lambda: lookup.fetch([(1,)])):
        with contextlib.closing(lookup), pytest.raises(SchemaError, match="'m' of Postgres"):
            look()


def test_a_lookup_reads_a_boolean_from_the_text_of_a_foreign_type(database, typed):
    admin(
        database,
        "CREATE TYPE owned.answer AS ENUM ('yes', 'no')",
        "CREATE FUNCTION owned.said(owned.answer) RETURNS bool LANGUAGE sql AS "
        "$$SELECT pg_catalog.nextval('owned.called') IS NULL$$",
        "CREATE CAST (owned.answer AS bool) WITH FUNCTION owned.said(owned.answer)",
        "CREATE TABLE public.known (id bigint, a owned.answer)",
        "INSERT INTO public.known VALUES (1, 'yes'), (2, 'no'), (3, NULL)",
        "GRANT ALL ON public.known TO PUBLIC",
    )
    lookup = PostgresLookup(typed, "public.known", key="id", columns={"a": "boolean"})
    with contextlib.closing(lookup):
        found = lookup.fetch([(1,), (2,), (3,)])
    assert [found[n,][0].values for n in (1, 2, 3)] == [("true",), ("false",), (None,)]


def test_an_observer_calls_no_cast_of_a_types_owner(database, typed):
    columns = {"m": "mood", "h": "humour", "p": "pair", "ms": "mood[]", "s": "span"}
    declared = ", ".join(f"{name} owned.{type_}" for name, type_ in columns.items())
    admin(
        database,
        f"CREATE TABLE public.seen (id bigint, {declared})",
        "INSERT INTO public.seen VALUES (1, 'ok', 'ok', '(1,x)', '{ok}', '[1,3)'), (2, NULL, NULL, NULL, NULL, NULL)",
        "GRANT ALL ON public.seen TO PUBLIC",
    )
    for kind in ("numbers", "texts"):
        observer = PostgresObserver(
            typed, "public.seen", column="id", key_column="m", ids=kind, keys=kind, content=columns
        )
        seen = observer.rows()
        expected = contents_of(
            [["ok", None], ["ok", None], ["(1,x)", None], ["{ok}", None], ["[1,3)", None]]
        )
        assert sorted(seen.contents) == sorted(expected)


_SQL = re.compile(
    r"\b(SELECT|INSERT INTO|UPDATE|DELETE "
    r"FROM|CREATE|COPY|WHERE|AND)\b|OPERATOR\(|::|clock_timestamp"
)
_CALL = re.compile(r"(?<![.\w])([a-z_]+[a-z0-9_]*)\(")
_OPERATOR = re.compile(
    r"(?<=[\w)}'\"]) (?:=|<>|<|>|<=|>=|\|\||~~?|LIKE|ILIKE|IN|BETWEEN|SIMILAR) (?!EXCLUDED)|!="
)
_RELATION = re.compile(r"\b(?:FROM|JOIN|INTO) (pg_\w+|information_schema)\b(?!\.)")
_TYPE = re.compile(r"::(?!pg_catalog\.|bigint\b|int\b|boolean\b|\{|\d)\w+")
_ASSIGNED = re.compile(
    r"\b(generation|batch|names|at|autovacuum_enabled) = |\{0\} = (?=COALESCE|LEAST|GREATEST)"
)


def statements():
    """Every text of ours that is, or may be, a part of a statement, with where it stands."""
    for file in sorted(Path(onceforall.__file__).parent.rglob("*.py")):
        tree = ast.parse(file.read_text())
        prose = {id(node.body[0].value) for node in ast.walk(tree) if _has_docstring(node)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in prose
                and _SQL.search(node.value)
            ):
                yield f"{file.name}:{node.lineno}", node.value


def _has_docstring(node):
    body = getattr(node, "body", None)
    return (
        isinstance(body, list)
        and body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
    )


def unqualified(text):
    found = [name for name in _CALL.findall(text) if name not in {"k", "m", "u", "w", "onceforall"}]
    found += _OPERATOR.findall(_ASSIGNED.sub("", text))
    return found + _RELATION.findall(text) + _TYPE.findall(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM t",
        "SELECT 1 FROM pg_class c",
        "SELECT 1 FROM t WHERE a = %s",
        "SELECT a FROM t WHERE a LIKE 'x'",
        "SELECT a::text FROM t",
        "SELECT 1 WHERE a <> b",
    ],
)
def test_what_is_not_qualified_is_seen(text):
    assert unqualified(text)


def test_every_statement_of_ours_is_qualified():
    """The other tests run most statements; this one reads them all."""
    seen = list(statements())
    assert len(seen) > 50
    prose = re.compile(r"[.;:] [A-Z]|(?:^|\W)(?:the|is|be|which|can't|needs|may) ")
    found = {
        where: unqualified(text)
        for where, text in seen
        if unqualified(text) and not prose.search(text)
    }
    assert not found
