"""A real Kafka broker for demo and tests: one KRaft node in a Java process of its own, on loopback
addresses only.

The caller's sequence::

    with EmbeddedKafka() as broker:             # fetches the jars once, formats a data folder,
        waits for the broker's answer broker.create_topic("events", partitions=4) ...
        # any client, at broker.bootstrap_servers broker.kill()                           # faults:
        kill, restart, freeze, thaw; clients reconnect to the same address broker.restart()

With ``users=`` it also has encrypted listeners, which ask for a password or a client certificate,
and ACLs.

Not for production: no replication, records are kept for ever, whoever reaches its plaintext
listener may do everything, and flushing is left to the operating system, as in Kafka's own
defaults: what the broker acknowledged survives `kill`, but not a loss of power.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from onceforall.common import arguments
from onceforall.embedded.configuration import render_properties, server_properties
from onceforall.embedded.jars import KAFKA_VERSION, kafka_jars, kafka_version
from onceforall.embedded.java import find_java
from onceforall.embedded.network import HOST, broker_answers, free_port
from onceforall.embedded.process import GuardedProcess
from onceforall.embedded.security import SecureListeners, make_certificates, set_password
from onceforall.embedded.server import EmbeddedServer
from onceforall.embedded.storage import format_folder
from onceforall.embedded.topics import create_topic
from onceforall.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_START_DEADLINE_S = 90.0
_TOPIC_DEADLINE_S = 30.0
_POLL_INTERVAL_S = 0.05
_JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseG1GC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


class EmbeddedKafka(EmbeddedServer):
    """A single-node Kafka broker in a child process.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also
    when this process is killed (then a temporary data folder stays behind). Not safe for use by
    several threads at once.
    """

    _noun = "broker"
    _folder_prefix = "onceforall-kafka-"
    _log_name = "broker.log"

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
            data_dir: where the broker keeps its data, settings and log; made when it is missing,
                and kept. A data folder of an earlier run is continued. None: a temporary folder,
                removed by `stop`.
            port: the port of 127.0.0.1 on which clients connect; 0 chooses a free one at the first
                start.
            config: broker settings (``server.properties``) that replace those of this module.
            jars: the class path; None: `kafka_jars`, pinned and verified.
            version: of Kafka; see `kafka_jars`. A data folder can't go back to an older one.
            users: passwords by user name: adds a listener with SASL over TLS and one with TLS and
                client certificates, and refuses there whatever no ACL allows. None: only the
                plaintext listener, where everything is allowed.

        Raises:
            OptionError: the port is impossible, the version unknown, or `config` has a setting that
                this class needs for itself.
        """
        super().__init__(data_dir, port)
        self._config = (
            {}
            if config is None
            else arguments.mapping("config", config, "a dictionary of the broker's settings")
        )
        server_properties(port=1, controller_port=1, log_dir=Path(), overrides=self._config)
        self._jars = None if jars is None else arguments.paths("jars", jars)
        self._version = kafka_version(version)
        self._controller_port = 0
        self._users = (
            None
            if users is None
            else arguments.mapping("users", users, "a dictionary from name to password")
        )
        self._secure_ports = (0, 0)

    @property
    def bootstrap_servers(self) -> str:
        """``127.0.0.1:port``, for the client setting ``bootstrap.servers``; the same over `kill`
        and `restart`.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return f"{HOST}:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """``127.0.0.1:port`` of the listener with SASL over TLS; with ``users=`` only.

        Raises:
            EmbeddedServerError: there is none.
        """
        return f"{HOST}:{self._secure_port(0)}"

    @property
    def tls_servers(self) -> str:
        """``127.0.0.1:port`` of the listener with TLS and client certificates; with ``users=``
        only.

        Raises:
            EmbeddedServerError: there is none.
        """
        return f"{HOST}:{self._secure_port(1)}"

    def _secure_port(self, which: int) -> int:
        if not self._secure_ports[which]:
            raise EmbeddedServerError(
                "The broker has no secure listener. Give users=, and call start() first."
            )
        return self._secure_ports[which]

    def _find_programs(self) -> None:
        self._java = find_java()
        self._class_path = self._jars if self._jars is not None else kafka_jars(self._version)

    def _choose_ports(self) -> None:
        super()._choose_ports()
        if self._controller_port == 0:
            self._controller_port = free_port(besides=self._port)
        if self._users is not None and not any(self._secure_ports):
            self._secure_ports = self._choose_secure_ports()

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self._controller_port = 0
        self._secure_ports = (0, 0)

    def _choose_secure_ports(self) -> tuple[int, int]:
        taken = {self._port, self._controller_port}
        while len(taken) < 4:
            taken.add(free_port())
        first, second = taken - {self._port, self._controller_port}
        return first, second

    def _make_data_dir(self) -> None:
        folder = self._choose_data_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            secure = None
            if self._users is not None:
                secure = SecureListeners(*self._secure_ports, folder / "tls", self._users)
                make_certificates(secure.folder)
            properties = server_properties(
                port=self._port,
                controller_port=self._controller_port,
                log_dir=folder / "log",
                overrides=self._config,
                secure=secure,
            )
            settings = folder / "server.properties"
            settings.touch(mode=0o600)
            settings.write_text(render_properties(properties), encoding="ascii")
        except OSError as error:
            raise EmbeddedServerError(
                f"The data folder {folder} cannot be written: {error}. Make it writable, or "
                "choose another data_dir."
            ) from error

    def _launch(self) -> None:
        self._make_data_dir()
        java, class_path = (
            str(self._java),
            ["-cp", os.pathsep.join(str(jar) for jar in self._class_path)],
        )
        settings = str(self.data_dir / "server.properties")
        if not (self.data_dir / "log" / "meta.properties").exists():
            options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", *_JVM_OPTIONS[2:], *class_path]
            format_folder(
                self.data_dir,
                [java, *options],
                ["--standalone", "--ignore-formatted"],
                deadline_s=_START_DEADLINE_S,
            )
        with (self.data_dir / "broker.log").open("ab") as log:
            log_start = log.tell()
            command = [java, *_JVM_OPTIONS, *class_path, "kafka.Kafka", settings]
            self._own(GuardedProcess(command, directory=self.data_dir, log=log))
        self._wait_until_it_answers(log_start)
        for user, password in (self._users or {}).items():
            set_password(self.bootstrap_servers, user, password)

    def set_password(self, user: str, password: str) -> None:
        """Give a user another SCRAM password, now and after a `restart`; the listener with SASL
        takes it at the next connection.

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
                raise self._start_failure(
                    f"ended with status {process.return_code} before it answered", log_start
                )
            if time.monotonic() > deadline:
                raise self._start_failure(
                    f"did not answer at {self.bootstrap_servers} in {_START_DEADLINE_S:.0f} s",
                    log_start,
                )
            time.sleep(_POLL_INTERVAL_S)

    def _start_failure(self, what: str, log_start: int) -> EmbeddedServerError:
        tail = self._log_tail(log_start)
        remedy = (
            "Check the settings given as config, the free memory (the broker takes up to 512 "
            "MB of heap) and the end of its log"
        )
        if "Address already in use" in tail:
            remedy = (
                "Another program has taken one of its ports. Choose another port (0 chooses "
                "a free one)"
            )
        return EmbeddedServerError(
            f"The embedded Kafka broker {what}. {remedy}:\n{tail or '(the log is empty)'}"
        )

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and return when every partition of it has a leader.

        Args:
            name: the topic, which must not exist.
            partitions: how many partitions.
            config: settings of the topic, such as ``{"cleanup.policy": "compact"}``.

        Raises:
            MissingExtraError: confluent-kafka is not installed.
            EmbeddedServerError: the broker refused (the topic exists, a setting is wrong) or did
                not answer within 30 s.
        """
        self._running_process()
        create_topic(
            self.bootstrap_servers,
            name,
            partitions,
            config,
            replication=1,
            deadline_s=_TOPIC_DEADLINE_S,
        )
