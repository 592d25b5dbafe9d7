"""Hessians: finite against infinite prompts, and the flattest head of the valley."""

import numpy as np
import pytest

from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian, softmax_hessian, stable_step
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

ISOTROPIC = InContextRegression(np.eye(5), np.sqrt(0.1))
PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
GENERAL = BlockHead(np.array([[0.3, 0.1, 0.0], [-0.1, 0.4, 0.2], [0.1, 0.0, 0.2]]), 1.2)


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


def test_the_infinite_hessian_against_finite_differences_of_the_gradient():
    point, step = np.random.default_rng(0).normal(size=10), 1e-5

    def gradient(x):
        return PROBLEM.risk_and_gradient("infinite", *BlockHead.from_flat(x))[1].flat()

    numeric = np.stack([(gradient(point + step * e) - gradient(point - step * e)) / (2 * step) for e in np.eye(10)])
    np.testing.assert_allclose(infinite_hessian(PROBLEM, BlockHead.from_flat(point)), numeric, atol=1e-7)


def test_the_hessian_from_differences_is_symmetric_to_the_last_digit():
    hessian = softmax_hessian(PROBLEM, GENERAL, 20)
    np.testing.assert_array_equal(hessian, hessian.T)
