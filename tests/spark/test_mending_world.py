"""A query whose machine loses its power, whose runs are killed, and whose starts and menders stand
still or are killed in the midst of a repair, all at random: whatever was decided stays startable,
and no start knows less than what was decided."""

import json
import os
import random
import secrets
import shutil
from pathlib import Path

import pytest

from onceforall.commit_log import CommitLog, LocalStore
from onceforall.errors import FencedError
from onceforall.protocol.entries import Claim, Commit, Done
from onceforall.spark import mending, repairs

ID = "7d0c1b6e-0000-4000-8000-000000000000"
HEADER = ("v1", '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}')
PARTITIONS = 2


def offsets_of(batch, has_empty_source):
    # A source that has nothing yet beside one that has.
    return (f'{{"logOffset":{batch}}}', *(["-"] if has_empty_source else []))


class _StuckError(Exception):
    """Something that must never be."""


class _KilledError(BaseException):
    """The process is gone."""


class World:
    """One checkpoint, as Spark and this library use it."""

    def __init__(self, seed, folder, patch):
        self.random = random.Random(seed)
        self.path = folder / "cp"
        self.path.mkdir(parents=True)
        self.log = CommitLog(LocalStore(self.path / "onceforall"))
        self.told, self.dirty = [], {}
        self.last = -1
        self.boot = 0
        self.keeps_state = self.random.random() < 0.7
        self.has_empty_source = self.random.random() < 0.3
        self.alive = []
        self.until, self.act = None, None
        self.losses = self.kills = self.mended = 0
        for owner, name in (
            (Path, "rename"), (Path, "unlink"), (Path, "rmdir"), (os, "link"), (Path, "mkdir"),
            (repairs, "sync_folder"), (repairs, "files_below"),
        ):  # fmt: skip
            patch.setattr(owner, name, self._around(getattr(owner, name)))
        patch.setattr(mending, "boot_id", self.boot_id)
        # A seed gives the same names, in the same order, again.
        names = random.Random(seed)
        patch.setattr(secrets, "token_hex", lambda size=16: names.randbytes(size).hex())

    def _around(self, operation):
        def operated(*args, **kwargs):
            self._tick()
            result = operation(*args, **kwargs)
            self._tick()
            return result

        return operated

    def _tick(self):
        if self.until is None:
            return
        self.until -= 1
        if self.until == 0:
            self.until = None
            self.act()

    def boot_id(self):
        """Of this machine, or of another one with the same storage."""
        return f"boot {self.boot}" if self.random.random() < 0.8 else "of another machine"

    def say(self, *words):
        self.told.append(" ".join(map(str, words)))

    def plan_of(self, batch):
        return "\n".join((*HEADER, *offsets_of(batch, self.has_empty_source)))

    # --- what Spark writes, and what of it is on the disk ---

    def write(self, name, text):
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        self.dirty[name] = text

    def sync(self, *names):
        """As a run does before it decides: what isn't there fails its batch, but for state, of
        which it takes what it finds."""
        for name in names:
            if not (self.path / name).exists() and not name.startswith("state/"):
                raise FileNotFoundError(name)
        self.dirty = {name: text for name, text in self.dirty.items() if name not in names}

    def state(self, version):
        return [f"state/0/{partition}/{version}.delta" for partition in range(PARTITIONS)]

    def lose_power(self):
        """Of what nobody has synced anything may be gone, empty, or cut off."""
        self.say("loses power with", sorted(self.dirty))
        for name, text in self.dirty.items():
            file = self.path / name
            if file.exists() and file.read_text() == text:
                fate = self.random.random()
                if fate < 0.3:
                    file.unlink()
                elif fate < 0.5:
                    file.write_text("")
                elif fate < 0.7:
                    file.write_text(text[: self.random.randrange(len(text))])
                elif fate < 0.8:
                    file.write_text("\0" * len(text))
        self.dirty.clear()
        self.alive.clear()
        self.boot += 1
        self.losses += 1

    # --- the query ---

    def start(self):
        """Start the query, and leave it alive."""
        self.mended += len(mending.put_back(self.path).steps)
        metadata = self.path / "metadata"
        if metadata.exists():
            if json.loads(metadata.read_text())["id"] != ID and self.last >= 0:
                raise _StuckError("the query has another id")
        elif self.log.newest_claim() is not None:
            raise _StuckError("the query's id is gone")
        if not metadata.exists() or self.log.newest_claim() is None:
            self.write("metadata", json.dumps({"id": ID}))
        if self.last < 0 and self.random.random() < 0.2:
            # Nothing was decided: the query may be another one.
            self.keeps_state = not self.keeps_state
            self.say("keeps state" if self.keeps_state else "keeps no state any more")
        batch, is_planned = self._next()
        if (
            batch == 0
            and self.keeps_state
            and not (self.path / "state/0/_metadata/metadata").exists()
        ):
            self.write("state/0/_metadata/metadata", "a schema")
        if not self.keeps_state and (self.path / "state").exists():
            if self.last >= 0:
                raise _StuckError("there is state, and the query keeps none")
            raise _GivenUpError
        if not is_planned:
            self._plan(batch)
        self.sync("metadata")
        claim = Claim(ID, "run", str(self.path), "tests", boot_id=self.boot_id())
        generation = self.log.claim(claim).generation
        decided = self.log.seal_below(generation).decided
        known = -1 if decided is None else decided.commit.batch
        if known != self.last:
            raise _StuckError(f"a start knows {known}, and the last decision is {self.last}")
        self.say("generation", generation, "knows", known, "and begins with batch", batch)
        if batch not in {known, known + 1}:
            raise _StuckError(f"Spark begins with batch {batch}, and {known} is decided")
        if batch == known:
            found = (self.path / f"offsets/{batch}").read_text()
            if found != self.plan_of(batch):
                raise _StuckError(f"the plan of the decided batch {batch} is {found!r}")
            self._finish(generation, batch)
            batch += 1
        run = [generation, batch, self.keeps_state, False]
        self.alive = [*self.alive, run][-3:]
        for _ in range(self.random.randint(0, 2)):
            self.go_on(run)

    def _next(self):
        """Return the batch that Spark begins with, and whether it is planned."""
        planned, committed = self._newest("offsets"), self._newest("commits")
        for number in {planned, planned - 1} - {-1, -2}:
            if number < planned - 1 or (number < planned and planned == 0):
                continue
            file = self.path / f"offsets/{number}"
            if not file.exists() or len(file.read_text().split("\n")) < 3:
                raise _StuckError(f"Spark can't read offsets/{number}")
        batch = planned if planned > committed else planned + 1
        if self.keeps_state and batch > 0:
            missing = [name for name in self.state(batch) if not (self.path / name).exists()]
            if missing:
                raise _StuckError(f"the state of batch {batch - 1} is gone: {missing}")
        for number in range(batch):
            file = self.path / f"sources/0/{number}"
            if not file.exists() or not file.read_text().endswith("}"):
                raise _StuckError(f"the source doesn't know its entry {number}")
        return batch, planned == batch

    def _newest(self, folder):
        found = self.path / folder
        return (
            max((int(f.name) for f in found.iterdir() if f.name.isdecimal()), default=-1)
            if found.is_dir()
            else -1
        )

    def _plan(self, batch):
        if not (self.path / f"sources/0/{batch}").exists():
            self.write(f"sources/0/{batch}", f'v1\n{{"path":"{batch}"}}')
        if self.has_empty_source:
            (self.path / "sources/1").mkdir(parents=True, exist_ok=True)
        self.write(f"offsets/{batch}", self.plan_of(batch))

    def go_on(self, run):
        """Let a run write its next batch, or decide it, unless it is fenced, or misses a file."""
        generation, batch, keeps_state, is_written = run
        if (self.path / f"offsets/{batch}").exists() is False:
            if batch != self.last + 1:
                return
            self._plan(batch)
        try:
            # A run that was replaced could write state over that of a decided batch, unsynced, and
            # power be lost before the next decision syncs it: nobody covers that.
            if keeps_state and not is_written and batch > self.last:
                for name in self.state(batch + 1):
                    self.write(name, f"version {batch + 1}")
                if self.random.random() < 0.5:
                    run[3] = True
                    return
            needed = ["metadata", f"offsets/{batch}", f"sources/0/{batch}"]
            if batch:
                needed += [f"offsets/{batch - 1}", f"commits/{batch - 1}", f"sources/0/{batch - 1}"]
            if keeps_state:
                needed += self.state(batch + 1)
                needed += self.state(batch) if batch else ["state/0/_metadata/metadata"]
            self.sync(*needed)
            self.log.append(
                generation,
                Commit(batch, offsets_of(batch, self.has_empty_source), {}, header=HEADER),
            )
        except (FencedError, FileNotFoundError) as error:
            self.say("a run of generation", generation, "ends:", type(error).__name__, error)
            self.alive = [each for each in self.alive if each is not run]
            return
        self.last, self.keeps_state = batch, keeps_state
        self.say("generation", generation, "decides batch", batch)
        self._finish(generation, batch)
        run[1], run[3] = batch + 1, False

    def _finish(self, generation, batch):
        if self.random.random() < 0.8:
            try:
                self.log.append(generation, Done(batch))
            except FencedError:
                return
            self.write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    # --- what comes between ---

    def others(self):
        what = self.random.random()
        if what < 0.6 or not self.alive:
            self.try_start()
        else:
            self.go_on(self.random.choice(self.alive))

    def try_start(self):
        try:
            self.start()
        except _GivenUpError:
            self.say("the start is refused: nothing was decided, and the state is another query's")

    def mend_slowly(self):
        """A start, or the command, that stands still in its midst, or is killed there."""

        def stand_still():
            self.say("  the mender stands still")
            for _ in range(self.random.randint(1, 2)):
                self.others()
            self.say("  the mender wakes")
            if self.random.random() < 0.4:
                self.until, self.act = self.random.randint(1, 12), killed

        def killed():
            self.kills += 1
            self.say("  the mender is killed")
            raise _KilledError

        self.until = self.random.randint(1, self.random.choice([4, 12, 40]))
        self.act = self.random.choice([stand_still, killed])
        door = self.random.choice([mending.put_back, mending.mend])
        try:
            for step in door(self.path).steps:
                self.say("  ", step)
        except _KilledError:
            pass
        except mending.OptionError:
            # No run ever claimed.
            pass
        finally:
            self.until = None

    def step(self):
        what = self.random.random()
        if what < 0.5:
            self.others()
        elif what < 0.85:
            if not self.dirty:
                self.others()
            self.lose_power()
            for _ in range(self.random.randint(0, 3)):
                self.mend_slowly()
        else:
            self.mend_slowly()


class _GivenUpError(Exception):
    """Spark refuses state that isn't the query's; it must be deleted by hand, as in plain Spark."""


@pytest.mark.parametrize(
    "seeds",
    [range(80), pytest.param(range(80, 5000), marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
)
def test_what_was_decided_can_be_started_whatever_was_lost_and_whoever_was_killed(
    tmp_path, monkeypatch, seeds
):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    losses = kills = mended = decided = 0
    for seed in seeds:
        folder = tmp_path / str(seed)
        with monkeypatch.context() as patched:
            world = World(seed, folder, patched)
            try:
                for _ in range(world.random.randint(3, 12)):
                    world.step()
                world.try_start()
                world.try_start()
            except _StuckError as error:
                pytest.fail("\n".join([f"seed {seed}: {error}", *world.told]))
        losses += world.losses
        kills += world.kills
        mended += world.mended
        decided += world.last + 1
        shutil.rmtree(folder)
    assert min(losses, kills, mended, decided) > len(seeds) / 4
