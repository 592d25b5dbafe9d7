"""Notebook 08's experiments at small budgets: exact parts against what is known, prompts within their intervals."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from lib.experiments.beyond_assumptions import dependence, depth, dimensions, other_laws, pairs, scores
from lib.experiments.settings import regression
from lib.finite_prompt import mean_output_error, measure_error, output_error
from lib.notebook.comparison import Comparison
from lib.prompts.streams import stream
from lib.tokens.families import Rademacher

LENGTHS = [8, 64]


def holds(comparison, width: float) -> bool:
    """Whether all that was measured lies about 1, and neither the near miss nor the control does."""
    values = comparison.measured.intervals().values
    wrong = [side.intervals().values for side in (comparison.near_miss, comparison.control)]
    return np.abs(values - 1).max() < width and all(np.abs(side - 1).max() > width for side in wrong)


def test_prompts_follow_the_exact_curves():
    """Each within five standard errors and more: false-alarm rate below 1e-5."""
    budget = {"lengths": LENGTHS, "number_budget": 400_000, "seed": 1}
    assert holds(other_laws.own_limits(s=0.8, **budget), 0.2)
    assert holds(dependence.ar1(correlations=[-0.5, 0.8], s=1.0, **budget), 0.25)
    assert holds(dependence.markov(s=1.0, **budget), 0.2)
    assert holds(dependence.exchangeable(share=0.4, s=1.0, **budget), 0.1)
    assert holds(scores.shifted(size=2.0, s=1.0, **budget), 0.2)


def test_laplace_tokens_are_shown_and_not_judged():
    found = other_laws.own_limits(s=0.8, lengths=LENGTHS, number_budget=10_000, seed=0)
    assert set(found.table["tokens"]) == {"Rademacher", "uniform", "sphere", "mixture", "Laplace"}
    assert len(found.measured.mean) == 8


def test_the_causes_add_up_and_only_the_nonlinearity_stays():
    table = other_laws.causes(s=0.8, lengths=[10.0, 1e6], seed=0).table.pivot_table(
        index=["tokens", "length"], columns="cause", values="share"
    )
    first, last = (table.xs(length, level="length") for length in (10.0, 1e6))
    assert np.allclose(first["nonlinearity"], last["nonlinearity"])
    assert (last["fluctuation"] < 1e-3 * first["fluctuation"]).all() and (last["bias"] < 1e-6 * first["bias"]).all()


def test_at_the_crossing_both_errors_are_alike():
    assert holds(other_laws.crossing(sizes=[0.1, 0.8]), 0.05)
    a, tokens = np.array([0.5, 0.6]), Rademacher(2)
    length = other_laws._crossing(tokens, a)
    around = measure_error(tokens, a, np.eye(2), np.eye(2), [np.floor(length), np.ceil(length)]).squared_error
    assert around[0] > ((tokens.tilted_mean(a) - a) ** 2).sum() > around[1]


def test_elliptical_tokens_have_the_direction_and_not_the_length():
    found = other_laws.elliptical(dim=5, sizes=[1.0, 2.0], length=512, number_budget=2_000_000, seed=0)
    assert holds(found, 0.03)
    sphere = found["sphere"].table["limit"]
    assert sphere.to_list() == pytest.approx([0.88, 0.69], abs=0.01)
    large = other_laws.elliptical(dim=384, sizes=[1.0], length=2, number_budget=10_000, seed=0)
    assert large["sphere"].table["limit"].item() == pytest.approx(0.997, abs=0.003)


def test_without_a_limit_the_output_follows_the_largest_token():
    """The slope within 0.1 of 1/3, about five standard errors."""
    found = other_laws.no_limit(df=3.0, s=2.0, lengths=[300, 3000, 30000], prompts=60, seed=2)
    assert abs(found.measured.value) < 0.1 and found.control.value > 0.2
    assert found.table["participation"].is_monotonic_increasing
    assert (found.table["output"] <= found.table["largest"]).all()


def test_negative_correlation_lengthens_quiet_prompts_only():
    found = dependence.effective_length(correlations=[-0.9, 0.0], deviations=[0.01, 2.0], seed=0)
    table = found.table.pivot(index="correlation", columns="s", values="ratio")
    assert table.loc[-0.5, "s = 0.01"] == pytest.approx(3.0, rel=0.01)
    assert table.loc[-0.9, "s = 2"] < 1
    assert np.allclose(table.loc[0.0], 1.0)
    assert np.abs(found.measured.values - 1).max() < 1e-3


def test_a_long_memory_falls_by_its_power():
    """Within 0.3 of the double sum: four standard errors and the next order."""
    found = dependence.long_memory(power=0.5, s=0.5, lengths=[256, 1024], number_budget=2_000_000, seed=0)
    assert abs(found.measured.mean[0] - 1) < 0.3
    assert found.table["exact"].iloc[0] / found.table["exact"].iloc[1] == pytest.approx(2, rel=0.1)
    assert Comparison.together({"one": found, "other": found}).table.shape[0] == 4


def test_dimension():
    assert holds(dimensions.fixed_score(dims=[1, 16, 1024], s=1.0, tolerance=0.05), 0.03)
    assert holds(dimensions.fixed_coupling(dims=[1, 16], coupling=0.1), 0.001)
    assert holds(dimensions.temperature(dims=[4, 64], s=1.0), 0.002)
    table = dimensions.scalings(dims=[16], s=1.0, coupling=0.02, length=1e5).table.set_index("scaling")["error"]
    exact = float(output_error(np.eye(16), np.eye(16)[0], np.eye(16), np.eye(16), 1e5))
    assert table["fixed s"] == pytest.approx(exact)
    assert table["temperature √d"] == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(
    ("dim", "u", "length"), [(1, 0.3, 30), (2, 0.6, 1e3), (5, 0.45, 1e15), (64, 0.1, 1e5), (1, 1.0, 1e5)]
)
def test_isotropic_averages_over_queries_are_those_of_any_matrices(dim, u, length):
    unit = np.eye(dim)
    exact = mean_output_error(unit, unit, u * unit, unit, length, rtol=1e-9)
    assert dimensions.over_queries(dim, u, length) == pytest.approx(float(exact.value), rel=1e-8)


def test_heads_in_pairs():
    """The pair's risks from 4000 prompts a scale, within a simultaneous band: false-alarm rate 5 %, seeded."""
    law = pairs.law(deviations=[0.3, 1.2], lengths=[10, 1000], seed=0)
    assert holds(law, 1e-6) and ((law.table["ratio"] > 0) & (law.table["ratio"] < 1)).all()
    found = pairs.risks(scales=[0.05, 0.4], length=20, number_budget=500_000, seed=0)
    low, high = found.measured.simultaneous()
    assert (low < 1).all() and (high > 1).all() and (found.near_miss.simultaneous()[1] < 0.9).any()
    assert found.near_miss.mean[1] > 1.02 * found.control.mean[1]  # two heads that err apart are better than one
    risk = found.table.set_index(["heads", "scale"])["exact"]
    problem = regression("isotropic", pairs.DIM, pairs.NOISE)
    for u in (0.05, 0.4):  # the best gain of one head, found by search, gives the risk of the closed form
        best = minimize_scalar(lambda b, u=u: problem.softmax_risk(u * np.eye(pairs.DIM), b, 20).value)
        assert risk["one head", u] == pytest.approx(best.fun, rel=1e-6)
    assert risk["sign pair", 0.05] == pytest.approx(found.table["quiet"].iloc[0], rel=1e-3)


