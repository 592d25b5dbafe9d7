import numpy as np
import pytest

from lib.finite_prompt.weight_moments import softmax_functionals
from lib.finite_prompt.weight_table import FROZEN_ERROR, weights_excess


@pytest.mark.parametrize("end", [0.3, 6.0, 40.0])  # each reads another number of panels
def test_the_table_is_the_functionals(end):
    lengths = (1.0, 2.0, 10.0, 1e3, 1e9, 1e15, 1e40)
    s = np.append(np.random.default_rng(0).uniform(0, end, 30), end)
    L, x = np.array(lengths), s[:, None] ** 2
    exact = softmax_functionals(s[:, None], L)
    y, W = weights_excess(lengths, s)
    y, W = y + 1 / L, W - 1 / L
    assert np.abs(y / exact.inverse_participation - 1).max() < 3e-10
    error = np.abs((y + (W + 2 * y) * x) / exact.squared_error - 1)
    assert error.max() < 3e-10
    assert error[:, L < 1e16].max() < 3e-12


def test_what_is_taken_out_at_zero_is_the_limit():
    s = np.array([1e-7, 1e-3])
    for values in weights_excess((1.0, 2.0, 1e6), s):
        assert np.abs(values[0]).max() < 1e-13
        assert np.abs(values[1]).max() < 1e-5
    y, _ = weights_excess((50.0,), s)
    np.testing.assert_allclose(y[1, 0], 1e-6 * (1 - 1 / 50) / 50, rtol=1e-4)  # L y = 1 + (1 - 1/L) s^2 + ...


def test_beyond_the_table_two_tokens_have_their_integrals():
    """eta and zeta of two tokens are integrals of tanh(s u / sqrt(2)), u normal: within what is said at any s."""
    u, step = np.linspace(-9, 9, 200_001, retstep=True)
    mass = np.exp(-(u**2) / 2) * step / np.sqrt(2 * np.pi)
    for s in (41.0, 100.0, 1e3):
        tanh = np.tanh(s * u / np.sqrt(2))
        eta, zeta = 0.5 + tanh**2 @ mass / 2, 0.5 + (tanh * u / np.sqrt(2) - s) ** 2 @ mass
        W = (zeta - eta) / s**2 - 2 * eta
        excess, shifted = (part[0, 0] for part in weights_excess((2.0,), np.array([s])))
        assert excess + 0.5 == pytest.approx(eta, abs=FROZEN_ERROR)
        assert shifted - 0.5 == pytest.approx(W, abs=FROZEN_ERROR)


def test_the_expansions_meet_the_table_where_it_ends():
    """From half its end on, they are within the error that is told at its end, at every length."""
    for length in (2.0, 1e3, 1e15, 1e40):
        ends = weights_excess((length,), np.array([40 / 2, 40 / np.sqrt(2)]))
        before, after = (weights_excess((length,), np.array([x])) for x in (40.0, np.nextafter(40.0, 50)))
        for x, y in zip(before, after, strict=True):
            assert y == pytest.approx(x, abs=1e-9)
        assert np.all(np.isfinite(ends))
