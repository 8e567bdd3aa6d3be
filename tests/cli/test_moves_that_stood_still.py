"""A ``log move``, a ``checkpoint move`` or a detachment that is frozen before any of its operations,
and wakes behind others that went on without it, or is killed then: runs, which clean and drop
chains, and the same commands. At no time may two places decide, a run decide in a log that was set
aside, a start learn of another last decision than the last one, or a file of the place where the
query runs change."""

import contextlib
import os
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cli.test_checkpoint_move import Whole, at
from cli.test_log_move import QUERY, Checkpoint
from commit_log.building import commit, open_log
from onceforall.commit_log import LocalStore, binding, repointing
from onceforall.commit_log.ending import ended_by
from onceforall.commit_log.envelope import DETACHED, MOVED
from onceforall.commit_log.packing import FEWEST
from onceforall.driver import place
from onceforall.errors import (
    CheckpointMismatchError,
    FencedError,
    OnceForAllError,
    OptionError,
)
from onceforall.operate import detaching, moving, moving_checkpoint
from onceforall.operate.moving import move_log
from onceforall.operate.moving_checkpoint import move_checkpoint
from onceforall.protocol.entries import Claim, Done
from onceforall.protocol.judgement import judge_claim
from onceforall.protocol.state import RunConfig
from onceforall.sinks.files import FileSink
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark import mending
from onceforall.testing.observers.commit_log import CommitLogObserver

DROPS_SOON = {"retain_commits": 1, "drop_after": 1}


@pytest.fixture
def meanwhile(monkeypatch):
    """Let others act once, before a function of a module is called."""

    def before(owner, name, act):
        real = getattr(owner, name)

        def woken(*args, **kwargs):
            monkeypatch.setattr(owner, name, real)
            act()
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, woken)

    return before


def many_runs(checkpoint, *, first):
    """Start the query so often that the chain of an earlier generation is dropped."""
    for batch in range(first, first + 8):
        log, generation = checkpoint.live(batch, **DROPS_SOON)
    assert log.oldest_generation() > 3
    return log, generation


@pytest.mark.parametrize("whole", [True, False])
def test_a_move_that_wakes_where_its_chain_was_dropped_has_moved_nothing(
    tmp_path, meanwhile, whole
):
    checkpoint = Whole(tmp_path)
    checkpoint.live(0)
    ran = []
    meanwhile(moving, "leave_moved", lambda: ran.append(many_runs(checkpoint, first=1)))
    move = move_checkpoint if whole else move_log
    with pytest.raises(FencedError, match="Nothing was moved"):
        move(str(checkpoint.path), str(tmp_path / "new"))
    ((log, generation),) = ran
    log.append(generation, commit(9))
    assert checkpoint.start()[2].decided.commit.batch == 9
    assert not list((checkpoint.home / "chains").glob("*1/00000001.json"))


