r"""Single-location regression: find the one relevant token of a prompt, where linear attention must lose.

L tokens N(0, I), except one, at a uniformly random place J, which is N(beta e_1, I): its strength beta along a unit
direction e_1 is all that marks it. The target is the component of that token along another unit direction e_2,
orthogonal to e_1. With h_i = x_i . e_1 the likelihood ratio that token i is the one is exp(beta h_i - beta^2 / 2), so
that

    P(J = i | prompt) = softmax_i(beta h_i):        softmax attention with U z = beta e_1 and V = e_2' is Bayes optimal.

Its risk is 1 - E p_J for a target of variance 1. The task is that of Marion, Berthier, Biau and Boyer, arXiv
2410.01537; that softmax is Bayes optimal for it and linear attention is not: Duranthon et al., arXiv 2509.21936, in
another scaling. The formulas below, exact at every length, are derived in notebook 05.
"""

import numpy as np
from scipy.optimize import brentq

STEP = 0.25  # in tau = log t and in beta g: the error is far below 1e-10
LONGEST = 1e15


def sample(n_prompts: int, length: int, dim: int, strength: float, rng) -> tuple[np.ndarray, np.ndarray]:
    """Prompts (n, L, dim), with e_1 and e_2 the first two axes, and their targets (n,)."""
    if dim < 2:
        raise ValueError(f"two orthogonal directions need dim >= 2, received {dim}")
    tokens = rng.standard_normal((n_prompts, length, dim))
    place = np.arange(n_prompts), rng.integers(length, size=n_prompts)
    tokens[(*place, 0)] += strength
    return tokens, tokens[(*place, 1)]


def softmax_risk(strength: float, length: float) -> float:
    r"""Smallest risk of any predictor, that of softmax attention with U z = beta e_1: ``1 - E p_J``, exact.

    E p_J = int E[q_J e^{-q_J}] phi^{L-1} dtau,    phi = E e^{-q},    q = e^{tau + beta h},

    with h ~ N(0, 1) in phi, and N(beta, 1) in q_J.

    Args:
        strength: beta >= 0. length: prompt length, from 1 to 1e15.

    Cost: about 1 ms. Source: exact here (notebook 05).
    """
    if not (strength >= 0 and 1 <= length <= LONGEST):
        raise ValueError(
            f"strength must be nonnegative and length in [1, {LONGEST:g}], received {strength:g}, {length:g}"
        )
    if strength < 1e-4 or length == 1:
        return 1 - 1 / length
    # The arguments tau + beta g lie on a lattice, so that expectations over g are correlations on it.
    step = min(STEP, 0.4 * strength)
    g_step = step / strength
    g = g_step * np.arange(-np.ceil(9.5 / g_step), np.ceil(9.5 / g_step) + 1)
    density = np.exp(-(g**2) / 2) * g_step / np.sqrt(2 * np.pi)
    low = -(np.log(length) + 1.5 * strength**2 + 20 * strength + 35)
    log_q = low + step * np.arange(np.ceil((30 * strength + 6 - low) / step))
    absent = np.correlate(-np.expm1(-np.exp(np.minimum(log_q, 7.0))), density, "valid")
    log_phi = np.log1p(-np.minimum(absent, 1 - 1e-16))
    log_q = np.minimum(log_q + strength**2, 7.0)
    found = np.correlate(np.exp(log_q - np.exp(log_q)), density, "valid")
    return float(1 - step * found @ np.exp((length - 1) * log_phi))


def affine_risk(strength: float, length) -> np.ndarray:
    """Smallest risk of weights affine in a token's own score: ``1 / (1 + 1/(L-1) + beta^2 / L)``, L > 1.

    Weights b (c_0 + c_1 h_i), the best c and b: c_1 / c_0 = beta (L - 1) / L. Linear attention is a special case.
    Moment attention is none, as it subtracts the prompt's mean score, and does a little better (:func:`moment_risk`).
    Source: exact here (notebook 05).
    """
    L = np.asarray(length, float)
    if np.any(L < 2):
        raise ValueError(f"the best affine attention needs at least 2 tokens, received {L.min():g}")
    return 1 / (1 + 1 / (L - 1) + np.asarray(strength, float) ** 2 / L)


def moment_risk(strength: float, length) -> np.ndarray:
    r"""Risk of moment attention at U z = beta e_1 with its best b, exact at every length from 1.

    1 - (1 + u)^2 / (L (1 + u (1 + beta^2 / L))),    u = beta^2 (1 - 1/L)

    The weights w_i = (1 + beta (h_i - h_bar)) / L know the h_i alone, and the values are standard normal given them:
    the risk is 1 - (E w_J)^2 / E sum w_i^2. Source: exact here (notebook 05).
    """
    L, square = np.asarray(length, float), np.asarray(strength, float) ** 2
    u = square * (1 - 1 / L)
    return 1 - (1 + u) ** 2 / (L * (1 + u * (1 + square / L)))


def linear_risk(strength: float, length) -> np.ndarray:
    """Risk of linear attention at U z = beta e_1, weights beta h_i / L, with its best b: 1 / (1 + beta^2 / L).

    Source: exact here (notebook 05), as :func:`moment_risk`.
    """
    return 1 / (1 + np.asarray(strength, float) ** 2 / np.asarray(length, float))


def needed_strength(length: float, risk: float = 0.5) -> tuple[float, float]:
    """The strengths beta at which softmax and the best affine attention reach a risk.

    Softmax needs beta^2 near 2 log L, affine attention beta^2 = L (1 / risk - 1 - 1 / (L - 1)).
    """
    if not 0 < risk < 1 - 1 / length:
        raise ValueError(f"the risk must be between 0 and 1 - 1/L = {1 - 1 / length:g}, received {risk:g}")
    end = 4 * (np.sqrt(2 * np.log(length)) + 1)
    softmax = brentq(lambda beta: softmax_risk(beta, length) - risk, 1e-3, end, xtol=1e-10)
    return float(softmax), float(np.sqrt(max(length * (1 / risk - 1 - 1 / (length - 1)), 0.0)))
