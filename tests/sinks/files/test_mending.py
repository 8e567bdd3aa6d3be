"""A chain of manifests in which one passes over another, as a stale listing makes it, is mended;
what can't be proved is left alone."""

import json

import pytest

from onceforall import read_files
from onceforall.cli import main
from onceforall.errors import (
    CommitLogError,
    ConfigurationError,
    CorruptEntryError,
    SinkUnavailableError,
)
from onceforall.protocol.names import sink_code
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.folder_ids import folder_id
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.manifests.chain import Manifests
from onceforall.sinks.files.manifests.content import Manifest, encode
from onceforall.sinks.files.reading.mending import check_files, mend_files
from onceforall.sinks.files.reading.sources import source_of
from onceforall.sinks.files.tree import Tree
from sinks.files.building import QUERY, checked, commit, numbers, permit
from support.syncing import Recorder

CODE = sink_code("out")


def folder_of(root):
    return root / "_onceforall" / "manifests" / QUERY / CODE


def write(root, batches):
    sink = checked(root)
    return [commit(sink, batch, numbers(1, batch)) for batch in batches]


def says_after(root, batch, after):
    """Let a manifest name another predecessor, as a driver with a stale listing writes it."""
    path = folder_of(root) / f"{batch}.json"
    found = Manifests(Tree(root), QUERY, CODE).read_link(batch)
    path.write_bytes(encode(Manifest(after, found.batches), QUERY, CODE))


def rows(root):
    return sorted(read_files(root).to_arrow().column("n").to_pylist())


@pytest.fixture
def skipping(tmp_path):
    """A folder with batches 0 to 4, in which batch 2 says that it comes after batch 0, and batch
    4 too."""
    write(tmp_path, range(5))
    says_after(tmp_path, 2, 0)
    says_after(tmp_path, 4, 0)
    return tmp_path


def test_readers_are_stuck_until_the_command_has_mended_the_chain(skipping, capsys):
    with pytest.raises(CorruptEntryError, match="onceforall files check"):
        read_files(skipping)
    assert main(["files", "check", str(skipping)]) == 1
    said = capsys.readouterr().out
    assert (
        "2.json: it says that it comes after batch 0, but that of batch 1 is between them" in said
    )
    assert "4.json" in said
    with pytest.raises(CorruptEntryError):
        read_files(skipping)
    assert main(["files", "mend", str(skipping)]) == 0
    assert [batch.files.batch for batch in read_files(skipping).batches] == [0, 1, 2, 3, 4]
    assert rows(skipping) == [0, 1, 2, 3, 4]
    assert main(["files", "check", str(skipping)]) == 0
    capsys.readouterr()
    assert main(["files", "mend", str(skipping)]) == 0
    assert "Nothing is to be mended" in capsys.readouterr().out


def test_the_query_goes_on_behind_a_mended_chain(skipping):
    mend_files(skipping)
    write(skipping, [5])
    assert rows(skipping) == [0, 1, 2, 3, 4, 5]


def test_the_old_manifest_stays_under_a_hidden_name_and_the_start_does_not_mind(skipping):
    before = (folder_of(skipping) / "2.json").read_bytes()
    mend_files(skipping)
    (kept,) = folder_of(skipping).glob(".2.json.before-mending-*")
    assert kept.read_bytes() == before
    checked(skipping)


def test_a_manifest_that_is_really_missing_is_told_and_nothing_is_made_up(tmp_path, capsys):
    write(tmp_path, range(4))
    (folder_of(tmp_path) / "1.json").unlink()
    before = sorted(folder_of(tmp_path).iterdir())
    assert main(["files", "mend", str(tmp_path)]) == 1
    assert (
        "1.json, or a merged manifest that ends with batch 1 too, is missing, and 2.json comes "
        "after it" in capsys.readouterr().out
    )
    assert sorted(folder_of(tmp_path).iterdir()) == before
    with pytest.raises(CorruptEntryError):
        read_files(tmp_path)


