"""Two laws of the needed length at one query: for small tolerances to the next order, and for loud scores."""

import numpy as np
from scipy import special, stats


def next_order(s, dimension, *, shared: bool = True) -> np.ndarray:
    """By how many tokens the needed length differs from e^{s^2} (D + s^2) / (s^2 tolerance^2) for small tolerances.

    With x = s^2, in the expansion eta = e^x / L + eta_2 / L^2, zeta = e^x (1 + x) / L + zeta_2 / L^2,

        eta_2  = e^x { 3 (e^x - 1) - 2 (e^{2x} - 1) },
        zeta_2 = e^x { 3 (e^x - 1) (1 + x) - 2 [ e^{2x} (1 + 4x) - 1 - x ] + 6 x e^x },

    and s^2 tolerance^2 = zeta + (D - 1) eta gives the number (zeta_2 + (D - 1) eta_2) / (e^x (D + x)), negative.

    Args:
        s: score deviation. dimension: output dimension D, at least 1; they broadcast.
        shared: False leaves out 6 x e^x, from pairs of tokens that both occur in the normalization.

    Source: exact here (notebook 06).
    """
    x = np.asarray(s, float) ** 2
    grown = np.expm1(x)
    eta = 3 * grown - 2 * np.expm1(2 * x)
    zeta = 3 * grown * (1 + x) - 2 * (np.exp(2 * x) * (1 + 4 * x) - 1 - x) + (6 * x * np.exp(x) if shared else 0)
    return (zeta + (np.asarray(dimension) - 1) * eta) / (dimension + x)


def loud_length(s, tolerance, *, settled: bool = True) -> np.ndarray:
    """The needed length for loud scores at D = 1, e^{-c} / P(g > (1 - tolerance) s), g standard normal.

    Once s exceeds sqrt(2 log L) the weights are those of a Poisson-Dirichlet law of index alpha = sqrt(2 log L) / s,
    so that E ghat = (1 - E sum p_i^2) s = alpha s: a tolerance asks for alpha = 1 - tolerance. To the next order,
    c = log Gamma(tolerance) + Euler's constant + (1 - tolerance) psi(tolerance).

    Args:
        s: score deviation, large. tolerance: relative, in (0, 1); they broadcast.
        settled: False leaves out e^{-c}, as if a single token had to be as large as the limit less the tolerance.

    Source: notebook 06, from the random energy model; not proved.
    """
    rest = 1 - np.asarray(tolerance, float)
    c = special.gammaln(tolerance) + np.euler_gamma + rest * special.digamma(tolerance)
    return np.exp((-c if settled else 0) - stats.norm.logsf(rest * np.asarray(s)))
