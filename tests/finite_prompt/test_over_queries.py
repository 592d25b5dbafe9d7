"""Averages over Gaussian queries against sums over the nodes of a product rule, and the coupling by its definition."""

import numpy as np
import pytest

from lib.finite_prompt import coupling, mean_output_error, mean_score_gradient_error, output_error, score_gradient_error

ROOTS = np.random.default_rng(8).normal(size=(2, 2, 2))
COVARIANCE, QUERY_COVARIANCE = ROOTS @ ROOTS.mT / 2
U = np.array([[0.5, -0.3], [0.2, 0.4]])
V = np.array([[1.0, 0.4], [-0.7, 0.9], [0.3, 0.2]])


@pytest.fixture
def scaled():
    """U with a coupling of 0.03: no symmetry anywhere, and no heavy tail."""
    return U * np.sqrt(0.03 / coupling(COVARIANCE, QUERY_COVARIANCE, U))


def test_the_coupling_is_an_eigenvalue_of_both_covariances():
    """Those of Gamma_z^{1/2} U' Gamma U Gamma_z^{1/2} are those of Gamma_z U' Gamma U, which needs no root."""
    exact = np.linalg.eigvals(QUERY_COVARIANCE @ U.T @ COVARIANCE @ U).real.max()
    assert coupling(COVARIANCE, QUERY_COVARIANCE, U) == pytest.approx(exact, rel=1e-12)
    assert coupling(COVARIANCE, np.eye(2), U) != pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(
    ("mean_error", "error"), [(mean_output_error, output_error), (mean_score_gradient_error, score_gradient_error)]
)
def test_averages_against_a_product_rule(scaled, mean_error, error):
    """14 Gauss-Hermite nodes an axis, in two dimensions."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(14)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel() / weights.sum() ** 2
    queries = grid @ np.linalg.cholesky(QUERY_COVARIANCE).T
    plain = mass @ error(COVARIANCE, queries, scaled, V, [3, 40])
    found = mean_error(COVARIANCE, QUERY_COVARIANCE, scaled, V, [3, 40], rtol=1e-9)
    np.testing.assert_allclose(found.value, plain, rtol=1e-6)
