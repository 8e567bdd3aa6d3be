from __future__ import annotations

import contextlib
import copy
import logging
import pickle
import re
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from onceforall.common import user_functions
from onceforall.embedded import EmbeddedPostgres
from onceforall.errors import (
    AttemptFailedError,
    MissingExtraError,
    OptionError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sinks.postgres import connections
from onceforall.sinks.postgres.connections import Access
from onceforall.sinks.postgres.conninfo import SECRET_PARAMETERS, is_secret
from onceforall.sinks.postgres.driver.start_checks import check_server
from onceforall.sinks.postgres.server_errors import statement_error, translated
from support.waiting import until

pytestmark = pytest.mark.postgres

NAME = {"application_name": "test"}
SECRET = "s3cret-%&/ 'ü"


def without_password(conninfo):
    given = conninfo_to_dict(conninfo)
    return given.pop("password"), given


@pytest.fixture(scope="module")
def own():
    """A server with a user, a closed database, and TLS."""
    with EmbeddedPostgres(users={"writer": SECRET}, tls=True) as server:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("CREATE DATABASE closed")
            connection.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
            connection.execute("CREATE ROLE group_role NOLOGIN PASSWORD 'x'")
            connection.execute("CREATE ROLE client LOGIN")
        yield server


@pytest.mark.parametrize(
    "form",
    [
        "url",
        "text",
        "mapping",
        "function",
        "function of a mapping",
        "password apart",
        "password as function",
    ],
)
def test_every_form_of_conninfo_connects_with_the_same_result(own, form):
    url = own.url(user="writer")
    password, rest = without_password(url)
    given = {
        "url": lambda: Access(url),
        "text": lambda: Access(psycopg.conninfo.make_conninfo(url)),
        "mapping": lambda: Access({**rest, "password": password, "port": int(rest["port"])}),
        "function": lambda: Access(lambda: url),
        "function of a mapping": lambda: Access(lambda: {**rest, "password": lambda: password}),
        "password apart": lambda: Access(rest, password=password),
        "password as function": lambda: Access({**rest, "password": lambda: password}),
    }[form]()
    with given.connect(**NAME) as connection:
        assert (connection.info.user, connection.info.dbname, password) == (
            "writer",
            "postgres",
            SECRET,
        )
        assert not connection.autocommit
    with copy.copy(given).connect(**NAME, autocommit=True) as connection:
        assert connection.autocommit


def test_no_pickle_and_no_text_of_an_access_holds_a_password_and_a_task_gets_it_from_its_attempt(
    own,
):
    password, rest = without_password(own.url(user="writer"))
    for access in (
        Access(own.url(user="writer")),
        Access(rest, password=SECRET),
        Access({**rest, "password": SECRET}),
    ):
        assert access.secret_values() == {"password": SECRET}
        frozen = pickle.dumps(access)
        assert SECRET.encode() not in frozen
        assert password not in repr(access) + access.target
        assert "writer" in repr(access)
        thawed = pickle.loads(frozen)
        assert thawed.secret_values() == {}
        thawed.connect(access.secret_values(), **NAME).close()
        twice = pickle.loads(pickle.dumps(thawed))
        twice.connect(access.secret_values(), **NAME).close()
        with pytest.raises(
            SinkCheckError, match="value of 'password' for PostgreSQL did not reach this process"
        ):
            thawed.connect(**NAME)
    assert Access(rest, password=lambda: SECRET).secret_values() == {}


def test_a_function_is_asked_at_each_connect(own):
    _, rest = without_password(own.url(user="writer"))
    answers = iter(["wrong", SECRET])
    access = Access(rest, password=lambda: next(answers))
    with pytest.raises(SinkCheckError, match="password authentication failed"):
        access.connect(**NAME)
    access.connect(**NAME).close()


def test_a_function_that_hangs_is_given_up_with_its_name(monkeypatch):
    monkeypatch.setattr(user_functions, "ANSWERS_WITHIN_S", 0.2)
    over = threading.Event()
    try:
        for name, access in (
            ("password", Access("host=127.0.0.1", password=lambda: over.wait(60))),
            ("conninfo", Access(lambda: over.wait(60))),
        ):
            with pytest.raises(
                SinkCheckError, match=f"given for '{name}' gave no answer within 0.2 s. Mend it"
            ):
                access.connect(**NAME)
    finally:
        over.set()


def test_of_a_failing_function_only_kind_and_place_are_told(own):
    def failing():
        raise KeyError(SECRET)

    for access in (Access({"host": "127.0.0.1"}, password=failing), Access(failing)):
        with pytest.raises(
            SinkCheckError, match=r"raised KeyError in line \d+ of test_connections.py"
        ) as caught:
            access.connect(**NAME)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
    with pytest.raises(SinkCheckError, match="returned no string"):
        Access({"host": "127.0.0.1"}, password=lambda: "").connect(**NAME)


MALFORMED = [
    ("host=a s3cret", "can't be parsed"),
    ("postgresql://u:s3%zzcret@h/", "can't be parsed"),
    ('host=h user=u password=ab c"ds3cret', "a part of it has no '='"),
    ("host=h password='a\"b' x\"s3cret", "a part of it has no '='"),
    ("host=h password='s3cret", "quote isn't closed"),
    ("host=h user=u password=ab s3cret=x", "an option that this libpq doesn't know"),
    ("postgresql://h/x?s3cret=1", "a parameter that this libpq doesn't know"),
    ("postgresql://u:p@ss?s3cret=@h/d", "a parameter that this libpq doesn't know"),
    ('postgresql://u:x"s3cret%zz@h/d', "begins no percent-encoded character"),
    ("postgresql://u:s3cret@[h/d", "neither a URL"),
    ("postgresql://u:s3cret%00@h/d", "U\\+0000"),
    ("host=h password=s3cret\0 sslmode=verify-full", "The conninfo has the character U\\+0000"),
    ("host=h password=s3cret\ud800", "The conninfo holds half a character"),
    ({"host": "h", "password": "s3\0", "dbname": "d"}, "'password' of the conninfo has the char"),
    ({"host": "h\0", "sslmode": "verify-full"}, "'host' of the conninfo has the character"),
    ({"password": "s3\ud800"}, "'password' of the conninfo holds half a character"),
    ({"conninfo": "host=h password=s3cret"}, "'conninfo' of the conninfo is unknown"),
    ({"sslmode\0": "x"}, "is unknown to this libpq"),
    ({"dbname": "postgresql://u:s3cret@h/d"}, "'dbname' of the conninfo is a whole address"),
    ("host=h dbname=postgresql://u:s3cret@h/d", "'dbname' of the conninfo is a whole address"),
    ({"hosst": "h"}, "hosst"),
    ("replication=database", "replication"),
    ("postgresql://u:p/s3cret@h:1/db", "Percent-encode them"),
    ("postgresql://u:p@s3cret@h:1/db", "Percent-encode them"),
    ("postgresql://u:p@s3cret@h", "Percent-encode them"),
    ({"host": "h", "port": "s3cret"}, "'port' of the conninfo is no number"),
    ({"foo": lambda: "s3"}, "'foo' of the conninfo is unknown"),
    ("application_name=x", "application_name"),
    ("client_encoding=latin1", "client_encoding"),
    ("target_session_attrs=standby", "target_session_attrs"),
    ({"host": lambda: "h"}, "'host' of the conninfo can't be a function"),
    ("jdbc:postgresql://h:5432/d?user=u&password=s3cret", "an address of JDBC's"),
    (5, "The conninfo is a int"),
]


@pytest.mark.parametrize(("conninfo", "why"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_conninfo_that_makes_no_sense_is_refused_without_its_secrets(conninfo, why):
    with pytest.raises(OptionError, match=why) as caught:
        Access(conninfo)
    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "conninfo",
    [
        "postgresql://u:p%40%2Fx@h1:1,h2:2/db",
        "postgresql://h/a%40b?sslcert=a@b",
        "host=h user=a@b password=x@y/z",
        "host=h password=postgresql://u:p/x@h@i",
        {"host": "h", "port": "1,2", "password": "x@y/z"},
        {"host": "h", "port": 5432},
    ],
)
def test_what_is_encoded_or_needs_no_encoding_is_taken(conninfo):
    Access(conninfo)


def test_a_password_given_twice_or_empty_is_refused():
    with pytest.raises(OptionError, match="given twice"):
        Access("password=a", password="b")
    for password in ("", 5):
        with pytest.raises(OptionError, match="password= is empty or no string"):
            Access("host=h", password=password)
    with pytest.raises(OptionError, match="patience_s=-1"):
        Access("host=h", patience_s=-1)


LIBPQ = [option.keyword.decode() for option in psycopg.pq.Conninfo.parse(b"")]


@pytest.mark.parametrize("name", sorted(SECRET_PARAMETERS))
def test_no_pickle_holds_a_secret_parameter_and_its_function_is_called(name):
    if name not in LIBPQ:
        pytest.skip(f"libpq {psycopg.pq.version()} has no {name}")
    access = Access({"host": "h", name: "s3cret"})
    assert b"s3cret" not in pickle.dumps(access)
    assert access.secret_values() == {name: "s3cret"}
    with pytest.raises(SinkCheckError, match=f"given for {name!r} raised ZeroDivisionError"):
        Access({"host": "h", name: lambda: 1 // 0}).connect(**NAME)


def test_what_libpq_has_is_secret_unless_somebody_has_looked_at_it():
    starred = {
        option.keyword.decode()
        for option in psycopg.pq.Conninfo.parse(b"")
        if option.dispchar == b"*"
    }
    assert starred == {"password", "sslpassword", "oauth_client_secret"} & set(LIBPQ)
    assert {name for name in LIBPQ if is_secret(name)} == SECRET_PARAMETERS & set(LIBPQ)
    assert is_secret("of_a_later_libpq")


def test_no_value_reaches_libpq_that_it_would_cut_off(own):
    """Behind the U+0000 stand the database and the encryption that were asked for."""
    password, rest = without_password(own.url(user="writer"))
    behind = {**rest, "dbname": "nowhere", "sslmode": "verify-full"}
    for spoiled, why in ((password + "\0", "U\\+0000"), (password + "\ud800", "half a character")):
        with pytest.raises(OptionError, match=f"password= .*{why}"):
            Access(behind, password=spoiled)
        for access, error in (
            (Access(behind, password=lambda spoiled=spoiled: spoiled), SinkCheckError),
            (Access({"password": lambda spoiled=spoiled: spoiled, **behind}), SinkCheckError),
            (Access(lambda spoiled=spoiled: {"password": spoiled, **behind}), OptionError),
            (Access(lambda spoiled=spoiled: f"password='{spoiled}' sslmode=require"), OptionError),
        ):
            with pytest.raises(error, match=why) as caught:
                access.connect(**NAME)
            assert SECRET not in str(caught.value)
        in_task = pickle.loads(pickle.dumps(Access(behind, password=password)))
        with pytest.raises(SinkCheckError, match=f"value of 'password' for PostgreSQL .*{why}"):
            in_task.connect({"password": spoiled}, **NAME)


REFUSALS = {
    "wrong password": (
        {"user": "writer", "password": "s3-wrong"},
        "password authentication failed.*Correct user and password",
    ),
    "no password": (
        {"user": "writer", "password": None, "passfile": "/nonexistent"},
        "no password supplied.*give password=",
    ),
    "unknown role": ({"user": "nobody_at_all"}, "Correct user and password"),
    "no login": ({"user": "group_role", "password": "x"}, "not permitted to log in.*ALTER ROLE"),
    "unknown database": ({"dbname": "nope"}, 'database "nope" does not exist.*Correct dbname'),
    "closed database": (
        {"user": "writer", "password": SECRET, "dbname": "closed"},
        "permission denied for database.*GRANT CONNECT ON DATABASE",
    ),
    "no encryption": (
        {"sslmode": "disable"},
        r"no pg_hba.conf entry.*let its administrator add a line.*or change sslmode",
    ),
    "unknown authority": (
        {"sslrootcert": "client.pem"},
        "certificate verify failed.*Give sslrootcert=",
    ),
    "other name": (
        {"host": "localhost", "hostaddr": "127.0.0.1"},
        "does not match host name.*Connect by the name",
    ),
    "no root certificate": (
        {"sslrootcert": "/nonexistent"},
        "root certificate file.*Correct sslrootcert",
    ),
    "no key": (
        {"sslcert": "client.pem", "sslkey": "/nonexistent"},
        "Correct sslrootcert, sslcert and sslkey",
    ),
    "no certificate": ({"user": "client"}, "requires a valid client certificate|Correct user"),
    "sslmode": ({"sslmode": "sometimes"}, "sslmode.*Correct that parameter"),
    "time": ({"connect_timeout": "soon"}, "connect_timeout.*Correct that parameter"),
    "setting": ({"options": "-c nosuch=1"}, "nosuch.*Correct that parameter"),
    "no value": ({"options": "-c work_mem"}, "work_mem.*Correct that parameter"),
    "bad value": ({"options": "-c default_tablespace=nosuch"}, "nosuch.*Correct that parameter"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_stays_refused_is_told_at_once_with_its_remedy_and_no_password(own, case):
    changes, why = REFUSALS[case]
    given = {**conninfo_to_dict(own.conninfo), **changes}
    for name in ("sslrootcert", "sslcert"):
        if given.get(name) == "client.pem":
            given[name] = str(own.tls_dir / "client.pem")
    begun = time.monotonic()
    with pytest.raises(SinkCheckError, match=why) as caught:
        Access(given, patience_s=60).connect(**NAME)
    assert time.monotonic() - begun < 20
    assert own.password not in str(caught.value)
    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert f":{own.port}/" in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"service": "nosuch"},
        {"host": "127.0.0.1,127.0.0.1", "port": "1,2,3"},
        {"hostaddr": "999.1.1.1"},
        {"host": "/" + "x" * 150},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_parameter_that_is_wrong_before_any_server_is_asked_is_told_as_one(given):
    with pytest.raises(SinkCheckError, match="Correct that parameter"):
        Access(given, patience_s=60).connect(**NAME)


def test_a_client_certificate_serves_in_place_of_a_password(own):
    given = {
        **conninfo_to_dict(own.url(user="client", password="")),
        "sslcert": str(own.tls_dir / "client.pem"),
        "sslkey": str(own.tls_dir / "client.key"),
    }
    with Access(given).connect(**NAME) as connection:
        assert connection.info.user == "client"


@pytest.mark.parametrize("host", ["db..example", ".db", "a" * 64, "localhost,db..example"])
def test_a_host_that_can_not_be_looked_up_is_named_at_once(host, monkeypatch):
    """psycopg looks hosts up itself, and raises what is none of its errors."""
    last = re.escape(host.rpartition(",")[2])
    for conninfo in ({"host": host, "dbname": "d"}, lambda: f"host={host} dbname=d"):
        with pytest.raises(SinkCheckError, match=f"{last}.*Correct the host"):
            Access(conninfo).connect(**NAME)
    monkeypatch.setenv("PGHOST", host)
    with pytest.raises(SinkCheckError, match="PGHOST"):
        Access("dbname=d").connect(**NAME)


def test_a_server_that_is_away_is_asked_again_until_the_patience_ends(caplog):
    caplog.set_level(logging.INFO, "onceforall.sinks.postgres")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        access = Access(
            f"postgresql://u:s3cret@127.0.0.1:{unused.getsockname()[1]}/db", patience_s=0.7
        )
        with pytest.raises(
            SinkUnavailableError, match=r"Connection refused.*\. See that the server runs"
        ) as caught:
            access.connect(**NAME)
        assert "again" not in str(caught.value), "nobody asks it again"
        assert len(caplog.records) >= 2
        caplog.clear()
        with pytest.raises(SinkUnavailableError):
            access.connect(**NAME, patience_s=0)
        assert not caplog.records
    assert "s3cret" not in caplog.text
    with pytest.raises(SinkUnavailableError, match="Check the host's name"):
        Access("host=no-such-host.invalid", patience_s=0).connect(**NAME)


def test_a_connect_waits_for_a_server_that_starts_and_an_open_session_is_lost_with_its_server():
    with EmbeddedPostgres(
        settings={"max_connections": 5, "superuser_reserved_connections": 0}
    ) as server:
        access = Access(server.conninfo, patience_s=0)
        connection = access.connect(**NAME)
        with contextlib.ExitStack() as many:
            with pytest.raises(
                SinkUnavailableError,
                match="too many clients|slots are reserved|too many connections",
            ) as caught:
                _ = [many.enter_context(access.connect(**NAME)) for _ in range(10)]
            assert "Raise max_connections" in str(caught.value)
        server.kill()
        with (
            pytest.raises(SinkUnavailableError, match="Asking failed") as lost,
            translated("Asking"),
        ):
            connection.execute("SELECT 1")
        # A start ends with it; where it is tried again, the log's warning says so.
        assert "tried again" not in str(lost.value)
        connection.close()
        opened = []
        waiting = threading.Thread(
            target=lambda: opened.append(access.connect(**NAME, patience_s=30))
        )
        waiting.start()
        server.restart()
        waiting.join(30)
        assert opened[0].execute("SELECT 1").fetchone() == (1,)
        opened[0].close()


def test_no_default_of_role_or_database_changes_what_a_session_does(database):
    server = conninfo_to_dict(database)
    with psycopg.connect(database, autocommit=True) as connection:
        for setting in (
            "synchronous_commit = off", "statement_timeout = '20s'", "idle_in_transaction_session_timeout = '20s'", "lock_timeout = '20s'",
            "TimeZone = 'Asia/Kathmandu'", "DateStyle = 'German'", ("default_transaction_isolation "
                                                                   "= 'serializable'"),
            "default_transaction_deferrable = on", "idle_session_timeout = '20s'", "client_min_messages = debug1",
            "quote_all_identifiers = on",
        ):  # fmt: skip
            connection.execute(f'ALTER DATABASE "{server["dbname"]}" SET {setting}'.encode())
    with Access(database).connect(**NAME, settings={"lock_timeout": "7s"}) as connection:
        names = (
            "synchronous_commit", "statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout", "TimeZone", "transaction_isolation",
            "idle_session_timeout", "client_encoding", "application_name", "default_transaction_deferrable",
            "quote_all_identifiers",
        )  # fmt: skip
        shown = [connection.execute(f"SHOW {name}".encode()).fetchone()[0] for name in names]
        assert shown == [
            "on",
            "0",
            "0",
            "7s",
            "UTC",
            "read committed",
            "0",
            "UTF8",
            "test",
            "off",
            "off",
        ]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            f'ALTER DATABASE "{server["dbname"]}" SET synchronous_commit = remote_apply'.encode()
        )
    with Access(database).connect(**NAME) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)


def test_a_session_that_may_not_write_is_away_with_both_reasons_named(database):
    name = conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode()
        )
    with pytest.raises(
        SinkUnavailableError, match="It is a standby, or default_transaction_read_only is on"
    ):
        Access(
            {**conninfo_to_dict(database), "target_session_attrs": "read-write"}, patience_s=0
        ).connect(**NAME)


def test_a_role_or_database_that_reads_by_default_is_written_all_the_same(database):
    name = conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode()
        )
    with Access(database, patience_s=0).connect(**NAME, autocommit=True) as connection:
        connection.execute("CREATE TABLE written ()")


def test_what_is_unwise_is_logged_and_a_pooler_is_noticed(database, caplog):
    caplog.set_level(logging.WARNING, "onceforall.sinks.postgres")
    access = Access(database)

    class Pooled:
        """A connection whose backend is another one than the client was told, as behind
        PgBouncer."""

        def __init__(self, connection):
            self.execute, self.pgconn, self.info = connection.execute, connection.pgconn, self
            self.backend_pid, self.hostaddr = connection.info.backend_pid + 1, "192.0.2.1"

    with access.connect(**NAME) as connection:
        check_server(connection, access)
        assert "fsync=off" in caplog.text
        assert "pooler" not in caplog.text
        assert "not encrypted" not in caplog.text
        check_server(Pooled(connection), access)
    assert "pool_mode=session" in caplog.text
    assert "not encrypted" in caplog.text


def test_a_server_that_is_too_old_is_refused(database, monkeypatch):
    monkeypatch.setattr(connections, "OLDEST_VERSION", 990000)
    with pytest.raises(SinkCheckError, match="needs 99 or newer. Upgrade"):
        Access(database).connect(**NAME)


STATEMENTS = {
    "unique": (
        "INSERT INTO t VALUES (1), (1)",
        RefusedRecordError,
        r"Doing it failed: duplicate key.*Key \(a\)=\(1\) already exists",
    ),
    "division": ("SELECT 1 / 0", RefusedRecordError, "division by zero"),
    "no table": (
        "SELECT * FROM gone",
        SinkCheckError,
        'relation "gone" does not exist. It was dropped or renamed',
    ),
    "cancelled": (
        "SET LOCAL statement_timeout = 1; SELECT pg_sleep(5)",
        AttemptFailedError,
        "57014",
    ),
    "ended": (
        "SELECT pg_terminate_backend(pg_backend_pid(), 5000)",
        SinkUnavailableError,
        "Doing it failed",
    ),
    "syntax": ("SELEC", AttemptFailedError, "42601"),
}


@pytest.mark.parametrize("case", STATEMENTS)
def test_errors_of_statements_are_classified_by_what_helps(database, case):
    statement, kind, why = STATEMENTS[case]
    with Access(database).connect(**NAME) as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY)")
        with pytest.raises(kind, match=why) as caught, translated("Doing it"):
            connection.execute(statement.encode())
        assert type(caught.value) is kind
        connection.close()


