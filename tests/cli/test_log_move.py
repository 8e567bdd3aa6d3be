"""``onceforall log move``: nothing that was decided is lost, the old place can't run on, and a move
that was killed anywhere is finished by the same command."""

import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest

from commit_log.building import commit, open_log
from commit_log.stores import Actor, MemoryStore
from commit_log.test_remote import ScriptedClient
from onceforall.cli import main
from onceforall.commit_log import CommitLog, LocalStore, binding, repointing
from onceforall.commit_log.creating import Creator
from onceforall.commit_log.floors import Floors
from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.driver import place
from onceforall.errors import (
    CheckpointMismatchError,
    CommitLogError,
    FencedError,
    OptionError,
    UnsupportedQueryError,
)
from onceforall.operate import moving
from onceforall.operate.moving import move_log
from onceforall.operate.moving_checkpoint import move_checkpoint
from onceforall.protocol.entries import Claim, Done
from onceforall.spark.stores import Stores
from spark.test_state_paths import SCHEMA, Place, metadata

PROGRAM = "import sys; from onceforall.cli import main; sys.exit(main())"
QUERY = "8e9a4e2c-1111-2222-3333-444455556666"


class Checkpoint:
    """A checkpoint with a log in its home, and runs of the query as far as the log sees them."""

    def __init__(self, folder):
        self.path = folder / "checkpoint"
        (self.path / "commits").mkdir(parents=True)
        (self.path / "metadata").write_text(json.dumps({"id": QUERY}))
        self.home = self.path / "onceforall"

    def bound(self):
        return binding.bind(LocalStore(self.home), str(self.path), None, query_id=QUERY)

    def start(self, **options):
        bound = self.bound()
        log = open_log(
            bound.store,
            first_generation=bound.first_generation,
            keep_ends=bound.keep_ends,
            **options,
        )
        here = place.here(self.path)
        claim = Claim(
            QUERY, "run", str(self.path), "tests",
            host=here.host, boot_id=here.boot_id, storage=here.storage, kinds={"a": "fake"},
        )  # fmt: skip
        generation = log.claim(claim).generation
        return log, generation, log.seal_below(generation)

    def live(self, *batches, **options):
        log, generation, _ = self.start(**options)
        if options:
            log.clean(generation)
        for batch in batches:
            log.append(generation, commit(batch, f"g{generation}"))
            log.append(generation, Done(batch))
        return log, generation

    def move(self, to):
        return move_log(str(self.path), str(to))


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "näme %20 + #")


def old_place(checkpoint, first=0):
    return open_log(LocalStore(checkpoint.home), first_generation=first)


def assert_sealed(log):
    """Nobody decides there any more, and the error says where the log is."""
    generation = log.claim(Claim(QUERY, "late", "/somewhere", "tests")).generation
    with pytest.raises(CheckpointMismatchError, match="was moved to file:"):
        log.seal_below(generation)


def test_a_log_is_moved_and_the_query_goes_on_there(checkpoint, tmp_path):
    checkpoint.live(0, 1)
    checkpoint.live(2)
    moved = checkpoint.move(tmp_path / "elsewhere")
    assert moved.location == (tmp_path / "elsewhere").as_uri()
    assert moved.entries == 11
    bound = checkpoint.bound()
    assert bound.location == moved.location
    moved_to = open_log(bound.store, first_generation=bound.first_generation)
    assert moved_to.newest_claim().kinds == {"a": "fake"}
    log, generation, history = checkpoint.start()
    assert generation == 3
    assert (history.decided.commit, history.decided.done) == (commit(2, "g1"), True)
    log.append(generation, commit(3))
    assert_sealed(old_place(checkpoint))
    assert checkpoint.move(tmp_path / "elsewhere").entries == 0


def test_a_run_that_is_alive_is_fenced(checkpoint, tmp_path):
    log, generation = checkpoint.live(0)
    checkpoint.move(tmp_path / "elsewhere")
    with pytest.raises(FencedError):
        log.append(generation, commit(1))
    assert checkpoint.start()[2].decided.commit == commit(0, "g0")


