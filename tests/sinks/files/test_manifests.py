"""Manifests: the chain of batches, merging, damage, and what late writers do to it."""

import json
from dataclasses import replace

import pytest

from onceforall import read_files
from onceforall.errors import (
    AttemptFailedError,
    CorruptEntryError,
    ForeignEntryError,
    NewerEntryError,
)
from onceforall.protocol.names import sink_code
from onceforall.sink import StartInfo
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.manifests import chain
from onceforall.sinks.files.manifests.chain import all_of
from onceforall.sinks.files.tree import Tree
from sinks.files.building import QUERY, checked, commit, numbers, permit, prepared


@pytest.fixture
def merging(monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)


def folder_of(root):
    return root / "_onceforall" / "manifests" / QUERY / sink_code("out")


def names(root):
    return sorted(path.name for path in folder_of(root).iterdir())


def write(root, batches):
    sink = checked(root)
    return [commit(sink, batch, numbers(1, batch)) for batch in batches]


def batches(root):
    return [batch.files.batch for batch in read_files(root).batches]


def test_few_files_hold_many_batches(tmp_path, merging):
    write(tmp_path, [*range(9), 12, 15, 20, 21])
    assert batches(tmp_path) == [*range(9), 12, 15, 20, 21]
    merged = [name for name in names(tmp_path) if "-" in name]
    assert (
        merged
        == sorted(["-1-2.json", "2-5.json", "5-8.json", "8-20.json", "-1-8.json"])[: len(merged)]
        or "8-20.json" in merged
    )
    assert len(names(tmp_path)) <= 10
    assert sorted(read_files(tmp_path).to_arrow().column("n").to_pylist()) == [
        *range(9),
        12,
        15,
        20,
        21,
    ]


def test_manifests_of_which_the_listing_left_one_out_are_not_merged(tmp_path, merging, monkeypatch):
    """A merged one without its batch would hide that batch from every reader."""
    write(tmp_path, range(2))
    listing, left_out = manifest_writing.ManifestWriter.listing, []

    def lagging(writer):
        found = listing(writer)
        if 1 in found.loose:
            left_out.append(len(found.loose))
            return replace(found, loose=found.loose - {1})
        return found

    with monkeypatch.context() as lags:
        lags.setattr(manifest_writing.ManifestWriter, "listing", lagging)
        write(tmp_path, [2, 3])
    assert max(left_out) == 4, "there were enough to be merged without it"
    write(tmp_path, range(4, 12))
    assert batches(tmp_path) == list(range(12))


def test_merging_goes_on_for_long_and_keeps_few_files(tmp_path, merging):
    write(tmp_path, range(60))
    assert batches(tmp_path) == list(range(60))
    assert len(names(tmp_path)) < 20


def test_what_is_large_is_not_merged_again(tmp_path, merging, monkeypatch):
    """Else the cost of a merge would grow with the number of batches there ever were."""
    monkeypatch.setattr(manifest_writing, "MERGED_BYTES", 6000)
    write(tmp_path, range(60))
    merged = [path for path in folder_of(tmp_path).iterdir() if "-" in path.name]
    assert 3 <= len(merged) < 20
    assert max(path.stat().st_size for path in merged) < 10_000
    assert batches(tmp_path) == list(range(60))


def test_an_old_batch_is_known_after_its_manifest_was_merged_and_deleted(tmp_path, merging):
    decided = write(tmp_path, range(8))
    assert "0.json" not in names(tmp_path)
    before = names(tmp_path)
    assert checked(tmp_path).commit(permit(0), decided[0]).completed
    assert names(tmp_path) == before


def test_a_manifest_that_comes_late_is_not_looked_at_and_is_deleted(tmp_path, merging):
    write(tmp_path, range(2))
    late = (folder_of(tmp_path) / "0.json").read_bytes()
    write(tmp_path, range(2, 7))
    assert "0.json" not in names(tmp_path)
    (folder_of(tmp_path) / "0.json").write_bytes(late)
    assert batches(tmp_path) == list(range(7))
    write(tmp_path, range(7, 11))
    assert "0.json" not in names(tmp_path)


