"""Judges a world: while its drivers live and die, and when all is quiet. The definition is
``onceforall.testing.checker``'s."""

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from chaos.contents import Expected
from chaos.workload import EMPTY_BATCHES
from chaos.worlds import KEYS, PARTITIONS
from onceforall.errors import CheckpointMismatchError, SinkUnavailableError
from onceforall.spark.remote_path import files_below
from onceforall.testing import observers
from onceforall.testing.checker import (
    RunningCheck,
    StateTruth,
    TableTruth,
    UniformTruth,
    check_log,
    check_quiet,
    check_state,
    last_counts,
    running_counts,
)

SETTLE_S = {"kafka": 60.0}
QUIET_S = 60
MOST_BATCHES_OF_COUNTS = 5000


@dataclass
class Verdict:
    """What a judgement came to; rows are of all sinks together, ``records`` are input rows that
    Spark committed."""

    records: int = 0
    lost: int = 0
    duplicated: int = 0
    torn: int = 0
    leftovers: int = 0
    looks: int = 0
    violations: list = field(default_factory=list)


class Watch:
    """Reads the sinks of a world again and again; ``quiet`` is the last judgement."""

    def __init__(self, world):
        self._world = world
        # What a query makes at random is known to nobody.
        self._expected = (
            None
            if world.config.get("diverging")
            else Expected(world.config, last_of_a_count if world.counts else int)
        )
        self._truths = {sink: self._truth_of(sink) for sink in world.sinks}
        self._read = Counter()
        self._torn_reads = []
        whole = [] if world.config.get("postgres", {}).get("mode") == "prepared" else ["postgres"]
        self._check = RunningCheck(self._truths, whole=["files", *whole], settle_s=SETTLE_S)
        place = world.place
        self._log = observers.CommitLogObserver(
            str(world.checkpoint), store=None if place is None else place.store
        )
        self._observers = {sink: self._observer(sink) for sink in world.sinks}

    def _truth_of(self, sink, batches=MOST_BATCHES_OF_COUNTS):
        world = self._world
        contents = None if self._expected is None else self._expected.of(sink)
        if world.config.get("complete"):
            return StateTruth(lambda batch: self._last_counts_of(batch + 1, contents))
        if world.counts:
            return running_counts(world.rows_per_batch, max(batches, 1), KEYS, contents)
        # Where a query removes duplicates, it shuffles: only batches have an order.
        tasks = sum(world.config.get("source", {}).get("partitions", [PARTITIONS]))
        return UniformTruth(
            world.rows_per_batch,
            keys=KEYS,
            tasks=None if world.stateful else tasks,
            contents=contents,
        )

    def _last_counts_of(self, batches, contents):
        """In the output mode complete the table holds what the last batch came to; the first
        batches are empty."""
        left_out = EMPTY_BATCHES * self._world.rows_per_batch
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

    def _observer(self, sink):
        world = self._world
        how = {"ids": "texts", "keys": "texts"} if world.counts else {}
        if self._expected is not None:
            how["content"] = self._expected.asked_of(sink)
        if sink == "kafka":
            return observers.KafkaObserver(
                world.servers.direct, world.topic, query_id=self._log.query_id, **how
            )
        if sink == "files":
            files = world.config["files"]
            on_s3 = {"storage": world.place.store} if files.startswith("s3a:") else {}
            return observers.FileObserver(files, **on_s3, **how)
        return observers.PostgresObserver(world.database, "out", query_id=self._log.query_id, **how)

    def look(self):
        """Read the sinks, then the log; a sink that can't be read now is left out."""
        views = {}
        for sink, observer in self._observers.items():
            rows = self._rows_now(sink, observer)
            if rows is not None:
                views[sink] = rows
        try:
            self._check.observe(views, self._decided(), at_s=time.monotonic())
        except CheckpointMismatchError:
            if not self._world.config.get("options", {}).get("onceforall.adoptCheckpoint"):
                raise
            # A log that is being moved can't be read for a moment.
            return
        self._read.update(views.keys())

    def _rows_now(self, sink, observer):
        try:
            return observer.rows()
        except SinkUnavailableError as error:
            if sink == "files":
                # Nothing takes the folder away: a manifest names a file that isn't there, or not
                # wholly.
                self._torn_reads.append(f"torn: files: {error}")
            return None

    def _decided(self):
        found = self._log.decided()
        return (
            range(max(len(found), self._log.spark_committed() + 1))
            if self._world.detached
            else found
        )

    def quiet(self):
        """Judge when no driver runs: wait, for a bounded time, until nothing is under way, then
        compare everything."""
        left = observers.settled(self._observers, QUIET_S)
        unseen = [sink for sink in self._observers if not self._read[sink]]
        self.look()
        log, spark = self._log.view(), self._log.spark_committed()
        batches = spark + 1
        views = {sink: self._read_anew(sink) for sink in self._observers}
        # Of counts, those of batches that nobody has decided are no input's.
        truths = (
            {sink: self._truth_of(sink, batches) for sink in self._observers}
            if self._world.counts
            else self._truths
        )
        report = check_quiet(truths, views, self._decided(), left).with_(self._log_of(log, spark))
        violations = [*report.violations, *self._torn_reads, *self._left_in_the_log()]
        violations += [
            f"nothing-read: {sink}: it was never read while drivers ran" for sink in unseen
        ]
        if self._world.counts and not self._world.config.get("complete"):
            violations += self._state(batches, views)
        running = self._check.report()
        violations += running.violations
        torn = report.total.torn + running.total.torn
        if not violations and not report.ok:
            violations.append("nothing was read")
        total = report.total
        return Verdict(
            # Of counts, what was compared are the counts.
            records=max(len(rows) for rows in views.values())
            if self._world.counts
            else batches * self._world.rows_per_batch,
            lost=total.lost,
            duplicated=total.duplicated,
            torn=torn,
            leftovers=total.leftovers,
            looks=self._check.looks,
            violations=[str(each) for each in violations],
        )

    def _left_in_the_log(self):
        """Rows that are kept for a redo, behind the batches that they were kept for."""
        found = [str(file) for file in files_below(self._world.log) if file.name.endswith(".arrow")]
        return [f"leftover: kept rows {', '.join(found[:5])}"] if found else []

    def _read_anew(self, sink):
        """What a reader finds that begins now."""
        with contextlib.closing(self._observer(sink)) as observer:
            return observer.rows()

    def _log_of(self, log, spark):
        attempts = (
            {"files": self._observers["files"].attempts()} if "files" in self._observers else None
        )
        return check_log(log, spark_committed=spark, attempts=attempts)

    def _state(self, batches, views):
        """Compare the state store with the running counts that the sinks show last, and with
        what the input implies."""
        state = {key: tuple(value) for key, value in self._world.state().items()}
        expected = last_counts(self._world.rows_per_batch, batches, KEYS)
        found = []
        for rows in views.values():
            shown = {}
            for text in rows.ids.tolist():
                bucket, n, last = text.split(":")
                shown[bucket] = max(shown.get(bucket, (0, 0)), (int(n), int(last)))
            found += check_state(state, expected, shown)
        return found

    def close(self):
        for observer in self._observers.values():
            observer.close()


def last_of_a_count(text):
    """The last row that a running count has counted, from its id; see ``running_counts``."""
    return int(text.rpartition(":")[2])
