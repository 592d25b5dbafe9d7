"""Kernels and their common interface: definitions, closed forms, invariances, blocks of any size, costs, bad input."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import kernels
from lib.kernels import (
    LinearAttention,
    Linformer,
    MomentAttention,
    Performer,
    Softmax,
    project,
    split,
)
from lib.prompts.attention import limit_attention, linear_attention, softmax_attention
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian

N, L, R, K, Q, D, E = 3, 13, 5, 11, 4, 7, 6  # all different, so that a swapped axis fails
EXCHANGEABLE = [Softmax(), MomentAttention(), LinearAttention(), Performer(40, seed=3)]
ALL = [*EXCHANGEABLE, Linformer.gaussian(L, 6)]
STREAMING = [MomentAttention(), MomentAttention(unbiased=True), LinearAttention(), Performer(40)]
some = settings(max_examples=15, deadline=None)


def inputs(seed=0, length=L):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) / 2 for shape in ((N, length, R), (Q, R), (N, length, K))]


def named(kernel):
    return type(kernel).__name__


@pytest.mark.parametrize("kernel", ALL, ids=named)
def test_the_axes(kernel):
    keys, queries, values = inputs()
    out = kernel(keys, queries, values)
    assert out.shape == (N, Q, K)
    assert kernel(keys, queries[1], values) == pytest.approx(out[:, 1], abs=1e-12)
    assert kernel(keys[2], queries, values[2]) == pytest.approx(out[2], abs=1e-12)
    assert kernel(keys[2], queries[1], values[2]) == pytest.approx(out[2, 1], abs=1e-12)
    own = np.stack([queries[:2], queries[1:3], queries[2:]])  # prompt i has queries i and i + 1
    expected = [[out[i, i], out[i, i + 1]] for i in range(N)]
    assert kernel(keys, own, values) == pytest.approx(np.array(expected), abs=1e-12)


@pytest.mark.parametrize("kernel", ALL, ids=named)
def test_linear_in_the_values_and_the_order_of_tokens_does_not_matter(kernel):
    keys, queries, values = inputs()
    other = inputs(1)[2]
    both = kernel(keys, queries, values + 2 * other)
    assert both == pytest.approx(kernel(keys, queries, values) + 2 * kernel(keys, queries, other), abs=1e-12)
    order = np.random.default_rng(2).permutation(L)
    shuffled = kernel(keys[:, order], queries, values[:, order])
    assert np.allclose(shuffled, kernel(keys, queries, values), atol=1e-12) == (kernel in EXCHANGEABLE)


def test_softmax_is_the_exact_baseline(monkeypatch):
    rng = np.random.default_rng(0)
    tokens, z = rng.standard_normal((N, L, D)), rng.standard_normal((Q, E))
    U, V = rng.standard_normal((D, E)), rng.standard_normal((K, D))
    exact = softmax_attention(tokens, z, U, V)
    for scale in (1.0, 0.3, 5.0):  # however U is split
        keys, queries, values = project(tokens, z, *split(U, scale), V)
        assert Softmax()(keys, queries, values) == pytest.approx(exact, abs=1e-12)
    monkeypatch.setattr("lib.kernels.softmax.SCORES_IN_MEMORY", 1)
    assert Softmax()(keys, queries, values) == pytest.approx(exact, abs=1e-12)


def test_linear_and_moment_attention_are_their_definitions():
    rng = np.random.default_rng(0)
    tokens, z = rng.standard_normal((N, L, D)) + 1, rng.standard_normal((Q, E))
    U, V = rng.standard_normal((D, E)), rng.standard_normal((K, D))
    prompt = project(tokens, z, *split(U), V)
    assert LinearAttention()(*prompt) == pytest.approx(linear_attention(tokens, z, U, V), abs=1e-11)
    for kernel, ddof in ((MomentAttention(), 0), (MomentAttention(unbiased=True), 1)):
        expected = [V @ x.mean(0) + z @ U.T @ np.cov(x.T, ddof=ddof) @ V.T for x in tokens]
        assert kernel(*prompt) == pytest.approx(np.array(expected), abs=1e-11)
    keys, queries, values = prompt
    shifted = keys + rng.standard_normal(R + 1)  # r is the smaller of d and e, here 6
    assert MomentAttention()(shifted, queries, values) == pytest.approx(MomentAttention()(*prompt), abs=1e-11)
    assert Softmax()(shifted, queries, values) == pytest.approx(Softmax()(*prompt), abs=1e-11)
    assert not np.allclose(LinearAttention()(shifted, queries, values), LinearAttention()(*prompt), atol=1e-2)
    scores = np.einsum("nlr,qr->nql", keys, queries)
    weights = (1 + scores - scores.mean(-1, keepdims=True)) / L
    assert MomentAttention()(*prompt) == pytest.approx(weights @ values, abs=1e-11)


@pytest.mark.parametrize("spec", ["isotropic", "toeplitz(0.9)", "rank(3)"])
def test_moment_attention_is_the_limit_where_the_moments_are_exact(spec):
    rng = np.random.default_rng(1)
    covariance, mean = covariance_matrix(spec, D), rng.standard_normal(D)
    root = np.linalg.cholesky(covariance + 1e-300) if spec != "rank(3)" else np.sqrt(covariance)
    x = rng.standard_normal((50, D))
    white = np.linalg.qr(x - x.mean(0))[0] * np.sqrt(len(x))  # mean 0 and covariance I to rounding
    tokens, z = mean + white @ root.T, rng.standard_normal((Q, E))
    U, V = rng.standard_normal((D, E)), rng.standard_normal((K, D))
    limit = limit_attention(Gaussian(mean, covariance), z, U, V)
    prompt = project(tokens, z, *split(U), V)
    assert MomentAttention()(*prompt) == pytest.approx(limit, abs=1e-11)
    assert not np.allclose(Softmax()(*prompt), limit, atol=0.1)
    assert not np.allclose(LinearAttention()(*prompt), limit, atol=0.1)


@pytest.mark.parametrize("kernel", ALL, ids=named)
def test_no_query(kernel):
    """Equal scores: the mean for those whose weights sum to one, and nothing for linear attention."""
    keys, queries, values = inputs()
    out = kernel(0 * keys, queries, values)
    if isinstance(kernel, Linformer):
        assert out[:, 0] == pytest.approx((kernel.value_rows @ values).mean(1), abs=1e-13)
    elif isinstance(kernel, LinearAttention):
        assert not out.any()
    else:
        assert out == pytest.approx(np.repeat(values.mean(1)[:, None], Q, axis=1), abs=1e-13)


@some
@given(st.integers(0, 10**6), st.lists(st.integers(1, 59), unique=True, max_size=6), st.sampled_from(STREAMING))
def test_streaming_equals_batch(seed, cuts, kernel):
    keys, queries, values = inputs(seed, length=60)
    state = kernel.state()
    for block in np.split(np.arange(60), sorted(cuts)):
        state.update(keys[:, block], values[:, block])
    expected = kernel(keys, queries, values)
    assert state.count == 60
    assert state.read(queries) == pytest.approx(expected, abs=1e-12)
    assert state.read(queries[0]) == pytest.approx(expected[:, 0], abs=1e-12)
    single = kernel.state().update(keys[1], values[1])
    assert single.read(queries[0]) == pytest.approx(expected[1, 0], abs=1e-12)


@pytest.mark.parametrize("kernel", STREAMING, ids=named)
def test_the_state_has_the_size_that_the_cost_says_whatever_the_length(kernel):
    for length in (10, 1000):
        keys, _, values = inputs(length=length)
        state = kernel.state().update(keys, values)
        assert state.numbers == kernel.cost(length, R, K).state
    keys, queries, values = inputs()
    before = kernel.state().update(keys, values)
    first = before.read(queries).copy()
    before.update(keys + 1, values + 1)
    assert not np.allclose(before.read(queries), first)


def test_moments_of_tokens_far_from_the_origin_keep_their_digits():
    keys, queries, values = inputs(length=100)
    far = MomentAttention().state()
    for block in np.array_split(np.arange(100), 7):
        far.update(keys[:, block] + 1e7, values[:, block] - 1e7)
    assert far.read(queries) + 1e7 == pytest.approx(MomentAttention()(keys, queries, values), abs=1e-6)


def test_a_split_gives_back_the_matrix():
    U = np.random.default_rng(0).standard_normal((D, E))
    for scale in (1.0, 0.2):
        K_, Q_ = split(U, scale)
        assert K_.shape == (E, D)
        assert Q_.shape == (E, E)
        product = K_.T @ Q_
        assert product == pytest.approx(U, abs=1e-13)
    assert np.linalg.norm(split(U, 0.5)[0]) == pytest.approx(0.5 * np.linalg.norm(split(U)[0]))


def test_costs():
    """Leading terms: 2 L (r + k) a query and L (r + k) numbers for softmax; 2 L r k once and 2 r k for moments."""
    length, r, k = 10**6, 64, 32
    exact, moment = Softmax().cost(length, r, k), MomentAttention().cost(length, r, k)
    assert exact.state == length * (r + k)
    assert exact.query == pytest.approx(2 * length * (r + k), rel=0.01)
    assert moment.build == pytest.approx(2 * length * r * k, rel=0.05)
    assert moment.query == pytest.approx(2 * r * k, rel=0.01)
    assert moment.operations(10) == moment.build + 10 * moment.query
    performer = Performer(256).cost(length, r, k)
    assert performer.build == pytest.approx(2 * length * 256 * (r + k), rel=0.02)
    assert performer.shared == 256 * r
    assert Linformer.gaussian(1000, 10).cost(1000, r, k)[2:] == (10 * (r + k), 2 * 10 * 1000)


def test_the_five_lines_of_the_documentation():
    assert doctest.testmod(kernels).failed == 0


X, Z, Y = inputs()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Softmax()(X, Z, Y[:, 1:]), r"keys \(n, L, r\) and values .* received \(3, 13, 5\) and \(3, 12, 11\)"),
        (lambda: Softmax()(X[0, 0], Z, Y[0, 0]), r"received \(5,\) and \(11,\)"),
        (lambda: Softmax()(X, Z, Y[0]), r"received \(3, 13, 5\) and \(13, 11\)"),
        (lambda: Softmax()(X[:, :0], Z, Y[:, :0]), "none of them empty"),
        (lambda: MomentAttention()(X, Z[:, :4], Y), r"query: .* with r = 5 and n = 3 as the keys, received \(4, 4\)"),
        (lambda: MomentAttention()(X, np.zeros((2, 4, 5)), Y), r"query: .* received \(2, 4, 5\)"),
        (lambda: Performer()(X[0], np.zeros((3, 4, 5)), Y[0]), r"query: .* received \(3, 4, 5\)"),
        (lambda: MomentAttention(unbiased=True)(X[:, :1], Z, Y[:, :1]), "needs at least 2 tokens, received 1"),
        (lambda: MomentAttention().state().read(Z), "no tokens yet: call update first"),
        (lambda: MomentAttention().state().update(X, Y).update(X[:2], Y[:2]), r"keys \(3, block, 5\) and values"),
        (lambda: MomentAttention().state().update(X, Y).update(X[0], Y[0]), r"keys \(3, block, 5\) and values"),
        (lambda: MomentAttention().state().update(X, Y).read(Z[:, :2]), "with r = 5"),
        (lambda: split(np.eye(3), 0), "key_scale must be positive, received 0"),
        (lambda: project(X, Z, np.eye(4), np.eye(5), np.eye(5)), r"K: expected shape \(., 5\), received \(4, 4\)"),
        (lambda: project(X, Z, np.eye(5), np.eye(4), np.eye(5)), r"Q: expected shape \(., 5\), received \(4, 4\)"),
        (lambda: project(X, Z, np.eye(5), np.eye(5), np.ones(5)), r"V: expected shape \(., 5\), received \(5,\)"),
    ],
)
def test_bad_input_is_refused_with_the_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()
