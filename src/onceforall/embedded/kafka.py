"""A real Kafka broker for demo and tests: one KRaft node in a Java process of its own, on loopback addresses only.

The caller's sequence::

    with EmbeddedKafka() as broker:             # fetches the jars once, formats a data folder, waits for the broker's answer
        broker.create_topic("events", partitions=4)
        ...                                     # any client, at broker.bootstrap_servers
        broker.kill()                           # faults: kill, restart, freeze, thaw; clients reconnect to the same address
        broker.restart()

With ``users=`` it also has encrypted listeners, which ask for a password or a client certificate, and ACLs.

Not for production: no replication, records are kept for ever, whoever reaches its plaintext listener may do everything, and flushing is left to the operating
system, as in Kafka's own defaults: what the broker acknowledged survives `kill`, but not a loss of power.
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

from onceforall.common import arguments
from onceforall.embedded.configuration import render_properties, server_properties
from onceforall.embedded.jars import KAFKA_VERSION, kafka_jars, kafka_version
from onceforall.embedded.java import find_java
from onceforall.embedded.network import HOST, broker_answers, can_listen, free_port
from onceforall.embedded.process import GuardedProcess
from onceforall.embedded.security import SecureListeners, make_certificates, set_password
from onceforall.embedded.storage import format_folder
from onceforall.errors import EmbeddedServerError, MissingExtraError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

_START_DEADLINE_S = 90.0
_STOP_DEADLINE_S = 20.0
_TOPIC_DEADLINE_S = 30.0
_POLL_INTERVAL_S = 0.05
_PORT_ATTEMPTS = 3
_LOG_TAIL_LINES = 25
_JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseG1GC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


class EmbeddedKafka:
    """A single-node Kafka broker in a child process.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also when this process is killed
    (then a temporary data folder stays behind). Not safe for use by several threads at once.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int = 0,
        config: Mapping[str, str] | None = None,
        jars: Sequence[Path] | None = None,
        version: str = KAFKA_VERSION,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            data_dir: where the broker keeps its data, settings and log; made when it is missing, and kept. A data folder of an
                earlier run is continued. None: a temporary folder, removed by `stop`.
            port: the port of 127.0.0.1 on which clients connect; 0 chooses a free one at the first start.
            config: broker settings (``server.properties``) that replace those of this module.
            jars: the class path; None: `kafka_jars`, pinned and verified.
            version: of Kafka; see `kafka_jars`. A data folder can't go back to an older one.
            users: passwords by user name: adds a listener with SASL over TLS and one with TLS and client certificates, and
                refuses there whatever no ACL allows. None: only the plaintext listener, where everything is allowed.

        Raises:
            OptionError: the port is impossible, the version unknown, or `config` has a setting that this class needs for itself.
        """
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise OptionError(f"port={arguments.shown(port)} is no port. Use 0 (a free one is chosen) or a number up to 65535.")
        self._config = {} if config is None else arguments.mapping("config", config, "a dictionary of the broker's settings")
        server_properties(port=1, controller_port=1, log_dir=Path(), overrides=self._config)
        self._given_data_dir = None if data_dir is None else Path(arguments.path("data_dir", data_dir)).absolute()
        self._given_port = port
        self._jars = None if jars is None else arguments.paths("jars", jars)
        self._version = kafka_version(version)
        self._port = port
        self._controller_port = 0
        self._users = None if users is None else arguments.mapping("users", users, "a dictionary from name to password")
        self._secure_ports = (0, 0)
        self._data_dir: Path | None = None
        self._process: GuardedProcess | None = None
        self._owner_pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"running, pid {self.pid}" if self.is_running else "not running"
        return f"<EmbeddedKafka {HOST}:{self._port} {state}>"

    @property
    def bootstrap_servers(self) -> str:
        """``127.0.0.1:port``, for the client setting ``bootstrap.servers``; the same over `kill` and `restart`.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return f"{HOST}:{self.port}"

    @property
    def port(self) -> int:
        """The port on which clients connect.

        Raises:
            EmbeddedServerError: it is not chosen before the first start.
        """
        if self._port == 0:
            raise EmbeddedServerError("The broker has no port before its first start(). Call start(), or give port=.")
        return self._port

    @property
    def sasl_servers(self) -> str:
        """``127.0.0.1:port`` of the listener with SASL over TLS; with ``users=`` only.

        Raises:
            EmbeddedServerError: there is none.
        """
        return f"{HOST}:{self._secure_port(0)}"

    @property
    def tls_servers(self) -> str:
        """``127.0.0.1:port`` of the listener with TLS and client certificates; with ``users=`` only.

        Raises:
            EmbeddedServerError: there is none.
        """
        return f"{HOST}:{self._secure_port(1)}"

    def _secure_port(self, which: int) -> int:
        if not self._secure_ports[which]:
            raise EmbeddedServerError("The broker has no secure listener. Give users=, and call start() first.")
        return self._secure_ports[which]

    @property
    def tls_dir(self) -> Path:
        """The folder with ``ca.pem``, ``client.pem`` and ``client.key`` (principal ``User:CN=client``); with ``users=`` only.

        Raises:
            EmbeddedServerError: a temporary folder is not made before the first start.
        """
        return self.data_dir / "tls"

    @property
    def pid(self) -> int:
        """The process id of the running broker.

        Raises:
            EmbeddedServerError: the broker does not run.
        """
        return self._running_process().pid

    @property
    def is_running(self) -> bool:
        """Whether the broker's process exists; a frozen one does."""
        return self._process is not None and self._process.is_running

    @property
    def data_dir(self) -> Path:
        """The folder of the broker's data, with ``server.properties`` and ``broker.log``.

        Raises:
            EmbeddedServerError: a temporary folder is not made before the first start.
        """
        if self._data_dir is None:
            raise EmbeddedServerError(
                "The broker has no data folder before its first start(). Call start(), or give data_dir=."
            )
        return self._data_dir

    def start(self) -> None:
        """Start the broker and return when it answers; do nothing when it runs.

        After `kill` it continues with the same data and ports.

        Raises:
            EmbeddedServerError: no Java, no jars, a taken port, or a broker that ended or did not answer within 90 s; the
                message holds the end of the broker's log. Nothing is left running.
        """
        if self.is_running:
            return
        java = find_java()
        jars = self._jars if self._jars is not None else kafka_jars(self._version)
        try:
            self._start_somewhere(java, jars)
        except BaseException:
            self.stop()
            raise

    def _start_somewhere(self, java: Path, jars: Sequence[Path]) -> None:
        # A free port may be taken by somebody else before the broker has it; only a port of our own choice may change.
        may_choose = self._data_dir is None and self._given_port == 0
        for attempt in range(_PORT_ATTEMPTS):
            self._choose_ports()
            self._make_data_dir()
            try:
                self._launch(java, jars)
            except EmbeddedServerError as error:
                if attempt + 1 == _PORT_ATTEMPTS or not may_choose or "Address already in use" not in str(error):
                    raise
                self._end_process()
                self._port = self._controller_port = 0
                self._secure_ports = (0, 0)
            else:
                return

    def _choose_ports(self) -> None:
        if self._port == 0:
            self._port = free_port()
        if self._controller_port == 0:
            self._controller_port = free_port(besides=self._port)
        if self._users is not None and not any(self._secure_ports):
            self._secure_ports = self._choose_secure_ports()
        # A port that was just freed by kill() takes a moment.
        deadline = time.monotonic() + (5.0 if self._data_dir is not None else 0.0)
        while not can_listen(self._port):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"Port {self._port} of {HOST} is taken by another program. Stop that one, or choose another port "
                    "(0 chooses a free one)."
                )
            time.sleep(_POLL_INTERVAL_S)

    def _choose_secure_ports(self) -> tuple[int, int]:
        taken = {self._port, self._controller_port}
        while len(taken) < 4:
            taken.add(free_port())
        first, second = taken - {self._port, self._controller_port}
        return first, second

    def _make_data_dir(self) -> None:
        if self._data_dir is None:
            if self._given_data_dir is None:
                self._data_dir = Path(tempfile.mkdtemp(prefix="onceforall-kafka-"))
            else:
                self._data_dir = self._given_data_dir
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            secure = None
            if self._users is not None:
                secure = SecureListeners(*self._secure_ports, self._data_dir / "tls", self._users)
                make_certificates(secure.folder)
            properties = server_properties(
                port=self._port,
                controller_port=self._controller_port,
                log_dir=self._data_dir / "log",
                overrides=self._config,
                secure=secure,
            )
            settings = self._data_dir / "server.properties"
            settings.touch(mode=0o600)
            settings.write_text(render_properties(properties), encoding="ascii")
        except OSError as error:
            raise EmbeddedServerError(
                f"The data folder {self._data_dir} cannot be written: {error}. Make it writable, or choose another data_dir."
            ) from error

    def _launch(self, java: Path, jars: Sequence[Path]) -> None:
        class_path = ["-cp", os.pathsep.join(str(jar) for jar in jars)]
        settings = str(self.data_dir / "server.properties")
        if not (self.data_dir / "log" / "meta.properties").exists():
            options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", *_JVM_OPTIONS[2:], *class_path]
            format_folder(
                self.data_dir, [str(java), *options], ["--standalone", "--ignore-formatted"], deadline_s=_START_DEADLINE_S
            )
        with (self.data_dir / "broker.log").open("ab") as log:
            log_start = log.tell()
            self._process = GuardedProcess(
                [str(java), *_JVM_OPTIONS, *class_path, "kafka.Kafka", settings], directory=self.data_dir, log=log
            )
        self._owner_pid = os.getpid()
        atexit.register(self.stop)
        self._wait_until_it_answers(log_start)
        for user, password in (self._users or {}).items():
            set_password(self.bootstrap_servers, user, password)

    def set_password(self, user: str, password: str) -> None:
        """Give a user another SCRAM password, now and after a `restart`; the listener with SASL takes it at the next connection.

        Raises:
            EmbeddedServerError: the broker has no ``users=``, or does not run, or refused.
        """
        self._running_process()
        if self._users is None:
            raise EmbeddedServerError("The broker has no users. Give users= when it is made.")
        set_password(self.bootstrap_servers, user, password)
        self._users[user] = password

    def _wait_until_it_answers(self, log_start: int) -> None:
        process = self._started_process()
        deadline = time.monotonic() + _START_DEADLINE_S
        while not broker_answers(self.port):
            if not process.is_running:
                raise self._start_failure(f"ended with status {process.return_code} before it answered", log_start)
            if time.monotonic() > deadline:
                raise self._start_failure(f"did not answer at {self.bootstrap_servers} in {_START_DEADLINE_S:.0f} s", log_start)
            time.sleep(_POLL_INTERVAL_S)

    def _start_failure(self, what: str, log_start: int) -> EmbeddedServerError:
        with (self.data_dir / "broker.log").open("rb") as log:
            log.seek(log_start)
            tail = "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        remedy = (
            "Check the settings given as config, the free memory (the broker takes up to 512 MB of heap) and the end of its log"
        )
        if "Address already in use" in tail:
            remedy = "Another program has taken one of its ports. Choose another port (0 chooses a free one)"
        return EmbeddedServerError(f"The embedded Kafka broker {what}. {remedy}:\n{tail or '(the log is empty)'}")

    def stop(self) -> None:
        """Stop the broker in an orderly way (SIGTERM, and SIGKILL after 20 s) and remove a temporary data folder.

        Do nothing when it does not run. A process that was forked from the one that started the broker cannot stop it.
        """
        if self._process is not None and self._owner_pid != os.getpid():
            return
        self._end_process()
        atexit.unregister(self.stop)
        if self._data_dir is not None and self._given_data_dir is None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
        self._data_dir = None
        self._port = self._given_port
        self._controller_port = 0
        self._secure_ports = (0, 0)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        if not process.wait(_STOP_DEADLINE_S):
            process.send_signal(signal.SIGKILL)
            process.wait()

    def kill(self) -> None:
        """End the broker with SIGKILL; data and ports stay for `start` or `restart`."""
        process = self._running_process()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self) -> None:
        """Start the broker again on the same data and ports, after an orderly stop when it still runs.

        Raises:
            EmbeddedServerError: it was never started, or does not start again.
        """
        if self._data_dir is None:
            raise EmbeddedServerError("The broker cannot restart: it was not started, or it was stopped. Call start().")
        self._end_process()
        self.start()

    def freeze(self) -> None:
        """Stop all the broker's threads (SIGSTOP) and return when they have: connections stay open, without answers, until `thaw`."""
        self._running_process().freeze()

    def thaw(self) -> None:
        """Let a frozen broker go on (SIGCONT)."""
        self._running_process().send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the broker's process ends by itself and return its exit status; None after `timeout_s` seconds."""
        process = self._started_process()
        return process.return_code if process.wait(timeout_s) else None

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and return when every partition of it has a leader.

        Args:
            name: the topic, which must not exist.
            partitions: how many partitions.
            config: settings of the topic, such as ``{"cleanup.policy": "compact"}``.

        Raises:
            MissingExtraError: confluent-kafka is not installed.
            EmbeddedServerError: the broker refused (the topic exists, a setting is wrong) or did not answer within 30 s.
        """
        try:
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
            from confluent_kafka.cimpl import NewTopic
        except ImportError as error:
            raise MissingExtraError("confluent-kafka", "kafka") from error
        self._running_process()
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        try:
            admin.create_topics([wanted], operation_timeout=_TOPIC_DEADLINE_S)[name].result(_TOPIC_DEADLINE_S)
            deadline = time.monotonic() + _TOPIC_DEADLINE_S
            while not _has_leaders(admin.list_topics(name, timeout=_TOPIC_DEADLINE_S).topics[name], partitions):
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"Topic {name!r} got no leaders in {_TOPIC_DEADLINE_S:.0f} s. Restart the broker."
                    )
                time.sleep(_POLL_INTERVAL_S)
        except (KafkaException, TimeoutError) as error:
            raise EmbeddedServerError(
                f"Topic {name!r} could not be created: {error}. Choose another name or correct its settings."
            ) from error

    def _started_process(self) -> GuardedProcess:
        if self._process is None:
            raise EmbeddedServerError("The broker was not started. Call start() first.")
        return self._process

    def _running_process(self) -> GuardedProcess:
        process = self._started_process()
        if not process.is_running:
            raise EmbeddedServerError(
                f"The broker does not run, it ended with status {process.return_code}. Call restart() first."
            )
        return process


def _has_leaders(topic: object, partitions: int) -> bool:
    found = getattr(topic, "partitions", {})
    return len(found) == partitions and all(partition.leader >= 0 for partition in found.values())
