"""A checkpoint and a commit log elsewhere: who is followed, who is refused, and what a crash
between the two leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest

from commit_log.building import commit, start
from commit_log.stores import Actor, PoweredStore
from onceforall.commit_log import CommitLog, LocalStore, binding, repointing
from onceforall.commit_log.envelope import encode_fields
from onceforall.errors import (
    CheckpointMismatchError,
    CommitLogError,
    CorruptEntryError,
    ForeignEntryError,
    NewerEntryError,
    OptionError,
    UnsupportedQueryError,
)
from onceforall.protocol.entries import Claim
from support.syncing import Recorder


class Checkpoint:
    """A checkpoint's folder, and what a start does with it."""

    def __init__(self, path, query_id="q"):
        self.path, self.query_id = path, query_id
        self.home = path / "onceforall"

    def bind(self, wanted=None, **more):
        location = None if wanted is None else binding.log_location(str(wanted))
        more = {"query_id": self.query_id, **more}
        return binding.bind(LocalStore(self.home), str(self.path), location, **more)

    def pointers(self):
        return [json.loads(file.read_text()) for file in sorted((self.home / "pointer").iterdir())]


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "cp")


@pytest.fixture
def elsewhere(tmp_path):
    return tmp_path / "volume" / "ads log"


def claim(store, query_id="q"):
    return CommitLog(store).claim(Claim(query_id, "run", "/cp"))


def test_a_new_log_lies_in_the_checkpoint_and_stays_there(checkpoint, elsewhere):
    bound = checkpoint.bind()
    assert bound.location is None
    claim(bound.store)
    assert (checkpoint.home / "chains").is_dir()
    assert checkpoint.bind() is not None
    with pytest.raises(
        CheckpointMismatchError, match="already has its commit log in .*onceforall.*detach"
    ):
        checkpoint.bind(elsewhere)
    assert not elsewhere.exists()


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_the_pointer_keeps_which_generation_a_log_begins_with(checkpoint, elsewhere, is_elsewhere):
    wanted = elsewhere if is_elsewhere else None
    assert checkpoint.bind(wanted, first_generation=7).first_generation == 7
    # A later start may find other folders of detached logs, or none.
    bound = checkpoint.bind(wanted, first_generation=0)
    assert bound.first_generation == 7
    log = CommitLog(bound.store, first_generation=7)
    assert log.claim(Claim("q", "run", "/cp")).generation == 7
    assert binding.find(LocalStore(checkpoint.home)).first_generation == 7


def test_a_log_of_an_earlier_release_has_no_pointer_and_is_followed(checkpoint, elsewhere):
    claim(LocalStore(checkpoint.home))
    assert checkpoint.bind().location is None
    assert not (checkpoint.home / "pointer").exists()
    with pytest.raises(CheckpointMismatchError, match="already has its commit log"):
        checkpoint.bind(elsewhere)


def test_a_log_elsewhere_is_bound_both_ways_and_followed_with_and_without_the_option(
    checkpoint, elsewhere
):
    log, generation, _ = start(checkpoint.bind(elsewhere).store)
    log.append(generation, commit(0))
    (pointer,) = checkpoint.pointers()
    assert pointer["location"] == elsewhere.as_uri()
    assert pointer["id"] == json.loads((elsewhere / "binding.json").read_text())["id"]
    assert not (checkpoint.home / "chains").exists()
    for wanted in (elsewhere, elsewhere.as_uri(), None):
        assert start(checkpoint.bind(wanted).store)[2].decided.commit == commit(0)


def test_two_queries_may_not_share_one_folder(checkpoint, elsewhere, tmp_path):
    checkpoint.bind(elsewhere)
    other = Checkpoint(tmp_path / "other", "other")
    with pytest.raises(
        CheckpointMismatchError, match=f"{checkpoint.path}.*{other.path}.*not share"
    ):
        other.bind(elsewhere)
    assert not other.home.exists()


