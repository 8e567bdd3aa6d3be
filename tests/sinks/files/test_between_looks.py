"""A driver or a reader that is frozen in front of each of its operations in turn, while another
driver goes on: commits the same, writes more batches, merges manifests; and what is old is deleted.
"""

from __future__ import annotations

import itertools

import pytest

from onceforall import read_files
from onceforall.errors import SinkUnavailableError
from onceforall.protocol.names import sink_code
from onceforall.sink import StartInfo
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.manifests.chain import Manifests
from onceforall.sinks.files.places.local.place import LocalPlace
from onceforall.sinks.files.tree import Tree
from sinks.files.building import QUERY, checked, commit, numbers, permit, prepared

OPERATIONS = [
    (Tree, name)
    for name in ("names", "is_folder", "size", "read", "is_there", "create", "link", "unlink")
] + [(LocalPlace, "missing"), (LocalPlace, "publish")]


class World:
    """A folder with a committed batch, and one that is decided; what others do with it, once."""

    def __init__(self, root):
        self.root = root
        commit(checked(root), 0, numbers(3))
        self.frozen = checked(root)
        self.decided = self.frozen.confirm([prepared(self.frozen, numbers(5, 100), 1)])

    def others_commit(self):
        another = checked(self.root)
        assert another.commit(permit(1, 1), self.decided).completed
        for batch in range(2, 6):
            commit(another, batch, numbers(1, batch), generation=1)

    def others_commit_and_delete(self):
        self.others_commit()
        for file in self.root.glob("*.parquet"):
            file.unlink()


@pytest.fixture
def interrupted(monkeypatch, tmp_path_factory):
    """Run a function on a world again and again, and let others act in front of another operation
    each time. Yields the world and what came back, until there is no such operation any more."""
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    state = {"left": None, "act": None}

    def watched(owner, name):
        real = getattr(owner, name)

        def operation(*args, **named):
            if state["left"] == 0:
                state["left"] = None
                state["act"]()
            elif state["left"] is not None:
                state["left"] -= 1
            return real(*args, **named)

        monkeypatch.setattr(owner, name, operation)

    for owner, name in OPERATIONS:
        watched(owner, name)

    def every(function, act):
        for number in itertools.count():
            world = World(tmp_path_factory.mktemp("sink"))
            state.update(left=number, act=lambda: getattr(world, act)())  # noqa: B023
            try:
                found = function(world)
            finally:
                was_last, state["left"] = state["left"] is not None, None
            if was_last:
                assert number > 2, "others have acted in few places"
                return
            yield number, world, found

    return every


ACTS = pytest.mark.parametrize(
    "act",
    [pytest.param("others_commit", marks=pytest.mark.long), "others_commit_and_delete"],
)


@ACTS
def test_a_driver_that_is_overtaken_finds_its_batch_committed(interrupted, act):

    def commit_as_it_wakes(world):
        try:
            return world.frozen.commit(permit(1), world.decided)
        except SinkUnavailableError:
            return world.frozen.commit(permit(1), world.decided)

    for number, world, report in interrupted(commit_as_it_wakes, act):
        assert report.completed, (number, report)
        found = [each for each in read_files(world.root).batches if each.files.batch == 1]
        assert len(found) == 1
        assert {each.files.batch for each in read_files(world.root).batches} == set(range(6))


@ACTS
def test_a_batch_that_was_committed_is_known_while_its_manifest_is_merged(interrupted, act):
    for number, _, known in interrupted(
        lambda world: (
            world.frozen.holds(StartInfo(QUERY, "out"), 0),
            Manifests(Tree(world.root), QUERY, sink_code("out")).find(0) is not None,
        ),
        act,
    ):
        assert known == (True, True), number


def test_who_reads_sees_whole_batches_from_the_first_one_on(interrupted):
    for number, _, found in interrupted(
        lambda world: [each.files.batch for each in read_files(world.root).batches],
        "others_commit",
    ):
        assert found == list(range(len(found))), number
        assert found


@pytest.mark.parametrize("grown", [True, False], ids=["another's", "ours"])
def test_what_stands_there_behind_the_look_is_ours_only_with_its_size(tmp_path, monkeypatch, grown):
    """Between the look and the link the temp file goes, and a file comes under the target's
    name: it would count as a link that another driver has made."""
    sink = checked(tmp_path)
    decided = sink.confirm([prepared(sink, numbers(3))])
    link = Tree.link

    def late(tree, temporary, target):
        if target.suffix == ".parquet":  # and no manifest
            content = temporary.read_bytes()
            temporary.unlink()
            target.write_bytes(content + b"\0" * grown)
        link(tree, temporary, target)

    monkeypatch.setattr(Tree, "link", late)
    if grown:
        with pytest.raises(SinkUnavailableError, match=r"\.parquet"):
            sink.commit(permit(), decided)
        monkeypatch.setattr(Tree, "link", link)
        assert sink.commit(permit(), decided).in_doubt
    else:
        assert sink.commit(permit(), decided).completed
