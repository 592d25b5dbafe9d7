r"""How many tokens until softmax attention is linear: the smallest prompt length for a tolerance, and the inverse.

The measure is the relative root-mean-square deviation of the output from its limit T = V m + V Gamma U z,

    deviation(L) = sqrt( E|T_L - T|^2 / E|T - V m|^2 ),

taken over prompts at one query, over prompts and queries z ~ N(0, Gamma_z), or over those of a list. It is relative to
the part of the limit that depends on the query, V Gamma U z, so that adding a constant to all tokens changes nothing.
At one query it needs two numbers of the head, the score deviation s and the *output dimension*
D = s^2 tr(V Gamma V') / |V Gamma U z|^2 >= 1,

    deviation(L)^2 = ( zeta(s, L) + (D - 1) eta(s, L) ) / s^2      ~ e^{s^2} (D + s^2) / (s^2 L),

with eta and zeta of :mod:`lib.finite_prompt.weight_moments` (derived in notebook 02, used in notebook 06). That it
falls with L is what the search below relies on; it holds on every grid we tried and is not proved.
"""

from collections.abc import Callable
from math import inf, sqrt

import numpy as np

from lib.finite_prompt.one_query import score_deviation
from lib.finite_prompt.over_queries import list_output_error, mean_output_error
from lib.finite_prompt.smallest_length import LARGEST, smallest_length
from lib.finite_prompt.weight_moments import LARGEST_S, softmax_functionals
from lib.tokens.covariances import check_covariance, sqrt_psd

RELATIVE_ACCURACY = 1e-9  # of the squared deviation averaged over queries; at one query it is 1e-11


def prompt_length_for(
    covariance,
    query_covariance,
    U,
    V,
    tolerance,
    *,
    query=None,
    queries=None,
    confidence=None,
    largest: float = LARGEST,
):
    """The smallest prompt length whose relative root-mean-square deviation is at most the tolerance, exactly.

    Args:
        covariance: Gamma of the tokens, shape (d, d), possibly singular.
        query_covariance: Gamma_z of the queries z ~ N(0, Gamma_z), shape (d, d); None is fine with queries of your own.
        U, V: the head, shapes (d, d) and (k, d); any 1/sqrt(d) is inside U.
        tolerance: of the deviation, positive; or several, shape (n,).
        query: one query z, shape (d,), to be taken instead of the average over Gaussian queries.
        queries: a list of them, shape (n, d), to be averaged over instead, one by one.
        confidence: 1 - delta in (0, 1). Then the answer is enough for |T_L - T| <= tolerance sqrt(E|T - V m|^2) with
            this probability: by Markov's inequality on the square, a bound that is far from sharp.
        largest: end of the search.

    Returns:
        A whole number, or ``math.inf`` if it is beyond ``largest``; an array of them for several tolerances. The whole
        number is exact up to 1e10 at one query and 1e8 over queries, where the accuracy of the error ends; beyond, it
        is within these relative accuracies.

    Raises:
        ValueError: if shapes do not fit, a number is out of its range, or V Gamma U z vanishes: then the limit does not
            depend on the query and no deviation is relative to it.

    Cost: about 4 ms at one query, 0.5 s over Gaussian queries or a list of 1e4, for all tolerances together.
    Source: exact here (notebook 06); that it is finite is the paper's Prop. 3.1.
    """
    tolerances = np.asarray(tolerance, float)
    if tolerances.ndim > 1 or not np.all((tolerances > 0) & np.isfinite(tolerances)):
        raise ValueError(f"tolerance must be positive, received {tolerance}")
    error = _squared_deviation(covariance, query_covariance, U, V, query, queries)
    targets = np.atleast_1d(tolerances**2 * _allowance(confidence))
    if query is None and queries is None and _at_least(covariance, query_covariance, U, V, largest) > targets.max():
        found = np.full(len(targets), inf)  # loud scores, whose averages are the costly ones
    else:
        found = smallest_length(error, targets, largest)
    if tolerances.ndim:
        return found
    return int(found[0]) if np.isfinite(found[0]) else inf


