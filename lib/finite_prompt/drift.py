r"""How far the output moves when the prompt grows from L1 to L2 tokens, exactly, on Gaussian tokens.

*Fresh* prompts share no token: the second window holds other tokens of the same law. *Nested* prompts share the first
L1: a context that grows, a causal prefix read further on. In both cases, at one query with c = Gamma U z,

    E|T_L2 - T_L1|^2 = zeta_12 |V c|^2 / s^2 + eta_12 ( tr(V Gamma V') - |V c|^2 / s^2 ),

    zeta_12 = zeta_1 + zeta_2 - 2 E[(ghat_1 - s)(ghat_2 - s)],      eta_12 = eta_1 + eta_2 - 2 E[ sum_i p_i q_i ],

p and q the weights of both prompts. Fresh: E[(ghat_1 - s)(ghat_2 - s)] = s^2 eta_1 eta_2, by the exact mean, and no
shared token. Nested: with Z_1 and Z_2 = Z_1 + Z' the sums of exponentials, 1 / (Z_1 Z_2) is the integral of
e^{-w Z_1} e^{-u Z'} over 0 < u < w. The tokens are independent in it, so that with N = L2 - L1, w = e^tau and the
one-token transforms phi, b_2, b_2c and b_1c of :mod:`lib.finite_prompt.weight_moments`,

    E sum p_i q_i         = L1 int b_2 phi^{L1-1} F dtau,                      F(tau) = e^{-tau} int_0^w phi^N du
    E (ghat_1 - s)(ghat_2 - s)
                          = int [ L1 b_2c phi^{L1-1} + L1 (L1-1) b_1c^2 phi^{L1-2} ] F dtau
                            + int L1 b_1c phi^{L1-1} C dtau,                   C(tau) = int_{-inf}^tau N b_1c phi^{N-1}.

The inner integrals are taken by the sinc rule, and the outer ones by the trapezoid rule: both converge exponentially.
"""

from typing import Literal

import numpy as np
from scipy.special import exprel, sici

from lib.finite_prompt.needed_length import compressed
from lib.finite_prompt.one_query import checked, score_deviation
from lib.finite_prompt.score_law import Average, ScoreLaw
from lib.finite_prompt.weight_moments import LARGEST_S, ONE, TAU_STEP, H, Transforms, softmax_functionals
from lib.tokens.covariances import sqrt_psd

Prompts = Literal["nested", "fresh"]


def output_drift(covariance, query, U, V, first: int, second: int, prompts: Prompts = "nested") -> float:
    """Mean squared distance of the outputs on a prompt of ``first`` tokens and one of ``second``, at one query.

    Args:
        covariance, U, V: Gamma (d, d), U (d, d), V (k, d). query: one z, shape (d,).
        first, second: L1 <= L2, whole.
        prompts: "nested", the second prompt begins with the first, or "fresh", they share no token.

    Returns:
        E|T_L2(z) - T_L1(z)|^2. Its rounding error is 1e-13 of the error at L1: small L2 - L1 lose as many digits as
        L1 / (L2 - L1) has.

    Raises:
        ValueError: if shapes do not fit, L1 > L2, or a length or the scores are out of range.

    Cost: 5 ms. Source: exact here (notebook 06).
    """
    covariance, query, U, V, _ = checked(covariance, query, U, V, 1)
    s, total = float(score_deviation(covariance, query, U)), float(np.trace(V @ covariance @ V.T))
    along = float(((query @ U.T @ covariance @ V.T) ** 2).sum()) / s**2 if s > 0 else 0.0
    zeta, eta = weight_drift(s, first, second, prompts)
    return zeta * along + eta * (total - along)


def mean_output_drift(
    covariance, query_covariance, U, V, first: int, second: int, prompts: Prompts = "nested", *, rtol: float = 1e-4
) -> Average:
    """:func:`output_drift` averaged over queries z ~ N(0, Gamma_z), exactly, with its numerical error.

    Cost: 0.5 s fresh, 2 s nested.
    """
    covariance, query_covariance, U, V, _ = checked(covariance, query_covariance, U, V, 1)
    covariance, query_covariance, U, V = compressed(covariance, query_covariance, U, V)
    root = sqrt_psd(query_covariance)
    maps_to_c = covariance @ U @ root
    total, along = np.trace(V @ covariance @ V.T), maps_to_c.T @ (V.T @ V) @ maps_to_c

    def terms(s):
        zeta, eta = np.array([weight_drift(x, first, second, prompts) for x in s]).T
        return np.stack([eta * total, (zeta - eta) / s**2])[..., None]

    law = ScoreLaw(root @ U.T @ maps_to_c)
    log_smallest = -np.log(second) - 5
    average = law.average(terms, [(), (along,)], log_smallest=log_smallest, largest_s=LARGEST_S, rtol=rtol)
    return Average(average.value[0], average.numerical_error[0])


