"""What the measurement of many transactions says of its figures; the figures are the broker's."""

from benchmarks.scale.transactions import page_of, verdicts


def row(transactions, commit_s=0.2, each=55.0, recovery_s=0.4):
    return {
        "transactions": transactions,
        "confirm_s": 0.1,
        "encode_s": 0.1,
        "commit_s": commit_s,
        "entry_bytes": round(each * transactions),
        "bytes": each,
        "driver_peak_kb": 100,
        "recovery_s": recovery_s,
    }


def test_each_target_is_met_or_missed_at_its_number_of_transactions():
    said = verdicts([row(10, commit_s=9.0), row(500), row(1000, recovery_s=3.1)])
    assert said == [
        "commit_s at 500 transactions: 0.2 (target 1.0): met",
        "recovery_s at 1000 transactions: 3.1 (target 3.0): MISSED",
        "bytes at 500 transactions: 55.0 (target 200.0): met",
    ]


def test_the_page_has_a_row_for_each_number_and_projects_from_the_last():
    page = page_of([row(1), row(1000)], repeats=3)
    assert "| 1 | 0.1 | 0.1 | 0.2 | 55 | 55.0 | 100 | 0.4 |" in page
    assert "| 1,000 | 4,000 | 8,000 | 220,000 |" in page
    assert "medians of 3" in page
    assert "{" not in page