def test_a_stack_of_limits_is_reached_as_the_prompt_grows():
    """The mean slope of forty stacks within 0.5 of -1: five standard errors."""
    found = depth.stacks(dim=4, strength=0.1, heads=2, depth=3, length=32, replicates=40, seed=0)
    assert abs(found.measured.value) < 0.5
    assert (found.table["distance"] > 0).all() and found.table["layer"].max() == 3
    for k in range(3):  # the map of every layer, not of the first alone, is reached: within ten times 4 d / L
        assert depth._distances(4, 0.1, 2, 3, 2000, stream(0, "long", k))[-1] < 3e-3


def test_normalized_layers():
    found = depth.normalized(dim=8, s=1.5, depth=2, length=256, prompts=4000, seed=0)
    assert holds(found, 0.2)
    assert len(depth.three_errors(found.table)) == 6
    x = depth._on_sphere(stream(0, "x").standard_normal((5, 8)))
    assert np.allclose((x**2).sum(-1), 8)


def test_growing_scores_freeze_at_the_root_of_two():
    found = scores.growing(rates=[0.3, 0.85, 1.0, 1.6], longest=1e40)
    exponents = [-0.91, -((2**0.5 - 0.85) ** 2), -((2**0.5 - 1) ** 2), 0.0]
    assert found.table["exponent"].to_list() == pytest.approx(exponents)
    assert np.abs(found.measured.values).max() < 0.06 < np.abs(found.near_miss.values).max()
