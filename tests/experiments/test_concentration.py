"""The experiments of notebook 02 at tiny size: what they must and must not find."""

import numpy as np
import pytest
from statistics_checks import worst

from lib.experiments.concentration import on_prompts, over_queries, thresholds
from lib.finite_prompt import rate_exponent
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


def test_slopes_are_those_of_the_exact_curves_and_the_control_is_a_tenth_off(errors):
    found = on_prompts.slopes(errors=errors, window=(8, 512))
    assert len(found.measured.mean) == 3
    assert np.abs(found.measured.mean).max() < 0.1
    np.testing.assert_allclose(found.control.mean, found.measured.mean - 0.1)
    nothing = on_prompts.slopes(errors=errors, window=(8, 9))
    assert len(nothing.measured.mean) == 0


def test_sharp_constants():
    found = on_prompts.sharp_constants(settings=SETTINGS, deviations=[0.5, 1.5], length=1e15, seed=0)
    np.testing.assert_allclose(found.table["ratio"], 1, atol=1e-8)
    assert found.control.value == found.table["control"].min() > 1.2


def test_the_general_constant_is_not_the_gaussian_one():
    found = on_prompts.general_constant(dim=6, s=1.0, length=1024, n_prompts=1500, seed=0)
    assert 0.9 < found.measured.value < 1.1
    assert found.control.value < 0.8


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
    found = over_queries.admissible_rate(norm=1.0, sigmas=[1.0, 2.0, 3.0], length=1e38)
    assert found.table["allowed"].idxmin() == 0
    assert found.table["limit"].is_monotonic_increasing
    assert found.table["limit"][0] == pytest.approx(rate_exponent(1.0))
    assert abs(found.measured.value) < 0.03 < 0.3 < abs(found.control.value)


def test_the_sharp_constants_bound_every_length():
    found = thresholds.explicit_bound(deviations=list(np.linspace(0.05, 8, 12)), lengths=[1, 2, 10, 1e3, 1e6, 1e15])
    largest = found.table[["eta_ratio", "zeta_ratio"]].max().max()
    assert found.measured.value == largest <= 1 + 1e-10
    assert found.control.value == pytest.approx(largest / 0.9)
    assert found.table["inverse_participation"].between(0, 1).all()


def test_both_thresholds():
    frozen = thresholds.freezing(deviations=[4.0, 16.0], exponents=[0.05, 0.1, 0.2])
    gap = (frozen.table["inverse_participation"] - frozen.table["frozen"]).abs().groupby(frozen.table["s"]).max()
    assert gap[16.0] == abs(worst(frozen.measured, 0)) < 0.03 < gap[4.0]
    assert worst(frozen.control, 0) > 0.3
    onset = thresholds.onset_of_the_law(deviations=[1.0, 2.0, 4.0, 5.0])
    assert onset.measured.value == pytest.approx(1.5, abs=0.01)
    assert onset.control.value > 1.7
    assert {"inverse participation η", "L η / exp(s²)"} == set(thresholds.two_thresholds(frozen.table)["what"])
