"""What of a decided batch is written again when some of its prepared transactions are gone, and
when that may be decided.

Pure. Theory: what is lost is known by *what it wrote*, not by its place. Spark numbers the tasks of
a replay as it likes (its Kafka source gives the partitions of a replayed batch in another order
than at first), while the digest of a task says which rows it has. The ways back are in ``Way``.

A match stands on digests: a number of rows, and a sum of 64-bit hashes. Tasks of equal digest hold
the same rows and are interchangeable. Lost rows that the replay has split or merged are a set of
replayed tasks with that number of rows and that sum; it is searched for among ``2**24`` sets at the
most, so a wrong one is found with a chance of 2^-40. The redo's COMMIT stands in the new run's
chain and replaces the old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import Any

from onceforall.protocol.entries import Commit, Committable, Digest, total
from onceforall.protocol.events import Lost
from onceforall.protocol.names import parse_name

Task = tuple[int, int]
"""The ordinal of a write in its batch, and Spark's partition number."""

NO_ROWS = Digest(0, 0)

SHARED = "shared"
"""The key of a committable under which a sink says something for several of a batch."""

_NAMED_AT_MOST = 5
_SEARCHED_AT_MOST = 24


class Way(Enum):
    """How the rows of lost transactions come back.

    ``KEPT``: they were kept beside the log, and are written as they were.

    ``WHOLE``: every transaction of the decision is lost, on every sink. Nothing of it was ever
    visible, so the batch is written as one that was never
    decided: any replay will do, under a new decision with its own digests.

    ``MATCHED``: a part is lost, and the rest is visible. The batch first runs without writing, for
    its digests; lost and replayed tasks are matched, and exactly the matched ones write. Each must
    then show the digest that it had when it was looked at.

    ``ALL_AGAIN`` and ``GIVEN_UP``: a part is lost and no match exists; a person has chosen for this
    batch that each write with a loss is written whole from the replay (what is visible of it is
    then there twice), or that the lost rows are given up.
    """

    KEPT = "kept"
    WHOLE = "whole"
    MATCHED = "matched"
    ALL_AGAIN = "writeAll"
    GIVEN_UP = "giveUp"


UNSEEN = "giveUpUnseen"

CHOICES = {
    Way.ALL_AGAIN.value: Way.ALL_AGAIN,
    Way.GIVEN_UP.value: Way.GIVEN_UP,
    UNSEEN: Way.GIVEN_UP,
}
"""What a person can choose, by the word of the option ``onceforall.lostRows``; ``UNSEEN`` gives
up without looking at a replay."""

_REASON_AT_MOST = 500


@dataclass(frozen=True)
class Plan:
    """Which tasks of a replay write, and what the new decision says of them.

    Attributes:
        tasks: those that write, with the digest that each showed when it was looked at.
        places: under which number the new decision knows each of them in its write.
        digests: of the new decision, per write: each task under its number there.
    """

    tasks: Mapping[Task, Digest]
    places: Mapping[Task, int]
    digests: Mapping[str, tuple[Digest, ...]]


@dataclass(frozen=True)
class Redo:
    """The lost transactions of a decided batch.

    Attributes:
        lost: per sink.
        stayed: sink and name of each transaction of the decision that is not lost.
        way: how their rows come back.
        plan: which tasks write; None: not known yet, or all (``WHOLE``), or none (``KEPT``,
            ``GIVEN_UP``).
        reason: why a person had to choose.
    """

    lost: Mapping[str, tuple[Committable, ...]]
    stayed: frozenset[tuple[str, str]]
    way: Way
    plan: Plan | None = None
    reason: str = ""


def task_of(committable: Committable) -> Task:
    """Return which task prepared it, as the decision that names it counts tasks."""
    write, partition = committable["task"]
    return int(write), int(partition)


