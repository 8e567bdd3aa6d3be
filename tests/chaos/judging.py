"""Judges a world: while its drivers live and die, and when all is quiet. The definition is
``onceforall.testing.checker``'s."""

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field

from chaos.truths import Truths
from chaos.worlds import KEYS
from onceforall.errors import CheckpointMismatchError, SinkUnavailableError
from onceforall.protocol.entries import Commit
from onceforall.spark.remote_path import files_below
from onceforall.testing import observers
from onceforall.testing.checker import (
    RunningCheck,
    check_log,
    check_quiet,
    check_state,
    last_counts,
)

SETTLE_S = {"kafka": 60.0}
QUIET_S = 60


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


def in_doubt(log):
    """The decisions that runs may have been appending when they died: of each chain but the newest,
    whose run has ended, the batch behind the last one that was decided by then."""
    newest, found = -1, []
    for generation in sorted(log.chains)[:-1]:
        batches = [entry.batch for _, entry in log.chains[generation] if isinstance(entry, Commit)]
        newest = max([newest, *batches])
        found.append((generation, newest + 1))
    return found


class Watch:
    """Reads the sinks of a world again and again; ``quiet`` is the last judgement."""

    def __init__(self, world):
        self._world = world
        self._truths = Truths(world)
        self._read = Counter()
        self._shown = Counter()
        self._looks_at_some = 0
        self._torn_reads = []
        mode = world.config.get("postgres", {}).get("mode", "staged")
        self._early = {"postgres"} if mode == "upsert" else set()
        truths = self._truths.while_running()
        whole = {"files", *(["postgres"] if mode == "staged" else [])}
        self._settled = set(world.sinks) - self._early
        self._check = RunningCheck(
            {sink: truths[sink] for sink in self._settled},
            whole=whole & self._settled,
            settle_s={sink: s for sink, s in SETTLE_S.items() if sink in self._settled},
        )
        self._check_early = RunningCheck(
            {sink: truths[sink] for sink in self._early if sink in truths}
        )
        place = world.place
        self._log = observers.CommitLogObserver(
            str(world.checkpoint), store=None if place is None else place.store
        )
        self._observers = {sink: self._observer(sink) for sink in world.sinks}

    def _observer(self, sink):
        world = self._world
        how = {"ids": "texts", "keys": "texts"} if world.counts else {}
        if self._truths.expected is not None:
            how["content"] = self._truths.expected.asked_of(sink)
        if sink == "kafka":
            return observers.KafkaObserver(
                world.servers.direct, world.topic, query_id=self._log.query_id, **how
            )
        if sink == "files":
            files = world.config["files"]
            on_s3 = {"storage": world.place.store} if files.startswith("s3a:") else {}
            # With folders by another column a key has several files, which have no order.
            folders = world.config.get("files_arguments", {}).get("partition_by", ["key"])
            ordered = set(folders) <= {"key"}
            return observers.FileObserver(files, ordered=ordered, **on_s3, **how)
        return observers.PostgresObserver(world.database, "out", query_id=self._log.query_id, **how)

    def look(self):
        """Read the sinks, then the log; a sink that can't be read now is left out."""
        views = {}
        for sink, observer in self._observers.items():
            rows = self._rows_now(sink, observer)
            if rows is not None:
                views[sink] = rows
        try:
            decided = self._decided()
            self._observe(views, decided, time.monotonic())
        except CheckpointMismatchError:
            if not self._world.config.get("options", {}).get("onceforall.adoptCheckpoint"):
                raise
            # A log that is being moved can't be read for a moment.
            return
        self._read.update(views.keys())
        # What is read before anything is decided shows nothing, and no batch but the newest must be
        # complete.
        if len(decided) > 1:
            self._looks_at_some += 1
            self._shown.update(sink for sink, rows in views.items() if len(rows))

    def _observe(self, views, decided, at_s):
        settled = {sink: rows for sink, rows in views.items() if sink not in self._early}
        if settled:
            self._check.observe(settled, decided, at_s=at_s)
        early = {sink: rows for sink, rows in views.items() if sink in self._early}
        if early:
            # There rows are visible before their decision, which is the next one then.
            self._check_early.observe(early, range(len(decided) + 1), at_s=at_s)

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
        unseen = [
            sink
            for sink in self._observers
            if not self._read[sink] or (self._looks_at_some and not self._shown[sink])
        ]
        self.look()
        log, spark = self._log.view(), self._log.spark_committed()
        batches = spark + 1
        views = {sink: self._read_anew(sink) for sink in self._observers}
        report = check_quiet(self._truths.through(batches), views, self._decided(), left).with_(
            self._log_of(log, spark)
        )
        violations = [*report.violations, *self._torn_reads, *self._left_in_the_log()]
        violations += [
            f"nothing-read: {sink}: while drivers ran it showed no row in any of "
            f"{self._looks_at_some} looks"
            for sink in unseen
        ]
        if self._world.counts and not self._world.config.get("complete"):
            violations += self._state(batches, views)
        torn = report.total.torn
        for check, sinks in ((self._check, self._settled), (self._check_early, self._early)):
            if sinks:
                running = check.report()
                violations += running.violations
                torn += running.total.torn
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
            looks=self._check.looks + self._check_early.looks,
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
        return check_log(log, spark_committed=spark, attempts=attempts, unanswered=in_doubt(log))

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
