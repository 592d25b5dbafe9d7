"""The experiments of notebook 04 at tiny size: what they must and must not find."""

import numpy as np
import pytest

from lib.experiments import anisotropic_regression as experiments


@pytest.fixture(scope="module")
def tasks():
    return experiments.tasks(["toeplitz(0.5)", "power_law(1)"], 4, 0.3, seed=0)


@pytest.fixture(scope="module")
def first(tasks):
    return tasks["toeplitz(0.5)"]


def test_the_flow_reaches_the_optimum_from_any_balanced_start(tasks, first):
    table = experiments.infinite_flows(tasks, [0.2, 2.0], seed=0)
    assert table["distance"].max() < 1e-8
    assert table["imbalance"].max() < 1e-9
    assert experiments.unbalanced_end(first, 0.3) > 1e-3


def test_large_eigenvalues_are_learned_first(tasks):
    order = experiments.order_of_learning(experiments.modes(tasks["power_law(1)"], 0.1))
    assert len(order) == 4
    assert order["size"].is_monotonic_decreasing and order["time"].is_monotonic_increasing


def test_risks_are_ordered_as_they_must_be(first):
    risks = experiments.risk_curves(first, [20, 200], 200, seed=0).pivot(index="length", columns="predictor")["risk"]
    assert (risks["softmax, best"] <= risks["softmax at U*"]).all()
    assert (risks["linear, best"] <= risks["linear at U*"]).all()
    assert (risks["ridge (Bayes)"] < risks.drop(columns="ridge (Bayes)").min(axis=1)).all()


def test_exact_risk_against_raw_prompts(first):
    ratio, linear = experiments.risks_against_prompts(first, first.optimum(), [10, 50], 3_000_000, seed=0)
    assert 0.93 < ratio.pooled().value < 1.07
    assert linear.pooled().value > 1.3


def test_the_critical_dimension():
    table = experiments.critical_dimension([1, 3, 6], [1e30], 0.3)
    assert np.abs(table["slope"] - table["exponent"]).max() < 0.03
    assert table["exponent"].is_monotonic_increasing and table["exponent"].iloc[-1] == 1


def test_the_public_experiment_and_its_covariance_applied_twice():
    once, twice = experiments.public_experiment(5, 0.5, 0.1**0.5, 1.0).values()
    star = once.optimum()
    assert np.linalg.cond(once.covariance) == pytest.approx(6.279, abs=1e-3)
    assert np.linalg.cond(twice.covariance) == pytest.approx(38.385, abs=1e-3)
    assert 2 * twice.infinite_risk(*star) == pytest.approx(2.522, abs=1e-3)
    assert once.coupling(star.A) == pytest.approx(0.2545, abs=1e-4)
    assert twice.coupling(twice.optimum().A) == pytest.approx(0.8278, abs=1e-4)


def test_trained_heads_are_the_best_ones(first):
    _, flows = experiments.trained_risks(first, [20], 0.3)
    best, star = experiments.against_best(first, flows)
    closed, without = experiments.against_closed_form(first, flows)
    assert best[0] == pytest.approx(1, abs=1e-8) and star[0] > 1.1
    np.testing.assert_allclose(closed, 1, atol=1e-6)
    assert without.max() < 0.99


def test_finite_prompts_shrink_small_directions_most(first):
    table = experiments.spectra(first, [50], 300, seed=0)
    for _, rows in table.groupby("predictor"):
        assert rows["learned"].between(0, 1).all() and rows["learned"].is_monotonic_increasing
    ridge = table.loc[table["predictor"] == "ridge", "penalty"]
    assert np.allclose(ridge, 0.3**2, rtol=0.3)  # L s (1 - e) / e is the noise variance, to leading order in 1 / L


def test_a_head_knows_one_covariance(tasks):
    table = experiments.covariate_shift(tasks, 200).pivot(index="trained on", columns="used on", values="relative")
    diagonal = np.diag(table)
    assert (diagonal < 0.2).all()
    assert (table.to_numpy() >= diagonal).all()
    names = list(tasks)
    ratio, own = experiments.shift_against_prompts(tasks[names[0]], tasks[names[1]], 100, 4000, seed=0)
    assert ratio[1] < 1.1 and ratio[2] > 0.9 and own[1] > 1.5
