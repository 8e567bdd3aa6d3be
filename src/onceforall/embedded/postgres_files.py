"""What the embedded PostgreSQL needs before and around its start: data folder, settings, access,
users, and the question whether it answers.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import struct
import subprocess
from typing import TYPE_CHECKING

from onceforall.embedded.network import HOST
from onceforall.embedded.process import guarded
from onceforall.errors import EmbeddedServerError, MissingExtraError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from onceforall.embedded.postgres_binaries import Account, Binaries

SUPERUSER = "postgres"
"""The user who may do everything."""

_CONNECT_DEADLINE_S = 2.0
_INITDB_DEADLINE_S = 60.0
_PROTOCOL = 196608  # 3.0
_NOT_YET = b"C57P03\x00"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_OWN = frozenset(
    {
        "listen_addresses",
        "port",
        "unix_socket_directories",
        "data_directory",
        "hba_file",
        "ident_file",
    }
)
_DEFAULTS = {
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "dynamic_shared_memory_type": "mmap",
    "autovacuum_naptime": "10s",
}


def check_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the server settings as text.

    Raises:
        OptionError: a name is malformed, or of a setting that decides how the server is reached or
            where its data are.
    """
    texts = {}
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise OptionError(
                f"settings has {name!r}, which is no name of a server setting. Correct it."
            )
        if name.lower() in _OWN or (name.lower() == "ssl" or name.lower().startswith("ssl_")):
            raise OptionError(
                f"settings cannot replace {name}: the embedded server sets it itself. Leave it "
                "out; port=, data_dir= and tls= choose where "
                "and how it is reached."
            )
        texts[name.lower()] = (
            {True: "on", False: "off"}.get(value, str(value))
            if isinstance(value, bool)
            else str(value)
        )
    return texts


def write_settings(
    data: Path, port: int, settings: Mapping[str, str], tls: Path | None, account: Account | None
) -> None:
    """Write ``onceforall.conf``, which ``postgresql.conf`` includes last.

    Args:
        data: the data directory.
        port: on which the server listens.
        settings: that replace the defaults.
        tls: the folder with the certificates; None without encryption.
        account: who must be able to read the files; None: this user.
    """
    own = {"listen_addresses": HOST, "port": str(port), "unix_socket_directories": ""}
    if tls is not None:
        for name in ("ca.pem", "broker.pem", "broker.key"):
            shutil.copyfile(tls / name, data / name)
            (data / name).chmod(0o600)
            _give(data / name, account)
        own |= {
            "ssl": "on",
            "ssl_ca_file": "ca.pem",
            "ssl_cert_file": "broker.pem",
            "ssl_key_file": "broker.key",
        }
    lines = [
        f"{name} = {_quoted(value)}\n" for name, value in {**_DEFAULTS, **settings, **own}.items()
    ]
    _write(data / "onceforall.conf", "".join(lines), account)
    main = data / "postgresql.conf"
    text = main.read_text(encoding="utf-8")
    if "include 'onceforall.conf'" not in text:
        _write(main, text + "\ninclude 'onceforall.conf'\n", account)


def write_access(data: Path, *, tls: bool, account: Account | None) -> None:
    """Write ``pg_hba.conf``: a password for everybody; over TLS only, where there is TLS, and
    there a certificate for ``client``.
    """
    kind = "hostssl" if tls else "host"
    lines = [f"{kind} all client {HOST}/32 cert\n"] if tls else []
    lines.append(f"{kind} all all {HOST}/32 scram-sha-256\n")
    _write(data / "pg_hba.conf", "".join(lines), account)


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _write(path: Path, text: str, account: Account | None) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    _give(path, account)


def _give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, *account.ids)


def postgres_answers(port: int) -> bool:
    """Return whether a server on this port of 127.0.0.1 takes connections.

    One that still starts listens, and refuses with SQLSTATE 57P03
    (https://www.postgresql.org/docs/current/protocol-message-formats.html).
    """
    parameters = b"user\x00onceforall\x00database\x00postgres\x00\x00"
    try:
        with socket.create_connection((HOST, port), timeout=_CONNECT_DEADLINE_S) as connection:
            connection.sendall(struct.pack(">ii", 8 + len(parameters), _PROTOCOL) + parameters)
            answer = connection.recv(4096)
    except OSError:
        return False
    return bool(answer) and _NOT_YET not in answer


def kept_password(folder: Path) -> str:
    """Return the superuser's password, made at the first start and kept with the data."""
    kept = folder / "superuser.password"
    if not kept.exists():
        making = kept.with_name("superuser.making")
        making.unlink(missing_ok=True)
        making.touch(mode=0o600)
        making.write_text(secrets.token_urlsafe(24), encoding="ascii")
        making.rename(kept)  # A kill leaves no password, or a whole one.
    return kept.read_text(encoding="ascii")


def server_environment() -> dict[str, str]:
    """Return the environment without libpq's and the server's own variables, which would change
    what is started.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_", "LANG"))
    } | {"LC_ALL": "C"}


def initialise(binaries: Binaries, data: Path, password: str, account: Account | None) -> None:
    """Make a data directory, in one piece: a crash in ``initdb`` leaves none that looks complete.

    Args:
        binaries: of the server.
        data: the directory, which does not exist; its parent does.
        password: of the superuser.
        account: whose it will be; None: this user's.

    Raises:
        EmbeddedServerError: ``initdb`` failed; with what it said.
    """
    making = data.with_name("making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700)
    password_file = making.with_name("password.initdb")
    password_file.touch(mode=0o600)
    password_file.write_text(password + "\n", encoding="ascii")
    if account is not None:
        _give(making, account)
        _give(password_file, account)
    command = [
        str(binaries.folder / "initdb"),
        "--pgdata",
        str(making),
        "--username",
        SUPERUSER,
        "--pwfile",
        str(password_file),
    ]
    command += [
        "--auth",
        "scram-sha-256",
        "--encoding",
        "UTF8",
        "--no-locale",
        "--no-sync",
        "--no-instructions",
    ]
    try:
        done = subprocess.run(
            guarded(command, None if account is None else account.ids),
            cwd=making,
            env=server_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INITDB_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(
            f"initdb could not be run: {error}. Check the installed PostgreSQL."
        ) from error
    finally:
        password_file.unlink()
    if done.returncode != 0:
        raise EmbeddedServerError(
            "initdb failed; check the installed PostgreSQL and the free disk. It "
            f"said:\n{done.stdout}{done.stderr}"
        )
    making.rename(data)


def make_users(conninfo: str, users: Mapping[str, str]) -> None:
    """Make roles that may log in, or give those that exist their password.

    Args:
        conninfo: of the superuser.
        users: passwords by name.

    Raises:
        MissingExtraError: psycopg is not installed.
    """
    try:
        import psycopg
        from psycopg import sql
    except ImportError as error:
        raise MissingExtraError("psycopg", "postgres") from error
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for name, password in users.items():
            known = connection.execute(
                "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) %s", [name]
            ).fetchone()
            verb = sql.SQL("ALTER" if known else "CREATE")
            query = sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
                verb, sql.Identifier(name), sql.Literal(password)
            )
            connection.execute(query)
