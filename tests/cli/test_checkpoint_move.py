"""``onceforall checkpoint move``: the query goes on in the new place with all that Spark and the log
had, the old place can't run on, and a move that was killed anywhere is finished by the same
command."""

import contextlib
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from cli.test_log_move import PROGRAM, QUERY, Checkpoint
from commit_log.building import commit, open_log
from commit_log.test_remote import ScriptedClient
from onceforall.cli import main
from onceforall.commit_log import CommitLog, LocalStore, binding
from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.errors import CheckpointMismatchError, CommitLogError, FencedError, OptionError
from onceforall.operate import moving, moving_checkpoint
from onceforall.operate.detaching import detach
from onceforall.operate.moving_checkpoint import move_checkpoint
from onceforall.protocol.entries import Claim, Done
from onceforall.sinks.files import FileSink
from onceforall.spark import mending, repairs
from onceforall.spark.remote_path import RemotePath
from onceforall.spark.stores import Stores

SCHEMA = "state/0/_stateSchema/default/0_schema"


class Whole(Checkpoint):
    """With files as Spark has them."""

    def __init__(self, folder):
        super().__init__(folder)
        self.plan(0)
        self.put("sources/0/0", "v1\n{}")
        self.put(SCHEMA, "a schema")
        self.put("state/0/1/3.zip", b"\x00\xff" * 500)
        named = [f"file:{self.path}/{SCHEMA}", f"{self.path}/{SCHEMA}", "file:/other/place"]
        self.put("state/0/_metadata/v2/0", "v2\n" + json.dumps({"stateSchemaFilePaths": named}))
        self.put("state/0/1/.3.zip.tmp", "half of it")
        (self.path / "onceforall.detached-1").mkdir()

    def plan(self, batch):
        self.put(f"offsets/{batch}", f'v1\n{{"batchTimestampMs": {batch}}}\n{batch}')
        self.put(f"commits/{batch}", "v1\n{}")

    def put(self, name, content):
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def pointers(self):
        return [json.loads(file.read_text()) for file in sorted((self.home / "pointer").iterdir())]

    def files(self):
        return {
            str(file.relative_to(self.path)): file.read_bytes()
            for file in self.path.rglob("*")
            if file.is_file() and "onceforall" not in str(file.relative_to(self.path))
        }

    def move(self, to):
        moved = move_checkpoint(str(self.path), str(to))
        return at(to), moved


def at(path):
    """The checkpoint that lies there."""
    found = object.__new__(Whole)
    found.path, found.home = path, path / "onceforall"
    return found


@pytest.fixture
def checkpoint(tmp_path):
    return Whole(tmp_path / "näme %20 + #")


def assert_left(old):
    """It can't run on with onceforall, and the error says where the checkpoint is."""
    log = open_log(LocalStore(old.home))
    generation = log.claim(Claim(QUERY, "late", str(old.path), "tests")).generation
    with pytest.raises(CheckpointMismatchError, match="this checkpoint was moved to"):
        log.seal_below(generation)


def assert_same(new, old, to_name=str):
    """It has all of Spark's files, and names itself in the metadata of state."""
    before, after = old.files(), new.files()
    hidden = {name for name in before if name.rpartition("/")[2].startswith(".")}
    assert hidden
    assert after.keys() == before.keys() - hidden
    metadata = "state/0/_metadata/v2/0"
    differing = {name for name, content in after.items() if content != before[name]}
    assert differing == {metadata}
    named = json.loads(after[metadata].splitlines()[1])["stateSchemaFilePaths"]
    assert named == [
        f"file:{new.path}/{SCHEMA}", f"file:{new.path}/{SCHEMA}", "file:/other/place"
    ]  # fmt: skip


def test_a_checkpoint_is_moved_and_the_query_goes_on_there(checkpoint, tmp_path):
    checkpoint.live(0, 1)
    checkpoint.live(2)
    new, moved = checkpoint.move(tmp_path / "new")
    assert (moved.location, moved.files, moved.entries) == (str(new.path), 7, 11)
    assert_same(new, checkpoint)
    assert new.bound().location is None
    claim = open_log(LocalStore(new.home)).newest_claim()
    assert (claim.checkpoint, claim.kinds) == (str(new.path), {"a": "fake"})
    log, generation, history = new.start()
    assert (history.decided.commit, history.decided.done) == (commit(2, "g1"), True)
    log.append(generation, commit(3))
    assert_left(checkpoint)
    again = move_checkpoint(str(checkpoint.path), str(new.path))
    assert (again.files, again.entries) == (0, 0)
    assert new.start()[2].decided.commit == commit(3)


