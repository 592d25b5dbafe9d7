r"""Exact errors averaged over Gaussian queries, and the transition of their rate at coupling 1/2.

At a fixed query the error decays as 1/L with a constant proportional to e^{s^2}, s the deviation of the scores. Over
queries z ~ N(0, Gamma_z) the tail of s^2 is exp(-s^2 / (2 lambda)), lambda the coupling: for lambda >= 1/2 rare queries
dominate and the rate is slower. Each average is one integral over s; notebook 02 shows them.
"""

import numpy as np

from lib.finite_prompt.one_query import (
    Quantity,
    checked,
    covariance_moments,
    output_error,
    score_deviation,
    score_gradient_error,
)
from lib.finite_prompt.score_law import Average, ScoreLaw
from lib.finite_prompt.weight_moments import LARGEST_S
from lib.finite_prompt.weight_table import weights_excess
from lib.prompts.batches import MEMORY, batches
from lib.tokens.covariances import sqrt_psd

QUIETEST = 1e-8  # of the score deviations: below, the error is that at zero to the last digit


def mean_output_error(covariance, query_covariance, U, V, length, *, rtol: float = 1e-4) -> Average:
    r"""Mean squared output error averaged over Gaussian queries z ~ N(0, Gamma_z), exact at every prompt length.

    One integral over the score deviation s, whose law, jointly with |V Gamma U z|^2, is that of
    :class:`lib.finite_prompt.score_law.ScoreLaw`.

    Args:
        covariance, query_covariance: Gamma and Gamma_z, shape (d, d). U: (d, d). V: (k, d).
        length: prompt length, scalar or shape (n,).
        rtol: relative accuracy; down to about 1e-9.

    Returns:
        Average of ``length``'s shape, with its numerical error.

    Cost: about 0.1 s for all lengths together. Source: exact here (notebook 02); the rate is the paper's Prop. 3.1.
    """
    return _mean_error(covariance, query_covariance, U, V, length, rtol, "output")


def mean_value_gradient_error(covariance, query_covariance, U, length, *, rtol: float = 1e-4) -> Average:
    """As :func:`mean_output_error`, for the V-gradient of :func:`value_gradient_error`."""
    return _mean_error(covariance, query_covariance, U, np.eye(len(covariance)), length, rtol, "output")


def mean_score_gradient_error(covariance, query_covariance, U, V, length, *, rtol: float = 1e-4) -> Average:
    """As :func:`mean_output_error`, for the U-gradient of :func:`score_gradient_error`.

    Cost: grows like d^3, about 1 s at d = 5 (products of three quadratic forms of the query are averaged).
    """
    return _mean_error(covariance, query_covariance, U, V, length, rtol, "score gradient")


def list_output_error(covariance, queries, U, V, length) -> np.ndarray:
    """:func:`output_error` averaged over a list of queries, shape (n, d), one by one: exact, with no law of theirs.

    Other arguments as there; returns the shape of length. With the functions of :mod:`lib.finite_prompt.weight_table`,

        E|T_L - T|^2 = eta tr(V Gamma V') + (W + 2 eta) |V Gamma U z|^2,   a weighted sum of two means over queries.

    Cost: a table of 0.04 to 0.6 s for these lengths, then 1 s for 1e6 queries and ten lengths. Memory is bounded.
    Source: exact here (notebook 02).
    """
    covariance, queries, U, V, lengths = checked(covariance, queries, U, V, length)
    shape, lengths = lengths.shape, lengths.ravel()
    total, squares = np.trace(V @ covariance @ V.T), np.zeros(len(lengths))
    for part in batches(len(queries), 4 * len(lengths) + len(covariance), MEMORY):
        s = np.maximum(score_deviation(covariance, queries[part], U), QUIETEST)
        linear = ((queries[part] @ U.T @ covariance @ V.T) ** 2).sum(1)
        eta, W = weights_excess(tuple(lengths), s)
        eta, W = eta + 1 / lengths, W - 1 / lengths
        squares += eta.sum(0) * total + linear @ (W + 2 * eta)
    return (squares / len(queries)).reshape(shape)[()]


