"""Optimization transfer: curvatures of the limit, the preconditioner, control variates, training lengths."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.experiments.optimization_transfer import on_prompts as stochastic_optimization
from lib.experiments.optimization_transfer import steps as experiments
from lib.experiments.optimization_transfer import variance
from lib.regression import control_variate, step_rules
from lib.regression.best_heads import best_softmax
from lib.regression.control_variate import KINDS, mean_gradient, prompt_gradients
from lib.regression.head import BlockHead, Prompts
from lib.regression.hessian import infinite_hessian, softmax_hessian, stable_step
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

ISOTROPIC = InContextRegression(np.eye(5), np.sqrt(0.1))
PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
GENERAL = BlockHead(np.array([[0.3, 0.1, 0.0], [-0.1, 0.4, 0.2], [0.1, 0.0, 0.2]]), 1.2)


def test_flat_and_unflat_are_inverse():
    head = BlockHead.from_flat(GENERAL.flat())
    np.testing.assert_array_equal(head.A, GENERAL.A)
    assert head.b == GENERAL.b


@pytest.mark.parametrize("problem", [ISOTROPIC, PROBLEM], ids=["isotropic", "toeplitz, d = 3"])
def test_the_long_prompt_head_is_the_limit_of_the_best_heads(problem):
    limit, best = step_rules.long_prompt(problem), best_softmax(problem, 1e7)
    np.testing.assert_allclose(limit.head.flat(), best.flat(), rtol=1e-3, atol=1e-5)
    risk = problem.risk_and_gradient("softmax", *best, 1e7)[0]
    assert 1e7 * risk == pytest.approx(limit.constant, rel=1e-3)
    assert problem.infinite_risk(*limit.head) == pytest.approx(0, abs=1e-20)


def test_the_long_prompt_head_has_its_reference_values_whatever_the_covariance():
    for name in ("isotropic", "toeplitz(0.5)", "condition(10)"):
        limit = step_rules.long_prompt(InContextRegression(covariance_matrix(name, 5), np.sqrt(0.1)))
        assert limit.constant == pytest.approx(48.71, abs=5e-3)
        assert limit.head.b == pytest.approx(2.84977, abs=1e-4)


def test_the_curvature_is_that_of_the_softmax_risk_along_the_valley():
    limit, L = step_rules.long_prompt(PROBLEM), 1e6
    along = [PROBLEM.softmax_risk(limit.head.A / k, k * limit.head.b, L).value for k in np.exp([-0.02, 0, 0.02])]
    assert L * (along[0] - 2 * along[1] + along[2]) / 4e-4 == pytest.approx(limit.curvature, rel=0.02)


def test_the_softmax_hessian_tends_to_that_of_the_limit_and_is_symmetric():
    head = PROBLEM.optimum()
    limit = infinite_hessian(PROBLEM, BlockHead(head.A / 2, 2 * head.b))
    gaps = [np.abs(softmax_hessian(PROBLEM, BlockHead(head.A / 2, 2 * head.b), L) - limit).max() for L in (1e3, 1e4)]
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.15)


def test_the_balanced_head_is_the_flattest_of_the_isotropic_valley():
    """The largest curvature at (I / b, b) is b^2 + d / b^2."""
    for b in (1.0, 5**0.25, 3.0):
        step = stable_step(infinite_hessian(ISOTROPIC, BlockHead(np.eye(5) / b, b)))
        assert step == pytest.approx(2 / (b**2 + 5 / b**2))
    assert stable_step(infinite_hessian(ISOTROPIC, ISOTROPIC.optimum())) == pytest.approx(1 / np.sqrt(5))


def test_rules_take_their_textbook_steps():
    gradient = np.array([1.0, -2.0])
    heavy = step_rules.momentum(0.1, 0.5)
    np.testing.assert_allclose(heavy(gradient, gradient), -0.1 * gradient)
    np.testing.assert_allclose(heavy(gradient, gradient), -0.15 * gradient)
    np.testing.assert_allclose(step_rules.adam(0.3)(gradient, gradient), [-0.3, 0.3], rtol=1e-6)
    np.testing.assert_allclose(step_rules.constant_step(0.2)(gradient, gradient), [-0.2, 0.4])


def test_the_preconditioner_steps_into_the_valley_and_a_run_that_diverges_is_given_up():
    start, L = PROBLEM.balanced_init(0.3), 500
    target = 1.05 * PROBLEM.risk_and_gradient("softmax", *best_softmax(PROBLEM, L), L)[0]
    run = (start, target, 60)
    assert experiments.steps_to(PROBLEM, L, step_rules.preconditioned(PROBLEM, L), *run) < 15
    wrong = InContextRegression(0.2 * np.eye(3), 0.4, 1.5)
    assert experiments.steps_to(PROBLEM, L, step_rules.preconditioned(wrong, L), *run) == 60
    assert experiments.steps_to(PROBLEM, L, step_rules.constant_step(50.0), *run) == 60
    assert experiments.steps_to(PROBLEM, L, step_rules.constant_step(0.1), start, np.inf, 60) == 0


def test_a_preconditioned_step_is_no_longer_than_allowed():
    point = GENERAL.flat()
    step = step_rules.preconditioned(PROBLEM, 100, largest_change=0.1)(point, 100 * np.ones(10))
    assert np.linalg.norm(step) == pytest.approx(0.1 * np.linalg.norm(point))


def test_recalibration_finds_the_best_b():
    head = experiments.recalibrated(PROBLEM, GENERAL.A, 40)
    assert PROBLEM.risk_and_gradient("softmax", *head, 40)[1].b == pytest.approx(0, abs=1e-9)
    best = best_softmax(PROBLEM, 40)
    assert experiments.recalibrated(PROBLEM, best.A, 40).b == pytest.approx(best.b, rel=1e-6)


def test_transfer_costs_nothing_at_the_length_of_training():
    table = experiments.transfer(PROBLEM, [20, 50], [50]).set_index("trained at")
    assert table.loc["L₁ = 50", "penalty"] == pytest.approx(1, abs=1e-9)
    assert np.all(table["recalibrated"] >= 1 - 1e-9)
    assert np.all(table["recalibrated"] <= table["penalty"] + 1e-9)


def test_prompt_gradients_are_those_of_the_loss():
    """Against finite differences of (prediction - target)^2 / 2, with heads that differ along a leading axis."""
    prompts = PROBLEM.sample(2, 7, np.random.default_rng(0))
    heads = [GENERAL, PROBLEM.optimum()]
    stacked = Prompts(*(np.stack([part, part]) for part in prompts))
    batch = prompt_gradients(stacked, np.stack([h.A for h in heads]), np.array([h.b for h in heads]))
    x, y = prompts.tokens[..., :-1], prompts.tokens[..., -1]

    def losses(point, kind):
        A, b = BlockHead.from_flat(point)
        scores = np.einsum("nld,nd->nl", x, prompts.query @ A.T)
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        weights = {"softmax": p, "linear": scores / 7, "affine": (1 + scores) / 7}[kind]
        return (b * (weights * y).sum(1) - prompts.target) ** 2 / 2

    for kind in KINDS:
        for k, head in enumerate(heads):
            point = head.flat()
            moves = 1e-5 * np.eye(10)
            numeric = [(losses(point + e, kind) - losses(point - e, kind)) / 2e-5 for e in moves]
            np.testing.assert_allclose(batch[kind][k], np.transpose(numeric), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_gradients_are_exact(kind):
    """Each of ten entries, at a false-alarm rate of 1e-6; anisotropic, with a task variance, a general head."""
    prompts = PROBLEM.sample(60_000, 6, np.random.default_rng(1))
    gradients = prompt_gradients(prompts, *GENERAL)[kind]
    for entry, exact in zip(gradients.T, mean_gradient(PROBLEM, kind, GENERAL, 6), strict=True):
        assert_mean(entry, exact)


def test_the_mean_of_the_infinite_prompt_is_seen_to_be_wrong():
    means = variance.means_along(PROBLEM, ISOTROPIC_3, PROBLEM.balanced_init(0.5), 5, 20_000, 0)
    assert means["exact"].low < 1 < means["exact"].high
    for wrong in ("infinite prompt", "other covariance"):
        assert not means[wrong].low < 1 < means[wrong].high


ISOTROPIC_3 = InContextRegression(np.eye(3), 0.4, 1.5)


def test_the_leading_order_gains():
    """Proportional to L off the valley; a constant on it, below the bound 1.70; undefined from coupling 1/2 on."""
    draws = {"n_draws": 2**16}
    start = control_variate.predicted_gains(PROBLEM, PROBLEM.balanced_init(0.3), [1e6, 1e7],
                                            np.random.default_rng(0), **draws)  # fmt: skip
    for gains in start.values():
        assert gains[1] / gains[0] == pytest.approx(10, rel=1e-3)
    valley = step_rules.long_prompt(PROBLEM).head
    flat = control_variate.predicted_gains(PROBLEM, valley, [100, np.inf], np.random.default_rng(0), **draws)
    for gains in flat.values():
        assert gains[0] == pytest.approx(gains[1], rel=1e-9)
    assert 1.2 < flat["linear"][1] < 1.71 < flat["affine"][1]
    frozen = control_variate.predicted_gains(PROBLEM, BlockHead(2 * np.eye(3), 1.0), [10], np.random.default_rng(0))
    assert np.isnan(frozen["linear"]).all()


def test_the_golden_bound_is_that_of_the_variances():
    """Linear over softmax variance of the prediction on the valley, for kappa^2 = rho s^2 sigma_y^2, rho in [0, 1]."""
    s2, rho = np.linspace(1e-6, 20, 40_001)[:, None], np.linspace(0, 1, 21)
    share = (1 + rho) * s2 / (np.exp(s2) * (1 + rho * s2))
    k = np.unravel_index(share.argmax(), share.shape)
    assert s2[k[0], 0] == pytest.approx((np.sqrt(5) - 1) / 2, abs=1e-3)
    assert rho[k[1]] == 1
    assert 1 / (1 - share.max()) == pytest.approx(1.70, abs=5e-3)


def test_measured_gains_meet_their_prediction_at_the_start_and_the_best_coefficient_is_best():
    gain = variance.gains(PROBLEM, "start", PROBLEM.balanced_init(0.3), [50], 4_000_000, 0)
    measured = {key: curve.mean[0] for key, curve in gain.curves.items()}
    predicted = variance.predictions(gain, "linear", [50])[0]
    assert measured["linear", "1"] == pytest.approx(predicted, rel=0.2)
    for kind in ("linear", "affine"):
        assert measured[kind, "best"] >= max(measured[kind, "1"], measured[kind, "1/2"])
    assert measured["linear", "1/2"] < 4.1  # (1 - 1/2)^-2


def test_training_with_a_control_variate_stays_closer_to_exact_descent():
    noise = stochastic_optimization.noise_in_training(PROBLEM, 60, 0.3, 0.05, 4, 8, 20, 0)
    assert (noise[noise["step"] == 0]["deviation"] == 0).all()
    saved = stochastic_optimization.savings(noise, 0).set_index(["control", "step"])
    assert saved.loc[("linear", 3), "low"] > 3


def test_stochastic_race_is_paired_and_reproducible():
    rules = {name: lambda: step_rules.constant_step(0.05) for name in ("one", "two")}
    races = [stochastic_optimization.stochastic_race(PROBLEM, 20, rules, 0.3, 3, 16, 2, 5) for _ in range(2)]
    assert races[0].equals(races[1])
    by_method = races[0].groupby("method")["risk / best"].apply(list)
    assert by_method["one"] == by_method["two"]