def drift_bound(error_first, error_second):
    """(sqrt(e_1) + sqrt(e_2))^2: the mean squared distance of two outputs with these errors is never more.

    By Minkowski's inequality, however the two prompts depend on each other: windows that slide, overlap or repeat.
    """
    return (np.sqrt(error_first) + np.sqrt(error_second)) ** 2


def weight_drift(s: float, first: int, second: int, prompts: Prompts = "nested") -> tuple[float, float]:
    """zeta_12 and eta_12 of this module's first lines at one score deviation s in [0, 40]."""
    if prompts not in ("nested", "fresh"):
        raise ValueError(f"prompts must be 'nested' or 'fresh', received {prompts!r}")
    if first > second:
        raise ValueError(
            f"the second prompt must be at least as long as the first, received {first} and {second} tokens"
        )
    w = softmax_functionals(s, np.array([first, second], float))
    (eta_1, eta_2), zetas = w.inverse_participation, w.squared_error.sum()
    together, shared = (s**2 * eta_1 * eta_2, 0.0) if prompts == "fresh" else nested_moments(s, first, second)
    return float(zetas - 2 * together), float(eta_1 + eta_2 - 2 * shared)


def nested_moments(s: float, first: int, second: int) -> tuple[float, float]:
    """E[(ghat_1 - s)(ghat_2 - s)] and E[sum p_i q_i] over a prompt and its beginning; see this module's first lines.

    Closed forms: 1 / L2 for both at s = 0; E sum p_i q_i = 1 / L2 for L1 = 1; zeta and eta for L1 = L2.
    """
    L1, N = float(first), float(second - first)
    if N == 0:
        w = softmax_functionals(s, L1)
        return float(w.squared_error), float(w.inverse_participation)
    transforms = Transforms(max(float(s), 1e-9), np.array([float(second)]))
    tau, log_phi = transforms.tau, transforms.log_phi
    b2, b1 = transforms.block(((2, ONE),)), transforms.block(((1, H),))
    b2c = transforms.block(((1, H), (1, H)))
    F = _mean_below(np.exp(N * log_phi), tau)
    C = _running_integral(N * b1 * np.exp((N - 1) * log_phi))
    one, two = L1 * np.exp((L1 - 1) * log_phi), L1 * (L1 - 1) * np.exp(max(L1 - 2, 0.0) * log_phi)
    together = (one * b2c + two * b1**2) * F + one * b1 * C
    return float(together.sum() * TAU_STEP), float((one * b2 * F).sum() * TAU_STEP)


def _running_integral(values: np.ndarray) -> np.ndarray:
    """The integral up to each grid point of a function that decays at both ends, by the sinc rule."""
    n = len(values)
    steps = np.arange(1 - n, n)
    return np.convolve(values, TAU_STEP * (0.5 + sici(np.pi * steps)[0] / np.pi))[n - 1 : 2 * n - 1]


def _mean_below(values: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """e^{-tau} int_0^{e^tau} g(log u) du on the grid, for a function g that falls from 1 to 0, to 1e-15 everywhere.

    e^{-v}, v = u e^{-center}, has the same limits and a known mean, (1 - e^{-v}) / v. For the rest, which decays at
    both ends, panels int_0^h e^{-x} g(tau_k - x) dx by the sinc rule are summed: nothing grows as e^tau does.
    """
    n, v = len(tau), np.exp(np.minimum(tau - tau[np.searchsorted(-values, -0.5)], 700.0))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    x = TAU_STEP * (nodes[:, None] + 1) / 2
    panel = (TAU_STEP / 2 * weights) @ (np.exp(-x) * np.sinc(np.arange(1 - n, n) - x / TAU_STEP))
    panels = np.convolve(values - np.exp(-v), panel)[n - 1 : 2 * n - 1]
    decay = np.exp(-TAU_STEP * np.arange(min(n, int(40 / TAU_STEP))))
    return exprel(-v) + np.convolve(panels, decay)[:n]
