"""The second name of the last manifest: its deletion is noticed, and nothing that a writer
leaves behind makes a reader fail."""

import errno
import os

import pytest

from onceforall import read_files
from onceforall.cli import main
from onceforall.errors import CorruptEntryError
from onceforall.protocol.names import sink_code
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.driver.manifest_writing import ManifestWriter
from onceforall.sinks.files.manifests.names import newest_name
from onceforall.sinks.files.tree import Tree
from sinks.files.building import QUERY, checked, commit, numbers, permit, prepared
from support.power import cut_power, powered_disk
from support.syncing import Recorder


@pytest.fixture
def merging(monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)


def folder_of(root):
    return root / "_onceforall" / "manifests" / QUERY / sink_code("out")


def write(root, batches):
    sink = checked(root)
    return [commit(sink, batch, numbers(1, batch)) for batch in batches]


def batches(root):
    return [batch.files.batch for batch in read_files(root).batches]


def second_names(root):
    return sorted(
        path.name for path in folder_of(root).iterdir() if path.name.startswith(".newest.")
    )


def without_second_names(monkeypatch):
    """Let batches be committed as a release does that knows no second names."""
    monkeypatch.setattr(ManifestWriter, "_mark", lambda *_: None)


# --- what is noticed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)]
)
def test_a_last_manifest_that_was_deleted_is_noticed_named_and_put_back(tmp_path, capsys, count):
    write(tmp_path, range(count))
    last = folder_of(tmp_path) / f"{count - 1}.json"
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(
        CorruptEntryError, match=f"{last} is damaged: it is missing.*onceforall files check"
    ):
        read_files(tmp_path)
    with pytest.raises(CorruptEntryError):
        read_files(tmp_path, to_batch=0)
    assert main(["files", "check", str(tmp_path)]) == 1
    assert (
        f"{last}: it is missing, and {newest_name(count - 1)} is its second name. Mended, it is "
        "put back." in capsys.readouterr().out
    )
    assert not last.exists()
    assert main(["files", "mend", str(tmp_path)]) == 0
    assert last.read_bytes() == content
    assert main(["files", "check", str(tmp_path)]) == 0
    write(tmp_path, [count])
    assert batches(tmp_path) == list(range(count + 1))


def test_a_last_manifest_that_was_merged_is_missed_too(tmp_path, merging):
    write(tmp_path, range(3))
    for path in folder_of(tmp_path).glob("*.json"):
        path.unlink()
    with pytest.raises(CorruptEntryError, match=r"/2\.json"):
        read_files(tmp_path)


def test_the_two_last_manifests_are_put_back_though_one_names_the_other(tmp_path):
    write(tmp_path, range(4))
    for name in ("2.json", "3.json"):
        (folder_of(tmp_path) / name).unlink()
    with pytest.raises(CorruptEntryError):
        read_files(tmp_path)
    assert main(["files", "mend", str(tmp_path)]) == 0
    assert batches(tmp_path) == [0, 1, 2, 3]


def test_a_second_name_is_kept_for_as_long_as_its_manifest_is_missing(tmp_path, capsys):
    """Whoever goes on without the commit log's word for the batch before finds no gap; readers
    do, and the command mends it."""
    write(tmp_path, range(3))
    (folder_of(tmp_path) / "2.json").unlink()
    write(tmp_path, range(3, 7))
    assert second_names(tmp_path) == [".newest.2", ".newest.5", ".newest.6"]
    with pytest.raises(CorruptEntryError, match=r"/2\.json.*missing"):
        read_files(tmp_path)
    assert main(["files", "mend", str(tmp_path)]) == 0
    assert batches(tmp_path) == list(range(7))


def test_a_second_name_that_is_damaged_as_well_is_told_and_nothing_is_made_up(tmp_path, capsys):
    write(tmp_path, range(2))
    last = folder_of(tmp_path) / "1.json"
    last.write_bytes(last.read_bytes()[:-9])  # both names are of one file
    last.unlink()
    assert main(["files", "mend", str(tmp_path)]) == 1
    assert "can't be mended" in capsys.readouterr().out
    assert not last.exists()


# --- what a writer leaves behind ------------------------------------------------------------------


def test_the_second_names_are_those_of_the_two_last_batches(tmp_path, merging):
    for batch in range(11):
        write(tmp_path, [batch])
        assert second_names(tmp_path) == sorted(
            newest_name(each) for each in (batch - 1, batch) if each >= 0
        )
        assert batches(tmp_path) == list(range(batch + 1))


@pytest.mark.parametrize(
    "point", ["file.manifest.after", "file.newest.before", "file.newest.linked"]
)
def test_a_commit_that_ends_between_the_two_names_is_read_and_completed_with_both(
    tmp_path, armed, point
):
    write(tmp_path, range(3))
    sink = checked(tmp_path)
    decided = sink.confirm([prepared(sink, numbers(1, 3), 3)])
    armed(f"{point}=raise")
    with pytest.raises(Exception, match="failpoint"):
        sink.commit(permit(3), decided)
    armed("")
    assert batches(tmp_path) == [0, 1, 2, 3]
    assert (newest_name(3) in second_names(tmp_path)) == (point == "file.newest.linked")
    assert checked(tmp_path).commit(permit(3), decided).completed
    assert newest_name(3) in second_names(tmp_path)
    (folder_of(tmp_path) / "3.json").unlink()
    with pytest.raises(CorruptEntryError, match=r"3\.json"):
        read_files(tmp_path)


