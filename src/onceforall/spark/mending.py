"""Puts back what a loss of power took from Spark's part of a checkpoint, from what the commit log
knows.

Spark syncs none of its files, and onceforall syncs those that a decided batch needs before it
decides (module ``spark_files``). What can be missing or torn all the same: files of a batch that is
not decided; Spark's own entry that says that the last batch is complete; and, in a checkpoint that
an earlier release wrote, the plan of a decided batch.

Two rules make it safe. What is *decided* is put back as it was decided: a plan that is not the
decided one can't be the batch's. What is *not decided* may be forgotten, for nothing of it is
visible; Spark plans it anew. So each repair leads to the same place as if power had been lost a
moment earlier, before Spark wrote the file at all.

``put_back`` runs in each start, before Spark reads the checkpoint. It touches only what Spark
itself can't read, and what is not there. Only the command (``mend``) replaces a plan that is whole
and says something else. Nothing is deleted: what is in the way goes to the folder
``onceforall-set-aside``. A crash between two steps leaves what the next start or command goes on
with.

A run that is still alive loses nothing: what it has decided is as it was decided, and the files of
the batch that it writes are whole.
"""

from __future__ import annotations

import json
import os
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from onceforall.commit_log import binding
from onceforall.common import logs
from onceforall.errors import CheckpointMismatchError, CommitLogError, OnceForAllError, OptionError
from onceforall.failpoints import points as failpoints
from onceforall.protocol.entries import Commit
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.commits import sync_folder
from onceforall.spark.remote_path import AnyPath, RemotePath, create_file, files_below, store_at
from onceforall.spark.stores import Stores

__all__ = ["SET_ASIDE", "Mended", "mend", "put_back"]

logger = logs.logger("onceforall")

SET_ASIDE = "onceforall-set-aside"
"""The folder of a checkpoint for files that were in the way."""


@dataclass(frozen=True)
class Mended:
    """What was done, or would be.

    Attributes:
        steps: sentences for a person, in order; none: nothing is to be mended.
        dry_run: whether nothing was changed.
    """

    steps: tuple[str, ...]
    dry_run: bool = False


@dataclass(frozen=True)
class _Repair:
    """One file, or a folder: it is set aside where it is there, and written where there is
    content for it.
    """

    path: AnyPath
    why: str
    content: bytes | None = None

    def __str__(self) -> str:
        there = self.path.exists()
        done = ["set aside"] * there + ["put back from the commit log"] * (self.content is not None)
        return f"{self.path} {self.why}: {' and '.join(done)}."


def put_back(
    checkpoint: AnyPath,
    commit_log: str | None = None,
    *,
    stores: Stores | None = None,
    adopt: bool = False,
    dry_run: bool = False,
) -> Mended:
    """Put back what Spark could not read, before it reads it; for each start.

    Args:
        checkpoint: the checkpoint's folder.
        commit_log: the location of the log, where the user says it.
        stores: opens it where it isn't local.
        adopt: the checkpoint was moved here.
        dry_run: look and tell only.

    Returns:
        What was done, or would be. Nothing, where there is no log, or one that is not this
        checkpoint's: the start itself refuses that.

    Raises:
        CommitLogError: a file can't be set aside or written; or the checkpoint is on a store and
            its log can't be read.
    """
    try:
        known = _known(checkpoint, commit_log, stores or Stores(), adopt=adopt)
    except OnceForAllError as error:
        if isinstance(checkpoint, RemotePath) and isinstance(error, CommitLogError):
            # Spark would read a plan that nobody has compared; a store fails for a moment, too.
            raise
        logger.debug(
            "what a loss of power may have taken from %s is not looked for: %s", checkpoint, error
        )
        return Mended(())
    if known is None:
        return Mended(())
    repairs = _needed(checkpoint, known)
    if isinstance(checkpoint, RemotePath):
        # Spark's checkpoint on a store excludes nobody: a run that was replaced may have written
        # its plan over the decided one.
        repairs += _planned_anew(checkpoint, known)
    steps = tuple(map(str, repairs))
    if dry_run:
        return Mended(steps, dry_run=True)
    for step in steps:
        logger.warning("%s: %s", _reason(checkpoint), step)
    _carry_out(checkpoint, repairs)
    return Mended(steps)


