"""Recipes for failpoints that only special circumstances lead to, and the list of all recipes."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from chaos.recipes import DECIDED, LIFE_S, UNDECIDED, Lost, Recipe, lose
from chaos.workload import EMPTY_BATCHES
from onceforall.sinks.files.manifests.chain import all_of
from onceforall.sinks.files.manifests.content import Manifest, encode
from onceforall.sinks.files.tree import Tree
from support.waiting import until

TESTS = Path(__file__).parents[1]
SECONDS_OF_AN_OLD_FILE = 3600


class Race(Recipe):
    """Two first starts of one checkpoint: the one that comes second to bind it is killed."""

    def _attempts(self, world, when, name):
        return [lambda: self._armed(world, name)]

    def _armed(self, world, name):
        late = world.start(f"bind.prepared=freeze;{name}=kill")
        late.wait_for_failpoint("bind.prepared", LIFE_S)
        world.heal()
        late.signal(signal.SIGCONT)
        return late


class Moved(Recipe):
    """The commit log lies elsewhere, and is moved to another place on purpose."""

    def leave(self, world):
        super().leave(world)
        before = Path(world.config["options"]["onceforall.commitLog"])
        after = before.with_name(f"{before.name}x")
        before.rename(after)
        world.config["options"] = {
            "onceforall.commitLog": str(after),
            "onceforall.adoptCheckpoint": "true",
        }


class Merging(Recipe):
    """So many batches are in a folder that their manifests are merged."""

    def leave(self, world):
        if not world.is_in_doubt():
            self._leave_anew(world)

    def _leave_anew(self, world):
        # What a driver was killed behind in the same step may be merged already; then it takes as
        # many batches again.
        life = self._live(world, armed="file.merge.before=kill")
        life.wait_for_end(3 * LIFE_S)
        assert life.died_at("file.merge.before"), life.tail()
        world.tally.kills[world.driver_kind] += 1


class SparkLog(Recipe):
    """A folder with Spark's own log, which is continued."""

    def prepare(self, world):
        folder = Path(world.config["files"]) / "_spark_metadata"
        folder.mkdir(parents=True)
        (folder / "0").write_text("v1")


class Temporary(Recipe):
    """A manifest is there under its temporary name only."""

    def leave(self, world):
        life = self._live(world, armed="file.create.synced=kill")
        life.wait_for_end(LIFE_S)
        assert life.died_at("file.create.synced"), life.tail()
        world.tally.kills[world.driver_kind] += 1

    def _armed(self, world, name):
        """Nothing is in doubt any more, and the file is there nevertheless: as if its writer had
        been frozen until then."""
        self.leave(world)
        home = Path(world.config["files"]) / "_onceforall"
        left = {
            file: file.read_bytes()
            for file in home.rglob("*")
            if file.is_file() and file.name.endswith(".tmp")
        }
        assert left, "no temporary manifest"
        self.heal(world)
        for file, content in left.items():
            file.write_bytes(content)
        return self._live(world, self._points(name))


class OldTemporary(Recipe):
    """A temporary file of the commit log that a writer left long ago."""

    def _plant(self, world):
        file = world.log / f".00000009.json.{secrets.token_hex(16)}.tmp"
        file.write_text("{}")
        long_ago = time.time() - SECONDS_OF_AN_OLD_FILE
        os.utime(file, (long_ago, long_ago))

    def leave(self, world):
        super().leave(world)
        self._plant(world)

    def _armed(self, world, name):
        self.heal(world)
        self._plant(world)
        return self._live(world, self._points(name))


class Cleaning(Recipe):
    """Few batches are retained, and a sealed chain has more."""

    def leave(self, world):
        life = self._live(world, armed=f"{DECIDED}=kill@5")
        life.wait_for_end(LIFE_S)
        assert life.died_at(DECIDED), life.tail()
        world.tally.kills[world.driver_kind] += 1


class Older(Recipe):
    """Several generations lie below."""

    def prepare(self, world):
        world.heal(1)
        world.heal(1)


class LostInRun(Recipe):
    """What is decided is lost before the run that decided it commits it."""

    def _armed(self, world, name):
        life = self._live(world, armed=f"{DECIDED}=freeze;{name}=kill")
        until(
            lambda: life.acted(DECIDED) or life.process.poll() is not None,
            LIFE_S,
            f"a decision\n{life.tail()}",
        )
        assert lose(world, world.sinks)
        life.signal(signal.SIGCONT)
        return life


