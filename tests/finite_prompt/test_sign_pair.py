"""A sign pair of heads: exact against quadrature over two tokens, prompts, its law, and what it cancels."""

import numpy as np
import pytest

from lib.experiments.settings import generic_head
from lib.finite_prompt import (
    output_error,
    pair_functionals,
    pair_output_error,
    pair_sharp_constant,
    sharp_constant,
    sign_pair,
)
from lib.prompts.attention import softmax_attention
from lib.prompts.streams import stream


@pytest.mark.parametrize("s", [0.01, 0.3, 1.0, 2.0])
def test_two_tokens_by_quadrature(s):
    x, w = np.polynomial.hermite_e.hermegauss(120)
    g, weights = np.stack(np.meshgrid(x, x)), np.outer(w, w) / (2 * np.pi)
    p, m = (1 / (1 + np.exp(-sign * s * (g[0] - g[1]))) for sign in (1, -1))
    half = (p - m) / 2
    found = pair_functionals(s, 2)
    assert found.inverse_participation == pytest.approx((weights * 2 * half**2).sum(), rel=1e-9)
    assert found.squared_error == pytest.approx((weights * (half * (g[0] - g[1]) - s) ** 2).sum(), rel=1e-9)


def test_one_token_gives_nothing():
    s = np.array([0.0, 1e-5, 0.3, 2.0, 8.0])
    found = pair_functionals(s, 1)
    assert np.allclose(found.inverse_participation, 0, atol=1e-12) and np.allclose(found.squared_error, s**2, rtol=1e-9)


@pytest.mark.parametrize("s", [0.5, 1.5])
def test_against_prompts_with_a_mean(s):
    """Tokens N(m, Gamma): the mean cancels. Each within 4.2 standard errors: false-alarm rate 2e-4 in all."""
    gamma, (query, U, V), rng = np.diag([2.0, 1.0, 0.3]), generic_head(3, np.diag([2.0, 1.0, 0.3]), s, 7), stream(3, s)
    for length in (5, 40, 200):
        X = np.array([3.0, -1.0, 2.0]) + rng.standard_normal((4000, length, 3)) * np.sqrt(np.diag(gamma))
        pair = (softmax_attention(X, query, U, V) - softmax_attention(X, -query, U, V)) / 2
        errors = ((pair - V @ gamma @ U @ query) ** 2).sum(-1)
        exact = pair_output_error(gamma, query, U, V, length)
        assert abs(errors.mean() - exact) < 4.2 * errors.std() / np.sqrt(4000)


def test_the_law_of_long_prompts_and_of_quiet_and_loud_scores():
    gamma = np.diag([2.0, 1.0, 0.3])
    for s, rtol in ((0.2, 1e-9), (1.0, 1e-9), (2.5, 1e-4)):
        head = generic_head(3, gamma, s, 7)
        assert 1e15 * pair_output_error(gamma, *head, 1e15) == pytest.approx(
            pair_sharp_constant(gamma, *head), rel=rtol
        )
    quiet, loud = generic_head(3, gamma, 1e-4, 7), generic_head(3, gamma, 4.0, 7)
    assert pair_output_error(gamma, *quiet, 50) < 1e-7 * output_error(gamma, *quiet, 50)
    assert pair_sharp_constant(gamma, *loud) == pytest.approx(sharp_constant(gamma, *loud) / 2, rel=1e-6)


def test_in_proportion_to_the_square_of_tiny_scores():
    near = [pair_functionals(s, [2, 30, 1e6]) for s in (sign_pair.QUIET * 0.999999, sign_pair.QUIET * 1.000001)]
    for name in ("inverse_participation", "squared_error"):
        below, above = (getattr(x, name) for x in near)
        assert np.allclose(above, below, rtol=1e-5)
    zero = pair_functionals(0.0, 5)
    assert zero.inverse_participation == 0 and zero.squared_error == 0


@pytest.mark.parametrize("s", [0.1, 2.0, 6.0])
def test_finer_grids_change_nothing(s, monkeypatch):
    lengths = [2, 10, 1e4, 1e8, 1e15]
    coarse = pair_functionals(s, lengths)
    for name, value in (("TAU_STEP", 0.2), ("NODE_STEP", 0.3), ("NEGLIGIBLE", 50.0), ("REACH", 11.0)):
        monkeypatch.setattr(sign_pair, name, value)
    fine = pair_functionals(s, lengths)
    for name in ("inverse_participation", "squared_error"):
        assert np.allclose(getattr(coarse, name), getattr(fine, name), rtol=1e-9 if s < 1 else 1e-11)


def test_arguments_out_of_range():
    with pytest.raises(ValueError, match="s must be between 0 and 12 for a pair of heads"):
        pair_functionals(12.5, 10)
    for length in (0, 2.5, 1e16):
        with pytest.raises(ValueError, match="prompt length must be whole and between 1 and 1e\\+15"):
            pair_functionals(1.0, length)