def test_the_folder_of_a_log_that_lies_in_another_checkpoint_is_refused(checkpoint, tmp_path):
    other = Checkpoint(tmp_path / "other", "other")
    claim(LocalStore(other.home), "other")
    with pytest.raises(CheckpointMismatchError, match="not bound to the checkpoint"):
        checkpoint.bind(other.home)


def test_a_place_that_is_refused_is_named_and_so_is_the_checkpoint(checkpoint, elsewhere, tmp_path):
    other = Checkpoint(tmp_path / "other", "other")
    other.bind(elsewhere)
    wanted = elsewhere.as_uri()
    with pytest.raises(CheckpointMismatchError) as raised:
        checkpoint.bind(elsewhere)
    assert f"commitLog={wanted}: the folder holds the log" in str(raised.value)
    assert f"{other.path}, and this one is {checkpoint.path}." in str(raised.value)
    foreign = tmp_path / "foreign"
    # As after a cleaning: the first chains are gone.
    (foreign / "chains" / "00000007").mkdir(parents=True)
    (foreign / "chains" / "00000007" / "00000000.json").write_text("{}")
    with pytest.raises(CheckpointMismatchError) as raised:
        checkpoint.bind(foreign)
    assert f"commitLog={foreign.as_uri()}: the folder holds a commit log" in str(raised.value)
    assert f"the checkpoint {checkpoint.path};" in str(raised.value)
    (foreign / "of others").touch()
    with pytest.raises(CheckpointMismatchError) as raised:
        checkpoint.bind(foreign)
    assert f"commitLog={foreign.as_uri()}: the folder holds something else" in str(raised.value)
    assert not checkpoint.home.exists()


@pytest.mark.parametrize("place", ["s3a://[b/x", "file://[b/x"])
def test_a_place_that_is_no_url_is_named(place):
    with pytest.raises(OptionError) as raised:
        binding.log_location(place)
    assert f"commitLog={place} is neither a path nor a URL" in str(raised.value)


def test_a_pointer_that_leads_to_nothing_is_named(checkpoint, elsewhere):
    checkpoint.bind(elsewhere)
    shutil.rmtree(elsewhere)
    with pytest.raises(CheckpointMismatchError) as raised:
        checkpoint.bind()
    assert f"pointer {checkpoint.home / 'pointer' / '00000000.json'} says" in str(raised.value)
    assert f"lies in {elsewhere.as_uri()}, but there is none" in str(raised.value)


def test_a_log_that_two_starts_follow_at_once_is_moved_by_one(checkpoint, elsewhere, monkeypatch):
    checkpoint.bind(elsewhere)
    moved = elsewhere.rename(elsewhere.with_name("moved"))
    create, others = binding.create_pointer, []

    def late(home, pointer):
        others.append(create(home, pointer))
        return create(home, pointer)

    monkeypatch.setattr(binding, "create_pointer", late)
    with pytest.raises(CheckpointMismatchError, match="another start has moved it at the same"):
        checkpoint.bind(moved, adopt=True)
    assert len(others) == 1
    monkeypatch.undo()
    assert checkpoint.bind().location == moved.as_uri()


def test_a_start_that_is_killed_between_log_and_pointer_leaves_an_empty_log_that_the_next_one_takes(
    checkpoint, elsewhere
):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from onceforall.commit_log import LocalStore, binding\n"
        "binding.bind(LocalStore(Path(sys.argv[1]) / 'onceforall'), sys.argv[1], sys.argv[2], "
        "query_id=None)\n"
    )
    environment = {**os.environ, "ONCEFORALL_FAILPOINTS": "bind.prepared=kill"}
    command = [sys.executable, "-c", code, str(checkpoint.path), elsewhere.as_uri()]
    assert (
        subprocess.run(command, env=environment, timeout=60, check=False).returncode
        == -signal.SIGKILL
    )
    assert (elsewhere / "binding.json").exists()
    assert not checkpoint.home.exists()
    claim(checkpoint.bind(elsewhere).store)
    assert len(checkpoint.pointers()) == 1
    assert (elsewhere / "chains").is_dir()


