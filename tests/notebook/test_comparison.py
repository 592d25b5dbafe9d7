"""What experiments answer: curves against exact ones, several of them together, averaged, pooled."""

import numpy as np
import pytest

from lib.notebook.comparison import Comparison
from lib.prompts.curve import Curve
from lib.prompts.estimate import Estimate


def curve(*means: float, seed: int = 0) -> Curve:
    samples = [m + 0.01 * np.random.default_rng([seed, k]).standard_normal(500) for k, m in enumerate(means)]
    return Curve.from_samples(samples, np.random.default_rng(seed))


def of(*means: float, seed: int = 0) -> Comparison:
    exact = np.array([1.0, 2.0])
    return Comparison.of_curve(curve(*means, seed=seed), exact, 3 * exact, nearly=1.1 * exact, length=[10, 20])


def test_a_curve_is_judged_relative_to_the_exact_one_and_the_control_to_the_wrong_one():
    found = of(1.0, 2.0)
    assert list(found.table) == ["length", "measured", "low", "high", "exact"]
    assert np.all((found.table["low"] < found.table["measured"]) & (found.table["measured"] < found.table["high"]))
    np.testing.assert_allclose(found.measured.mean, [1, 1], rtol=0.01)
    np.testing.assert_allclose(found.control.mean, found.measured.mean / 3)
    np.testing.assert_allclose(found.near_miss.mean, found.measured.mean / 1.1)


def test_together_keeps_the_parts_and_joins_their_curves():
    found = Comparison.together({"a": of(1.0, 2.0), "b": of(1.1, 2.2, seed=1)})
    assert len(found.table) == len(found.measured.mean) == len(found.control.mean) == len(found.near_miss.mean) == 4
    np.testing.assert_array_equal(found["b"].measured.mean, found.measured.mean[2:])
    with pytest.raises(KeyError, match="c"):
        found["c"]


def test_what_cannot_be_joined_is_judged_part_by_part():
    found = Comparison.together(
        {"a": of(1.0, 2.0), "b": Comparison(measured=Estimate.exact(1), control=Estimate.exact(2))}
    )
    assert found.measured is None
    assert found["b"].measured.value == 1


def test_averaged_curves_are_means_at_each_point():
    found = Comparison.averaged({"a": of(1.0, 2.0), "b": of(3.0, 6.0, seed=1)})
    np.testing.assert_allclose(found.measured.mean, [2, 2], rtol=0.01)
    assert len(found.table) == 4


def test_pooled_is_one_number_with_a_narrower_interval():
    found = of(1.0, 2.0).pooled()
    assert isinstance(found.measured, Estimate)
    assert found.measured.value == pytest.approx(1, rel=0.01)
    assert found.measured.half_width < of(1.0, 2.0).measured.estimate((0.9, 1.1)).half_width
    assert found.control.value == pytest.approx(found.measured.value / 3)
    assert found.near_miss.value == pytest.approx(found.measured.value / 1.1)
    assert found.measured.cases == 2 and not found.measured.worst
