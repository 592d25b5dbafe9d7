"""Attention on prompts: closed forms, invariances, blocks of any size, Jacobians by finite differences, the limit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import norm

from lib.prompts.attention import (
    SoftmaxAccumulator,
    limit_attention,
    limit_jacobian,
    linear_attention,
    linear_jacobian,
    softmax_attention,
    softmax_jacobian,
    softmax_weights,
)
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian, Rademacher, Sphere

D, E, K = 7, 5, 11  # of tokens, of queries, of outputs: all different, so that a swapped axis fails


def setting(seed=0, n=3, length=13, q=4):
    """Tokens (n, L, d), queries (q, e), U (d, e), V (k, d)."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((n, length, D), (q, E), (D, E), (K, D))]


def by_hand(tokens, query, U, V, kind):
    """One prompt, one query, in loops, from the definition."""
    scores = [float(x @ U @ query) for x in tokens]
    if kind == "linear":
        return sum(s * (V @ x) for s, x in zip(scores, tokens, strict=True)) / len(tokens)
    weights = np.exp(scores) / sum(np.exp(scores))
    return sum(p * (V @ x) for p, x in zip(weights, tokens, strict=True))


@pytest.mark.parametrize(("attention", "kind"), [(softmax_attention, "softmax"), (linear_attention, "linear")])
def test_the_definition_and_the_axes(attention, kind):
    tokens, queries, U, V = setting()
    expected = np.array([[by_hand(x, z, U, V, kind) for z in queries] for x in tokens])
    assert attention(tokens, queries, U, V) == pytest.approx(expected, abs=1e-12)
    assert attention(tokens, queries[1], U, V) == pytest.approx(expected[:, 1], abs=1e-12)
    assert attention(tokens[2], queries, U, V) == pytest.approx(expected[2], abs=1e-12)
    assert attention(tokens[2], queries[1], U, V) == pytest.approx(expected[2, 1], abs=1e-12)
    own = np.stack([queries[:2], queries[1:3], queries[2:]])  # prompt i has queries i and i + 1
    expected = np.array([[expected[i, i], expected[i, i + 1]] for i in range(3)])
    assert attention(tokens, own, U, V) == pytest.approx(expected, abs=1e-12)
    assert attention(tokens[:1], own[:1], U, V).shape == (1, 2, K)


def test_weights():
    tokens, queries, U, _ = setting()
    weights = softmax_weights(tokens, queries, U)
    assert weights.shape == (3, 4, 13)
    assert weights.sum(axis=-1) == pytest.approx(1, abs=1e-14)
    scores = np.einsum("nld,de,qe->nql", tokens, U, queries)
    assert np.log(weights) - scores == pytest.approx((np.log(weights) - scores)[..., :1].repeat(13, -1), abs=1e-12)
    assert softmax_weights(tokens[0], queries[0], U) == pytest.approx(weights[0, 0], abs=1e-15)


def test_no_query_gives_the_mean():
    tokens, queries, U, V = setting()
    for query, matrix in ((0 * queries, U), (queries, 0 * U)):
        out = softmax_attention(tokens, query, matrix, V)
        assert out == pytest.approx(np.repeat((tokens.mean(1) @ V.T)[:, None], 4, axis=1), abs=1e-13)
        assert not linear_attention(tokens, query, matrix, V).any()


def test_two_tokens_give_a_logistic():
    tokens, queries, U, V = setting(length=2)
    first = expit((tokens[:, 0] - tokens[:, 1]) @ U @ queries.T)[..., None]  # (n, q, 1)
    mean = first * tokens[:, None, 0] + (1 - first) * tokens[:, None, 1]
    assert softmax_attention(tokens, queries, U, V) == pytest.approx(mean @ V.T, abs=1e-12)
    gap = tokens[:, None, 0] - tokens[:, None, 1]
    covariance = (first * (1 - first))[..., None] * gap[..., :, None] * gap[..., None, :]
    assert softmax_jacobian(tokens, queries, U, V).covariance == pytest.approx(covariance, abs=1e-12)


def test_one_token_gets_all_the_attention():
    tokens, queries, U, V = setting(length=1)
    jacobian = softmax_jacobian(tokens, queries, U, V)
    assert jacobian.mean == pytest.approx(np.repeat(tokens, 4, axis=1), abs=1e-15)
    assert not jacobian.covariance.any()


def test_equal_tokens_are_returned_whatever_the_query():
    tokens, queries, U, V = setting()
    tokens[:] = tokens[:, :1]
    out = softmax_attention(tokens, 50 * queries, U, V)
    assert out == pytest.approx(np.repeat(tokens[:, :1] @ V.T, 4, axis=1), abs=1e-12)