def _reason(checkpoint: AnyPath) -> str:
    if isinstance(checkpoint, RemotePath):
        return "another run, or a loss of power, has changed Spark's part of the checkpoint"
    return "after a loss of power"


def mend(
    checkpoint: str | os.PathLike[str],
    *,
    commit_log: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
) -> Mended:
    """Make Spark's part of a checkpoint tell what the commit log tells of the last decided batch,
    so that the query can be started.

    Stop the query first. It may be repeated, and does nothing where nothing is wrong.

    Args:
        checkpoint: the query's checkpoint folder.
        commit_log: where the commit log lies; it need not be said, for the checkpoint has a
            pointer.
        dry_run: look and tell only.

    Raises:
        OptionError: this is no checkpoint of onceforall's.
        CheckpointMismatchError: checkpoint and log are not each other's, or differ in what no loss
            of power does.
        CommitLogError: the log or a file can't be read or written.
    """
    stores = Stores()
    path = stores.checkpoint(os.fspath(checkpoint))
    known = _known(
        path,
        None if commit_log is None else stores.log_location(os.fspath(commit_log)),
        stores,
    )
    if known is None:
        raise OptionError(
            f"{path} has no commit log of onceforall (no folder '{spark_checkpoint.LOG_FOLDER}' "
            "with entries). Name the folder that is the "
            "query's checkpointLocation."
        )
    repairs = [*_needed(path, known), *_planned_anew(path, known)]
    steps = tuple(map(str, repairs))
    if not dry_run:
        _carry_out(path, repairs)
    return Mended(steps, dry_run)


# --- what the log knows ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    query_id: str | None
    """By the newest claim; None: no run has ever claimed here, so that nothing is decided, and
    nothing was written."""
    decided: Commit | None


def _known(
    checkpoint: AnyPath, commit_log: str | None, stores: Stores, *, adopt: bool = False
) -> _Known | None:
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    if not home.is_dir():
        return None
    store = store_at(home)
    pointer = binding.pointer_of(store)
    bound = binding.find(store, commit_log, open_store=stores.open)
    if bound is None:
        return None if pointer is None else _Known(None, None)
    log = bound.log()
    claim, history = log.newest_claim(), log.look()
    if claim is None:
        return _Known(None, None)
    if claim.checkpoint != str(checkpoint) and not adopt:
        raise CheckpointMismatchError(
            f"The commit log was written for the checkpoint {claim.checkpoint}, but it lies in "
            f"{checkpoint}: the folder was copied or moved. Start "
            "the query once with onceforall.adoptCheckpoint=true if the old one will never run "
            "again."
        )
    found = _id_in(checkpoint / "metadata")
    if found is not None and found != claim.query_id:
        raise CheckpointMismatchError(
            f"The commit log belongs to the query {claim.query_id}, but {checkpoint / 'metadata'} "
            f"says {found}: this is another query's log. Put "
            "the checkpoint back that belongs to it."
        )
    return _Known(claim.query_id, None if history.decided is None else history.decided.commit)


# --- what is needed -------------------------------------------------------------------------------


def _needed(checkpoint: AnyPath, known: _Known) -> list[_Repair]:
    """Return the repairs that rest on the two rules alone; see the module."""
    repairs = [*_identity(checkpoint, known)]
    commit = known.decided
    last = -1 if commit is None else commit.batch
    if commit is not None:
        repairs += _plan_of_decided(checkpoint, commit)
        # Those behind a whole one are whole, or nobody reads them.
        newest_first = (
            file for batch, file in reversed(_numbered(checkpoint / "commits")) if batch <= last
        )
        torn = takewhile(lambda file: not _is_entry(file, lines=2), newest_first)
        repairs += [
            _Repair(file, "is torn, and Spark runs its last batch again without it")
            for file in torn
        ]
    # What Spark has finished, a plain query before us perhaps, is whole.
    finished = max(last, spark_checkpoint.last_committed(checkpoint))
    is_new = finished < 0
    repairs += _undecided_plans(checkpoint, commit, finished)
    repairs += _source_logs(checkpoint, commit, is_new=is_new)
    if is_new:
        repairs += _state_of_nothing(checkpoint)
    return repairs


def _undecided_plans(checkpoint: AnyPath, commit: Commit | None, finished: int) -> list[_Repair]:
    """Return the repairs of plans behind the last batch that counts: of torn ones, and of those
    whose input the sources don't know any more.
    """
    lines = 3 if commit is None else 2 + len(commit.offsets)
    repairs: list[_Repair] = []
    is_decided = commit is not None and commit.batch == finished
    before = (
        commit.offsets
        if is_decided and commit is not None
        else _offsets_in(checkpoint / "offsets" / str(finished))
    )
    for batch, file in _numbered(checkpoint / "offsets"):
        if batch <= finished:
            continue
        if not _is_entry(file, lines=lines):
            repairs.append(_Repair(file, "is torn, and its batch is not decided"))
        elif repairs:
            repairs.append(_Repair(file, "was planned behind a batch whose plan is gone"))
        elif _lacks_input(checkpoint, before, _offsets_in(file), is_first=finished < 0):
            repairs.append(
                _Repair(file, "is not decided, and a source doesn't know its input any more")
            )
    return repairs


def _lacks_input(
    checkpoint: AnyPath, before: Sequence[str], planned: Sequence[str], *, is_first: bool
) -> bool:
    for source, line in enumerate(planned):
        folder = checkpoint / "sources" / str(source)
        whole = [file for file in files_below(folder) if _is_entry(file, lines=2, source=True)]
        upto = _log_offset(line)
        if is_first and folder.is_dir() and not any(_log_number(file) >= 0 for file in whole):
            # Of a Kafka source this is where the query begins: Spark would take another place than
            # the plan has.
            return True
        start = _log_offset(before[source]) if source < len(before) else -1
        if upto is None or start is None:
            continue
        known = {_log_number(file) for file in whole if ".compact" not in file.name}
        compacted = max(
            (_log_number(file) for file in whole if ".compact" in file.name), default=-1
        )
        if any(number not in known for number in range(max(start, compacted) + 1, upto + 1)):
            return True
    return False


def _offsets_in(file: AnyPath) -> tuple[str, ...]:
    try:
        return spark_checkpoint.lines_of(file.read_bytes().decode())[2:]
    except (OSError, UnicodeDecodeError):
        return ()


def _identity(checkpoint: AnyPath, known: _Known) -> list[_Repair]:
    file = checkpoint / "metadata"
    if not file.exists() or _id_in(file) is not None:
        # Where it is missing altogether, somebody may have begun anew on purpose; Spark or the
        # start refuses that.
        return []
    content = json.dumps({"id": known.query_id or str(uuid.uuid4())}, separators=(",", ":"))
    return [_Repair(file, "is torn, and holds the query's id", content.encode())]


def _plan_of_decided(checkpoint: AnyPath, commit: Commit) -> list[_Repair]:
    file = checkpoint / "offsets" / str(commit.batch)
    if file.exists():
        is_whole = _offsets_in(file) == commit.offsets or _is_entry(
            file, lines=2 + len(commit.offsets)
        )
        return (
            []
            if is_whole
            else [
                _Repair(
                    file,
                    f"is torn, though batch {commit.batch} is decided",
                    _plan(checkpoint, commit),
                )
            ]
        )
    if not _leads_up_to(checkpoint, commit):
        # No loss of power: the checkpoint was restored, edited or mixed. Spark can't run this batch
        # here, and the start refuses the one that it asks for.
        return []
    return [
        _Repair(
            file, f"is missing, though batch {commit.batch} is decided", _plan(checkpoint, commit)
        )
    ]


def _leads_up_to(checkpoint: AnyPath, commit: Commit) -> bool:
    """Tell whether everything is there that Spark needs to run a batch whose plan is put back."""
    before = str(commit.batch - 1)
    if not (checkpoint / "metadata").exists():
        return False
    if commit.batch > 0 and not (checkpoint / "offsets" / before).exists():
        return False
    if (
        commit.batch > 0
        and spark_checkpoint.keeps_state(checkpoint)
        and not (checkpoint / "commits" / before).exists()
    ):
        return False
    return all(
        _has_source_log(checkpoint / "sources" / str(n), _last_log_offset(commit, n))
        for n in range(len(commit.offsets))
    )


def _has_source_log(folder: AnyPath, last: int | None) -> bool:
    """Tell whether a source's own log reaches as far as a decided batch has read it; None: it
    has none that tells.
    """
    return (
        last is None or last < 0 or any(_log_number(file) >= last for file in files_below(folder))
    )


def _plan(checkpoint: AnyPath, commit: Commit) -> bytes:
    return "\n".join(
        [*(commit.header or _header_like_before(checkpoint, commit)), *commit.offsets]
    ).encode()


def _header_like_before(checkpoint: AnyPath, commit: Commit) -> tuple[str, ...]:
    """Return the lines for a decision of an earlier release, from the entries of the batch before
    it.

    Settings don't change from batch to batch, and the watermark of a batch is what the one before
    has left behind. The time of the batch is that of the one before.
    """
    batch = commit.batch
    before = checkpoint / "offsets" / str(batch - 1)
    if batch > 0 and _is_entry(before, lines=3):
        version, text = spark_checkpoint.lines_of(before.read_bytes().decode())[:2]
        fields = json.loads(text or "{}")
        committed = checkpoint / "commits" / str(batch - 1)
        if _is_entry(committed, lines=2):
            left = json.loads(spark_checkpoint.lines_of(committed.read_bytes().decode())[1] or "{}")
            fields["batchWatermarkMs"] = left.get("nextBatchWatermarkMs", 0)
        return version, json.dumps(fields, separators=(",", ":"))
    if spark_checkpoint.keeps_state(checkpoint):
        raise CheckpointMismatchError(
            f"The plan of the decided batch {batch} is lost, its decision was written by an "
            "earlier release that didn't record the plan's settings, and "
            f"{before} is not there to take them from. Put that file back from a backup."
        )
    version = (
        "v2"
        if any(_behind_the_name(line) != line and line[:1].isalnum() for line in commit.offsets)
        else "v1"
    )
    return version, '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


def _state_of_nothing(checkpoint: AnyPath) -> list[_Repair]:
    """Return the repairs of state where no batch is decided or finished; Spark begins anew with
    none, or runs its first batch again.
    """
    state = checkpoint / "state"
    if not any(_is_entry(file, lines=3) for _, file in _numbered(checkpoint / "offsets")):
        return (
            [_Repair(state, "belongs to a batch that is not planned any more")]
            if spark_checkpoint.keeps_state(checkpoint)
            else []
        )
    return [
        _Repair(file, "is empty, and no batch is decided")
        for file in files_below(state)
        if not _size(file)
    ]


def _source_logs(checkpoint: AnyPath, commit: Commit | None, *, is_new: bool) -> list[_Repair]:
    """Return the torn entries of sources that no decided batch can have used, nor one that a
    plain query has finished.
    """
    repairs = []
    for number, folder in _numbered(checkpoint / "sources"):
        last = -1 if is_new else _last_log_offset(commit, number)
        repairs += [
            _Repair(file, "is torn, and no decided batch has read it")
            for file in files_below(folder)
            if last is not None
            and _log_number(file) > last
            and not _is_entry(file, lines=2, source=True)
        ]
    return repairs


def _last_log_offset(commit: Commit | None, source: int) -> int | None:
    """Return up to where a source's own log is in use; None: that can't be known, and nothing of
    it is touched.
    """
    if commit is None:
        return None
    return _log_offset(commit.offsets[source]) if source < len(commit.offsets) else None


def _log_offset(line: str) -> int | None:
    """Return up to which entry of the source's own log an offset reaches; None: it doesn't say."""
    try:
        return int(json.loads(_behind_the_name(line))["logOffset"])
    except (ValueError, KeyError, TypeError):
        return None


def _behind_the_name(line: str) -> str:
    """Return an offset without the source's name, which version 2 has in front of it."""
    name, _, rest = line.partition(":")
    return rest if rest and name.replace("-", "").replace("_", "").isalnum() else line


def _log_number(file: AnyPath) -> int:
    number = file.name.partition(".")[0]
    return int(number) if number.isdecimal() else -1


def _planned_anew(checkpoint: AnyPath, known: _Known) -> list[_Repair]:
    """Return the repairs of plans that are whole, and not the decided ones; what is planned
    behind them goes with them.
    """
    commit = known.decided
    if commit is None:
        return []
    file = checkpoint / "offsets" / str(commit.batch)
    if not file.exists() or not _is_entry(file, lines=2 + len(commit.offsets)):
        return []
    if spark_checkpoint.offsets_of(checkpoint, commit.batch) == commit.offsets:
        return []
    committed = spark_checkpoint.last_committed(checkpoint)
    # On a store a run that was replaced can write over a plan long after its batch is finished.
    finished = commit.batch + 1 if isinstance(checkpoint, RemotePath) else commit.batch
    if committed >= finished:
        raise CheckpointMismatchError(
            f"Batch {commit.batch} was decided for other offsets than {file} has, but Spark has "
            f"finished batch {committed}: no loss of power does "
            "that. The checkpoint was edited, restored or mixed with another one: put back the "
            "folder that belongs to this commit log."
        )
    behind = [
        _Repair(later, f"was planned behind a batch {commit.batch} that is not the decided one")
        for batch, later in _numbered(checkpoint / "offsets")
        if batch > commit.batch
    ]
    why = f"has other offsets than were decided for batch {commit.batch}"
    return [*behind, _Repair(file, why, _plan(checkpoint, commit))]


# --- files ----------------------------------------------------------------------------------------


def _id_in(file: AnyPath) -> str | None:
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _numbered(folder: AnyPath) -> list[tuple[int, AnyPath]]:
    try:
        return sorted((int(file.name), file) for file in folder.iterdir() if file.name.isdecimal())
    except FileNotFoundError:
        return []


def _size(file: AnyPath) -> int:
    return len(file.read_bytes()) if isinstance(file, RemotePath) else file.stat().st_size


def _is_entry(file: AnyPath, *, lines: int, source: bool = False) -> bool:
    """Tell whether a file of one of Spark's logs is whole: a version, and so many lines at
    least, each one JSON (or ``-``).
    """
    try:
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return False
    # Spark writes a zero byte in front of a Kafka source's first offsets.
    found = spark_checkpoint.lines_of(text.removeprefix("\0") if source else text)
    return (
        len(found) >= lines
        and found[0].startswith("v")
        and all(_is_line(line) for line in (found[-1:] if source else found[1:]))
    )


def _is_line(line: str) -> bool:
    """Tell whether a line may be whole.

    A source's offset may be any text; of JSON, also behind the source's name, one can tell.
    """
    text = _behind_the_name(line)
    if not text.startswith(("{", "[")):
        return True
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _carry_out(checkpoint: AnyPath, repairs: list[_Repair]) -> None:
    try:
        for repair in repairs:
            _carry_out_one(checkpoint, repair)
    except OSError as error:
        raise CommitLogError(
            f"The checkpoint {checkpoint} can't be mended after a loss of power: "
            f"{error.filename or ''} {error.strerror}. Mend that, and start "
            "again; nothing is lost."
        ) from error


def _carry_out_one(checkpoint: AnyPath, repair: _Repair) -> None:
    path, aside = repair.path, checkpoint / SET_ASIDE
    failpoints.hit("mend.before")
    if isinstance(path, RemotePath):
        _carry_out_remotely(checkpoint, path, repair.content)
        return
    assert isinstance(checkpoint, Path)
    assert isinstance(aside, Path)
    # With a stale checksum Spark would take what is written next for damaged; without one, nothing
    # is checked.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if path.exists():
        aside.mkdir(exist_ok=True)
        target = aside / f"{'.'.join(path.relative_to(checkpoint).parts)}.{secrets.token_hex(4)}"
        _unless_gone(lambda: path.rename(target))
        sync_folder(aside)
        sync_folder(checkpoint)
        sync_folder(path.parent)
        failpoints.hit("mend.set_aside")
    if repair.content is not None:
        _create(path, repair.content)
        failpoints.hit("mend.put_back")


def _carry_out_remotely(checkpoint: AnyPath, path: RemotePath, content: bytes | None) -> None:
    if path.exists():
        name = str(path).removeprefix(f"{checkpoint}/").replace("/", ".")
        target = path.root / SET_ASIDE / f"{name}.{secrets.token_hex(4)}"
        _unless_gone(lambda: path.rename(target))
        failpoints.hit("mend.set_aside")
    if content is not None:
        if not create_file(path, content):
            logger.info("%s is there by now", path)
        failpoints.hit("mend.put_back")


def _create(path: Path, content: bytes) -> None:
    """Write a file durably, whole or not at all; one that is there by now stays."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(16)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        failpoints.hit("mend.synced")
        try:
            os.link(temporary, path)
        except FileExistsError:
            logger.info("%s is there by now", path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    sync_folder(path.parent.parent)


def _unless_gone(rename: Callable[[], Any]) -> None:
    try:
        rename()
    except FileNotFoundError:
        # Another start was faster.
        return