def test_without_psycopg_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"onceforall\[postgres\]"):
        Access("host=h")


def test_the_session_of_a_client_that_is_gone_ends(database):
    access = Access(database)
    connection = access.connect(application_name="leaving")
    assert connection.execute("SHOW tcp_keepalives_idle").fetchone() == ("60",)
    connection.close()
    with psycopg.connect(database, autocommit=True) as other:
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leaving'"
        until(lambda: other.execute(count).fetchone() == (0,), 10, "the session has ended")


@pytest.fixture
def folder_for_all():
    """The server's account can enter it."""
    with tempfile.TemporaryDirectory(prefix="onceforall-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_of_several_hosts_the_primary_is_taken_wherever_it_stands(folder_for_all):
    """Behind a failover the first one is a standby, on which nothing can be written."""
    with EmbeddedPostgres(data_dir=folder_for_all / "first"):
        pass
    # With the owners of its files.
    subprocess.run(["cp", "-a", folder_for_all / "first", folder_for_all / "second"], check=True)
    signals = [
        each.parent / "standby.signal" for each in (folder_for_all / "first").rglob("PG_VERSION")
    ]
    min(signals, key=lambda each: len(each.parts)).touch()
    with (
        EmbeddedPostgres(data_dir=folder_for_all / "first") as standby,
        EmbeddedPostgres(data_dir=folder_for_all / "second") as primary,
    ):
        assert standby.password == primary.password
        with psycopg.connect(standby.conninfo) as connection:
            assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
        hosts = {**conninfo_to_dict(primary.conninfo), "port": f"{standby.port},{primary.port}"}
        hosts["host"] = "127.0.0.1,127.0.0.1"
        with Access(hosts, patience_s=10).connect(**NAME) as connection:
            assert connection.info.port == primary.port
            assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)


def test_a_time_out_that_psycopg_does_not_know_is_no_refusal_of_a_row(monkeypatch):
    """Of codes that a server has and it lacks, a user's function may have raised the others."""

    def knows_none(code):
        raise KeyError(code)

    def error_of(code):
        error = psycopg.DatabaseError("of the server")
        error.sqlstate = code
        return statement_error(error, "Writing")

    monkeypatch.setattr(psycopg.errors, "lookup", knows_none)
    assert isinstance(error_of("25P04"), SinkUnavailableError)
    assert isinstance(error_of("58ZZZ"), SinkUnavailableError)
    assert isinstance(error_of("45000"), RefusedRecordError)
