"""The experiments of notebook 02 at tiny size: what they must and must not find."""

import numpy as np
import pytest
from statistics_checks import worst

from lib.experiments.concentration import on_prompts, over_queries, thresholds
from lib.prompts.errors import QUANTITIES

SETTINGS = [("isotropic", 4), ("rank(2)", 3)]


@pytest.fixture(scope="module")
def errors():
    return on_prompts.errors_from_prompts(
        settings=SETTINGS, s=1.0, lengths=[8, 64, 512], number_budget=3_000_000, coordinates=8_000, seed=0
    )


def test_measured_errors_lie_on_the_exact_curves(errors):
    assert tuple(errors.parts) == QUANTITIES
    for quantity in QUANTITIES:
        pooled = errors[quantity].pooled()
        assert 0.9 < pooled.measured.value < 1.1
        assert pooled.control.value == pytest.approx(np.e * pooled.measured.value)
        assert set(errors[quantity].parts) == {"isotropic, d = 4", "rank(2), d = 3"}
    assert len(errors.table) == 3 * 2 * 3
    assert on_prompts.titled(errors.table, (8, 512))["title"].str.contains("slope -").all()
    assert list(on_prompts.titled(errors.table, (8, 9))["title"]) == list(errors.table["quantity"])


def test_slopes_are_those_of_the_exact_curves(errors):
    """The control is the slope of an error that is not squared, the near miss that of the 1/L law."""
    found = on_prompts.slopes(errors=errors, window=(8, 512))
    assert len(found.measured.mean) == 3
    assert np.abs(found.measured.mean).max() < 0.1
    measured, exact = found.table["measured"].to_numpy(), found.table["exact"].to_numpy()
    np.testing.assert_allclose(found.measured.mean, measured - exact, atol=1e-12)
    np.testing.assert_allclose(found.control.mean, measured + 0.5)
    np.testing.assert_allclose(found.near_miss.mean, measured + 1)
    nothing = on_prompts.slopes(errors=errors, window=(8, 9))
    assert len(nothing.measured.mean) == 0


def test_sharp_constants():
    found = on_prompts.sharp_constants(settings=SETTINGS, deviations=[0.5, 1.5], length=1e15, seed=0)
    np.testing.assert_allclose(found.table["ratio"], 1, atol=1e-8)
    assert found.control.value == found.table["untilted"].min() > 1.2
    assert found.near_miss.value == found.table["round"].min() > 1.001


def test_the_general_constant_is_not_the_gaussian_one():
    found = on_prompts.general_constant(dim=4, s=1.0, length=1024, heads=2, number_budget=4_000_000, seed=0)
    assert np.abs(found.measured.mean - 1).max() < 0.15
    assert len(found.measured.mean) == 4 and found.control.mean.min() < 0.8
    assert found.near_miss.mean.max() > 1.1


def test_weighted_queries_meet_the_exact_average():
    found = over_queries.query_averages(
        inflations={0.2: 1.0, 1.0: 3.0}, dim=2, lengths=[16, 64], number_budget=2_000_000, seed=0
    )
    assert 0.93 < found.pooled().measured.value < 1.07
    assert np.abs(np.log(found.control.mean)).min() > 0.3
    assert list(found.parts) == list(found.table["coupling"].unique()) == ["λ = 0.2", "λ = 1"]


def test_the_atlas_approaches_the_exponent():
    found = over_queries.rate_atlas(couplings=[0.2, 0.5, 1.0, 4.0], lengths=[1e2, 1e38])
    gap = (found.table["slope"] - found.table["exponent"]).abs()
    away = found.table["coupling"] != 0.5
    assert gap[away & (found.table["length"] == 1e38)].max() == abs(worst(found.measured, 0)) < 0.01
    assert gap[found.table["length"] == 1e2].max() > 0.1
    assert abs(worst(found.control, 0)) > 0.04
    assert found.table["numerical_error"].max() < 1e-4


def test_the_bound_needs_a_rate_below_the_exponent():
    shape = over_queries.bound_shape(norm=1.0, sigmas=[1.0, 2.0], rates=[0.5, 1.0], lengths=[2, 1e4, 1e20, 1e38])
    needed = shape.table.groupby("c2")["c1"].agg(["first", "last"])
    assert needed.loc[0.5, "last"] == needed.loc[0.5, "first"]
    assert needed.loc[1.0, "last"] > 1e6 * needed.loc[1.0, "first"]


def test_the_bound_holds_at_every_length_and_is_reached():
    found = thresholds.explicit_bound(deviations=list(np.linspace(0.05, 6, 12)), lengths=[2, 10, 1e3, 1e6, 1e40])
    assert np.all(np.abs(found.measured.values) < 1e-8)
    assert found.table[["eta_ratio", "zeta_ratio"]].max().max() <= 1 + 1e-9
    assert found.table["inverse_participation"].between(0, 1).all()
    assert found.control.values.min() < -1e3, "equal weights: the bound is broken"
    assert found.near_miss.values.min() < -1e-5, "L for L - 1 is broken, too"


def test_the_identity_behind_the_bound():
    assert thresholds.identity_gap(deviations=[0.3, 1.0, 2.5], lengths=[2, 7, 100, 1e6]) < 1e-9


def test_both_thresholds():
    frozen = thresholds.freezing(deviations=[4.0, 16.0], exponents=[0.05, 0.1, 0.2])
    gap = (frozen.table["inverse_participation"] - frozen.table["frozen"]).abs().groupby(frozen.table["s"]).max()
    assert gap[16.0] < 0.03 < gap[4.0]
    assert abs(worst(frozen.measured, 0)) < 1e-3 < abs(worst(frozen.near_miss, 0)) and worst(frozen.control, 0) > 0.3
    onset = thresholds.onset_of_the_law(deviations=[1.0, 4.0, 5.0], judged_from=4.0)
    assert len(onset.measured.values) == 2
    assert abs(worst(onset.measured, 0)) < 3e-3 < abs(worst(onset.near_miss, 0))
    assert worst(onset.control, 0) > 1
    assert {"inverse participation η", "L η / exp(s²)"} == set(thresholds.two_thresholds(frozen.table)["what"])
