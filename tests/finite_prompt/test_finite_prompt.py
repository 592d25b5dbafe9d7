"""Exact errors of attention on Gaussian prompts: against prompts, closed forms, invariances, and both limits."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.finite_prompt import (
    coupling,
    local_slope,
    mean_output,
    mean_output_error,
    mean_score_gradient_error,
    mean_sharp_constant,
    mean_value_gradient_error,
    output_error,
    rate_exponent,
    sample_outputs,
    score_deviation,
    score_gradient_error,
    sharp_constant,
    value_gradient_error,
)

D = 5


@pytest.fixture
def head():
    """A generic covariance, query, U and V (3 x 5), with scores of deviation 1.1."""
    rng = np.random.default_rng(11)
    root = rng.normal(size=(D, D))
    covariance, U, V, z = root @ root.T / D, rng.normal(size=(D, D)), rng.normal(size=(3, D)), rng.normal(size=D)
    return covariance, z, U * 1.1 / score_deviation(covariance, z, U), V


def prompts(covariance, z, U, length, n_prompts, seed):
    """Weighted means and covariances of softmax attention, written out plainly."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_prompts, length, D)) @ np.linalg.cholesky(covariance).T
    p = np.exp(X @ U @ z)
    p /= p.sum(1, keepdims=True)
    mean = np.einsum("nl,nld->nd", p, X)
    return mean, np.einsum("nl,nld,nle->nde", p, X, X) - mean[:, :, None] * mean[:, None]


def test_errors_against_prompts(head):
    covariance, z, U, V = head
    mean, weighted_covariance = prompts(covariance, z, U, 37, 60_000, seed=1)
    deviation = mean - covariance @ U @ z
    assert_mean(((deviation @ V.T) ** 2).sum(1), output_error(covariance, z, U, V, 37))
    assert_mean((deviation**2).sum(1), value_gradient_error(covariance, z, U, 37))
    squared = ((V @ (weighted_covariance - covariance)) ** 2).sum((1, 2)) * (z @ z)
    assert_mean(squared, score_gradient_error(covariance, z, U, V, 37))
    for mean_k, exact in zip(mean.T, mean_output(np.zeros(D), covariance, z, U, np.eye(D), 37), strict=True):
        assert_mean(mean_k, exact)


def test_the_check_against_prompts_can_fail(head):
    covariance, z, U, V = head
    mean, _ = prompts(covariance, z, U, 37, 60_000, seed=1)
    squared = (((mean - covariance @ U @ z) @ V.T) ** 2).sum(1)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(squared, 1.05 * output_error(covariance, z, U, V, 37))


def test_the_exact_sampler_has_the_same_law(head):
    covariance, z, U, V = head
    rng, m = np.random.default_rng(2), np.arange(5.0)
    outputs = sample_outputs(covariance, z, U, V, 37, 40_000, rng, mean=m)
    assert_mean(((outputs - V @ (m + covariance @ U @ z)) ** 2).sum(1), output_error(covariance, z, U, V, 37))
    assert_mean(outputs[:, 0], mean_output(m, covariance, z, U, V, 37)[0])


def test_zero_query_and_one_token(head):
    covariance, z, U, V = head
    total = np.trace(V @ covariance @ V.T)
    np.testing.assert_allclose(output_error(covariance, 0 * z, U, V, [1, 7, 1e9]), total / np.array([1, 7, 1e9]))
    # One token: its own deviation from the limit, and a weighted covariance of zero.
    c = covariance @ U @ z
    assert output_error(covariance, z, U, V, 1) == pytest.approx(total + ((V @ c) ** 2).sum(), rel=1e-12)
    lost = ((V @ covariance) ** 2).sum() * (z @ z)
    assert score_gradient_error(covariance, z, U, V, 1) == pytest.approx(lost, rel=1e-10)


@pytest.mark.parametrize("quantity", ["output", "value gradient", "score gradient"])
def test_sharp_constants(head, quantity):
    covariance, z, U, V = head
    errors = {
        "output": lambda L: output_error(covariance, z, U, V, L),
        "value gradient": lambda L: value_gradient_error(covariance, z, U, L),
        "score gradient": lambda L: score_gradient_error(covariance, z, U, V, L),
    }
    assert 1e12 * errors[quantity](1e12) == pytest.approx(sharp_constant(covariance, z, U, V, quantity), rel=1e-6)


def test_rotation_and_gauge_change_nothing(head):
    covariance, z, U, V = head
    Q, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(D, D)))
    lengths = [1, 12, 1e6]
    for error in (output_error, score_gradient_error):
        exact = error(covariance, z, U, V, lengths)
        rotated = error(Q @ covariance @ Q.T, Q @ z, Q @ U @ Q.T, V @ Q.T, lengths)
        np.testing.assert_allclose(rotated, exact, rtol=1e-9)
        np.testing.assert_allclose(error(covariance, Q.T @ z, U @ Q, V, lengths), exact, rtol=1e-9)


def test_singular_covariance_is_the_limit_of_regular_ones(head):
    _, z, U, V = head
    singular = np.diag([1.0, 2.0, 0, 0, 0.5])
    for error in (output_error, score_gradient_error):
        near = error(singular + 1e-9 * np.eye(D), z, U, V, [1, 10, 1e4])
        np.testing.assert_allclose(error(singular, z, U, V, [1, 10, 1e4]), near, rtol=1e-6)


