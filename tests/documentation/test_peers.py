"""The page of peers' bugs is what its data says, and the data is whole: each entry has a source that
was read on a day, and names what is there."""

import datetime as dt
import re
import runpy
from collections import Counter

import pytest
import tomllib

from support.pages import ROOT, text_of_tests

DATA = tomllib.loads((ROOT / "docs" / "peers.toml").read_text(encoding="utf-8"))
BUGS = DATA["bug"]
FIELDS = {"peer", "issue", "title", "link", "kind", "there", "here", "where", "tests"}
LEAST = {
    "Flink": 10, "Kafka and its clients": 5, "Spark": 5, "Iceberg": 3, "Delta Lake": 2, "Paimon": 2,
    "Arroyo": 1, "RisingWave": 1,
}  # fmt: skip

bug = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug["issue"].replace(" ", "-"))


def repeated(names):
    return [name for name, count in Counter(names).items() if count > 1]


def test_the_page_is_drawn_from_the_data():
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_peers.py"))["drawing"]()
    assert page == drawn, "run `make docs`"


def test_it_begins_with_how_many_of_how_many_are_shown():
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert f"**{len(BUGS)} of {len(BUGS)} published" in page
    assert len([bug for bug in BUGS if bug.get("shared")]) == 1


def test_no_system_is_left_out():
    peers = Counter(bug["peer"] for bug in BUGS)
    assert {peer: count for peer, count in LEAST.items() if peers[peer] < count} == {}


def test_bugs_of_one_system_stand_together():
    order = [bug["peer"] for bug in BUGS]
    assert order == [peer for peer in dict.fromkeys(order) for _ in range(order.count(peer))]


def test_nothing_is_named_twice():
    for field in ("issue", "link", "title", "there", "here"):
        assert repeated(bug[field] for bug in BUGS) == [], field
    assert repeated(test for bug in BUGS for test in bug["tests"]) == []


def test_the_sources_were_read_on_a_day():
    assert DATA["looked_up"] == dt.date(2026, 11, 26)


@bug
def test_an_entry_says_everything(bug):
    assert bug.keys() - {"shared"} == FIELDS
    assert all(bug.values())
    assert bug["kind"] in {"loss", "duplicate", "stuck"}
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+", bug["link"])
    number = re.search(r"\d+$", bug["link"])[0]
    assert bug["issue"].endswith(number) or re.fullmatch(r"[A-Z]+-\d+", bug["issue"])
    assert all(bug[field].endswith((".", ".)")) for field in ("there", "here"))


@bug
def test_what_an_entry_leads_to_exists(bug):
    for place in bug["where"]:
        assert (ROOT / place.partition("#")[0]).is_file(), place


@bug
def test_the_tests_of_an_entry_exist(bug):
    for test in bug["tests"]:
        path, _, name = test.partition("::")
        text = text_of_tests(path)
        assert re.search(rf"^ *def {name}\(", text, re.MULTILINE), f"{path} has no test {name}"