seeds = st.integers(0, 2**32 - 1)
some = settings(deadline=None, max_examples=25)


@some
@given(seeds, st.integers(1, 40), st.sampled_from([softmax_attention, linear_attention]))
def test_the_order_of_the_tokens_does_not_matter(seed, length, attention):
    tokens, queries, U, V = setting(seed, length=length)
    order = np.random.default_rng(seed).permutation(length)
    assert attention(tokens[:, order], queries, U, V) == pytest.approx(attention(tokens, queries, U, V), abs=1e-10)


@some
@given(seeds, st.floats(-100, 100))
def test_moving_the_tokens_shifts_every_score_and_moves_the_output(seed, by):
    tokens, queries, U, V = setting(seed)
    shift = by * np.random.default_rng(seed).standard_normal(D)
    moved = softmax_attention(tokens + shift, queries, U, V)
    assert moved == pytest.approx(softmax_attention(tokens, queries, U, V) + V @ shift, abs=1e-8)
    # but linear attention has no such invariance, so this is a statement about softmax
    assert abs(by) < 1 or not np.allclose(
        linear_attention(tokens + shift, queries, U, V), linear_attention(tokens, queries, U, V) + V @ shift
    )


@some
@given(seeds, st.sampled_from([softmax_attention, linear_attention]))
def test_rotating_the_tokens_and_the_gauge_of_the_queries(seed, attention):
    tokens, queries, U, V = setting(seed)
    rng = np.random.default_rng(seed)
    R, Q = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in (D, E))
    expected = attention(tokens, queries, U, V)
    assert attention(tokens @ R.T, queries, R @ U, V @ R.T) == pytest.approx(expected, abs=1e-10)
    assert attention(tokens, queries @ Q, U @ Q, V) == pytest.approx(expected, abs=1e-10)  # z -> Q^T z


@some
@given(seeds, st.integers(1, 60), st.integers(0, 10_000), st.sampled_from([softmax_attention, linear_attention]))
def test_the_size_of_the_blocks_does_not_matter(seed, length, max_block_bytes, attention):
    tokens, queries, U, V = setting(seed, length=length)
    expected = attention(tokens, queries, U, V)
    assert attention(tokens, queries, U, V, max_block_bytes) == pytest.approx(expected, abs=1e-10)
    jacobian = softmax_jacobian(tokens, queries, U, V, max_block_bytes)
    expected = softmax_jacobian(tokens, queries, U, V)
    assert jacobian.covariance == pytest.approx(expected.covariance, abs=1e-10)
    linear = linear_jacobian(tokens, queries, U, V, max_block_bytes)
    assert linear.covariance == pytest.approx(linear_jacobian(tokens, queries, U, V).covariance, abs=1e-10)


def test_more_queries_than_are_taken_at_once():
    tokens, queries, U, V = setting(q=600)
    expected = softmax_weights(tokens, queries, U) @ tokens @ V.T
    assert softmax_attention(tokens, queries, U, V) == pytest.approx(expected, abs=1e-12)
    own = np.random.default_rng(1).standard_normal((3, 600, E))
    expected = softmax_weights(tokens, own, U) @ tokens @ V.T
    assert softmax_attention(tokens, own, U, V, 1000) == pytest.approx(expected, abs=1e-12)


def test_scores_of_any_size():
    """Scores of 1e4 and 1e8, where exp overflows: the token of the largest score, no warning, no NaN."""
    tokens, queries, U, V = setting(length=50)
    for size in (1e4, 1e8, 1e300):
        scores = np.einsum("nld,de,qe->nql", tokens, U, queries)
        query = queries * size / np.abs(scores).max()
        with np.errstate(all="raise", under="ignore"):
            out = softmax_attention(tokens, query, U, V, max_block_bytes=1500)
            jacobian = softmax_jacobian(tokens, query, U, V, max_block_bytes=1500)
            weights = softmax_weights(tokens, query, U)
        winner = np.take_along_axis(tokens, scores.argmax(-1)[..., None], axis=1)
        assert out == pytest.approx(winner @ V.T, abs=1e-10)
        assert np.abs(jacobian.covariance).max() < 1e-10
        assert weights.max(-1) == pytest.approx(1)


def test_tokens_far_from_the_origin_keep_the_digits_of_the_covariance():
    tokens, queries, U, V = setting(length=100)
    near = softmax_jacobian(tokens, queries, U, V).covariance
    shift = 1e6 * np.linalg.qr(np.column_stack([U, np.ones(D)]))[0][:, -1]  # orthogonal to every U z
    far = softmax_jacobian(tokens + shift, queries, U, V, max_block_bytes=2000).covariance
    assert far == pytest.approx(near, abs=1e-8)  # the square of 1e6 has lost 1e-4


