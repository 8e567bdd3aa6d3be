"""Which shards are read when: a child after its parents. Pure.

A stream's shards split and merge; each names its one or two parents. A query begins with some
shards, and from then on only descendants of these come into its positions: a child when each parent
that the query reads is closed and was read to its end in an earlier batch. Then rows with one
partition key stay in order over batches. A closed parent stays in the positions until all its
children are there, so a restart finds them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from onceforall.sources.kinesis.positions import Position


@dataclass(frozen=True)
class Shard:
    """A shard, as ListShards tells it.

    Attributes:
        name: its id.
        parents: the ids of the shards that it came from; some may be listed no more.
        is_open: it takes records.
    """

    name: str
    parents: tuple[str, ...]
    is_open: bool


def roots(listed: Mapping[str, Shard]) -> list[str]:
    """Return the shards whose parents are listed no more, or which have none."""
    return [shard.name for shard in listed.values() if not set(shard.parents) & set(listed)]


def ancestors(listed: Mapping[str, Shard], of: Iterable[str]) -> set[str]:
    """Return all listed shards that some shards came from."""
    found: set[str] = set()
    waiting = list(of)
    while waiting:
        shard = listed.get(waiting.pop())
        for parent in shard.parents if shard is not None else ():
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def inherited(parents: Collection[Position]) -> Position:
    """Return where the child of closed shards begins."""
    untouched = [p for p in parents if p.after is None and p.timestamp is not None]
    times = [p.time for p in parents if p.time is not None]
    return Position(
        # Nothing of the time asked for was in the parents: the child may begin with older records.
        timestamp=untouched[0].timestamp if len(untouched) == len(parents) else None,
        time=max(times, default=None),
    )


def advance(
    positions: Mapping[str, Position], listed: Mapping[str, Shard], read_now: Collection[str]
) -> dict[str, Position]:
    """Return the positions with the children that may begin, and without the parents that aren't
    needed any more.

    Args:
        positions: where each shard is.
        listed: the stream's shards.
        read_now: shards of which the batch being planned has records: their children wait for the
            next one.
    """
    found = dict(positions)
    for child in listed.values():
        parents = [name for name in child.parents if name in positions]
        if not parents or child.name in positions:
            continue
        to_come = [
            name
            for name in child.parents
            if name not in positions and ancestors(listed, [name]) & set(positions)
        ]
        if not to_come and all(positions[name].closed and name not in read_now for name in parents):
            found[child.name] = inherited([positions[name] for name in parents])
    for name, position in positions.items():
        children = [child.name for child in listed.values() if name in child.parents]
        if position.closed and children and all(child in found for child in children):
            del found[name]
    return found


def gaps(positions: Mapping[str, Position], listed: Mapping[str, Shard]) -> list[str]:
    """Return the closed shards behind which a shard is gone that wasn't read: one of the two that
    it was split into, or what came between the shards that are read and another parent of its
    child. What descends from such a shard is reached from no position.
    """
    found = []
    for name, position in positions.items():
        children = [child for child in listed.values() if name in child.parents]
        if not position.closed or not children:
            continue
        unreached = [
            parent
            for child in children
            for parent in child.parents
            if parent in listed
            and parent not in positions
            and not ancestors(listed, [parent]) & set(positions)
        ]
        # A split makes two shards, and a merge one of two parents.
        if unreached or (len(children) == 1 and len(children[0].parents) == 1):
            found.append(name)
    return found


def orphans(positions: Mapping[str, Position], listed: Mapping[str, Shard]) -> list[str]:
    """Return the shards that come after shards of which everything is gone: not read yet, not
    descended from any that is read, and not what any that is read came from.
    """
    known = set(positions) | ancestors(listed, positions)
    return [
        name
        for name in listed
        if name not in known
        and not ancestors(listed, [name]) & set(positions)
        and not any(parent in listed and parent not in known for parent in listed[name].parents)
    ]
