from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commit_log.building import NOON, commit, content_of
from onceforall.commit_log.envelope import (
    DETACHED,
    FORMAT,
    MOVED,
    Envelope,
    _canonical,
    _checksum,
    decode,
    decode_fields,
    encode,
    encode_detached,
    encode_moved,
)
from onceforall.errors import (
    CheckpointMismatchError,
    CommitLogError,
    ConfigurationError,
    CorruptEntryError,
    ForeignEntryError,
    NewerEntryError,
)
from onceforall.protocol.entries import Claim, Commit, Digest, Done, Seal

FIXTURES = Path(__file__).parent / "fixtures"
WHERE = "/log/chains/00000003/00000007.json"


@pytest.mark.parametrize(
    ("made", "kind", "body"),
    [
        (encode_detached(nonce="n", generation=3, index=7), DETACHED, {}),
        (encode_moved("/to", nonce="n", generation=3, index=7), MOVED, {"location": "/to"}),
        (
            encode_moved("/to", nonce="n", generation=3, index=7, checkpoint="/cp"),
            MOVED,
            {"location": "/to", "checkpoint": "/cp"},
        ),
    ],
)
def test_what_ends_a_log_has_the_fields_of_an_entry(made, kind, body):
    fields = decode_fields(made, WHERE)
    assert fields == {
        "onceforall": FORMAT, "kind": kind, "generation": 3, "index": 7, "nonce": "n", "body": body,
        "checksum": fields["checksum"],
    }  # fmt: skip


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=4),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
    ),
    max_leaves=4,
)
texts = st.text(max_size=8)
entries = st.one_of(
    st.builds(Claim, texts, texts, texts, texts),
    st.builds(
        Commit,
        batch=st.integers(0, 2**62),
        offsets=st.lists(texts, max_size=3).map(tuple),
        committables=st.dictionaries(
            texts,
            st.lists(st.dictionaries(texts, json_values, max_size=3), max_size=3).map(tuple),
            max_size=3,
        ),
        digests=st.dictionaries(
            texts,
            st.lists(
                st.builds(Digest, st.integers(0, 2**40), st.integers(0, 2**64 - 1)), max_size=3
            ).map(tuple),
            max_size=3,
        ),
    ),
    st.builds(Done, st.integers(0, 2**62)),
    st.builds(
        Seal, st.none() | st.integers(0, 2**31), st.none() | st.integers(0, 2**31), st.booleans()
    ),
)


def read(content, generation=3, index=7):
    return decode(content, where=WHERE, generation=generation, index=index)


@given(entries, st.integers(0, 2**40), st.integers(0, 2**40))
def test_what_is_written_is_read_back(entry, generation, index):
    content = encode(entry, nonce="abc", generation=generation, index=index, written_at=NOON)
    assert read(content, generation, index) == Envelope(
        entry, "abc", generation, index, "2026-11-21T12:00:00.123Z"
    )


@pytest.mark.parametrize(
    "fixture", sorted(FIXTURES.glob("format-1-*.json")), ids=lambda path: path.stem
)
def test_format_1_is_readable_for_ever(fixture):
    # These files are never changed: they stand for the logs of everybody who ran the first release.
    expected = {
        "format-1-claim": Claim("3b0f", "77aa", "/checkpoints/ads", "driver-1"),
        "format-1-commit": Commit(
            41,
            ('{"events":{"0":120,"1":77}}', "-"),
            {
                "out": (
                    {
                        "transactional_id": "ads.out.2.0",
                        "producer_id": 9007199254740993,
                        "epoch": 4,
                    },
                ),
                "größe ✓": (),
            },
            {"out#0": (Digest(120, 0xFEDCBA9876543210), Digest(0, 0))},
        ),
        "format-1-done": Done(41),
        "format-1-seal": Seal(3, 7, done=True),
        "format-1-with-fields-of-a-later-release": Done(41),
    }
    envelope = read(fixture.read_bytes(), *((3, 0) if fixture.stem == "format-1-claim" else (3, 7)))
    assert envelope.entry == expected[fixture.stem]
    assert envelope.nonce == "0f8fad5bd9cb469fa16570867728950e"


def test_there_is_a_fixture_of_every_kind():
    assert len(list(FIXTURES.glob("format-1-*.json"))) == 5


@given(st.data())
def test_an_entry_with_any_byte_changed_is_refused_or_means_the_same(data):
    content = bytearray(content_of(commit(5), 3, 7))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        outcome = read(bytes(content))
    except CommitLogError as error:
        outcome = str(error)
    assert (
        WHERE in outcome
        if isinstance(outcome, str)
        else outcome == read(content_of(commit(5), 3, 7))
    )