def test_a_detachment_that_wakes_where_its_chain_was_dropped_has_detached_nothing(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(0)
    _, generation, _ = checkpoint.start()
    bound = checkpoint.bound()
    log, newest = many_runs(checkpoint, first=1)
    with pytest.raises(FencedError, match="detach again"):
        detaching._leave(bound, generation, 1)
    log.append(newest, commit(9))
    assert checkpoint.start()[2].decided.commit.batch == 9


@pytest.mark.parametrize("completed", [True, False])
def test_a_detachment_that_crashed_behind_its_last_entry_is_found(tmp_path, completed):
    """Also where that stands behind the DONE of the batch that it completed."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(0)
    log, generation, _ = checkpoint.start()
    if completed:
        log.append(generation, Done(0))
    assert ended_by(checkpoint.bound(), DETACHED) is None
    detaching._leave(checkpoint.bound(), generation, 2 if completed else 1)
    assert ended_by(checkpoint.bound(), DETACHED)[0] == generation
    assert ended_by(checkpoint.bound(), MOVED) is None


@pytest.mark.parametrize("completed", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_a_log_whose_newest_run_began_with_a_batch_of_many_transactions_is_moved_and_detached(
    tmp_path, whole, completed
):
    """Its COMMIT is a table, in a format of its own."""
    checkpoint = Whole(tmp_path)
    checkpoint.live(0)
    log, generation, _ = checkpoint.start()
    if completed:
        log.append(generation, Done(0))
    many = tuple({"id": f"w-{number}"} for number in range(FEWEST))
    log.append(generation, replace(commit(1), committables={"out": many}))
    log.append(generation, Done(1))
    assert ended_by(checkpoint.bound(), DETACHED) is None
    move = move_checkpoint if whole else move_log
    assert move(str(checkpoint.path), str(tmp_path / "new")).entries > 0


@pytest.mark.parametrize("deleted", [True, False])
def test_a_log_move_that_others_have_finished_and_overtaken_points_nowhere(
    tmp_path, meanwhile, deleted
):
    """What it left was moved on, and may be deleted then."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(0)

    def others():
        checkpoint.move(tmp_path / "x")
        checkpoint.live(1)
        checkpoint.move(tmp_path / "y")
        checkpoint.live(2)
        if deleted:
            shutil.rmtree(tmp_path / "x" / "chains")

    meanwhile(repointing, "point_to", others)
    with pytest.raises(CheckpointMismatchError, match=r"it has made it lead to file:.*/y\. That"):
        checkpoint.move(tmp_path / "x")
    assert checkpoint.bound().location == (tmp_path / "y").as_uri()
    assert checkpoint.start()[2].decided.commit.batch == 2


def test_a_detachment_that_wakes_behind_a_return_leaves_that_alone(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(0)
    bound, home = checkpoint.bound(), LocalStore(checkpoint.home)
    repointing.point_nowhere(home, bound, 0)
    assert binding.find(home) is None
    repointing.point_nowhere(home, bound, 0)
    returned = binding.bind(home, str(checkpoint.path), None, query_id=QUERY, first_generation=1)
    with pytest.raises(CheckpointMismatchError, match="Another command"):
        repointing.point_nowhere(home, bound, 0)
    assert binding.find(home).id == returned.id != bound.id


class Gone(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def detachable(tmp_path, monkeypatch):
    """A checkpoint that can be detached without sinks."""
    monkeypatch.setattr(detaching, "_checked", lambda *_, **__: {})
    monkeypatch.setattr(detaching, "_recover", recover)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(0)
    (checkpoint.path / "offsets").mkdir()
    (checkpoint.path / "offsets" / "0").write_text(f"v1\n{{}}\n{commit(0).offsets[0]}")

    def detach():
        return detaching.detach(checkpoint.path, {"out": FileSink(tmp_path / "out")})

    checkpoint.detach = detach
    return checkpoint


def returned(checkpoint):
    """Start the query with onceforall again, behind a detachment; return its log and generation."""
    first = spark_checkpoint.detached_generation(checkpoint.path) + 1
    log = binding.bind(
        LocalStore(checkpoint.home), str(checkpoint.path), None,
        query_id=QUERY, first_generation=first,
    ).log()  # fmt: skip
    generation = log.claim(Claim(QUERY, "run", str(checkpoint.path), "tests")).generation
    log.seal_below(generation)
    return log, generation


def test_a_detachment_that_wakes_behind_another_one_and_a_return_changes_nothing(
    detachable, meanwhile
):
    runs = []

    def others():
        detachable.detach()
        runs.append(returned(detachable))

    meanwhile(repointing, "point_nowhere", others)
    with pytest.raises(CheckpointMismatchError, match="Another command has changed"):
        detachable.detach()
    ((log, generation),) = runs
    log.append(generation, commit(1))
    assert returned(detachable)[0].look().decided.commit.batch == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_return_begins_another_log_and_goes_with_a_checkpoint_that_is_moved_by_hand(
    detachable, tmp_path, elsewhere
):
    """Whatever is left of the old one, and whoever asked for the generation before."""
    if elsewhere:
        move_log(str(detachable.path), str(tmp_path / "x"))
    place_of_it = (tmp_path / "x").as_uri() if elsewhere else None
    before = detachable.bound()
    detachable.detach()
    assert binding.find(LocalStore(detachable.home)) is None
    for number in range(2):
        bound = binding.bind(
            LocalStore(detachable.home), str(detachable.path), place_of_it, query_id=QUERY
        )
        assert bound.id != before.id
        assert bound.first_generation > (before.log().newest_generation() or 0)
        parent = detachable.home if place_of_it is None else tmp_path / "x"
        again = parent / f"again-{bound.first_generation}"
        assert bound.location == again.as_uri()
        log = bound.log()
        generation = log.claim(Claim(QUERY, "run", str(detachable.path), "tests")).generation
        log.seal_below(generation)
        log.append(generation, commit(number + 1))
        log.append(generation, Done(number + 1))
        moved = detachable.path.rename(tmp_path / f"moved {number} %20")
        found = binding.find(LocalStore(moved / "onceforall"), place_of_it)
        assert found.id == bound.id
        assert found.log().look().decided.commit.batch == number + 1
        moved.rename(detachable.path)
        (detachable.path / "offsets" / str(number + 1)).write_text(
            f"v1\n{{}}\n{commit(number + 1).offsets[0]}"
        )
        detachable.detach()
        before = bound
    assert (detachable.home / "pointer").is_dir()


def test_a_start_that_stood_still_behind_another_start_and_its_detachment_is_refused(
    detachable, meanwhile
):
    detachable.detach()

    def others():
        returned(detachable)
        detachable.detach()

    meanwhile(binding, "create_pointer", others)
    with pytest.raises(CheckpointMismatchError, match="Start again, if"):
        returned(detachable)
    returned(detachable)


def test_a_run_that_starts_behind_a_detachments_last_entry_is_refused_and_one_before_it_wins(
    detachable, meanwhile
):
    """Whenever it is killed then, no run decides in a log that is set aside."""
    run = []
    meanwhile(detaching, "_leave", lambda: run.append(detachable.start()))
    with pytest.raises(FencedError, match="started while it was being detached"):
        detachable.detach()
    ((log, generation, _),) = run
    log.append(generation, commit(1))

    def late():
        with pytest.raises(CheckpointMismatchError, match="made a plain query's"):
            detachable.start()

    meanwhile(repointing, "point_nowhere", late)
    log.append(generation, Done(1))
    (detachable.path / "offsets" / "1").write_text(f"v1\n{{}}\n{commit(1).offsets[0]}")
    assert detachable.detach().log == detachable.home
    assert "was detached before" in detachable.detach().steps[-1]


def test_a_start_that_stands_still_with_a_new_folder_meets_the_detachment(detachable):
    shutil.rmtree(detachable.home)
    detachable.home.mkdir()
    store = LocalStore(detachable.home)
    store.create("onceforall.probe", b"it holds the folder")
    late = []
    bind = binding.bind
    with pytest.MonkeyPatch.context() as patched:
        # It has bound the folder, and claims when the checkpoint is a plain query's.
        patched.setattr(
            binding, "bind", lambda *args, **more: late.append(bind(*args, **more)) or late[0]
        )
        assert detachable.detach().log == detachable.home
    log = late[0].log()
    generation = log.claim(Claim(QUERY, "late", str(detachable.path), "tests")).generation
    with pytest.raises(CheckpointMismatchError, match="made a plain query's"):
        log.seal_below(generation)


@pytest.mark.parametrize("has_returned", [False, True])
def test_a_checkpoint_move_that_wakes_behind_a_detachment_moves_nothing(
    detachable, tmp_path, meanwhile, has_returned
):
    def others():
        detachable.detach()
        if has_returned:
            returned(detachable)

    meanwhile(moving, "copy_log", others)
    with pytest.raises(CheckpointMismatchError, match="made a plain query's"):
        move_checkpoint(str(detachable.path), str(tmp_path / "new"))
    returned(detachable)
    with pytest.raises(CheckpointMismatchError, match="is being moved here"):
        at(tmp_path / "new").bound()
    with pytest.raises(CheckpointMismatchError, match="is being moved here"):
        detaching.detach(tmp_path / "new", {"out": FileSink(tmp_path / "files")})


def test_of_a_detached_checkpoint_the_commands_say_what_it_is(detachable, tmp_path):
    detachable.detach()
    for command in (move_checkpoint, move_log):
        with pytest.raises(OptionError, match="was made a plain Spark query's"):
            command(str(detachable.path), str(tmp_path / "new"))
    with pytest.raises(OptionError, match="was made a plain Spark query's"):
        mending.mend(detachable.path)


def test_a_log_move_that_wakes_behind_a_detachment_leaves_that_alone(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(0)
    bound, home = checkpoint.bound(), LocalStore(checkpoint.home)
    repointing.point_nowhere(home, bound, 0)
    with pytest.raises(CheckpointMismatchError, match="it has detached it from its log"):
        repointing.point_to(home, bound, "file:///x", bound.id, LocalStore(tmp_path / "x"))
    assert binding.find(home) is None


def test_a_copy_beside_a_cleaner_has_the_mark_of_what_is_gone(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(*range(6))
    checkpoint.live(6)
    log, generation, _ = checkpoint.start(retain_commits=1)
    deleted, create = [], moving._create

    def cleaned_behind(ask, target, key, content):
        create(ask, target, key, content)
        if not deleted:
            deleted.append(log.clean(generation))

    monkeypatch.setattr(moving, "_create", cleaned_behind)
    checkpoint.move(tmp_path / "x")
    assert deleted[0] > 5
    copied = sorted(file.name for file in (tmp_path / "x/chains/00000000").iterdir())
    assert "sealed.json" in copied
    assert len(copied) < 13, "nothing was cleaned while it was copied"
    view = CommitLogObserver(checkpoint.path).view()
    assert [entry.batch for _, entry in view.chains[1] if isinstance(entry, Done)] == [6]


def test_a_copy_of_what_is_gone_without_a_cleaner_is_refused(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(0, 1, 2)
    checkpoint.live(3)
    (checkpoint.home / "chains/00000000/00000002.json").unlink()
    with pytest.raises(OnceForAllError, match="00000002.json has vanished .* Nothing was moved"):
        checkpoint.move(tmp_path / "x")
    assert checkpoint.bound().location is None


def test_a_file_of_state_is_not_replaced_where_the_query_runs_by_now(tmp_path, meanwhile):
    checkpoint = Whole(tmp_path)
    checkpoint.live(0)
    file = "state/0/1/2.delta"
    checkpoint.put(file, "of an attempt that was not decided")

    def others():
        checkpoint.put(file, "of the decided batch")
        checkpoint.live(1)
        checkpoint.plan(1)
        checkpoint.move(tmp_path / "new")
        at(tmp_path / "new").live(2)

    real, calls = moving_checkpoint._check_expected, []

    def checked(*args):
        real(*args)
        calls.append(args)

    # Behind its check, in front of the write.
    write = moving_checkpoint.create_file
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moving_checkpoint, "_check_expected", checked)

        def woken(place_of_it, content):
            if place_of_it.name == "2.delta":
                patched.setattr(moving_checkpoint, "create_file", write)
                others()
            return write(place_of_it, content)

        patched.setattr(moving_checkpoint, "create_file", woken)
        with pytest.raises(FencedError, match="Start the query there"):
            checkpoint.move(tmp_path / "new")
    assert calls
    assert (tmp_path / "new" / file).read_text() == "of the decided batch"


@pytest.mark.parametrize("gone", [True, False])
def test_parts_of_an_earlier_try_are_named_where_the_query_has_run_since(
    tmp_path, monkeypatch, gone
):
    checkpoint = Whole(tmp_path)
    checkpoint.live(0)
    with monkeypatch.context() as patched:
        patched.setattr(moving, "leave_moved", lambda *_, **__: (_ for _ in ()).throw(OSError))
        with pytest.raises(OSError):
            checkpoint.move(tmp_path / "new")
    checkpoint.live(1)
    if gone:
        (checkpoint.path / "state/0/1/3.zip").unlink()
    else:
        checkpoint.put("state/0/1/3.zip", "other rows")
    with pytest.raises(CheckpointMismatchError, match=r"state/0/1/3\.zip .* delete that folder"):
        checkpoint.move(tmp_path / "new")
    shutil.rmtree(tmp_path / "new")
    new, _ = checkpoint.move(tmp_path / "new")
    assert new.start()[2].decided.commit.batch == 1


def test_an_observer_beside_a_move_sees_what_is_decided(tmp_path, meanwhile):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.live(0, 1)
    observer = CommitLogObserver(checkpoint.path)
    find = binding.find
    moved = []

    def found(*args, **kwargs):
        bound = find(*args, **kwargs)
        if not moved:
            moved.append(bound)
            checkpoint.move(tmp_path / "x")
            checkpoint.live(2)
        return bound

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(binding, "find", found)
        assert observer.decided() == range(3)
    assert moved


class _WrongError(Exception):
    """Something that must never be."""


class _KilledError(BaseException):
    """The command is gone."""


def recover(path, config, log, sinks, *, timeout_s, report):
    """What a detachment does with the log before its last steps, without sinks."""
    claim = Claim(config.query_id, config.run_id, str(path), config.owner,
                  host=config.host, boot_id=config.boot_id, storage=config.storage)  # fmt: skip
    generation = log.claim(claim).generation
    decided = log.seal_below(generation).decided
    completed = None
    if decided is not None and not decided.done:
        completed = decided.commit.batch
        log.append(generation, Done(completed))
    return detaching._Recovered(generation, decided, completed)


class World:
    """A query that is started, killed, moved and detached at random, by commands that stand
    still."""

    def __init__(self, seed, folder, patch):
        self.random = random.Random(seed)
        self.folder = folder
        self.last = self.newest = -1
        self.told = []
        self.places = [Whole(folder)]
        for name in ("offsets", "commits"):
            (self.places[0].path / name / "0").unlink()
        self.alive = []
        self.woken = self.moved = self.detached = 0
        self.until, self.act, self.stands_still = None, None, False
        for owner, name in (
            (LocalStore, "create"), (LocalStore, "delete"), (LocalStore, "read"),
            (moving_checkpoint, "create_file"), (Path, "rename"),
        ):  # fmt: skip
            patch.setattr(owner, name, self._around(getattr(owner, name)))
        patch.setattr(detaching, "_checked", lambda *_, **__: {})
        patch.setattr(detaching, "_recover", recover)
        self.start(self.places[0])

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

    def say(self, *words):
        self.told.append(" ".join(map(str, words)))

    def start(self, checkpoint, batches=None):
        """Start the query there; False: it is refused."""
        if not (checkpoint.path / "metadata").exists():
            return False
        options = DROPS_SOON if self.random.random() < 0.5 else {}
        try:
            first = spark_checkpoint.detached_generation(checkpoint.path) + 1
            bound = binding.bind(
                LocalStore(checkpoint.home), str(checkpoint.path), None,
                query_id=QUERY, first_generation=first,
            )  # fmt: skip
            log = open_log(
                bound.store, first_generation=bound.first_generation,
                keep_ends=bound.keep_ends, **options,
            )  # fmt: skip
            here = asdict(place.here(checkpoint.path))
            config = RunConfig(QUERY, "", str(checkpoint.path), (), **here)
            refusal = judge_claim(config, log.newest_claim())
            if refusal is not None:
                raise refusal.error(refusal.message)
            claim = Claim(QUERY, "run", str(checkpoint.path), "tests", **here)
            generation = log.claim(claim).generation
            decided = log.seal_below(generation).decided
        except (CheckpointMismatchError, FencedError) as error:
            self.say("start in", checkpoint.path.name, "refused:", error)
            return False
        if self.stands_still and self._is_overtaken(bound, log, generation):
            self.say("start in", checkpoint.path.name, "generation", generation, "is overtaken")
            return False
        if generation <= self.newest:
            raise _WrongError(f"generation {generation} behind {self.newest}: names are used twice")
        self.newest = generation
        # Of a log that was begun behind a detachment, Spark's entries tell what was before.
        before = spark_checkpoint.last_committed(checkpoint.path) if bound.first_generation else -1
        known = before if decided is None else decided.commit.batch
        self.say("start in", checkpoint.path.name, "generation", generation, "knows", known)
        if known != self.last:
            raise _WrongError(f"a start knows {known}, and the last decision is {self.last}")
        if decided is not None and not decided.done:
            log.append(generation, Done(known))
        if options:
            log.clean(generation)
        for _ in range(self.random.randint(0, 2) if batches is None else batches):
            self._decide(log, generation, checkpoint)
        self.alive = [*self.alive, (log, generation, checkpoint)][-4:]
        return True

    @staticmethod
    def _is_overtaken(bound, log, generation):
        """Whoever came later seals before it decides, or ends the log."""
        left = ended_by(bound, DETACHED) or ended_by(bound, MOVED)
        return log.newest_generation() > generation or (left is not None and left[0] > generation)

    def _decide(self, log, generation, checkpoint):
        decision = commit(self.last + 1, f"g{generation}")
        log.append(generation, decision)
        self.last += 1
        checkpoint.put(f"offsets/{self.last}", f"v1\n{{}}\n{decision.offsets[0]}")
        checkpoint.put(f"commits/{self.last}", "v1\n{}")
        log.append(generation, Done(self.last))

    def start_everywhere(self, batches=None):
        """Start it in every place; return in how many it began."""
        began = [each for each in self.places if self.start(each, batches)]
        if len(began) > 1:
            raise _WrongError(f"two places at once: {[each.path.name for each in began]}")
        return len(began)

    def others(self):
        what = self.random.random()
        if what < 0.4:
            self.start_everywhere()
        elif what < 0.6:
            for _ in range(self.random.randint(2, 6)):
                self.start_everywhere(1)
        elif what < 0.75:
            self.move()
        elif what < 0.85:
            self.detach()
        elif self.alive:
            run = self.random.choice(self.alive)
            with contextlib.suppress(OnceForAllError):
                self._decide(*run)
                self.say("a run of generation", run[1], "goes on:", self.last)

    def move(self, whole=None, checkpoint=None, name=None):
        whole = self.random.random() < 0.5 if whole is None else whole
        checkpoint = checkpoint or self.random.choice(self.places)
        names = ["p", "q", "checkpoint"] if whole else ["x", "y"]
        to = self.folder / (name or self.random.choice(names))
        self.say("move of", checkpoint.path.name, "to", to.name)
        try:
            (move_checkpoint if whole else move_log)(str(checkpoint.path), str(to))
        except OnceForAllError as error:
            self.say("  ", type(error).__name__, error)
            if whole and "delete that folder" in str(error) and self.until is None:
                shutil.rmtree(to)
        else:
            self.moved += 1
        finally:
            known = any(each.path == to for each in self.places)
            if whole and not known and (to / "onceforall").exists():
                self.places.append(at(to))

    def detach(self, checkpoint=None):
        checkpoint = checkpoint or self.random.choice(self.places)
        self.say("detachment of", checkpoint.path.name)
        try:
            detaching.detach(checkpoint.path, {"out": FileSink(self.folder / "out")})
        except OnceForAllError as error:
            self.say("  ", type(error).__name__, error)
        else:
            self.detached += 1

    def step(self):
        if self.random.random() < 0.3:
            self.start_everywhere()
            return

        def stand_still():
            self.say("  stands still")
            for _ in range(self.random.randint(1, 3)):
                self.others()
            self.say("  wakes")
            self.woken += 1
            if self.random.random() < 0.3:
                self.until, self.act = self.random.randint(1, 30), kill

        def kill():
            self.say("  is killed")
            raise _KilledError

        self.until, self.act = self.random.randint(1, 250), stand_still
        if self.random.random() < 0.4:
            self.until = self.random.randint(1, 80)
        what = self.random.random()
        try:
            if what < 0.5:
                self.move()
            elif what < 0.8:
                self.detach()
            else:
                self.until = self.random.randint(1, 60)
                self.stands_still = True
                self.start(self.random.choice(self.places), batches=0)
        except _KilledError:
            pass
        self.until, self.stands_still = None, False

    def end(self):
        """Whatever happened, commands that the errors name lead on."""
        for _ in range(3):
            for checkpoint in list(self.places):
                for whole, names in ((True, ("p", "q", "checkpoint")), (False, ("x", "y"))):
                    for name in names:
                        if self.start_everywhere(1):
                            return
                        self.move(whole, checkpoint, name)
                if checkpoint.home.exists():
                    self.detach(checkpoint)
        raise _WrongError("no command leads on")


@pytest.mark.parametrize(
    "seeds",
    [range(60), pytest.param(range(60, 1500), marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
)
def test_of_places_that_were_moved_at_random_one_decides_and_knows_all(
    tmp_path, monkeypatch, seeds
):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    woken = moved = detached = 0
    for seed in seeds:
        folder = tmp_path / str(seed)
        with monkeypatch.context() as patched:
            world = World(seed, folder, patched)
            try:
                for _ in range(world.random.randint(2, 7)):
                    world.step()
                world.end()
            except _WrongError as error:
                pytest.fail("\n".join([f"seed {seed}: {error}", *world.told]))
        woken += world.woken
        moved += world.moved
        detached += world.detached
        shutil.rmtree(folder)
    assert woken > len(seeds)
    assert moved > len(seeds) / 2
    assert detached > len(seeds) / 2