def test_a_log_that_was_cleaned_and_dropped_is_moved(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(Floors, "keep_each", 2)
    for batch in range(12):
        checkpoint.live(2 * batch, 2 * batch + 1, retain_commits=1, drop_after=1)
    log, _ = checkpoint.live(retain_commits=1, drop_after=1)
    assert log.oldest_generation() > 3
    checkpoint.move(tmp_path / "elsewhere")
    (floor,) = (tmp_path / "elsewhere" / "floors").iterdir()
    fields = json.loads(floor.read_text())
    assert fields["above"] == fields["generation"] == log.oldest_generation(), (
        "the first clean there would look for each chain that was dropped in the old place"
    )
    new, generation, history = checkpoint.start(retain_commits=1, drop_after=1)
    assert history.decided.commit == commit(23, "g11")
    assert new.oldest_generation() == log.oldest_generation()
    new.clean(generation)
    checkpoint.live(24, retain_commits=1, drop_after=1)
    assert checkpoint.start()[2].decided.commit.batch == 24
    assert_sealed(old_place(checkpoint))


def test_a_log_is_moved_twice(checkpoint, tmp_path):
    checkpoint.live(0)
    checkpoint.move(tmp_path / "b")
    checkpoint.live(1)
    checkpoint.move(tmp_path / "c")
    checkpoint.live(2)
    assert checkpoint.bound().location == (tmp_path / "c").as_uri()
    assert checkpoint.start()[2].decided.commit.batch == 2
    assert_sealed(old_place(checkpoint))
    assert_sealed(open_log(LocalStore(tmp_path / "b")))


@pytest.mark.parametrize("earlier", [False, True])
def test_a_move_that_was_killed_is_finished_where_the_checkpoint_was_renamed_since(
    checkpoint, tmp_path, monkeypatch, earlier
):
    checkpoint.live(0)
    if earlier:
        shutil.rmtree(checkpoint.home / "pointer")
    path, elsewhere = checkpoint.path, tmp_path / "elsewhere"
    with monkeypatch.context() as patched:
        patched.setattr(repointing, "point_to", lambda *_: (_ for _ in ()).throw(OSError))
        with pytest.raises(OSError):
            checkpoint.move(elsewhere)
    renamed = path.rename(path.with_name("renamed"))
    if earlier:
        # Nothing but the name tells that the log there is this one.
        with pytest.raises(CheckpointMismatchError, match="checkpoint, and this one .* its name"):
            move_log(str(renamed), str(elsewhere))
        renamed.rename(path)
        renamed = path
    with pytest.raises(CheckpointMismatchError, match=r"Finish it: .* [^ ]*elsewhere$"):
        move_log(str(renamed), str(tmp_path / "another"))
    move_log(str(renamed), str(elsewhere))
    bound = binding.find(LocalStore(renamed / "onceforall"))
    assert bound.log().look().decided.commit == commit(0, "g0")


def test_a_place_that_was_emptied_before_the_move_was_finished_is_named(
    checkpoint, tmp_path, monkeypatch
):
    checkpoint.live(0)
    with monkeypatch.context() as patched:
        patched.setattr(repointing, "point_to", lambda *_: (_ for _ in ()).throw(OSError))
        with pytest.raises(OSError):
            checkpoint.move(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "unmounted")
    with pytest.raises(CheckpointMismatchError, match="holds none any more.*mount that volume"):
        checkpoint.move(tmp_path / "elsewhere")
    (tmp_path / "unmounted").rename(tmp_path / "elsewhere")
    checkpoint.move(tmp_path / "elsewhere")
    assert checkpoint.start()[2].decided.commit == commit(0, "g0")


@pytest.mark.parametrize("earlier", [False, True])
def test_a_log_that_was_moved_by_the_command_may_be_moved_by_hand_afterwards(
    checkpoint, tmp_path, earlier
):
    """A log of an earlier release has no pointer at first, which would tell that it lay here."""
    checkpoint.live(0)
    if earlier:
        shutil.rmtree(checkpoint.home / "pointer")
    checkpoint.move(tmp_path / "b")
    checkpoint.live(1)
    (tmp_path / "b").rename(tmp_path / "c")
    home, wanted = LocalStore(checkpoint.home), (tmp_path / "c").as_uri()
    for dry_run in (True, False):
        assert binding.find(home, wanted, adopt=True, dry_run=dry_run).location == wanted
    checkpoint.live(2)
    checkpoint.move(tmp_path / "d")
    assert checkpoint.start()[2].decided.commit.batch == 2
    assert_sealed(old_place(checkpoint))


def test_an_older_pointer_that_is_damaged_stands_in_nobodys_way(checkpoint, tmp_path):
    checkpoint.live(0)
    checkpoint.move(tmp_path / "b")
    checkpoint.live(1)
    older = sorted((checkpoint.home / "pointer").iterdir())[0]
    older.write_bytes(b"")
    checkpoint.live(2)


def test_a_batch_that_is_not_complete_is_completed_first(checkpoint, tmp_path):
    log, generation = checkpoint.live(0)
    log.append(generation, commit(1))
    with pytest.raises(CheckpointMismatchError, match="Batch 1 is decided.*Start the query once"):
        checkpoint.move(tmp_path / "elsewhere")
    assert checkpoint.bound().location is None
    log, generation, _ = checkpoint.start()
    log.append(generation, Done(1))
    checkpoint.move(tmp_path / "elsewhere")
    assert checkpoint.start()[2].decided.done


def test_a_batch_that_spark_knows_to_be_complete_is_moved_without_its_end(checkpoint, tmp_path):
    """Without new input no start would add it."""
    log, generation = checkpoint.live(0)
    log.append(generation, commit(1))
    (checkpoint.path / "commits").mkdir(exist_ok=True)
    (checkpoint.path / "commits" / "1").touch()
    checkpoint.move(tmp_path / "elsewhere")
    assert checkpoint.bound().location is not None
    decided = checkpoint.start()[2].decided
    assert (decided.commit.batch, decided.done) == (1, False)


def test_the_log_of_a_checkpoint_that_was_renamed_is_moved_where_that_is_said(checkpoint, tmp_path):
    """No start takes the new name over before a batch comes."""
    checkpoint.live(0)
    renamed = checkpoint.path.rename(tmp_path / "renamed")
    target = str(tmp_path / "elsewhere")
    with pytest.raises(CheckpointMismatchError, match=r"copied or moved.*--adopt-checkpoint"):
        move_log(str(renamed), target)
    metadata = renamed / "metadata"
    metadata.write_text(json.dumps({"id": "another"}))
    with pytest.raises(CheckpointMismatchError) as raised:
        move_log(str(renamed), target)
    assert "--adopt-checkpoint" not in str(raised.value)
    metadata.write_text(json.dumps({"id": QUERY}))
    assert main(["log", "move", str(renamed), target, "--adopt-checkpoint"]) == 0
    checkpoint.path, checkpoint.home = renamed, renamed / "onceforall"
    assert checkpoint.start()[2].decided.commit.batch == 0


def test_a_move_that_adopts_leads_the_paths_of_state_here_for_no_later_start_is_told(
    checkpoint, tmp_path, monkeypatch
):
    def dies(*_):
        raise KeyboardInterrupt

    checkpoint.live(0)
    before = f"file:/was/{SCHEMA}"
    renamed = checkpoint.path.rename(tmp_path / "renamed")
    there = Place(renamed, before)
    with pytest.raises(CheckpointMismatchError, match="--adopt-checkpoint"):
        move_log(renamed, tmp_path / "elsewhere")
    assert there.named() == [before]
    monkeypatch.setattr(CommitLog, "claim", dies)
    with pytest.raises(KeyboardInterrupt):
        move_log(renamed, tmp_path / "elsewhere", adopt_checkpoint=True)
    monkeypatch.undo()
    assert there.named() == [f"file:{renamed}/{SCHEMA}"]
    there.file.write_bytes(metadata(before))
    move_log(renamed, tmp_path / "elsewhere", adopt_checkpoint=True)
    assert there.named() == [f"file:{renamed}/{SCHEMA}"]
    there.file.write_bytes(metadata(before))
    move_log(renamed, tmp_path / "once_more")
    assert there.named() == [before]


def test_places_that_can_not_be_are_refused_and_nothing_is_moved(checkpoint, tmp_path):
    checkpoint.live(0)
    with pytest.raises(OptionError, match="in the checkpoint"):
        checkpoint.move(checkpoint.path / "logs")
    with pytest.raises(OptionError, match="absolute"):
        checkpoint.move("logs")
    with pytest.raises(OptionError, match="no commit log"):
        move_log(str(tmp_path / "nothing"), str(tmp_path / "elsewhere"))
    for above in (checkpoint.path, checkpoint.path.parent):
        with pytest.raises(OptionError, match="lies in .* itself"):
            checkpoint.move(above)
    (tmp_path / "used" / "by others").mkdir(parents=True)
    (tmp_path / "used" / "lost+found").mkdir()
    with pytest.raises(CheckpointMismatchError, match="holds something else, by others"):
        checkpoint.move(tmp_path / "used")
    assert sorted(each.name for each in (tmp_path / "used").iterdir()) == [
        "by others",
        "lost+found",
    ]
    other = Checkpoint(tmp_path / "other")
    other.live(5)
    other.move(tmp_path / "taken")
    with pytest.raises(CheckpointMismatchError, match="Name an empty folder"):
        checkpoint.move(tmp_path / "taken")
    with pytest.raises(CheckpointMismatchError, match="Name an empty folder"):
        checkpoint.move(other.home)
    assert checkpoint.start()[2].decided.commit == commit(0, "g0")
    assert other.start()[2].decided.commit == commit(5, "g0")


def test_a_run_that_starts_while_the_log_is_copied_wins_and_the_move_can_be_repeated(
    checkpoint, tmp_path, monkeypatch
):
    checkpoint.live(0)
    opened = Stores.open

    class Slow(LocalStore):
        started = False

        def create(self, key, content, in_time=None):
            if key.startswith("chains/") and not Slow.started:
                Slow.started = True
                checkpoint.live(1)
            return super().create(key, content, in_time)

    monkeypatch.setattr(
        Stores,
        "open",
        lambda self, where: (
            Slow(binding.log_path(where)) if "new" in where else opened(self, where)
        ),
    )
    with pytest.raises(FencedError, match="Nothing was moved"):
        checkpoint.move(tmp_path / "new")
    assert checkpoint.bound().location is None
    checkpoint.live(2)
    monkeypatch.setattr(Stores, "open", opened)
    checkpoint.move(tmp_path / "new")
    assert checkpoint.start()[2].decided.commit.batch == 2


@pytest.mark.parametrize(
    "goes_on",
    [
        pytest.param(True, id="the query goes on"),
        pytest.param(False, id="the move is repeated", marks=pytest.mark.long),
    ],
)
def test_a_move_that_was_killed_anywhere_loses_nothing(tmp_path, monkeypatch, goes_on):
    """Between any two operations on the old place, the new one and the checkpoint."""
    opened, stores_at = Stores.open, binding.bound_id
    refused = finished_alone = 0
    # Between the point of no return and the pointer are more operations than these steps.
    for kill_at in itertools.count(0, 3 if goes_on else 1):
        checkpoint = Checkpoint(tmp_path / str(kill_at))
        checkpoint.live(0)
        actor = Actor(LocalStore(checkpoint.home))
        elsewhere = tmp_path / str(kill_at) / "elsewhere"

        def store_at(folder, actor=actor, checkpoint=checkpoint):
            assert folder == checkpoint.home
            return actor

        def open_store(self, where, actor=actor):
            return Sharing(LocalStore(binding.log_path(where)), actor)

        with monkeypatch.context() as patched:
            patched.setattr("onceforall.operate.moving.store_at", store_at)
            patched.setattr(Stores, "open", open_store)
            actor.start(lambda c=checkpoint, to=elsewhere: c.move(to))
            for _ in range(kill_at):
                if actor.running:
                    actor.step()
            finished = not actor.running
            actor.kill()
        batches = 1
        if goes_on:
            try:
                checkpoint.live(batches)
                batches += 1
            except CheckpointMismatchError as error:
                refused += "onceforall log move" in str(error)
        checkpoint.move(elsewhere)
        assert checkpoint.bound().location == elsewhere.as_uri()
        history = checkpoint.start()[2]
        assert history.decided.commit.batch == batches - 1
        assert_sealed(old_place(checkpoint))
        checkpoint.live(batches)
        finished_alone += finished
        if finished:
            assert kill_at > 20
            break
    assert finished_alone == 1
    assert not goes_on or refused > 0, "no kill came between the point of no return and the pointer"
    assert (opened, stores_at) == (Stores.open, binding.bound_id)


class Named:
    """A store under another name."""

    def __init__(self, client, url):
        self.client = client
        self.url = url

    def __getattr__(self, name):
        return getattr(self.client, name)


class Overwriting(ScriptedClient):
    """A store that ignores If-None-Match: whoever comes last stays."""

    def create(self, key, content, in_time=None):
        self.contents[key] = content
        return "created"


def test_a_log_that_is_moved_to_another_name_of_its_place_goes_on_there(
    checkpoint, tmp_path, monkeypatch
):
    """Its end there would be the end of the only one."""
    one = ScriptedClient()
    monkeypatch.setattr(Stores, "client", lambda _, url: Named(one, url))
    stores = Stores()
    names = ("s3a://bucket/logs", "s3://bucket/logs")

    def runs(batch):
        home = LocalStore(checkpoint.home)
        bound = binding.bind(
            home, str(checkpoint.path), None, query_id=QUERY, open_store=stores.open
        )
        log = bound.log()
        claim = Claim(QUERY, "run", str(checkpoint.path), "tests")
        generation = log.claim(claim).generation
        log.seal_below(generation)
        log.append(generation, commit(batch, f"g{generation}"))
        log.append(generation, Done(batch))
        return bound.location

    checkpoint.live(0)
    checkpoint.move(names[0])
    for batch, name in enumerate((*reversed(names), *names), 1):
        assert checkpoint.move(name).location == name
        assert runs(batch) == name
    checkpoint.move(tmp_path / "elsewhere")
    assert checkpoint.start()[2].decided.commit.batch == 4
    assert not [key for key in one.contents if key.startswith("onceforall.")]


@pytest.mark.parametrize("dry_run", [True, False])
def test_another_name_of_a_logs_place_is_no_copy_for_a_start_that_adopts(
    checkpoint, monkeypatch, dry_run
):
    """Whoever were told to take the other one away would take the only one."""
    one = ScriptedClient()
    monkeypatch.setattr(Stores, "client", lambda _, url: Named(one, url))
    open_store = Stores().open
    checkpoint.live(0)
    checkpoint.move("s3a://bucket/logs")
    home, wanted = LocalStore(checkpoint.home), "s3://bucket/logs"
    found = binding.find(home, wanted, adopt=True, dry_run=dry_run, open_store=open_store)
    assert found.location == wanted
    found = binding.find(home, open_store=open_store)
    assert found.location == ("s3a://bucket/logs" if dry_run else wanted)
    copy = ScriptedClient()
    copy.contents = {**one.contents}
    monkeypatch.setattr(
        Stores, "client", lambda _, url: Named(copy if "other" in url else one, url)
    )
    with pytest.raises(CheckpointMismatchError, match="the log is in both places"):
        binding.find(home, "s3a://other/logs", adopt=True, open_store=open_store)


def test_a_move_to_a_store_that_no_start_accepts_changes_nothing(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(Stores, "client", lambda _, url: Named(Overwriting(), url))
    checkpoint.live(0)
    for move in (move_log, move_checkpoint):
        with pytest.raises(UnsupportedQueryError, match="seems to ignore If-None-Match"):
            move(checkpoint.path, "s3a://bucket/elsewhere")
    checkpoint.live(1)


@pytest.mark.parametrize("move", [move_log, move_checkpoint])
def test_a_move_that_is_killed_while_it_tests_the_store_is_repeated(checkpoint, monkeypatch, move):
    def dies(store):
        store.create("probe/left", b"by a kill")
        raise KeyboardInterrupt

    client = ScriptedClient()
    monkeypatch.setattr(Stores, "client", lambda _, url: Named(client, url))
    checkpoint.live(0)
    with monkeypatch.context() as patched:
        patched.setattr(f"{move.__module__}.probe", dies)
        with pytest.raises(KeyboardInterrupt):
            move(checkpoint.path, "s3a://bucket/elsewhere")
    assert [key for key in client.contents if "probe" in key]
    assert move(checkpoint.path, "s3a://bucket/elsewhere").location


def test_a_log_that_was_ended_is_not_said_to_lie_where_it_was(checkpoint, tmp_path, monkeypatch):
    def dies(*_):
        raise KeyboardInterrupt

    checkpoint.live(0)
    checkpoint.move(tmp_path / "b")
    monkeypatch.setattr(repointing, "point_to", dies)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.move(tmp_path / "c")
    monkeypatch.undo()
    with pytest.raises(CheckpointMismatchError, match=f"Finish it: .*{tmp_path / 'c'}"):
        checkpoint.move(tmp_path / "b")
    checkpoint.move(tmp_path / "c")
    assert checkpoint.start()[2].decided.commit.batch == 0


def test_what_can_not_be_read_while_a_log_is_moved_is_named(checkpoint, tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied", "/of/others")

    checkpoint.live(0)
    with monkeypatch.context() as patched:
        patched.setattr("onceforall.spark.checkpoint.last_committed", refused)
        with pytest.raises(
            CommitLogError, match="/of/others: Permission denied. Nothing was moved"
        ):
            checkpoint.move(tmp_path / "b")
    checkpoint.move(tmp_path / "b")


@pytest.mark.parametrize("value", ["false", 0, None])
@pytest.mark.parametrize("move", [move_log, move_checkpoint])
def test_a_flag_is_true_or_false(checkpoint, tmp_path, move, value):
    checkpoint.live(0)
    with pytest.raises(OptionError, match="adopt_checkpoint is .*True or False"):
        move(checkpoint.path, tmp_path / "b", adopt_checkpoint=value)


@pytest.mark.parametrize("move", [move_log, move_checkpoint])
@pytest.mark.parametrize("place", ["s3a://[b/x", "file://[b/x", "/tmp/\0x", 12])
def test_a_place_that_is_none_is_an_error_of_its_option(checkpoint, move, place):
    checkpoint.live(0)
    with pytest.raises(OptionError, match="^to "):
        move(checkpoint.path, place)
    with pytest.raises(OptionError, match="^checkpoint "):
        move(place, checkpoint.path)


class Sharing:
    """Another store, whose operations are steps of the same actor."""

    def __init__(self, store, actor):
        self.store, self.actor = store, actor

    def read(self, key):
        return self.actor.around("read", lambda: self.store.read(key), key)

    def list(self, folder):
        return self.actor.around("list", lambda: self.store.list(folder), folder)

    def create(self, key, content, in_time=None):
        return self.actor.around("create", lambda: self.store.create(key, content), key, content)

    def describe(self, key):
        return self.store.describe(key)


@pytest.mark.s3
def test_by_the_command_to_s3(checkpoint, s3_server, s3_bucket):
    for batch in range(4):
        checkpoint.live(batch)
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_REGION": s3_server.region,
    }
    url = f"s3a://{s3_bucket}/logs/ads"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "log", "move", str(checkpoint.path), url],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert url in done.stdout
    pointer = json.loads((checkpoint.home / "pointer" / "00000001.json").read_text())
    assert (pointer["location"], pointer["keep_ends"], pointer["from_home"]) == (url, True, True)
    client = ObjectClient(
        url,
        {
            "endpoint": s3_server.endpoint,
            "region": s3_server.region,
            "access_key_id": s3_server.access_key,
            "secret_access_key": s3_server.secret_key,
        },
    )
    found = CommitLog(RemoteStore(client), keep_ends=True).look()
    assert found.decided.commit == commit(3, "g3")
    assert_moved = open_log(LocalStore(checkpoint.home))
    generation = assert_moved.claim(Claim(QUERY, "late", "/somewhere", "tests")).generation
    with pytest.raises(CheckpointMismatchError, match="was moved to s3a:"):
        assert_moved.seal_below(generation)


def test_the_floor_of_an_earlier_try_is_raised_to_what_is_copied_now():
    """Chains may have been dropped in the old place since, and would be missed in the new one."""
    store = MemoryStore()
    ask = Creator(store, (0, 0), lambda _: None, lambda: True)
    for oldest in (2, 2, 5):
        moving._begin_floors(store, 0, oldest, ask)
        assert Floors(store, 0, ask, moving._now).newest().generation == oldest
