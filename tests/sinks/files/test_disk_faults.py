"""A full disk, a read-only one and errors at each step under the file sink: the error names the
folder, nothing is lost, and it goes on."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onceforall
from onceforall import read_files
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.protocol.names import parse_name
from onceforall.sink import Sweep
from onceforall.sinks.files.tree import Tree
from sinks.files.building import (
    QUERY,
    attempt,
    checked,
    commit,
    left_in_staging,
    numbers,
    permit,
    prepared,
)
from support.syncing import Recorder

IN_A_TASK = [
    "file.begin.made",
    "file.write.opened",
    "file.pre_commit.file_written",
    "file.pre_commit.file_synced",
    "file.pre_commit.before_sync",
    "file.pre_commit.folder_synced",
]
IN_A_COMMIT = [
    "file.folder.made",
    "file.commit.before",
    "file.commit.renamed",
    "file.commit.synced",
    "file.manifest.before",
    "file.create.written",
    "file.create.synced",
    "file.create.linked",
    "file.create.folder_synced",
    "file.manifest.after",
    "file.commit.before_clearing",
    "file.commit.cleared",
]


def shown(folder):
    return sorted(read_files(folder).to_arrow().column("n").to_pylist())


def noise(count, first=0):
    return numbers(count, first, t=[os.urandom(100).hex() for _ in range(count)])


def assert_whole(folder, count):
    assert shown(folder) == list(range(count))
    assert sorted(read_files(folder).paths) == sorted(str(path) for path in folder.rglob("part-*"))
    assert left_in_staging(folder) == []


def named(folder, code):
    return rf"{re.escape(str(folder))}.*{errno.errorcode[code]}"


class TestAFullDisk:
    def test_a_task_fails_and_the_batch_is_written_again(self, disk):
        folder = disk.root / "out"
        sink = checked(folder)
        commit(sink, 0, numbers(4))
        transaction = sink.begin_transaction(attempt(1))
        disk.fill()
        with pytest.raises(  # noqa: PT012  either raises
            AttemptFailedError, match=named(folder, errno.ENOSPC) + ".*Free some space"
        ):
            sink.invoke(transaction, noise(4000, 4))
            sink.pre_commit(transaction)
        sink.discard(transaction)
        assert left_in_staging(folder) == []
        disk.free()
        assert shown(folder) == list(range(4))
        commit(sink, 1, numbers(4, 4))
        assert_whole(folder, 8)

    def test_a_decided_batch_waits_for_space_and_is_committed_then(self, disk):
        folder = disk.root / "out"
        sink = checked(folder)
        commit(sink, 0, numbers(4))
        decided = sink.confirm([prepared(sink, numbers(4, 4), 1)])
        disk.fill()
        for _ in range(2):
            with pytest.raises(
                SinkUnavailableError,
                match=named(folder, errno.ENOSPC) + ".*Free some space",
            ):
                sink.commit(permit(1), decided)
        assert shown(folder) == list(range(4))
        disk.free()
        again = checked(folder)
        assert again.recover(Sweep(QUERY, "out", 1, spared={decided[0]["name"]})) == 0
        assert len(again.commit(permit(1), decided).completed) == 1
        assert_whole(folder, 8)


class TestAReadOnlyDisk:
    def test_tasks_commits_and_aborts_say_so_and_go_on_when_it_can_be_written(self, disk):
        folder = disk.root / "out"
        sink = checked(folder)
        commit(sink, 0, numbers(4))
        decided = sink.confirm([prepared(sink, numbers(4, 4), 1)])
        undecided = prepared(sink, numbers(4, 4), 1)
        with disk.read_only():
            with pytest.raises(AttemptFailedError, match=named(folder, errno.EROFS) + ".*Remount"):
                sink.begin_transaction(attempt(2))
            with pytest.raises(
                SinkUnavailableError, match=named(folder, errno.EROFS) + ".*Remount"
            ):
                sink.commit(permit(1), decided)
            with pytest.raises(
                SinkUnavailableError, match=named(folder, errno.EROFS) + ".*Remount"
            ):
                sink.abort([undecided])
            assert shown(folder) == list(range(4))
        sink.abort([undecided])
        assert len(sink.commit(permit(1), decided).completed) == 1
        assert_whole(folder, 8)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", IN_A_TASK)
def test_an_error_at_a_step_of_a_task_fails_the_attempt_and_leaves_nothing(
    tmp_path, armed, step, code
):
    sink = checked(tmp_path)
    commit(sink, 0, numbers(4))
    armed(f"{step}=error:{errno.errorcode[code]}")
    transaction = None
    with pytest.raises(AttemptFailedError, match=named(tmp_path, code)):  # noqa: PT012  one of them raises
        transaction = sink.begin_transaction(attempt(1))
        sink.invoke(transaction, numbers(4, 4))
        sink.pre_commit(transaction)
    if transaction is not None:
        sink.discard(transaction)
        assert left_in_staging(tmp_path) == []
    # Without a transaction there is nothing to discard: the sweep of the aborted attempt finds its
    # folder.
    assert sink.recover(Sweep(QUERY, "out", 1)) == (transaction is None)
    commit(sink, 1, numbers(4, 4), generation=1)
    assert_whole(tmp_path, 8)


@pytest.mark.parametrize("again", ["", "@+"])
@pytest.mark.parametrize("step", IN_A_COMMIT)
def test_an_error_at_a_step_of_a_commit_is_asked_again_and_nothing_is_lost(
    tmp_path, armed, step, again
):
    sink = checked(tmp_path, partition_by=["p"])
    decided = sink.confirm(
        [prepared(sink, numbers(4, 4 * i, p=["a", "b"] * 2), partition=i) for i in range(2)]
    )
    if step == "file.folder.made":
        for folder in ("p=a", "p=b"):
            (tmp_path / folder).rmdir()  # as who deletes old partitions may do
    armed(f"{step}=error:EIO{again}")
    # Once the manifest stands, a second call only has to sync it.
    stands = step in {"file.create.linked", "file.create.folder_synced", "file.manifest.after"}
    for _ in range(2 if again and not stands else 1):
        with pytest.raises(SinkUnavailableError, match=named(tmp_path, errno.EIO)):
            sink.commit(permit(), decided)
    armed("")
    other = checked(tmp_path, partition_by=["p"])
    assert len(other.commit(permit(), decided).completed) == 2
    assert_whole(tmp_path, 8)


class TestWhatAnotherProcessDidNotSync:
    """A process that is killed between a name and the sync of its folder leaves a name that a loss
    of power takes away.

    Whoever builds on that name syncs it: behind the answer of a commit comes DONE, and behind that
    nobody looks at the batch again.
    """

    def test_a_commit_that_finds_the_manifest_syncs_its_folder_and_those_above(
        self, tmp_path, armed, monkeypatch
    ):
        sink = checked(tmp_path)
        decided = sink.confirm([prepared(sink, numbers(4))])
        armed("file.create.linked=error:EIO")
        with pytest.raises(SinkUnavailableError):
            sink.commit(permit(), decided)
        armed("")
        (manifest,) = (tmp_path / "_onceforall" / "manifests").rglob("0.json")
        recorder = Recorder(monkeypatch)
        assert len(checked(tmp_path).commit(permit(), decided).completed) == 1
        for folder in manifest.parents[:5]:
            recorder.synced(folder)
        assert manifest.parents[4] == tmp_path

    def test_a_commit_syncs_the_folders_of_manifests_that_another_one_made(
        self, tmp_path, monkeypatch
    ):
        sink = checked(tmp_path)
        decided = sink.confirm([prepared(sink, numbers(4))])
        manifests = tmp_path / "_onceforall" / "manifests"
        made = sink._folder.manifests(parse_name(decided[0]["name"])).folder
        made.rmdir()
        made.mkdir()
        recorder = Recorder(monkeypatch)
        assert len(sink.commit(permit(), decided).completed) == 1
        (manifest,) = manifests.rglob("0.json")
        for folder in (manifest.parent, *manifest.parents[1:3]):
            recorder.synced(folder)

    def test_an_entry_of_sparks_log_that_is_there_is_synced(self, tmp_path, armed, monkeypatch):
        log = tmp_path / "_spark_metadata"
        log.mkdir()
        sink = checked(tmp_path, spark_metadata="continue")
        decided = sink.confirm([prepared(sink, numbers(4))])
        armed("file.create.linked=error:EIO@2")
        with pytest.raises(SinkUnavailableError):
            sink.commit(permit(), decided)
        armed("")
        assert (log / "0").exists()
        recorder = Recorder(monkeypatch)
        assert len(sink.commit(permit(), decided).completed) == 1
        recorder.synced(log)

    def test_a_start_syncs_the_folders_and_the_id_that_it_finds(self, tmp_path, monkeypatch):
        checked(tmp_path / "out")
        recorder = Recorder(monkeypatch)
        checked(tmp_path / "out")
        for folder in (tmp_path, tmp_path / "out", tmp_path / "out" / "_onceforall"):
            recorder.synced(folder)


EACH_WRITE_FAILS = """
import io, random, sys
import pyarrow as pa
from onceforall.sinks.files.task.formats import file_format

