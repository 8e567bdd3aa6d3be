"""What a query's settings come to together with its sinks."""

import pytest

from onceforall.driver.settings import Settings
from onceforall.errors import OptionError


@pytest.mark.parametrize(
    ("given", "timeout_ms", "reserve_ms"),
    [
        (None, None, 0),
        (500, None, 0),
        (None, 900, 300),
        (0, 900, 0),
        (899, 900, 899),
    ],
)
def test_the_reserve_is_a_third_of_the_shortest_timeout_or_what_is_given(
    given, timeout_ms, reserve_ms
):
    assert Settings(decision_reserve_ms=given).reserve_ms(timeout_ms) == reserve_ms


@pytest.mark.parametrize("given", [900, 901])
def test_a_reserve_that_leaves_no_batch_any_time_is_refused(given):
    with pytest.raises(OptionError, match=rf"decisionReserveMs={given}.*after 900 ms"):
        Settings(decision_reserve_ms=given).reserve_ms(900)