def redo_of(lost: Iterable[Lost], commit: Commit, *, use_kept: bool, stateful: bool) -> Redo | None:
    """Return what must be written again, and how.

    Args:
        lost: the lost transactions.
        commit: the decision that names them.
        use_kept: write kept rows, where those of each lost transaction were kept.
        stateful: the query keeps state. State must come from the run that gives the rows, where
            there is a choice.

    Returns:
        None when it can't be known what to write: a part is lost, and an earlier release did not
        record which task's it is. Where the rows of some were kept, those alone: the next start
        finds the others lost, beside a decision that is whole but for them.
    """
    lost = list(lost)
    by_sink, stayed = _parted(lost, commit)
    every = [c for cs in by_sink.values() for c in cs]
    kept = [
        each
        for each in lost
        if use_kept and "rows" in each.committable and "task" in each.committable
    ]
    if not stayed and (stateful or len(kept) < len(every)):
        return Redo(by_sink, stayed, Way.WHOLE)
    if kept:
        return Redo(*_parted(kept, commit), Way.KEPT)
    return Redo(by_sink, stayed, Way.MATCHED) if all("task" in c for c in every) else None


def given_up_of(lost: Iterable[Lost], commit: Commit, reason: str) -> Redo:
    """Return that the lost transactions are given up."""
    return Redo(*_parted(lost, commit), Way.GIVEN_UP, reason=reason)


def _parted(
    lost: Iterable[Lost], commit: Commit
) -> tuple[Mapping[str, tuple[Committable, ...]], frozenset[tuple[str, str]]]:
    by_sink: dict[str, tuple[Committable, ...]] = {}
    for each in lost:
        by_sink[each.sink] = (*by_sink.get(each.sink, ()), each.committable)
    gone = {(sink, str(c["name"])) for sink, cs in by_sink.items() for c in cs}
    return by_sink, frozenset(
        (sink, str(c["name"])) for sink, cs in commit.committables.items() for c in cs
    ) - gone


def matched(commit: Commit, redo: Redo, again: Mapping[str, tuple[Digest, ...]]) -> Plan | None:
    """Match the lost tasks with those of a replay.

    Args:
        commit: the decision.
        redo: what of it is lost.
        again: the digests of the replay, per write, by partition number.

    Returns:
        None when there is no match for the lost rows of some write.
    """
    tasks: dict[Task, Digest] = {}
    places: dict[Task, int] = {}
    digests = dict(commit.digests)
    for key, write, gone in _lost_places(redo):
        decided, replayed = commit.digests.get(key, ()), again.get(key, ())
        found = _match(decided, gone, replayed)
        if found is None:
            return None
        table = list(decided)
        for partition, place in found.items():
            digest = _at(replayed, partition)
            if place is None:
                place = len(table)  # noqa: PLW2901  the rows are divided otherwise: a number of its own
                table.append(digest)
            tasks[write, partition], places[write, partition] = digest, place
        for place in set(gone) - set(found.values()):
            table[place] = NO_ROWS
        digests[key] = tuple(table)
    return Plan(tasks, places, digests)


def all_again(commit: Commit, redo: Redo, again: Mapping[str, tuple[Digest, ...]]) -> Plan:
    """Plan that each write which has lost something is written whole, beside what is visible of
    it.
    """
    tasks: dict[Task, Digest] = {}
    places: dict[Task, int] = {}
    digests = dict(commit.digests)
    for key, write, gone in _lost_places(redo):
        decided, replayed = commit.digests.get(key, ()), again.get(key, ())
        for partition in range(max(1, len(replayed))):
            tasks[write, partition] = _at(replayed, partition)
            places[write, partition] = len(decided) + partition
        digests[key] = (*_without(decided, gone), *replayed)
    return Plan(tasks, places, digests)


def misplaced(commit: Commit, redo: Redo, again: Mapping[str, tuple[Digest, ...]]) -> list[str]:
    """Return the writes with a loss that the replay doesn't have, or has under another number:
    nothing of it can stand for them.
    """
    return [key for key, _, _ in _lost_places(redo) if commit.digests.get(key) and key not in again]


def _without(digests: Sequence[Digest], gone: Sequence[int]) -> tuple[Digest, ...]:
    return tuple(NO_ROWS if place in gone else digest for place, digest in enumerate(digests))


def _lost_places(redo: Redo) -> list[tuple[str, int, list[int]]]:
    """Return, for each write that has lost something, its name among the digests, its ordinal,
    and which of its tasks are lost.
    """
    found: dict[tuple[str, int], list[int]] = {}
    for sink, committables in sorted(redo.lost.items()):
        for committable in committables:
            write, partition = task_of(committable)
            found.setdefault((sink, write), []).append(partition)
    return [
        (f"{sink}/{write}", write, sorted(partitions))
        for (sink, write), partitions in found.items()
    ]