random.seed(1)
rows = pa.table({"n": pa.array([random.getrandbits(63) for _ in range(30_000)], pa.int64())})
errors = {"OSError": OSError(28, "full"), "KeyboardInterrupt": KeyboardInterrupt(), "MemoryError": MemoryError()}


class Failing(io.BytesIO):
    def __init__(self, at, error):
        super().__init__()
        self.left, self.error = at, error

    def write(self, content):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().write(content)


def tried(at, error):
    file = Failing(at, error)
    writer = file_format(sys.argv[1], None, {}).open(file, rows.schema, 1 << 17)
    try:
        for start in range(0, 30_000, 10_000):
            writer.write(rows.slice(start, 10_000))
        writer.close()
    except BaseException:
        try:
            writer.close()
        except BaseException:
            pass
        raise
    return file


for name, error in errors.items():
    at = 0
    while True:
        try:
            whole = tried(at, error)
        except BaseException as raised:
            if type(raised).__name__ != name:
                raise
            at += 1
        else:
            break
    print(name, at > 0, whole.left == 0)
"""


@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
def test_no_error_of_a_file_ends_the_process_whichever_write_it_meets(form):
    ended = subprocess.run(
        [sys.executable, "-c", EACH_WRITE_FAILS, form],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:3] == [
        f"{name} True True" for name in ("OSError", "KeyboardInterrupt", "MemoryError")
    ]


ON_A_FULL_DISK = """
import sys
from pathlib import Path
from onceforall.errors import AttemptFailedError
from sinks.files.test_disk_faults import attempt, checked, left_in_staging, noise

folder = Path(sys.argv[1])
sink = checked(folder, format="orc")
transaction = sink.begin_transaction(attempt(1))
try:
    for _ in range(40):
        sink.invoke(transaction, noise(4000))
    sink.pre_commit(transaction)
except AttemptFailedError as error:
    sink.discard(transaction)
    print(left_in_staging(folder), error)
"""


def test_a_full_disk_fails_a_task_that_writes_orc_and_leaves_nothing(disk):
    folder = disk.root / "out"
    checked(folder, format="orc")
    disk.fill()
    path = os.pathsep.join(
        [str(Path(onceforall.__file__).parents[1]), str(Path(__file__).parents[2])]
    )
    ended = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert re.match(rf"\[\] .*{named(folder, errno.ENOSPC)}.*Free some space", ended.stdout)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_error_in_syncing_one_of_several_folders_is_one(tmp_path, monkeypatch, bad):
    tree = Tree(tmp_path)
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    tree.sync_all(folders)
    sync = Tree.sync

    def failing(self, folder):
        if folder == folders[bad]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(self, folder)

    monkeypatch.setattr(Tree, "sync", failing)
    with pytest.raises(OSError, match="Input/output"):
        tree.sync_all(folders)
