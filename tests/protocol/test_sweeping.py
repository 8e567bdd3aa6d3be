from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(("query", "sink"), [("query2", "a"), ("quer", "a"), ("query", "a1"), ("query", "")])
def test_what_is_of_another_query_or_sink_is_never_covered(query, sink):
    assert not OWN.covers(query, sink, 0, "x")


def test_names_are_compared_as_a_whole():
    assert OWN.covers("query", "a", 5, "spared.1")
