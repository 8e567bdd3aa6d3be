"""The settings of the embedded broker (https://kafka.apache.org/documentation/#brokerconfigs)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceforall.embedded.network import HOST
from onceforall.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from onceforall.embedded.security import SecureListeners

# A century, in hours: below what overflows when Kafka multiplies it to milliseconds.
_CENTURY_HOURS = "876000"

_DEFAULTS = {
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Tests and demo wait for timed-out transactions to be aborted; Kafka looks for them every 10 s.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # Replayed history has old timestamps: by Kafka's defaults it is past its retention when it
    # arrives, and rolls segments.
    "log.retention.ms": "-1",
    "log.roll.hours": _CENTURY_HOURS,
    # A controller takes a killed broker for alive, and refuses it as a duplicate, until this has
    # passed: 9 s by Kafka's default.
    "broker.session.timeout.ms": "2500",
    "broker.heartbeat.interval.ms": "500",
    # The default of 128 MB would be a quarter of this broker's heap.
    "log.cleaner.dedupe.buffer.size": "16777216",
}


def server_properties(
    *,
    port: int,
    controller_port: int,
    log_dir: Path,
    overrides: Mapping[str, str],
    secure: SecureListeners | None = None,
) -> dict[str, str]:
    """Return the whole ``server.properties`` of a single node that is broker and controller, on
    loopback addresses.

    Args:
        port: where clients connect.
        controller_port: where the node speaks to itself.
        log_dir: the folder of the topics.
        overrides: settings that replace the defaults of this module.
        secure: listeners with encryption and authentication, beside the plaintext one.

    Raises:
        OptionError: an override names a setting that decides how the broker is reached or where its
            data are.
    """
    own = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"BROKER://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"BROKER://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        "log.dirs": str(log_dir),
    }
    if secure is not None:
        more = f",SECURE://{HOST}:{secure.sasl_port},MUTUAL://{HOST}:{secure.tls_port}"
        own["listeners"] += more
        own["advertised.listeners"] += more
        own["listener.security.protocol.map"] += ",SECURE:SASL_SSL,MUTUAL:SSL"
        own |= secure.properties()
    refused = sorted(
        key
        for key in overrides
        if key in own or key in {"log.dir", "metadata.log.dir", "controller.quorum.voters"}
    )
    if refused:
        raise OptionError(
            f"config cannot replace {', '.join(refused)}: the embedded broker sets them itself. "
            "Leave them out; port= and "
            "data_dir= choose where it listens and where its data are."
        )
    return {**_DEFAULTS, **{key: str(value) for key, value in overrides.items()}, **own}


def render_properties(properties: Mapping[str, str]) -> str:
    """Return the text of a Java properties file (``java.util.Properties.load``), in ASCII."""
    return "".join(
        f"{_escape(key, key=True)}={_escape(value)}\n" for key, value in properties.items()
    )


def _escape(text: str, *, key: bool = False) -> str:
    escaped = (
        text.replace("\\", "\\\\")
        .replace("\n", "\\n")
        .replace("\r", "\\r")
        .replace("\t", "\\t")
        .replace("\f", "\\f")
    )
    if key:
        for special in (" ", ":", "=", "#", "!"):
            escaped = escaped.replace(special, "\\" + special)
    elif escaped.startswith(" "):
        escaped = "\\" + escaped
    units = escaped.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if code < 0x7F else f"\\u{code:04x}" for code in codes)
