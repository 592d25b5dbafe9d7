"""Positive random features: unbiased, their exact variances, their error in attention, stability.

Statistical checks use `assert_mean`: a false-alarm rate of 1e-6 each, were the seeds drawn anew.
"""

import numpy as np
import pytest
from scipy import stats
from statistics_checks import assert_mean

from lib.kernels import Performer, Softmax
from lib.kernels.performer import log_features, output_constant, random_directions, relative_variance

KINDS = [False, True]


def products(squared_norm, features, dim, draws, orthogonal, seed=0):
    """phi(x).phi(y) / exp(x.y) for x + y of the given length, x and y far from each other."""
    rng = np.random.default_rng(seed)
    z, apart = rng.standard_normal((2, dim))
    z *= np.sqrt(squared_norm) / np.linalg.norm(z)
    x, y = z / 2 + apart, z / 2 - apart
    directions = random_directions(features, dim, rng, orthogonal, size=(draws,))
    return np.exp(log_features(x, directions) + log_features(y, directions)).mean(-1) / np.exp(x @ y)


@pytest.mark.parametrize("orthogonal", KINDS)
def test_the_features_are_unbiased(orthogonal):
    """20,000 draws; false-alarm rate 1e-6. Negative control: features without their factor exp(-|x|^2 / 2)."""
    assert_mean(products(0.7, 6, 4, 20_000, orthogonal), 1)
    rng = np.random.default_rng(1)
    x, y = 0.5 * rng.standard_normal((2, 4))
    directions = random_directions(6, 4, rng, orthogonal, size=(20_000,))
    plain = np.exp((x + y) @ directions.mT).mean(-1)
    with pytest.raises(AssertionError):
        assert_mean(plain, np.exp(x @ y))
    assert_mean(plain * np.exp(-(x @ x + y @ y) / 2), np.exp(x @ y))


@pytest.mark.parametrize(("features", "dim"), [(5, 5), (12, 5), (3, 7), (16, 2)])
@pytest.mark.parametrize("orthogonal", KINDS)
def test_the_variance_formula(orthogonal, features, dim):
    squares = (products(0.5, features, dim, 40_000, orthogonal) - 1) ** 2
    assert_mean(squares, float(relative_variance(0.5, features, dim if orthogonal else None)))


def test_the_formula_of_independent_directions_is_not_that_of_orthogonal_ones():
    squares = (products(1.0, 8, 8, 40_000, True) - 1) ** 2
    with pytest.raises(AssertionError):
        assert_mean(squares, float(relative_variance(1.0, 8)))


def test_orthogonal_directions_are_never_worse_and_gain_at_least_what_the_source_proves():
    """Theorem 2 of arXiv 2009.14794, for one block (m <= d) and x . y = 0, in units of exp(x . y)."""
    z2 = np.array([1e-3, 0.1, 1.0, 5.0, 20.0])
    for dim in (2, 3, 8, 64):
        gain = relative_variance(z2, dim) - relative_variance(z2, dim, dim)
        assert np.all(gain > 0)
        assert np.all(gain >= 2 * (dim - 1) / (dim * (dim + 2)) * np.expm1(-z2 / 2) ** 2 * (1 - 1e-9))
        blocks = relative_variance(z2, 5 * dim, dim)
        assert blocks == pytest.approx(relative_variance(z2, dim, dim) / 5, rel=1e-9)  # blocks are independent
    assert relative_variance(z2, 1, 8) == pytest.approx(relative_variance(z2, 1))  # no pair in one direction
    assert relative_variance(0.0, 9, 4) == 0
    assert relative_variance(1.0, 64, 4096) == pytest.approx(relative_variance(1.0, 64), rel=0.02)


def test_directions():
    rng = np.random.default_rng(0)
    W = random_directions(10, 4, rng, True, size=(2000,))
    assert W.shape == (2000, 10, 4)
    inside, across = W[:, 0] @ W[:, 3].T, W[:, 0] @ W[:, 5].T
    assert np.abs(np.diag(inside)).max() < 1e-12  # the same block
    assert np.abs(np.diag(across)).max() > 1
    for row, column in ((0, 0), (3, 1), (9, 3)):  # each marginally normal; false-alarm rate 1e-6
        assert stats.kstest(W[:, row, column], "norm").pvalue > 1e-6
    assert_mean((W[:, 2] ** 2).sum(-1), 4)
    assert random_directions(10, 4, rng, False, size=(3, 2)).shape == (3, 2, 10, 4)