def test_a_checkpoint_that_was_renamed_is_moved_where_that_is_said(checkpoint, tmp_path):
    checkpoint.live(0)
    renamed = checkpoint.path.rename(tmp_path / "renamed")
    with pytest.raises(CheckpointMismatchError, match=r"copied or moved.*--adopt-checkpoint"):
        move_checkpoint(str(renamed), str(tmp_path / "there"))
    moved = move_checkpoint(str(renamed), str(tmp_path / "there"), adopt_checkpoint=True)
    assert (moved.entries, (tmp_path / "there" / "metadata").exists()) > (0, False)


def test_a_run_that_is_alive_is_fenced(checkpoint, tmp_path):
    log, generation = checkpoint.live(0)
    new, _ = checkpoint.move(tmp_path / "new")
    with pytest.raises(FencedError):
        log.append(generation, commit(1))
    assert new.start()[2].decided.commit == commit(0, "g0")


def test_a_log_that_lay_elsewhere_comes_home(checkpoint, tmp_path):
    checkpoint.live(0)
    moving.move_log(str(checkpoint.path), str(tmp_path / "logs"))
    checkpoint.live(1)
    new, _ = checkpoint.move(tmp_path / "new")
    assert new.bound().location is None
    assert new.start()[2].decided.commit.batch == 1
    with pytest.raises(CheckpointMismatchError, match="this checkpoint was moved"):
        checkpoint.start()


def test_a_checkpoint_is_moved_twice_and_not_back_into_the_old_folder(checkpoint, tmp_path):
    checkpoint.live(0)
    second, _ = checkpoint.move(tmp_path / "b")
    second.live(1)
    second.plan(1)
    checkpoint.plan(1)
    third, _ = second.move(tmp_path / "c")
    assert third.start()[2].decided.commit.batch == 1
    assert_same(third, checkpoint)
    with pytest.raises(CheckpointMismatchError, match="onceforall checkpoint move .*/c"):
        second.move(tmp_path / "d")
    with pytest.raises(CheckpointMismatchError, match="was written for the checkpoint|something"):
        third.move(checkpoint.path)


def test_what_a_killed_start_has_set_aside_goes_along(checkpoint, tmp_path):
    """As a start, or the command to mend, would have laid it back: the new place gets none of it
    else."""
    checkpoint.live(0, 1)
    checkpoint.live(2)
    checkpoint.plan(1)
    checkpoint.plan(2)
    before = checkpoint.files()
    aside = checkpoint.path / "onceforall-set-aside"
    aside.mkdir()
    (checkpoint.path / "state").rename(aside / "state.0a0b0c0d.taken")
    (checkpoint.path / "offsets" / "2").rename(aside / "offsets.2.0a0b0c0d.taken")
    new, _ = checkpoint.move(tmp_path / "new")
    assert checkpoint.files().keys() == before.keys()
    assert_same(new, checkpoint)


def begun(folder, *, decided, boot_id="elsewhere"):
    """A checkpoint whose first batch a run on another machine has written the state of."""
    made = Whole(folder)
    made.live()
    (made.path / "commits" / "0").unlink()
    (made.path / "state" / "0" / "1" / "3.zip").unlink()
    made.put("state/0/1/1.zip", "of the first batch")
    log = CommitLog(LocalStore(made.home), first_generation=made.bound().first_generation)
    generation = log.claim(Claim(QUERY, "run", str(made.path), boot_id=boot_id)).generation

    def decide():
        log.append(generation, commit(0))
        log.append(generation, Done(0))
        made.put("commits/0", "v1\n{}")

    if decided:
        decide()
    return made, decide


def test_state_of_a_run_that_decides_while_the_move_begins_goes_along(tmp_path, monkeypatch):
    """It was taken for one that was cut off, and its state set aside."""
    old, decide = begun(tmp_path / "old", decided=False)
    before = old.files()
    assert "state" in mending.mend(old.path).steps[0]
    copy_log = moving.copy_log

    def late(*arguments, **adopt):
        decide()
        return copy_log(*arguments, **adopt)

    monkeypatch.setattr(moving, "copy_log", late)
    new, _ = old.move(tmp_path / "new")
    assert old.files().keys() == before.keys() | {"commits/0"}
    assert_same(new, old)


