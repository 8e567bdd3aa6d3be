"""What a loss of power took from Spark's part of a checkpoint, or a run that was replaced has
written over, and how each of it is put back; see ``mending`` for the rules.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from onceforall.commit_log import CommitLog
from onceforall.errors import CheckpointMismatchError
from onceforall.protocol.entries import Commit
from onceforall.protocol.history import Decided
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import AnyPath, RemotePath, files_below
from onceforall.spark.repairs import (
    Repair,
    SetAside,
    keeps_no_torn_file,
    set_aside_under,
    state_version,
)

__all__ = ["Known", "id_in", "needed", "planned_anew"]

# The folders of a file, and its own name, which may end like this.
_NAME = re.compile(
    r"(?:(.*?)\.)?([^.]+(?:\.(?:compact|delta|snapshot|zip|changelog|sst|log))?)", re.DOTALL
)


@dataclass(frozen=True)
class Known:
    """What the commit log says."""

    query_id: str | None = None
    """By the newest claim; None: no run has ever claimed here, so that nothing is decided, and
    nothing was written."""
    decided: Decided | None = None
    generation: int | None = None
    """The newest that was claimed before all else was looked at."""
    log: CommitLog | None = None
    was_cut_off: bool = False
    """Nothing is decided, and a run claimed before this machine was started, or on another one, or
    nobody knows where it ran, for it never claimed: what Spark had written and nobody had synced
    may be torn, in ways that can't be told from the file. It is looked for by hand only."""
    by_hand: bool = False
    """By a command before which the query was stopped."""

    @property
    def commit(self) -> Commit | None:
        """The last decision."""
        return None if self.decided is None else self.decided.commit


def needed(checkpoint: AnyPath, known: Known) -> list[Repair]:
    """Return the repairs that rest on the two rules alone; see ``mending``.

    Args:
        checkpoint: its folder.
        known: what the commit log says.
    """
    repairs = [*_identity(checkpoint, known), *_taken_away(checkpoint, known)]
    commit = known.commit
    last = -1 if commit is None else commit.batch
    plan: list[Repair] = []
    if commit is not None:
        plan = _plan_of_decided(checkpoint, commit)
        repairs += [*plan, *_plan_before(checkpoint, known, will_be_there=bool(plan))]
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
    behind = (
        commit.offsets
        if commit is not None and last == finished
        else _offsets_in(checkpoint / "offsets" / str(finished))
    )
    repairs += _undecided_plans(checkpoint, commit, finished, behind)
    if not keeps_no_torn_file(checkpoint):
        if commit is not None and last == finished:
            repairs += _plans_behind_unfinished(checkpoint, commit, is_put_back=bool(plan))
        repairs += _source_logs(checkpoint, behind, is_new=is_new)
        # Before the first claim state may be that of a start which is alive, and it would bear no
        # generation by which it came back.
        if is_new and (known.generation is not None or known.by_hand):
            going = {each.path for each in repairs}
            repairs += _state_of_nothing(checkpoint, going, cut_off=known.was_cut_off)
    return repairs


def _undecided_plans(
    checkpoint: AnyPath, commit: Commit | None, finished: int, before: Sequence[str]
) -> list[Repair]:
    """Return the repairs of plans behind the last batch that counts, and the offsets that it has
    reached: of torn ones, and of those whose input the sources don't know any more.
    """
    lines = 3 if commit is None else 2 + len(commit.offsets)
    repairs: list[Repair] = []
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


def _plans_behind_unfinished(
    checkpoint: AnyPath, commit: Commit, *, is_put_back: bool
) -> list[Repair]:
    """Return the repairs of plans behind the last decided batch whose entry in Spark's commit log
    was lost: Spark would go on behind it all the same. State of format 2 it would not find then,
    for that entry names its files; without these plans it runs the decided batch again.

    Args:
        checkpoint: its folder.
        commit: the last decision.
        is_put_back: its plan is, before. One that says something else is the command's affair.
    """
    last = commit.batch
    entry = checkpoint / "commits" / str(last)
    # Plans first: a run that is alive writes the entry before it plans the next batch.
    behind = [file for batch, file in _numbered(checkpoint / "offsets") if batch > last]
    is_there = is_put_back or _offsets_in(checkpoint / "offsets" / str(last)) == commit.offsets
    if not (behind and is_there) or _is_entry(entry, lines=2):
        return []
    versions = (
        each for each in files_below(checkpoint / "state") if state_version(each) == last + 1
    )
    if not any("_" in each.name for each in versions):
        return []
    why = f"was planned behind batch {last}, whose entry in commits is gone, and is not decided"
    return [Repair(file, why, is_bad=lambda _: not _is_entry(entry, lines=2)) for file in behind]


