"""Which jobs write a batch: what one of them can write in one pass, and which frames several of
them write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onceforall.errors import SchemaError
from onceforall.sink import TwoPhaseCommitSink
from onceforall.task.projections import Projections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class JobGroup:
    """Writes that one job writes: the same rows, and all rows with equal values of ``keys`` in
    one task (none: wherever they are), as every sink of the group writes these values.
    """

    frame: DataFrame
    keys: tuple[str, ...]
    writes: list[int] = field(default_factory=list)


def groups_of(
    writes: Sequence[tuple[str, DataFrame]],
    sinks: Mapping[str, TwoPhaseCommitSink],
    batch: DataFrame,
    projections: Projections,
) -> list[JobGroup]:
    """Return the writes by what one job can write in one pass: the same rows, in the same tasks.
    The batch's own rows come first.

    Raises:
        SchemaError: a sink can't write such rows.
    """
    groups: dict[tuple[int, tuple[str, ...]], JobGroup] = {}
    for i, (name, frame) in enumerate(writes):
        keys = sinks[name].capabilities.one_task_per_key
        groups.setdefault((id(frame), keys), JobGroup(frame, keys)).writes.append(i)
    alike = [
        part
        for group in groups.values()
        for part in _by_values([name for name, _ in writes], group, projections)
    ]
    return sorted(alike, key=lambda group: group.frame is not batch)


def _by_values(
    names: Sequence[str], group: JobGroup, projections: Projections
) -> Sequence[JobGroup]:
    """Split writes whose keys have the same names by what is computed for these: keys that are
    equal as one sink writes them may differ as another does, and would come to two tasks.
    """
    if not group.keys or len(group.writes) == 1:
        return [group]
    projection = projections.of_writes([names[write] for write in group.writes], group.frame)
    parts: dict[tuple[int, ...], JobGroup] = {}
    for position, write in enumerate(group.writes):
        places = projection.places(position, group.keys)
        parts.setdefault(places, JobGroup(group.frame, group.keys)).writes.append(write)
    return list(parts.values())


def is_one_group(
    frame: DataFrame, sinks: Mapping[str, TwoPhaseCommitSink], projections: Projections
) -> bool:
    """Tell whether one job can write a frame to all sinks; not where one can't write such rows,
    which the write itself says.
    """
    try:
        return len(groups_of([(name, frame) for name in sinks], sinks, frame, projections)) == 1
    except SchemaError:
        return False


def written_often(groups: Sequence[JobGroup], batch: DataFrame) -> list[DataFrame]:
    """Return the frames, besides the batch's own, that more than one job writes.

    Args:
        groups: of one batch, as ``groups_of`` returns them.
        batch: the batch's own frame.
    """
    frames = [group.frame for group in groups]
    twice = [frame for i, frame in enumerate(frames) if any(frame is other for other in frames[:i])]
    return list({id(frame): frame for frame in twice if frame is not batch}.values())
