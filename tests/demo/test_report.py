"""The report: what passes, what fails, and a page that needs nothing from outside."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from onceforall.demo.page import render
from onceforall.demo.report import conclusion, failures


def test_an_exact_run_passes_whatever_the_other_sink_did(report, outcome):
    made = report(
        theirs=outcome(
            lost=3, duplicated=44_641, disagreeing=(1, 2), left={"temp_files": 7}, partial=3
        )
    )
    assert made["failures"] == []
    assert made["passed"]
    assert made["spark"]["duplicated"] == 44_641
    assert "44,641 duplicated" in conclusion(made)
    assert "disagree on 2 of 10 batches" in conclusion(made)


def test_the_report_holds_what_is_promised_and_is_json(report):
    made = json.loads(json.dumps(report()))
    assert made["events"] == 5000
    assert made["kills"] == 10
    found = {
        key: (made[key]["lost"], made[key]["duplicated"])
        for key in ("onceforall", "spark", "spark_kafka_sink")
    }
    assert found == {"onceforall": (0, 0), "spark": (0, 1234), "spark_kafka_sink": (0, 0)}
    assert made["spark"]["sinks"]["files"]["duplicated"] == 1234
    assert made["onceforall"]["queries"]["windows"]["postgres"]["expected"] == 300
    assert made["onceforall"]["agreement"]["events"] == {"batches": 5, "disagreeing": []}


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ({"lost": 1}, "lost"),
        ({"duplicated": 1}, "duplicated"),
        ({"wrong": 1}, "wrong"),
        ({"kills": 4}, "4 times"),
        ({"is_hit": False}, "No kill met a batch"),
        ({"sink": "files", "lost": 1}, "files"),
        ({"sink": "postgres", "duplicated": 1}, "PostgreSQL"),
        ({"expected": 0}, "nothing was tested"),
        ({"disagreeing": (3,)}, "disagree"),
        ({"compared": 0}, "not tested"),
        ({"left": {"hidden_partitions": 1}}, "open transactions"),
        ({"left": {"prepared_transactions": 1}}, "prepared transactions"),
        ({"left": {"staging_tables": 1}}, "staging tables"),
        ({"left": {"temp_files": 1}}, "temporary files"),
        ({"partial": 1}, "parts of 1 batches"),
        ({"reads": 0}, "found nothing"),
        ({"failure": "FileNotFoundError: part-1"}, "part-1"),
    ],
)
def test_each_fault_of_ours_fails_the_demo_and_is_named(report, outcome, fault, word):
    made = report(ours=outcome(**fault))
    assert not made["passed"]
    assert word in " ".join(failures(made))
    assert "FAILED" in conclusion(made)


def test_a_lucky_other_sink_is_said_plainly_and_does_not_fail(report, outcome):
    made = report(theirs=outcome())
    assert made["passed"]
    assert "nothing either this time" in conclusion(made)


def test_the_page_loads_nothing_from_outside(report):
    page = render(report())
    assert not re.findall(r"(?:src|href)\s*=|url\(|@import|<script|<link|https?://", page)


def test_every_picture_is_well_formed_and_shows_all_batches_and_kills(report):
    made = report()
    pictures = [
        ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", render(made), re.DOTALL)
    ]
    assert len(pictures) == 3
    for picture in pictures[1:]:
        assert len(picture.findall(".//title")) == 10
        assert [text.text for text in picture.iter("text") if text.get("class") == "kill"] == [
            f"kill {n}" for n in range(1, 6)
        ]
    assert {text.text for text in pictures[0].iter("text")} >= {"0", "1,234", "lost", "duplicated"}


def test_a_batch_that_a_kill_met_is_drawn_as_such(report):
    made = report()
    assert len(re.findall(r'class="hit"', render(made))) == 10
    for writer in ("onceforall", "spark"):
        for kill in made[writer]["timeline"]["kills"]:
            kill["in_flight"] = {}
    assert 'class="hit"' not in render(made)


def test_a_failed_run_looks_failed(report, outcome):
    assert '<div class="verdict failed">' in render(report(ours=outcome(lost=1)))
    assert '<div class="verdict failed">' not in render(report())