def tolerance_reached(covariance, query_covariance, U, V, length, *, query=None, queries=None, confidence=None):
    """The relative root-mean-square deviation at a prompt length: the inverse of :func:`prompt_length_for`.

    With ``confidence``, the tolerance that Markov's inequality then guarantees. ``length``: a number or shape (n,),
    whole, from 1 to 1e40; returns its shape. Other arguments, errors and source as for :func:`prompt_length_for`.
    """
    lengths = np.asarray(length, float)
    squared = _squared_deviation(covariance, query_covariance, U, V, query, queries)(lengths.ravel())
    return np.sqrt(squared / _allowance(confidence)).reshape(lengths.shape)[()]


def deviation(s, dimension, length) -> np.ndarray:
    """The relative deviation at one query from its two numbers, sqrt( (zeta + (D - 1) eta) / s^2 ).

    Args:
        s: score deviation, positive. dimension: output dimension D, at least 1. length: L. They broadcast.

    Source: exact here; see this module's first lines.
    """
    if np.any(np.asarray(s) <= 0) or np.any(np.asarray(dimension) < 1):
        raise ValueError(f"s must be positive and the output dimension at least 1, received {s} and {dimension}")
    w = softmax_functionals(s, length)
    return np.sqrt(w.squared_error + (np.asarray(dimension) - 1) * w.inverse_participation) / s


def length_for(s: float, dimension: float, tolerance, largest: float = LARGEST):
    """:func:`prompt_length_for` at one query, from its two numbers: score deviation and output dimension."""
    targets = np.atleast_1d(np.asarray(tolerance, float) ** 2)
    found = smallest_length(lambda length: deviation(s, dimension, length) ** 2, targets, largest)
    return found if np.ndim(tolerance) else found[0]


def length_law(s, dimension, tolerance) -> np.ndarray:
    """The needed length for small tolerances, e^{s^2} (D + s^2) / (s^2 tolerance^2): once it is >> e^{3 s^2/2}."""
    x = np.minimum(np.asarray(s, float) ** 2, 700.0)  # beyond, no number is large enough
    return np.exp(x) * (dimension + x) / (x * np.asarray(tolerance) ** 2)


def best_score_deviation(dimension) -> np.ndarray:
    """The s at which the fewest tokens are needed for small tolerances, s^2 = ( sqrt(D^2 + 4 D) - D ) / 2.

    From 0.786 at D = 1 to 1 for large D: the minimum of :func:`length_law`.
    """
    D = np.asarray(dimension, float)
    return np.sqrt(2 * D / (np.sqrt(D**2 + 4 * D) + D))  # the same without a difference of close numbers


def query_numbers(covariance, query, U, V) -> tuple[float, float]:
    """The two numbers that decide the deviation at one query: score deviation s and output dimension D.

    Shapes as for :func:`prompt_length_for`. Raises ValueError if V Gamma U z vanishes.
    """
    covariance, U, V = _checked_head(covariance, U, V)
    query = np.asarray(query, float)
    if query.shape != (len(U),):
        raise ValueError(f"query: expected one vector of shape ({len(U)},), received {query.shape}")
    s = float(score_deviation(covariance, query, U))
    total = float(np.trace(V @ covariance @ V.T))
    linear = float((((query @ U.T) @ covariance @ V.T) ** 2).sum())
    _refuse_constant_limit(linear, total * s**2)
    return s, max(s**2 * total / linear, 1.0)  # at least 1 by Cauchy-Schwarz, up to rounding


def _squared_deviation(covariance, query_covariance, U, V, query, queries) -> Callable[[np.ndarray], np.ndarray]:
    """The squared relative deviation as a function of an array of lengths."""
    if query is not None:
        s, dimension = query_numbers(covariance, query, U, V)
        return lambda length: deviation(s, dimension, length) ** 2
    if query_covariance is None and queries is None:
        raise ValueError("give query_covariance, to average over Gaussian queries, one query, or a list of queries")
    covariance, U, V = _checked_head(covariance, U, V)
    if queries is not None:
        return _over_list(covariance, np.asarray(queries, float), U, V)
    query_covariance = check_covariance("query_covariance", query_covariance, len(U))
    head = V @ covariance @ U
    linear = float(np.trace(head @ query_covariance @ head.T))
    s2 = float(np.trace(U.T @ covariance @ U @ query_covariance))
    _refuse_constant_limit(linear, float(np.trace(V @ covariance @ V.T)) * s2)

    covariance, query_covariance, U, V = compressed(covariance, query_covariance, U, V)

    def squared(length):
        average = mean_output_error(covariance, query_covariance, U, V, length, rtol=RELATIVE_ACCURACY)
        return (average.value + average.numerical_error) / linear  # rounded up

    return squared


