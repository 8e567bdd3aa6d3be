"""Nothing leaves the sink's folder, also where somebody replaces a folder in it by a symbolic
link behind all checks."""

import contextlib
import os
import shutil

import pytest

from onceforall.errors import (
    AttemptFailedError,
    OnceForAllError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.protocol.names import sink_code
from onceforall.sink import Sweep
from onceforall.sinks.files.reading.committed_files import read_files
from onceforall.sinks.files.reading.mending import check_files, mend_files
from sinks.files.building import QUERY, attempt, checked, commit, numbers, permit, prepared


class World:
    """A sink with a committed batch, a decided one and an open attempt; what a sink may be asked
    for there, each by its name."""

    def __init__(self, root):
        (root / "_spark_metadata").mkdir(parents=True)
        self.root = root
        self.sink = checked(root, partition_by=["p"], spark_metadata="continue")
        first = self.sink.confirm([prepared(self.sink, numbers(2, p=["a", "b"]))])
        self.sink.commit(permit(), first)
        self.decided = self.sink.confirm(
            [prepared(self.sink, numbers(2, first=2, p=["a", "b"]), 1)]
        )
        self.undecided = prepared(self.sink, numbers(2, first=4, p=["a", "b"]), 2)
        self.open = self.sink.begin_transaction(attempt(2, partition=1))
        self.sink.invoke(self.open, numbers(2, first=6, p=["a", "b"]))

    def commit(self):
        self.sink.commit(permit(1), self.decided)

    def retire(self):
        self.sink.retire(self.decided)

    def retire_what_lost_a_file(self):
        self.sink.retire(
            [
                {
                    **self.decided[0],
                    "files": [
                        [folder, n, rows, size + 1]
                        for folder, n, rows, size in self.decided[0]["files"]
                    ],
                }
            ]
        )

    def abort(self):
        self.sink.abort([self.undecided])

    def recover(self):
        self.sink.recover(Sweep(QUERY, "out", 5))

    def discard(self):
        self.sink.discard(self.open)

    def pre_commit(self):
        self.sink.pre_commit(self.open)

    def begin_and_write(self):
        prepared(self.sink, numbers(2, first=8, p=["c", "a"]), 3)

    def confirm(self):
        self.sink.confirm([self.undecided])

    def check(self):
        checked(self.root, spark_metadata="continue")

    def mend(self):
        mend_files(self.root)


OPERATIONS = [name for name in vars(World) if not name.startswith("_")]


def folders(root):
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_dir())


def content(folder):
    return {
        path.relative_to(folder): (path.lstat().st_mtime_ns, path.lstat().st_ino)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_operation_changes_anything_behind_a_link(tmp_path, operation):
    """The link's target has what the folder had, so that whoever follows it finds something to
    change. Each folder is tried."""
    World(tmp_path / "names")
    count = len(folders(tmp_path / "names"))
    assert count > 9
    for number in range(count):
        world = World(tmp_path / str(number))
        replaced = tmp_path / str(number) / folders(world.root)[number]
        elsewhere = tmp_path / f"elsewhere-{number}"
        shutil.copytree(replaced, elsewhere, copy_function=os.link)
        shutil.rmtree(replaced)
        replaced.symlink_to(elsewhere)
        before = content(elsewhere)
        with contextlib.suppress(OnceForAllError):
            getattr(world, operation)()
        assert content(elsewhere) == before, replaced
        world.sink.discard(world.open)


@pytest.mark.parametrize(
    "name", ["p=a", "_onceforall", "_onceforall/staging", f"_onceforall/manifests/{QUERY}"]
)
def test_a_commit_through_a_link_waits_names_it_and_ends_when_the_folder_is_back(tmp_path, name):
    world = World(tmp_path / "sink")
    world.sink.discard(world.open)
    replaced = world.root / name
    replaced.rename(tmp_path / "moved")
    replaced.symlink_to(tmp_path / "moved")
    with pytest.raises((SinkUnavailableError), match=rf"{replaced}: a symbolic link .*\(ELOOP\)"):
        world.commit()
    replaced.unlink()
    (tmp_path / "moved").rename(replaced)
    world.commit()
    assert sorted(read_files(world.root).to_arrow().column("n").to_pylist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["_onceforall", "_onceforall/staging", "_onceforall/manifests"])
def test_a_start_refuses_links_in_place_of_its_own_folders(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sink" / name).parent.mkdir(parents=True)
    (tmp_path / "sink" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SinkCheckError, match="symbolic link"):
        checked(tmp_path / "sink")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("leads", ["nowhere", "to itself", "to a file", "to a folder"])
@pytest.mark.parametrize("name", ["_onceforall", "_onceforall/manifests"])
def test_readers_and_check_name_a_link_in_place_of_a_folder_wherever_it_leads(
    tmp_path, name, leads
):
    root = tmp_path / "sink"
    commit(checked(root), 0, numbers(3))
    replaced, elsewhere = root / name, tmp_path / "elsewhere"
    (tmp_path / "file").touch()
    replaced.rename(elsewhere)
    to = {
        "nowhere": tmp_path / "nowhere",
        "to itself": replaced,
        "to a file": tmp_path / "file",
        "to a folder": elsewhere,
    }
    replaced.symlink_to(to[leads])
    with pytest.raises(OSError, match=rf"{replaced}.*symbolic link|symbolic link.*{replaced}"):
        read_files(root)
    found = [str(finding) for finding in check_files(root)]
    assert any(str(replaced) in each and "link" in each for each in found), found


def test_a_link_or_a_pipe_is_no_data_file(tmp_path):
    """Its length could be made that of the file."""
    sink = checked(tmp_path)
    committable = prepared(sink, numbers(3))
    (decided,) = sink.confirm([committable])
    (file,) = (tmp_path / "_onceforall" / "staging" / committable["name"]).iterdir()
    size = file.stat().st_size
    file.unlink()
    file.symlink_to("/" * (size - 4) + "proc")
    assert file.lstat().st_size == size
    assert [each.committable for each in sink.commit(permit(), [decided]).lost] == [decided]


@pytest.mark.parametrize("which", ["query", "sink"])
def test_a_link_in_place_of_a_folder_of_manifests_is_refused_by_start_decision_readers_and_check(
    tmp_path, which
):
    root = tmp_path / "sink"
    sink = checked(root)
    commit(sink, 0, numbers(1))
    committable = prepared(sink, numbers(1, 1), 1)
    query = root / "_onceforall" / "manifests" / QUERY
    replaced = query if which == "query" else query / sink_code("out")
    replaced.rename(tmp_path / "moved")
    replaced.symlink_to(tmp_path / "moved")
    with pytest.raises(SinkCheckError, match=rf"{replaced}.*symbolic link"):
        checked(root)
    with pytest.raises(
        AttemptFailedError, match=rf"Nothing of this batch is decided: {replaced}: a symbolic link"
    ):
        sink.confirm([committable])
    with pytest.raises(OSError, match="symbolic link"):
        read_files(root)
    (finding,) = check_files(root)
    assert finding.path == replaced
    assert "symbolic link" in finding.words
