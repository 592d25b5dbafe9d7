"""Drift of the output while a prompt grows: closed forms, prompts, limits, and the bound."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.finite_prompt import output_error, score_deviation, sharp_constant, softmax_functionals
from lib.finite_prompt.drift import drift_bound, mean_output_drift, nested_moments, output_drift, weight_drift

D = 5


@pytest.fixture
def head():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(D, D))
    covariance, U, V, z = root @ root.T / D, rng.normal(size=(D, D)), rng.normal(size=(3, D)), rng.normal(size=D)
    return covariance, z, U * 0.9 / score_deviation(covariance, z, U), V


def test_closed_forms_of_the_nested_moments():
    np.testing.assert_allclose(nested_moments(0.0, 5, 20), 1 / 20, rtol=1e-12)  # equal weights
    assert nested_moments(1.3, 1, 20)[1] == pytest.approx(1 / 20, rel=1e-12)  # the first of 20 exchangeable tokens
    # All of the prompt, and nearly all of it: the moments of the prompt itself.
    w = softmax_functionals(1.3, 5000)
    np.testing.assert_allclose(nested_moments(1.3, 5000, 5000), (w.squared_error, w.inverse_participation), rtol=1e-12)
    np.testing.assert_allclose(nested_moments(1.3, 4999, 5000), (w.squared_error, w.inverse_participation), rtol=1e-3)


@pytest.mark.parametrize("s", [0.05, 1.0, 8.0, 40.0])
def test_digits_survive_one_more_token_and_loud_scores(s):
    """E sum p_i q_i = 1 / L2 for L1 = 1; and growing token by token adds up to no less than growing at once."""
    for length in (2, 10, 10**6):
        assert nested_moments(s, 1, length)[1] == pytest.approx(1 / length, rel=1e-10)
    steps = [np.sqrt(weight_drift(s, n, n + 1)) for n in (1000, 1001)]
    assert np.all(np.array(steps) > 0)
    assert np.all(np.sum(steps, axis=0) >= np.sqrt(weight_drift(s, 1000, 1002)))


def test_nested_and_fresh_drift_against_prompts(head):
    covariance, z, U, V = head
    rng, root = np.random.default_rng(1), np.linalg.cholesky(covariance)

    def outputs(tokens):
        p = np.exp(tokens @ U @ z)
        return np.einsum("nl,nld->nd", p, tokens) / p.sum(1, keepdims=True) @ V.T

    tokens, others = rng.normal(size=(2, 30_000, 40, D)) @ root.T
    short = outputs(tokens[:, :15])
    nested, fresh = ((x - short) ** 2 for x in (outputs(tokens), outputs(others)))
    assert_mean(nested.sum(1), output_drift(covariance, z, U, V, 15, 40))
    assert_mean(fresh.sum(1), output_drift(covariance, z, U, V, 15, 40, "fresh"))
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(nested.sum(1), output_drift(covariance, z, U, V, 15, 40, "fresh"))


def test_limits(head):
    covariance, z, U, V = head
    constant = float(sharp_constant(covariance, z, U, V))
    assert output_drift(covariance, z, U, V, 10**6, 3 * 10**6) == pytest.approx(constant * (1 - 1 / 3) / 1e6, rel=1e-4)
    fresh = output_drift(covariance, z, U, V, 10**6, 3 * 10**6, "fresh")
    assert fresh == pytest.approx(constant * (1 + 1 / 3) / 1e6, rel=1e-4)
    # Growing without end: the error at the start.
    error = float(output_error(covariance, z, U, V, 50))
    assert output_drift(covariance, z, U, V, 50, 10**12) == pytest.approx(error, rel=1e-5)
    assert output_drift(covariance, z, U, V, 50, 50) == pytest.approx(0, abs=1e-14)


def test_nested_drift_grows_and_stays_below_the_bound(head):
    covariance, z, U, V = head
    lengths = [20, 25, 40, 100, 1000]
    drifts = [output_drift(covariance, z, U, V, 20, length) for length in lengths]
    assert np.all(np.diff(drifts) > 0)
    errors = output_error(covariance, z, U, V, lengths)
    bounds = drift_bound(errors[0], errors)
    assert np.all(drifts < bounds)
    assert all(output_drift(covariance, z, U, V, 20, n, "fresh") < b for n, b in zip(lengths, bounds, strict=True))


def test_average_over_queries(head):
    covariance, _, U, V = head
    query_covariance = np.diag([0.1, 0.2, 0.05, 0.1, 0.1])
    queries = np.random.default_rng(2).normal(size=(800, D)) @ np.sqrt(query_covariance)
    for kind in ("nested", "fresh"):
        exact = mean_output_drift(covariance, query_covariance, U, V, 30, 70, kind)
        assert_mean([output_drift(covariance, z, U, V, 30, 70, kind) for z in queries], exact.value)
        assert exact.numerical_error < 1e-4 * exact.value


def test_no_scores(head):
    covariance, z, _, V = head
    total = np.trace(V @ covariance @ V.T)
    assert output_drift(covariance, z, np.zeros((D, D)), V, 10, 40) == pytest.approx(total * (1 / 10 - 1 / 40))


def test_bad_input(head):
    with pytest.raises(ValueError, match="at least as long as the first, received 9 and 5 tokens"):
        weight_drift(1.0, 9, 5)
    with pytest.raises(ValueError, match="prompts must be 'nested' or 'fresh', received 'sliding'"):
        output_drift(*head, 5, 9, "sliding")
    with pytest.raises(ValueError, match="whole"):
        weight_drift(1.0, 5.5, 9)


@pytest.mark.parametrize("s", [0.5, 1.5, 3.0])
def test_the_first_of_several_tokens(s):
    """E[(g_1 - s)(ghat_2 - s)] = 1 / L2 + s^2 eta: by symmetry and parts, since sum_i d ghat / d g_i = 1."""
    for length in (2, 5, 100):
        eta = float(softmax_functionals(s, length).inverse_participation)
        assert nested_moments(s, 1, length)[0] == pytest.approx(1 / length + s**2 * eta, rel=1e-10)


def test_two_fresh_tokens_are_independent_normal_numbers():
    """Of one token each, ghat is the token's own g: E(g_1 - g_2)^2 = 2, whatever the scores."""
    np.testing.assert_allclose(weight_drift(1.7, 1, 1, "fresh"), (2, 2), rtol=1e-12)


def test_the_bound_is_reached_on_opposite_sides_of_the_limit():
    """Distances 1 and 2 from it, 3 from each other: nothing smaller holds however two prompts depend."""
    assert drift_bound(1.0, 4.0) == pytest.approx(9.0, rel=1e-14)
