"""The sinks' targets are looked at before anything is made in them, in the order that keeps a
wrong one untouched."""

import json

import pytest

from onceforall.commit_log import CommitLog, LocalStore
from onceforall.driver.targets import check_adopted, check_targets, identity_of, last_decision
from onceforall.errors import CheckpointMismatchError, FormerSinkError, OptionError, SinkCheckError
from onceforall.protocol.entries import Claim, Commit, Done, Target
from onceforall.sink import StartInfo
from onceforall.spark.stores import Stores

QUERY = "6f1c2d3e-0000-4000-8000-000000000001"


class Looked:
    """A sink whose target is as the test says."""

    kind = "looked"

    def __init__(self, identity, batches=()):
        self._identity = identity
        self._batches = batches
        self.asked = []
        self.places = []

    def __repr__(self):
        return "Looked('/there')"

    def identity(self, start):
        self.asked.append(("identity", start.query_id))
        return self._identity

    def holds(self, start, batch):
        self.asked.append(("holds", batch))
        self.places.append(start.place)
        return batch in self._batches


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    (tmp_path / "commits").mkdir()
    return tmp_path


def decide(checkpoint, batch, *, done=True, **targets):
    log = CommitLog(LocalStore(checkpoint / "onceforall"))
    generation = log.claim(Claim(QUERY, "run", str(checkpoint))).generation
    log.seal_below(generation)
    log.append(generation, Commit(batch, ("{}",), {}, targets=targets))
    if done:
        log.append(generation, Done(batch))


def decide_kind(checkpoint, kind):
    log = CommitLog(LocalStore(checkpoint / "onceforall"))
    generation = log.claim(Claim(QUERY, "run", str(checkpoint))).generation
    log.seal_below(generation)
    prepared = {"out": ({"name": "t"},)}
    targets = {"out": Target({"folder": "of the former sink"}, 0)}
    log.append(generation, Commit(0, ("{}",), prepared, targets=targets, kinds={"out": kind}))


def check(checkpoint, sink, adopt=(), name="out"):
    return check_targets(
        last_decision(checkpoint, Stores()),
        checkpoint,
        {name: sink},
        {name: StartInfo(QUERY, name)},
        adopt,
    )


HERE = {"folder": "here"}


def test_a_sink_is_not_asked_where_the_log_knows_nothing_of_it(checkpoint):
    sink = Looked(HERE)
    assert check(checkpoint, sink) == {}
    decide(checkpoint, 0)
    assert check(checkpoint, sink) == {}
    assert sink.asked == []
    assert list(checkpoint.glob("onceforall-*")) == []


def test_a_look_at_a_checkpoint_without_a_log_makes_none(checkpoint):
    assert last_decision(checkpoint, Stores()) is None
    assert not (checkpoint / "onceforall").exists()


@pytest.mark.parametrize("found", [None, {"folder": "there"}])
def test_another_target_or_none_is_refused_with_what_helps(checkpoint, found):
    decide(checkpoint, 3, out=Target(HERE, 3))
    with pytest.raises(
        CheckpointMismatchError,
        match=r"folder here.*Looked\('/there'\).*onceforall\.adoptTarget=out",
    ):
        check(checkpoint, Looked(found, [3]))


@pytest.mark.parametrize(("done", "needed"), [(True, 3), (False, 1)])
def test_a_target_without_the_last_complete_batch_is_refused(checkpoint, done, needed):
    decide(checkpoint, 3, done=done, out=Target(HERE, 3, 1))
    with pytest.raises(
        CheckpointMismatchError, match=f"behind the commit log: batch {needed} is complete"
    ):
        check(checkpoint, Looked(HERE))
    sink = Looked(HERE, [needed])
    assert check(checkpoint, sink) == {"out": HERE}
    assert sink.asked == [("identity", QUERY), ("holds", needed)]


@pytest.mark.parametrize(("done", "told"), [(True, {"schema": "s"}), (False, None)])
def test_a_sink_is_told_where_it_keeps_what_tells_of_the_batch(checkpoint, done, told):
    decide(checkpoint, 3, done=done, out=Target(HERE, 3, 1, place={"schema": "s"}))
    sink = Looked(HERE, [1, 3])
    check(checkpoint, sink)
    assert sink.places == [told]


def test_what_spark_has_committed_is_complete_on_every_sink(checkpoint):
    decide(checkpoint, 3, done=False, out=Target(HERE, 3, 1))
    (checkpoint / "commits" / "3").touch()
    with pytest.raises(CheckpointMismatchError, match="batch 3 is complete"):
        check(checkpoint, Looked(HERE, [1]))


def test_an_adopted_target_is_not_asked_and_the_log_says_so_to_people(checkpoint, caplog):
    decide(checkpoint, 3, out=Target(HERE, 3))
    sink = Looked({"folder": "there"})
    assert check(checkpoint, sink, ["out"]) == {}
    assert sink.asked == []
    assert "onceforall.adoptTarget" in caplog.text
    assert "here" in caplog.text


def test_only_a_sink_of_the_query_can_have_its_target_adopted():
    check_adopted(["a"], ["a", "b"])
    with pytest.raises(
        OptionError, match=r"adoptTarget=c names no sink of this query; it has: a, b"
    ):
        check_adopted(["a", "c"], ["a", "b"])


def test_a_damaged_log_is_left_to_those_who_read_it_for_a_decision(checkpoint):
    decide(checkpoint, 3, out=Target(HERE, 3))
    (entry,) = checkpoint.glob("onceforall/chains/*/00000001.json")
    entry.write_text("{")
    assert last_decision(checkpoint, Stores()) is None


def test_an_identity_is_compared_as_the_log_gives_it_back(checkpoint):
    """A sink of a user's own that tells a tuple must not be refused at its second start."""
    told = {"nodes": ("a", "b"), "of": {1: (2,)}}
    decide(checkpoint, 0, out=Target(told, 0, None))
    assert check(checkpoint, Looked(told, batches=[0])) == {
        "out": {"nodes": ["a", "b"], "of": {"1": [2]}}
    }
    with pytest.raises(CheckpointMismatchError, match="now leads to"):
        check(checkpoint, Looked({**told, "nodes": ("a", "c")}, batches=[0]))


@pytest.mark.parametrize(
    "told",
    [{"id": object()}, {"id": float("nan")}, "here", {}, {"id": {1, 2}}],
    ids=["object", "nan", "text", "empty", "set"],
)
def test_an_identity_that_no_log_can_hold_is_refused_with_its_sinks_name(told):
    with pytest.raises(
        SinkCheckError, match=r"Sink out: Looked\.identity must return None or a JSON object"
    ):
        identity_of(Looked(told), StartInfo(QUERY, "out"))


@pytest.mark.parametrize("adopt", [(), ("out",)])
def test_a_sink_of_another_kind_is_refused_before_it_is_asked_and_is_not_told_to_be_adopted(
    checkpoint, adopt
):
    decide_kind(checkpoint, "files")
    sink = Looked(HERE)
    with pytest.raises(FormerSinkError, match="prepared by a sink of the kind 'files'") as refused:
        check(checkpoint, sink, adopt)
    assert "adoptTarget" not in str(refused.value)
    assert sink.asked == []
    (checkpoint / "commits" / "0").touch()
    assert check(checkpoint, sink, ("out",)) == {}
