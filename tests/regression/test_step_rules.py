"""Step rules in closed form from the limit: the head for long prompts, its curvature, textbook steps."""

import numpy as np
import pytest

from lib.regression import step_rules
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
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