def jacobian_cases():
    tokens, queries, U, V = setting()
    own = np.random.default_rng(1).standard_normal((3, 2, E))
    gaussian = Gaussian(np.ones(D), covariance_matrix("toeplitz(0.5)", D))
    for name, attention, jacobian in (
        ("softmax", softmax_attention, softmax_jacobian),
        ("linear", linear_attention, linear_jacobian),
    ):
        for axes, x, z in (
            ("n q", tokens, queries),
            ("n", tokens, queries[0]),
            ("q", tokens[0], queries),
            ("", tokens[0], queries[0]),
            ("own", tokens, own),
        ):
            yield pytest.param(attention, jacobian, x, z, U, V, id=f"{name}-{axes}")
    for name, measure in (("gaussian", gaussian), ("sphere", Sphere(D, 2.0)), ("rademacher", Rademacher(D))):
        for axes, z in (("q", queries), ("", queries[0]), ("n q", own)):
            yield pytest.param(limit_attention, limit_jacobian, measure, z, U, V, id=f"{name}-{axes}")


@pytest.mark.parametrize(("attention", "jacobian", "prompt", "query", "U", "V"), list(jacobian_cases()))
def test_jacobians_by_finite_differences(attention, jacobian, prompt, query, U, V):
    at = jacobian(prompt, query, U, V)
    rng = np.random.default_rng(7)
    in_U, in_V, step = rng.standard_normal(U.shape), rng.standard_normal(V.shape), 1e-3

    def slope(f):
        return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step)

    expected = slope(lambda t: attention(prompt, query, U + t * in_U, V))
    assert at.apply_U(in_U) == pytest.approx(expected, abs=1e-7)
    expected = slope(lambda t: attention(prompt, query, U, V + t * in_V))
    assert at.apply_V(in_V) == pytest.approx(expected, abs=1e-9)
    assert at.apply_V(V) == pytest.approx(attention(prompt, query, U, V), abs=1e-12)  # linear in V
    dense = at.dense()
    assert dense.U.shape == (*expected.shape, D, E)
    assert dense.V.shape == (*expected.shape, K, D)
    assert np.einsum("...ijl,jl->...i", dense.U, in_U) == pytest.approx(at.apply_U(in_U), abs=1e-11)
    assert np.einsum("...ijl,jl->...i", dense.V, in_V) == pytest.approx(at.apply_V(in_V), abs=1e-11)


def test_linear_attention_is_linear_in_U_and_in_the_query():
    tokens, queries, U, V = setting()
    jacobian = linear_jacobian(tokens, queries, U, V)
    assert jacobian.apply_U(U) == pytest.approx(linear_attention(tokens, queries, U, V), abs=1e-12)
    out = linear_attention(tokens, queries, U, V)
    assert linear_attention(tokens, queries[0] + 3 * queries[1], U, V) == pytest.approx(
        out[:, 0] + 3 * out[:, 1], abs=1e-11
    )


def test_tokens_of_small_integers_do_not_overflow():
    tokens, queries, U, V = setting()
    tokens = (20 * tokens).round()
    for jacobian in (linear_jacobian, softmax_jacobian):
        expected = jacobian(tokens, queries, U, V)
        given = jacobian(tokens.astype(np.int8), queries, U, V)
        assert np.array_equal(given.mean, expected.mean)
        assert np.array_equal(given.covariance, expected.covariance)


# The limit
def test_the_limit_of_gaussian_tokens_is_affine_and_of_others_is_not():
    _, queries, U, V = setting()
    mean, covariance = np.arange(D) / D, covariance_matrix("rank(3)", D)
    out = limit_attention(Gaussian(mean, covariance), queries, U, V)
    assert out == pytest.approx(V @ mean + queries @ (V @ covariance @ U).T, abs=1e-12)
    for measure in (Rademacher(D), Sphere(D, np.sqrt(D))):  # the same mean and covariance as N(0, I)
        assert not np.allclose(limit_attention(measure, queries, U, V), queries @ (V @ U).T, rtol=0.1)


def assert_within_noise(samples, expected):
    """Mean over the first axis; false-alarm rate 1e-6 over all entries together (Bonferroni, normal)."""
    z = np.abs(samples.mean(0) - expected) / (samples.std(0) / np.sqrt(len(samples)))
    assert z.max() < norm.isf(1e-6 / (2 * z.size)), z.max()


