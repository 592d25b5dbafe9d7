"""Exact errors of moment and linear attention: against prompts, in closed forms and limits, with negative controls."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.finite_prompt import output_error, sharp_constant
from lib.kernels import LinearAttention, MomentAttention, Softmax, project, split
from lib.kernels.exact_errors import linear_error, moment_error, moment_softmax_distance, softmax_size
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian

D, K = 4, 3
CASES = [("isotropic", 1.3, 10), ("toeplitz(0.9)", 0.6, 37), ("rank(2)", 2.0, 3), ("condition(30)", 1.0, 2)]


def setting(spec, s, seed=0):
    rng = np.random.default_rng(seed)
    gamma, mean, z = covariance_matrix(spec, D), rng.standard_normal(D), rng.standard_normal(D)
    U, V = rng.standard_normal((D, D)), rng.standard_normal((K, D))
    return gamma, mean, z, U * s / np.sqrt(z @ U.T @ gamma @ U @ z), V


def prompts(spec, s, length, n=40_000):
    gamma, mean, z, U, V = setting(spec, s)
    tokens = Gaussian(mean, gamma).sample(n, length, np.random.default_rng(length))
    inputs, limit = project(tokens, z, *split(U), V), V @ (mean + gamma @ U @ z)
    return (gamma, z, U, V), mean, limit, [f(*inputs) for f in (Softmax(), MomentAttention(), LinearAttention())]


@pytest.mark.parametrize(("spec", "s", "length"), CASES)
def test_errors_on_prompts(spec, s, length):
    """40,000 prompts; false-alarm rate 1e-6 each. Tokens are not centered: only linear attention notices."""
    head, mean, limit, (softmax, moment, linear) = prompts(spec, s, length)
    assert_mean(((moment - limit) ** 2).sum(-1), float(moment_error(*head, length)))
    assert_mean(((moment - softmax) ** 2).sum(-1), float(moment_softmax_distance(*head, length)))
    assert_mean(((linear - limit) ** 2).sum(-1), float(linear_error(mean, *head, length)))
    assert_mean(((softmax - head[-1] @ mean) ** 2).sum(-1), float(softmax_size(*head, length)))
    with pytest.raises(AssertionError):
        assert_mean(((linear - limit) ** 2).sum(-1), float(linear_error(0 * mean, *head, length)))
    with pytest.raises(AssertionError):
        assert_mean(((moment - softmax) ** 2).sum(-1), float(moment_error(*head, length) + output_error(*head, length)))


def test_pythagoras_in_the_limit():
    """L times: softmax to limit = softmax to moment + moment to limit, as L grows; not at a finite length."""
    gamma, _, z, U, V = setting("toeplitz(0.5)", 0.9)
    head, length = (gamma, z, U, V), 1e9
    sides = length * moment_softmax_distance(*head, length) + length * moment_error(*head, length)
    assert sides == pytest.approx(float(sharp_constant(*head)), rel=1e-6)
    finite = moment_softmax_distance(*head, 10) + moment_error(*head, 10)
    assert abs(finite / output_error(*head, 10) - 1) > 0.05


def test_closed_forms():
    gamma, mean, z, U, V = setting("toeplitz(0.5)", 0.9)
    total = np.trace(V @ gamma @ V.T)
    one = (V @ gamma @ U @ z) @ (V @ gamma @ U @ z) + total
    assert moment_error(gamma, z, U, V, 1) == pytest.approx(one)  # one token: the output is that token's value
    assert moment_softmax_distance(gamma, z, U, V, 1) == 0
    lengths = np.array([1, 2, 1000, 1e12])
    assert moment_error(gamma, z, 0 * U, V, lengths) == pytest.approx(total / lengths)
    assert not moment_softmax_distance(gamma, z, 0 * U, V, lengths).any()
    assert softmax_size(gamma, z, 0 * U, V, lengths) == pytest.approx(total / lengths)
    assert linear_error(0 * mean, gamma, z, 0 * U, V, lengths) == pytest.approx(0 * lengths)
    scale = U / (mean @ U @ z)  # m . a = 1: no bias
    assert linear_error(mean, gamma, z, scale, V, 1e15) < 1e-12
    assert linear_error(mean, gamma, z, 2 * scale, V, 1e15) == pytest.approx((V @ mean) @ (V @ mean))


def test_the_distance_is_of_fourth_order_in_weak_scores():
    gamma, _, z, U, V = setting("isotropic", 1.0)
    weak = [float(moment_softmax_distance(gamma, z, s * U, V, 200)) for s in (0.04, 0.08)]
    assert np.log2(weak[1] / weak[0]) == pytest.approx(4, abs=0.05)


def test_moment_attention_is_closer_but_not_on_the_shortest_prompts():
    eye, a = np.eye(64), 3 * np.eye(64)[0]
    assert moment_error(eye, a, eye, eye, 10) > output_error(eye, a, eye, eye, 10)
    lengths = 6 * 10 * np.array([1, 10, 1e3, 1e6])
    assert np.all(moment_error(eye, a, eye, eye, lengths) < output_error(eye, a, eye, eye, lengths))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"U": np.eye(3)}, "U does not fit tokens of dimension 4"),
        ({"query": np.ones((2, 4))}, r"query: expected .*2, 4"),
    ],
)
def test_bad_input(change, message):
    arguments = {"covariance": np.eye(4), "query": np.ones(4), "U": np.eye(4), "V": np.eye(4), "length": 10} | change
    with pytest.raises(ValueError, match=message):
        moment_error(**arguments)
