from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceforall.protocol.names import TransactionName, parse_name, sink_code
from onceforall.protocol.sweeping import Sweep

QUERY = "6f1c2d3e-0000-4000-8000-000000000001"
NAME = TransactionName(QUERY, sink_code("out"), 3, 7, 0, 11, 2, 5)

numbers = st.integers(0, 10**19 - 1)


@given(st.text(), st.tuples(*[numbers] * 6))
def test_a_name_is_read_back_as_it_was_made(sink, parts):
    name = TransactionName(QUERY, sink_code(sink), *parts)
    assert parse_name(str(name)) == name


@pytest.mark.parametrize("end", ["0", ".0", ".tmp", "-copy", "\n", " "])
def test_what_only_begins_like_a_name_is_somebody_elses(end):
    assert parse_name(f"{NAME}{end}") != NAME
    assert end == "0" or parse_name(f"{NAME}{end}") is None


@pytest.mark.parametrize("begin", ["x", "x.", " ", "ofa."])
def test_what_only_ends_like_a_name_is_somebody_elses(begin):
    assert parse_name(f"{begin}{NAME}") is None


@pytest.mark.parametrize("number", ["007", "-1", "+7", "7_0", "\u0667", ""])
def test_a_number_that_is_written_in_another_way_is_somebody_elses(number):
    text = str(NAME._replace(batch=70))
    assert parse_name(text.replace(".70.", f".{number}.")) is None
    assert parse_name(text) is not None


def test_a_file_whose_name_begins_like_one_of_ours_is_not_swept():
    sweep = Sweep(QUERY, "out", 4)
    assert sweep.covers_name(str(NAME))
    assert not sweep.covers_name(f"{NAME}.kept-by-hand")


@pytest.mark.parametrize("other", ["a-b", "a b", "A.b", "a.b.", "a..b"])
def test_sinks_whose_names_read_alike_have_codes_of_their_own(other):
    assert sink_code("a.b") != sink_code(other)


def test_a_long_name_of_a_sink_has_a_short_code_of_its_own():
    one, two = (sink_code("x" * 200 + end) for end in "ab")
    assert one != two
    assert max(len(one), len(two)) <= 40


@pytest.mark.parametrize(
    ("sink", "word"),
    [("orders", "orders"), ("--", "sink"), ("", "sink"), ("a/b c", "a-b-c"), ("x" * 50, "x" * 27)],
)
def test_a_sinks_code_begins_with_what_is_readable_of_its_name(sink, word):
    assert re.fullmatch(f"{word}-[0-9a-f]{{12}}", sink_code(sink))