def _lacks_input(
    checkpoint: AnyPath, before: Sequence[str], planned: Sequence[str], *, is_first: bool
) -> bool:
    for source, line in enumerate(planned):
        if line == "-":
            # Nothing of it is in there: of a source that has nothing yet.
            continue
        folder = checkpoint / "sources" / str(source)
        there = files_below(folder)
        entries = _entries_of(folder, there)
        whole = [file for file in entries if not _is_torn_entry(file)]
        others = (file for file in there if file not in entries)
        upto = _log_offset(line)
        if is_first and folder.is_dir() and not whole and all(map(_is_blank, others)):
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
    except (FileNotFoundError, UnicodeDecodeError):
        return ()


def _identity(checkpoint: AnyPath, known: Known) -> list[Repair]:
    file = checkpoint / "metadata"
    there = file.exists()
    if there and id_in(file) is not None:
        return []
    if not there and (known.query_id is None or not set_aside_under(checkpoint, "metadata")):
        # Where it is missing altogether, somebody may have begun anew on purpose; Spark or the
        # start refuses that.
        return []
    content = json.dumps({"id": known.query_id or str(uuid.uuid4())}, separators=(",", ":"))
    return [
        Repair(
            file,
            f"is {'torn' if there else 'missing, and was set aside'}, and holds the query's id",
            content.encode(),
            is_bad=lambda there: id_in(there) is None,
        )
    ]


def _taken_away(checkpoint: AnyPath, known: Known) -> list[Repair]:
    """Return the repairs of what a decided batch needs and isn't there, but lies whole in the
    folder of what was set aside: whoever put it there was killed before he saw that it was another
    one by then.
    """
    commit = known.commit
    repairs = []
    why = "is missing; somebody has set it aside and was killed before he saw that it was needed"
    for each in set_aside_under(checkpoint):
        place = _needed_there(checkpoint, each, commit)
        if place is None:
            continue
        assert commit is not None
        assert known.decided is not None
        if each.name == "state":
            is_whole = _completes_state(each.path, place, commit.batch + 1)
        elif each.name.startswith("state."):
            is_whole = not place.exists() and _size(each.path) > 0
        else:
            is_whole = not place.exists() and not _is_torn_entry(each.path)
        # Who had claimed before it was judged may have been alive, and have decided since.
        of_that_run = each.generation == known.decided.generation
        if is_whole and (of_that_run or not each.was_looked_at):
            repairs.append(Repair(place, why, lies_in=each.path))
    return repairs


def _completes_state(taken: AnyPath, place: AnyPath, newest: int) -> bool:
    """Tell whether state that was set aside, together with what is there, is that of a decided
    batch, and something of it isn't there: whoever was laying it back may have been killed, too.
    """
    files = files_below(taken)
    return any(
        state_version(file) <= newest and not _at(place, file, taken).exists() for file in files
    ) and any(state_version(file) == newest for file in [*files, *files_below(place)])


def _at(place: AnyPath, file: AnyPath, folder: AnyPath) -> AnyPath:
    """Return where a file of a folder lies in another place of that folder."""
    return place / str(file).removeprefix(f"{folder}/")


def _needed_there(checkpoint: AnyPath, taken: SetAside, commit: Commit | None) -> AnyPath | None:
    """Return the place of what was set aside, where the decided batch may need it."""
    kind, _, rest = taken.name.partition(".")
    if commit is None or kind not in {"sources", "state"}:
        return None
    place = _place_of(checkpoint, taken.name)
    if place is None:
        return None
    if kind == "state":
        # One file was taken for empty. A query that keeps no state by now needs none.
        is_needed = not rest or (
            (checkpoint / kind).is_dir() and state_version(place) <= commit.batch + 1
        )
        return place if is_needed else None
    number = rest.partition(".")[0]
    if not number.isdecimal() or int(number) >= len(commit.offsets):
        return None
    last = _log_offset(commit.offsets[int(number)])
    if last is None or place.parent != checkpoint / kind / number:
        # In a form of the source's own: what is whole was taken away wrongly.
        return None if taken.was_looked_at else place
    return place if 0 <= _log_number(place) <= last else None