def _at(digests: Sequence[Digest], place: int) -> Digest:
    """Return a task's digest.

    A write without any partition has none, and its empty transaction is the driver's.
    """
    return digests[place] if place < len(digests) else NO_ROWS


def _match(
    decided: Sequence[Digest], gone: Sequence[int], replayed: Sequence[Digest]
) -> dict[int, int | None] | None:
    """Return which replayed tasks stand for the lost ones: each with the lost one's place, or
    with None where they do so together.
    """
    by_digest: dict[Digest, list[int]] = {}
    for partition in reversed(range(len(replayed))):
        by_digest.setdefault(replayed[partition], []).append(partition)
    found: dict[int, int | None] = {}
    without: list[int] = []
    for place in gone:
        digest = _at(decided, place)
        same = by_digest.get(digest, [])
        if digest == NO_ROWS:
            # Nobody but the driver opens a transaction without rows, as that of task 0.
            if place != 0 or _at(replayed, 0) != NO_ROWS:
                return None
            found[0] = 0
        elif same:
            found[same.pop()] = place
        else:
            without.append(place)
    if not without:
        return found
    together = _together(decided, set(gone), without, replayed, set(found))
    if together is not None:
        return {**found, **dict.fromkeys(together)}
    # A lost task may have been merged with another one while one that is visible has the very rows
    # of it: then they come together only.
    every = [place for place in gone if _at(decided, place) != NO_ROWS]
    empty = {0: 0} if len(every) < len(gone) else {}
    together = _together(decided, set(gone), every, replayed, set(empty))
    return None if together is None else {**empty, **dict.fromkeys(together)}


def _together(
    decided: Sequence[Digest],
    gone: set[int],
    wanted: Sequence[int],
    replayed: Sequence[Digest],
    taken: set[int],
) -> list[int] | None:
    """Return replayed tasks, none that is taken or stands for a visible one, that hold the
    wanted ones' rows together.
    """
    visible = Counter(digest for place, digest in enumerate(decided) if place not in gone)
    candidates = []
    for partition in range(len(replayed)):
        digest = replayed[partition]
        if partition in taken or digest == NO_ROWS:
            continue
        if visible[digest]:
            visible[digest] -= 1
            continue
        candidates.append((partition, digest))
    return _with_total(candidates, total(tuple(decided[place] for place in wanted)))


def _with_total(candidates: Sequence[tuple[int, Digest]], wanted: Digest) -> list[int] | None:
    """Return those of the candidates that have this total together: neighbours, or any where
    they are few.
    """
    before = {NO_ROWS: 0}
    for end, reached in enumerate(accumulate((d for _, d in candidates), _plus), start=1):
        start = before.get(_minus(reached, wanted))
        if start is not None:
            return [partition for partition, _ in candidates[start:end]]
        before[reached] = end
    if len(candidates) > _SEARCHED_AT_MOST:
        return None
    half = len(candidates) // 2
    sums = _sums(candidates[:half])
    for reached, second in _sums(candidates[half:]).items():
        first = sums.get(_minus(wanted, reached))
        if first is not None:
            return [*first, *second]
    return None


def _sums(candidates: Sequence[tuple[int, Digest]]) -> dict[Digest, tuple[int, ...]]:
    """Return all totals of some of these, each with whose it is."""
    found: dict[Digest, tuple[int, ...]] = {NO_ROWS: ()}
    for partition, digest in candidates:
        found |= {_plus(reached, digest): (*of, partition) for reached, of in found.items()}
    return found


def _plus(one: Digest, other: Digest) -> Digest:
    return Digest(one.rows + other.rows, (one.hash_sum + other.hash_sum) % 2**64)


def _minus(one: Digest, other: Digest) -> Digest:
    return Digest(one.rows - other.rows, (one.hash_sum - other.hash_sum) % 2**64)


def merged(
    commit: Commit,
    redo: Redo,
    again: Mapping[str, tuple[Committable, ...]],
    digests: Mapping[str, tuple[Digest, ...]],
) -> Commit:
    """Return the decision that replaces ``commit``: new transactions in the place of the lost ones.

    Args:
        commit: the decision so far.
        redo: what of it is written again.
        again: what was prepared for that.
        digests: of the run that prepared it.
    """
    if redo.way is Way.WHOLE:
        return replace(commit, committables=again, digests=digests)
    plan = all_again(commit, redo, digests) if redo.way is Way.ALL_AGAIN else redo.plan
    committables = {}
    for sink in sorted({*commit.committables, *again}):
        stay = tuple(
            c for c in commit.committables.get(sink, ()) if (sink, str(c["name"])) in redo.stayed
        )
        stay = _with_shared(redo.lost.get(sink, ()), stay)
        committables[sink] = stay + tuple(_placed(c, plan) for c in again.get(sink, ()))
    return replace(
        commit, committables=committables, digests=commit.digests if plan is None else plan.digests
    )


