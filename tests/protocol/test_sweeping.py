from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceforall.protocol.names import TransactionName, parse_name, sink_code
from onceforall.protocol.sweeping import Sweep

OLDER = Sweep("query", "a", 5, spared=frozenset({"spared"}))
OWN = Sweep("query", "a", 5, own=True, spared=frozenset({"spared"}))


@pytest.mark.parametrize("generation", [0, 4])
def test_an_older_generation_is_covered(generation):
    assert OLDER.covers("query", "a", generation, "x")
    assert OWN.covers("query", "a", generation, "x")


def test_ones_own_generation_is_covered_only_when_that_is_said():
    assert not OLDER.covers("query", "a", 5, "x")
    assert OWN.covers("query", "a", 5, "x")


@pytest.mark.parametrize("sweep", [OLDER, OWN])
@pytest.mark.parametrize("generation", [6, 50])
def test_a_newer_generation_is_never_covered(sweep, generation):
    assert not sweep.covers("query", "a", generation, "x")


@pytest.mark.parametrize("sweep", [OLDER, OWN])
@pytest.mark.parametrize("generation", [0, 5, 6])
def test_what_is_spared_is_never_covered(sweep, generation):
    assert not sweep.covers("query", "a", generation, "spared")


@pytest.mark.parametrize("sweep", [OLDER, OWN])
@pytest.mark.parametrize("generation", [0, 4, 5])
@pytest.mark.parametrize("query", ["query2", "quer", "", "Query"])
def test_what_is_of_another_query_is_never_covered(sweep, generation, query):
    assert not sweep.covers(query, "a", generation, "x")


@pytest.mark.parametrize("sink", ["b", "a1", "", "A"])
def test_what_another_sink_left_is_covered_in_older_generations_only(sink):
    assert OLDER.covers("query", sink, 4, "x")
    assert OWN.covers("query", sink, 4, "x")
    assert not OWN.covers("query", sink, 5, "x")
    assert not OWN.covers("query", sink, 6, "x")


def test_names_are_compared_as_a_whole():
    assert OWN.covers("query", "a", 5, "spared.1")


QUERIES, SINKS, NAMES = (
    st.sampled_from(["query", "other"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["x", "spared"]),
)


@given(st.booleans(), QUERIES, SINKS, st.integers(0, 8), NAMES)
def test_the_rule_in_one_sentence(own, query, sink, generation, name):
    covered = Sweep("query", "a", 5, own, frozenset({"spared"})).covers(
        query, sink, generation, name
    )
    nobody_can_decide_it = generation < 5 or (own and (sink, generation) == ("a", 5))
    assert covered == (query == "query" and name != "spared" and nobody_can_decide_it)


UUIDS = {
    "query": "6f1c2d3e-0000-4000-8000-00000000000a",
    "other": "6f1c2d3e-0000-4000-8000-00000000000b",
}


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("query", UUIDS)
@pytest.mark.parametrize("sink", ["a", "b"])
def test_of_a_name_alone_the_same_is_known(own, query, sink):
    """A name has the code of the sink that opened it."""
    for generation, spared in itertools.product(range(9), (True, False)):
        made = TransactionName(UUIDS[query], sink_code(sink), generation, 7, 0, 1, 2, 3)
        assert parse_name(str(made)) == made
        sweep = Sweep(UUIDS["query"], "a", 5, own, frozenset({str(made)} if spared else ()))
        known = sweep.covers(UUIDS[query], sink, generation, str(made))
        assert sweep.covers_name(str(made)) == known


@pytest.mark.parametrize("sink", ["a", "b", "gone"])
@pytest.mark.parametrize("batch", range(6, 9))
def test_what_another_sink_left_of_a_batch_that_is_decided_is_left_to_its_own_sweep(sink, batch):
    """Its target may be behind, and have nothing else of the rows; nobody has asked it."""
    sweep = Sweep(UUIDS["query"], "a", 5, decided={"a": 7, "b": 7, "gone": 6})
    name = str(TransactionName(UUIDS["query"], sink_code(sink), 3, batch, 0, 1, 2, 3))
    may_be_decided = sink != "a" and batch <= sweep.decided[sink]
    assert sweep.may_be_decided(name) == may_be_decided
    assert sweep.covers_name(name) == (not may_be_decided)
    of_others = str(TransactionName(UUIDS["other"], sink_code(sink), 3, batch, 0, 1, 2, 3))
    assert not sweep.may_be_decided(of_others)


@pytest.mark.parametrize("name", ["", "x", "ofa.x", "another's-1-2-3"])
def test_a_name_that_is_nobodys_is_not_covered(name):
    assert not OWN.covers_name(name)
    assert not OWN.may_be_decided(name)