def test_another_batch_under_the_same_number_is_in_doubt(tmp_path):
    sink = checked(tmp_path)
    other = sink.confirm([prepared(sink, numbers(1, 5), generation=7)])
    write(tmp_path, [0])
    report = sink.commit(permit(0), other)
    assert "was committed without it" in report.in_doubt[0].reason
    assert read_files(tmp_path).rows == 1


@pytest.mark.parametrize("name", ["1.json", "0.json"])
def test_a_missing_manifest_is_noticed_and_named(tmp_path, name):
    write(tmp_path, range(3))
    (folder_of(tmp_path) / name).unlink()
    with pytest.raises(CorruptEntryError, match=f"{name}.*missing"):
        read_files(tmp_path)


def test_a_manifest_that_a_file_system_shows_late_is_waited_for(tmp_path, monkeypatch):
    """As a network file system, whose listings and lookups may be some seconds old."""
    write(tmp_path, range(9))
    late, read = ["6.json"] * 4, Tree.read

    def reading(tree, file):
        if file.name in late:
            late.pop()
            raise FileNotFoundError(2, "not here yet", str(file))
        return read(tree, file)

    monkeypatch.setattr(Tree, "read", reading)
    monkeypatch.setattr(chain, "_PAUSE_S", 0)
    (manifests,) = all_of(Tree(tmp_path))
    assert [each.batch for each in manifests.read()] == list(range(9))
    assert late == []


def test_a_missing_manifest_is_looked_for_twice_and_the_others_are_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(chain, "_UNCHANGED_S", 0)
    write(tmp_path, range(9))
    (folder_of(tmp_path) / "6.json").unlink()
    asked, read, listed = [], Tree.read, Tree.names

    def reading(tree, file):
        asked.append(file.name)
        return read(tree, file)

    def listing(tree, folder):
        asked.append("the listing")
        return listed(tree, folder)

    monkeypatch.setattr(Tree, "read", reading)
    monkeypatch.setattr(Tree, "names", listing)
    (manifests,) = all_of(Tree(tmp_path))
    asked.clear()
    with pytest.raises(CorruptEntryError, match=r"6\.json.*missing"):
        manifests.read()
    assert asked.count("6.json") == 2
    assert asked.count("5.json") == asked.count("7.json") == 1
    assert asked.count("the listing") <= 3


def test_a_missing_merged_manifest_is_noticed_where_only_merged_ones_come_after_it(
    tmp_path, merging, monkeypatch
):
    monkeypatch.setattr(manifest_writing, "MERGED_BYTES", 6000)
    write(tmp_path, range(60))
    for path in folder_of(tmp_path).iterdir():
        # What one batch wrote is merged already, or is not there yet.
        if "-" not in path.name:
            path.unlink()
    known = batches(tmp_path)
    merged = sorted(
        (int(name.removesuffix(".json").rpartition("-")[2]), name)
        for name in names(tmp_path)
        if "-" in name
    )
    assert len(merged) >= 3
    assert known == list(range(merged[-1][0] + 1))
    (folder_of(tmp_path) / merged[1][1]).unlink()
    with pytest.raises(CorruptEntryError, match="missing"):
        batches(tmp_path)


def test_a_damaged_manifest_is_noticed_and_named(tmp_path):
    write(tmp_path, range(2))
    path = folder_of(tmp_path) / "0.json"
    content = path.read_bytes()
    for damaged in (
        content.replace(b'"rows":1', b'"rows":2', 1),
        content[:-20],
        b"",
        b"[1]",
        content.replace(b"part-", b"../t-"),
    ):
        path.write_bytes(damaged)
        with pytest.raises((CorruptEntryError, ForeignEntryError), match=str(path)):
            read_files(tmp_path)
    path.write_bytes(content)
    assert read_files(tmp_path).rows == 2


