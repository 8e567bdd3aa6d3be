from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceforall.errors import OptionError
from onceforall.sinks.kafka.names import TransactionalId, check_prefix, format_name, parse_name

numbers = st.integers(min_value=0, max_value=2**40)
words = st.text(min_size=1).filter(lambda text: text.encode("utf-8", "ignore").decode() == text)
names = st.builds(TransactionalId, words, words, numbers, numbers, numbers, numbers)
prefixes = st.from_regex(r"\A[A-Za-z0-9._-]{1,20}\Z")


@given(prefixes, names)
def test_a_name_is_read_back_as_it_was_made(prefix, name):
    assert parse_name(format_name(prefix, name)) == (prefix, name)


@given(prefixes, names, names)
def test_no_id_is_the_beginning_of_another(prefix, one, other):
    if one != other:
        assert not format_name(prefix, one).startswith(format_name(prefix, other))


@given(prefixes, prefixes, names, names)
def test_ids_under_different_prefixes_are_never_the_same(prefix, other, one, two):
    if prefix != other:
        assert format_name(prefix, one) != format_name(other, two)


@given(prefixes, names)
def test_an_id_is_printable_ascii(prefix, name):
    text = format_name(prefix, name)
    assert text.isascii()
    assert text.isprintable()


@given(st.text() | st.from_regex(r"\A[a.]{0,3}:[^:]{0,3}:[^:]{0,3}:[0-9]{1,2}:0\.[0-9]{1,2}\.0:\Z"))
def test_whatever_is_parsed_is_canonical(text):
    parsed = parse_name(text)
    assert parsed is None or (check_prefix(parsed[0]) and format_name(*parsed) == text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p",
        "p:q:s:1:0.2.3",
        "p:q:s:1:0.2.3:x",
        "p:q:s:01:0.2.3:",
        "p:q:s:1:0.2.03:",
        "p:q:s:1:2:",
        "p:q:s:-1:0.2.3:",
        "p:q:s:1:0.2.3:\n",
        "p:q:%73:1:0.2.3:",
        "p:q:s t:1:0.2.3:",
        "p:q::1:0.2.3:",
        ":q:s:1:0.2.3:",
        "p p:q:s:1:0.2.3:",
        "ä:q:s:1:0.2.3:",
        "o:p:q:s:1:0.2.3:",
        "p%41:q:s:1:0.2.3:",
        f"{'p' * 101}:q:s:1:0.2.3:",
        "p:q:s:1:0.٢.3:",
    ],
)
def test_what_is_not_exactly_an_id_is_not_parsed(text):
    assert parse_name("p:q:s:1:0.2.3:") is not None
    assert parse_name(text) is None


def test_an_id_looks_as_documented():
    assert format_name("ofa", TransactionalId("q-1", "a:b", 3, 5, 4, 0)) == "ofa:q-1:a%3Ab:3:5.4.0:"


@pytest.mark.parametrize("prefix", ["", "a:b", "a b", "ä", "x" * 101, "a\n", None])
def test_an_unusable_prefix_is_refused(prefix):
    with pytest.raises(OptionError, match="transactional_id_prefix"):
        check_prefix(prefix)


@given(names, names)
def test_attempts_of_another_incarnation_never_share_an_id(one, other):
    if one.incarnation != other.incarnation:
        assert format_name("p", one) != format_name("p", other)
