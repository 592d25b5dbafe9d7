"""Numbers with intervals: means of losses, relative estimates, and what is unknown."""

import math

import numpy as np
import pytest

from lib.notebook.claims import verdict_of
from lib.prompts.estimate import Estimate, Intervals


def test_losses_have_a_normal_interval():
    found = Estimate.of_losses([1.0, 2.0, 3.0, 6.0])
    assert found.value == 3
    assert found.half_width == pytest.approx(1.96 * np.std([1, 2, 3, 6], ddof=1) / 2)
    with pytest.raises(ValueError, match="at least 2 prompts, received 1"):
        Estimate.of_losses([1.0])


def test_the_interval_of_losses_covers_as_often_as_it_says():
    """400 seeded trials of exponential losses; a false alarm of about one in a thousand."""
    rng = np.random.default_rng(3)
    found = [Estimate.of_losses(rng.exponential(size=400)) for _ in range(400)]
    assert 0.91 < np.mean([x.low < 1 < x.high for x in found]) < 0.985


def test_relative_to_a_number_all_three_are_divided():
    assert tuple(Estimate(2.0, 1.0, 4.0).over(2.0)) == (1.0, 0.5, 2.0)


def test_the_unknown_has_no_number_and_is_judged_as_itself():
    assert all(math.isnan(x) for x in Estimate.unknown())
    assert tuple(Estimate(1, 0.9, 1.1).estimate((0, 1))) == (1, 0.9, 1.1)


def test_means_at_several_points_share_the_error_among_them():
    """Bonferroni: at each of n points Student's interval of confidence 1 - 0.05 / n."""
    samples = np.random.default_rng(0).normal(size=(6, 3))
    found = Intervals.of_means(samples)
    for k in range(3):
        one = Estimate.of_mean(samples[:, k], 1 - 0.05 / 3)
        assert (found.values[k], found.low[k], found.high[k]) == pytest.approx(tuple(one))
    alone, many = Intervals.of_means(samples, together=1), Intervals.of_means(samples, together=30)
    assert alone.low[1] == pytest.approx(Estimate.of_mean(samples[:, 1]).low)
    assert (many.low < found.low).all() and (many.high > found.high).all()


def test_points_without_spread_are_exact_and_do_not_count():
    samples = np.random.default_rng(0).normal(size=(4, 2))
    with_start = Intervals.of_means(np.column_stack([np.full(4, 0.3), samples]))
    assert with_start.high[0] - with_start.low[0] < 1e-15
    np.testing.assert_allclose(with_start.low[1:], Intervals.of_means(samples).low)


@pytest.mark.filterwarnings("error")
def test_one_sample_has_no_interval():
    one = Intervals.of_means([[0.5, 2.0]])
    for found in (Estimate.of_mean([0.5]), one.estimate((0.4, 0.6)), Estimate.of_mean([])):
        assert math.isnan(found.low) and math.isnan(found.high)
        assert verdict_of(found, (-9, 9)) == "INCONCLUSIVE"
    assert Estimate.of_mean([0.5]).value == 0.5
    assert one.estimate((0.4, 0.6)).value == 2.0
    assert Intervals.of_means(np.empty((3, 0))).estimate((0, 1)).cases == 0


BAND = (0.9, 1.1)


def of(values, low, high):
    return Intervals(*(np.array(x, float) for x in (values, low, high)))


def test_a_numerical_error_is_an_interval():
    assert Estimate.exact(2.0, 0.3).half_width == pytest.approx(0.3)
    found = Intervals.exact([1.0, 2.0], [0.1, 0.2])
    np.testing.assert_allclose(found.high - found.values, [0.1, 0.2])


def test_of_several_numbers_the_worst_is_shown_with_the_hull_of_all():
    found = of([1.0, 1.04, 0.99], [0.97, 1.0, 0.96], [1.02, 1.08, 1.03]).estimate(BAND)
    assert tuple(found) == (1.04, 0.96, 1.08) and found.worst and found.cases == 3


def test_one_number_outside_of_the_band_is_outside_of_it_for_all():
    found = of([1.0, 1.3], [0.8, 1.2], [1.2, 1.4]).estimate(BAND)
    assert tuple(found) == (1.3, 1.2, 1.4) and verdict_of(found, BAND) == "FAIL"


def test_one_that_is_unknown_leaves_all_of_them_unknown():
    for bad in (of([1.0, math.nan], [0.95, 0.95], [1.05, 1.05]), of([1, 1], [math.nan, 0.95], [1.05, 1.05])):
        assert verdict_of(bad.estimate(BAND), BAND) == "INCONCLUSIVE"
    assert verdict_of(Estimate(1.0, 0.95, math.inf), (0.9, math.inf)) == "INCONCLUSIVE"