def _with_shared(
    lost: Iterable[Committable], stay: tuple[Committable, ...]
) -> tuple[Committable, ...]:
    """Hand on what lost transactions said under ``shared`` and none that stays does; ``sink``
    has the rule.
    """
    said = {key for c in stay for key in c.get(SHARED, {})}
    only_there = {
        key: value
        for gone in lost
        for key, value in gone.get(SHARED, {}).items()
        if key not in said
    }
    if not stay or not only_there:
        return stay
    return ({**stay[0], SHARED: {**stay[0].get(SHARED, {}), **only_there}}, *stay[1:])


def _placed(committable: Committable, plan: Plan | None) -> Committable:
    """Return it with the number under which the new decision knows its task."""
    if plan is None:
        return committable
    write, partition = task_of(committable)
    return {**committable, "task": [write, plan.places[write, partition]]}


def given_up(commit: Commit, redo: Redo) -> Commit:
    """Return the decision that replaces ``commit`` when the lost rows are given up.

    What only a lost transaction of a write says, and none of its run that stays, is the whole
    write's (``sink`` has the rule): the first of these takes it over. Another run's may mean
    something else by the same key: it may have had another format.
    """
    placed = replace(
        redo, lost={sink: tuple(c for c in cs if "task" in c) for sink, cs in redo.lost.items()}
    )
    digests = {
        key: _without(commit.digests.get(key, ()), gone) for key, _, gone in _lost_places(placed)
    }
    left = merged(replace(commit, digests={**commit.digests, **digests}), redo, {}, {})
    return replace(
        left,
        committables={
            sink: _handed_on(redo.lost.get(sink, ()), cs) for sink, cs in left.committables.items()
        },
    )


def _handed_on(lost: Iterable[Committable], stay: Sequence[Committable]) -> tuple[Committable, ...]:
    taken = list(stay)
    for gone in lost:
        heirs = [at for at, c in enumerate(taken) if _run_and_write(c) == _run_and_write(gone)]
        if heirs:
            said = {key for at in heirs for key in taken[at]}
            only_there = {
                key: value for key, value in gone.items() if key not in said | {"rows", SHARED}
            }
            taken[heirs[0]] = {**taken[heirs[0]], **only_there}
    return tuple(taken)


def _run_and_write(committable: Committable) -> tuple[int | None, int | None]:
    name = parse_name(str(committable["name"]))
    return None if name is None else name.generation, committable.get("task", (None,))[0]


def record(commit: Commit, redo: Redo, start: tuple[str, ...]) -> dict[str, Any]:
    """Return what stays on record of a person's choice for rows that were lost.

    Args:
        commit: the decision of which they are a part.
        redo: what is lost, and what was chosen.
        start: where the batch's input begins, as Spark's offset log says; empty: at the query's
            beginning.
    """
    tasks, rows = [], 0
    for sink, committables in sorted(redo.lost.items()):
        for committable in committables:
            write, partition = task_of(committable) if "task" in committable else (None, None)
            digests = commit.digests.get(f"{sink}/{write}", ())
            lost_rows = (
                digests[partition].rows
                if partition is not None and partition < len(digests)
                else None
            )
            tasks.append(
                {
                    "sink": sink,
                    "name": str(committable["name"]),
                    "task": [write, partition],
                    "rows": lost_rows,
                }
            )
            rows += lost_rows or 0
    visible = (
        sum(
            total(digests).rows
            for key, digests in commit.digests.items()
            if _sink_of(key) in redo.lost
        )
        - rows
    )
    return {
        "batch": commit.batch,
        "choice": redo.way.value,
        "lost": tasks,
        "lost_rows": rows,
        "visible_rows": visible,
        "input": {"from": list(start), "to": list(commit.offsets)},
        "reason": redo.reason[:_REASON_AT_MOST],
    }


def _sink_of(key: str) -> str:
    return key.rpartition("/")[0]