@pytest.mark.parametrize("comes_back", [True, False])
def test_state_that_a_start_takes_away_while_it_is_copied_ends_the_move(
    tmp_path, monkeypatch, comes_back
):
    """It stood still since before the batch was decided; it looks at what it has taken, and lays
    it back, unless it is killed in between."""
    old, _ = begun(tmp_path / "old", decided=True)
    before = old.files()
    taken = old.path / "onceforall-set-aside" / "state.0-aaaaaaaa.taken"
    names = moving_checkpoint._names
    listed = []

    def with_a_late_start(checkpoint):
        if checkpoint == old.path and not listed:
            assert repairs._set_aside(old.path / "state", taken)
            listed.append(names(checkpoint))
            if comes_back:
                repairs._lay_back(taken, old.path / "state")
            return listed[0]
        return names(checkpoint)

    with monkeypatch.context() as patched:
        patched.setattr(moving_checkpoint, "_names", with_a_late_start)
        with pytest.raises(FencedError, match="have come or gone while they were copied"):
            old.move(tmp_path / "new")
    assert listed
    assert not any(name.startswith("state") for name in listed[0])
    new, _ = old.move(tmp_path / "new")
    assert old.files().keys() == before.keys()
    assert_same(new, old)


def test_state_that_a_killed_start_has_taken_just_before_the_copy_ends_the_move(
    tmp_path, monkeypatch
):
    old, _ = begun(tmp_path / "old", decided=True)
    before = old.files()
    taken = old.path / "onceforall-set-aside" / "state.0-aaaaaaaa.taken"

    def look(checkpoint):
        if not taken.exists():
            assert repairs._set_aside(old.path / "state", taken)
        return repairs.set_aside_under(checkpoint)

    with monkeypatch.context() as patched:
        patched.setattr(moving_checkpoint, "set_aside_under", look)
        with pytest.raises(FencedError, match="have come or gone while they were copied"):
            old.move(tmp_path / "new")
    new, _ = old.move(tmp_path / "new")
    assert old.files().keys() == before.keys()
    assert_same(new, old)


def test_state_that_may_be_torn_is_set_aside_before_the_move_for_nobody_can_tell_behind_it(
    tmp_path,
):
    old, _ = begun(tmp_path / "old", decided=False)
    old.put(SCHEMA, "half of i")
    new, _ = old.move(tmp_path / "new")
    assert [name for name in new.files() if name.startswith("state")] == []
    assert "sources/0/0" in new.files()


def test_a_move_that_is_finished_under_another_name_says_which_name_to_give_back(
    checkpoint, tmp_path, monkeypatch
):
    checkpoint.live(0)
    with monkeypatch.context() as patched:
        patched.setattr(moving_checkpoint, "_take_over", lambda *_: (_ for _ in ()).throw(OSError))
        with pytest.raises(OSError):
            checkpoint.move(tmp_path / "new")
    renamed = checkpoint.path.rename(checkpoint.path.with_name("renamed"))
    with pytest.raises(CheckpointMismatchError, match=r"/checkpoint is being .* its name"):
        move_checkpoint(str(renamed), str(tmp_path / "new"))
    renamed.rename(checkpoint.path)
    new, _ = checkpoint.move(tmp_path / "new")
    assert new.start()[2].decided.commit == commit(0, "g0")


def test_the_command_that_finishes_a_move_can_be_typed_whatever_the_names_are(
    checkpoint, tmp_path, monkeypatch
):
    checkpoint.live(0)
    old = checkpoint.path = checkpoint.path.rename(checkpoint.path.with_name("old 'one'"))
    new = tmp_path / "new one"
    with monkeypatch.context() as patched:
        patched.setattr(moving_checkpoint, "_take_over", lambda *_: (_ for _ in ()).throw(OSError))
        with pytest.raises(OSError):
            move_checkpoint(str(old), str(new), adopt_checkpoint=True)
    with pytest.raises(CheckpointMismatchError) as there:
        binding.find(LocalStore(new / "onceforall"))
    with pytest.raises(CheckpointMismatchError) as here:
        move_checkpoint(str(old), str(tmp_path / "elsewhere"))
    for refused in (there, here):
        command = shlex.split(str(refused.value).partition("Finish it: ")[2])
        assert command == ["onceforall", "checkpoint", "move", str(old), str(new)]
    assert main(command[1:]) == 0