@pytest.mark.parametrize("measure", [Gaussian(np.zeros(5), np.eye(5)), Rademacher(5), Sphere(5, np.sqrt(5))])
def test_long_prompts_approach_their_limit(measure):
    """Self-normalized sums have a bias of order 1/L: with s = 0.5, 300 prompts of 4000 tokens the standard error is
    sqrt(e^{s^2} (1 + s^2) / (300 * 4000)) = 1.1e-3 a coordinate and the bias at most s e^{s^2} / L = 1.6e-4, that of
    the covariance 3e-4 for a standard error of 1.5e-3: neither is seen."""
    query = np.array([0.5, 0, 0, 0, 0]) @ np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
    tokens = measure.sample(300, 4000, np.random.default_rng(11))
    out = softmax_attention(tokens, query, np.eye(5), np.eye(5))
    assert_within_noise(out, limit_attention(measure, query, np.eye(5), np.eye(5)))
    with pytest.raises(AssertionError):  # negative control: the shrinkage of a prompt of 20 tokens is seen
        short = tokens.reshape(-1, 20, 5)
        assert_within_noise(
            softmax_attention(short, query, np.eye(5), np.eye(5)),
            limit_attention(measure, query, np.eye(5), np.eye(5)),
        )
    covariance = softmax_jacobian(tokens, query, np.eye(5), np.eye(5)).covariance
    expected = limit_jacobian(measure, query, np.eye(5), np.eye(5)).covariance
    assert_within_noise(covariance, expected)


def test_linear_attention_of_centered_tokens_is_unbiased():
    """E (1/L) sum V x (x.Uz) = V Gamma U z at every L; 20,000 prompts of 3 tokens, false-alarm rate 1e-6."""
    _, queries, U, V = setting()
    covariance = covariance_matrix("toeplitz(0.5)", D)
    tokens = Gaussian(np.zeros(D), covariance).sample(20_000, 3, np.random.default_rng(3))
    assert_within_noise(linear_attention(tokens, queries, U, V), queries @ (V @ covariance @ U).T)


# Bad input
X, Z, U0, V0 = setting()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_attention(X[0, 0], Z, U0, V0), r"tokens: expected shape .*received \(7,\)"),
        (lambda: softmax_attention(X[:, :0], Z, U0, V0), r"tokens: expected .* received \(3, 0, 7\)"),
        (lambda: softmax_attention(X, Z, U0.T, V0), r"U: expected shape \(7, 5\), received \(5, 7\)"),
        (lambda: softmax_attention(X, Z, U0, V0.T), r"V: expected shape \(k, 7\), received \(7, 11\)"),
        (lambda: softmax_attention(X, Z[:, :4], U0, V0), r"U: expected shape \(7, 4\), received \(7, 5\)"),
        (lambda: softmax_attention(X, 1.0, U0, V0), "query: expected a vector or an array of vectors"),
        (lambda: softmax_attention(X, np.zeros((2, 4, 5)), U0, V0), r"with the n of the tokens \(3, 13, 7\), received"),
        (lambda: softmax_attention(X[0], np.zeros((1, 4, 5)), U0, V0), r"query: expected shape .*\(1, 4, 5\)"),
        (lambda: linear_attention(X, np.zeros((1, 1, 4, 5)), U0, V0), r"query: expected .*\(1, 1, 4, 5\)"),
        (lambda: softmax_weights(X, Z, U0[None]), r"U: expected shape \(7, 5\), received \(1, 7, 5\)"),
        (lambda: limit_attention(Sphere(5, 1.0), Z, U0, V0), r"U: expected shape \(5, 5\), received \(7, 5\)"),
        (lambda: softmax_jacobian(X, Z, U0, V0).apply_U(U0.T), r"H: expected shape \(7, 5\), received \(5, 7\)"),
        (lambda: softmax_jacobian(X, Z, U0, V0).apply_V(V0.T), r"H: expected shape \(11, 7\), received \(7, 11\)"),
        (lambda: SoftmaxAccumulator(1.0), r"directions: expected shape \(d,\), \(q, d\) or \(n, q, d\)"),
        (lambda: SoftmaxAccumulator(np.ones(7)).mean, "no tokens yet: call update first"),
        (lambda: SoftmaxAccumulator(np.ones(7)).update(X).covariance, "needs second_moment=True"),
        (lambda: SoftmaxAccumulator(np.ones(5)).update(X), r"expected shape \(n, block, 5\).*received \(3, 13, 7\)"),
        (lambda: SoftmaxAccumulator(np.ones((2, 4, 7))).update(X), r"expected shape \(2, block, 7\), received \(3, 13"),
        (lambda: SoftmaxAccumulator(np.ones(7)).update(X).update(X[:2]), r"expected shape \(3, block, 7\), received"),
        (lambda: SoftmaxAccumulator(np.ones(7)).update(X).update(X[0]), r"expected shape \(3, block, 7\), received"),
    ],
)
def test_bad_input_is_refused_with_both_shapes(call, message):
    with pytest.raises(ValueError, match=message):
        call()
