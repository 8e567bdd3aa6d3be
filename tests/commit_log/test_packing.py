"""Many committables in a COMMIT: what is packed reads back as it was, and takes little room."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceforall.commit_log import envelope
from onceforall.commit_log.packing import FEWEST, pack, unpack
from onceforall.errors import ForeignEntryError, NewerEntryError
from onceforall.protocol.entries import Commit, Digest

KEYS = st.sampled_from(["name", "proof", "topic", "offset", "task", "", "a.b"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, 1.0, -0.0, 2**53 + 1, "", "ab", "abc", "ab\ud7ff"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
COMMITTABLES = st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=FEWEST, max_size=40)


def written(value):
    """As JSON, where 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


@settings(max_examples=30)
@given(COMMITTABLES)
def test_what_is_packed_reads_back_as_it_was(committables):
    packed, changed = pack({"batch": 1, "committables": {"out": committables}})
    assert changed
    back = unpack(json.loads(json.dumps(packed)))
    assert written(back) == written({"batch": 1, "committables": {"out": committables}})


@pytest.mark.parametrize(
    "pair", [(1, True), (1, 1.0), (0.0, -0.0), (None, 0), ([1], [True]), ("", None)]
)
def test_values_that_python_takes_for_equal_stay_what_they_are(pair):
    committables = [{"value": pair[place % 2], "same": [1, {}]} for place in range(FEWEST)]
    packed, _ = pack({"committables": {"out": committables}})
    back = unpack(json.loads(json.dumps(packed)))
    assert written(back["committables"]["out"]) == written(committables)


def of_kafka(place, *, kept=False):
    """A committable as KafkaSink's are."""
    return {
        "cluster": "uOq8ekG3dyHVwlyH0tZJvg",
        "name": f"onceforall:9b81ae83-3105-4c35-8510-a176e2e9cac6:checked:7:0.{place}.0:",
        "producer_epoch": place % 7,
        "producer_id": 4_000 + place,
        "proof": {
            "offset": 1_234_567_890 + 977 * place,
            "partition": place % 12,
            "topic": "onceforall-clicks",
            "topic_id": "4d764d67-7467-4323-b6e1-15d71dd18460",
        },
        "records": 1000 + place,
        "task": [0, place],
        **(
            {
                "rows": {
                    "file": f"7.412/0-{place}-{place}.arrow",
                    "rows": 1000 + place,
                    "sha256": f"{place:064x}",
                }
            }
            if kept
            else {}
        ),
        **({"identity": {"cluster": "uOq8ekG3dyHVwlyH0tZJvg"}} if place == 0 else {}),
    }


def commit(count, *, kept=False):
    committables = tuple(of_kafka(place, kept=kept) for place in range(count))
    return Commit(7, ('{"t":{"0":9}}',), {"out": committables}, {"out/0": (Digest(3, 5),) * count})


def encoded(entry):
    at = datetime(2026, 11, 1, tzinfo=timezone.utc)
    return envelope.encode(entry, nonce="n", generation=3, index=5, written_at=at)


def decoded(content):
    return envelope.decode(content, where="it", generation=3, index=5).entry


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("count", [1, FEWEST - 1, FEWEST, 500])
def test_a_decision_reads_back_whatever_its_size(count, kept):
    entry = commit(count, kept=kept)
    assert decoded(encoded(entry)) == entry


def test_few_committables_are_written_as_earlier_releases_read_them():
    fields = json.loads(encoded(commit(FEWEST - 1)))
    assert fields["onceforall"] == 1
    assert [c["name"] for c in fields["body"]["committables"]["out"]]
    assert json.loads(encoded(commit(FEWEST)))["onceforall"] == 2


def test_of_many_transactions_each_takes_less_than_200_bytes_its_digest_included():
    def each(kept):
        return (len(encoded(commit(1000, kept=kept))) - len(encoded(commit(500, kept=kept)))) / 500

    assert each(kept=False) < 100
    assert each(kept=True) < 200


def test_an_earlier_release_says_that_it_does_not_understand_what_is_packed():
    with pytest.raises(NewerEntryError, match="format 2"):
        envelope.decode_fields(encoded(commit(FEWEST)), "it")


@pytest.mark.parametrize("lacking", ["same", "columns", "prefixes", "rows"])
def test_a_table_that_lacks_something_is_none_of_ours(lacking):
    fields = json.loads(encoded(commit(FEWEST)))
    del fields["checksum"], fields["body"]["committables"]["out"][lacking]
    with pytest.raises(ForeignEntryError, match="its body is not that of a COMMIT"):
        decoded(envelope.encode_fields(fields))


def test_a_row_of_another_length_is_none_of_ours():
    fields = json.loads(encoded(commit(FEWEST)))
    del fields["checksum"]
    fields["body"]["committables"]["out"]["rows"][3].pop()
    with pytest.raises(ForeignEntryError):
        decoded(envelope.encode_fields(fields))