def test_every_truncated_entry_is_corrupt():
    content = content_of(commit(5), 3, 7)
    for length in range(len(content)):
        with pytest.raises(
            CorruptEntryError, match=r"(?s)00000007\.json.*Restore it from a backup.*Do not delete"
        ):
            read(content[:length])


@pytest.mark.parametrize("content", [b"", b"\0" * 300, b"\xff\xfe", b"{", b"[" * 100_000])
def test_what_is_not_json_is_corrupt(content):
    with pytest.raises(CorruptEntryError, match="00000007"):
        read(content)


def test_a_number_that_no_entry_can_hold_is_corrupt():
    content = content_of(Done(5), 3, 7).replace(b'"batch":5', b'"batch":1e999')
    with pytest.raises(CorruptEntryError, match="what no entry can hold"):
        read(content)


@pytest.mark.parametrize(
    "content",
    [b"{}", b"[]", b"null", b"3", b'"x"', b'{"v":1}', b'{"onceforall":true}', b'{"onceforall":0}'],
)
def test_json_of_others_is_foreign(content):
    with pytest.raises(ForeignEntryError, match=r"00000007\.json was not written by onceforall"):
        read(content)


def rewritten(content, **changes):
    """The entry as another release would have written it, with its checksum right."""
    fields = {k: v for k, v in json.loads(content).items() if k != "checksum"} | changes
    return _canonical({**fields, "checksum": _checksum(fields)})


@pytest.mark.parametrize(
    "changes", [{"onceforall": 3}, {"onceforall": 999, "body": "?"}, {"kind": "FORK"}]
)
def test_an_entry_of_a_newer_release_says_so(changes):
    with pytest.raises(NewerEntryError, match="newer release of onceforall.*Upgrade onceforall"):
        read(rewritten(content_of(Done(5), 3, 7), **changes))


def test_a_newer_format_is_recognised_even_if_it_takes_another_checksum():
    with pytest.raises(NewerEntryError):
        read(b'{"onceforall":3,"checksum":"blake3:00"}')


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"body": {}}, "its body is not that of a DONE entry"),
        ({"body": {"batch": "x"}}, "its body is not that of a DONE entry"),
        ({"body": []}, "it lacks the fields of an entry"),
        ({"generation": "3"}, "it lacks the fields of an entry"),
        ({"index": None}, "it lacks the fields of an entry"),
        ({"index": 7.0}, "it lacks the fields of an entry"),
    ],
)
def test_a_body_that_is_none_is_foreign(changes, why):
    with pytest.raises(ForeignEntryError, match=f"00000007.*{why}"):
        read(rewritten(content_of(Done(5), 3, 7), **changes))


def test_an_entry_that_could_not_be_read_back_is_not_written():
    with pytest.raises(ConfigurationError, match=r"COMMIT entry cannot be written.*the new entry"):
        content_of(Commit("x", (), {}), 3, 7)


@pytest.mark.parametrize("entry", [Done(5), Seal(None, None, done=False)])
def test_only_a_commit_is_packed_whatever_the_format_says(entry):
    assert read(rewritten(content_of(entry, 3, 7), onceforall=2)).entry == entry


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (encode_detached(nonce="n", generation=3, index=7), "is being made a plain query's"),
        (
            encode_moved("/to", nonce="n", generation=3, index=7),
            "this commit log was moved to /to,",
        ),
        (
            encode_moved("/to", nonce="n", generation=3, index=7, checkpoint="/cp"),
            "this checkpoint was moved to /cp,",
        ),
    ],
)
def test_the_end_of_a_log_says_where_it_went(content, said):
    with pytest.raises(CheckpointMismatchError, match=f"00000007.*{said}"):
        read(content)


def test_fields_that_this_release_does_not_know_are_tolerated_and_under_the_checksum():
    content = rewritten(content_of(Done(5), 3, 7), colour="green")
    assert read(content).entry == Done(5)
    with pytest.raises(CorruptEntryError, match="checksum"):
        read(content.replace(b"green", b"brown"))


@pytest.mark.parametrize("place", [(3, 8), (4, 7)])
def test_a_file_copied_to_another_place_is_foreign(place):
    with pytest.raises(
        ForeignEntryError, match="entry 7 of generation 3, and was copied or renamed"
    ):
        read(content_of(Done(5), 3, 7), *place)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", NOON, {1, 2}, "\ud800"])
def test_a_committable_that_is_not_json_is_refused_before_anything_is_written(value):
    with pytest.raises(ConfigurationError, match="pre_commit"):
        content_of(Commit(1, (), {"out": ({"x": value},)}), 3, 7)


def test_keys_that_are_numbers_do_not_make_an_entry_unreadable():
    content = content_of(Commit(1, (), {"out": ({"x": {10: 1, 9: 2}},)}), 3, 7)
    assert read(content).entry.committables == {"out": ({"x": {"10": 1, "9": 2}},)}
