"""The arithmetic of the measurements."""

import itertools
import random

import pytest

from benchmarks.report import figures


class TestSpread:
    def test_a_spread_is_the_same_each_time_and_holds_its_median(self):
        values = [1.1, 0.9, 1.0, 1.3, 1.2]
        found = figures.spread(values)
        assert found == figures.spread(values)
        assert found.least <= found.low <= found.median == 1.1 <= found.high <= found.most

    def test_one_value_is_its_own_interval(self):
        assert figures.spread([2.0]) == figures.Spread(2.0, 2.0, 2.0, 2.0, 2.0, 1)

    def test_nothing_can_be_summarised_from_nothing(self):
        with pytest.raises(ValueError, match="no sample"):
            figures.spread([])

    def test_the_interval_is_narrower_than_the_range_of_many_values(self):
        rng = random.Random(3)
        found = figures.spread([rng.gauss(10, 1) for _ in range(100)])
        assert found.high - found.low < (found.most - found.least) / 5
        assert found.low < found.median < found.high


class TestPercentile:
    def test_percentiles_are_values_that_were_measured(self):
        values = list(range(1, 101))
        assert [figures.percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [
            1,
            50,
            99,
            100,
        ]

    def test_the_99th_percentile_of_few_values_is_the_largest(self):
        assert figures.percentile([1, 2, 3], 0.99) == 3

    def test_there_is_no_percentile_of_nothing(self):
        with pytest.raises(ValueError, match="no sample"):
            figures.percentile([], 0.5)


class TestRatios:
    def test_ratios_are_taken_within_a_round_only(self):
        assert figures.ratios({0: 10.0, 1: 30.0, 2: 7.0}, {1: 60.0, 0: 10.0, 3: 1.0}) == [1.0, 0.5]

    def test_differences_are_taken_within_a_round_only(self):
        assert figures.differences({0: 10.0, 1: 30.0}, {1: 28.5, 2: 1.0}) == [1.5]


def stairs(batch, period_s, count, *, look_s=0.02, ragged=False):
    """What is seen of batches that become visible at once; ``ragged``: every commit is seen half
    done once."""
    looks, moment = [], 0.0
    while moment < (count + 1) * period_s:
        done = int(moment / period_s)
        seen = batch * done
        if ragged and done and moment - done * period_s < look_s:
            seen -= batch // 2
        looks.append((moment, min(seen, batch * count)))
        moment += look_s
    return looks


class TestSteadyWindow:
    def test_whole_steps_give_the_rate(self):
        window = figures.steady_window(stairs(100, 1.0, 20), 2000)
        assert (window.records, window.commits) == (1500, 15)
        assert window.records_per_s == pytest.approx(100, rel=0.01)

    def test_a_step_that_is_seen_half_done_does_not_count_as_one(self):
        # The first half step in the range would count, and the last one would not.
        window = figures.steady_window(stairs(100, 1.0, 21, ragged=True), 2150)
        assert window.records_per_s == pytest.approx(100, rel=0.01)
        assert window.records % 100 == 0

    def test_a_last_step_that_waits_for_its_checkpoint_is_left_out(self):
        looks = stairs(100, 1.0, 19)
        late = [(looks[-1][0] + 30 + n * 0.02, 2000) for n in range(50)]
        assert figures.steady_window([*looks, *late], 2000).records_per_s == pytest.approx(
            100, rel=0.01
        )

    def test_a_slow_start_is_left_out(self):
        looks = [(30 + moment, count) for moment, count in stairs(100, 1.0, 20)]
        assert figures.steady_window([(0.0, 0), *looks], 2000).records_per_s == pytest.approx(
            100, rel=0.01
        )

    def test_a_count_that_grows_all_the_time_needs_no_steps(self):
        looks = [(n * 0.02, min(2000, n * 20)) for n in range(120)]
        assert figures.steady_window(looks, 2000).records_per_s == pytest.approx(1000, rel=0.01)

    def test_too_few_steps_are_no_rate(self):
        with pytest.raises(ValueError, match="more records"):
            figures.steady_window(stairs(500, 1.0, 3), 1500)

    def test_records_that_never_came_are_no_rate(self):
        with pytest.raises(ValueError, match="more records"):
            figures.steady_window([(n * 0.02, 0) for n in range(1000)], 2000)


class TestAt:
    @pytest.mark.parametrize(("moment", "value"), [(0, 10), (1, 10), (2, 15), (3, 20), (9, 20)])
    def test_a_series_is_interpolated_and_ends_at_its_ends(self, moment, value):
        assert figures.at([(1, 10.0), (3, 20.0)], moment) == value

    def test_there_is_nothing_in_an_empty_series(self):
        with pytest.raises(ValueError, match="no sample"):
            figures.at([], 1)


class TestDrift:
    def points(self, per_step, *, noise=5.0, seed=1):
        rng = random.Random(seed)
        return [(10.0 * n, 100 + per_step * n + rng.uniform(-noise, noise)) for n in range(360)]

    def test_noise_is_flat(self):
        assert all(
            figures.drift(self.points(0, seed=seed), relative=0.02, absolute=1).is_flat
            for seed in range(5)
        )

    def test_a_leak_grows_even_when_noise_hides_it_from_neighbours(self):
        found = figures.drift(self.points(0.05), relative=0.05, absolute=1)
        assert not found.is_flat
        assert found.growth == pytest.approx(0.05 * 288, rel=0.2)
        assert found.last > found.first

    def test_what_fills_at_the_beginning_is_no_leak(self):
        points = [
            (moment, min(value, 100) if moment > 600 else value / 2)
            for moment, value in self.points(0, noise=0.1)
        ]
        assert figures.drift(points, relative=0.01, absolute=0.5).is_flat

    def test_shrinking_is_flat(self):
        assert figures.drift(self.points(-0.1), relative=0.01, absolute=1).is_flat

    def test_outliers_do_not_make_a_slope(self):
        points = self.points(0, noise=1)
        points[-3:] = [(moment, 5000.0) for moment, _ in points[-3:]]
        assert figures.drift(points, relative=0.02, absolute=1).is_flat

    def test_a_few_points_are_no_verdict(self):
        with pytest.raises(ValueError, match="too few"):
            figures.drift(self.points(0)[:5], relative=0.1, absolute=1)


PROGRESS = [
    {
        "numInputRows": rows,
        "durationMs": {"triggerExecution": ms},
        "timestamp": f"2026-11-21T10:00:0{second}.500Z",
    }
    for rows, ms, second in [
        (100, 9000, 0),
        (100, 3000, 1),
        (7, 10, 2),
        (100, 1000, 3),
        (100, 2000, 4),
    ]
]


class TestBatches:
    def test_full_batches_count_without_the_first_ones(self):
        assert figures.batch_seconds(PROGRESS, 100, skip=2) == [1.0, 2.0]

    def test_their_span_ends_with_the_last_one(self):
        start_s, end_s = figures.batch_span(PROGRESS, 100, skip=2)
        assert end_s - start_s == pytest.approx(3.0)

    def test_a_batch_that_was_read_three_times_is_a_full_one(self):
        thrice = [{**report, "numInputRows": 3 * report["numInputRows"]} for report in PROGRESS]
        assert figures.batch_seconds(thrice, 100, skip=2) == [1.0, 2.0]

    def test_without_full_batches_there_is_no_span(self):
        with pytest.raises(ValueError, match="No batch"):
            figures.batch_span(PROGRESS, 99)


def test_slopes_of_points_at_the_same_time_are_left_out():
    assert figures.slope([(1.0, 5.0), (1.0, 9.0)]) == 0.0
    assert figures.slope([(float(x), 2.0 * x) for x in itertools.chain(range(5), [4])]) == 2.0