def test_of_two_first_starts_with_other_settings_one_wins_and_the_other_follows_or_is_refused(
    checkpoint, elsewhere, tmp_path
):
    class Late(LocalStore):
        """Another start binds the checkpoint right before this one's pointer is created."""

        def create(self, key, content):
            if "pointer" in key:
                checkpoint.bind(elsewhere)
            return super().create(key, content)

    late = lambda wanted: binding.bind(
        Late(checkpoint.home), str(checkpoint.path), wanted, query_id="q"
    )
    assert late(None).location == elsewhere.as_uri()
    shutil.rmtree(checkpoint.home)
    with pytest.raises(CheckpointMismatchError, match="Leave the option out"):
        late((tmp_path / "third").as_uri())


def test_a_volume_that_is_not_mounted_is_named_and_no_new_log_is_begun(checkpoint, elsewhere):
    claim(checkpoint.bind(elsewhere).store)
    elsewhere.rename(elsewhere.with_name("unmounted"))
    for wanted in (None, elsewhere):
        with pytest.raises(
            CheckpointMismatchError, match=f"{elsewhere.as_uri()}.*there is none.*Mount"
        ):
            checkpoint.bind(wanted)
    assert not elsewhere.exists()


def test_a_log_that_was_replaced_by_another_ones_is_refused(checkpoint, elsewhere, tmp_path):
    claim(checkpoint.bind(elsewhere).store)
    other = Checkpoint(tmp_path / "other", "other")
    other.bind(tmp_path / "others-log")
    shutil.rmtree(elsewhere)
    (tmp_path / "others-log").rename(elsewhere)
    with pytest.raises(CheckpointMismatchError, match="another log"):
        checkpoint.bind()


