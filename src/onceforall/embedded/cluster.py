"""A real Kafka cluster for tests: several KRaft nodes, each a Java process of its own, on loopback
addresses only.

The caller's sequence::

    with EmbeddedKafkaCluster() as cluster:     # three nodes, each broker and controller
        cluster.create_topic("events", partitions=4) leader = cluster.leader("events", 0)
        cluster.kill(leader)                    # faults, by node: kill, stop, pause, resume,
        restart cluster.restart(leader) cluster.wait_until_whole()              # every node answers
        and every replica is in sync

Topics, offsets and transaction states have three replicas, and writes need two of them in sync: one
node may be away, of any three. Timeouts are short, so that a node that is away is soon known to be;
leaders move only when they must or are told to.

Not for production: no authentication, records are kept for ever, and flushing is left to the
operating system.
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
from onceforall.embedded.metadata import ClusterState, PartitionState, cluster_state
from onceforall.embedded.network import HOST, free_port
from onceforall.embedded.process import GuardedProcess, end_orderly
from onceforall.embedded.storage import copy_formatted, format_folder
from onceforall.embedded.topics import create_topic
from onceforall.errors import EmbeddedServerError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

_START_DEADLINE_S = 120.0
_STOP_DEADLINE_S = 30.0
_TOPIC_DEADLINE_S = 60.0
_POLL_INTERVAL_S = 0.05
_LOG_TAIL_LINES = 25
# Several small JVMs that live for seconds: compiling little and a heap that starts small cost
# least.
_JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)
_SHORT = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "200",
    "controller.quorum.election.timeout.ms": "1000",
    "auto.leader.rebalance.enable": "false",
    "transaction.state.log.num.partitions": "6",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
}


class EmbeddedKafkaCluster:
    """A Kafka cluster in child processes, its nodes numbered from 1.

    The nodes end with this process: at `stop`, at an ordinary end of the interpreter, and on Linux
    also when this process is killed (then the temporary data folder stays behind). Not safe for use
    by several threads at once, except for `kill`, `pause` and `resume`.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        version: str = KAFKA_VERSION,
        config: Mapping[str, str] | None = None,
        jars: Sequence[Path] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            nodes: how many, each broker and controller. A majority must be alive for the cluster to
                work.
            version: of Kafka; see `kafka_jars`.
            config: broker settings of all nodes (``server.properties``) that replace those of this
                module.
            jars: the class path; None: `kafka_jars`, pinned and verified.

        Raises:
            OptionError: fewer than one node, an unknown version, or `config` has a setting that
                this class needs for itself.
        """
        if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
            raise OptionError(
                f"nodes={arguments.shown(nodes)} makes no cluster. Use 1 or more; 3 survive the "
                "loss of one."
            )
        self.version = kafka_version(version)
        given = (
            {}
            if config is None
            else arguments.mapping("config", config, "a dictionary of the brokers' settings")
        )
        self._config = {**_SHORT, **_replication(nodes), **given}
        server_properties(port=1, controller_port=1, log_dir=Path(), overrides=self._config)
        self._jars = None if jars is None else arguments.paths("jars", jars)
        self._numbers = range(1, nodes + 1)
        self._ports: dict[int, int] = {}
        self._controller_ports: dict[int, int] = {}
        self._processes: dict[int, GuardedProcess] = {}
        self._folder: Path | None = None
        self._java = Path()
        self._command: list[str] = []
        self._owner_pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        running = [node for node in self._numbers if self.is_running(node)]
        return f"<EmbeddedKafkaCluster of {len(self._numbers)} nodes, running: {running or 'none'}>"

    @property
    def nodes(self) -> range:
        """The numbers of the nodes."""
        return self._numbers

    @property
    def bootstrap_servers(self) -> str:
        """All nodes, for the client setting ``bootstrap.servers``; the same over every fault.

        Raises:
            EmbeddedServerError: the cluster was not started.
        """
        return ",".join(self.address(node) for node in self._numbers)

    def address(self, node: int) -> str:
        """Return ``127.0.0.1:port`` of one node.

        Raises:
            EmbeddedServerError: the cluster was not started.
        """
        if not self._ports:
            raise EmbeddedServerError(
                "The cluster has no addresses before start(). Call start() first."
            )
        return f"{HOST}:{self._ports[node]}"

    def pid(self, node: int) -> int:
        """Return the process id of a running node.

        Raises:
            EmbeddedServerError: the node does not run.
        """
        return self._running_process(node).pid

    def is_running(self, node: int) -> bool:
        """Return whether a node's process exists; a paused one does."""
        process = self._processes.get(node)
        return process is not None and process.is_running

    def log(self, node: int) -> str:
        """Return what a node has logged (warnings and errors), over all its starts."""
        return (self._node_folder(node) / "broker.log").read_text(
            encoding="utf-8", errors="replace"
        )

    def start(self) -> None:
        """Start all nodes and return when the cluster is whole; do nothing when it was started.

        Raises:
            EmbeddedServerError: no Java, no jars, a taken port, or a node that ended or did not
                answer within 120 s; the message holds the end of its log. Nothing is left running.
        """
        if self._folder is not None:
            return
        self._java = find_java()
        self._command = self._command_of(
            self._jars if self._jars is not None else kafka_jars(self.version)
        )
        self._owner_pid = os.getpid()
        atexit.register(self.stop)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="onceforall-kafka-"))
            self._choose_ports()
            self._write_settings()
            self._format()
            for node in self._numbers:
                self._launch(node, self._command)
            self.wait_until_whole(_START_DEADLINE_S)
        except BaseException:
            self.stop()
            raise

    def _command_of(self, jars: Sequence[Path]) -> list[str]:
        return [str(self._java), *_JVM_OPTIONS, "-cp", os.pathsep.join(str(jar) for jar in jars)]

    def _choose_ports(self) -> None:
        taken: set[int] = set()
        while len(taken) < 2 * len(self._numbers):
            taken.add(free_port())
        ports = sorted(taken)
        self._ports = dict(zip(self._numbers, ports[::2], strict=True))
        self._controller_ports = dict(zip(self._numbers, ports[1::2], strict=True))

    def _write_settings(self) -> None:
        voters = ",".join(f"{node}@{HOST}:{port}" for node, port in self._controller_ports.items())
        for node in self._numbers:
            folder = self._node_folder(node)
            folder.mkdir(parents=True)
            properties = server_properties(
                port=self._ports[node],
                controller_port=self._controller_ports[node],
                log_dir=folder / "log",
                overrides=self._config,
            )
            del properties["controller.quorum.bootstrap.servers"]
            # The voters are listed, so no controller is advertised; brokers before 3.9 refuse it.
            advertised = f"BROKER://{HOST}:{self._ports[node]}"
            properties |= {
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "advertised.listeners": advertised,
            }
            (folder / "server.properties").write_text(
                render_properties(properties), encoding="ascii"
            )

    def _format(self) -> None:
        """Let Kafka format the first node's folder, and give the others a copy with their own
        numbers: a JVM less for each.
        """
        first = self._node_folder(self._numbers[0])
        format_folder(first, self._command, deadline_s=_START_DEADLINE_S)
        for node in self._numbers[1:]:
            copy_formatted(first / "log", self._node_folder(node) / "log", node)

    def _launch(self, node: int, java_command: Sequence[str]) -> None:
        folder = self._node_folder(node)
        with (folder / "broker.log").open("ab") as log:
            command = [*java_command, "kafka.Kafka", str(folder / "server.properties")]
            self._processes[node] = GuardedProcess(command, directory=folder, log=log)

    def wait_until_whole(self, deadline_s: float = 60.0, *, without: Iterable[int] = ()) -> None:
        """Return when every running node says that all of them are alive, all partitions are led,
        and all live replicas are in sync.

        Args:
            deadline_s: how long to wait.
            without: nodes that are paused or cut off, and so are not waited for, nor asked.

        Raises:
            EmbeddedServerError: a node ended by itself, or it is not so in time; the message says
                what is missing.
        """
        expected = {node for node in self._processes if node not in set(without)}
        deadline = time.monotonic() + deadline_s
        while missing := self._missing(expected):
            for node in expected:
                if not self._processes[node].is_running:
                    raise self._failure(
                        node, f"ended with status {self._processes[node].return_code}"
                    )
            if time.monotonic() > deadline:
                raise self._failure(
                    min(expected), f"is not in a whole cluster after {deadline_s:.0f} s: {missing}"
                )
            time.sleep(_POLL_INTERVAL_S)

    def _missing(self, expected: set[int]) -> str:
        for node in sorted(expected):
            state = cluster_state(self._ports[node])
            if state is None:
                return f"node {node} does not answer"
            if state.nodes != expected:
                return f"node {node} knows of {sorted(state.nodes)}"
            for (topic, number), partition in state.partitions.items():
                if partition.leader < 0 or not expected & set(partition.replicas) <= set(
                    partition.in_sync
                ):
                    return f"node {node} sees {topic}-{number} as {partition}"
        return ""

    def _failure(self, node: int, what: str) -> EmbeddedServerError:
        tail = "\n".join(self.log(node).splitlines()[-_LOG_TAIL_LINES:])
        remedy = (
            "Check the settings given as config, the free memory (256 MB of heap each) and the log"
        )
        return EmbeddedServerError(
            f"Node {node} of the embedded Kafka cluster {what}. "
            f"{remedy}:\n{tail or '(it is empty)'}"
        )

    def state(self, asked: int | None = None) -> ClusterState:
        """Return what one node (by default the first that answers) knows of the cluster.

        Raises:
            EmbeddedServerError: none answers.
        """
        for node in self._numbers if asked is None else (asked,):
            if self.is_running(node) and (state := cluster_state(self._ports[node])) is not None:
                return state
        raise EmbeddedServerError(f"No node of {self!r} answers. Restart or resume one.")

    def partition(self, topic: str, number: int, asked: int | None = None) -> PartitionState:
        """Return leader and replicas of a partition, as `state` tells them.

        Raises:
            EmbeddedServerError: no node answers, or there is no such partition.
        """
        found = self.state(asked).partitions.get((topic, number))
        if found is None:
            raise EmbeddedServerError(
                f"The cluster has no partition {topic}-{number}. Create the topic first."
            )
        return found

    def leader(self, topic: str, number: int) -> int:
        """Return the node that leads a partition; -1 when none does. See `partition`."""
        return self.partition(topic, number).leader

    def kill(self, node: int) -> None:
        """End a node with SIGKILL; its data and ports stay for `restart`.

        Raises:
            EmbeddedServerError: it does not run.
        """
        process = self._running_process(node)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._processes.pop(node, None)

    def pause(self, node: int) -> None:
        """Stop all threads of a node (SIGSTOP) and return when they have: it is cut off, and its
        connections stay open.

        Raises:
            EmbeddedServerError: it does not run.
        """
        self._running_process(node).freeze()

    def resume(self, node: int) -> None:
        """Let a paused node go on (SIGCONT), believing what it believed before.

        Raises:
            EmbeddedServerError: it does not run.
        """
        self._running_process(node).send_signal(signal.SIGCONT)

    def restart(self, node: int, version: str | None = None) -> None:
        """Start a node again on its data and port, after an orderly stop when it still runs; it may
        not answer yet on return.

        Args:
            node: which one.
            version: of Kafka from this start on, for an upgrade; None: that of the cluster.

        Raises:
            OptionError: no broker of that version is pinned.
            EmbeddedServerError: the cluster was not started, or jars are missing.
        """
        self._node_folder(node)
        command = self._command if version is None else self._command_of(kafka_jars(version))
        self._end([node])
        self._launch(node, command)

    def stop(self, node: int | None = None) -> None:
        """Stop one node in an orderly way (SIGTERM, and SIGKILL after 30 s); without a number stop
        all and remove the data.

        A node that is stopped hands its leaderships over first. Do nothing for what does not run. A
        process that was forked from the one that started the cluster cannot stop it.
        """
        if self._owner_pid != os.getpid():
            return
        if node is not None:
            self._end([node])
            return
        # An orderly end of the last node would wait for a majority that is gone: the data are
        # removed anyway.
        for process in list(self._processes.values()):
            process.send_signal(signal.SIGKILL)
        self._end(list(self._processes))
        atexit.unregister(self.stop)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        self._ports, self._controller_ports = {}, {}

    def _end(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            process = self._processes.pop(node, None)
            if process is not None:
                end_orderly(process, signal.SIGTERM, _STOP_DEADLINE_S)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and return when every node knows a leader and all replicas in sync for
        each of its partitions.

        Args:
            name: the topic, which must not exist.
            partitions: how many.
            replication: how many replicas; None: three, or as many as there are nodes.
            config: settings of the topic.

        Raises:
            MissingExtraError: confluent-kafka is not installed.
            EmbeddedServerError: the cluster refused (the topic exists, a setting is wrong) or did
                not answer within 60 s.
        """
        replicas = min(3, len(self._numbers)) if replication is None else replication
        create_topic(
            self.bootstrap_servers,
            name,
            partitions,
            config,
            replication=replicas,
            deadline_s=_TOPIC_DEADLINE_S,
        )
        deadline = time.monotonic() + _TOPIC_DEADLINE_S
        while not all(self._has_topic(node, name, partitions) for node in self._processes):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"Topic {name!r} is not known to all nodes after {_TOPIC_DEADLINE_S:.0f} s."
                )
            time.sleep(_POLL_INTERVAL_S)
        self.wait_until_whole(_TOPIC_DEADLINE_S)

    def _has_topic(self, node: int, name: str, partitions: int) -> bool:
        state = cluster_state(self._ports[node])
        return state is not None and all(
            (name, number) in state.partitions for number in range(partitions)
        )

    def _node_folder(self, node: int) -> Path:
        if self._folder is None:
            raise EmbeddedServerError("The cluster was not started. Call start() first.")
        return self._folder / f"node{node}"

    def _running_process(self, node: int) -> GuardedProcess:
        process = self._processes.get(node)
        if process is None or not process.is_running:
            raise EmbeddedServerError(f"Node {node} does not run. Call restart({node}) first.")
        return process


def _replication(nodes: int) -> dict[str, str]:
    replicas, in_sync = str(min(3, nodes)), str(2 if nodes > 2 else 1)
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }
