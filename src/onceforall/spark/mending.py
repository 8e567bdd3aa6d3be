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

A run that is still alive, or starts meanwhile, loses nothing, though files are set aside by their
names and whoever does that may have stood still since it judged: each is looked at once more where
it lies then. What was torn must be torn there; for what goes by the log's word, no generation may
have been claimed since. Else it goes back to where it was, and all is judged again. (A run claims
before it decides, and syncs its plan behind that: what is taken away later than that look fails its
batch before it is decided.)
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from onceforall.commit_log import CommitLog, binding
from onceforall.common import logs
from onceforall.errors import CheckpointMismatchError, CommitLogError, OnceForAllError, OptionError
from onceforall.protocol.entries import Commit
from onceforall.protocol.history import Decided
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import AnyPath, RemotePath, files_below, store_at
from onceforall.spark.repairs import SET_ASIDE, Repair, carry_out
from onceforall.spark.stores import Stores

__all__ = ["SET_ASIDE", "Mended", "mend", "put_back"]

logger = logs.logger("onceforall")

_TRIES = 10
"""So often all is judged again because others were faster."""


@dataclass(frozen=True)
class Mended:
    """What was done, or would be.

    Attributes:
        steps: sentences for a person, in order; none: nothing is to be mended.
        dry_run: whether nothing was changed.
    """

    steps: tuple[str, ...]
    dry_run: bool = False


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
    asked = _Asked(checkpoint, commit_log, stores or Stores(), adopt)

    def judge() -> tuple[_Known, list[Repair]] | None:
        try:
            known = _known(asked)
        except OnceForAllError as error:
            if isinstance(checkpoint, RemotePath) and isinstance(error, CommitLogError):
                # Spark would read a plan that nobody has compared; a store fails for a moment, too.
                raise
            logger.debug(
                "what a loss of power may have taken from %s is not looked for: %s",
                checkpoint,
                error,
            )
            return None
        if known is None:
            return None
        repairs = _needed(checkpoint, known)
        if isinstance(checkpoint, RemotePath):
            # Spark's checkpoint on a store excludes nobody: a run that was replaced may have
            # written its plan over the decided one.
            repairs += _planned_anew(checkpoint, known)
        return known, repairs

    return _mended(asked, judge, dry_run=dry_run, reason=_reason(checkpoint))


def _reason(checkpoint: AnyPath) -> str:
    if isinstance(checkpoint, RemotePath):
        return "another run, or a loss of power, has changed Spark's part of the checkpoint"
    return "after a loss of power"


def mend(
    checkpoint: str | os.PathLike[str],
    *,
    commit_log: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Mended:
    """Make Spark's part of a checkpoint tell what the commit log tells of the last decided batch,
    so that the query can be started.

    Stop the query first. It may be repeated, and does nothing where nothing is wrong.

    Args:
        checkpoint: the query's checkpoint folder.
        commit_log: where the commit log lies; it need not be said, for the checkpoint has a
            pointer.
        dry_run: look and tell only.
        settings: how a checkpoint or a log on a store is reached, by the names of
            ``onceforall.store.*``.

    Raises:
        OptionError: this is no checkpoint of onceforall's.
        CheckpointMismatchError: checkpoint and log are not each other's, or differ in what no loss
            of power does.
        CommitLogError: the log or a file can't be read or written.
    """
    stores = Stores(None, settings)
    path = stores.checkpoint(os.fspath(checkpoint))
    location = None if commit_log is None else stores.log_location(os.fspath(commit_log))
    asked = _Asked(path, location, stores)

    def judge() -> tuple[_Known, list[Repair]]:
        known = _known(asked)
        if known is None:
            raise OptionError(
                f"{path} has no commit log of onceforall (no folder "
                f"'{spark_checkpoint.LOG_FOLDER}' with entries). Name the folder that is the "
                "query's checkpointLocation."
            )
        return known, [*_needed(path, known), *_planned_anew(path, known)]

    return _mended(asked, judge, dry_run=dry_run)


def _mended(
    asked: _Asked,
    judge: Callable[[], tuple[_Known, list[Repair]] | None],
    *,
    dry_run: bool,
    reason: str | None = None,
) -> Mended:
    """Carry out what is judged to be needed, and judge again where somebody was faster.

    ``reason``: for the warning of each step; None: the caller shows the steps.
    """
    done: list[str] = []
    try:
        for _ in range(_TRIES):
            judged = judge()
            if judged is None:
                return Mended(tuple(done), dry_run)
            known, repairs = judged
            if dry_run:
                return Mended(tuple(map(str, repairs)), dry_run=True)
            for repair in repairs:
                step = str(repair)
                if not carry_out(repair, asked.checkpoint, partial(asked.is_at, known.generation)):
                    logger.info("%s has changed meanwhile: all is judged again", repair.path)
                    break
                if reason is not None:
                    logger.warning("%s: %s", reason, step)
                done.append(step)
            else:
                return Mended(tuple(done))
    except OSError as error:
        raise CommitLogError(
            f"The checkpoint {asked.checkpoint} can't be mended after a loss of power: "
            f"{error.filename or ''} {error.strerror}. Mend that, and start "
            "again; nothing is lost."
        ) from error
    raise CommitLogError(
        f"The checkpoint {asked.checkpoint} can't be mended: runs of its query start again and "
        "again meanwhile. Stop the query, and repeat this."
    )


# --- what the log knows ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    checkpoint: AnyPath
    commit_log: str | None
    stores: Stores
    adopt: bool = False

    def log(self) -> CommitLog | None:
        """Return the checkpoint's log, wherever it lies now."""
        home = store_at(self.checkpoint / spark_checkpoint.LOG_FOLDER)
        bound = binding.find(home, self.commit_log, open_store=self.stores.open)
        return None if bound is None else bound.log()

    def is_at(self, generation: int | None) -> bool:
        """Tell whether that is still the newest generation, in the log that counts."""
        try:
            log = self.log()
            return (None if log is None else log.newest_generation()) == generation
        except OnceForAllError:
            return False


@dataclass(frozen=True)
class _Known:
    query_id: str | None = None
    """By the newest claim; None: no run has ever claimed here, so that nothing is decided, and
    nothing was written."""
    decided: Decided | None = None
    generation: int | None = None
    """The newest that was claimed before all else was looked at."""
    log: CommitLog | None = None

    @property
    def commit(self) -> Commit | None:
        """The last decision."""
        return None if self.decided is None else self.decided.commit


def _known(asked: _Asked) -> _Known | None:
    checkpoint = asked.checkpoint
    home = checkpoint / spark_checkpoint.LOG_FOLDER
    if not home.is_dir():
        return None
    pointer = binding.pointer_of(store_at(home))
    log = asked.log()
    if log is None:
        return None if pointer is None else _Known()
    generation, claim, history = log.newest_generation(), log.newest_claim(), log.look()
    if claim is None:
        return _Known(generation=generation, log=log)
    if claim.checkpoint != str(checkpoint) and not asked.adopt:
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
    return _Known(claim.query_id, history.decided, generation, log)


# --- what is needed -------------------------------------------------------------------------------


def _needed(checkpoint: AnyPath, known: _Known) -> list[Repair]:
    """Return the repairs that rest on the two rules alone; see the module."""
    repairs = [*_identity(checkpoint, known), *_taken_away(checkpoint, known)]
    commit = known.commit
    last = -1 if commit is None else commit.batch
    if commit is not None:
        repairs += _plan_of_decided(checkpoint, commit)
        repairs += _plan_before(checkpoint, known)
        # Those behind a whole one are whole, or nobody reads them.
        newest_first = (
            file for batch, file in reversed(_numbered(checkpoint / "commits")) if batch <= last
        )
        torn = takewhile(lambda file: not _is_entry(file, lines=2), newest_first)
        repairs += [
            Repair(
                file,
                "is torn, and Spark runs its last batch again without it",
                is_bad=partial(_is_torn, lines=2),
            )
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


def _undecided_plans(checkpoint: AnyPath, commit: Commit | None, finished: int) -> list[Repair]:
    """Return the repairs of plans behind the last batch that counts: of torn ones, and of those
    whose input the sources don't know any more.
    """
    lines = 3 if commit is None else 2 + len(commit.offsets)
    repairs: list[Repair] = []
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
            repairs.append(
                Repair(
                    file,
                    "is torn, and its batch is not decided",
                    is_bad=partial(_is_torn, lines=lines),
                )
            )
        elif repairs:
            repairs.append(Repair(file, "was planned behind a batch whose plan is gone"))
        elif _lacks_input(checkpoint, before, _offsets_in(file), is_first=finished < 0):
            repairs.append(
                Repair(file, "is not decided, and a source doesn't know its input any more")
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


def _identity(checkpoint: AnyPath, known: _Known) -> list[Repair]:
    file = checkpoint / "metadata"
    if not file.exists() or _id_in(file) is not None:
        # Where it is missing altogether, somebody may have begun anew on purpose; Spark or the
        # start refuses that.
        return []
    content = json.dumps({"id": known.query_id or str(uuid.uuid4())}, separators=(",", ":"))
    return [
        Repair(
            file,
            "is torn, and holds the query's id",
            content.encode(),
            is_bad=lambda there: _id_in(there) is None,
        )
    ]


def _taken_away(checkpoint: AnyPath, known: _Known) -> list[Repair]:
    """Return the repairs of what a decided batch needs and isn't there, but lies whole in the
    folder of what was set aside: whoever put it there was killed before he saw that it was another
    one by then.
    """
    aside = checkpoint / SET_ASIDE
    there: list[AnyPath] = []
    if aside.is_dir():
        there += sorted(aside.iterdir(), key=str)
    commit = known.commit
    found: dict[AnyPath, AnyPath] = {}
    for each in there:
        name = each.name.rpartition(".")[0]
        place = _needed_there(checkpoint, name, commit)
        if place is None or place.exists():
            continue
        if name == "metadata":
            is_whole = known.query_id is not None and _id_in(each) == known.query_id
        elif name == "state":
            assert commit is not None
            version = str(commit.batch + 1)
            is_whole = any(file.name.partition(".")[0] == version for file in files_below(each))
        else:
            is_whole = _is_entry(each, lines=2, source=True)
        if is_whole:
            found[place] = each
    why = "is missing; somebody has set it aside and was killed before he saw that it was needed"
    return [Repair(place, why, lies_in=each) for place, each in found.items()]


def _needed_there(checkpoint: AnyPath, name: str, commit: Commit | None) -> AnyPath | None:
    """Return the place of what was set aside under a name, where the decided batch needs it."""
    if name == "metadata":
        return checkpoint / name
    if commit is None:
        return None
    if name == "state":
        return checkpoint / name
    kind, _, rest = name.partition(".")
    number, _, entry = rest.partition(".")
    if kind != "sources" or not number.isdecimal() or int(number) >= len(commit.offsets):
        return None
    place = checkpoint / "sources" / number / entry
    last = _log_offset(commit.offsets[int(number)])
    return place if last is not None and 0 <= _log_number(place) <= last else None


def _plan_of_decided(checkpoint: AnyPath, commit: Commit) -> list[Repair]:
    file = checkpoint / "offsets" / str(commit.batch)
    if file.exists():

        def is_bad(there: AnyPath) -> bool:
            return _offsets_in(there) != commit.offsets and _is_torn(
                there, lines=2 + len(commit.offsets)
            )

        if not is_bad(file):
            return []
        why = f"is torn, though batch {commit.batch} is decided"
        return [Repair(file, why, _plan(checkpoint, commit), is_bad=is_bad)]
    if not _leads_up_to(checkpoint, commit):
        # No loss of power: the checkpoint was restored, edited or mixed. Spark can't run this batch
        # here, and the start refuses the one that it asks for.
        return []
    return [
        Repair(
            file, f"is missing, though batch {commit.batch} is decided", _plan(checkpoint, commit)
        )
    ]


def _plan_before(checkpoint: AnyPath, known: _Known) -> list[Repair]:
    """Return the repair of the plan before the last decided one, behind which Spark begins: where
    it isn't there, but its decision is. It has been set aside by somebody who stood still since
    that was right, and was killed before he saw that it wasn't any more.
    """
    assert known.decided is not None
    assert known.log is not None
    batch = known.decided.commit.batch
    file = checkpoint / "offsets" / str(batch - 1)
    if batch == 0 or file.exists() or not (checkpoint / "offsets" / str(batch)).exists():
        return []
    before = _decided_before(known.log, known.decided)
    if before is None or not before.header:
        return []
    return [
        Repair(file, f"is missing, though batch {batch - 1} is decided", _plan(checkpoint, before))
    ]


def _decided_before(log: CommitLog, decided: Decided) -> Commit | None:
    """Return the decision of the batch before, where the log still has it."""
    for generation in range(decided.generation, log.oldest_generation() - 1, -1):
        for _, entry in reversed(log.entries(generation)):
            if isinstance(entry, Commit) and entry.batch < decided.commit.batch:
                return entry if entry.batch == decided.commit.batch - 1 else None
    return None


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


def _state_of_nothing(checkpoint: AnyPath) -> list[Repair]:
    """Return the repairs of state where no batch is decided or finished; Spark begins anew with
    none, or runs its first batch again.
    """
    state = checkpoint / "state"
    if not any(_is_entry(file, lines=3) for _, file in _numbered(checkpoint / "offsets")):
        return (
            [Repair(state, "belongs to a batch that is not planned any more")]
            if spark_checkpoint.keeps_state(checkpoint)
            else []
        )
    return [
        Repair(file, "is empty, and no batch is decided", is_bad=lambda there: not _size(there))
        for file in files_below(state)
        if not _size(file)
    ]


def _source_logs(checkpoint: AnyPath, commit: Commit | None, *, is_new: bool) -> list[Repair]:
    """Return the torn entries of sources that no decided batch can have used, nor one that a
    plain query has finished.
    """
    repairs = []
    for number, folder in _numbered(checkpoint / "sources"):
        last = -1 if is_new else _last_log_offset(commit, number)
        repairs += [
            Repair(
                file,
                "is torn, and no decided batch has read it",
                is_bad=partial(_is_torn, lines=2, source=True),
            )
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


def _planned_anew(checkpoint: AnyPath, known: _Known) -> list[Repair]:
    """Return the repairs of plans that are whole, and not the decided ones; what is planned
    behind them goes with them.
    """
    commit = known.commit
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
        Repair(later, f"was planned behind a batch {commit.batch} that is not the decided one")
        for batch, later in _numbered(checkpoint / "offsets")
        if batch > commit.batch
    ]
    why = f"has other offsets than were decided for batch {commit.batch}"
    return [
        *behind,
        Repair(
            file,
            why,
            _plan(checkpoint, commit),
            is_bad=lambda there: _offsets_in(there) != commit.offsets,
        ),
    ]


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


def _is_torn(file: AnyPath, *, lines: int, source: bool = False) -> bool:
    return not _is_entry(file, lines=lines, source=source)


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
