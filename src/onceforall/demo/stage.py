"""What a demo's jobs work with: a broker, a database server, a folder, and the jars of Spark's
connectors.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from onceforall.demo.folders import work_folder
from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres, spark_kafka_jars
from onceforall.embedded.jars import jar_set

if TYPE_CHECKING:
    from typing_extensions import Self


class Stage:
    """The servers and the folder of a run; all of it goes when it is left, unless it is to be
    kept.
    """

    def __init__(self, prefix: str, *, keep: bool) -> None:
        """Nothing is started yet.

        Args:
            prefix: how the folder's name begins.
            keep: keep the folder.
        """
        self._prefix = prefix
        self._keep = keep
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            self.jars = [*spark_kafka_jars(), *jar_set("postgres-jdbc")]
            self.work_dir = opened.enter_context(work_folder(self._prefix, keep=self._keep))
            self.broker = opened.enter_context(EmbeddedKafka(data_dir=self.work_dir / "kafka"))
            # The server syncs its log, as in production.
            self.postgres = opened.enter_context(
                EmbeddedPostgres(data_dir=self.work_dir / "postgres", settings={"fsync": "on"})
            )
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
