"""The page takes its figures from the results and from nowhere else."""

from chaos import matrix
from chaos.nemeses import SCENARIOS
from chaos.page import write_page
from chaos.results import Results, _empty


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
    page = write_page(results).read_text()
    assert (
        "- one: leftover: kept rows build/chaos/work/one/rows/1.arrow, build/chaos/work/b\n" in page
    )
    assert "- two: no judgement: Error: too slow\n" in page


def test_a_scenario_that_has_not_run_is_named_and_one_that_has_is_not(tmp_path):
    results = Results(tmp_path)
    every = len(SCENARIOS)
    assert f"**{every} of {every} scenarios have not run" in write_page(results).read_text()
    for name in SCENARIOS:
        results.data["scenarios"][name] = {**_empty(), "kills": {}, "by_fault": {}}
    assert "have not run" not in write_page(results).read_text()
    del results.data["scenarios"]["power"]
    page = write_page(results).read_text()
    assert f"**1 of {every} scenarios have not run on the code of this page**" in page
    assert "says nothing of them: power.\n" in page


def test_each_scenario_says_which_kinds_of_fault_must_happen_and_the_page_which_never_did(tmp_path):
    assert all(scenario.kinds for scenario in SCENARIOS.values())
    results = Results(tmp_path)
    entry = {**_empty(), "kills": {}, "by_fault": {"second driver on one checkpoint": 3}}
    results.data["scenarios"]["two-drivers"] = entry
    assert "What never happened" not in write_page(results).read_text()
    entry["runs"] = 2
    assert "- two-drivers, 2 runs: `^driver frozen`\n" in write_page(results).read_text()
    entry["by_fault"]["driver frozen (not noticed)"] = 1
    assert "What never happened" in write_page(results).read_text()
    entry["by_fault"]["driver frozen"] = 1
    assert "What never happened" not in write_page(results).read_text()


def test_of_a_cells_recoveries_the_longest_is_shown(tmp_path):
    results = Results(tmp_path)
    cell = next(matrix.all_cells())
    results.data["cells"][cell.id] = {
        **_empty(),
        "reached": True,
        "records": 1234,
        "recovery_s": [2.5, 61.0, 3.0],
    }
    assert "| 1,234 61.0 s |" in write_page(results).read_text()