def _place_of(checkpoint: AnyPath, name: str) -> AnyPath | None:
    """Return where something lay whose name has dots for slashes; None: it bears no such name, or
    its folders are gone.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    place = checkpoint
    for part in (*(found[1] or "").split("."), found[2]):
        place = place / part if part else place
    # On a store there are no folders.
    return place if isinstance(place, RemotePath) or place.parent.parent.is_dir() else None


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
    if not _leads_up_to(checkpoint, commit) and not set_aside_under(
        checkpoint, f"offsets/{commit.batch}"
    ):
        # No loss of power: the checkpoint was restored, edited or mixed. Spark can't run this batch
        # here, and the start refuses the one that it asks for.
        return []
    return [
        Repair(
            file, f"is missing, though batch {commit.batch} is decided", _plan(checkpoint, commit)
        )
    ]


def _plan_before(checkpoint: AnyPath, known: Known, *, will_be_there: bool) -> list[Repair]:
    """Return the repair of the plan before the last decided one, behind which Spark begins: where
    it isn't there, but its decision is. It has been set aside by somebody who stood still since
    that was right, and was killed before he saw that it wasn't any more.
    """
    assert known.decided is not None
    assert known.log is not None
    batch = known.decided.commit.batch
    file = checkpoint / "offsets" / str(batch - 1)
    is_there = will_be_there or (checkpoint / "offsets" / str(batch)).exists()
    if batch == 0 or file.exists() or not is_there:
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
        _has_source_log(checkpoint / "sources" / str(n), _last_log_offset(commit.offsets, n))
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


def _state_of_nothing(
    checkpoint: AnyPath, going: Collection[AnyPath], *, cut_off: bool
) -> list[Repair]:
    """Return the repairs of state where no batch is decided or finished; Spark begins anew with
    none, or runs its first batch again.

    Args:
        checkpoint: its folder.
        going: what is set aside before.
        cut_off: whoever wrote it is gone, by a loss of power perhaps: any of it may be torn.
    """
    state = checkpoint / "state"
    rightly = [
        Repair(state, "belongs to no batch that is decided", lies_in=each.path, stays=True)
        for each in set_aside_under(checkpoint, "state")
        if not each.was_looked_at and not state.exists()
    ]
    if not spark_checkpoint.keeps_state(checkpoint):
        return rightly
    if not any(
        file not in going and _is_entry(file, lines=3)
        for _, file in _numbered(checkpoint / "offsets")
    ):
        return [*rightly, Repair(state, "belongs to a batch that is not planned any more")]
    if cut_off:
        why = "was written before the machine was started, and no batch is decided"
        return [*rightly, Repair(state, why)]
    empty = (file for file in files_below(state) if not _size(file))
    why = "is empty, and no batch is decided"
    return [*rightly, *(Repair(each, why, is_bad=lambda there: not _size(there)) for each in empty)]


def _source_logs(checkpoint: AnyPath, behind: Sequence[str], *, is_new: bool) -> list[Repair]:
    """Return the torn entries of sources that no decided batch can have used, nor one that a
    plain query has finished.

    Args:
        checkpoint: its folder.
        behind: the offsets that the last of these batches has reached.
        is_new: there is none.
    """
    repairs = []
    for number, folder in _numbered(checkpoint / "sources"):
        there = files_below(folder)
        entries = _entries_of(folder, there)
        last = -1 if is_new else _last_log_offset(behind, number)
        torn = [
            file
            for file in entries
            if last is not None and _log_number(file) > last and _is_torn_entry(file)
        ]
        if is_new:
            # In a form of the source's own, where only this can be told.
            others = (file for file in there if file not in entries and file.name.isdecimal())
            torn += [file for file in others if _is_blank(file)]
        repairs += [
            Repair(file, "is torn, and no decided batch has read it", is_bad=_is_torn_entry)
            for file in torn
        ]
    return repairs


def _last_log_offset(behind: Sequence[str], source: int) -> int | None:
    """Return up to where a source's own log is in use, by its offsets; None: that can't be known,
    and nothing of it is touched.
    """
    return _log_offset(behind[source]) if source < len(behind) else None


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


def planned_anew(checkpoint: AnyPath, known: Known) -> list[Repair]:
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


def id_in(file: AnyPath) -> str | None:
    """Return the query's id in Spark's file ``metadata``; None: it isn't there, or has none.

    Raises:
        OSError: it can't be read.
    """
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
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
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    # Spark writes a zero byte in front of a Kafka source's first offsets.
    found = spark_checkpoint.lines_of(text.removeprefix("\0") if source else text)
    return (
        len(found) >= lines
        and found[0].startswith("v")
        and all(_is_line(line) for line in (found[-1:] if source else found[1:]))
    )


def _entries_of(folder: AnyPath, files: Collection[AnyPath]) -> list[AnyPath]:
    """Return of a source's files the entries of its own log, as Spark's sources keep one; another
    source may keep anything, in folders of its own.
    """
    return [
        file
        for file in files
        if file.parent == folder and file.name.removesuffix(".compact").isdecimal()
    ]


def _is_torn_entry(file: AnyPath) -> bool:
    """Tell whether an entry of a source's log is surely damaged: a loss of power leaves nothing, or
    zeros, or a part of what Spark writes. What doesn't begin as that does is in a form of the
    source's own, and nobody can tell.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return True
    if not content.strip(b"\0"):
        return True
    is_sparks = content.removeprefix(b"\0").startswith(b"v")
    return is_sparks and not _is_entry(file, lines=2, source=True)


def _is_blank(file: AnyPath) -> bool:
    try:
        return not file.read_bytes().strip(b"\0")
    except FileNotFoundError:
        return True


def _is_torn(file: AnyPath, *, lines: int) -> bool:
    return not _is_entry(file, lines=lines)


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
