from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceforall.protocol.entries import (
    Claim,
    Commit,
    Digest,
    Done,
    Seal,
    Target,
    entry_from_body,
)

texts = st.text(max_size=20)
numbers = st.integers(0, 2**63)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3),
)
committables = st.dictionaries(texts, values, max_size=4).flatmap(
    lambda c: texts.map(lambda name: {**c, "name": name})
)
digests = st.builds(Digest, rows=numbers, hash_sum=st.integers(0, 2**64 - 1))
targets = st.builds(
    Target,
    identity=st.none() | st.dictionaries(texts, texts, max_size=2),
    batch=st.none() | numbers,
    after=st.none() | numbers,
    place=st.none() | st.just({"schema": "a"}),
    adopted=st.none() | st.dictionaries(texts, values, max_size=2),
    after_place=st.none() | st.just({"schema": "b"}),
)
commits = st.builds(
    Commit,
    batch=numbers,
    offsets=st.lists(texts, max_size=3).map(tuple),
    committables=st.dictionaries(texts, st.lists(committables, max_size=3).map(tuple), max_size=3),
    digests=st.dictionaries(texts, st.lists(digests, max_size=3).map(tuple), max_size=3),
    losses=st.lists(committables, max_size=2).map(tuple),
    targets=st.dictionaries(texts, targets, max_size=2),
    header=st.lists(texts, max_size=2).map(tuple),
)
claims = st.builds(
    Claim,
    query_id=texts,
    run_id=texts,
    checkpoint=texts,
    owner=texts,
    host=texts,
    boot_id=texts,
    storage=st.dictionaries(texts, texts, max_size=2),
    kinds=st.dictionaries(texts, texts, max_size=2),
)
seals = st.builds(Seal, st.none() | numbers, st.none() | numbers, st.booleans())
entries = st.one_of(commits, seals, claims, st.builds(Done, numbers))


@given(entries)
def test_an_entry_comes_back_from_json_as_it_was(entry):
    assert entry_from_body(entry.kind, json.loads(json.dumps(entry.body()))) == entry


def test_fields_that_an_older_release_did_not_write_have_defaults():
    claim = entry_from_body("CLAIM", {"query_id": "q", "run_id": "r", "checkpoint": "c"})
    assert claim == Claim("q", "r", "c", "")
    assert "kinds" not in claim.body()
    assert entry_from_body("COMMIT", {"batch": 1, "offsets": ["o"], "committables": {}}) == Commit(
        1, ("o",), {}, {}
    )


def test_fields_of_a_newer_release_are_passed_over():
    assert entry_from_body("DONE", {"batch": 3, "seconds": 4}) == Done(3)


def test_a_hash_sum_is_hexadecimal_for_readers_whose_numbers_end_at_2_to_the_53():
    body = Commit(0, (), {}, {"a/0": (Digest(1, 2**64 - 1),)}).body()
    assert body["digests"] == {"a/0": [[1, "ffffffffffffffff"]]}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("DONE", {}),
        ("DONE", {"batch": "x"}),
        ("DONE", {"batch": None}),
        ("COMMIT", {"batch": 1, "offsets": []}),
        ("COMMIT", {"batch": 1, "offsets": [], "committables": [1]}),
        ("SEAL", {"decided_generation": None}),
        ("CLAIM", {"query_id": "q"}),
        ("ABORT", {"batch": 1}),
    ],
)
def test_a_body_that_is_none_is_refused(kind, body):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        entry_from_body(kind, body)


def test_an_entry_does_not_change():
    with pytest.raises(AttributeError):
        Done(1).batch = 2