def _over_list(covariance, queries, U, V) -> Callable[[np.ndarray], np.ndarray]:
    if queries.ndim != 2 or queries.shape[1] != len(U) or not len(queries):
        raise ValueError(f"queries: expected a list of shape (n, {len(U)}), received {queries.shape}")
    linear = float(((queries @ U.T @ covariance @ V.T) ** 2).sum(1).mean())
    s2 = float((score_deviation(covariance, queries, U) ** 2).mean())
    _refuse_constant_limit(linear, float(np.trace(V @ covariance @ V.T)) * s2)
    return lambda length: list_output_error(covariance, queries, U, V, length) / linear


def _at_least(covariance, query_covariance, U, V, length) -> float:
    """A cheap lower bound on the squared relative deviation over queries, zero unless scores are loud and prompts long.

    At each query the error is at least zeta |V c|^2 / s^2, and zeta / s^2 grows with s from s = 1 on, for L >= 1000.
    Since |V c|^2 <= k s^2 with k = |V Gamma V'|, half of E|V c|^2 comes from queries beyond s_0^2 = E|V c|^2 / (2 k).
    """
    head = np.asarray(V) @ covariance @ U
    linear = np.trace(head @ query_covariance @ head.T)
    s = sqrt(linear / (2 * np.linalg.norm(V @ np.asarray(covariance) @ np.transpose(V), 2)))
    return float(deviation(min(s, LARGEST_S), 1, length)) ** 2 / 2 if s > 1 and length >= 1000 else 0.0


def compressed(covariance, query_covariance, U, V) -> tuple[np.ndarray, ...]:
    """A head of few dimensions with the same averages over queries: the r = rank(M) directions that scores see and one.

    M = R U' Gamma U R, R = Gamma_z^{1/2}, has rank at most that of U, a head dimension. With its eigenvectors B and
    eigenvalues lambda: tokens and queries are white in r + 1 dimensions, U = diag(sqrt(lambda), 0), V sends the first r
    to V Gamma U R B lambda^{-1/2}, and the last one carries the rest of tr(V Gamma V'). Returned as it is if r > d - 2.
    """
    root = sqrt_psd(query_covariance)
    maps_to_c = covariance @ U @ root
    eigenvalues, basis = np.linalg.eigh(root @ U.T @ maps_to_c)
    seen = eigenvalues > 1e-13 * eigenvalues[-1]
    r = int(seen.sum())
    if r > len(U) - 2:
        return covariance, query_covariance, U, V
    deviations = np.sqrt(eigenvalues[seen])
    along = np.linalg.qr(V @ maps_to_c @ basis[:, seen] / deviations, mode="r")
    values = np.zeros((len(along) + 1, r + 1))
    values[:-1, :r] = along
    values[-1, r] = sqrt(max(np.trace(V @ covariance @ V.T) - (along**2).sum(), 0.0))
    return np.eye(r + 1), np.eye(r + 1), np.diag(np.append(deviations, 0.0)), values


def _checked_head(covariance, U, V) -> tuple[np.ndarray, ...]:
    covariance = check_covariance("covariance", covariance)
    d, U, V = len(covariance), np.asarray(U, float), np.asarray(V, float)
    for name, matrix, rows in (("U", U, d), ("V", V, "k")):
        if matrix.ndim != 2 or matrix.shape[1] != d or rows not in ("k", len(matrix)):
            expected = f"({rows}, {d}), as the covariance has shape {covariance.shape}"
            raise ValueError(f"{name}: expected shape {expected}, received {matrix.shape}")
    return covariance, U, V


def _refuse_constant_limit(linear: float, largest: float) -> None:
    """|V Gamma U z|^2 is at most tr(V Gamma V') s^2; it is zero if it is a rounding error of that."""
    if not linear > 1e-24 * largest:
        raise ValueError(
            "the limit does not depend on the query (V Gamma U z is zero), so that no deviation is relative to it"
        )


def _allowance(confidence) -> float:
    if confidence is None:
        return 1.0
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, received {confidence}")
    return 1.0 - confidence
