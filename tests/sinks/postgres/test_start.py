"""What is refused at start, before any data moves, with the statement that mends it."""

import copy
import inspect
import pickle
import re
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from onceforall.errors import OptionError, SchemaError, SinkCheckError, SinkUnavailableError
from onceforall.sink import StartInfo
from onceforall.sinks.postgres import sink as postgres_sink
from onceforall.sinks.postgres.sink import PostgresSink
from support.databases import drop_database
from support.postgres_sink import KEYED, TABLE, Query, make_role, rows
from support.relay import Relay
from support.waiting import until

pytestmark = pytest.mark.postgres


def execute(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def execute_one(url, statement):
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchone()[0]


def check(url, output_mode="append", **options):
    sink = PostgresSink(url, "t", retry_for_s=2, **options)
    sink.check(StartInfo("q", "out", output_mode=output_mode))
    return sink


def test_a_role_learns_which_rights_it_lacks_and_with_them_all_goes_well(database):
    execute(database, KEYED, "GRANT USAGE ON SCHEMA public TO public")
    role, url = make_role(database)
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with pytest.raises(SinkCheckError, match=f"CREATE SCHEMA onceforall AUTHORIZATION {role}"):
        check(url)
    execute(database, f"CREATE SCHEMA onceforall; GRANT USAGE ON SCHEMA onceforall TO {role}")
    with pytest.raises(SinkCheckError, match=f"GRANT USAGE, CREATE ON SCHEMA onceforall TO {role}"):
        check(url)
    execute(database, f"GRANT CREATE ON SCHEMA onceforall TO {role}")
    with pytest.raises(SinkCheckError, match=f"GRANT INSERT, SELECT ON public.t TO {role}"):
        check(url)
    execute(database, f"GRANT INSERT, SELECT ON t TO {role}")
    check(url)
    with pytest.raises(SinkCheckError, match=f"GRANT UPDATE ON public.t TO {role}"):
        check(url, key="id")
    with pytest.raises(SinkCheckError, match=f"GRANT DELETE ON public.t TO {role}"):
        check(url, output_mode="complete")
    execute(database, f"GRANT UPDATE, DELETE ON t TO {role}")
    for mode in ("staged", "prepared", "upsert"):
        query = Query(url, None, mode=mode, key="id", name=mode)
        query.write(0, rows(1)) if mode == "upsert" else query.commit(0, query.prepare(0, rows(1)))
    assert query.all() == [(1, "x")]
    assert name


def test_markers_of_another_role_are_named_with_the_grant(database):
    Query(database, TABLE)
    role, url = make_role(
        database, "GRANT ALL ON SCHEMA onceforall TO {role}", "GRANT ALL ON t TO {role}"
    )
    with pytest.raises(
        SinkCheckError,
        match=rf"GRANT SELECT, INSERT, UPDATE, DELETE ON onceforall\.markers TO {role}",
    ):
        check(url)


def test_a_table_that_is_missing_or_has_no_index_for_the_key_is_refused(database):
    with pytest.raises(SinkCheckError, match="create_table=True"):
        check(database)
    execute(database, TABLE)
    with pytest.raises(SinkCheckError, match="unique index"):
        check(database, key="id")


@pytest.mark.parametrize(
    ("what", "mode", "words"),
    [
        (
            "FOR ALL TABLES",
            "staged",
            "publishes also the staging tables and the table of markers in the schema onceforall",
        ),
        ("FOR ALL TABLES", "prepared", "publishes also the table of markers"),
        ("FOR TABLES IN SCHEMA onceforall", "staged", "publishes also the staging tables"),
        ("FOR TABLES IN SCHEMA public", "staged", None),
        ("FOR TABLE t", "staged", None),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_publication_of_the_sinks_own_tables_is_told(database, caplog, what, mode, words):
    """A subscriber that lacks them stops for good at the first batch."""
    query = Query(database)
    query.execute(f"CREATE PUBLICATION of_all {what}")
    with caplog.at_level("WARNING", "onceforall"):
        query.successor(mode=mode)
    told = [
        record.getMessage() for record in caplog.records if "publication" in record.getMessage()
    ]
    assert [words in text and "of_all" in text for text in told] == (
        [] if words is None else [True]
    )


def test_another_schema_for_staging_is_made_and_quoted(database):
    query = Query(database, TABLE, staging_schema='My "Own" Schema')
    query.commit(0, query.prepare(0, rows(1)))
    assert query.ids() == [1]


def test_the_modes_of_output_follow_from_key_and_mode(database):
    def modes(**options):
        return PostgresSink(database, "t", **options).capabilities.output_modes

    assert modes() == {"append", "complete"}
    assert modes(key="id") == {"append", "update", "complete"}
    assert modes(mode="prepared", key="id") == {"append", "update"}
    assert PostgresSink(database, "t", mode="prepared", key="id").capabilities.one_task_per_key == (
        "id",
    )


@pytest.mark.parametrize(
    ("output_mode", "on_conflict", "is_told"),
    [("update", "ignore", True), ("append", "ignore", False), ("update", "update", False)],
)
def test_a_start_tells_that_later_values_of_a_key_will_be_dropped(
    database, caplog, output_mode, on_conflict, is_told
):
    Query(database, KEYED, key="id", on_conflict=on_conflict, output_mode=output_mode)
    assert ("keeps the first row that ever comes" in caplog.text) == is_told


def test_every_argument_is_documented_with_its_default():
    text = (Path(__file__).parents[3] / "docs" / "postgres.md").read_text(encoding="utf-8")
    for name, parameter in inspect.signature(PostgresSink).parameters.items():
        default = parameter.default
        told = (
            "required"
            if default is inspect.Parameter.empty
            else "none"
            if default is None
            else f"`{default}`"
        )
        told = f'`"{default}"`' if isinstance(default, str) else told
        assert f"| `{name}` | {told} |" in text, name


def test_no_secret_is_in_a_pickle_but_a_copy_in_this_process_has_it(database, postgres):
    query = Query(database, TABLE)
    pickled = pickle.dumps(query.sink)
    assert postgres.password.encode() not in pickled
    assert copy.copy(query.sink).secrets() == {"password": postgres.password}
    in_task = pickle.loads(pickled)
    transaction = in_task.begin_transaction(query.attempt())
    in_task.invoke(transaction, rows(1))
    committable = in_task.pre_commit(transaction)
    query.sink.confirm([committable])
    query.commit(0, [committable])
    assert query.ids() == [1]


def test_without_psycopg_the_library_can_be_imported_and_the_sink_says_what_to_install():
    program = (
        "import sys; sys.modules['psycopg'] = None; import onceforall as ofa; "
        "ofa.PostgresSink('postgresql://h/d', 't')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "MissingExtraError" in ended.stderr
    assert "pip install 'onceforall[postgres]'" in ended.stderr


def test_a_staging_schema_that_the_driver_would_take_for_a_placeholder_is_refused():
    with pytest.raises(OptionError, match="must not contain a percent sign"):
        PostgresSink("postgresql://localhost/x", "t", staging_schema="st%s")


class Breaking(psycopg.Connection):
    """A connection whose session the server ends before its nth statement; for one connection."""

    left: int | None = None
    always = False
    ended = 0

    def execute(self, *arguments, **named):
        cls = Breaking
        if (cls.left is not None or cls.always) and self.info.parameter_status(
            "application_name"
        ) == "ofa-check":
            if cls.always or cls.left == 0:
                with psycopg.Connection.connect(
                    self.info.dsn, password=self.info.password
                ) as other:
                    other.execute("SELECT pg_terminate_backend(%s, 5000)", [self.info.backend_pid])
                cls.ended += 1
                cls.left = None
            else:
                cls.left -= 1
        return super().execute(*arguments, **named)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # columns are Spark's
@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_a_start_goes_on_whichever_of_its_statements_the_connection_breaks_at(
    database, monkeypatch, mode
):
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("id", LongType()), StructField("n", LongType())])
    fold = {"accumulate": {"n": "sum"}} if mode == "staged" else {}
    monkeypatch.setattr(psycopg, "connect", Breaking.connect)
    monkeypatch.setattr(Breaking, "ended", 0)
    statements = 0
    while True:
        execute(database, "DROP TABLE IF EXISTS t, u; DROP SCHEMA IF EXISTS onceforall CASCADE")
        start = StartInfo("q", "out", output_mode="append")
        options = {"key": "id", "mode": mode, "create_table": True, "retry_for_s": 5, **fold}
        sink, other = PostgresSink(database, "t", **options), PostgresSink(database, "u", **options)
        other.check(StartInfo("q", "other", output_mode="append"))
        monkeypatch.setattr(Breaking, "left", statements)
        sink.identity(start)
        sink.check(start)
        sink.check_beside(start, {"other": other})
        sink.holds(start, 0)
        sink.columns(schema)
        assert execute_one(database, "SELECT to_regclass('t') IS NOT NULL")
        if Breaking.left is not None:
            break
        statements += 1
        assert Breaking.ended == statements
    assert statements > 20


@pytest.mark.spark
@pytest.mark.parametrize(
    ("field", "options", "why"),
    [
        ("cube array<array<array<int>>>", {}, "At most two dimensions"),
        ("v interval month, w map<interval month, int>", {}, "w"),
        ("v string", {"key": "id", "accumulate": {"nope": "sum"}}, "nope"),
        ("v string", {"key": "id", "accumulate": {"v": "sum"}}, "v"),
    ],
)
def test_no_table_is_made_for_rows_that_are_refused(spark, database, field, options, why):
    sink = PostgresSink(database, "made", create_table=True, retry_for_s=1, **options)
    sink.check(StartInfo("q", "out"))
    schema = spark.createDataFrame([], f"id bigint, {field}").schema
    with pytest.raises((SchemaError, SinkCheckError), match=why):
        sink.columns(schema)
    with psycopg.connect(database, autocommit=True) as connection:
        assert connection.execute("SELECT to_regclass('made')").fetchone() == (None,)
    sink.close()


def test_a_start_whose_connection_breaks_again_and_again_says_so(database, monkeypatch):
    execute(database, TABLE)
    monkeypatch.setattr(psycopg, "connect", Breaking.connect)
    monkeypatch.setattr(Breaking, "always", True)
    sink = PostgresSink(database, "t", retry_for_s=0.5)
    with pytest.raises(
        SinkUnavailableError, match=r"Checking t did not succeed within 0\.5 s.*administrator"
    ):
        sink.check(StartInfo("q", "out", output_mode="append"))
    assert Breaking.ended > 1


# --- a server that takes connections and doesn't answer ----------------------------------------


@pytest.fixture
def hanging(database, monkeypatch):
    """A relay to the database, and a sink's start through it, whose times are short."""
    monkeypatch.setattr(postgres_sink, "_ANSWERS_WITHIN_S", 1.5)
    parts = urlsplit(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(KEYED)
    with Relay(parts.hostname, parts.port) as relay:

        def start(**options):
            sink = PostgresSink(
                f"{relay.url(database)}?connect_timeout=2",
                "t",
                key="id",
                **{"retry_for_s": 0.1, "lock_timeout_s": 0.2, **options},
            )
            info = StartInfo(str(uuid.uuid4()), "out", output_mode="update")
            sink.identity(info)
            sink.check(info)
            sink.holds(info, 0)
            sink.close()

        yield relay, start


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "step",
    [
        b"",
        b"fsync",
        *(
            pytest.param(step, marks=pytest.mark.long)
            for step in (b"set_config", b"CREATE SCHEMA", b"pg_index")
        ),
    ],
)
def test_a_start_gives_up_a_server_that_does_not_answer_and_says_so(hanging, step):
    relay, start = hanging
    relay.hang_at(step, connections=1000)
    (error,) = ended(start)
    assert isinstance(error, SinkUnavailableError)
    assert re.search(r"did not take the connection|no answer within", str(error))
    assert relay.hung >= 1
    relay.hang_at(step, connections=1)
    assert ended(lambda: start(retry_for_s=10)) == [None]
    assert relay.hung == 1


def ended(action):
    """What it raised, or what it returned; in a thread, for it shall come to an end."""
    came_to = []

    def run():
        try:
            came_to.append(action())
        except Exception as error:
            came_to.append(error)

    threading.Thread(target=run, daemon=True).start()
    until(lambda: came_to, 20, "the start ends")
    return came_to


@pytest.mark.long
@pytest.mark.timeout(600)
def test_so_it_does_whichever_message_it_hangs_at(hanging):
    relay, start = hanging
    tried = given_up = 0
    while True:
        relay.hang_at(b"", connections=1000, after=tried)
        try:
            start()
        except SinkUnavailableError:
            given_up += 1
        if not relay.hung:
            break  # No connection sends so many; where it hangs at its last one, it is being closed.
        tried += 1
    assert given_up > 15


@pytest.mark.parametrize(
    ("encoding", "words"), [("UTF8", None), ("LATIN1", "lacks is refused"), ("SQL_ASCII", "bytes")]
)
def test_a_database_that_is_not_of_utf8_is_told_at_a_start(postgres, caplog, encoding, words):
    name = f"t_{encoding.lower()}_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE "
            "template0"
        )
    try:
        with caplog.at_level("WARNING", "onceforall"):
            Query(postgres.url(name)).sink.close()
    finally:
        drop_database(postgres, name)
    told = [r.getMessage() for r in caplog.records if "has the encoding" in r.getMessage()]
    assert [f"encoding {encoding} " in text and words in text for text in told] == [True] * bool(
        words
    )


@pytest.mark.parametrize("setting", ["on", "off"])
def test_a_start_warns_where_nobody_can_tell_what_a_session_does(database, caplog, setting):
    execute(
        database,
        f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET track_activities = {setting}', "
        "current_database()); END $$",
    )
    with caplog.at_level("WARNING", "onceforall"):
        Query(database).sink.close()
    told = [r.getMessage() for r in caplog.records if "track_activities" in r.getMessage()]
    assert len(told) == (setting == "off")
    assert all("ALTER ROLE" in text for text in told)