def test_a_batch_that_a_merge_by_a_stale_listing_left_out_is_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    write(tmp_path, range(2))
    hidden = [folder_of(tmp_path) / name for name in ("1.json", ".newest.1")]
    for path in hidden:
        path.rename(tmp_path / path.name)
    write(tmp_path, [2, 3])
    for path in hidden:
        (tmp_path / path.name).rename(path)
    assert "-1-3.json" in {path.name for path in folder_of(tmp_path).iterdir()}, (
        "nothing was merged; the test proves nothing"
    )
    assert rows(tmp_path) == [0, 2, 3]
    (finding,) = mend_files(tmp_path)
    assert "leaves out batch 1" in str(finding)
    assert rows(tmp_path) == [0, 1, 2, 3]


def test_a_late_writers_manifest_of_a_merged_batch_is_no_finding(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    decided = write(tmp_path, range(8))
    assert checked(tmp_path).commit(permit(0), decided[0]).completed
    assert check_files(tmp_path) == []
    assert rows(tmp_path) == list(range(8))


def test_what_a_running_query_merges_and_deletes_during_the_check_is_no_finding(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    write(tmp_path, range(2))
    list_names, deleted = Manifests.listing, []

    def behind_the_first_listing(manifests):
        listing = list_names(manifests)
        if not deleted:
            deleted.append(0)
            write(tmp_path, range(2, 9))
            deleted[:] = listing.loose - list_names(manifests).loose
        return listing

    monkeypatch.setattr(Manifests, "listing", behind_the_first_listing)
    assert check_files(tmp_path) == []
    assert deleted == [0, 1], "nothing was merged and deleted; the test proves nothing"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("manifests.chain.Manifests", "listing"),
        ("manifests.chain.Manifests", "read_link"),
        ("manifests.chain.Manifests", "read_marked"),
        ("tree.Tree", "is_folder"),
        ("reading.mending", "queries_of"),
        ("reading.mending", "sinks_of"),
        ("reading.mending", "folder_id"),
    ],
)
def test_a_store_that_tells_nothing_is_no_damage(tmp_path, monkeypatch, capsys, module, name):
    """A manifest that couldn't be read is not to be restored, nor its second name deleted."""
    write(tmp_path, range(3))

    def silent(*_, **__):
        raise PlaceError("cannot get it (no answer). Try again later", refused=False)

    monkeypatch.setattr(f"onceforall.sinks.files.{module}.{name}", silent)
    with pytest.raises(SinkUnavailableError, match="can't be checked: cannot get it"):
        check_files(tmp_path)
    assert main(["files", "check", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "Try again later" in said.err
    assert said.out == ""


def test_a_damaged_manifest_is_no_finding_while_the_store_is_silent_about_its_second_name(
    tmp_path, monkeypatch
):
    write(tmp_path, range(3))
    on_its_own(folder_of(tmp_path) / "2.json", b"damaged")

    def silent(*_):
        raise PlaceError("no answer", refused=False)

    monkeypatch.setattr(Manifests, "read_marked", silent)
    with pytest.raises(SinkUnavailableError):
        check_files(tmp_path)


def test_a_store_that_cannot_be_reached_ends_the_check_with_2(monkeypatch, capsys):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    settings = ["--set", "endpoint=http://127.0.0.1:1", "--set", "region=x"]
    assert main(["files", "check", "s3a://b/x", *settings]) == 2
    said = capsys.readouterr()
    assert "can't be checked" in said.err
    assert "backup" not in said.err + said.out


@pytest.mark.parametrize("point", ["file.mend.written", "file.mend.kept", "file.mend.replaced"])
def test_a_crash_at_any_step_is_gone_on_from(skipping, armed, point):
    armed(f"{point}=raise")
    with pytest.raises(Exception, match="failpoint"):
        mend_files(skipping)
    armed("")
    mend_files(skipping)
    assert rows(skipping) == [0, 1, 2, 3, 4]


def test_each_step_is_durable_before_the_next(skipping, monkeypatch):
    recorder = Recorder(monkeypatch)
    mend_files(skipping)
    home = folder_of(skipping)
    linked = next(
        i
        for i, call in enumerate(recorder.calls)
        if call[0] == "link" and "before-mending" in call[1].name
    )
    assert ("sync", home) in recorder.calls[linked:]
    assert recorder.calls[-1] == ("sync", home)


def test_a_chain_that_changes_while_it_is_mended_is_told(skipping, monkeypatch):
    monkeypatch.setattr("onceforall.sinks.files.reading.mending._replace", lambda *_: None)
    with pytest.raises(CommitLogError, match="Stop the query"):
        mend_files(skipping)


def test_a_folder_without_manifests_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="no FileSink has written there"):
        check_files(tmp_path)


def test_a_missing_merged_manifest_is_told_by_the_batch_that_it_ends_with(
    tmp_path, monkeypatch, capsys
):
    """Its single manifests were deleted rightly; which of the two names was there last can't be
    known."""
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    write(tmp_path, range(9))
    (folder_of(tmp_path) / "-1-2.json").unlink()
    told = (
        "2.json, or a merged manifest that ends with batch 2 too, is missing, and 2-5.json "
        "comes after it"
    )
    with pytest.raises(CorruptEntryError) as caught:
        read_files(tmp_path)
    assert told in str(caught.value)
    assert main(["files", "check", str(tmp_path)]) == 1
    assert told in capsys.readouterr().out


def test_double_damage_is_told_by_check_and_mend(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    write(tmp_path, range(9))
    for name in ("-1-2.json", "8.json"):
        (folder_of(tmp_path) / name).unlink()
    for command in ("check", "mend"):
        assert main(["files", command, str(tmp_path)]) == 1
        assert (
            "2.json, or a merged manifest that ends with batch 2 too, is missing"
            in capsys.readouterr().out
        )


def on_its_own(path, content):
    """Give a file another content, which a second name of it doesn't get."""
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("kept", [0, 40])
def test_a_damaged_last_manifest_is_put_back_from_its_second_name(tmp_path, capsys, kept):
    write(tmp_path, range(3))
    last = folder_of(tmp_path) / "2.json"
    whole = last.read_bytes()
    on_its_own(last, whole[:kept])
    with pytest.raises(CorruptEntryError):
        read_files(tmp_path)
    assert main(["files", "check", str(tmp_path)]) == 1
    assert ".newest.2 can. Mended, it is put back from there" in capsys.readouterr().out
    assert main(["files", "mend", str(tmp_path)]) == 0
    assert rows(tmp_path) == [0, 1, 2]
    (aside,) = folder_of(tmp_path).glob(".2.json.before-mending-*")
    assert aside.read_bytes() == whole[:kept]
    commit(checked(tmp_path), 3, numbers(1, 3))
    assert rows(tmp_path) == [0, 1, 2, 3]
    assert check_files(tmp_path) == []


def test_one_that_is_damaged_under_both_names_is_left_alone(tmp_path):
    write(tmp_path, range(3))
    with (folder_of(tmp_path) / "2.json").open("r+b") as last:
        last.truncate(40)
    (finding,) = mend_files(tmp_path)
    assert "can't be mended: restore the manifest" in str(finding)


@pytest.mark.parametrize("what", ["7.json", ".newest.9"])
def test_a_stray_manifest_may_be_moved_away(tmp_path, what):
    write(tmp_path, range(3))
    stray = folder_of(tmp_path) / what
    stray.write_bytes((folder_of(tmp_path) / "1.json").read_bytes())
    (finding,) = mend_files(tmp_path)
    assert "If the query has never committed it" in str(finding)
    assert f"move {what} out of the folder" in str(finding)
    stray.unlink()
    assert check_files(tmp_path) == []
    assert rows(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("place", ["link", "folder", "other", "truncated"])
def test_a_second_name_that_would_not_help_is_told(tmp_path, place):
    write(tmp_path, range(3))
    mark = folder_of(tmp_path) / ".newest.2"
    mark.unlink()
    if place == "link":
        mark.symlink_to("/etc/hostname")
    elif place == "folder":
        mark.mkdir()
    elif place == "other":
        mark.write_bytes((folder_of(tmp_path) / "1.json").read_bytes())
    else:
        mark.write_bytes((folder_of(tmp_path) / "2.json").read_bytes()[:40])
    (finding,) = mend_files(tmp_path)
    assert finding.path == mark
    assert finding.mended is None
    assert "Delete it. The batch has its manifest" in str(finding)
    mark.rmdir() if place == "folder" else mark.unlink()
    assert check_files(tmp_path) == []
    assert rows(tmp_path) == [0, 1, 2]


def test_a_damaged_merged_manifest_is_made_again_of_its_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    write(tmp_path, range(4))
    (merged,) = folder_of(tmp_path).glob("-1-*.json")
    whole = merged.read_bytes()
    on_its_own(merged, whole[:100])
    with pytest.raises(CorruptEntryError):
        read_files(tmp_path)
    (finding,) = mend_files(tmp_path)
    assert finding.path == merged
    assert merged.read_bytes() == whole
    assert rows(tmp_path) == [0, 1, 2, 3]
    (folder_of(tmp_path) / "1.json").unlink()
    on_its_own(merged, whole[:100])
    (finding,) = check_files(tmp_path)
    assert finding.mended is None, "a part is missing"


@pytest.mark.parametrize(
    ("content", "words"), [(None, "is missing"), (b"{", "is damaged"), (b"", "is damaged")]
)
def test_a_folder_whose_id_is_damaged_is_told_with_what_helps(tmp_path, capsys, content, words):
    write(tmp_path, range(2))
    path = tmp_path / "_onceforall" / "folder.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        with pytest.raises(CorruptEntryError, match=r"folder's id, is damaged\. Put the file back"):
            checked(tmp_path)
    assert main(["files", "check", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert words in said
    assert "files mend FOLDER --id ID" in said
    assert "manifest" not in said
    assert main(["files", "mend", str(tmp_path)]) == 1
    assert rows(tmp_path) == [0, 1], "readers don't need it"


def test_the_id_of_a_folder_is_written_again_where_its_file_is_lost(tmp_path, capsys):
    write(tmp_path, range(2))
    path = tmp_path / "_onceforall" / "folder.json"
    folder = json.loads(path.read_text())["id"]
    other = "f" * 32
    assert main(["files", "mend", str(tmp_path), "--id", other]) != 0
    assert f"has the id {folder}, and not {other}" in capsys.readouterr().err
    path.write_bytes(b"{")
    assert main(["files", "mend", str(tmp_path), "--id", folder]) != 0
    assert "Move it away" in capsys.readouterr().err
    path.unlink()
    for wrong in ("../" + "f" * 29, "F" * 32, ""):
        assert main(["files", "mend", str(tmp_path), "--id", wrong]) != 0
        assert "is no id of a folder" in capsys.readouterr().err
    for _ in range(2):
        assert main(["files", "mend", str(tmp_path), "--id", folder]) == 0
    assert check_files(tmp_path) == []
    assert folder_id(source_of(tmp_path, None).tree) == folder
    with pytest.raises(ConfigurationError, match="no FileSink has written there"):
        mend_files(tmp_path / "_onceforall", folder=folder)


def test_damage_in_the_middle_of_a_chain_is_found_by_readers_and_the_check_alone(tmp_path):
    write(tmp_path, range(4))
    (folder_of(tmp_path) / "1.json").unlink()
    commit(checked(tmp_path), 4, numbers(1, 4))
    with pytest.raises(CorruptEntryError):
        read_files(tmp_path)
    (finding,) = check_files(tmp_path)
    assert "1.json, or a merged manifest" in str(finding)
