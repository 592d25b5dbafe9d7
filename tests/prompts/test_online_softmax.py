"""Softmax averages block by block: equal to one shot, stable, bounded in memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.prompts.attention import linear_attention, softmax_attention, softmax_weights
from lib.prompts.online_softmax import SoftmaxAccumulator

D, E, K = 7, 5, 11  # of tokens, of queries, of outputs: all different, so that a swapped axis fails
seeds = st.integers(0, 2**32 - 1)
some = settings(deadline=None, max_examples=25)


def setting(seed=0, n=3, length=13, q=4):
    """Tokens (n, L, d), queries (q, e), U (d, e), V (k, d)."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((n, length, D), (q, E), (D, E), (K, D))]


def streamed(tokens, directions, cuts):
    accumulator = SoftmaxAccumulator(directions, second_moment=True)
    for block in np.split(tokens, cuts, axis=-2):
        accumulator.update(block)
    return accumulator


@some
@given(seeds, st.lists(st.integers(1, 59), unique=True, max_size=6), st.sampled_from([0.1, 1.0, 30.0, 1e4]))
def test_streaming_equals_one_shot(seed, cuts, size):
    tokens, queries, U, _ = setting(seed, length=60)
    directions = size * queries @ U.T
    accumulator = streamed(tokens, directions, sorted(cuts))
    weights = softmax_weights(tokens, size * queries, U)
    mean = weights @ tokens
    centered = tokens[:, None] - mean[:, :, None]
    assert accumulator.count == 60
    assert accumulator.mean == pytest.approx(mean, abs=1e-9)
    expected = np.einsum("nql,nqld,nqlf->nqdf", weights, centered, centered)
    assert accumulator.covariance == pytest.approx(expected, abs=1e-9)
    assert accumulator.inverse_participation == pytest.approx((weights**2).sum(-1), rel=1e-9)
    assert accumulator.effective_sample_size == pytest.approx(1 / (weights**2).sum(-1), rel=1e-9)


def test_a_block_far_below_and_one_far_above_the_maximum():
    """Scores 0, then -1e4, then +1e4: the weights of a block may all underflow, those kept as well."""
    tokens = np.zeros((3, 4, 2))
    tokens[..., 0] = np.array([0.0, -1e4, 1e4])[:, None]
    tokens[..., 1] = np.arange(12).reshape(3, 4)
    accumulator = SoftmaxAccumulator([1.0, 0.0], second_moment=True)
    with np.errstate(all="raise", under="ignore"):
        for block, mean in zip(tokens, ([0, 1.5], [0, 1.5], [1e4, 9.5]), strict=True):
            accumulator.update(block)
            assert accumulator.mean == pytest.approx(mean)
            assert accumulator.covariance == pytest.approx(np.diag([0.0, 1.25]))
            assert accumulator.effective_sample_size == pytest.approx(4)


def test_the_axes_of_the_accumulator():
    tokens, queries, U, _ = setting()
    directions = queries @ U.T
    for shape, block, where in (
        ((3, 4), tokens, directions),
        ((3,), tokens, directions[0]),
        ((4,), tokens[0], directions),
        ((), tokens[0], directions[0]),
        ((3, 4), tokens, np.stack([directions] * 3)),
    ):
        accumulator = SoftmaxAccumulator(where, second_moment=True).update(block)
        assert accumulator.mean.shape == (*shape, D)
        assert accumulator.covariance.shape == (*shape, D, D)
        assert np.shape(accumulator.effective_sample_size) == shape


def test_a_result_does_not_change_with_later_blocks():
    tokens, queries, U, _ = setting()
    accumulator = SoftmaxAccumulator(queries @ U.T, second_moment=True).update(tokens)
    mean, covariance = accumulator.mean, accumulator.covariance
    before = mean.copy(), covariance.copy()
    accumulator.update(tokens + 1)
    assert np.array_equal(mean, before[0])
    assert np.array_equal(covariance, before[1])


def test_memory_is_bounded_by_the_block():
    """64 MB of tokens, 64 queries: temporaries of a few blocks, not 64 numbers a token (512 MB)."""
    tokens = np.zeros((1, 2**20, 8))
    query, U = np.zeros((64, 8)), np.eye(8)
    for attention in (softmax_attention, linear_attention):
        tracemalloc.start()
        attention(tokens, query, U, U)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8e6


def test_a_block_of_another_number_of_prompts_is_refused():
    accumulator = SoftmaxAccumulator(np.ones(D)).update(np.ones((3, 4, D)))
    for other in (np.ones((2, 4, D)), np.ones((4, D))):
        with pytest.raises(ValueError, match=r"expected shape \(3, block, 7\), received"):
            accumulator.update(other)
