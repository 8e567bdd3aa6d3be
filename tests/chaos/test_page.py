"""The page takes its figures from the results and from nowhere else."""

import json

from chaos.page import write_page
from chaos.results import Results
from simulator import exhaustive
from simulator.campaign import Campaign, Plan


def test_the_page_has_what_the_simulator_came_to(tmp_path):
    folder = tmp_path / "simulator"
    Campaign(Plan(20, workers=1, folder=folder), lambda _: None).run()
    assert (
        exhaustive.main(
            [
                "--generations",
                "2",
                "--batches",
                "1",
                "--participants",
                "1",
                "--output",
                str(folder / "exhaustive.json"),
            ]
        )
        == 0
    )
    page = write_page(Results(tmp_path), folder).read_text()
    schedules = json.loads((folder / "results.json").read_text())
    (world,) = json.loads((folder / "exhaustive.json").read_text())
    assert schedules["schedules"] >= 20
    assert f"**{schedules['schedules']:,}** (seeds from 0 on" in page
    assert f"{schedules['faults']:,}, {schedules['most_faults']} at the most" in page
    assert world["states"] > 10
    assert f"| {world['states']:,} | {world['transitions']:,} | yes | 0 |" in page


def test_without_the_simulators_results_the_page_says_nothing_of_it(tmp_path):
    assert "simulator.md" not in write_page(Results(tmp_path), tmp_path / "none").read_text()


def test_a_finding_is_told_without_the_folder_it_was_found_in(tmp_path):
    results = Results(tmp_path)
    results.data["found"] = [
        {
            "in": "one",
            "what": [
                (
                    "leftover: kept rows /home/me/clone/build/chaos/work/one/rows/1.arrow, "
                    "/home/me/clone/build/chaos/work/b"
                )
            ],
        },
        {
            "in": "two",
            "what": [
                (
                    "no judgement: Traceback (most recent call last):\n  File "
                    '"/home/me/clone/tests/x.py", line 1\nError: too slow\n'
                )
            ],
        },
    ]
    page = write_page(results, tmp_path / "none").read_text()
    assert (
        "- one: leftover: kept rows build/chaos/work/one/rows/1.arrow, build/chaos/work/b\n" in page
    )
    assert "- two: no judgement: Error: too slow\n" in page
