"""Whether a sink can be what it says in a query: the rule and its sentences."""

from __future__ import annotations

import re

import pytest

from onceforall.protocol.eligibility import why_not
from onceforall.sink import Capabilities


@pytest.mark.parametrize(
    "able",
    [
        Capabilities(two_phase=True),
        Capabilities(two_phase=False, idempotent=True),
        Capabilities(two_phase=False, delivery="at_least_once"),
        Capabilities(two_phase=False, delivery="none"),
        Capabilities(two_phase=True, transaction_timeout_ms=1),
        Capabilities(two_phase=True, output_modes=frozenset({"update"})),
    ],
)
def test_a_sink_that_can_what_it_says_is_taken(able):
    assert why_not("ads", able, "update") is None


@pytest.mark.parametrize(
    ("able", "sentence"),
    [
        (
            Capabilities(two_phase=True, delivery="twice"),
            "Sink 'ads' says delivery='twice', which is none of exactly_once, at_least_once and",
        ),
        (
            Capabilities(two_phase=False),
            "Sink 'ads' can't be exactly-once: .* say delivery='at_least_once'",
        ),
        (
            Capabilities(two_phase=True, transaction_timeout_ms=0),
            "Sink 'ads' says transaction_timeout_ms=0; it must be positive",
        ),
        (
            Capabilities(two_phase=True, output_modes=frozenset({"complete", "append"})),
            "Sink 'ads' can't serve the output mode 'update', .* it serves: append, complete. Choose",
        ),
        (
            Capabilities(two_phase=True, output_modes=frozenset()),
            "Sink 'ads' can't serve the output mode 'update', .* it serves: none. Choose another",
        ),
    ],
)
def test_a_sink_that_can_not_is_refused_with_its_name_and_what_helps(able, sentence):
    found = why_not("ads", able, "update")
    assert found is not None
    assert re.match(sentence, found)
