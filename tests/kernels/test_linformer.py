"""Projections of the length: what each computes, exactly, and what can be learned."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.finite_prompt import score_deviation
from lib.kernels import Linformer, Softmax
from lib.kernels.linformer import gaussian_projection_error, learn, linear_floor, pooled_error
from lib.tokens.covariances import covariance_matrix


def head(seed=0, dim=3):
    rng = np.random.default_rng(seed)
    gamma, query, U = covariance_matrix("toeplitz(0.5)", dim), rng.standard_normal(dim), rng.standard_normal((dim, dim))
    return gamma, query, U / score_deviation(gamma, query, U), rng.standard_normal((2, dim))


def test_rows_that_are_the_tokens_give_softmax():
    rng = np.random.default_rng(0)
    keys, queries, values = rng.standard_normal((2, 9, 3)), rng.standard_normal((4, 3)), rng.standard_normal((2, 9, 5))
    identity = Linformer(np.eye(9), np.eye(9))
    assert identity(keys, queries, values) == pytest.approx(Softmax()(keys, queries, values), abs=1e-12)
    short = identity.truncated(4)
    with_zeros = [np.concatenate([x[:, :4], 0 * x[:, 4:]], 1) for x in (keys, values)]
    expected = Softmax()(with_zeros[0], queries, with_zeros[1])
    assert short(keys[:, :4], queries, values[:, :4]) == pytest.approx(expected, abs=1e-12)


def test_pooling_of_repeated_tokens():
    """Equal tokens in each pool: pooling is exact; the correction then multiplies the scores by the pool's size."""
    rng = np.random.default_rng(0)
    tokens, query = np.repeat(rng.standard_normal((4, 3)), 5, axis=0), rng.standard_normal(3)
    plain, corrected = (Linformer.pooling(20, 4, x)(tokens, query, tokens) for x in (False, True))
    assert plain == pytest.approx(Softmax()(tokens, query, tokens), abs=1e-12)
    assert corrected == pytest.approx(Softmax()(tokens, 5 * query, tokens), abs=1e-12)


@pytest.mark.parametrize("shared", [True, False])
def test_gaussian_projections_of_one_prompt(shared):
    """6,000 projections of the same prompt against the formula; false-alarm rate 1e-6."""
    gamma, query, U, V = head()
    rng = np.random.default_rng(1)
    tokens = rng.standard_normal((12, 3)) @ np.linalg.cholesky(gamma).T
    limit, z, errors = V @ gamma @ U @ query, U @ query, []
    for seed in range(6000):
        out = Linformer.gaussian(12, 7, seed, shared)(tokens, z, tokens @ V.T)
        errors.append(((out - limit) ** 2).sum())
    second = tokens.T @ tokens / 12
    exact = gaussian_projection_error(second, query, U, V, 7, limit, shared)
    assert_mean(errors, exact)
    with pytest.raises(AssertionError):
        assert_mean(errors, gaussian_projection_error(second, query, U, V, 3, limit, shared))


@pytest.mark.parametrize("corrected", [True, False])
def test_pooled_error(corrected):
    gamma, query, U, V = head()
    mean = np.array([1.0, -2.0, 0.5])
    tokens = mean + np.random.default_rng(2).standard_normal((20_000, 24, 3)) @ np.linalg.cholesky(gamma).T
    out = Linformer.pooling(24, 8, corrected)(tokens, U @ query, tokens @ V.T)
    errors = ((out - V @ (mean + gamma @ U @ query)) ** 2).sum(-1)
    assert_mean(errors, pooled_error(gamma, query, U, V, 24, 8, corrected))
    with pytest.raises(AssertionError):
        assert_mean(errors, pooled_error(gamma, query, U, V, 24, 8, not corrected))