class LostWhereItFails(Lost):
    """What is lost is of the sink in which the failpoint lies: only that one writes again, and
    fails at it."""

    def _recovering(self, world, name, *, anew=False):
        _turn_to(world, name)
        return super()._recovering(world, name, anew=anew)

    def _kill_workers(self, world, when, results):
        of_sinks = {}
        for result in results:
            of_sinks.setdefault(_sink_of(world, result.cell.name), []).append(result)
        for these in of_sinks.values():
            _turn_to(world, these[0].cell.name)
            super()._kill_workers(world, when, these)


def _sink_of(world, name):
    """The sink that a failpoint belongs to; None: to none of these."""
    start = name.partition(".")[0]
    sink = "files" if start == "file" else start
    return sink if sink in world.sinks else None


def _turn_to(world, name):
    """See to it that the next loss is of the failpoint's sink."""
    sink = _sink_of(world, name)
    if sink is None or len(world.sinks) == 1:
        return
    if world.is_in_doubt() and world.last_lost != sink:
        # The other sinks have committed their part of it: nothing of theirs could be lost any more.
        world.heal(1)
    world.losses += (world.sinks.index(sink) - world.losses) % len(world.sinks)
    world.last_lost = sink


class Empty(Recipe):
    """The stream's first batches come to nothing; behind the kills it goes on until there is
    something to judge."""

    def driver(self, world, when, results):
        yield from super().driver(world, when, results)
        world.heal(EMPTY_BATCHES)


@dataclass(frozen=True)
class Detach(Recipe):
    """``onceforall detach``, killed; the next one completes it, and the query is adopted again."""

    def driver(self, world, when, results):
        world.detached = True
        for result in results:
            self.leave(world)
            name = result.cell.name
            status = self._detach(world, f"{name}=kill")
            result.reached = status == -signal.SIGKILL
            result.note = "" if result.reached else f"onceforall detach ended with {status}"
            if result.reached:
                result.kills = 1
                world.tally.kills["onceforall detach"] += 1
                world.tally.faults["onceforall detach killed at a failpoint"] += 1
            assert self._detach(world, "") == 0, (
                f"the second onceforall detach failed: {self._output(world)}"
            )
            yield result

    def _detach(self, world, failpoints):
        config = world.folder / "config.json"
        config.write_text(json.dumps(world.config))
        code = "import sys; from onceforall.cli import main; sys.exit(main())"
        command = [
            sys.executable,
            "-c",
            code,
            "detach",
            str(world.checkpoint),
            "--sinks",
            "chaos.detached:sinks",
        ]
        environment = {
            "ONCEFORALL_FAILPOINTS": failpoints,
            "CHAOS_CONFIG": str(config),
            "PYTHONPATH": str(TESTS),
        }
        with (world.folder / "detach.log").open("ab") as log:
            done = subprocess.run(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=LIFE_S,
                check=False,
            )
        return done.returncode

    @staticmethod
    def _output(world):
        return (world.folder / "detach.log").read_text(errors="replace")[-2000:]


class Torn(Recipe):
    """A loss of power has torn Spark's plan of the decided batch."""

    def leave(self, world):
        super().leave(world)
        planned = [
            file for file in (world.checkpoint / "offsets").iterdir() if file.name.isdecimal()
        ]
        if planned:
            # Else the driver before was killed between setting the first batch's aside and putting
            # it back: it is gone altogether.
            os.truncate(max(planned, key=lambda file: int(file.name)), 0)


class Skipped(Recipe):
    """A manifest passes over the one before it; ``onceforall files mend`` is killed, and the
    next one mends it."""

    def driver(self, world, when, results):
        for result in results:
            world.heal(3)
            self._skip(world)
            status = self._mend(world, f"{result.cell.name}=kill")
            result.reached = status == -signal.SIGKILL
            result.note = "" if result.reached else f"onceforall files mend ended with {status}"
            if result.reached:
                result.kills = 1
                world.tally.kills["onceforall files mend"] += 1
                world.tally.faults["onceforall files mend killed at a failpoint"] += 1
            assert self._mend(world, "") == 0, "the second onceforall files mend failed"
            yield result

    @staticmethod
    def _skip(world):
        (each,) = all_of(Tree(Path(world.config["files"])))
        last = max(each.listing().loose)
        manifest = each.read_link(last)
        each.path_of(last).write_bytes(
            encode(Manifest(manifest.after - 1, manifest.batches), each.query_id, each.sink)
        )

    @staticmethod
    def _mend(world, failpoints):
        code = "import sys; from onceforall.cli import main; sys.exit(main())"
        environment = {**os.environ, "ONCEFORALL_FAILPOINTS": failpoints}
        command = [sys.executable, "-c", code, "files", "mend", world.config["files"]]
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, timeout=LIFE_S, check=False
        ).returncode


