"""A two-phase sink for tests of many sinks: a JSON file per transaction in a local folder, which
tells which task wrote what."""

import json
import threading
import time
from pathlib import Path

from pyspark.sql import functions as F

from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import Capabilities, CommitReport, TwoPhaseCommitSink


def meet(folder, who, parties):
    """Return when so many have come here, in whatever process; fail when they don't come at the
    same time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / who).touch()
    deadline = time.monotonic() + 20
    while len(list(folder.iterdir())) < parties:
        if time.monotonic() > deadline:
            raise AssertionError(f"{who} waited alone at {folder.name}")
        threading.Event().wait(0.01)


class Recorder(TwoPhaseCommitSink):
    """Writes each transaction's rows, as JSON, to ``<folder>/<state>/<transaction>``, where the
    state is open or seen."""

    kind = "recorder"

    def __init__(self, folder, able=None, fail=None, meets=0, columns=None):
        self.folder = Path(folder)
        self.able = able or Capabilities(two_phase=True)
        self.fail = fail
        self.meets = meets
        self.taken = columns

    @property
    def capabilities(self):
        return self.able

    def columns(self, schema):
        return (
            super().columns(schema)
            if self.taken is None
            else [F.expr(column) for column in self.taken]
        )

    def _step(self, name):
        if self.meets:
            meet(self.folder.parent / f"meet-{name}", self.folder.name, self.meets)
        if self.fail == name:
            raise AttemptFailedError(f"the recorder fails at {name}")

    def begin_transaction(self, attempt):
        return attempt, []

    def invoke(self, transaction, rows):
        transaction[1].extend(rows.to_pylist())

    def pre_commit(self, transaction):
        attempt, rows = transaction
        self._step("pre_commit")
        for state in ("open", "seen"):
            (self.folder / state).mkdir(parents=True, exist_ok=True)
        (self.folder / "open" / attempt.name).write_text(json.dumps(rows, default=str))
        return {"name": attempt.name, "partition": attempt.partition}

    def confirm(self, committables):
        self._step("confirm")
        return committables

    def commit(self, permit, committables):
        if self.fail == "commit":
            raise SinkUnavailableError("the recorder is away")
        self._step("commit")
        for committable in committables:
            if not (self.folder / "seen" / committable["name"]).exists():
                (self.folder / "open" / committable["name"]).rename(
                    self.folder / "seen" / committable["name"]
                )
        return CommitReport(completed=tuple(committables))

    def abort(self, committables):
        for committable in committables:
            (self.folder / "open" / committable["name"]).unlink(missing_ok=True)

    def recover(self, sweep):
        covered = [file for file in self.folder.glob("open/*") if sweep.covers_name(file.name)]
        for file in covered:
            file.unlink(missing_ok=True)
        return len(covered)

    def tasks(self):
        """The rows that are seen, a list for each transaction."""
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("seen/*"))]

    def seen(self, column):
        """The values of a column that are seen, sorted."""
        return sorted(row[column] for rows in self.tasks() for row in rows)

    def left(self):
        """The transactions that are still open."""
        return sorted(file.name for file in self.folder.glob("open/*"))
