"""Step rules in closed form from the limit: the head for long prompts, its curvature, textbook steps."""

import numpy as np
import pytest

from lib.regression import step_rules
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian, softmax_hessian
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

ISOTROPIC = InContextRegression(np.eye(5), np.sqrt(0.1))
PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
GENERAL = BlockHead(np.array([[0.3, 0.1, 0.0], [-0.1, 0.4, 0.2], [0.1, 0.0, 0.2]]), 1.2)


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


def test_rules_take_their_textbook_steps():
    gradient = np.array([1.0, -2.0])
    heavy = step_rules.momentum(0.1, 0.5)
    np.testing.assert_allclose(heavy(gradient, gradient), -0.1 * gradient)
    np.testing.assert_allclose(heavy(gradient, gradient), -0.15 * gradient)
    np.testing.assert_allclose(step_rules.adam(0.3)(gradient, gradient), [-0.3, 0.3], rtol=1e-6)
    np.testing.assert_allclose(step_rules.constant_step(0.2)(gradient, gradient), [-0.2, 0.4])


def test_a_preconditioned_step_is_no_longer_than_allowed():
    point = GENERAL.flat()
    step = step_rules.preconditioned(PROBLEM, 100, largest_change=0.1)(point, 100 * np.ones(10))
    assert np.linalg.norm(step) == pytest.approx(0.1 * np.linalg.norm(point))


def test_adam_takes_its_second_step_with_the_usual_decays():
    rule, gradient = step_rules.adam(0.3), np.array([1.0, -2.0])
    rule(gradient, gradient)
    first, second = (0.09 + 0.1 * 3) / (1 - 0.9**2), (0.999e-3 + 1e-3 * 9) / (1 - 0.999**2)
    step = 0.3 * first / np.sqrt(second)
    np.testing.assert_allclose(rule(gradient, 3 * gradient), [-step, step], rtol=1e-6)


def test_the_schedule_follows_the_curvature_of_the_limit_at_the_current_head():
    point, gradient = GENERAL.flat(), np.arange(10.0)
    largest = np.linalg.eigvalsh(infinite_hessian(PROBLEM, GENERAL))[-1]
    np.testing.assert_allclose(step_rules.schedule(PROBLEM)(point, gradient), -1.75 / largest * gradient)
    np.testing.assert_allclose(step_rules.schedule(PROBLEM, 0.7)(point, gradient), -0.7 / largest * gradient)


def test_the_smallest_curvature_is_that_of_the_best_head_along_the_valley():
    """At the best head of the length itself: next to it the gradient, of order 1/L, bends the valley away."""
    length = 1e5
    best = best_softmax(PROBLEM, length)
    largest, smallest = step_rules.curvatures(PROBLEM, length, step_rules.long_prompt(PROBLEM))
    hessian, f = softmax_hessian(PROBLEM, best, length), np.append(-best.A, best.b)
    assert smallest == pytest.approx(f @ hessian @ f / (f @ f), rel=0.1)
    assert largest == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-2)


def test_constant_step_and_momentum_are_optimal_at_both_ends_of_the_spectrum():
    """The step shrinks both ends alike; heavy ball has a double root x^2 - (1 + decay - step h) x + decay at both."""
    limit = step_rules.long_prompt(PROBLEM)
    ends = np.array(step_rules.curvatures(PROBLEM, 200, limit))
    shrunk = 1 - step_rules.optimal_constant_step(PROBLEM, 200, limit) * ends
    assert shrunk.sum() == pytest.approx(0, abs=1e-12) and 0 < shrunk[1] < 1
    rule, one = step_rules.closed_form_momentum(PROBLEM, 200, limit), np.ones(1)
    step, decay = (float(-rule(one, gradient)[0]) for gradient in (one, 0 * one))
    decay /= step
    assert 0 < decay < 1
    np.testing.assert_allclose((1 + decay - step * ends) ** 2, 4 * decay, rtol=1e-9)


def test_the_preconditioner_is_the_hessian_of_long_prompts_in_the_valley():
    """There Gauss-Newton is exact: P = Hessian of the limit + the smallest curvature along the valley."""
    limit = step_rules.long_prompt(PROBLEM)
    f = np.append(-limit.head.A, limit.head.b)
    smallest = step_rules.curvatures(PROBLEM, 200, limit)[1]
    P = infinite_hessian(PROBLEM, limit.head) + smallest * np.outer(f, f) / (f @ f)
    rule = step_rules.preconditioned(PROBLEM, 200, limit, largest_change=np.inf)
    v = np.random.default_rng(0).normal(size=10)
    np.testing.assert_allclose(rule(limit.head.flat(), P @ v), -v, rtol=1e-8)
    limited = step_rules.preconditioned(PROBLEM, 200, limit)(limit.head.flat(), 1e3 * P @ v)
    assert np.linalg.norm(limited) == pytest.approx(0.4 * limit.head.norm())
