"""Where one job of the ad-events pipeline runs alone: its topics, its database, its checkpoint,
and its process.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

from benchmarks.stands.children import MeasurementError
from onceforall.demo.ads.furnishing import furnish
from onceforall.demo.ads.generator import PARTITIONS
from onceforall.demo.ads.jobs import Place
from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres, spark_kafka_jars
from onceforall.embedded.jars import jar_set

_END_DEADLINE_S = 180.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Stand(Place):
    """A place whose topics have a name of their own in front, for several of them have the same
    writer.

    Attributes:
        prefix: that name.
    """

    prefix: str

    def topic(self, name: str) -> str:
        """Return the full name of one of the pipeline's own topics."""
        return f"{self.prefix}-{name}"


@dataclass
class Scene:
    """What the stands of a round share.

    Attributes:
        postgres: the server; each stand has a database there.
        folder: of checkpoints and files, with a short path: Spark's sockets lie below it.
    """

    postgres: EmbeddedPostgres
    folder: Path
    _jars: Sequence[Path] = field(
        default_factory=lambda: [*spark_kafka_jars(), *jar_set("postgres-jdbc")]
    )
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def stand(
        self, writer: str, prefix: str, broker: EmbeddedKafka, logs: Path, max_offsets: int
    ) -> Stand:
        """Make a stand's folders, topics and database, with the campaigns in it."""
        name = f"stand_{next(self._numbers)}"
        stand = Stand(
            writer=writer,
            servers=broker.bootstrap_servers,
            database=self.postgres.url(name),
            folder=self.folder / name,
            logs=logs,
            jars=self._jars,
            max_offsets=max_offsets,
            prefix=prefix,
        )
        for folder in (stand.folder, stand.logs):
            folder.mkdir(parents=True)
        furnish(stand, broker, self.postgres, name)
        return stand


def make_shared_topics(broker: EmbeddedKafka) -> None:
    """Make the topics of the generator."""
    for topic, partitions in PARTITIONS.items():
        broker.create_topic(topic, partitions=partitions)


class Job:
    """One life of a job. As a context manager it is killed at the end, with everything below it."""

    def __init__(self, place: Place, job: str) -> None:
        """Start it."""
        self._name = job
        self._process = place.start(job)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def until(self, condition: Callable[[], Any], deadline_s: float, what: str) -> None:
        """Wait for a condition while the job runs.

        Raises:
            MeasurementError: the job ended first, or the time passed.
        """
        until_s = time.monotonic() + deadline_s
        while not condition():
            if self._process.return_code is not None:
                raise self._error(f"ended ({self._process.return_code}) before {what}")
            if time.monotonic() > until_s:
                raise self._error(f"not within {deadline_s:.0f} s: {what}")
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Let it take what is there, and end by itself.

        Raises:
            MeasurementError: it failed, or did not end.
        """
        self._process.send_signal(signal.SIGTERM)
        if not self._process.wait(_END_DEADLINE_S):
            raise self._error(f"did not end within {_END_DEADLINE_S:.0f} s")
        if self._process.return_code:
            raise self._error(f"ended with {self._process.return_code}")

    def _error(self, what: str) -> MeasurementError:
        return MeasurementError(f"{self._name}: {what}:\n{self._process.last_words()}")
