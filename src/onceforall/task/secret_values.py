"""The way of secret values from the driver to the tasks, in two halves that are worthless one
without the other.

What Spark takes to the tasks it also writes down: local properties of a job in its event log,
unredacted whatever their names, and pickled functions on local disks when they are large. So each
batch draws random bytes, as many as the values have; the bytes go in the pickled function, and the
values combined with them (exclusive or, a one-time pad) in a local property that is set around the
job.

Spark Connect has no local properties to set. There the values' half goes in a setting of the
session, which Spark makes a local property of each job that begins while it stands; its name is the
batch's own.

Both meet in the memory of the driver's JVM and on the way to the executors, which is as safe as all
else that these say to each other (``spark.network.crypto.enabled``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onceforall.sink import TwoPhaseCommitSink
    from onceforall.spark.surroundings import LocalProperties

_PREFIX = "onceforall.secret."
_SESSION_PREFIX = "spark.sql.onceforall.secret."
"""Spark takes only settings that begin with ``spark.sql.`` along with a job."""
# The length of a password is nobody's business either.
_BLOCK_BYTES = 256


class Handover:
    """The secret values of a query's sinks, for the jobs of one batch.

    Attributes:
        pads: by name, the half that goes in the pickled function; nothing for what has no secret
            values.
    """

    def __init__(
        self,
        sinks: Mapping[str, TwoPhaseCommitSink],
        others: Mapping[str, Mapping[str, str]] | None = None,
        *,
        in_session: bool = False,
    ) -> None:
        """Take the values of now.

        Args:
            sinks: by name; ``TwoPhaseCommitSink.secrets`` tells their secrets.
            others: values of what is no sink, by a name that no sink has.
            in_session: the other half goes in settings of a session, which other queries have, too.
        """
        self.pads: dict[str, bytes] = {}
        self._properties: dict[str, str] = {}
        secrets = {name: sink.secrets() for name, sink in sinks.items()} | dict(others or {})
        for name, values in secrets.items():
            if values:
                text = json.dumps(dict(values)).encode()
                text = text.ljust(-(-len(text) // _BLOCK_BYTES) * _BLOCK_BYTES)
                self.pads[name] = os.urandom(len(text))
                key = _of_session(self.pads[name]) if in_session else _PREFIX + name
                self._properties[key] = _combined(text, self.pads[name]).hex()

    def __repr__(self) -> str:
        return f"Handover({sorted(self.pads)})"

    @contextmanager
    def around(self, context: LocalProperties) -> Iterator[None]:
        """Send the other half with the jobs that this thread starts within."""
        try:
            self._set(context, self._properties)
            yield
        finally:
            self._set(context, dict.fromkeys(self._properties))

    @staticmethod
    def _set(context: LocalProperties, properties: Mapping[str, str | None]) -> None:
        with _unlogged():
            for key, half in properties.items():
                context.setLocalProperty(key, half)  # None removes a property


def received(sink: str, pad: bytes | None) -> dict[str, str]:
    """Return, in a task, the secret values that the driver gave for a sink.

    Args:
        sink: its name.
        pad: the half that came in the pickled function; None without secret values.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or pad is None:
        return {}
    half = context.getLocalProperty(_PREFIX + sink) or context.getLocalProperty(_of_session(pad))
    if half is None:
        return {}
    values: dict[str, str] = json.loads(_combined(bytes.fromhex(half), pad))
    return values


def _of_session(pad: bytes) -> str:
    """Return the name of a session's setting, which nobody else has."""
    return _SESSION_PREFIX + hashlib.sha256(pad).hexdigest()[:32]


def _combined(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


class _NoHalves(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return _PREFIX not in record.getMessage()


@contextmanager
def _unlogged() -> Iterator[None]:
    """Drop what py4j logs at level DEBUG of the properties: it logs every command, and so has
    the pickled functions too.
    """
    silence = _NoHalves()
    loggers = [logging.getLogger(name) for name in ("py4j.java_gateway", "py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(silence)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(silence)