FAILS = "write.confirm.before=raise"
TASK_FAILS = "task.pre_commit.before=raise"
TASKS_FAIL = f"{TASK_FAILS}@+"
"""Each task: where workers are killed one after the other, each needs a task that fails."""
IS_ASKED_AGAIN = ";".join(
    f"{name}=raise"
    for name in (
        "kafka.end_txn.before",
        "file.commit.before",
        "postgres.commit.before",
        "postgres.commit_prepared.before",
    )
)
DURABLE = {"options": {"onceforall.redo": "durable"}}
ELSEWHERE = {"options": {"onceforall.commitLog": "{folder}/log"}}
RETRIED = {"master": "local[2,3]"}

RECIPES = {
    ("first", ""): Recipe(),
    ("first", "failed"): Recipe(beside=FAILS),
    ("first", "task_failed"): Recipe(beside=TASK_FAILS, beside_in_workers=TASKS_FAIL),
    ("first", "retired"): Recipe(beside=IS_ASKED_AGAIN),
    ("first", "retried"): Recipe(config=RETRIED, beside=TASK_FAILS),
    ("first", "keep"): Recipe(config=DURABLE),
    ("first", "keep_failed"): Recipe(
        config=DURABLE, beside=TASK_FAILS, beside_in_workers=TASKS_FAIL
    ),
    ("first", "store_failure"): Recipe(beside="store.create.synced=error:EIO"),
    ("recovery", ""): Recipe(),
    ("recovery", "decided"): Recipe(),
    ("recovery", "undecided"): Recipe(left_at=UNDECIDED),
    ("recovery", "lost"): Lost(longest_chain=6),
    ("recovery", "lost_placed"): Lost(left_at="file.commit.renamed", alone=True),
    ("recovery", "lost_reopened"): Lost(
        config=RETRIED, beside="task.pre_commit.after=raise@+", alone=True
    ),
    ("recovery", "durable"): Lost(config=DURABLE, longest_chain=6),
    ("first", "abandoned"): Recipe(beside="task.pre_commit.after=raise"),
    ("recovery", "completed"): Recipe(left_at="append_done.before"),
    ("recovery", "lost_failed"): LostWhereItFails(
        beside=FAILS, beside_in_workers=TASKS_FAIL, longest_chain=6
    ),
    ("first", "empty"): Empty(config={"stateful": True, "complete": True}, batches=8),
    ("first", "elsewhere"): Recipe(config=ELSEWHERE, longest_chain=1, alone=True),
    ("first", "race"): Race(alone=True, longest_chain=1),
    ("first", "lost"): LostInRun(alone=True, longest_chain=4),
    ("first", "merging"): Merging(
        alone=True, config={"rows_per_batch": 40}, batches=110, longest_chain=3
    ),
    ("recovery", "merging"): Merging(
        alone=True, config={"rows_per_batch": 40}, batches=110, longest_chain=3
    ),
    ("first", "spark_log"): SparkLog(
        config={"files_arguments": {"spark_metadata": "continue"}}, alone=True
    ),
    ("recovery", "spark_log"): SparkLog(
        config={"files_arguments": {"spark_metadata": "continue"}}, alone=True
    ),
    ("first", "temporary"): Temporary(alone=True),
    ("recovery", "temporary"): Temporary(alone=True),
    ("first", "old_temporary"): OldTemporary(alone=True),
    ("recovery", "old_temporary"): OldTemporary(alone=True),
    ("first", "reopened"): Recipe(config=RETRIED, beside="task.pre_commit.after=raise"),
    ("recovery", "cleaning"): Cleaning(
        alone=True, config={"options": {"onceforall.minBatchesToRetain": "2"}}, batches=10
    ),
    ("recovery", "older"): Older(alone=True),
    ("recovery", "moved"): Moved(alone=True, config=ELSEWHERE),
    ("recovery", "torn"): Torn(alone=True, longest_chain=4),
    ("recovery", "skipped"): Skipped(alone=True, longest_chain=4),
    ("recovery", "detach"): Detach(alone=True, longest_chain=4),
    ("recovery", "divergence"): Recipe(config={"stateful": True, "diverging": True}),
    ("recovery", "stateful"): Recipe(config={"stateful": True}),
    ("recovery", "store_failure"): Recipe(beside="store.create.synced=error:EIO"),
}
