"""What the commands that move a checkpoint or its log leave and find: begun, repeated, overtaken,
and beside what isn't theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commit_log.building import start
from commit_log.stores import PoweredStore
from commit_log.test_remote import ScriptedClient
from onceforall.commit_log import LocalStore, binding, repointing
from onceforall.commit_log.chains import entry_key
from onceforall.commit_log.pointers import id_at, mark_of, newest_pointer, pointer_key
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.errors import CheckpointMismatchError

OLD, NEW = "/checkpoints/ads", "/checkpoints/new"


class Places:
    """A checkpoint whose log has entries, and others for it."""

    def __init__(self, folder):
        self.folder = folder
        self.home = self.store("ads/onceforall")
        self.bound = binding.bind(self.home, OLD, None, query_id=None)
        start(self.bound.store)

    def store(self, name):
        return LocalStore(self.folder / name)

    def moved_log(self, name="volume"):
        """What ``log move`` does; returns the new place and what is bound then."""
        target = self.store(name)
        location = (self.folder / name).as_uri()
        log_id = repointing.log_id_at(target, self.bound, OLD)
        start(target)
        repointing.point_to(self.home, self.bound, location, log_id, target)
        return target, binding.find(self.home)


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path)


# A log moves.


def test_a_moved_log_keeps_its_id_and_is_found_in_its_new_place(places):
    target, found = places.moved_log()
    assert found.store.describe("") == target.describe("")
    assert found.id == places.bound.id == id_at(target)
    assert mark_of(target)["checkpoint"] == OLD
    assert newest_pointer(places.home).number == 1
    assert newest_pointer(places.home).from_home


def test_a_log_that_is_moved_twice_still_tells_that_it_began_at_home(places):
    """Its old chains lie there, and are not taken for another log."""
    _, places.bound = places.moved_log()
    _, again = places.moved_log("another")
    assert again.location.endswith("/another")
    assert again.id == places.bound.id
    assert newest_pointer(places.home).from_home


def test_a_log_that_never_lay_at_home_does_not_say_so(places):
    elsewhere = places.store("elsewhere")
    home = places.store("b/onceforall")
    bound = binding.bind(home, "/b", (places.folder / "elsewhere").as_uri(), query_id=None)
    location = (places.folder / "volume").as_uri()
    repointing.point_to(home, bound, location, bound.id, places.store("volume"))
    assert not newest_pointer(home).from_home
    assert id_at(elsewhere) == bound.id


def test_a_move_that_is_repeated_writes_no_second_pointer(places):
    places.moved_log()
    places.moved_log()
    assert newest_pointer(places.home).number == 1


@pytest.mark.parametrize("wins", ["same", "another"])
def test_of_two_moves_at_a_time_one_wins_and_the_other_is_told(places, wins, monkeypatch):
    location = {name: (places.folder / name).as_uri() for name in ("same", "another")}
    create = repointing.create_pointer

    def late(home, pointer):
        monkeypatch.setattr(repointing, "create_pointer", create)
        place = places.store(wins)
        repointing.point_to(home, places.bound, location[wins], places.bound.id, place)
        return create(home, pointer)

    monkeypatch.setattr(repointing, "create_pointer", late)
    move = lambda: repointing.point_to(
        places.home, places.bound, location["same"], places.bound.id, places.store("same")
    )
    if wins == "same":
        move()
    else:
        with pytest.raises(
            CheckpointMismatchError, match=rf"made it lead to {location[wins]}\. That"
        ):
            move()
    assert newest_pointer(places.home).location == location[wins]


def test_a_place_is_another_logs(places):
    taken = places.store("taken")
    other = binding.bind(
        places.store("c/onceforall"), "/c", (places.folder / "taken").as_uri(), query_id=None
    )
    with pytest.raises(
        CheckpointMismatchError, match=f"of the checkpoint /c, and this one is {OLD}"
    ):
        repointing.log_id_at(taken, places.bound, OLD)
    assert id_at(taken) == other.id


def test_a_place_has_another_log_of_the_same_checkpoint(places):
    """It was detached from it, and has begun again."""
    taken = places.store("taken")
    repointing.log_id_at(taken, binding.bind(places.store("d"), OLD, None, query_id=None), OLD)
    with pytest.raises(CheckpointMismatchError, match="Name an empty folder"):
        repointing.log_id_at(taken, places.bound, OLD)


@pytest.mark.parametrize("first", [0, 7])
def test_a_place_has_chains_that_are_nobodys(places, first):
    """Also where the first one was taken away."""
    places.store("taken").create(entry_key(first, 0), b"{}")
    with pytest.raises(CheckpointMismatchError, match="not this checkpoint's"):
        repointing.log_id_at(places.store("taken"), places.bound, OLD)


def test_a_log_of_an_earlier_release_gets_an_id_once(places):
    """Also where the command is repeated, and where it died before the pointer."""
    home = places.store("early/onceforall")
    start(home)
    bound = binding.find(home)
    assert not bound.id
    target = places.store("volume")
    log_id = repointing.log_id_at(target, bound, OLD)
    assert log_id
    assert repointing.log_id_at(target, bound, OLD) == log_id
    repointing.point_to(home, bound, (places.folder / "volume").as_uri(), log_id, target)
    assert binding.find(home).id == log_id
    assert newest_pointer(home).number == 0


def test_a_log_that_moves_to_a_store_keeps_its_ends_and_one_that_moves_to_a_disk_does_not(places):
    remote = RemoteStore(ScriptedClient(), "logs/ads")
    repointing.point_to(places.home, places.bound, "s3a://b/logs/ads", places.bound.id, remote)
    assert newest_pointer(places.home).keep_ends
    bound = replace(places.bound, location="s3a://b/logs/ads", store=remote)
    disk = (places.folder / "volume").as_uri()
    repointing.point_to(places.home, bound, disk, bound.id, places.store("volume"))
    assert not newest_pointer(places.home).keep_ends


def test_a_log_of_an_earlier_release_gets_an_id_by_which_it_is_known_when_it_is_detached(places):
    """Its place is refused to a later log."""
    home = places.store("early/onceforall")
    start(home)
    repointing.point_nowhere(home, binding.find(home), 3)
    assert newest_pointer(home).id


# A checkpoint moves.


def moving(places):
    new = places.store("new/onceforall")
    repointing.expect_move(new, places.bound, OLD)
    return new


def test_a_place_to_which_a_checkpoint_moves_is_no_checkpoint_until_it_is_there(places):
    new = moving(places)
    assert repointing.is_expected(new, OLD)
    assert not repointing.is_expected(new, "/checkpoints/another")
    assert not repointing.is_expected(places.home, OLD)
    assert not repointing.is_expected(places.store("nowhere"), OLD)
    with pytest.raises(CheckpointMismatchError, match=f"{OLD} is being moved here. Finish it: "):
        binding.find(new)
    start(new)
    repointing.point_home(new, places.bound, OLD)
    assert not repointing.is_expected(new, OLD)
    found = binding.find(new)
    assert (found.id, found.location) == (places.bound.id, None)
    repointing.point_home(new, places.bound, OLD)
    assert newest_pointer(new).number == 1, "it was home already"


def test_an_expected_move_is_begun_again(places):
    new = moving(places)
    repointing.expect_move(new, places.bound, OLD)
    assert newest_pointer(new).number == 0


def test_a_place_that_is_another_checkpoints_expects_no_move(places):
    for taken in (places.home, moving(places)):
        with pytest.raises(CheckpointMismatchError, match="has a commit log already"):
            repointing.expect_move(taken, places.bound, "/checkpoints/another")


@pytest.mark.parametrize("differs", ["id", "first_generation", "both"])
def test_a_move_of_another_log_of_the_checkpoint_does_not_go_on(places, differs):
    new = moving(places)
    later = binding.BoundLog(
        places.home,
        None,
        places.bound.id if differs == "first_generation" else "another",
        0 if differs == "id" else 4,
    )
    with pytest.raises(CheckpointMismatchError, match="from which it was detached since"):
        repointing.expect_move(new, later, OLD)


def test_a_checkpoint_that_was_taken_away_behind_its_move_is_missed(places):
    with pytest.raises(CheckpointMismatchError, match="isn't there any more"):
        repointing.point_home(places.store("new/onceforall"), places.bound, OLD)


# A command that is repeated.


def nowhere(places):
    repointing.point_nowhere(places.home, places.bound, 3)


def elsewhere(places):
    target = PoweredStore()
    repointing.point_to(places.home, places.bound, "s3a://logs/one", "id", target)


def at_home(places):
    repointing.expect_move(places.home, places.bound, OLD)
    repointing.point_home(places.home, places.bound, OLD)


class Powered:
    """A checkpoint whose home can lose its power."""

    def __init__(self, act):
        self.home = PoweredStore()
        other = self.home if act is not at_home else PoweredStore()
        self.bound = binding.bind(other, OLD, None, query_id=None)


@pytest.mark.parametrize("act", [nowhere, elsewhere, at_home])
def test_what_a_killed_command_has_left_is_durable_when_the_next_one_has_ended(act):
    """It may have been killed before it could sync its pointer, and people delete what it leads
    away from."""
    places = Powered(act)
    act(places)
    pointer = newest_pointer(places.home)
    assert pointer.number == 1
    places.home.unsynced = [pointer_key(1)]
    if act is at_home:
        repointing.point_home(places.home, places.bound, OLD)
    else:
        act(places)
    places.home.lose_power()
    assert newest_pointer(places.home) == pointer
