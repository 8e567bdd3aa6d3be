"""Which ACL is missing, and the command that grants it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceforall.sinks.kafka.access.security import principal_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# The code of org.apache.kafka.common.acl.AclOperation.
_WRITE = 4


@dataclass(frozen=True)
class Rights:
    """Whom to grant rights, and where."""

    servers: str
    principal: str

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Rights:
        """Return it for a sink's options, or for a producer's whole configuration."""
        return cls(str(options["bootstrap.servers"]), principal_of(options))

    def topic(self, topic: str, operation: str = "Write") -> str:
        """Say that an operation on a topic is not allowed, and the command that allows it."""
        return self._missing(f"topic {topic!r}", operation, ["--topic", topic])

    def transactional_id(self, name: str, operation: str = "Write") -> str:
        """Say that an operation on transactional ids with the prefix of this one is not allowed,
        and the command that allows it.
        """
        prefix = name.partition(":")[0] + ":"
        what = f"the TransactionalIds with the prefix {prefix!r}"
        return self._missing(
            what, operation, ["--transactional-id", prefix, "--resource-pattern-type", "prefixed"]
        )

    def _missing(self, what: str, operation: str, resource: list[str]) -> str:
        command = [
            "--bootstrap-server",
            self.servers,
            "--add",
            "--allow-principal",
            self.principal,
            "--operation",
            operation,
        ]
        return (
            f"{self.principal} may not {operation.upper()} {what}. Grant it (or, where it is "
            "granted, remove the rule with DENY that forbids it): kafka-acls.sh "
            f"{shlex.join([*command, *resource])}"
        )


def may_write(authorized_operations: Collection[int] | None) -> bool:
    """Tell whether a topic's "authorized operations", as in Kafka's metadata, include WRITE
    (None: the broker doesn't tell).
    """
    return authorized_operations is None or _WRITE in authorized_operations