def written_again(
    commit: Commit,
    redo: Redo,
    again: Mapping[str, tuple[Committable, ...]],
    digests: Mapping[str, tuple[Digest, ...]],
    need_no_commit: Collection[str],
) -> str | None:
    """Check that what was planned, and nothing else, was prepared again, with the rows that were
    looked at; return None, or what differs.

    A sink may have prepared transactions when the batch was decided, and need no commit by now: its
    tasks have written the rows where they are seen, and prepared nothing.

    Args:
        commit: the decision of which a part is lost.
        redo: what was to be written.
        again: what was prepared.
        digests: of the run that prepared it; not looked at for kept rows.
        need_no_commit: the sinks of which nobody has to commit anything.
    """
    if redo.way is Way.WHOLE:
        return None
    if redo.way is Way.ALL_AGAIN:
        assert redo.plan is not None
        if set(all_again(commit, redo, digests).tasks) != set(redo.plan.tasks):
            return (
                f"Batch {commit.batch}: the replay has another number of tasks than when it "
                "was looked at."
            )
        return None
    for sink in sorted({*redo.lost, *again}):
        lost = redo.lost.get(sink, ())
        wanted = (
            sorted(task_of(c) for c in lost)
            if redo.plan is None
            else _planned(redo.plan, {task_of(c)[0] for c in lost})
        )
        now = sorted(task_of(c) for c in again.get(sink, ()))
        if sink in need_no_commit:
            wanted = [task for task in wanted if task in now]
        if wanted != now:
            return (
                f"Batch {commit.batch}: sink {sink} was to write the tasks {wanted} again, but "
                f"{now} were written."
            )
    return None


def _planned(plan: Plan, writes: Iterable[int]) -> list[Task]:
    return sorted(task for task in plan.tasks if task[0] in writes)


def changed_since(redo: Redo, digests: Mapping[str, tuple[Digest, ...]]) -> str | None:
    """Return which task that writes has other rows than when it was looked at; None when all
    have the same.
    """
    if redo.plan is None or redo.way is not Way.MATCHED:
        return None
    keys = {write: key for key, write, _ in _lost_places(redo)}
    for (write, partition), looked in sorted(redo.plan.tasks.items()):
        now = _at(digests.get(keys[write], ()), partition)
        if now != looked:
            return (
                f"{keys[write]}: task {partition} had {looked.rows} rows, and at its second run "
                f"{now.rows}" + (" of other content" if looked.rows == now.rows else "")
            )
    return None


def difference(commit: Commit, redo: Redo, again: Mapping[str, tuple[Digest, ...]]) -> str:
    """Say why a replay has no match for what is lost.

    Returns:
        A sentence that says whether only the placement of rows differs or the rows themselves, and
        which lost tasks have no match.
    """
    parts, same_rows = [], True
    for key, _, gone in _lost_places(redo):
        before, after = commit.digests.get(key, ()), again.get(key, ())
        if _match(before, gone, after) is not None:
            continue
        same_rows = same_rows and total(before) == total(after)
        parts.append(
            f"{key}: {len(before)} tasks with {total(before).rows} rows then, {len(after)} with "
            f"{total(after).rows} now"
        )
        parts[-1] += f"; of the lost ones {_unmatched(before, gone, after)} no match"
    if same_rows:
        kind = (
            "The rows are the same, but they are divided among tasks in another way. Start once "
            "with as many cores, the same minPartitions and "
            "shuffle partitions, and the same adaptive settings as then"
        )
    else:
        kind = (
            "The rows themselves differ. Common causes: rand(), current_timestamp(), uuid(), a "
            "lookup in a table that changes, "
            "floating-point sums after a shuffle, changed code. Undo what has changed"
        )
    return f"{kind} ({'; '.join(parts)})"


def _unmatched(before: Sequence[Digest], gone: Sequence[int], after: Sequence[Digest]) -> str:
    without = [place for place in gone if _at(before, place) not in after]
    named = ", ".join(
        f"task {place} ({_at(before, place).rows} rows)" for place in without[:_NAMED_AT_MOST]
    )
    more = f" and {len(without) - _NAMED_AT_MOST} more" if len(without) > _NAMED_AT_MOST else ""
    return (
        f"{named}{more} {'has' if len(without) == 1 else 'have'}"
        if without
        else f"{len(gone)} together have"
    )