def test_a_checkpoint_without_its_id_is_named(checkpoint, tmp_path):
    checkpoint.live(0)
    (checkpoint.path / "metadata").unlink()
    for command in (move_checkpoint, moving.move_log):
        with pytest.raises(OptionError, match="metadata is missing, which names the query"):
            command(str(checkpoint.path), str(tmp_path / "new"))
    with pytest.raises(OptionError, match="metadata is missing, which names the query"):
        detach(checkpoint.path, {"out": FileSink(tmp_path / "out")})


def test_a_batch_that_is_not_complete_is_completed_first(checkpoint, tmp_path):
    log, generation = checkpoint.live(0)
    log.append(generation, commit(1))
    with pytest.raises(CheckpointMismatchError, match="Batch 1 is decided.*Start the query once"):
        checkpoint.move(tmp_path / "new")
    assert not (tmp_path / "new" / "metadata").exists()


@pytest.mark.parametrize("folder", ["offsets", "sources"])
def test_a_folder_that_may_not_be_read_is_named_and_nothing_is_moved(
    checkpoint, tmp_path, monkeypatch, folder
):
    """The mover may be another user than the query's."""
    checkpoint.live(0)
    real = os.scandir

    def scandir(path):
        if str(path) == str(checkpoint.path / folder):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        with pytest.raises(CommitLogError, match=f"{folder}: Permission denied. Nothing was moved"):
            checkpoint.move(tmp_path / "new")
    new, _ = checkpoint.move(tmp_path / "new")
    assert_same(new, checkpoint)


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_file_that_can_not_be_copied_is_named_and_nothing_is_moved(
    checkpoint, tmp_path, monkeypatch, what
):
    checkpoint.live(0)

    def refuse(*_):
        raise OSError(28, "No space left on device", "/the/file")

    with monkeypatch.context() as patched:
        if what == "write":
            patched.setattr(moving_checkpoint, "create_file", refuse)
        else:
            patched.setattr(moving_checkpoint, "_at", refuse)
        with pytest.raises(CommitLogError, match=r"/the/file: No space .* repeat the command"):
            checkpoint.move(tmp_path / "new")
    new, _ = checkpoint.move(tmp_path / "new")
    assert_same(new, checkpoint)


@pytest.mark.parametrize("content", [b"v2\n{torn", b"\xff\xfe", b""])
def test_metadata_of_state_that_is_damaged_is_named(checkpoint, tmp_path, content):
    checkpoint.live(0)
    checkpoint.put("state/0/_metadata/v2/0", content)
    with pytest.raises(CheckpointMismatchError, match="v2/0 is damaged.*Nothing was moved"):
        checkpoint.move(tmp_path / "new")
    assert checkpoint.start()[2].decided.commit.batch == 0


def test_the_root_of_the_file_system_is_refused_and_not_searched(checkpoint, monkeypatch):
    checkpoint.live(0)
    monkeypatch.setattr(moving_checkpoint, "files_below", lambda folder: pytest.fail(str(folder)))
    with pytest.raises(OptionError, match="lie in each other"):
        checkpoint.move("/")


def test_a_place_with_much_in_it_is_refused_without_a_look_at_all_of_it(
    checkpoint, monkeypatch, tmp_path
):
    checkpoint.live(0)
    listed = []

    class Bucket(ScriptedClient):
        def list(self, folder):
            listed.append(folder)
            return ["2025/", "2026/"] if not folder else ["data.parquet"]

    full = RemotePath(Bucket())
    checkpoint_at = Stores.checkpoint
    monkeypatch.setattr(
        Stores,
        "checkpoint",
        lambda self, text: full if text.startswith("s3a:") else checkpoint_at(self, text),
    )
    with pytest.raises(CheckpointMismatchError, match="holds something else"):
        checkpoint.move("s3a://bucket/lake")
    assert "2025" in listed
    assert "2026" not in listed


def test_a_place_below_a_file_is_refused(checkpoint, tmp_path):
    checkpoint.live(0)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CommitLogError, match="Not a directory"):
        checkpoint.move(tmp_path / "file" / "new")
    assert checkpoint.start()[2].decided.commit.batch == 0


