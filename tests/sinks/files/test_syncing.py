"""What survives a loss of power: which files and folders of the file sink are synced, and in
which order."""

import errno
import os
from pathlib import Path

import pytest

from commit_log.stores import Killed
from onceforall import read_files
from onceforall.errors import SinkCheckError, SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.driver.start_checks import check_folder
from onceforall.sinks.files.tree import Tree
from sinks.files.building import QUERY, checked, commit, numbers, permit, prepared
from support.syncing import Recorder


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


def parts(count):
    return numbers(count, p=["a", "b"] * (count // 2))


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_temp_file_its_folder_and_the_staging_folder_are_synced_before_the_committable_is_handed_over(
    tmp_path, recorder, form
):
    sink = checked(tmp_path, format=form, partition_by=["p"])
    committable = prepared(sink, parts(4))
    staging = tmp_path / "_onceforall" / "staging" / committable["name"]
    files = sorted(staging.iterdir())
    assert len(files) == len(committable["files"]) == 2
    folder = recorder.synced(staging)
    assert all(recorder.synced(file) < folder for file in files)
    assert recorder.synced(staging.parent) >= 0


def test_the_content_of_a_temp_file_is_complete_when_it_is_synced(tmp_path, monkeypatch):
    sizes, fsync = {}, os.fsync

    def sized(descriptor):
        sizes[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sized)
    sink = checked(tmp_path)
    committable = prepared(sink, numbers(100))
    (file,) = (tmp_path / "_onceforall" / "staging" / committable["name"]).iterdir()
    assert sizes[file.stat().st_ino] == file.stat().st_size > 0


def test_every_folder_of_the_targets_is_synced_behind_the_links_and_before_the_manifest(
    tmp_path, recorder
):
    sink = checked(tmp_path, partition_by=["p"])
    decided = sink.confirm([prepared(sink, parts(4))])
    recorder.calls.clear()
    assert len(sink.commit(permit(), decided).completed) == 1
    (manifest,) = (tmp_path / "_onceforall" / "manifests").rglob("0.json")
    visible = recorder.linked(manifest)
    for folder in (tmp_path / "p=a", tmp_path / "p=b"):
        (file,) = folder.iterdir()
        first_sync = next(
            i
            for i, call in enumerate(recorder.calls)
            if call == ("sync", folder) and i > recorder.linked(file)
        )
        assert recorder.linked(file) < first_sync < visible
    assert recorder.calls.index(("sync", tmp_path)) < visible, (
        "the names of the partitions' folders are in there"
    )


def test_a_manifest_that_goes_with_the_power_before_it_is_durable_is_no_complete_batch(
    tmp_path, monkeypatch
):
    sink = checked(tmp_path)
    decided = sink.confirm([prepared(sink, numbers(3))])
    (manifests,) = {
        path.parent for path in written_and_killed(sink, decided, tmp_path, monkeypatch)
    }
    sync_all = Tree.sync_all

    def power_goes(tree, folders):
        for name in manifests.iterdir():
            name.unlink()
        sync_all(tree, folders)

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "sync_all", power_goes)
        with pytest.raises(SinkUnavailableError, match=r"manifest of batch 0 .* is gone"):
            sink.commit(permit(), decided)
    assert len(sink.commit(permit(), decided).completed) == 1
    assert read_files(tmp_path).to_arrow().num_rows == 3


def written_and_killed(sink, decided, root, monkeypatch):
    """Let a process that has written the manifest be killed before it syncs it; return the
    manifest."""

    def killed(name):
        if name == "file.manifest.after":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", killed)
        with pytest.raises(Killed):
            sink.commit(permit(), decided)
    return list((root / "_onceforall" / "manifests").rglob("0.json"))


def test_folders_that_somebody_else_made_are_synced_too(tmp_path, recorder):
    """Whoever made them may not have come to that before a kill."""
    sink = checked(tmp_path, partition_by=["p", "q"])
    decided = sink.confirm([prepared(sink, numbers(1, p=["a"], q=["b"]))])
    (tmp_path / "p=a" / "q=b").rmdir()
    (tmp_path / "p=a" / "q=b").mkdir()
    recorder.calls.clear()
    sink.commit(permit(), decided)
    for folder in (tmp_path, tmp_path / "p=a", tmp_path / "p=a" / "q=b"):
        recorder.synced(folder)


def test_a_manifest_is_synced_before_it_has_its_name_and_its_folder_before_the_commit_returns(
    tmp_path, recorder
):
    sink = checked(tmp_path)
    decided = sink.confirm([prepared(sink, numbers(2))])
    recorder.calls.clear()
    sink.commit(permit(), decided)
    (manifest,) = (tmp_path / "_onceforall" / "manifests").rglob("0.json")
    assert manifest.parents[1].name == QUERY
    named = recorder.linked(manifest)
    before = [
        path
        for what, path in recorder.calls[:named]
        if what == "sync" and path.parent == manifest.parent
    ]
    assert any(path.name.startswith(".0.json.") for path in before), "its content"
    assert recorder.synced(manifest.parent) > named
    # Each folder above it may be new: its name is in the one above.
    for folder in [manifest.parent, *manifest.parents[1:3]]:
        recorder.synced(folder)


def test_the_temp_files_are_deleted_only_behind_the_manifest(tmp_path, recorder):
    sink = checked(tmp_path)
    recorder.calls.clear()
    commit(sink, 0, numbers(2))
    (manifest,) = (tmp_path / "_onceforall" / "manifests").rglob("0.json")
    deleted = [
        i
        for i, (what, path) in enumerate(recorder.calls)
        if what == "unlink" and "staging" in path.parts
    ]
    assert deleted
    assert min(deleted) > recorder.linked(manifest)


def test_who_finds_a_name_taken_syncs_its_folder_too(tmp_path, recorder):
    """The one who took it may be between its link and its sync."""
    path = tmp_path / "0.json"
    assert Tree(tmp_path).create(path, b"first")
    recorder.calls.clear()
    assert not Tree(tmp_path).create(path, b"second")
    recorder.synced(tmp_path)
    assert path.read_bytes() == b"first"


def test_every_new_folder_is_synced_in_the_one_above(tmp_path, recorder):
    Tree(tmp_path).make_folder(tmp_path / "a" / "b")
    assert [path for what, path in recorder.calls if what == "sync"] == [tmp_path, tmp_path / "a"]


@pytest.mark.parametrize("refused", ["above", "sink", "sink/_onceforall", "above, and it is new"])
def test_a_folder_above_that_was_found_need_not_be_synced(tmp_path, monkeypatch, refused):
    """As a mount point of autofs, or one on a read-only image."""
    sink = tmp_path / "sink"
    folder = tmp_path if refused.startswith("above") else tmp_path / refused
    if refused == "above":
        sink.mkdir()
    fsync = os.fsync

    def refusing(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink() == folder:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    if refused == "above":
        check_folder(sink)
    else:
        with pytest.raises(SinkCheckError, match=rf"{folder}: Invalid argument \(EINVAL\)"):
            check_folder(sink)


def test_a_start_syncs_every_folder_above_the_sinks_whoever_made_it(tmp_path, recorder):
    """An earlier start may have been killed between making one and syncing it."""
    root = tmp_path / "a" / "b" / "sink"
    root.mkdir(parents=True)
    check_folder(root)
    for folder in (root, root.parent, root.parent.parent, tmp_path):
        recorder.synced(folder)


@pytest.mark.parametrize(("code", "refuses"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_folder_above_that_the_disk_could_not_sync_is_not_taken_for_durable(
    tmp_path, monkeypatch, code, refuses
):
    """The kernel tells an error of the disk once; the next sync succeeds without the name."""
    root, fsync = tmp_path / "above" / "out", os.fsync
    root.mkdir(parents=True)
    check_folder(root)
    above = (tmp_path / "above").stat().st_ino

    def failing(descriptor):
        if os.fstat(descriptor).st_ino == above:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    if refuses:
        with pytest.raises(SinkCheckError, match="above.*can't be synced.*Check the disk"):
            check_folder(root)
    else:
        check_folder(root)
