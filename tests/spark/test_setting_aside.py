"""What a detachment sets aside: its own log, and nobody else's."""

from pathlib import Path

import pytest

from commit_log.building import commit, open_log
from onceforall.commit_log import LocalStore, binding
from onceforall.commit_log.envelope import FORMAT, encode_fields
from onceforall.commit_log.pointers import mark
from onceforall.errors import CheckpointMismatchError, CommitLogError
from onceforall.protocol.entries import Claim
from onceforall.spark import setting_aside


@pytest.mark.parametrize("there", ["its own", "another one's", "none"])
def test_only_the_log_that_was_detached_is_renamed_in_its_place(tmp_path, there):
    """A detachment that is repeated may find another query's log there by now."""
    place, told = tmp_path / "log", []
    if there != "none":
        place.mkdir()
        name = "mine" if there == "its own" else "theirs"
        binding_file = {"onceforall": FORMAT, "kind": "LOG", "id": name, "checkpoint": "/cp"}
        (place / "binding.json").write_bytes(encode_fields(binding_file))
    setting_aside.set_aside_elsewhere(
        tmp_path / "onceforall.detached-1", "mine", place.as_uri(), told.append
    )
    renamed = tmp_path / "log.detached-1"
    if there == "its own":
        assert renamed.is_dir()
        assert not place.exists()
        assert told == [f"Its entries lie in {renamed}. That folder may be deleted."]
    else:
        assert told == []
        assert not renamed.exists()
        assert place.exists() == (there != "none")


def returned_meanwhile(patch, place, checkpoint):
    """Let another detachment finish and the query return to that place, right before it is
    renamed."""
    real = Path.rename

    def rename(self, target):
        if self == place and not place.with_name("first").exists():
            real(place, place.with_name("first"))
            mark(LocalStore(place), "of the returned query", checkpoint)
        return real(self, target)

    patch.setattr(Path, "rename", rename)


def test_the_log_of_a_query_that_has_returned_to_that_place_stays_there(tmp_path, monkeypatch):
    place = tmp_path / "log"
    mark(LocalStore(place), "detached", "/cp")
    returned_meanwhile(monkeypatch, place, "/cp")
    said = []
    folder = tmp_path / "cp" / "onceforall-detached-1"
    setting_aside.set_aside_elsewhere(folder, "detached", place.as_uri(), said.append)
    assert binding.bound_id(place.as_uri()) == "of the returned query"
    assert not (tmp_path / "log-detached-1").exists()
    assert said == []


def test_a_log_that_a_killed_detachment_has_put_beside_its_place_is_named(tmp_path):
    home, place = LocalStore(tmp_path / "cp" / "onceforall"), tmp_path / "log"
    bound = binding.bind(home, str(tmp_path / "cp"), place.as_uri(), query_id=None)
    mark(LocalStore(tmp_path / "log-detached-0"), "another", "/cp")
    place.rename(tmp_path / "log-detached-1")
    with pytest.raises(CheckpointMismatchError, match="it lies in .*/log-detached-1, where"):
        binding.find(home)
    (tmp_path / "log-detached-1").rename(place)
    assert binding.find(home).id == bound.id


def test_a_folder_that_another_detachment_has_made_meanwhile_is_passed_by(tmp_path, monkeypatch):
    home = tmp_path / "onceforall"
    (home / "chains").mkdir(parents=True)
    real = Path.exists

    def exists(self):
        found = real(self)
        if self.name == "onceforall-detached-3":
            (self / "chains").mkdir(parents=True, exist_ok=True)
        return found

    monkeypatch.setattr(Path, "exists", exists)
    assert setting_aside.rename(home, 3, print).name == "onceforall-detached-3.2"


def test_a_log_that_can_not_be_renamed_back_is_named(tmp_path):
    folder, home = tmp_path / "onceforall-detached-1.2", tmp_path / "onceforall"
    for each in (folder, home):
        (each / "chains").mkdir(parents=True)
    with pytest.raises(CommitLogError, match=r"detached-1.2 holds the log of a run .* Stop every"):
        setting_aside.rename_back(folder, home)


@pytest.mark.parametrize("plain", [False, True])
def test_a_log_behind_which_a_plain_query_has_gone_on_was_left(tmp_path, plain):
    log = open_log(LocalStore(tmp_path / "onceforall-detached-0"))
    log.claim(Claim("query", "run", str(tmp_path)))
    generation = log.claim(Claim("query", "run", str(tmp_path))).generation
    log.seal_below(generation)
    log.append(generation, commit(3))
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / ("4" if plain else "3")).write_text("v1\n{}")
    found = setting_aside.alive(tmp_path, binding.open_log_store)
    assert (found is None) == plain
