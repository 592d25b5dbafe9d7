r"""Exact error of a sign pair of heads, (T(z) - T(-z)) / 2, on Gaussian tokens: what two opposite heads cancel.

Multi-head attention trained on in-context regression ends with heads in pairs of opposite scores and opposite values
(He et al., arXiv 2503.12734). Its weights are w_i = (p_i^+ - p_i^-) / 2, with p^+ and p^- the softmax of s g and of
-s g; they sum to zero, so that the mean of the values, which is the error of a quiet head, is gone. The functions that
decide its error, as :class:`lib.finite_prompt.weight_moments.SoftmaxFunctionals` do for one head, are

    eta_2 = E sum_i w_i^2 = (eta - C_0) / 2,              C_0 = E sum_i p_i^+ p_i^-,
    zeta_2 = E (sum_i w_i g_i - s)^2 = (zeta - C_1) / 2,  C_1 = E (sum_i p_i^+ g_i - s)(sum_i p_i^- g_i + s).

Both normalizers go under an integral of their own, 1 / (Z^+ Z^-) = int int e^{-t Z^+ - u Z^-} dt du, and the tokens
factor: with q = t e^{s g}, r = u e^{-s g}, phi = E e^{-q-r}, f = g - s, h = g + s,

    C_0 = L int int E[q r e^{-q-r}] phi^{L-1} dtau dupsilon,           tau = log t, upsilon = log u,
    C_1 = L int int E[f h q r e^{-q-r}] phi^{L-1} + L (L-1) int int E[f q e^{-q-r}] E[h r e^{-q-r}] phi^{L-2}.

An exponential of a sum is a product: on a grid every expectation is a product of two matrices. For long prompts

    L eta_2 -> sinh s^2,      L zeta_2 -> sinh s^2 + s^2 cosh s^2,     e^{s^2} and e^{s^2} (1 + s^2) for one head.
"""

from math import log, pi, sqrt

import numpy as np

from lib.finite_prompt.dependent import NODE_STEP, REACH
from lib.finite_prompt.empirical import LARGEST_LENGTH, NEGLIGIBLE, checked_lengths
from lib.finite_prompt.one_query import checked, error_of_weights, score_deviation
from lib.finite_prompt.weight_moments import SoftmaxFunctionals, log_of, softmax_functionals

TAU_STEP = 0.28  # of the trapezoid rules in tau and upsilon: their errors are about exp(-pi^2 / TAU_STEP) = 5e-16
LARGEST_S = 12.0
QUIET = 1e-3  # below this s both functions are taken in proportion to s^2, right to s^2 relatively


def pair_functionals(s, length) -> SoftmaxFunctionals:
    """``eta_2`` and ``zeta_2`` of a sign pair of heads, exactly, at every prompt length.

    Args:
        s: standard deviation of the scores, in [0, 12]; any shape.
        length: prompt length L, whole, in [1, 1e15]; broadcasts with ``s``.

    Returns:
        SoftmaxFunctionals of the weights w, of the broadcast shape: E sum w^2 and E (sum w g - s)^2. Relative accuracy
        1e-9 for s from 0.01 on, 1e-6 below.

    Raises:
        ValueError: if an argument is out of its range.

    Cost: about 5 ms for each distinct s up to 2 and a few lengths, a second at s = 12. Source: exact here; derived in
    this module's first lines.
    """
    s, length = np.broadcast_arrays(np.asarray(s, float), np.asarray(length, float))
    if not np.all((s >= 0) & (s <= LARGEST_S)):
        raise ValueError(f"s must be between 0 and {LARGEST_S:g} for a pair of heads, received {s}")
    checked_lengths(length, LARGEST_LENGTH)
    loud = np.maximum(s, QUIET)
    one, cross = softmax_functionals(loud, length), np.empty((2, *s.shape))
    for value in np.unique(loud):
        here = loud == value
        lengths, where = np.unique(length[here], return_inverse=True)
        cross[:, here] = _cross_moments(float(value), lengths)[:, where]
    quiet = (s / loud) ** 2
    return SoftmaxFunctionals(
        quiet * (one.inverse_participation - cross[0]) / 2, quiet * (one.squared_error - cross[1]) / 2
    )


def pair_output_error(covariance, query, U, V, length) -> np.ndarray:
    """Mean squared error of a sign pair of heads, (T_L(z) - T_L(-z)) / 2, to V Gamma U z, exactly at every length.

    Arguments, shapes and errors as for :func:`lib.finite_prompt.output_error`; scores up to a deviation of 12, and
    lengths to 1e15. The tokens' mean plays no part: it cancels. Cost: about 5 ms a query.
    Source: exact here; notebook 08.
    """
    return error_of_weights(pair_functionals, covariance, query, U, V, length)


def pair_sharp_constant(covariance, query, U, V) -> np.ndarray:
    """Limit of L times :func:`pair_output_error`: sinh(s^2) tr(V Gamma V') + cosh(s^2) |V Gamma U z|^2.

    For one head both factors are e^{s^2}: see :func:`lib.finite_prompt.sharp_constant`. Arguments as there; returns the
    shape of its queries. Source: exact here; notebook 08.
    """
    covariance, query, U, V, _ = checked(covariance, query, U, V, 1)
    s2, along = score_deviation(covariance, query, U) ** 2, ((query @ U.T @ covariance @ V.T) ** 2).sum(-1)
    return np.sinh(s2) * np.trace(V @ covariance @ V.T) + np.cosh(s2) * along


def _cross_moments(s: float, lengths: np.ndarray) -> np.ndarray:
    """C_0 and C_1 at one s, for each length, shape (2, n_lengths)."""
    end = REACH + 2 * s
    nodes = int(np.ceil(end / min(NODE_STEP, TAU_STEP / s)))
    g = np.linspace(-end, end, 2 * nodes + 1)
    density = np.exp(-(g**2) / 2) * (g[1] - g[0]) / sqrt(2 * pi)
    reach = s * sqrt(4 * log(lengths.max()) + 90)  # where e^{-tau^2 / (2 s^2)}, its tail for loud scores, ends
    low = reach + 5 if reach <= 2 * s**2 else log(lengths.max()) + s**2 + NEGLIGIBLE
    tau = np.arange(-low, REACH * s + 6, TAU_STEP)
    log_q = tau[:, None] + s * g  # and r at the node -g: both kernels are one, read from either side
    q = np.exp(np.minimum(log_q, 700.0))
    decay, absent = np.exp(-q), -np.expm1(-q)
    plain = q * decay

    def pairs(left, right, weight=1.0):
        """E[left(q) right(r) weight(g)] at all tau, upsilon; left and right are tables at tau and g, tau and -g."""
        return (left * (density * weight)) @ right[:, ::-1].T

    alone = absent @ density
    away = alone[:, None] + alone - pairs(absent, absent)  # 1 - phi, accurate where phi is close to 1
    log_phi = log_of(pairs(decay, decay), away)
    shared, shared_centered = pairs(plain, plain), pairs(plain, plain, g**2 - s**2)
    apart = pairs(plain, decay, g - s) * pairs(decay, plain, g + s)
    found = np.empty((2, len(lengths)))
    for j, L in enumerate(lengths):
        same = L * np.exp((L - 1) * log_phi)
        two = L * (L - 1) * np.exp(max(L - 2, 0.0) * log_phi)
        found[:, j] = (same * shared).sum(), (same * shared_centered).sum() + (two * apart).sum()
    return found * TAU_STEP**2
