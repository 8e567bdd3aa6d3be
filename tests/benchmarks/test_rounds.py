"""Which plans a measurement runs when it is told whom to compare."""

import pytest

from benchmarks.rounds import Plan, with_contenders
from benchmarks.settings import Load

PLANS = [
    Plan(("ours", "spark", "flink"), Load(batch=10), {}),
    Plan(("librdkafka", "java-producer"), Load(batch=20), {}),
]


def test_contenders_are_not_put_into_a_plan_that_was_made_for_others():
    assert with_contenders(PLANS, ["spark", "ours"]) == [
        Plan(("spark", "ours"), Load(batch=10), {})
    ]
    assert with_contenders(PLANS, None) == PLANS


def test_what_no_plan_compares_is_refused_with_what_there_is():
    with pytest.raises(
        SystemExit,
        match="No plan has ours, librdkafka together; there are: ours, spark, flink; librdkafka, "
        "java-producer",
    ):
        with_contenders(PLANS, ["ours", "librdkafka"])
