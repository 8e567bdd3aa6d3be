"""What Spark does with a source's reader, without Spark."""

from __future__ import annotations

import json
import pickle


class SourceQuery:
    """Plans, keeps offsets as JSON, and reads partitions with a reader that was pickled.
    ``restart`` leaves nothing but the offsets. A subclass says what makes a reader of options, and
    which column has the rows' numbers."""

    column: str

    def make(self, options):
        raise NotImplementedError

    def __init__(self, options, log=None):
        self.options, self.log = options, list(log or [])
        self.reader = self.make(options)

    @property
    def start(self):
        return self.log[-1] if self.log else through_json(self.reader.initialOffset())

    def plan(self):
        """Plan a batch; return whether there is one."""
        start = self.start
        end = through_json(self.reader.latestOffset(start))
        if end == start:
            return False
        self.log.append(end)
        return True

    def ends(self, batch=-1):
        batch %= len(self.log)
        start = self.log[batch - 1] if batch else through_json(self.reader.initialOffset())
        return start, self.log[batch]

    def batches(self, batch=-1):
        """The Arrow batches of each partition of a batch."""
        parts = self.reader.partitions(*self.ends(batch))
        reader = pickle.loads(pickle.dumps(self.reader))
        return [list(reader.read(pickle.loads(pickle.dumps(part)))) for part in parts]

    def rows(self, batch=-1):
        return [row for part in self.batches(batch) for each in part for row in each.to_pylist()]

    def numbers(self, batch=-1):
        return [int(row[self.column]) for row in self.rows(batch)]

    def drain(self):
        """Plan and read until nothing comes; return the numbers of each batch."""
        found = []
        while self.plan():
            found.append(self.numbers())
        return found

    def restart(self, **options):
        self.reader.stop()
        self.__init__({**self.options, **options}, self.log)
        return self


def through_json(offset):
    return json.loads(json.dumps(offset))
