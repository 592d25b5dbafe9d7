"""The experiments of notebook 02 at tiny size: what they must and must not find."""

import numpy as np
import pytest

from lib.experiments import concentration
from lib.finite_prompt import rate_exponent

SETTINGS = [("isotropic", 4), ("rank(2)", 3)]


@pytest.fixture(scope="module")
def measurement():
    return concentration.Measurement(SETTINGS, 1.0, [8, 64, 512], 3_000_000, 8_000, seed=0)


def test_measured_errors_lie_on_the_exact_curves(measurement):
    for quantity in concentration.QUANTITIES:
        assert 0.9 < measurement.across_settings(quantity).pooled().value < 1.1
        assert measurement.across_settings(quantity, untilted=True).pooled().value > 2
    assert np.abs(measurement.slope_gaps((8, 512)).mean).max() < 0.1
    assert set(measurement.table["setting"]) == {"isotropic, d = 4", "rank(2), d = 3"}
    assert measurement.titled((8, 512))["title"].str.contains("slope -").all()


def test_a_generic_head_has_the_scores_asked_for():
    gamma = np.diag([1.0, 2.0, 0.0])
    query, U, _ = concentration.generic_head(3, gamma, 1.7, seed=0)
    assert concentration.score_deviation(gamma, query, U) == pytest.approx(1.7)


def test_sharp_constants():
    table = concentration.sharp_constants(SETTINGS, [0.5, 1.5], 1e15, seed=0)
    np.testing.assert_allclose(table["ratio"], 1, atol=1e-8)
    assert table["untilted"].min() > 1.2


def test_the_general_constant_is_not_the_gaussian_one():
    general, gaussian = concentration.general_constant(6, 1.0, 1024, 1500, seed=0)
    assert 0.9 < general.pooled().value < 1.1
    assert gaussian.pooled().value < 0.8


def test_weighted_queries_meet_the_exact_average():
    table, ratio, wrong = concentration.query_averages({0.2: 1.0, 1.0: 3.0}, 2, [16, 64], 2_000_000, seed=0)
    assert 0.93 < ratio.pooled().value < 1.07
    assert np.abs(np.log(wrong.mean)).min() > 0.3
    assert list(table["coupling"].unique()) == ["λ = 0.2", "λ = 1"]


def test_the_atlas_approaches_the_exponent():
    table = concentration.rate_atlas([0.2, 1.0, 4.0], [1e2, 1e38])
    gap = (table["slope"] - table["exponent"]).abs()
    assert gap[table["length"] == 1e38].max() < 0.01
    assert gap[table["length"] == 1e2].max() > 0.1
    assert table["numerical_error"].max() < 1e-4


def test_the_bound_needs_a_rate_below_the_exponent():
    table = concentration.bound_shape(1.0, [1.0, 2.0], [0.5, 1.0], [2, 1e4, 1e20, 1e38])
    needed = table.groupby("c2")["c1"].agg(["first", "last"])
    assert needed.loc[0.5, "last"] == needed.loc[0.5, "first"]
    assert needed.loc[1.0, "last"] > 1e6 * needed.loc[1.0, "first"]
    rates = concentration.admissible_rate(1.0, [1.0, 2.0, 3.0], 1e38)
    assert rates["allowed"].idxmin() == 0
    assert rates["limit"].is_monotonic_increasing
    assert rates["limit"][0] == pytest.approx(rate_exponent(1.0))


def test_the_sharp_constants_bound_every_length():
    grid = concentration.explicit_bound(list(np.linspace(0.05, 8, 12)), [1, 2, 10, 1e3, 1e6, 1e15])
    assert grid[["y_ratio", "v_ratio"]].max().max() <= 1 + 1e-10
    assert grid["inverse_participation"].between(0, 1).all()


def test_both_thresholds():
    frozen = concentration.freezing([4.0, 16.0], [0.05, 0.1, 0.2])
    gap = (frozen["inverse_participation"] - frozen["frozen"]).abs().groupby(frozen["s"]).max()
    assert gap[16.0] < 0.03 < gap[4.0]
    onset = concentration.onset_of_the_law([1.0, 2.0, 4.0, 5.0])
    assert onset["growth"].iloc[-1] == pytest.approx(1.5, abs=0.01)
    assert {"inverse participation y", "L y / exp(s²)"} == set(concentration.two_thresholds(frozen)["what"])
