"""The paths of schemas that Spark keeps in the metadata of an operator's state, where a checkpoint
isn't any more where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commit_log.test_remote import ScriptedClient
from onceforall.spark import mending, state_paths
from onceforall.spark.remote_path import RemotePath

SCHEMA = "state/0/_stateSchema/default/0_a b"


def metadata(*paths):
    return f'v2\n{{"stateSchemaFilePaths":{json.dumps(paths)},"n":[{{"o":1}}]}}'.encode()


def named(content):
    return json.loads(content.decode().partition("\n")[2])["stateSchemaFilePaths"]


class Place:
    """A checkpoint on a disk whose state has one schema."""

    def __init__(self, path, *paths):
        self.path = path
        self.file = path / "state" / "0" / "_metadata" / "v2" / "0"
        self.file.parent.mkdir(parents=True)
        self.file.write_bytes(metadata(*paths))
        (path / SCHEMA).parent.mkdir(parents=True)
        (path / SCHEMA).write_text("schema")

    def named(self):
        return named(self.file.read_bytes())


def test_a_checkpoint_that_is_adopted_names_its_files_where_they_are(tmp_path):
    paths = [
        "file:/was/here/state/0/_stateSchema/default/0_a b",
        "s3a://bucket/was/state/here/state/0/_stateSchema/default/0_a b",
        "file:/was/here/state/0/_stateSchema/default/1_gone",
        "no path/state/0/_stateSchema/default/0_a b",
        "file:/was/here/state/0/_other/default/0_a b",
    ]
    there = Place(tmp_path / "here", *paths)
    crc = there.file.with_name(".0.crc")
    crc.write_bytes(b"of before")
    other = there.path / "state" / "0" / "0" / "v2"
    other.mkdir(parents=True)
    (other / "0").write_bytes(metadata(*paths))
    before = there.file.read_bytes()
    asked = mending._Asked(there.path, None, mending.Stores(), adopt=True)
    done = mending._led_here(asked, None, dry_run=True)
    assert there.file.read_bytes() == before
    assert mending._led_here(asked, None) == done
    assert len(done) == 1
    assert str(there.file) in done[0]
    assert there.named() == [f"file:{there.path}/{SCHEMA}"] * 2 + paths[2:]
    assert there.file.read_bytes().startswith(b'v2\n{"stateSchemaFilePaths"')
    assert not crc.exists()
    assert (other / "0").read_bytes() == before
    assert mending._led_here(asked, None) == []
    assert [file.name for file in there.file.parent.iterdir()] == ["0"]


def test_without_that_word_nothing_is_changed(tmp_path):
    there = Place(tmp_path / "here", f"file:/was/{SCHEMA}")
    before = there.file.read_bytes()
    asked = mending._Asked(there.path, None, mending.Stores(), adopt=False)
    assert mending._led_here(asked, None) == []
    assert there.file.read_bytes() == before


def test_what_names_itself_stays_as_spark_wrote_it(tmp_path):
    there = Place(tmp_path / "here")
    (tmp_path / "link").symlink_to(there.path)
    for root in (f"file:{there.path}", f"file://{there.path}", f"file:{tmp_path / 'link'}"):
        # With spaces, as somebody else writes JSON.
        there.file.write_bytes(b'v1\n{"a": ["' + f"{root}/{SCHEMA}".encode() + b'"]}')
        before = there.file.read_bytes()
        assert state_paths.lead_here(there.path) == []
        assert there.file.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"v2", b"v2\n{", b"\xff"])
def test_what_can_not_be_read_is_sparks_to_tell(tmp_path, content):
    there = Place(tmp_path / "here")
    there.file.write_bytes(content)
    assert state_paths.lead_here(there.path) == []
    assert there.file.read_bytes() == content


def test_a_checkpoint_that_is_moved_again_names_none_of_its_earlier_places(tmp_path):
    there = Place(tmp_path / "here")
    new = tmp_path / "new"
    paths = [f"file:/was/{SCHEMA}", f"file:{there.path}/{SCHEMA}", "file:/was/elsewhere"]
    assert named(state_paths.renamed(metadata(*paths), there.path, new)) == [
        f"file:{new}/{SCHEMA}",
        f"file:{new}/{SCHEMA}",
        "file:/was/elsewhere",
    ]


def test_of_a_path_in_the_old_place_nobody_asks_whether_the_file_is_there(tmp_path):
    there, new = Place(tmp_path / "here"), tmp_path / "new"
    path = f"file:{there.path}/state/0/_stateSchema/default/9_gone"
    assert named(state_paths.renamed(metadata(path), there.path, new)) == [
        f"file:{new}/state/0/_stateSchema/default/9_gone"
    ]


def test_it_is_durable_before_it_has_its_name_and_its_name_is(tmp_path, monkeypatch):
    there = Place(tmp_path / "here", f"file:/was/{SCHEMA}")
    synced, folders = [], []

    def fsync(number):
        synced.append(named(Path(f"/proc/self/fd/{number}").read_bytes()))
        assert there.named() == [f"file:/was/{SCHEMA}"]

    monkeypatch.setattr(state_paths.os, "fsync", fsync)
    monkeypatch.setattr(state_paths, "sync_folder", folders.append)
    state_paths.lead_here(there.path)
    assert synced == [there.named()] == [[f"file:{there.path}/{SCHEMA}"]]
    assert folders == [there.file.parent]


def test_a_crash_leaves_the_one_or_the_other_and_no_checksum_of_another(tmp_path, monkeypatch):
    there = Place(tmp_path / "here", f"file:/was/{SCHEMA}")
    crc = there.file.with_name(".0.crc")
    crc.write_bytes(b"of before")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        state_paths.lead_here(there.path)
    assert not crc.exists()
    assert [file.name for file in there.file.parent.iterdir()] == ["0"]
    assert there.named() == [f"file:/was/{SCHEMA}"]
    monkeypatch.undo()
    assert len(state_paths.lead_here(there.path)) == 1


def test_a_start_warns_of_each_file_that_it_writes(tmp_path, caplog):
    there = Place(tmp_path / "here", f"file:/was/{SCHEMA}")
    asked = mending._Asked(there.path, None, mending.Stores(), adopt=True)
    mending._led_here(asked, "after a loss of power", dry_run=True)
    assert not caplog.records
    (step,) = mending._led_here(asked, "after a loss of power")
    assert [r.getMessage() for r in caplog.records] == [f"the checkpoint was moved: {step}"]


def test_on_a_store_it_is_written_over():
    client = ScriptedClient()
    here = RemotePath(client, "cp")
    client.create("cp/state/0/_metadata/v2/0", metadata(f"file:/was/{SCHEMA}", f"{here}/{SCHEMA}"))
    client.create(f"cp/{SCHEMA}", b"schema")
    assert len(state_paths.lead_here(here)) == 1
    assert named(client.read("cp/state/0/_metadata/v2/0")) == [f"{here}/{SCHEMA}"] * 2
    assert state_paths.lead_here(here) == []