def test_a_manifest_in_a_strange_place_is_refused(tmp_path):
    write(tmp_path, range(2))
    path = folder_of(tmp_path) / "0.json"
    content = path.read_bytes()
    (folder_of(tmp_path) / "7.json").write_bytes(content)
    with pytest.raises(ForeignEntryError, match=r"7\.json"):
        read_files(tmp_path)
    (folder_of(tmp_path) / "7.json").unlink()
    strange = folder_of(tmp_path).parent / "another-sink"
    strange.mkdir()
    (strange / "0.json").write_bytes(content)
    with pytest.raises(ForeignEntryError, match="copied"):
        read_files(tmp_path)


def test_a_newer_releases_manifest_is_told_apart(tmp_path):
    write(tmp_path, [0])
    path = folder_of(tmp_path) / "0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "onceforall": 2}))
    with pytest.raises(NewerEntryError, match="newer release"):
        read_files(tmp_path)


# --- a network file system that lists a folder as it was ------------------------------------------


@pytest.fixture
def listed_late(monkeypatch):
    """Names of manifests that a listing doesn't show though they are there, as NFS does while
    its cache of the folder lives."""
    hidden = set()
    real = Tree.names
    monkeypatch.setattr(
        Tree,
        "names",
        lambda self, folder: [
            name
            for name in real(self, folder)
            if f"{name.removeprefix('.newest.').removesuffix('.json')}.json" not in hidden
        ],
    )
    return hidden


def committed(sink, batch, after):
    """Take a batch to its end as the library does, which knows the batch before it from the
    commit log."""
    decided = sink.confirm([{**prepared(sink, numbers(1, batch), batch), "after": after}])
    report = sink.commit(permit(batch), decided)
    assert len(report.completed) == 1


@pytest.mark.parametrize("late", [0, 1])
def test_a_manifest_names_the_batch_before_it_though_an_old_listing_lacks_that(
    tmp_path, listed_late, late
):
    here, another_host = checked(tmp_path), checked(tmp_path)
    commit(here, 0, numbers(1))
    for batch in (1, 2):
        if late == batch - 1:
            listed_late.add(f"{late}.json")
        committed(here if late else another_host, batch, after=batch - 1)
        listed_late.clear()
    assert batches(tmp_path) == [0, 1, 2]


def test_a_reader_with_an_old_listing_follows_the_chain_by_its_names(tmp_path, listed_late):
    write(tmp_path, range(5))
    listed_late.update({"1.json", "2.json", "3.json"})
    assert batches(tmp_path) == [0, 1, 2, 3, 4]
    listed_late.add("4.json")
    assert batches(tmp_path) == [0]


def test_a_missing_manifest_is_named_also_where_the_chain_is_followed(tmp_path, listed_late):
    write(tmp_path, range(4))
    listed_late.update({"1.json", "2.json"})
    (folder_of(tmp_path) / "1.json").unlink()
    with pytest.raises(CorruptEntryError, match=r"2\.json.*missing|1\.json.*missing"):
        batches(tmp_path)


def test_a_batch_that_is_not_listed_yet_is_not_committed_twice(tmp_path, listed_late):
    sink = checked(tmp_path)
    decided = commit(sink, 0, numbers(1))
    listed_late.add("0.json")
    report = checked(tmp_path).commit(permit(), decided)
    assert len(report.completed) == 1
    assert sink.holds(StartInfo(QUERY, "out"), 0)
    assert not sink.holds(StartInfo(QUERY, "out"), 1)


def test_merging_with_an_old_listing_takes_nothing_away_that_is_needed(
    tmp_path, merging, listed_late
):
    write(tmp_path, range(9))
    gone = sorted(name for name in names(tmp_path) if "-" in name)[:1]
    listed_late.update(gone)
    sink = checked(tmp_path)
    for batch in range(9, 15):
        committed(sink, batch, after=batch - 1)
    listed_late.clear()
    assert batches(tmp_path) == list(range(15))


def test_a_folder_without_the_batch_before_confirms_nothing(tmp_path):
    sink = checked(tmp_path)
    commit(sink, 0, numbers(1))
    with pytest.raises(AttemptFailedError, match="doesn't have batch 1"):
        sink.confirm([{**prepared(sink, numbers(1, 2), 2), "after": 1}])
    assert batches(tmp_path) == [0]
