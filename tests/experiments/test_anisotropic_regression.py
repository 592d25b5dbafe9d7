"""The experiments of notebook 04 at tiny size: what they must and must not find."""

import numpy as np
import pytest
from statistics_checks import worst

from lib.experiments.anisotropic_regression import finite_prompts, infinite_flow, setting, training
from lib.regression.best_heads import best_linear
from lib.regression.task import InContextRegression


@pytest.fixture(scope="module")
def tasks():
    return setting.tasks(covariances=["toeplitz(0.5)", "power_law(1)"], dim=4, noise_std=0.3, seed=0)


@pytest.fixture(scope="module")
def first(tasks):
    return tasks["toeplitz(0.5)"]


def test_the_inverse_covariance_leaves_no_risk(tasks):
    found = infinite_flow.optima(problems=tasks)
    assert list(found.table["covariance"]) == [*tasks] == ["toeplitz(0.5)", "power_law(1)", "random"]
    assert found.table["condition number"].iloc[1] == pytest.approx(4)
    assert found.table["risk"].max() < 1e-25


def test_the_flow_reaches_the_optimum_from_any_balanced_start(tasks):
    found = infinite_flow.flows(
        problems=tasks,
        fractions=[0.2, 2.0],
        unbalanced_fraction=0.5,
        finite_alpha=0.3,
        finite_lengths=(10**6, 100),
        finite_time=10.0,
        seed=0,
    )
    assert len(found.table) == len(tasks) * 2 * 2
    inside = found.table["alpha / largest"] < 1
    for part, rows in (("limit", inside), ("beyond", ~inside)):
        distances = found.table[rows]["distance"]
        assert worst(found[part].measured, 0) == distances.max() < 1e-8
        assert found[part].control.value > 1e-3 and found[part].near_miss.values.min() > 1e-3
        assert (distances <= found.table[rows]["error"]).all(), "the stated error holds"
    conserved = found["conserved"]
    assert worst(conserved.measured, 0) == found.table["imbalance"].max() < 1e-9
    assert conserved.control.value > 0.1 > conserved.near_miss.value > 1e-6


def test_the_learned_fraction_is_one_where_the_head_inverts_the_covariance(first):
    A, b = first.optimum()
    assert np.allclose(infinite_flow.learned(first, A, b), 1)
    along_a_flow = infinite_flow.learned(first, np.stack([A, A / 2]), np.array([b, b]))
    assert np.allclose(along_a_flow, [[1] * 4, [0.5] * 4])


def test_the_best_linear_head_shrinks_as_in_closed_form(first):
    gamma, length = np.linalg.eigvalsh(first.covariance), 20
    closed = gamma / ((1 + 1 / length) * gamma + (np.trace(first.covariance) + 0.3**2) / length)
    assert np.allclose(infinite_flow.learned(first, *best_linear(first, length)), closed, rtol=1e-12)


def test_large_eigenvalues_are_learned_first(tasks):
    found = infinite_flow.modes(problem=tasks["power_law(1)"], alpha=0.1, points=80)
    order = found["order"].table
    assert len(order) == 4 and len(found.table) == 4 * 80
    assert order["eigenvalue"].is_monotonic_decreasing and order["time"].is_monotonic_increasing
    last = found.table.groupby("time")["learned"].min()
    assert last.iloc[0] < 0.01 and last.iloc[-1] > 0.99


def test_the_last_direction_keeps_the_rate_of_the_linearized_flow(tasks):
    isotropic = InContextRegression(np.eye(3), 0.3)
    assert infinite_flow.last_rate(isotropic) == pytest.approx(2 * 3**0.5)  # all modes as one: b*^2 + d / b*^2
    found = infinite_flow.last_direction(problems={"power_law(1)": tasks["power_law(1)"]}, alpha=0.1, points=200)
    assert worst(found.measured) == pytest.approx(1, abs=0.002)
    assert abs(worst(found.near_miss) - 1) > 0.02 and abs(worst(found.control) - 1) > 0.1


def test_the_price_of_softmax_on_long_prompts():
    """Over queries of a fixed score deviation s the constant would be e^(s^2) (t / s^2 + ...): its limit is e."""
    assert finite_prompts.price_of_softmax(1.0, 10**6) == pytest.approx(np.e, rel=1e-4)
    t, d, coupling = 1.3, 3, 0.1
    by_hand = 0.8**-1.5 * (13 + 1.25) / (3 * 1.3 + 1)
    assert finite_prompts.price_constant(t, d, coupling) == pytest.approx(by_hand)
    for better in (finite_prompts.price_constant(t, d, x) for x in np.linspace(0.01, 0.49, 200)):
        assert finite_prompts.price_of_softmax(t, d) <= better
    found = finite_prompts.softmax_over_linear(problems={"one": InContextRegression(np.eye(3), 0.3)}, length=1e7)
    assert worst(found.measured) == pytest.approx(1, abs=1e-4)
    assert worst(found.control) > 2 and abs(worst(found.near_miss) - 1) > 1e-3


def test_risks_are_ordered_as_they_must_be(first):
    table = finite_prompts.risk_curves(problem=first, lengths=[20, 200], draws=200, seed=0).table
    risks = table.pivot(index="length", columns="predictor", values="risk")
    assert (risks["softmax, best"] <= risks["softmax at (A*, b*)"]).all()
    assert (risks["linear, best"] <= risks["linear at (A*, b*)"]).all()
    assert (risks["ridge (Bayes)"] < risks.drop(columns="ridge (Bayes)").min(axis=1)).all()


