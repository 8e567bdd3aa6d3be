"""What a demo's jobs work with: a broker, a database server, a folder, the jars of Spark's
connectors, and perhaps a store for the checkpoints.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from onceforall.demo.checkpoints import Checkpoints, opened
from onceforall.demo.folders import work_folder
from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres, spark_kafka_jars
from onceforall.embedded.jars import jar_set

if TYPE_CHECKING:
    from typing_extensions import Self


class Stage:
    """The servers and the folder of a run; all of it goes when it is left, unless it is to be
    kept.
    """

    def __init__(self, prefix: str, *, keep: bool, checkpoint: str = "local") -> None:
        """Nothing is started yet.

        Args:
            prefix: how the folder's name begins.
            keep: keep the folder.
            checkpoint: where the jobs' checkpoints lie; see ``checkpoints.KINDS``.
        """
        self._prefix = prefix
        self._keep = keep
        self._checkpoint = checkpoint
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            self.jars = [*spark_kafka_jars(), *jar_set("postgres-jdbc")]
            self.work_dir = started.enter_context(work_folder(self._prefix, keep=self._keep))
            self.checkpoints: Checkpoints = started.enter_context(
                opened(self._checkpoint, self.work_dir)
            )
            self.jars += self.checkpoints.jars
            self.broker = started.enter_context(EmbeddedKafka(data_dir=self.work_dir / "kafka"))
            # The server syncs its log, as in production.
            self.postgres = started.enter_context(
                EmbeddedPostgres(data_dir=self.work_dir / "postgres", settings={"fsync": "on"})
            )
            self._open = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
