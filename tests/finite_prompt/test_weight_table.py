import numpy as np
import pytest

from lib.finite_prompt.weight_moments import softmax_functionals
from lib.finite_prompt.weight_table import weights_excess


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