def test_averages_over_queries_are_averages(head):
    covariance, _, U, V = head
    query_covariance = np.diag([0.2, 0.1, 0.3, 0.05, 0.1])
    U = U * np.sqrt(0.1 / coupling(covariance, query_covariance, U))
    z = np.random.default_rng(6).normal(size=(4000, D)) @ np.sqrt(query_covariance)
    mean = mean_output_error(covariance, query_covariance, U, V, [10, 1000])
    for k in range(2):
        assert_mean(output_error(covariance, z, U, V, [10, 1000])[:, k], mean.value[k])
    mean = mean_score_gradient_error(covariance, query_covariance, U, V, 10)
    assert_mean(score_gradient_error(covariance, z[:1000], U, V, 10), mean.value)
    value_gradient = mean_value_gradient_error(covariance, query_covariance, U, 10).value
    assert value_gradient == mean_output_error(covariance, query_covariance, U, np.eye(D), 10).value


def test_averages_of_one_dimension_against_plain_quadrature():
    """Scalar tokens and queries: the average is one Gaussian integral of the error at a fixed query."""
    nodes, step = np.linspace(-14, 14, 2801, retstep=True)
    one, U = np.eye(1), np.sqrt([[1.3]])
    at_queries = output_error(one, nodes[:, None], U, one, [10, 1e6])
    plain = (np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi) * step) @ at_queries
    found = mean_output_error(one, one, U, one, [10, 1e6], rtol=1e-9)
    np.testing.assert_allclose(found.value, plain, rtol=1e-8)
    assert np.all(found.numerical_error < 1e-8 * plain)


def test_mean_sharp_constant(head):
    covariance, _, U, V = head
    U = U * np.sqrt(0.15 / coupling(covariance, np.eye(D), U))
    constant = mean_sharp_constant(covariance, np.eye(D), U, V)
    assert 1e12 * mean_output_error(covariance, np.eye(D), U, V, 1e12, rtol=1e-8).value == pytest.approx(
        constant, rel=1e-6
    )
    assert mean_sharp_constant(covariance, np.eye(D), 2 * U, V) == np.inf


def test_average_without_scores():
    found = mean_output_error(np.eye(3), np.eye(3), np.zeros((3, 3)), np.eye(3), [1, 10])
    np.testing.assert_allclose(found.value, [3, 0.3])
    found = mean_score_gradient_error(np.eye(3), np.eye(3), np.zeros((3, 3)), np.eye(3), 10)
    tiny = mean_score_gradient_error(np.eye(3), np.eye(3), 1e-4 * np.eye(3), np.eye(3), 10)
    assert found.value == pytest.approx(tiny.value, rel=1e-5)


# Slopes from L to 10 L of the average for scalar queries and their limits, from an independent program.
@pytest.mark.parametrize(
    ("lam", "slopes"),
    [
        (0.25, [0.956, 0.999, 1.000, 1.000]),
        (1.0, [0.640, 0.600, 0.605, 0.612]),
        (2.0, [0.480, 0.391, 0.363, 0.361]),
        (4.0, [0.342, 0.263, 0.226, 0.208]),
    ],
)
def test_slopes_beyond_the_transition(lam, slopes):
    lengths = np.array([1e2, 1e3, 1e6, 1e7, 1e15, 1e16, 1e38, 1e39])
    one = np.eye(1)
    error = mean_output_error(one, one, np.sqrt([[lam]]), one, lengths).value
    np.testing.assert_allclose(local_slope(lengths, error)[::2], slopes, atol=6e-4)
    assert abs(local_slope(lengths, error)[-1] - rate_exponent(lam)) < 0.01


def test_rate_exponent():
    np.testing.assert_allclose(rate_exponent([0, 0.25, 0.5]), 1)
    assert rate_exponent(1.0) == pytest.approx((np.sqrt(5) - 1) / 2)
    assert rate_exponent(1e6) == pytest.approx(1e-6, rel=1e-5)
    with pytest.raises(ValueError, match="nonnegative"):
        rate_exponent(-1)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("query", np.ones(4)), ("U", np.ones((4, 5))), ("V", np.ones((3, 4))), ("covariance", np.ones((5, 4)))],
)
def test_shapes_that_do_not_fit_are_named(head, name, bad):
    arguments = dict(zip(("covariance", "query", "U", "V"), head, strict=True)) | {name: bad}
    with pytest.raises(ValueError, match=f"{name} does not fit tokens of dimension 5"):
        output_error(**arguments, length=10)


def test_the_exact_sampler_draws_from_its_generator(head):
    covariance, z, U, V = head
    once, again, other = (sample_outputs(covariance, z, U, V, 20, 5, np.random.default_rng(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(once, again)
    assert np.all(once != other) and len(np.unique(once[:, 0])) == 5
    one = np.eye(1)  # nothing across the scores
    scores, others = (sample_outputs(one, [1.0], one, one, 20, 5, np.random.default_rng(k)) for k in (0, 1))
    assert np.all(scores != others)
