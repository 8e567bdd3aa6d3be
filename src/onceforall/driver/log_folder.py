"""Where a checkpoint's commit log lies, found and bound before the first batch; and what a loss
of power took from beside it.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from onceforall.commit_log import CommitLog, LocalStore, binding
from onceforall.driver import place
from onceforall.driver.settings import Settings
from onceforall.errors import CheckpointMismatchError, CommitLogError, OptionError
from onceforall.protocol.judgement import judge_claim
from onceforall.protocol.state import RunConfig
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import mending


def put_back(checkpoint: Path, settings: Settings, scheme: str) -> None:
    """Put back what a loss of power took from Spark's files, before Spark reads them; see
    ``mending``.
    """
    wanted = (
        None if settings.commit_log is None else binding.log_location(settings.commit_log, scheme)
    )
    mending.put_back(checkpoint, wanted, adopt=settings.adopt_checkpoint)


def check_log(checkpoint: Path, adopt: bool) -> None:  # noqa: FBT001
    """Refuse the log of a checkpoint that was moved, copied or cloned, before Spark starts
    anything. Nothing is written.

    The first batch looks at the same once more, for another run may have claimed the log by then.
    What can't be read here is told by it, too.

    Args:
        checkpoint: the checkpoint's folder.
        adopt: it was moved on purpose.

    Raises:
        CheckpointMismatchError: the log is another query's or another checkpoint's.
    """
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    if adopt or not home.is_dir():
        return
    try:
        bound = binding.find(LocalStore(home))
        claim = (
            None
            if bound is None
            else CommitLog(bound.store, first_generation=bound.first_generation).newest_claim()
        )
    except (CheckpointMismatchError, CommitLogError):
        return
    if claim is None:
        return
    query_id = spark_checkpoint.query_id(checkpoint) or claim.query_id
    refusal = judge_claim(
        RunConfig(query_id, "", str(checkpoint), (), **asdict(place.here(checkpoint))), claim
    )
    if refusal is not None:
        raise refusal.error(refusal.message)


def bind_log(checkpoint: Path, settings: Settings, scheme: str) -> binding.BoundLog:
    """Return the checkpoint's commit log, wherever it lies; a new one is bound to the checkpoint,
    which marks that as ours.

    Args:
        checkpoint: the checkpoint's folder.
        settings: ``commit_log`` and ``adopt_checkpoint`` count.
        scheme: that of paths without one.

    Raises:
        CheckpointMismatchError: checkpoint, pointer, log and option don't fit together.
        ConfigurationError: an option is wrong.
        CommitLogError: the folder can't be made or read.
    """
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    wanted = (
        None if settings.commit_log is None else binding.log_location(settings.commit_log, scheme)
    )
    if wanted is not None and (
        binding.log_path(wanted) == checkpoint or checkpoint in binding.log_path(wanted).parents
    ):
        raise OptionError(
            f"onceforall.commitLog={settings.commit_log} lies in the checkpoint {checkpoint} "
            "itself. Leave the option out: that is where the "
            "commit log is by default."
        )
    pointers = (
        binding.pointer_of(LocalStore(folder))
        for folder in spark_checkpoint.detached_logs(checkpoint)
    )
    return binding.bind(
        LocalStore(home),
        str(checkpoint),
        wanted,
        query_id=spark_checkpoint.query_id(checkpoint),
        retired=[pointer[0] for pointer in pointers if pointer is not None],
        first_generation=spark_checkpoint.detached_generation(checkpoint) + 1,
        adopt=settings.adopt_checkpoint,
    )
