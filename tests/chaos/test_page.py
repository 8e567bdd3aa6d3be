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