def _mean_error(covariance, query_covariance, U, V, length, rtol, quantity: Quantity) -> Average:
    covariance, root, U, V, lengths = checked(covariance, sqrt_psd(query_covariance), U, V, length)
    maps_to_c = covariance @ U @ root  # Gamma U z = c, as a map of standard normal queries
    matrix = root @ U.T @ maps_to_c
    shape, lengths = lengths.shape, lengths.ravel()
    P = V.T @ V
    total = np.trace(P @ covariance)
    if not np.linalg.eigvalsh(matrix)[-1] > 1e-30:  # every query scores zero
        at_zero = output_error if quantity == "output" else score_gradient_error
        value = at_zero(covariance, np.eye(len(U))[:1], np.zeros_like(U), V, lengths)[0]
        value = value * (np.trace(root @ root) if quantity == "score gradient" else 1)
        return Average(value.reshape(shape), np.zeros(shape))
    pc = maps_to_c.T @ P @ maps_to_c
    law = ScoreLaw(matrix)

    if quantity == "output":
        forms = [(), (pc,)]

        def terms(s):
            eta, W = weights_excess(tuple(lengths), s)
            eta, W = eta + 1 / lengths, W - 1 / lengths
            return np.stack([eta * total, W + 2 * eta])
    else:
        cc, z2 = maps_to_c.T @ maps_to_c, root @ root
        pgc = maps_to_c.T @ (P @ covariance + covariance @ P) @ maps_to_c / 2
        trace, square = np.trace(covariance), np.trace(P @ covariance @ covariance)
        forms = [(z2,), (pc, z2), (cc, z2), (pgc, z2), (pc, cc, z2)]

        def terms(s):
            dd, w, yy, rest, dy = covariance_moments(s[:, None], lengths)
            s2 = s[:, None] ** 2
            return np.stack(
                [
                    yy * square + rest * (total * trace + square),
                    (w - rest) * trace / s2,
                    (w - rest) * total / s2,
                    (2 * w - 2 * yy - 2 * rest - 2 * dy) / s2,
                    (dd - 4 * w + yy + 2 * rest + 2 * dy) / s2**2,
                ]
            )

    result = law.average(
        terms,
        forms,
        log_smallest=-float(rate_exponent(law.coupling) * np.log(lengths.max())) - 5,
        largest_s=LARGEST_S,
        rtol=rtol,
    )
    return Average(result.value.reshape(shape), result.numerical_error.reshape(shape))


def mean_sharp_constant(covariance, query_covariance, U, V) -> float:
    """Limit of L times :func:`mean_output_error`: finite for coupling below 1/2, infinite from there on.

    det(I - 2M)^{-1/2} ( tr(V Gamma V') + tr(V Gamma U R (I - 2M)^{-1} R U' Gamma V') ),  R = Gamma_z^{1/2}.
    Source: exact here (notebook 02).
    """
    covariance, root, U, V, _ = checked(covariance, sqrt_psd(query_covariance), U, V, 1)
    gap = np.eye(len(root)) - 2 * root @ U.T @ covariance @ U @ root
    if np.linalg.eigvalsh(gap)[0] <= 0:
        return np.inf
    head = V @ covariance @ U @ root
    tilted = np.trace(head @ np.linalg.solve(gap, head.T))
    return float((np.trace(V @ covariance @ V.T) + tilted) / np.sqrt(np.linalg.det(gap)))


def coupling(covariance, query_covariance, U) -> float:
    """The coupling lambda of tokens and queries: the law of s^2 over queries has tail exp(-s^2 / (2 lambda)).

    lambda = lambda_max(Gamma_z^{1/2} U' Gamma U Gamma_z^{1/2}). Shapes as for :func:`mean_output_error`.
    """
    root = sqrt_psd(query_covariance)
    return float(np.linalg.eigvalsh(root @ U.T @ covariance @ U @ root)[-1])


def rate_exponent(coupling) -> np.ndarray:
    """Exponent rho of the error averaged over Gaussian queries, L^{-rho}: 1 up to coupling 1/2, then below.

    rho = 1 for lambda <= 1/2, (sqrt(1 + 4 / lambda) - 1) / 2 beyond (up to logarithms).
    Source: derived heuristically, confirmed numerically by the exact averages of notebook 02, not proved.
    """
    coupling = np.asarray(coupling, float)
    if np.any(coupling < 0):
        raise ValueError(f"a coupling is nonnegative, received {coupling.min():g}")
    with np.errstate(divide="ignore"):
        return np.where(coupling <= 0.5, 1.0, (np.sqrt(1 + 4 / coupling) - 1) / 2)


def local_slope(length, error) -> np.ndarray:
    """Slopes -d log(error) / d log(L) between consecutive prompt lengths, along the last axis; one entry fewer."""
    return -np.diff(np.log(error), axis=-1) / np.diff(np.log(np.asarray(length, float)))


def decades(lengths) -> np.ndarray:
    """Both ends of the decade that begins at each prompt length, shape (2 n,)."""
    return np.ravel([[x, 10 * x] for x in lengths])


def slopes_over_decades(ends, error) -> np.ndarray:
    """:func:`local_slope` over each of the :func:`decades`, from the errors at their ends, shape (2 n,): shape (n,)."""
    return local_slope(*(np.reshape(x, (-1, 2)) for x in (ends, error)))[:, 0]
