"""What the rows of a world's input must leave in each of its sinks, as truths of
``onceforall.testing.checker``."""

import numpy as np

from chaos import workload
from chaos.contents import Expected
from chaos.worlds import KEYS, PARTITIONS
from onceforall.testing.checker import StateTruth, TableTruth, UniformTruth, running_counts
from onceforall.testing.checker.truth import UNKNOWN

MOST_BATCHES_OF_COUNTS = 5000


class Truths:
    """The truths of a world; ``expected`` is what rows bear besides id and key, None where a query
    makes it at random."""

    def __init__(self, world):
        self._world = world
        self._config = {**workload.DEFAULTS, **world.config}
        self._operator = workload.operator_of(self._config)
        number_of = last_of_a_count if world.counts else int
        self.expected = None if self._config["diverging"] else Expected(self._config, number_of)
        self._of_all = {sink: self._of(sink, MOST_BATCHES_OF_COUNTS) for sink in world.sinks}

    def while_running(self):
        """Return the truth of each sink while drivers run."""
        return self._of_all

    def through(self, batches):
        """Return the truth of each sink when all is quiet behind so many batches: of counts, those
        of later batches are no input's then."""
        if not self._world.counts:
            return self._of_all
        return {sink: self._of(sink, max(batches, 1)) for sink in self._of_all}

    def _of(self, sink, batches):
        contents = None if self.expected is None else self.expected.of(sink)
        rows = self._world.rows_per_batch
        if self._operator == "complete" and sink == "postgres":
            return StateTruth(lambda batch: self._last_counts(batch + 1, contents))
        if self._world.counts:
            return running_counts(rows, batches, KEYS, contents)
        kind = Filtered if self._operator == "filter" else UniformTruth
        return kind(rows, keys=KEYS, tasks=self._tasks(), contents=contents)

    def _tasks(self):
        """Where a query shuffles, only batches have an order."""
        if self._operator in workload.SHUFFLING:
            return None
        return sum(self._config["source"].get("partitions", [PARTITIONS]))

    def _last_counts(self, batches, contents):
        """In the output mode complete the table holds what the last batch came to; the first
        batches may be empty."""
        left_out = workload.left_out(self._config)
        ids = []
        for bucket in range(KEYS):
            counted = range(left_out + bucket, batches * self._world.rows_per_batch, KEYS)
            ids += [f"{bucket}:{len(counted)}:{counted[-1]}"] if counted else []
        return TableTruth(
            np.asarray(ids, np.str_),
            [batches - 1] * len(ids),
            keys=np.asarray([text[0] for text in ids], np.str_),
            contents=contents,
        )


class Filtered(UniformTruth):
    """Rows 0, 1, 2, … without those that ``workload`` filters out: one of ``workload.FILTERED``,
    which divides the rows of a batch."""

    def __init__(self, rows_per_batch, *, tasks, **more):
        assert rows_per_batch % workload.FILTERED == 0
        stay = workload.FILTERED - 1
        super().__init__(rows_per_batch // workload.FILTERED * stay, tasks=None, **more)
        self._input_rows, self._input_tasks = rows_per_batch, tasks

    def locate(self, ids):
        place = ids % workload.FILTERED
        found = ids // workload.FILTERED * (workload.FILTERED - 1) + place - 1
        return np.where((ids >= 0) & (place > 0), found, UNKNOWN).astype(np.int64)

    def ids_at(self, ordinals):
        group, place = np.divmod(ordinals, workload.FILTERED - 1)
        return group * workload.FILTERED + place + 1

    def keys_at(self, ordinals):
        return super().keys_at(self.ids_at(ordinals))

    def tasks_at(self, ordinals):
        ids = self.ids_at(ordinals)
        return ids % self._input_rows % self._input_tasks


def last_of_a_count(text):
    """The last row that a running count has counted, from its id; see ``running_counts``."""
    return int(text.rpartition(":")[2])