def test_an_option_that_names_another_place_than_the_pointer_is_refused_with_both(
    checkpoint, elsewhere, tmp_path
):
    claim(checkpoint.bind(elsewhere).store)
    with pytest.raises(
        CheckpointMismatchError, match=f"{(tmp_path / 'new').as_uri()}.*{elsewhere.as_uri()}"
    ):
        checkpoint.bind(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_log_that_was_moved_on_purpose_is_followed_from_then_on(checkpoint, elsewhere, tmp_path):
    new = tmp_path / "new"
    log, generation, _ = start(checkpoint.bind(elsewhere).store)
    log.append(generation, commit(0))
    with pytest.raises(CheckpointMismatchError, match="Move the log there first"):
        checkpoint.bind(new, adopt=True)
    shutil.copytree(elsewhere, new)
    with pytest.raises(CheckpointMismatchError, match="adoptCheckpoint"):
        checkpoint.bind(new)
    with pytest.raises(CheckpointMismatchError, match="in both places"):
        checkpoint.bind(new, adopt=True)
    shutil.rmtree(elsewhere)
    assert start(checkpoint.bind(new, adopt=True).store)[2].decided.commit == commit(0)
    assert [pointer["location"] for pointer in checkpoint.pointers()] == [
        elsewhere.as_uri(),
        new.as_uri(),
    ]
    for wanted in (None, new):
        assert checkpoint.bind(wanted).location == new.as_uri()
    with pytest.raises(CheckpointMismatchError, match="Leave the option out"):
        checkpoint.bind(elsewhere)


def test_a_checkpoint_that_was_deleted_or_replaced_while_its_log_stayed_is_refused(
    checkpoint, elsewhere
):
    claim(checkpoint.bind(elsewhere).store)
    shutil.rmtree(checkpoint.path)
    for query_id in (None, "another"):
        with pytest.raises(
            CheckpointMismatchError, match="deleted or replaced while the log stayed"
        ):
            checkpoint.bind(elsewhere, query_id=query_id)
    assert not checkpoint.home.exists()


def test_a_lost_pointer_is_made_again_for_the_query_that_the_log_belongs_to(checkpoint, elsewhere):
    log, generation, _ = start(checkpoint.bind(elsewhere).store)
    log.append(generation, commit(0))
    query_id = log.newest_claim().query_id
    shutil.rmtree(checkpoint.home)
    assert start(checkpoint.bind(elsewhere, query_id=query_id).store)[2].decided.commit == commit(0)


def test_a_log_beside_a_pointer_to_another_one_is_refused(checkpoint, elsewhere):
    checkpoint.bind(elsewhere)
    claim(LocalStore(checkpoint.home))
    with pytest.raises(CheckpointMismatchError, match=f"{checkpoint.home}.*{elsewhere.as_uri()}"):
        checkpoint.bind()


def test_a_log_that_the_checkpoint_was_detached_from_is_not_taken_again(checkpoint, elsewhere):
    bound = checkpoint.bind(elsewhere)
    checkpoint.home.rename(checkpoint.home.with_name("aside"))
    again = checkpoint.bind(elsewhere, retired=[bound.id], first_generation=4)
    assert (again.location, again.first_generation) == (f"{elsewhere.as_uri()}/again-4", 4)
    assert again.id != bound.id


def test_a_pointer_that_is_damaged_or_not_ours_is_an_error_and_not_an_absent_one(
    checkpoint, elsewhere
):
    checkpoint.bind(elsewhere)
    file = checkpoint.home / "pointer" / "00000000.json"
    whole = file.read_bytes()
    newer = {**json.loads(whole), "onceforall": 99}
    for content, error in (
        (whole[:-10], CorruptEntryError),
        (whole.replace(b"volume", b"vol"), CorruptEntryError),
        (b"", CorruptEntryError),
        (b'{"a": 1}', ForeignEntryError),
        ((elsewhere / "binding.json").read_bytes(), ForeignEntryError),
        (json.dumps(newer).encode(), NewerEntryError),
    ):
        file.write_bytes(content)
        with pytest.raises(error, match=file.name):
            checkpoint.bind(elsewhere)
    file.write_bytes(whole)
    assert checkpoint.bind().location == elsewhere.as_uri()


def test_the_pointer_is_durable_before_it_is_built_upon(checkpoint, elsewhere, monkeypatch):
    fsync, failures = os.fsync, []

    def failing(descriptor):
        failures.append(descriptor)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(CommitLogError):
        checkpoint.bind(elsewhere)
    assert failures
    monkeypatch.setattr(os, "fsync", fsync)
    assert checkpoint.bind(elsewhere).location == elsewhere.as_uri()


def test_what_another_start_has_bound_is_durable_before_it_is_followed(
    checkpoint, elsewhere, monkeypatch
):
    """That one may have been killed before it could sync it, and without the pointer a next
    start would begin a new log."""
    checkpoint.bind(elsewhere)
    recorder = Recorder(monkeypatch)
    checkpoint.bind()
    for synced in (
        checkpoint.home / "pointer" / "00000000.json",
        checkpoint.home / "pointer",
        elsewhere / "binding.json",
        elsewhere,
    ):
        recorder.synced(synced)


@pytest.mark.parametrize("lies", ["s3a://logs/one", None])
@pytest.mark.parametrize("steps", range(20))
def test_a_pointer_that_goes_with_the_power_is_not_followed(steps, lies):
    """Two logs of one checkpoint would each know nothing of what the other one decides."""
    home = PoweredStore()
    places = {f"s3a://logs/{name}": PoweredStore() for name in ("one", "two")}
    bind = partial(binding.bind, checkpoint="/c", query_id=None, open_store=places.__getitem__)
    first = bind(home, wanted=lies)
    home.unsynced = [binding.pointer_key(0)]
    follower = Actor(home, "follower")
    follower.start(lambda: bind(follower, wanted=None))
    for _ in range(steps):
        if (
            follower.running and follower.facing != "create"
        ):  # From there on it is durable, or stands again.
            follower.step()
    assert first.location == lies
    home.lose_power()
    other = bind(home, wanted="s3a://logs/two")
    bound = follower.finish()
    assert isinstance(bound, Exception) or (bound.location, bound.id) == (other.location, other.id)


@pytest.mark.parametrize(
    "text", ["s3a://bucket/log", "hdfs://host/log", "abfss://c@a.dfs.core.windows.net/x"]
)
def test_a_place_on_a_store_is_its_url_and_opened_by_who_has_a_client(text):
    assert binding.log_location(f"{text}/") == text
    with pytest.raises(UnsupportedQueryError, match="which this can't open"):
        binding.open_log_store(text)


def test_a_local_place_names_no_host():
    with pytest.raises(OptionError, match=r"file:/"):
        binding.log_location("file://host/log")


@pytest.mark.parametrize("end", ["?a", "#b", "?a#b"])
def test_a_local_url_with_a_query_or_a_fragment_names_no_folder(end):
    """Hadoop takes these characters for a part of the name, and Java's URLs don't."""
    with pytest.raises(OptionError, match="names no folder") as raised:
        binding.log_location(f"file:/logs/ads{end}")
    assert "file:/logs/ads" in str(raised.value)
    assert binding.log_location(f"/logs/ads{end}").startswith("file:///logs/ads%")


@pytest.mark.parametrize(
    ("text", "named"), [("logs/ads", "logs/ads"), ("file://host/log", "file://host/log")]
)
def test_a_place_that_is_refused_is_named(text, named):
    with pytest.raises(OptionError) as raised:
        binding.log_location(text, "file:///default")
    assert f"onceforall.commitLog={named}" in str(raised.value)


def test_a_place_is_the_same_however_it_is_written(tmp_path):
    path = tmp_path / "a b"
    expected = path.as_uri()
    for text in (
        str(path),
        f"file:{path}",
        f"file://{path}",
        f"{tmp_path}/./x/../a b",
        path.as_uri(),
        f"file://localhost{path}",
    ):
        assert binding.log_location(text) == expected
    assert binding.log_path(expected) == path
    with pytest.raises(OptionError, match="absolute"):
        binding.log_location("logs/ads")
    assert binding.log_location("/logs/ads", "hdfs://nn:8020") == "hdfs://nn:8020/logs/ads"


def test_a_checkpoint_that_was_detached_has_no_log_and_its_next_one_begins_above(checkpoint):
    home = LocalStore(checkpoint.home)
    assert binding.detached_generation(home) == -1
    first = checkpoint.bind()
    repointing.point_nowhere(home, first, 3)
    assert binding.find(home) is None
    assert binding.pointer_of(home) is None
    assert binding.detached_generation(home) == 3
    repointing.point_nowhere(home, first, 9)
    assert binding.detached_generation(home) == 3, "it is detached already"
    assert binding.is_detached(home)
    second = checkpoint.bind(first_generation=4)
    assert not binding.is_detached(home)
    assert second.location == (checkpoint.home / "again-4").as_uri()
    assert second.first_generation == 4
    assert second.id != first.id
    assert binding.pointer_of(home) == (second.id, second.location)
    again = checkpoint.bind()
    assert (again.id, again.location, again.first_generation) == (second.id, second.location, 4)
    repointing.point_nowhere(home, second, 7)
    assert binding.find(home) is None
    assert binding.detached_generation(home) == 7
    assert [each.get("detached") for each in checkpoint.pointers()] == [None, 3, None, 7]


def test_an_older_pointer_that_is_damaged_keeps_nobody_from_starting(checkpoint):
    home = LocalStore(checkpoint.home)
    repointing.point_nowhere(home, checkpoint.bind(), 3)
    again = checkpoint.bind()
    older = checkpoint.home / "pointer" / "00000001.json"
    older.write_bytes(older.read_bytes()[:-10])
    # The next log's first generation says it, too.
    assert binding.detached_generation(home) == 3
    assert checkpoint.bind().first_generation == again.first_generation == 4


def test_a_log_that_was_left_is_not_taken_again_though_its_place_is_named(checkpoint, elsewhere):
    home = LocalStore(checkpoint.home)
    repointing.point_nowhere(home, checkpoint.bind(elsewhere), 3)
    again = checkpoint.bind(elsewhere, first_generation=4)
    assert again.location == f"{elsewhere.as_uri()}/again-4"
    for named in (elsewhere, None):
        assert checkpoint.bind(named).id == again.id
    repointing.point_nowhere(home, again, 7)
    another = elsewhere.with_name("another")
    assert checkpoint.bind(another, first_generation=4).location == another.as_uri()


@pytest.mark.parametrize("asked", [0, 9])
def test_a_start_that_asked_for_its_generation_before_a_detachment_uses_none_again(
    checkpoint, asked
):
    home = LocalStore(checkpoint.home)
    repointing.point_nowhere(home, checkpoint.bind(), 0)
    repointing.point_nowhere(home, checkpoint.bind(), 3)
    assert [each.get("detached") for each in checkpoint.pointers()] == [None, 0, None, 3]
    bound = checkpoint.bind(first_generation=asked)
    assert bound.first_generation == max(4, asked)


def test_a_pointer_leads_to_no_folder_but_one_of_a_log(checkpoint):
    home = LocalStore(checkpoint.home)
    repointing.point_nowhere(home, checkpoint.bind(), 3)
    checkpoint.bind()
    file = checkpoint.home / "pointer" / "00000002.json"
    fields = json.loads(file.read_bytes())
    fields.pop("checksum")
    for below in ("..", "again-4/..", "/tmp", ""):
        file.write_bytes(encode_fields({**fields, "below": below}))
        with pytest.raises(ForeignEntryError, match="00000002.json names the folder"):
            binding.find(home)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_late_claim_in_the_log_that_was_left_is_no_log_that_was_put_there(
    checkpoint, elsewhere, wanted
):
    """Whoever was started before the detachment claims there the numbers of the new log."""
    home = LocalStore(checkpoint.home)
    late = checkpoint.bind().log()
    late.claim(Claim("q", "run", "/cp"))
    repointing.point_nowhere(home, checkpoint.bind(), 0)
    bound = checkpoint.bind(elsewhere if wanted else None)
    assert late.claim(Claim("q", "late", "/cp")).generation == bound.first_generation
    for _ in range(2):
        assert checkpoint.bind(elsewhere if wanted else None).id == bound.id
        claim(bound.store)


def test_a_late_claim_in_the_home_that_a_log_without_a_pointer_has_left_is_no_log_put_there(
    checkpoint, elsewhere, tmp_path
):
    """A log of an earlier release, moved, detached and returned to: no pointer says itself that a
    log lay in the home."""
    home = LocalStore(checkpoint.home)
    late = CommitLog(home)
    late.claim(Claim("q", "run", "/cp"))
    bound = binding.find(home)
    assert (bound.id, bound.location) == ("", None)
    away = binding.log_location(str(tmp_path / "away"))
    log_id = repointing.log_id_at(LocalStore(tmp_path / "away"), bound, str(checkpoint.path))
    repointing.point_to(home, bound, away, log_id, LocalStore(tmp_path / "away"))
    repointing.point_nowhere(home, binding.find(home), 0)
    returned = checkpoint.bind(elsewhere)
    assert late.claim(Claim("q", "late", "/cp")).generation == returned.first_generation
    assert checkpoint.bind(elsewhere).id == returned.id


def test_a_folder_without_a_pointer_or_an_entry_binds_nothing(checkpoint):
    """A start was killed there; until then it was another's checkpoint."""
    home = LocalStore(checkpoint.home)
    assert not binding.is_bound(home)
    checkpoint.home.mkdir(parents=True)
    assert not binding.is_bound(home)
    bound = checkpoint.bind()
    assert binding.is_bound(home)
    repointing.point_nowhere(home, bound, 3)
    assert not binding.is_bound(home)


def test_a_log_of_an_earlier_release_is_bound_by_its_entries(checkpoint):
    claim(LocalStore(checkpoint.home))
    assert binding.is_bound(LocalStore(checkpoint.home))


def test_a_place_that_a_move_has_left_is_not_followed_once_it_is_emptied(checkpoint, elsewhere):
    """Its mark stays there, and the new place may not be mounted."""
    home, other = LocalStore(checkpoint.home), elsewhere.with_name("other")
    bound = checkpoint.bind(elsewhere)
    claim(bound.store)
    store = LocalStore(other)
    repointing.point_to(
        home, bound, other.as_uri(), repointing.log_id_at(store, bound, str(checkpoint.path)), store
    )
    shutil.rmtree(elsewhere / "chains")
    other.rename(other.with_name("unmounted"))
    with pytest.raises(CheckpointMismatchError, match="has no entries any more.* Mount the volume"):
        checkpoint.bind(elsewhere, adopt=True)
    assert binding.pointer_of(home) == (bound.id, other.as_uri())


@pytest.mark.parametrize("has_run", [True, False])
def test_a_volume_with_the_log_of_a_return_is_followed_by_its_name(checkpoint, elsewhere, has_run):
    home = LocalStore(checkpoint.home)
    repointing.point_nowhere(home, checkpoint.bind(elsewhere), 3)
    bound = checkpoint.bind(elsewhere)
    if has_run:
        CommitLog(bound.store, first_generation=4).claim(Claim("q", "run", "/cp"))
    renamed = elsewhere.rename(elsewhere.with_name("renamed"))
    found = checkpoint.bind(renamed, adopt=True)
    assert (found.id, found.location) == (bound.id, f"{renamed.as_uri()}/again-4")


@pytest.mark.parametrize("has_run", [True, False])
def test_a_return_that_was_killed_goes_on_where_the_checkpoint_was_moved_by_hand(
    checkpoint, monkeypatch, has_run
):
    repointing.point_nowhere(LocalStore(checkpoint.home), checkpoint.bind(), 3)
    with monkeypatch.context() as patched:
        patched.setattr(binding, "create_pointer", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            checkpoint.bind()
    if has_run:
        again = LocalStore(checkpoint.home / "again-4")
        CommitLog(again, first_generation=4).claim(Claim("q", "run", "/cp"))
    moved = Checkpoint(checkpoint.path.rename(checkpoint.path.with_name("moved")))
    if has_run:
        with pytest.raises(CheckpointMismatchError, match="the log of the checkpoint"):
            moved.bind()
    else:
        assert moved.bind().location == (moved.home / "again-4").as_uri()


def test_the_place_of_an_earlier_log_of_the_same_checkpoint_is_named_as_such(checkpoint, elsewhere):
    home = LocalStore(checkpoint.home)
    repointing.point_nowhere(home, checkpoint.bind(elsewhere), 3)
    bound = checkpoint.bind()
    with pytest.raises(CheckpointMismatchError, match="an earlier commit log of this checkpoint"):
        repointing.log_id_at(LocalStore(elsewhere), bound, str(checkpoint.path))


def test_a_folder_with_something_else_in_it_is_refused(checkpoint, elsewhere):
    elsewhere.mkdir(parents=True)
    (elsewhere / "lost+found").mkdir()
    (elsewhere / "others").mkdir()
    with pytest.raises(CheckpointMismatchError, match="something else, others. Name"):
        checkpoint.bind(elsewhere)
    assert not checkpoint.home.exists()
    (elsewhere / "others").rmdir()
    bound = checkpoint.bind(elsewhere)
    (elsewhere / "others").mkdir()
    assert checkpoint.bind(elsewhere).id == bound.id


def test_a_log_in_its_home_is_not_somewhere_else_behind_a_return(checkpoint, elsewhere):
    home = LocalStore(checkpoint.home)
    repointing.point_nowhere(home, checkpoint.bind(), 3)
    bound = checkpoint.bind()
    with pytest.raises(CheckpointMismatchError, match="already has its commit log in"):
        checkpoint.bind(elsewhere)
    (checkpoint.home / "again-4").rename(checkpoint.home / "away")
    with pytest.raises(CheckpointMismatchError, match=r"Put the log back.* doubled\.$"):
        checkpoint.bind()
    (checkpoint.home / "away").rename(checkpoint.home / "again-4")
    assert checkpoint.bind().id == bound.id
