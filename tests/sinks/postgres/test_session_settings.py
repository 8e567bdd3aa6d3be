"""No default of a role, a database or a server changes a value on its way: every setting that a
session may have is tried with each value that it can have, and texts are compared."""

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from onceforall.errors import OnceForAllError, RefusedRecordError, SinkCheckError
from onceforall.operators.postgres_lookup import PostgresLookup
from onceforall.sinks.postgres.connections import Access
from support.postgres_sink import Query, make_role, rows

pytestmark = pytest.mark.postgres

OUTPUT = (
    "SELECT 0.1::float8 + 0.2::float8, 16777217::float4 / 3, ARRAY[1e-300::float8 / 3], '-0'::float8, "
    "'\\xff5c00'::bytea, '2026-02-01'::date, '2026-02-01 12:00'::timestamp, '2026-02-01 12:00+00'::timestamptz, "
    "'1 mon -2 days 03:04:05.6'::interval, '{NULL,\"NULL\"}'::text[], '1.50'::numeric, 'x y'::xml, "
    "json_build_object('f', 0.1::float8 + 0.2::float8, 't', '2026-02-01 12:00+00'::timestamptz), "
    "to_json('2026-02-01'::date), '(0.1,0.2)'::point, 12::oid, true, '1.2.3.4'::inet, '\\x41'::bytea::text, "
    "jsonb_build_object('i', '1 mon -2 days'::interval), '[2026-02-01,2026-03-01)'::daterange, "
    "xmlelement(name a, '\\xff'::bytea), 'a\\b', 'a' || chr(10), NULL = NULL, 'pg_class'::regclass, 1 = ANY('{1,NULL}'::int[])"
)  # fmt: skip
"""Values of types whose texts, or whose reading from texts, settings have a say in."""

LEFT_OUT = {
    "debug_discard_caches": "of no value, and very slow",
    "post_auth_delay": "delays a connection",
    "pre_auth_delay": "delays a connection",
}
# Not here either: lc_monetary. The type money has no value of its own, for its digits are a locale's.
STRINGS = {
    "DateStyle": ["SQL, DMY", "German", "Postgres, MDY", "ISO, DMY"],
    "TimeZone": ["Australia/Sydney", "America/St_Johns"],
    "timezone_abbreviations": ["Australia", "India"],
    "lc_numeric": ["C"],
    "lc_time": ["C"],
    "lc_messages": ["C"],
    "default_text_search_config": ["pg_catalog.german"],
}


def hostile(row):
    """Values other than the default of a setting, as texts."""
    name, kind, value, lowest, highest, choices = row
    if kind == "bool":
        return ["off" if value == "on" else "on"]
    if kind == "enum":
        return [choice for choice in choices if choice != value]
    if kind in {"integer", "real"}:
        asked = [lowest, highest, "0", "1"]
        return [
            each
            for each in dict.fromkeys(asked)
            if each != value and float(lowest) <= float(each) <= float(highest)
        ]
    return STRINGS.get(name, [])


@pytest.fixture(scope="module")
def tried(postgres):
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT name, vartype, setting, min_val, max_val, enumvals FROM pg_settings "
            "WHERE context IN ('user', 'superuser') ORDER BY name"
        ).fetchall()
    return [(row[0], value) for row in rows if row[0] not in LEFT_OUT for value in hostile(row)]


def texts(connection):
    """Each value, as the server writes it."""
    with connection.cursor() as cursor:
        cursor.execute(OUTPUT)
        result = cursor.pgresult
        return [result.get_value(0, n) for n in range(result.nfields)]


def test_no_setting_of_a_session_changes_a_text(postgres, tried):
    access = Access(postgres.conninfo)
    with access.connect(application_name="test", autocommit=True) as connection:
        expected = texts(connection)
    assert expected[0] == b"0.30000000000000004"
    assert len(tried) > 200
    changed, refused = [], []
    for name, value in tried:
        option = f"-c {name}={value}".replace(", ", ",\\ ")
        hostile_default = Access({**conninfo_to_dict(postgres.conninfo), "options": option})
        try:
            connection = hostile_default.connect(
                application_name="test", autocommit=True, patience_s=0
            )
        except OnceForAllError as error:
            refused.append((name, value, str(error)))
            continue
        with connection:
            try:
                found = texts(connection)
            except psycopg.Error as error:
                found = [str(error)]
        if found != expected:
            changed.append((name, value, found))
    assert changed == []
    # What the server takes of no client tests nothing: there are few of them.
    assert len(refused) < 10, refused


def test_a_lookup_gives_each_double_as_it_is_whatever_the_defaults_of_its_role(database):
    role, url = make_role(database, "GRANT CREATE ON SCHEMA public TO {role}")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (k int, d float8, r real)")
        connection.execute("INSERT INTO t VALUES (1, 0.1::float8 + 0.2::float8, 0.1)")
        connection.execute(sql.SQL("GRANT SELECT ON t TO {}").format(sql.Identifier(role)))
        for digits in (-15, 0, 3):
            connection.execute(
                sql.SQL("ALTER ROLE {} SET extra_float_digits = {}").format(
                    sql.Identifier(role), sql.Literal(digits)
                )
            )
            lookup = PostgresLookup(url, "t", key="k", columns=["d", "r"])
            try:
                (version,) = lookup.fetch([(1,)])[(1,)]
            finally:
                lookup.close()
            assert version.values == ("0.30000000000000004", "0.1")


def test_a_role_whose_sessions_end_at_an_error_is_no_obstacle(database):
    access = Access({**conninfo_to_dict(database), "options": "-c exit_on_error=on"})
    with access.connect(application_name="test", autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_foreign_keys_hold_where_a_default_switches_them_off(database):
    name = conninfo_to_dict(database)["dbname"]
    query = Query(database, "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id bigint REFERENCES p, v text)")  # fmt: skip
    query.execute(f'ALTER DATABASE "{name}" SET session_replication_role = replica')
    later = query.successor()
    with pytest.raises(RefusedRecordError, match="foreign key"):
        later.prepare(0, rows(9))
    later.sweep(own=True)
    assert later.ids() == []


def test_a_role_that_may_not_switch_foreign_keys_on_is_refused_at_start(database):
    name = conninfo_to_dict(database)["dbname"]
    role, url = make_role(
        database,
        "CREATE TABLE t (id bigint, v text)",
        "GRANT SELECT, INSERT ON t TO {role}",
        "ALTER ROLE {role} SET session_replication_role = replica",
        f'GRANT CREATE ON DATABASE "{name}" TO {{role}}',
    )
    with pytest.raises(SinkCheckError, match=f"ALTER ROLE {role} SET session_replication_role"):
        Query(url, None)
    with psycopg.connect(database, autocommit=True) as connection:
        assert connection.execute("SELECT to_regnamespace('onceforall')").fetchone() == (None,)
        connection.execute(f"ALTER ROLE {role} SET session_replication_role = origin")
        query = Query(url, None)
        query.commit(0, query.prepare(0, rows(1)))
        assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]
