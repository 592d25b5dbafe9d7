"""Laplace and Student t tokens: their moments, and where they have none."""

import numpy as np
import pytest

from lib.prompts.streams import stream
from lib.tokens.heavy_tails import Laplace, StudentT


def test_the_tilts_of_laplace_tokens_are_derivatives():
    measure, a, e = Laplace(2, 0.7), np.array([0.4, -1.1]), 1e-5 * np.eye(2)
    slopes = [(measure.log_mgf(a + x) - measure.log_mgf(a - x)) / 2e-5 for x in e]
    assert np.allclose(measure.tilted_mean(a), slopes, rtol=1e-8)
    slopes = [(measure.tilted_mean(a + x) - measure.tilted_mean(a - x)) / 2e-5 for x in e]
    assert np.allclose(measure.tilted_covariance(a), slopes, rtol=1e-8)


def test_samples_have_the_variance():
    """Each within 4.5 standard errors: false-alarm rate 2e-5."""
    for measure in (Laplace(1), StudentT(1, 12.0)):
        squares = measure.sample(1, 100_000, stream(0, type(measure).__name__)).ravel() ** 2
        assert abs(squares.mean() - measure.covariance[0, 0]) < 4.5 * squares.std() / np.sqrt(100_000)
    assert Laplace(3).covariance == pytest.approx(np.eye(3))
    assert StudentT(2, 1.5).covariance[0, 0] == np.inf and StudentT(2, 1.5).covariance[0, 1] == 0


def test_beyond_the_rate_there_is_no_limit():
    Laplace(2, 0.5).tilted_mean([1.9, -1.9])
    with pytest.raises(ValueError, match="below the rate 2 in every coordinate, received 2: attention has no limit"):
        Laplace(2, 0.5).tilted_mean([0.1, 2.0])
    for ask in (StudentT(2, 3.0).log_mgf, StudentT(2, 3.0).tilted_mean, StudentT(2, 3.0).tilted_covariance):
        ask([0.0, 0.0])
        with pytest.raises(ValueError, match="no exponential moment"):
            ask([0.1, 0.0])