def test_the_floor_is_the_error_of_the_best_bilinear_kernel():
    """f'v + q'K'G v against moment attention, on isotropic tokens: the formula at its g, and worse at others."""
    dim, length, rows, s = 3, 10, 4, 0.8
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((40_000, length, dim))
    center = np.eye(length) - 1 / length
    projection = np.linalg.eigh(center)[1][:, -(rows - 1) :]  # rank p - 1, orthogonal to equal weights
    noise, signal = s**2 * (dim + 1), s**2
    scores = s * tokens[..., 0]

    def errors(g):
        gap = g * projection @ projection.T - center / length
        return ((np.einsum("nl,lk,nkd->nd", scores, gap, tokens)) ** 2).sum(-1)

    rank, scale = rows - 1, (length - 1) / length
    g = (noise / length + signal * scale) / (noise + rank * signal)
    floor = linear_floor(noise, signal, 0.0, length, rows)
    assert_mean(errors(g), floor)
    for other in (0.8 * g, 1.2 * g):
        assert errors(other).mean() > floor
    assert linear_floor(noise, signal, 0.0, length, length) == pytest.approx(0, abs=1e-12)


def test_learning_reaches_the_floor():
    dim, length, rows, s = 3, 12, 4, 0.6

    def sample(n, rng):
        tokens, query = rng.standard_normal((n, length, dim)), rng.standard_normal((n, dim))
        query *= s / np.linalg.norm(query, axis=1, keepdims=True)
        return tokens, query, tokens, Softmax()(tokens, query[:, None], tokens)[:, 0]

    def error(kernel):
        tokens, query, _, wanted = sample(4000, np.random.default_rng(9))
        return ((kernel(tokens, query[:, None], tokens)[:, 0] - wanted) ** 2).sum(-1).mean()

    start = Linformer.gaussian(length, rows)
    learned = learn(start, sample, 500, np.random.default_rng(0))
    floor = linear_floor(s**2 * (dim + 1), s**2, 0.0, length, rows)
    assert error(learned) < 0.4 * error(start)
    assert 0.95 * floor < error(learned) < 1.4 * floor
    again = learn(start, sample, 500, np.random.default_rng(0))
    assert np.array_equal(again.key_rows, learned.key_rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Linformer(np.eye(3), np.ones((3, 4))),
            r"must both have shape \(p, L\), received \(3, 3\) and \(3, 4\)",
        ),
        (lambda: Linformer(np.ones(3), np.ones(3)), r"must both have shape"),
        (lambda: Linformer.gaussian(4, 5), "rows must be between 1 and the length 4, received 5"),
        (lambda: Linformer.pooling(10, 3), "needs a length that the rows divide, received 10 tokens and 3 rows"),
        (lambda: Linformer.pooling(10, 5)(np.ones((9, 2)), np.ones(2), np.ones((9, 2))), "of 10 tokens, received 9"),
        (lambda: Linformer.pooling(10, 5).truncated(11), "prompts of 1 to that many, not 11"),
        (lambda: linear_floor(1.0, 1.0, 0.0, 5, 6), "rows must be between 1 and the length 5"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_the_constructors_promise():
    shared, apart = (Linformer.gaussian(12, 3, seed=1, shared=x) for x in (True, False))
    np.testing.assert_array_equal(shared.key_rows, shared.value_rows)
    assert np.all(apart.key_rows != apart.value_rows)
    np.testing.assert_array_equal(apart.truncated(5).key_rows, apart.key_rows[:, :5])
    assert apart.cost(12, 2, 7).build == 2 * 3 * 12 * (2 + 7)
    assert linear_floor(1.0, 0.5, 0.25, 12, 3) - linear_floor(1.0, 0.5, 0.0, 12, 3) == pytest.approx(0.25)


def test_pooling_that_is_not_corrected_and_projections_far_from_a_limit():
    """Against prompts, at a false-alarm rate of 1e-6: the cross terms of the mean output with what is missing."""
    rng, query = np.random.default_rng(4), np.array([0.9, 0.4])
    eye, tokens = np.eye(2), rng.normal(size=(40_000, 8, 2))
    outputs = Linformer.pooling(8, 4, corrected=False)(tokens, query, tokens)
    assert_mean(((outputs - query) ** 2).sum(-1), pooled_error(eye, query, eye, eye, 8, 4, corrected=False))
    prompt, limit = tokens[0], np.array([2.0, -1.0])
    drawn = rng.normal(size=(40_000, 3, 8)) / np.sqrt(8) @ prompt
    weights = np.exp(drawn @ query)
    outputs = np.vecmat(weights / weights.sum(1, keepdims=True), drawn)
    exact = gaussian_projection_error(prompt.T @ prompt / 8, query, eye, eye, 3, limit)
    assert_mean(((outputs - limit) ** 2).sum(1), exact)
