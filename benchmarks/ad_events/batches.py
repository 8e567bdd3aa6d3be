"""What the checkpoint of a job says over time: up to where each batch read, and when it was
complete. Only `BatchLog` reads files; the rest is arithmetic.

A batch is complete when Spark has written ``commits/<batch>``: by then all its sinks have
committed. The moment is the file's time of modification (the kernel's clock has steps of 4 ms or
so). An offset log counts offsets, so the records are counted exactly only where the input has no
transactions in it: their markers take an offset, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.report.results import Sample
from benchmarks.stands.children import MeasurementError
from benchmarks.stands.traffic import latencies
from onceforall.demo.ads.progress import ends_of
from onceforall.spark import checkpoint as spark_checkpoint

Partition = tuple[str, int]
"""Topic and number."""
_IN_TIME_NS = 10_000_000_000


@dataclass(frozen=True)
class Batch:
    """A batch that is complete.

    Attributes:
        ends: the end of what it read, by partition; a partition that isn't there was not read yet.
        planned_ns: when its offsets were written down, in ns since 1970.
        complete_ns: when its completion was.
    """

    ends: Mapping[Partition, int]
    planned_ns: int
    complete_ns: int

    @property
    def records(self) -> int:
        """How many records were read up to its end, from the first batch on."""
        return sum(self.ends.values())


class BatchLog:
    """Follows a checkpoint.

    Spark keeps the last hundred batches there, so somebody has to look now and then.
    """

    def __init__(self, checkpoint: Path) -> None:
        """Nothing is read yet; the checkpoint need not be there."""
        self._checkpoint = checkpoint
        self.batches: list[Batch] = []

    def look(self) -> int:
        """Read what is new, and return how many records the complete batches have read."""
        for number in range(
            len(self.batches), spark_checkpoint.last_committed(self._checkpoint) + 1
        ):
            planned, complete = (
                self._checkpoint / log / str(number) for log in ("offsets", "commits")
            )
            ends = ends_of(spark_checkpoint.offsets_of(self._checkpoint, number))
            self.batches.append(
                Batch(ends, planned.stat().st_mtime_ns, complete.stat().st_mtime_ns)
            )
        return self.batches[-1].records if self.batches else 0


def while_all_last(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Return the batches up to the one in which the first partition came to its end: afterwards
    the others go on alone, which is no steady state.
    """
    last = batches[-1].ends if batches else {}
    for count, batch in enumerate(batches, 1):
        if any(end and batch.ends.get(partition, 0) == end for partition, end in last.items()):
            return batches[:count]
    return batches


def counts_of(batches: Sequence[Batch]) -> list[tuple[float, int]]:
    """Return (seconds since 1970, records read so far), as `figures.steady_window` takes them.

    Raises:
        MeasurementError: there is no batch.
    """
    if not batches:
        raise MeasurementError("The job has completed no batch.")
    return [
        (batches[0].planned_ns / 1e9, 0),
        *((each.complete_ns / 1e9, each.records) for each in batches),
    ]


def busy_share(batches: Sequence[Batch], start_s: float, end_s: float) -> float:
    """Return the share of a time (seconds since 1970, from the end of one batch to the end of
    another one) in which a batch was under way.
    """
    within = [each for each in batches if start_s < each.complete_ns / 1e9 <= end_s]
    return sum(each.complete_ns - each.planned_ns for each in within) / 1e9 / (end_s - start_s)


def completions(
    sent: Mapping[Partition, Sequence[int]], batches: Sequence[Batch]
) -> npt.NDArray[np.int64]:
    """Return when each record was meant to be sent, and when the batch that read it was complete.

    Args:
        sent: by partition, the intended time of each record, in ns since 1970, at the place of its
            offset.
        batches: of the job, from its first one on.

    Returns:
        Two rows with a column for each record: intended, complete.

    Raises:
        MeasurementError: some record is in no batch.
    """
    complete = np.array([each.complete_ns for each in batches], dtype=np.int64)
    pairs: list[npt.NDArray[np.int64]] = []
    for partition, intended in sent.items():
        ends = [each.ends.get(partition, 0) for each in batches]
        # The first batch that goes beyond the record.
        numbers = np.searchsorted(ends, np.arange(len(intended)), side="right")
        if missing := int((numbers == len(batches)).sum()):
            raise MeasurementError(
                f"{missing} of {len(intended)} records of {partition[0]}[{partition[1]}] are in "
                "no batch."
            )
        pairs.append(np.stack([np.asarray(intended, dtype=np.int64), complete[numbers]]))
    return np.concatenate(pairs, axis=1) if pairs else np.empty((2, 0), dtype=np.int64)


def latency_of(
    sent: Mapping[Partition, Sequence[int]], batches: Sequence[Batch], start_ns: int, end_ns: int
) -> Sample:
    """Return the figures of `traffic.latencies` for what was meant to be sent between two moments,
    and whether the job kept up with it.

    ``kept_up``: the last one of these records was in a complete batch within 10 s of its time.

    Raises:
        MeasurementError: some record is in no batch, or none was to be sent then.
    """
    pairs = completions(sent, batches)
    sample = latencies(pairs, start_ns, end_ns)
    intended, complete = pairs[:, pairs[0] < end_ns]
    last = int(intended.argmax())
    return {**sample, "kept_up": bool(complete[last] - intended[last] <= _IN_TIME_NS)}


def by_partition(found: Mapping[str, Mapping[str, Any]]) -> dict[Partition, Any]:
    """Return by `Partition` what JSON has by topic and, within that, by the partition's number."""
    pairs = itertools.chain.from_iterable(
        ((topic, number, each) for number, each in of.items()) for topic, of in found.items()
    )
    return {(topic, int(number)): each for topic, number, each in pairs}
