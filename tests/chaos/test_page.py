"""The page takes its figures from the results and from nowhere else."""

from chaos.page import write_page
from chaos.results import Results


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
