"""How far single prompts are from the limit: for long ones the squared deviation is a weighted sum of chi squares."""

from math import pi, sqrt

import numpy as np
from scipy import optimize

STEP, DECAYED = 0.05, 40.0  # of the trapezoid rule, whose error is e^{-2 pi / 2 STEP}; the integrand ends at e^{-40}


def deviation_weights(covariance, query, U, V) -> np.ndarray:
    """Weights w of the squared deviation of long prompts: over its mean it is sum_k w_k xi_k^2, xi standard normal.

    sqrt(L) (T_L - T) tends in law to N(0, e^{s^2} V (Gamma + Gamma a a' Gamma) V'), a = U z; the weights are the
    eigenvalues of this covariance over their sum.

    Args:
        covariance: Gamma, shape (d, d). query: z, shape (d,). U, V: shapes (d, d) and (k, d).

    Returns:
        Shape (n,), those that are not zero.

    Source: exact here (notebook 06), the delta method.
    """
    c = covariance @ U @ query
    weights = np.linalg.eigvalsh(V @ (covariance + np.outer(c, c)) @ V.T)
    return weights[weights > 1e-12 * weights[-1]] / weights.sum()


def share_beyond(weights, value: float) -> float:
    """P(sum_k w_k xi_k^2 > value) = 1 / (2 pi i) int e^{-t value} prod_k (1 - 2 t w_k)^{-1/2} dt / t.

    The contour passes between the pole at 0 and the first branch point 1 / (2 max w) and bends around the latter, so
    that the integrand decays like a Gaussian and the trapezoid rule converges exponentially.

    Args:
        weights: w, shape (k,), positive. value: positive.
    """
    weights = np.asarray(weights, float)
    crossing = 1 / (4 * weights.max())
    end = sqrt(DECAYED / (value * crossing)) + 1
    phi = np.arange(0, end, STEP)
    t, slope = crossing * (1 + 1j * phi + phi**2), crossing * (1j + 2 * phi)
    integrand = np.exp(-t * value) * np.prod((1 - 2 * t[:, None] * weights) ** -0.5, axis=1) / t * slope
    return float(STEP / pi * (integrand.imag.sum() - integrand.imag[0] / 2))


def quantile(weights, share: float) -> float:
    """The value beyond which this share of sum_k w_k xi_k^2 lies."""
    mean = float(np.sum(weights))
    return float(optimize.brentq(lambda value: share_beyond(weights, value) - share, 1e-3 * mean, 60 * mean))