def test_a_place_that_depends_on_the_working_folder_is_refused(checkpoint, monkeypatch, tmp_path):
    checkpoint.live(0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="new is not an absolute path"):
        checkpoint.move("new")
    assert not (tmp_path / "new").exists()


def test_places_that_can_not_be_are_refused_and_nothing_is_moved(checkpoint, tmp_path):
    checkpoint.live(0)
    for inside in (checkpoint.path / "new", tmp_path):
        with pytest.raises(OptionError, match="lie in each other"):
            checkpoint.move(inside)
    with pytest.raises(OptionError, match="no commit log"):
        move_checkpoint(str(tmp_path / "nothing"), str(tmp_path / "new"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    other = Whole(tmp_path / "other")
    (other.path / "metadata").write_text(json.dumps({"id": "another"}))
    for taken in (tmp_path / "full", other.path):
        with pytest.raises(CheckpointMismatchError, match="Name an empty folder"):
            checkpoint.move(taken)
    assert checkpoint.start()[2].decided.commit == commit(0, "g0")


def test_what_reads_otherwise_than_it_was_written_is_told_and_nothing_is_moved(
    checkpoint, tmp_path, monkeypatch
):
    checkpoint.live(0)
    write = moving_checkpoint.create_file
    monkeypatch.setattr(
        moving_checkpoint, "create_file", lambda place, content: write(place, content[1:])
    )
    with pytest.raises(CommitLogError, match="doesn't read as it was written. Nothing was moved"):
        checkpoint.move(tmp_path / "new")
    assert checkpoint.start()[2].decided.commit == commit(0, "g0")


def refused_in(new, old):
    """A start in the new place is refused with the command that finishes the move; or it is there."""
    try:
        new.bound()
    except CheckpointMismatchError as error:
        return f"onceforall checkpoint move {old.path} {new.path}" in str(error)
    return False


def test_a_place_that_was_detached_before_is_refused_like_any_other(tmp_path, monkeypatch):
    """Its log begins with a higher generation, and isn't found where others are."""
    old = Whole(tmp_path)
    bound = binding.bind(
        LocalStore(old.home), str(old.path), None, query_id=QUERY, first_generation=5
    )
    assert bound.first_generation == 5
    old.live(0)
    new = at(tmp_path / "new")
    with monkeypatch.context() as patched:
        patched.setattr(moving, "leave_moved", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            old.move(new.path)
    assert (new.path / "metadata").exists()
    assert refused_in(new, old)
    old.live(1)
    old.move(new.path)
    assert new.bound().first_generation == 5
    assert new.start()[2].decided.commit.batch == 1


def test_a_command_that_was_overtaken_changes_nothing_in_the_new_place(
    checkpoint, tmp_path, monkeypatch
):
    checkpoint.live(0)
    new = at(tmp_path / "new")
    copy = moving_checkpoint._copy_files

    def overtaken(*args):
        monkeypatch.setattr(moving_checkpoint, "_copy_files", copy)
        checkpoint.move(new.path)
        new.live(1)
        new.plan(1)
        return copy(*args)

    monkeypatch.setattr(moving_checkpoint, "_copy_files", overtaken)
    with pytest.raises(FencedError, match="Another command has moved"):
        checkpoint.move(new.path)
    assert (new.path / "offsets" / "1").exists()
    assert new.start()[2].decided.commit.batch == 1


def test_what_leads_through_links_is_renamed_or_refused(checkpoint, tmp_path):
    checkpoint.live(0)
    (tmp_path / "link").symlink_to(checkpoint.path.parent)
    given = f"file:{tmp_path}/link/checkpoint/{SCHEMA}"
    metadata = "state/0/_metadata/v2/0"
    checkpoint.put(metadata, "v2\n" + json.dumps({"stateSchemaFilePaths": [given]}))
    (checkpoint.path / "sources" / "1").symlink_to(tmp_path)
    with pytest.raises(OptionError, match="sources/1 is a symbolic link"):
        checkpoint.move(tmp_path / "new")
    (checkpoint.path / "sources" / "1").unlink()
    new, _ = checkpoint.move(tmp_path / 'a "new" one')
    named = json.loads(new.files()[metadata].splitlines()[1])["stateSchemaFilePaths"]
    assert named == [f"file:{new.path}/{SCHEMA}"]


def test_a_file_that_vanishes_and_a_place_that_is_gone_are_told(checkpoint, tmp_path, monkeypatch):
    checkpoint.live(0)
    names = moving_checkpoint._names
    with monkeypatch.context() as patched:
        patched.setattr(moving_checkpoint, "_names", lambda place: [*names(place), "offsets/7"])
        with pytest.raises(CommitLogError, match="offsets/7 has vanished .* still run"):
            checkpoint.move(tmp_path / "new")
    new, _ = checkpoint.move(tmp_path / "new")
    shutil.rmtree(new.path)
    for _ in range(2):
        with pytest.raises(CheckpointMismatchError, match="isn't there any more"):
            checkpoint.move(new.path)


class KilledError(BaseException):
    """Nobody catches it."""


class Killing:
    """Ends a move at one of its writes, before or behind it."""

    def __init__(self, patch, at_write):
        self.left = at_write
        for owner, name in (
            (LocalStore, "create"),
            (moving_checkpoint, "create_file"),
        ):
            patch.setattr(owner, name, self.around(getattr(owner, name)))

    def around(self, write):
        def written(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                raise KilledError
            done = write(*args, **kwargs)
            self.left -= 1
            if self.left == 0:
                raise KilledError
            return done

        return written


@pytest.mark.parametrize(
    "goes_on",
    [
        pytest.param(True, id="the query goes on"),
        pytest.param(False, id="the move is repeated", marks=pytest.mark.long),
    ],
)
def test_a_move_that_was_killed_anywhere_loses_nothing(tmp_path, monkeypatch, goes_on):
    passed = refused = refused_there = begun_anew = 0
    for kill_at in itertools.count(1):
        old = Whole(tmp_path / str(kill_at))
        old.live(0)
        new = at(tmp_path / str(kill_at) / "new")
        finished = False
        with monkeypatch.context() as patched:
            Killing(patched, kill_at)
            try:
                old.move(new.path)
                finished = True
            except KilledError:
                pass
        batches = 1
        if goes_on:
            with contextlib.suppress(CheckpointMismatchError):
                old.live(1)
                batches = 2
            refused += batches == 1
            if (new.path / "onceforall" / "pointer").exists() and not finished:
                refused_there += refused_in(new, old)
            if batches == 2:
                # Spark's files go on, too: what was copied isn't there any more.
                old.plan(1)
                (old.path / "state/0/1/3.zip").unlink()
                passed += 1
        if batches == 2 and "state/0/1/3.zip" in new.files():
            with pytest.raises(CheckpointMismatchError, match="delete that folder, and repeat"):
                old.move(new.path)
            shutil.rmtree(new.path)
            begun_anew += 1
        moved = move_checkpoint(str(old.path), str(new.path))
        assert moved.location == str(new.path)
        assert_same(new, old)
        log, generation, history = new.start()
        assert history.decided.commit.batch == batches - 1
        log.append(generation, commit(batches))
        assert_left(old)
        if finished:
            break
    assert kill_at > 30
    assert not goes_on or (passed > 10 and refused > 2 and refused_there > 20 and begun_anew > 3)


@pytest.mark.long
def test_a_move_of_a_query_that_was_detached_and_taken_back_since_begins_in_an_empty_folder(
    tmp_path, monkeypatch
):
    """What the first try left is of another log: its entries decide nothing, and its pointer leads
    past those that do."""
    refused = 0
    for kill_at in itertools.count(1):
        old = Whole(tmp_path / str(kill_at))
        old.live(0)
        new = at(tmp_path / str(kill_at) / "new")
        with monkeypatch.context() as patched:
            Killing(patched, kill_at)
            with contextlib.suppress(KilledError):
                old.move(new.path)
        try:
            old.live(1)
        except CheckpointMismatchError:
            break  # behind the point of no return there is nothing to detach
        old.home.rename(old.path / "onceforall.detached-7")
        bound = binding.bind(
            LocalStore(old.home), str(old.path), None, query_id=QUERY, first_generation=8
        )
        assert bound.first_generation == 8
        old.live(2)
        old.plan(2)
        said = ""
        try:
            old.move(new.path)
        except CheckpointMismatchError as error:
            said = str(error)
        if said:
            assert f"{new.path} has parts of the checkpoint {old.path}" in said
            assert refused_in(new, old)
            shutil.rmtree(new.path)
            old.move(new.path)
            refused += 1
        log, generation, history = new.start()
        assert history.decided.commit.batch == 2
        log.append(generation, commit(3))
        with pytest.raises(CheckpointMismatchError, match="this checkpoint was moved to"):
            old.start()
    assert kill_at > 20
    assert refused > 15


@pytest.mark.parametrize("moved", [True, False])
def test_a_move_of_a_log_of_an_earlier_release_is_finished_though_the_log_got_an_id_since(
    tmp_path, monkeypatch, moved
):
    """Such a log has no pointer, and so no id."""
    finished = 0
    for kill_at in range(3, 40, 6):
        old = Whole(tmp_path / str(kill_at))
        old.live(0)
        shutil.rmtree(old.home / "pointer")
        new = at(tmp_path / str(kill_at) / "new")
        with monkeypatch.context() as patched:
            Killing(patched, kill_at)
            with pytest.raises(KilledError):
                old.move(new.path)
        try:
            if moved:
                moving.move_log(str(old.path), str(tmp_path / str(kill_at) / "logs"))
            old.live(1)
        except CheckpointMismatchError:
            break
        old.move(new.path)
        assert new.start()[2].decided.commit.batch == 1
        assert all(pointer["id"] for pointer in new.pointers() if "moving" not in pointer)
        finished += 1
    assert finished > 3


@pytest.mark.s3
def test_by_the_command_to_s3_and_back(checkpoint, tmp_path, s3_server, s3_bucket):
    for batch in range(4):
        checkpoint.live(batch)
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_REGION": s3_server.region,
    }

    def moved(old, new):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "checkpoint", "move", old, new],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert new in done.stdout

    url = f"s3a://{s3_bucket}/checkpoints/ads"
    moved(str(checkpoint.path), url)
    client = ObjectClient(
        url,
        {
            "endpoint": s3_server.endpoint,
            "region": s3_server.region,
            "access_key_id": s3_server.access_key,
            "secret_access_key": s3_server.secret_key,
        },
    )
    assert client.read("state/0/1/3.zip") == b"\x00\xff" * 500
    named = json.loads(client.read("state/0/_metadata/v2/0").splitlines()[1])
    assert named["stateSchemaFilePaths"][0] == f"{url}/{SCHEMA}"
    log = CommitLog(RemoteStore(client, "onceforall"), keep_ends=True)
    assert log.newest_claim().checkpoint == url
    assert log.look().decided.commit == commit(3, "g3")
    assert_left(checkpoint)
    back = at(tmp_path / "back")
    moved(url, str(back.path))
    assert_same(back, checkpoint)
    assert back.start()[2].decided.commit == commit(3, "g3")


def test_a_checkpoint_that_is_older_than_its_log_is_not_called_whole(tmp_path, capsys):
    """Each start refuses it, and sends its operator to this command."""
    checkpoint = Whole(tmp_path)
    checkpoint.live(0, 1, 2, 3)
    assert main(["checkpoint", "mend", str(checkpoint.path)]) == 1
    said = capsys.readouterr().out
    assert (
        "Batch 3 is decided in the commit log, and Spark's folder offsets ends at batch 0" in said
    )
    assert "Nothing is to be mended" not in said
    (checkpoint.path / "commits" / "0").write_bytes(b"")
    for _ in range(2):
        assert main(["checkpoint", "mend", str(checkpoint.path)]) == 1
    said = capsys.readouterr().out
    assert "commits/0" in said
    assert said.count("Batch 3 is decided in the commit log") == 2


def test_a_dry_run_that_only_leads_paths_here_tells_what_no_mending_helps_against(tmp_path, capsys):
    checkpoint = Whole(tmp_path)
    checkpoint.live(0, 1, 2, 3)
    renamed = checkpoint.path.rename(tmp_path / "renamed")
    command = ["checkpoint", "mend", str(renamed), "--adopt-checkpoint"]
    for more in (["--dry-run"], []):
        assert main([*command, *more]) == 1
        said = capsys.readouterr().out
        assert str(renamed / "state" / "0" / "_metadata" / "v2" / "0") in said
        assert "Batch 3 is decided in the commit log" in said
