"""Which jobs write a batch: what one of them can write in one pass, and which frames several of
them write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onceforall.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class JobGroup:
    """Writes that one job writes: the same rows, and all rows with equal values of ``keys`` in
    one task (none: wherever they are).
    """

    frame: DataFrame
    keys: tuple[str, ...]
    writes: list[int] = field(default_factory=list)


def groups_of(
    writes: Sequence[tuple[str, DataFrame]],
    sinks: Mapping[str, TwoPhaseCommitSink],
    batch: DataFrame,
) -> list[JobGroup]:
    """Return the writes by what one job can write in one pass: the same rows, in the same tasks.
    The batch's own rows come first.
    """
    groups: dict[tuple[int, tuple[str, ...]], JobGroup] = {}
    for i, (name, frame) in enumerate(writes):
        keys = sinks[name].capabilities.one_task_per_key
        groups.setdefault((id(frame), keys), JobGroup(frame, keys)).writes.append(i)
    return sorted(groups.values(), key=lambda group: group.frame is not batch)


def written_often(groups: Sequence[JobGroup], batch: DataFrame) -> list[DataFrame]:
    """Return the frames, besides the batch's own, that more than one job writes.

    Args:
        groups: of one batch, as ``groups_of`` returns them.
        batch: the batch's own frame.
    """
    frames = [group.frame for group in groups]
    twice = [frame for i, frame in enumerate(frames) if any(frame is other for other in frames[:i])]
    return list({id(frame): frame for frame in twice if frame is not batch}.values())