@pytest.mark.parametrize("lost", [[".newest.3"], [".newest.2"], [".newest.2", ".newest.3"]])
def test_a_folder_without_second_names_is_read_as_ever_and_gets_them_with_the_next_batch(
    tmp_path, lost
):
    """A loss of power can take the last one, and an older release makes none."""
    write(tmp_path, range(4))
    for name in lost:
        (folder_of(tmp_path) / name).unlink()
    assert batches(tmp_path) == [0, 1, 2, 3]
    assert main(["files", "check", str(tmp_path)]) == 0
    write(tmp_path, [4])
    assert newest_name(4) in second_names(tmp_path)
    assert batches(tmp_path) == [0, 1, 2, 3, 4]


def test_a_driver_of_an_older_release_writes_on_and_merges_and_the_newer_one_goes_on_behind_it(
    tmp_path, merging
):
    write(tmp_path, range(2))
    with pytest.MonkeyPatch.context() as older:
        without_second_names(older)
        for batch in range(2, 12):
            write(tmp_path, [batch])
            assert batches(tmp_path) == list(range(batch + 1))
    assert second_names(tmp_path) == [".newest.0", ".newest.1"]
    assert "1.json" not in {path.name for path in folder_of(tmp_path).iterdir()}, (
        "nothing was merged; the test proves nothing"
    )
    assert main(["files", "check", str(tmp_path)]) == 0
    write(tmp_path, [12, 13])
    assert second_names(tmp_path) == [".newest.12", ".newest.13"]
    assert batches(tmp_path) == list(range(14))


def test_a_late_writer_gives_no_second_name_and_one_of_an_earlier_batch_disturbs_nobody(
    tmp_path, merging
):
    decided = write(tmp_path, range(8))
    before = second_names(tmp_path)
    assert checked(tmp_path).commit(permit(6), decided[6]).completed
    ManifestWriter(Tree(tmp_path), QUERY, sink_code("out"))._mark(3)
    assert second_names(tmp_path) == before
    os.link(folder_of(tmp_path) / "7.json", folder_of(tmp_path) / newest_name(0))
    assert batches(tmp_path) == list(range(8))
    assert main(["files", "check", str(tmp_path)]) == 0


def test_a_listing_with_the_second_name_and_without_the_first_is_followed_by_name(
    tmp_path, monkeypatch
):
    """No folder is listed in one instant, and on NFS nothing else is promised either."""
    write(tmp_path, range(5))
    real = Tree.names
    monkeypatch.setattr(
        Tree, "names", lambda *at: [name for name in real(*at) if name not in {"3.json", "4.json"}]
    )
    assert batches(tmp_path) == [0, 1, 2, 3, 4]
    assert main(["files", "check", str(tmp_path)]) == 0


def test_a_file_system_that_refuses_the_second_name_doesnt_hold_a_batch_up(
    tmp_path, monkeypatch, caplog
):
    real = Tree.link

    def refusing(tree, file, name):
        if name.name.startswith(".newest."):
            raise OSError(errno.EPERM, "Operation not permitted", str(name))
        return real(tree, file, name)

    monkeypatch.setattr(Tree, "link", refusing)
    write(tmp_path, range(2))
    assert batches(tmp_path) == [0, 1]
    assert "1.json" in caplog.text


def test_a_loss_of_power_at_each_step_leaves_what_readers_take_and_the_watch_over_the_batch_before(
    tmp_path, armed
):
    """On a real file system that forgets what was not synced;
    ``test_the_second_name_comes_behind…`` is its twin where none can be mounted."""
    with powered_disk(tmp_path / "disk") as disk:
        root = disk / "out"
        write(root, range(2))
        for batch, point in enumerate(
            ("", "file.create.linked", "file.manifest.after", "file.newest.linked"), start=2
        ):
            sink = checked(root)
            decided = sink.confirm([prepared(sink, numbers(1, batch), batch)])
            armed(f"{point}=raise" if point else "")
            if point:
                with pytest.raises(Exception, match="failpoint"):
                    sink.commit(permit(batch), decided)
            else:
                assert sink.commit(permit(batch), decided).completed
            armed("")
            cut_power(disk)
            seen = batches(root)
            assert seen in (
                [*range(batch + 1)],
                [*range(batch)] if point == "file.create.linked" else [],
            ), point
            assert newest_name(batch - 1) in second_names(root), point
            assert main(["files", "check", str(root)]) == 0
            assert checked(root).commit(permit(batch), decided).completed
            assert batches(root) == list(range(batch + 1))
            assert newest_name(batch) in second_names(root)


# --- what it costs --------------------------------------------------------------------------------


def test_the_second_name_comes_behind_the_sync_of_the_first_and_costs_no_sync_of_its_own(
    tmp_path, monkeypatch
):
    """Else a loss of power could leave the second name alone, and readers would miss a batch
    that never was theirs."""
    recorder = Recorder(monkeypatch)

    def calls_of(batch):
        recorder.calls.clear()
        write(tmp_path, [batch])
        return list(recorder.calls)

    calls_of(0)
    home = folder_of(tmp_path)
    calls = calls_of(1)
    first, second = (
        calls.index(("link", home / "1.json")),
        calls.index(("link", home / newest_name(1))),
    )
    assert ("sync", home) in calls[first:second]
    assert not [
        call for call in calls[second:] if call[0] == "sync" and home in (call[1], call[1].parent)
    ]
    without_second_names(monkeypatch)
    assert len([call for call in calls if call[0] == "sync"]) == len(
        [call for call in calls_of(2) if call[0] == "sync"]
    )
