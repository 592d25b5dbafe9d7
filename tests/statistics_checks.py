"""One statistical checker for all tests: a sample mean against an exact value."""

from math import sqrt

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6  # of one check, were its seed drawn anew: a few hundred checks raise none in practice


def assert_mean(samples, expected, false_alarm: float = FALSE_ALARM) -> None:
    """The mean of independent samples is `expected`, by a two-sided Student test with the stated false-alarm rate."""
    samples = np.asarray(samples, float)
    error = samples.std(ddof=1) / sqrt(len(samples))
    error = max(error, 1e-12 * abs(float(expected)), 1e-300)  # samples that do not vary are good to their rounding
    bound = stats.t(len(samples) - 1).isf(false_alarm / 2) * error
    gap = abs(samples.mean() - expected)
    assert gap <= bound, f"mean {samples.mean():.6g} is {gap / error:.1f} standard errors from {float(expected):.6g}"


def worst(found, target: float = 1.0) -> float:
    """Of numbers that are judged together, the one farthest from a target."""
    return float(found.values[np.argmax(np.abs(found.values - target))])
