r"""Exact errors of moment and linear attention on prompts of L Gaussian tokens, beside those of softmax.

Tokens N(m, Gamma), a = U z, s^2 = a' Gamma a. Moment attention weights token i by w_i = (1 + s (g_i - g_bar)) / L,
softmax by p_i ~ exp(s g_i). Both see the standard normal g_i alone, and what is across the scores is independent of
them, so that errors, and their distance, are moments of weights: elementary for w, eta(s, L) and zeta(s, L) for p.
"""

import numpy as np

from lib.finite_prompt import expected_products, score_deviation, softmax_functionals
from lib.finite_prompt.one_query import checked
from lib.finite_prompt.weight_moments import ONE


def moment_error(covariance, query, U, V, length) -> np.ndarray:
    r"""E|moment attention - T|^2, T the infinite-prompt limit V m + V Gamma a; exact at every prompt length.

    [ (1 + s^2 (1 - 1/L)) tr(V Gamma V') + |V Gamma a|^2 ] / L

    for the covariance normalized by L. No factor e^{s^2}, unlike softmax. The tokens' mean plays no part.

    Args:
        covariance: Gamma (d, d). query: z (d,). U: (d, d). V: (k, d). length: prompt length, a number or shape (n,).

    Returns:
        The shape of length. Source: exact here (notebook 05).
    """
    s2, along, total, L = _geometry(covariance, query, U, V, length)
    return ((1 + s2 * (1 - 1 / L)) * total + s2 * along) / L


def moment_softmax_distance(covariance, query, U, V, length) -> np.ndarray:
    r"""E|moment attention - softmax attention|^2 on the same prompt, exact at every prompt length.

    |V Gamma a|^2 / s^2 ( zeta - [1 + s^2 / L + 2 s^2 c] / L )
        + ( tr(V Gamma V') - |V Gamma a|^2 / s^2 ) ( eta - [1 + s^2 + s^2 / L - 2 s^2 eta] / L ),

    c = 1 - s^2 eta + 2 s^2 E sum p^3 - zeta the mean variance of the g_i under the weights. As L grows, L times it
    tends to (e^{s^2} - 1 - s^2) tr + (s^2 e^{s^2} - s^2) |V Gamma a|^2 / s^2: softmax's own error less that of moment
    attention.

    Below s = 0.01 it loses digits to cancellation (it is of order s^4 times its terms).

    Args: as for :func:`moment_error`.

    Cost: about 1 ms, for all lengths. Source: exact here (notebook 05).
    """
    s2, along, total, L = _geometry(covariance, query, U, V, length)
    s = np.sqrt(s2)
    w = softmax_functionals(s, L)
    eta, zeta, cubes = w.inverse_participation, w.squared_error, expected_products(s, L, [[(3, ONE)]])[0]
    c = 1 - s2 * eta + 2 * s2 * cubes - zeta
    in_scores = zeta - (1 + s2 / L + 2 * s2 * c) / L
    across = eta - (1 + s2 + s2 / L - 2 * s2 * eta) / L
    distance = along * in_scores + (total - along) * across
    return np.where((L == 1) | (s2 == 0), 0.0, np.maximum(distance, 0.0))


def softmax_size(covariance, query, U, V, length) -> np.ndarray:
    """E|softmax attention - V m|^2 at length L: what a distance from softmax is compared with.

    |V Gamma a|^2 / s^2 (zeta + s^2 - 2 s^2 eta) + (tr(V Gamma V') - |V Gamma a|^2 / s^2) eta.

    Args: as for :func:`moment_error`.
    """
    s2, along, total, L = _geometry(covariance, query, U, V, length)
    w = softmax_functionals(np.sqrt(s2), L)
    return along * (w.squared_error + s2 - 2 * s2 * w.inverse_participation) + (total - along) * w.inverse_participation


def linear_error(mean, covariance, query, U, V, length) -> np.ndarray:
    r"""E|linear attention - T|^2 for (1/L) sum V x (x . a), exact at every prompt length, for tokens N(m, Gamma).

    |V m|^2 (t - 1)^2 + [ (t^2 + s^2) tr(V Gamma V') + s^2 |V m|^2 + 2 t (V m) . (V Gamma a) + |V Gamma a|^2 ] / L,

    t = m . a: a bias that no length removes unless the tokens are centered or t = 1.
    Args: as for :func:`moment_error`, mean (d,). Source: exact here (notebook 05).
    """
    s2, along, total, L = _geometry(covariance, query, U, V, length)
    a = np.asarray(U, float) @ query
    Vm, Vc, t = V @ np.asarray(mean, float), V @ (covariance @ a), float(mean @ a)
    return Vm @ Vm * (t - 1) ** 2 + ((t**2 + s2) * total + s2 * Vm @ Vm + 2 * t * Vm @ Vc + s2 * along) / L


def _geometry(covariance, query, U, V, length):
    """s^2, |V Gamma a|^2 / s^2 (zero where s is), tr(V Gamma V'), and the lengths."""
    covariance, query, U, V, length = checked(covariance, query, U, V, length)
    if query.ndim != 1:
        raise ValueError(f"query: expected shape (d,), received {query.shape}")
    s = float(score_deviation(covariance, query, U))
    c = V @ (covariance @ (U @ query))
    return s**2, (c @ c / s**2 if s > 0 else 0.0), float(np.trace(V @ covariance @ V.T)), length
