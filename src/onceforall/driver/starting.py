"""What a start looks at before Spark reads the checkpoint: what lies there, the commit log, and the
sinks' targets. Everything that can be refused is refused here, before data moves.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceforall.driver.closing import close_all
from onceforall.driver.log_folder import (
    bind_log,
    check_identity,
    check_log,
    check_place,
    put_back,
)
from onceforall.driver.query_run import check_sinks
from onceforall.driver.settings import Settings
from onceforall.driver.targets import check_targets, last_decision
from onceforall.sink import StartInfo, TwoPhaseCommitSink
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import AnyPath
from onceforall.spark.state_files import file_manager
from onceforall.spark.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["WholeQuery", "check_start"]


@dataclass(frozen=True)
class WholeQuery:
    """What is known at the start of a query of ``write_stream``, beyond its sinks and settings.

    Attributes:
        output_mode: ``append``, ``update`` or ``complete``.
        schema: of the stream's rows.
        as_they_are: the names of the sinks that get the stream's rows as they are.
    """

    output_mode: str
    schema: StructType
    as_they_are: Collection[str]


def check_start(
    spark: SparkSession | None,
    location: str,
    settings: Settings,
    sinks: Mapping[str, TwoPhaseCommitSink],
    whole: WholeQuery | None,
) -> AnyPath:
    """Look at everything that a start depends on, and bind the commit log to the checkpoint.

    Args:
        spark: the query's session, in the process in which its batches will be called.
        location: the checkpoint's.
        settings: the user's.
        sinks: the query's, by name; a copy of each is checked.
        whole: what ``write_stream`` knows; None: the sinks are checked at the first batch.

    Returns:
        The checkpoint.

    Raises:
        ConfigurationError: something must be mended first; the message names it.
        CheckpointMismatchError: the checkpoint is a plain query's, and its last batch is
            unfinished; or checkpoint and commit log are not bound to each other, or the checkpoint
            was moved, copied or cloned.
    """
    stores = Stores(spark, settings.store)
    checkpoint = stores.checkpoint(location)
    check_place(checkpoint, settings, stores, *file_manager(spark))
    check_log(checkpoint, stores, adopt=settings.adopt_checkpoint)
    # Before all else: what reads the checkpoint may meet what is torn.
    put_back(checkpoint, settings, stores)
    check_identity(checkpoint, stores)
    if whole is not None:
        assert spark is not None
        _check_sinks(spark, checkpoint, stores, settings, sinks, whole)
    spark_checkpoint.check_take_over(checkpoint, settings.takeover)
    bind_log(checkpoint, settings, stores)
    return checkpoint


def _check_sinks(  # noqa: PLR0917
    spark: SparkSession,
    checkpoint: AnyPath,
    stores: Stores,
    settings: Settings,
    sinks: Mapping[str, TwoPhaseCommitSink],
    whole: WholeQuery,
) -> None:
    checked = {name: copy.copy(sink) for name, sink in sinks.items()}
    query_id = spark_checkpoint.query_id(checkpoint) or ""
    starts = {name: StartInfo(query_id, name, spark, whole.output_mode) for name in checked}
    try:
        check_targets(
            last_decision(checkpoint, stores),
            checkpoint,
            checked,
            starts,
            settings.adopt_target,
        )
        for name, sink in sinks.items():
            if name in whole.as_they_are:
                sink.columns(whole.schema)
        check_sinks(checked, spark, query_id, whole.output_mode)
    finally:
        close_all(checked)
