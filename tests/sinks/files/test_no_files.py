"""A pipe, a socket, a folder or a link in the place of a file of ours is told by its name, and
nobody waits for it."""

import os
import signal
import stat

import pytest

from onceforall import read_files
from onceforall.cli import main
from onceforall.errors import AttemptFailedError, CommitLogError, ForeignEntryError, OnceForAllError
from onceforall.protocol.names import sink_code
from sinks.files.building import QUERY, checked, commit, numbers, permit, prepared

KINDS = ["pipe", "socket", "folder", "loop", "dangling link"]


def folder_of(root):
    return root / "_onceforall" / "manifests" / QUERY / sink_code("out")


def write(root, batches, **options):
    sink = checked(root, **options)
    for batch in batches:
        commit(sink, batch, numbers(1, batch))
    return sink


def put(path, kind):
    """Put what is no file in a file's place."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.fixture(autouse=True)
def nobody_waits():
    """End a test that opens a pipe and waits for a writer, by an error at the very place."""

    def told(*_):
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, told)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_in_a_manifests_place_is_named_by_readers_check_mend_and_start(
    tmp_path, capsys, kind
):
    write(tmp_path, range(3))
    place = folder_of(tmp_path) / "1.json"
    put(place, kind)
    with pytest.raises(
        ForeignEntryError, match=f"{place} is a .* where a file must be. Move it away"
    ):
        read_files(tmp_path)
    for command in ("check", "mend"):
        assert main(["files", command, str(tmp_path)]) == 1
        assert f"{place}: it can't be read ({place} is a " in capsys.readouterr().out
    with pytest.raises(ForeignEntryError, match=str(place)):
        checked(tmp_path)


@pytest.mark.parametrize("name", ["3.json", "2-3.json", ".newest.3"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_start_refuses_what_is_no_file_and_has_a_name_of_ours(tmp_path, kind, name):
    write(tmp_path, range(3))
    put(folder_of(tmp_path) / name, kind)
    with pytest.raises(ForeignEntryError, match=f"{name} is a"):
        checked(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_is_decided_whose_manifest_could_not_be_made(tmp_path, kind):
    sink = write(tmp_path, range(3))
    committable = prepared(sink, numbers(1, 3), 3)
    put(folder_of(tmp_path) / "3.json", kind)
    with pytest.raises(
        AttemptFailedError, match=r"Nothing of this batch is decided: .*/3\.json is a"
    ):
        sink.confirm([committable])


@pytest.mark.parametrize("kind", KINDS)
def test_a_decided_batch_names_what_has_taken_its_manifests_place_and_goes_on_without_it(
    tmp_path, kind
):
    sink = write(tmp_path, range(3))
    decided = sink.confirm([prepared(sink, numbers(1, 3), 3)])
    place = folder_of(tmp_path) / "3.json"
    put(place, kind)
    with pytest.raises(CommitLogError, match=f"{place} is a"):
        sink.commit(permit(3), decided)
    place.rmdir() if kind == "folder" else place.unlink()
    assert sink.commit(permit(3), decided).completed
    assert read_files(tmp_path).rows == 4


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_in_the_place_of_a_second_name_is_a_finding(tmp_path, capsys, kind):
    write(tmp_path, range(3))
    (folder_of(tmp_path) / "2.json").unlink()
    put(folder_of(tmp_path) / ".newest.2", kind)
    for command in ("check", "mend"):
        assert main(["files", command, str(tmp_path)]) == 1
        assert (
            "2.json: it is missing, and .newest.2 is its second name, which doesn't help"
            in capsys.readouterr().out
        )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_in_the_place_of_the_folders_id_is_named_at_start_before_and_behind_the_decision(
    tmp_path, kind
):
    sink = write(tmp_path, range(3))
    committable = prepared(sink, numbers(1, 3), 3)
    other = sink.confirm([prepared(sink, numbers(1, 3), 3)])
    put(tmp_path / "_onceforall" / "folder.json", kind)
    for operation in (
        lambda: checked(tmp_path),
        lambda: sink.confirm([committable]),
        lambda: sink.commit(permit(3), other),
    ):
        with pytest.raises(ForeignEntryError, match=r"folder\.json is a"):
            operation()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_in_sparks_log_is_named_at_start(tmp_path, kind):
    (tmp_path / "_spark_metadata").mkdir()
    write(tmp_path, range(2), spark_metadata="continue")
    put(tmp_path / "_spark_metadata" / "1", kind)
    with pytest.raises(OnceForAllError, match="_spark_metadata/1 is a"):
        checked(tmp_path, spark_metadata="continue")