def test_performer_is_its_definition_and_redraws():
    rng = np.random.default_rng(0)
    keys, query, values = rng.standard_normal((9, 3)) / 2, rng.standard_normal(3) / 2, rng.standard_normal((9, 4))
    kernel = Performer(7, seed=5)
    W = kernel.directions(3)
    weights = np.exp(log_features(keys, W)) @ np.exp(log_features(query, W))
    assert kernel(keys, query, values) == pytest.approx(weights @ values / weights.sum(), abs=1e-13)
    assert np.array_equal(kernel(keys, query, values), Performer(7, seed=5)(keys, query, values))
    assert not np.allclose(kernel.redraw(6)(keys, query, values), kernel(keys, query, values))


def test_the_error_falls_as_one_over_the_square_root_of_the_features():
    rng = np.random.default_rng(0)
    keys, query, values = rng.standard_normal((200, 3)) / 2, rng.standard_normal(3) / 2, rng.standard_normal((200, 2))
    exact = Softmax()(keys, query, values)

    def error(m):
        return np.mean([((Performer(m, seed=s)(keys, query, values) - exact) ** 2).sum() for s in range(60)])

    assert 8 < error(64) / error(1024) < 32  # 16
    assert error(1024) < 0.02


def test_scores_of_any_size():
    """|q + k|^2 near 1e8: a convex combination of the values, no warning, no NaN."""
    rng = np.random.default_rng(0)
    for size in (1e2, 1e4):
        keys, query, values = size * rng.standard_normal((50, 3)), size * rng.standard_normal(3), rng.random((50, 2))
        with np.errstate(all="raise", under="ignore"):
            out = Performer(32)(keys, query, values)
        assert np.all((out > 0) & (out < 1))


def test_the_output_constant_against_performers():
    """Keys of variance 0.1, s = 0.2: 60 prompts of 1024 tokens, 512 features, 16 queries each. The delta method is off
    by a few per cent here, so the check is a band; the shift of the keys and the other split are seen at once."""
    dim, s, c = 8, 0.2, 0.1
    rng, eye, samples = np.random.default_rng(0), np.eye(8), []
    queries = s * np.concatenate([eye, -eye])
    for seed in range(60):
        tokens = rng.standard_normal((1024, dim))
        exact = Softmax()(tokens, queries, tokens)
        drawn = Performer(512, orthogonal=False, seed=seed)(np.sqrt(c) * tokens, queries / np.sqrt(c), tokens)
        samples.append(512 * ((drawn - exact) ** 2).sum(-1).mean())
    root = np.sqrt(c)
    constant = output_constant(np.zeros(dim), c * eye, root * eye, s / root * eye[0])
    assert 0.85 < np.mean(samples) / constant < 1.15
    assert output_constant(np.full(dim, 0.5), c * eye, root * eye, s / root * eye[0]) > 2 * constant
    assert output_constant(np.zeros(dim), 0.4 * eye, np.sqrt(0.4) * eye, s / np.sqrt(0.4) * eye[0]) > 2 * constant


def test_the_output_constant_is_a_gaussian_integral():
    """E[(v - T).(v' - T) exp((q + k).(q + k'))] over two independent tilted tokens, from a million pairs."""
    rng = np.random.default_rng(0)
    K, V = np.array([[0.3, 0.1], [0.0, 0.4]]), rng.standard_normal((3, 2))
    query, mean = np.array([1.0, -0.9]), np.array([0.2, 0.1])
    first, second = rng.standard_normal((2, 400_000, 2))
    shift = K.T @ query  # tokens N(mean, I), tilted by K' query
    k, k2 = ((x + mean + shift) @ K.T + query for x in (first, second))
    samples = np.vecdot(first @ V.T, second @ V.T) * np.exp(np.vecdot(k, k2))
    assert_mean(samples, output_constant(K @ mean, K @ K.T, V @ K.T, query))
    with pytest.raises(AssertionError):  # the tilted keys lie elsewhere
        assert_mean(samples, output_constant(K @ mean - K @ K.T @ query, K @ K.T, V @ K.T, query))


def test_a_key_variance_of_one_is_too_much():
    assert output_constant(np.zeros(2), np.eye(2), np.eye(2), np.zeros(2)) == np.inf
    assert output_constant(np.zeros(2), 0.99 * np.eye(2), np.eye(2), np.zeros(2)) < np.inf
    flat = output_constant(np.zeros(2), np.diag([0.5, 0.0]), np.diag([0.5, 0.0]), np.array([0.1, 0.3]))
    assert np.isfinite(flat)  # a singular key covariance


@pytest.mark.parametrize("features", [0, -1, 2.5])
def test_bad_numbers_of_features(features):
    with pytest.raises(ValueError, match="features must be a whole number of at least 1, received"):
        Performer(features)