def test_exact_risk_against_raw_prompts(first):
    found = finite_prompts.risk_on_prompts(
        problem=first, head=first.optimum(), lengths=[10, 50], number_budget=3_000_000, seed=0
    )
    assert list(found.table["prompts"]) == [60_000, 12_000]
    assert np.allclose(found.table["measured"] / found.table["exact"], found.measured.mean)
    assert 0.93 < found.pooled().measured.value < 1.07
    assert found.pooled().control.value > 1.3


def test_the_critical_dimension():
    found = finite_prompts.critical_dimension(dims=[1, 3, 4, 6], lengths=[1e2, 1e30], noise_std=0.3)
    far = found.table[found.table["length"] == 1e30]
    assert far["exponent"].is_monotonic_increasing and far["exponent"].iloc[-1] == 1
    gap = (far["slope"] - far["derived"]).to_numpy()
    assert abs(worst(found.measured, 0)) == np.abs(gap).max() < 0.01
    assert abs(worst(found.near_miss, 0)) > 0.02 and worst(found.control, 0) < -0.3
    assert [finite_prompts.log_power(d) for d in (1, 3, 4, 6)] == [0.5, 1.5, 3, 0]


def test_the_public_experiment_and_its_covariance_applied_twice():
    once, twice = setting.public_tasks(dim=5, correlation=0.5, noise_std=0.1**0.5, task_variance=1.0).values()
    star = once.optimum()
    assert np.linalg.cond(once.covariance) == pytest.approx(6.279, abs=1e-3)
    assert np.linalg.cond(twice.covariance) == pytest.approx(38.385, abs=1e-3)
    assert 2 * twice.infinite_risk(*star) == pytest.approx(2.522, abs=1e-3)
    assert once.coupling(star.A) == pytest.approx(0.2545, abs=1e-4)
    assert twice.coupling(twice.optimum().A) == pytest.approx(0.8278, abs=1e-4)


def test_trained_heads_are_the_best_ones(first):
    found = training.end_of_training(problems={"first": first}, lengths=[20], alpha=0.3)
    assert list(found.table["attention"]) == ["softmax", "linear"]
    assert worst(found["softmax"].measured, 0) < 1e-6 < 1e-3 < worst(found["softmax"].near_miss, 0)
    assert worst(found["softmax"].near_miss, 0) < worst(found["softmax"].control, 0)
    assert (found["softmax"].table["distance"] <= found["softmax"].table["error"]).all(), "the stated error holds"
    assert worst(found["linear"].measured) == pytest.approx(1, abs=1e-6) and worst(found["linear"].control) < 0.99


def test_only_the_first_data_of_the_training_are_judged(tasks, first):
    both = {name: tasks[name] for name in ("toeplitz(0.5)", "power_law(1)")}
    found = training.end_of_training(problems=both, lengths=[20], alpha=0.3)
    alone = training.end_of_training(problems={"toeplitz(0.5)": first}, lengths=[20], alpha=0.3)
    assert list(found.table["data"]) == ["toeplitz(0.5)"] * 2 + ["power_law(1)"] * 2
    assert list(found["softmax"].measured.values) == list(alone["softmax"].measured.values)
    assert list(found["linear"].control.values) == list(alone["linear"].control.values)


def test_finite_prompts_shrink_small_directions_most(first):
    table = finite_prompts.spectra(problem=first, lengths=[50], draws=300, seed=0).table
    for _, rows in table.groupby("predictor"):
        assert rows["learned"].between(0, 1).all() and rows["learned"].is_monotonic_increasing
    ridge = table.loc[table["predictor"] == "ridge", "penalty"]
    assert np.allclose(ridge, 0.3**2, rtol=0.3)  # L gamma (1 / learned - 1) is the noise variance, to order 1 / L


def test_a_head_knows_one_covariance(tasks):
    found = finite_prompts.covariate_shift(problems=tasks, length=200, n_prompts=4000, seed=0)
    table = found.table.pivot(index="trained on", columns="used on", values="relative")
    diagonal = np.diag(table)
    assert (diagonal < 0.2).all()
    assert (table.to_numpy() >= diagonal).all()
    assert found.measured.low < 1.1 and found.measured.high > 0.9 and found.control.low > 1.5


def test_the_random_covariance_is_that_of_its_seed():
    one, same, other = (
        setting.tasks(covariances=[], dim=3, noise_std=0.3, seed=seed)["random"].covariance for seed in (1, 1, 2)
    )
    assert (one == same).all() and abs(one - other).max() > 0.05


def test_below_a_head_from_the_driver_start_lies_the_best_one():
    problem = InContextRegression(np.diag([1.0, 2.0]), 0.3, 0.5)
    training_of = {"length": 8, "step_size": 0.1, "n_steps": 300, "starts": 3, "batch": 16, "seed": 0}
    found = training.from_driver_start(problem=problem, **training_of)
    assert (found.table.groupby("run")["reads"].last() == "y").any()
    assert found.measured.estimate((0.995, 1.005)).low > 0.995 and found.measured.estimate((0.995, 1.005)).high < 1.005
    star = problem.risk_and_gradient("softmax", *problem.optimum(), 8)[0]
    assert found.control.values == pytest.approx(found.measured.values * found.table["best"].iloc[0] / star, rel=5e-3)
    assert found.control.high.max() < 0.95 and found.near_miss.high.max() < 0.995
