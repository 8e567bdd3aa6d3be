"""The catalogue of all failpoints: where each lies, and how a program gets there. A crash campaign
makes its matrix of it.

It is data, checked from both sides: tests compare it with the calls in the source, and runs that
record what they pass (``ONCEFORALL_FAILPOINTS_RECORD``) with ``first`` and ``recovery``. The parts
of a name are the module's subject and the step; ``asked`` and ``answered`` are the beginning and
the end of a sink's method.

Two kinds of run are meant. A *first* run began on a new checkpoint (or behind a run that ended in
good order) and writes batches in the output mode ``append``. A *recovery* is what a start does
behind a killed run, up to the first batch that it writes itself. ``needs`` and ``recovery_needs``
say what else must have happened; see ``NEEDS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["CATALOGUE", "NEEDS", "SINK_KINDS", "Failpoint"]

KAFKA = ("kafka",)
FILES = ("files",)
STAGED = ("postgres-staged",)
PREPARED = ("postgres-prepared",)
UPSERT = ("postgres-upsert",)
TWO_PHASE = (*STAGED, *PREPARED)
POSTGRES = (*STAGED, *PREPARED, *UPSERT)
SINK_KINDS = (*KAFKA, *FILES, *POSTGRES)

NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "": "nothing: any such run comes there",
        "decided": "recovery behind a decision without DONE (append_commit.after=kill)",
        "completed": "recovery behind a decided batch that its sinks have, without DONE "
        "(append_done.before=kill)",
        "undecided": "recovery behind an attempt that died with something prepared "
        "(append_commit.before=kill)",
        "older": "two or more generations before this one",
        "failed": "an attempt that fails before the decision, with something prepared "
        "(write.confirm.before=raise)",
        "task_failed": "a task that fails before it hands its result over "
        "(task.pre_commit.before=raise)",
        "abandoned": "a task that fails when it has pre-committed (task.pre_commit.after=raise)",
        "retried": "a batch of which a task attempt was lost: a retry, or speculation",
        "retired": "a transaction that is complete and had an unanswered or repeated request",
        "reopened": "another attempt of the same task left something prepared",
        "lost": "a decided transaction that its system aborted (a Kafka transaction that timed out)",  # noqa: E501
        "lost_placed": "lost, behind a commit that had given some of the transaction's files "
        "their names (file.commit.renamed=kill)",
        "lost_reopened": "lost, and another attempt of the task that writes it again left "
        "something prepared",
        "lost_failed": "lost, and an attempt to write it again that fails (as failed, or "
        "task_failed)",
        "durable": "lost, with onceforall.redo=durable",
        "keep": "onceforall.redo=durable",
        "keep_failed": "onceforall.redo=durable, and a task that fails before it hands its result "
        "over",
        "stateful": "a query that keeps state, and replays a decided batch",
        "divergence": "a query that keeps state, and replays a decided batch with other rows",
        "empty": "a batch without rows in the output mode complete",
        "cleaning": "sealed chains with more entries than are retained",
        "old_temporary": "a temp file in the log that is older than 15 minutes",
        "store_failure": "a store that gives no answer to a create (store.create.*=error:EIO)",
        "elsewhere": "onceforall.commitLog: the log lies outside the checkpoint",
        "moved": "a log that was moved on purpose, with onceforall.adoptCheckpoint",
        "race": "two first starts of one checkpoint at the same moment",
        "spark_log": "a folder with Spark's own log, continued",
        "merging": "a hundred batches whose manifests were not merged yet",
        "temporary": "a manifest whose writer was killed before its link (file.create.synced=kill)",
        "torn": "a checkpoint of which Spark's plan of the last decided batch was torn by a loss "
        "of power",
        "skipped": "onceforall files mend, on a chain of manifests in which one passes over another",  # noqa: E501
        "detach": "onceforall detach, not a start of the query",
    }
)
"""What a run must have met to reach a failpoint, by the word that the catalogue uses."""


@dataclass(frozen=True)
class Failpoint:
    """One failpoint.

    Attributes:
        where: ``driver``, ``worker`` (a Python process of Spark's that runs tasks) or ``both``.
        sinks: the kinds of sink that reach it; empty: all.
        first: whether a first run can reach it.
        recovery: whether a recovery can.
        needs: what a first run needs for that; a key of ``NEEDS``.
        recovery_needs: the same for a recovery.
    """

    where: str
    sinks: tuple[str, ...]
    first: bool
    recovery: bool
    needs: str = ""
    recovery_needs: str = ""


_catalogue: dict[str, Failpoint] = {}


def _points(  # noqa: PLR0917
    where: str,
    sinks: tuple[str, ...],
    first: str | None,
    recovery: str | None,
    prefix: str,
    steps: str,
) -> None:
    """Enter failpoints ``<prefix>.<step>``; ``first`` and ``recovery`` are what is needed, None:
    it can't be reached then.
    """
    for step in steps.split():
        name = f"{prefix}.{step}"
        assert name not in _catalogue, name
        _catalogue[name] = Failpoint(
            where, sinks, first is not None, recovery is not None, first or "", recovery or ""
        )


_BOTH_SIDES = "before after"
_METHOD = "asked answered"

# --- a start, in its order ---
_points("driver", (), "", "", "start", "targets_checked sinks_checked checkpoint_checked bound")
_points("driver", (), "", None, "bind", "prepared pointed")
_points("driver", (), "elsewhere", None, "bind", "log_marked")
_points("driver", (), "race", None, "bind", "lost")
_points("driver", (), None, "moved", "bind", "moving moved")
_points("driver", (), "", "", "inspect", _BOTH_SIDES)
_points("driver", (), "", "", "claim", _BOTH_SIDES)
_points("driver", (), "", "", "seal", _BOTH_SIDES)
_points("driver", (), "", "", "recover", _BOTH_SIDES)

# --- a batch, by decisions ---
_points("driver", (), "", "lost", "write", _BOTH_SIDES)
_points("driver", (), "", "lost", "append_commit", _BOTH_SIDES)
_points("driver", (), "", "lost", "commit", _BOTH_SIDES)
_points("driver", (), "", "decided", "return_batch", _BOTH_SIDES)
_points("driver", (), "", "lost", "return_batch", "after_done")
_points("driver", (), "", "decided", "append_done", _BOTH_SIDES)
_points("driver", TWO_PHASE, "", None, "retire", _BOTH_SIDES)
_points("driver", (), "retried", None, "sweep_own", _BOTH_SIDES)
_points("driver", (), "failed", "lost_failed", "abort", _BOTH_SIDES)
_points("driver", (), "failed", "lost_failed", "stop", "before")
_points("driver", (), None, "lost", "fence_lost", _BOTH_SIDES)
_points("driver", (), None, "durable", "write_kept", _BOTH_SIDES)
_points("driver", (), None, "stateful", "digest", _BOTH_SIDES)
_points("driver", (), None, "divergence", "report", _BOTH_SIDES)

# --- a batch's jobs and tasks ---
_points("driver", (), "", "lost", "write.function", _BOTH_SIDES)
_points("driver", (), "", "lost", "write.job", _BOTH_SIDES)
_points("driver", (), "", "lost", "write.confirm", _BOTH_SIDES)
_points("driver", (), "", "lost", "spark_files", "written")
_points("driver", STAGED, "empty", None, "write.empty", _BOTH_SIDES)
_points(
    "worker",
    (),
    "",
    "lost",
    "task",
    "begin.before begin.after invoke.after pre_commit.before pre_commit.one pre_commit.after "
    "handed_over",
)
_points("worker", (), "task_failed", "lost_failed", "task.discard", _BOTH_SIDES)
_points("worker", (), None, "durable", "task.kept", "handed_over")
_points(
    "worker",
    (),
    "keep",
    None,
    "kept",
    "file_made added finish.written finish.synced finish.folders_synced",
)
_points("worker", (), "keep_failed", None, "kept", "discard.before")
_points("worker", (), None, "durable", "kept", "read.before")
_points("driver", (), "keep", "durable", "kept.forget", _BOTH_SIDES)

# --- the commit log and its store ---
_points("driver", (), "", "", "log.claim", _BOTH_SIDES)
_points("driver", (), "", "decided", "log.append", _BOTH_SIDES)
_points("driver", (), None, "", "log.seal", _BOTH_SIDES)
_points("driver", (), None, "", "log.settle", _BOTH_SIDES)
_points("driver", (), None, "older", "log.frontier", _BOTH_SIDES)
_points("driver", (), "store_failure", "store_failure", "log.create", "again")
_points("driver", (), None, "cleaning", "log.mark", _BOTH_SIDES)
_points("driver", (), "", "", "log.clean", "before")
_points("driver", (), None, "cleaning", "log.clean", "deleted")
# In a first run the first file is the pointer, the second the CLAIM, the third batch 0's COMMIT and
# the fourth its DONE.
_points("driver", (), "", "", "store.create", "before written synced linked folder_synced after")
# Each start creates the pointer again that it has read, for it may not be durable.
_points("driver", (), "", "", "store.create", "exists")
_points("driver", (), "", "", "store.folder", "made")
_points("driver", (), None, "cleaning", "store.delete", _BOTH_SIDES)
_points("driver", (), "old_temporary", "old_temporary", "store.clean", "deleted")
_points("driver", (), "", "", "sweeper", "before after cleaned")

# --- Kafka ---
_points("driver", KAFKA, "", "", "kafka.check", _METHOD)
_points("worker", KAFKA, "", "lost", "kafka.begin", _METHOD)
_points("worker", KAFKA, "", "lost", "kafka.producer", "init_before initialised")
_points("worker", KAFKA, "", None, "kafka.producer", "reuse_before reused")
_points("worker", KAFKA, "", "lost", "kafka.invoke", _METHOD)
_points("worker", KAFKA, "", "lost", "kafka.produce", _BOTH_SIDES)
_points("worker", KAFKA, "", "lost", "kafka.pre_commit", f"{_METHOD} identified")
_points("worker", KAFKA, "", "lost", "kafka.flush", _BOTH_SIDES)
_points("worker", KAFKA, "", "lost", "kafka.reports", "checked")
_points("worker", KAFKA, "task_failed", "lost_failed", "kafka.discard", _METHOD)
_points("worker", KAFKA, "task_failed", "lost_failed", "kafka.own_abort", _BOTH_SIDES)
_points("driver", KAFKA, "", "lost", "kafka.confirm", f"{_METHOD} ends_read")
_points("driver", KAFKA, "", "decided", "kafka.commit", _METHOD)
_points("driver", KAFKA, "", "decided", "kafka.end_txn", _BOTH_SIDES)
_points("driver", KAFKA, "lost", "lost", "kafka.evidence", _BOTH_SIDES)
_points("driver", KAFKA, "failed", "lost_failed", "kafka.abort", _METHOD)
_points("driver", KAFKA, "retired", "lost", "kafka.retire", _METHOD)
_points("driver", KAFKA, "", "", "kafka.recover", f"{_METHOD} listed")
_points("driver", KAFKA, "failed", "undecided", "kafka.fence", _BOTH_SIDES)

# --- files ---
_points("driver", FILES, "", "", "file.check", _METHOD)
_points("worker", FILES, "", "lost", "file.begin", f"{_METHOD} made")
_points("worker", FILES, "", "lost", "file.invoke", _METHOD)
_points("worker", FILES, "", "lost", "file.write", "opened")
_points(
    "worker",
    FILES,
    "",
    "lost",
    "file.pre_commit",
    f"{_METHOD} before file_written file_synced before_sync folder_synced after",
)
_points("worker", FILES, "task_failed", "lost_failed", "file.discard", _METHOD)
_points("driver", FILES, "", "lost", "file.confirm", f"{_METHOD} after")
_points(
    "driver",
    FILES,
    "",
    "decided",
    "file.commit",
    f"{_METHOD} before renamed synced before_clearing cleared",
)
_points("driver", FILES, "", "decided", "file.manifest", _BOTH_SIDES)
_points("driver", FILES, "", "decided", "file.newest", "before linked")
_points("driver", FILES, None, "completed", "file.commit", "found_synced")
_points("driver", FILES, "", "decided", "file.create", "written synced linked folder_synced")
_points("both", FILES, "", None, "file.folder", "made")
_points("driver", FILES, "spark_log", "spark_log", "file.spark_metadata", _BOTH_SIDES)
_points("driver", FILES, "merging", "merging", "file.merge", f"{_BOTH_SIDES} deleted")
_points("driver", FILES, "failed", "lost_failed", "file.abort", f"{_METHOD} deleted")
_points("driver", FILES, None, "lost", "file.retire", f"{_METHOD} temporary_deleted")
_points("driver", FILES, None, "lost_placed", "file.retire", "deleted")
_points("driver", FILES, "", "", "file.recover", _METHOD)
_points("driver", FILES, "abandoned", "undecided", "file.recover", "deleted")
_points("driver", FILES, "temporary", "temporary", "file.recover", "manifest_deleted")

# --- PostgreSQL ---
_points("driver", POSTGRES, "", "", "postgres.check", _METHOD)
_points("worker", POSTGRES, "", "lost", "postgres.begin", _METHOD)
_points("worker", POSTGRES, "", "lost", "postgres.invoke", _METHOD)
_points("worker", POSTGRES, "", "lost", "postgres.task", "staging_made copied")
_points("worker", POSTGRES, "", "lost", "postgres.pre_commit", _METHOD)
_points("worker", POSTGRES, "task_failed", "lost_failed", "postgres.discard", _METHOD)
_points("worker", STAGED, "", "lost", "postgres.task", "labelled staged")
_points("worker", PREPARED, "", "lost", "postgres.task", "predecessors_gone applied prepared")
_points("worker", PREPARED, "reopened", "lost_reopened", "postgres.task", "predecessor_rolled_back")
_points("worker", UPSERT, "", None, "postgres.upsert", "marked applied before_commit after_commit")
_points("driver", TWO_PHASE, "", "lost", "postgres.confirm", _METHOD)
_points("driver", STAGED, "", "decided", "postgres.merge", "marked applied")
_points("driver", STAGED, "", "lost", "postgres.confirm", "merged")
_points("driver", PREPARED, "", "lost", "postgres.confirm", "closed counted forgotten")
_points("driver", TWO_PHASE, "", "decided", "postgres.commit", _METHOD)
_points("driver", STAGED, "", "lost", "postgres.commit", "before")
_points("driver", STAGED, "", "decided", "postgres.commit", "after")
_points("driver", STAGED, None, "decided", "postgres.commit", "merged_again")
_points("driver", PREPARED, "", "decided", "postgres.commit_prepared", _BOTH_SIDES)
_points("driver", PREPARED, "", "decided", "postgres.mark_complete", "before marked after")
_points("driver", TWO_PHASE, "failed", "lost_failed", "postgres.abort", _METHOD)
_points("driver", TWO_PHASE, "", "lost", "postgres.retire", _METHOD)
_points("driver", TWO_PHASE, "failed", "lost", "postgres.remove", "dropped")
_points("driver", PREPARED, "failed", None, "postgres.remove", "rolled_back")
_points("driver", POSTGRES, "", "", "postgres.recover", f"{_METHOD} ended")
_points("driver", STAGED, "abandoned", "undecided", "postgres.recover", "dropped")
_points("driver", PREPARED, "abandoned", "undecided", "postgres.recover", "rolled_back")

# --- behind a loss of power ---
_points("driver", FILES, None, "skipped", "file.mend", "written kept replaced")
_points("driver", (), None, "torn", "mend", "before set_aside synced put_back")

# --- leaving a log ---
_points(
    "driver",
    (),
    None,
    "detach",
    "detach",
    "before recovered passed left pointed",
)
_points("driver", (), None, "detach", "detach.entry", "synced linked")

CATALOGUE: Mapping[str, Failpoint] = MappingProxyType(dict(sorted(_catalogue.items())))
"""All failpoints by name."""
