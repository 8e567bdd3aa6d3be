"""Whoever may create in a schema of the search_path must not get code of his run as the sink's
role.

PostgreSQL looks functions and operators up along the ``search_path``, and one with fitter argument
types wins over that of ``pg_catalog``, though this comes first
(https://www.postgresql.org/docs/current/typeconv-func.html). So every function, operator and
relation in a statement of ours is qualified.
"""

import ast
import re
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import onceforall
from onceforall.errors import RefusedRecordError
from onceforall.operators import _pins as pins
from onceforall.operators.postgres_lookup import PostgresLookup
from onceforall.sink import StartInfo
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
