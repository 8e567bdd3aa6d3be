"""The verdict over the whole demo, what is printed, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from onceforall.demo.ads import ledger
from onceforall.demo.ads.generator import make_ground
from onceforall.demo.ads.jobs import JOBS, examples_folder
from onceforall.demo.ads.main import AdsOptions, run_ads_demo
from onceforall.demo.ads.show import conclusion, show, show_ledger
from onceforall.demo.ads.truth import truth_of
from onceforall.errors import OptionError


@pytest.fixture(scope="module")
def truth():
    return truth_of(make_ground(3, 5_000))


def result(truth, *, kills=12, hidden=None, doubled=0):
    rows = [{"record_id": identity, **row} for identity, row in truth.ledger.items()]
    dead = {
        reason: {"expected": count, "read": count, "distinct": count}
        for reason, count in truth.dead_letters.items()
    }
    accounts = {
        name: ledger.account(truth, rows + rows[:doubled]) for name in ("topic", "files", "table")
    }
    late = ledger.account_of_late(truth, truth.late)
    return {
        "destinations": accounts,
        "dead_letters": dead,
        "late": late,
        "kills": [{}] * kills,
        "hidden_partitions": hidden or {},
    }


def report(truth, **results):
    return {
        "events": 5_000,
        "truth": ledger.true_account(truth),
        "results": results,
        **ledger.verdict(truth, results),
    }


def test_equal_ledgers_after_enough_kills_pass_whatever_sparks_writers_did(truth):
    made = report(truth, onceforall=result(truth), spark=result(truth, doubled=7))
    assert made["passed"]
    assert "the ledgers are equal" in conclusion(made)
    assert "duplicated 7, not 0" in conclusion(made)


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ({"doubled": 1}, "The topic differs: read"),
        ({"kills": 9}, "There were 9 kills only, not 10."),
        ({"hidden": {"ledger": [0]}}, "Open transactions hide records in ledger."),
    ],
)
def test_anything_that_is_wrong_with_ours_fails_the_demo(truth, ours, words):
    made = report(truth, onceforall=result(truth, **ours), spark=result(truth))
    assert not made["passed"]
    assert words in conclusion(made)


def test_a_demo_without_ours_is_none(truth):
    assert not report(truth, spark=result(truth))["passed"]


def test_the_ledger_is_printed_with_all_destinations_beside_the_truth(truth, capsys):
    made = report(truth, onceforall=result(truth), spark=result(truth, doubled=7))
    show(made)
    printed = capsys.readouterr().out
    spent = ledger.money(truth.total("spend_micros"))
    # The truth twice, and our three destinations.
    assert printed.count(spent) >= 5
    for words in (
        "the truth",
        "Kafka",
        "Parquet",
        "PostgreSQL",
        "Spark's writers, 12 kills",
        "not JSON",
        "late",
    ):
        assert words in printed


def test_the_ledger_of_one_pipeline_is_printed_before_the_other_has_run(truth, capsys):
    show_ledger(report(truth, onceforall=result(truth)), "onceforall")
    printed = capsys.readouterr().out
    assert "onceforall, 12 kills" in printed
    assert printed.count(ledger.money(truth.total("spend_micros"))) >= 4
    assert "Spark's writers" not in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"events": 99_999}, "--events 99999"),
        ({"minutes": 0}, "--minutes 0"),
        ({"seed": -1}, "--seed -1"),
        ({"only": "flink"}, "--only flink"),
    ],
)
def test_an_option_out_of_its_range_is_refused_before_anything_starts(tmp_path, options, words):
    with pytest.raises(OptionError, match=words):
        run_ads_demo(AdsOptions(**options, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_jobs_are_found_in_a_copy_of_the_repository():
    assert all((examples_folder() / f"{job}.py").is_file() for job in JOBS)
