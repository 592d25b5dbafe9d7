"""A prompt that holds its own query: the exact error of causal self-attention on white tokens, at every position.

At position L the query z is itself one of L tokens. The other L - 1 are independent of it, and with a = U z, s = |a|,
u = a / s, w = e^{z . a} the weight of the own token before normalization, p_0 after it, and h = g - s,

    E|T_L - V a|^2 = |V u|^2 E(sum_i p_i h_i)^2 + (tr V'V - |V u|^2) E sum_i p_i^2
                     + 2 <V u, V (z - a)> E[p_0 sum_i p_i h_i] + |V (z - a)|^2 E p_0^2,

sums over the other tokens. With 1 / Z^2 the integral of t e^{-tZ} the own token is one more factor, e^{-tw}, in the
integrals of :mod:`lib.finite_prompt.weight_moments`, whose transforms b and phi do not depend on it.
"""

import numpy as np
from scipy import special
from scipy.stats import norm, qmc

from lib.finite_prompt import mean_output_error
from lib.finite_prompt.weight_moments import ONE, TAU_STEP, H, Transforms

LOG2_QUERIES = 12  # of the average over queries
NORM_NODES = 48  # of the average over their norm
CONTROL_TILT = 0.15  # of the control variates in that average: from 1/4 on they have no variance


def mean_error(U: np.ndarray, V: np.ndarray, lengths, log2_queries: int = LOG2_QUERIES) -> np.ndarray:
    """Mean squared error of causal self-attention at positions ``lengths``, averaged over white tokens.

    The exact average over queries that are not in their prompt, plus that of the difference which the own token makes,
    by quasi-Monte Carlo over the query with control variates: quadratic forms of the query, alone and times
    e^{k z . U z}, whose means are known and which carry most of that difference.

    Args:
        U, V: the head, shape (d, d). lengths: positions L, whole, increasing, shape (n,).
        log2_queries: of the number of queries. At 12 and a coupling of 0.12 the error is 1e-3, and more beyond.

    Returns:
        Shape (n,). Cost: 1 ms a query. Source: exact here (notebook 06).
    """
    lengths, eye = np.asarray(lengths, float), np.eye(len(U))
    points = qmc.Sobol(len(U), scramble=True, rng=np.random.default_rng(0)).random_base2(log2_queries)
    queries = norm.ppf(points)
    differences = [error_at(z, U, V, lengths) - error_at(z, U, V, lengths, own=False) for z in queries]
    return mean_output_error(eye, eye, U, V, lengths).value + _mean_with_controls(np.array(differences), queries, U, V)


def _mean_with_controls(values: np.ndarray, queries: np.ndarray, U: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Mean of a function of the white query, its values (n, k) regressed on others whose means are known."""
    eye, S = np.eye(len(U)), (U + U.T) / 2
    rest, along = V @ (eye - U), V @ U
    forms = [rest.T @ rest, (rest.T @ along + along.T @ rest) / 2, along.T @ along]
    largest = min(1.0, CONTROL_TILT / max(np.linalg.norm(S, 2), 1e-9))
    columns = []  # each less its mean
    for k in (0.0, largest):
        tilted = np.linalg.inv(eye - 2 * k * S)  # covariance of the query under the weight e^{k z . U z}
        total, weight = np.sqrt(np.linalg.det(tilted)), np.exp(k * _form(queries, S))
        columns.append(weight - total)
        for M in forms:
            columns.append(weight * _form(queries, M) - total * np.trace(M @ tilted))
    design = np.column_stack([np.ones(len(queries)), *columns])
    sizes = np.maximum(np.linalg.norm(design, axis=0), 1e-300)
    return np.linalg.lstsq(design / sizes, values, rcond=1e-8)[0][0] / sizes[0]


def _form(z: np.ndarray, M: np.ndarray) -> np.ndarray:
    return np.einsum("ni,ij,nj->n", z, M, z)


def mean_error_of_scaled_identity(scale: float, V: np.ndarray, lengths) -> np.ndarray:
    """:func:`mean_error` for U = scale I: of V only tr V'V is left, of the query only its norm, which is integrated.

    Args:
        scale: of U, positive. V, lengths: as for :func:`mean_error`.
    """
    d, lengths = len(V), np.asarray(lengths, float)
    halves, weights = special.roots_genlaguerre(NORM_NODES, d / 2 - 1)  # of |z|^2 / 2
    U, alike, direction = scale * np.eye(d), np.sqrt((V**2).sum() / d) * np.eye(d), np.eye(d)[0]
    errors = [error_at(np.sqrt(2 * half) * direction, U, alike, lengths) for half in halves]
    return weights @ np.array(errors) / weights.sum()


def error_at(z: np.ndarray, U: np.ndarray, V: np.ndarray, lengths: np.ndarray, own: bool = True) -> np.ndarray:
    """E|T_L - V U z|^2 at one query, which is one of the L white tokens or, without ``own``, none of them.

    Args:
        z: query, shape (d,). U, V: (d, d). lengths: L, shape (n,).
    """
    a = U @ z
    s = float(np.linalg.norm(a))
    transforms = Transforms(max(s, 1e-9), lengths)
    others = (lengths - 1 if own else lengths)[:, None]
    log_q = transforms.tau + z @ a
    q = np.exp(log_q) if own else np.zeros(len(log_q))
    b2, b1, b2h = transforms.block(((2, ONE),)), transforms.block(((1, H),)), transforms.block(((1, H), (1, H)))

    def without(k: int) -> np.ndarray:
        """phi^{N - k} e^{-q}, with N other tokens of which k are taken out."""
        return np.exp(np.maximum(others - k, 0) * transforms.log_phi - q)

    one, two = others * without(1), others * (others - 1) * without(2)
    Vu, rest = V @ (a / max(s, 1e-300)), V @ (z - a)
    along, across = one @ b2h + two @ b1**2, one @ b2
    error = (Vu @ Vu) * along + ((V**2).sum() - Vu @ Vu) * across
    if own:
        error += 2 * (Vu @ rest) * (one @ (q * b1)) + (rest @ rest) * (without(0) @ q**2)
    return error * TAU_STEP
