"""How many tokens are needed at one query, exactly: over the scores s, for a budget, and what moves the number."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq, minimize_scalar

from lib.experiments.prompt_length.laws import loud_length, next_order
from lib.finite_prompt.needed_length import best_score_deviation, deviation, length_for, length_law, query_numbers
from lib.finite_prompt.smallest_length import smallest_length
from lib.finite_prompt.weight_moments import LARGEST_LENGTH
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix

LOG_BEST_S = (-1.5, 1.0)  # where the best s of small tolerances is searched; it is between log 0.786 and 0
LOG_S = (-2.0, 3.0)  # where the best s of a given length is searched
SMALLEST_S, LARGEST_S = 1e-4, 39.0  # between them, every window of s ends
LARGEST_DIMENSION = 1e4
SEARCH_ERROR = 1e-4  # relative, of an s found as the minimum of a flat function
LENGTH_ERROR = 1e-10  # relative, of a length at which a deviation is reached
DIMENSION_ERROR = 1e-6  # relative, of the output dimension at which one is

RANDOM_HEADS = 9  # their median is shown
EFFECT_DIMENSIONS = (4, 16, 64, 256)
EFFECT_COVARIANCES = ("condition(10)", "condition(100)", "rank(2)")
EFFECT_NORMS = (0.1, 0.25, 0.5, 2, 4)  # of the query, over sqrt(d)


def u_shape(*, deviations: Sequence[float], dimensions: Sequence[float], tolerances: Sequence[float]) -> Comparison:
    """Needed length against s, which falls and then rises, beside that of moment attention, which only falls.

    Moment attention weighs tokens by their scores, without the exponential. Its squared deviation is
    [ (1 + s^2 (1 - 1/L)) D / s^2 + 1 ] / L.

    Args:
        deviations: score deviations s, increasing.
        dimensions: output dimensions D, at least 1.
        tolerances: relative tolerances.

    Returns:
        A row each: dimension, s, tolerance, length (exact), moment (of moment attention), law (for small tolerances).
        Nothing is judged.
    """
    tables = []
    for D in dimensions:
        for s in deviations:

            def of_moments(L, s=s, D=D):
                return ((1 + s**2 * (1 - 1 / L)) * D / s**2 + 1) / L

            columns = {"dimension": D, "s": s, "tolerance": tolerances, "length": length_for(s, D, tolerances)}
            columns["moment"] = smallest_length(of_moments, np.array(tolerances) ** 2)
            tables.append(pd.DataFrame(columns | {"law": length_law(s, D, tolerances)}))
    return Comparison(pd.concat(tables, ignore_index=True))


def loud(*, s: float, tolerances: Sequence[float]) -> Comparison:
    """The needed length at one loud s and D = 1, over that of :func:`.laws.loud_length`.

    Args:
        s: score deviation, large.
        tolerances: relative tolerances, large enough for lengths up to 1e40.

    Returns:
        A row a tolerance: tolerance, length (exact), predicted, largest (without the constant of the prediction), law
        (e^{s^2} (1 + s^2) / (s tolerance)^2, of small tolerances).
        measured: length / predicted, the worst of all. control: over the law. near miss: over largest.
    """
    tolerances = np.array(tolerances)
    table = pd.DataFrame({"tolerance": tolerances, "length": length_for(s, 1, tolerances, LARGEST_LENGTH)})
    table["predicted"], table["largest"] = loud_length(s, tolerances), loud_length(s, tolerances, settled=False)
    table["law"] = length_law(s, 1, tolerances)
    sides = [Intervals.exact(table["length"] / table[name]) for name in ("predicted", "law", "largest")]
    return Comparison(table, *sides[:2], near_miss=sides[2])


def best_scores(*, dimensions: Sequence[float], tolerance: float) -> Comparison:
    """The s at which the fewest tokens are needed, over the one that minimizes the law of small tolerances.

    Args:
        dimensions: output dimensions D, at least 1.
        tolerance: relative, small: the law is for small tolerances.

    Returns:
        A row a dimension: dimension, s and length (exact), predicted_s and predicted_length (of the law).
        measured: s / predicted_s, the worst of all. control: over the minimum of e^{s^2/2} (D + s^2) / s^2,
        s^2 = (sqrt(D^2 + 8 D) - D) / 2. near miss: over the prediction with D + 1 for D.
    """
    rows = []
    for D in dimensions:
        found = minimize_scalar(
            lambda log_s, D=D: log(length_for(np.exp(log_s), D, tolerance)), bounds=LOG_BEST_S, method="bounded"
        )
        predicted = float(best_score_deviation(D))
        row = {"dimension": D, "s": np.exp(found.x), "predicted_s": predicted, "length": np.exp(found.fun)}
        rows.append(row | {"predicted_length": float(length_law(predicted, D, tolerance))})
    table = pd.DataFrame(rows)
    D = table["dimension"].to_numpy(float)
    frozen = np.sqrt((np.sqrt(D**2 + 8 * D) - D) / 2)
    sides = [
        Intervals.exact(table["s"] / x, numerical_error=SEARCH_ERROR)
        for x in (table["predicted_s"], frozen, best_score_deviation(D + 1))
    ]
    return Comparison(table, *sides[:2], near_miss=sides[2])


def beyond_the_law(*, dimensions: Sequence[float], tolerance: float) -> Comparison:
    """By how many tokens the needed length at the best s differs from the law of small tolerances.

    Args:
        dimensions: output dimensions D, at least 1.
        tolerance: relative.

    Returns:
        A row a dimension: dimension, s (that minimizes the law), law, tokens (length - law, between whole lengths by
        interpolation), predicted (:func:`.laws.next_order`).
        measured: tokens / predicted, the worst of all. control: minus one token, as if L - 1 tokens counted, over
        predicted. near miss: over the prediction without its last term.
    """
    D = np.array(dimensions, float)
    s = best_score_deviation(D)
    lengths = np.array([_between_whole_lengths(*case, tolerance) for case in zip(s, D, strict=True)])
    law = length_law(s, D, tolerance)
    table = pd.DataFrame({"dimension": D, "s": s, "law": law, "tokens": lengths - law, "predicted": next_order(s, D)})
    error = LENGTH_ERROR * lengths / np.abs(table["predicted"])
    sides = [
        Intervals.exact(x, numerical_error=error)
        for x in (
            table["tokens"] / table["predicted"],
            -1 / table["predicted"],
            table["tokens"] / next_order(s, D, shared=False),
        )
    ]
    return Comparison(table, *sides[:2], near_miss=sides[2])


def _between_whole_lengths(s: float, dimension: float, tolerance: float) -> float:
    """Where the deviation equals the tolerance, linear in 1 / deviation^2 between the two whole lengths around."""
    length = float(length_for(s, dimension, tolerance))
    above, below = deviation(s, dimension, np.array([length - 1, length])) ** -2.0
    return length - 1 + (tolerance**-2 - above) / (below - above)


class BestScore(NamedTuple):
    """The score deviation s with which prompts of one length come closest to their limit, and how close."""

    s: float
    deviation: float


def best_at_length(dimension: float, length: float) -> BestScore:
    """The smallest deviation that any s reaches with L tokens, for an output dimension D."""
    found = minimize_scalar(
        lambda log_s: log(deviation(np.exp(log_s), dimension, length)), bounds=LOG_S, method="bounded"
    )
    return BestScore(float(np.exp(found.x)), float(np.exp(found.fun)))


def windows(*, budgets: Sequence[int], dimensions: Sequence[float], tolerances: Sequence[float]) -> Comparison:
    """For which s a budget of tokens is enough: an interval, empty if the best s misses the tolerance.

    Args:
        budgets: prompt lengths L.
        dimensions: output dimensions D, at least 1.
        tolerances: relative tolerances.

    Returns:
        A row each: budget, dimension, best (the smallest deviation over s), best_s, tolerance, low and high (ends of
        the interval; NaN if it is empty). Nothing is judged.
    """
    rows = []
    for budget in budgets:
        for D in dimensions:
            best = best_at_length(D, budget)
            for tolerance in tolerances:

                def excess(s, D=D, budget=budget, tolerance=tolerance):
                    return deviation(s, D, budget) - tolerance

                row = {"budget": budget, "dimension": D, "best": best.deviation, "best_s": best.s}
                row |= {"tolerance": tolerance, "low": np.nan, "high": np.nan}
                if best.deviation <= tolerance:
                    row["low"], row["high"] = brentq(excess, SMALLEST_S, best.s), brentq(excess, best.s, LARGEST_S)
                rows.append(row)
    return Comparison(pd.DataFrame(rows))


def affordable_dimension(*, tolerance: float, budget: int) -> Comparison:
    """The largest output dimension for which a budget of tokens reaches a tolerance, at the best s, over predicted.

    Args:
        tolerance: relative tolerance.
        budget: prompt length L.

    Returns:
        One row: exact, predicted (the law with its next order), law, moment (moment attention, L tolerance^2 - 1).
        measured: exact / predicted. control: exact / moment. near miss: exact / law.
    """
    exact = largest_dimension(tolerance, budget)
    row = {"exact": exact, "predicted": largest_dimension_by_law(tolerance, budget)}
    row |= {"law": largest_dimension_by_law(tolerance, budget, corrected=False), "moment": budget * tolerance**2 - 1}
    sides = [Estimate.exact(exact / row[name], DIMENSION_ERROR) for name in ("predicted", "moment", "law")]
    return Comparison(pd.DataFrame([row]), *sides[:2], near_miss=sides[2])


def largest_dimension(tolerance: float, budget: int) -> float:
    """The largest output dimension D for which L tokens reach a tolerance, at the best s."""

    def excess(D):
        return best_at_length(D, budget).deviation - tolerance

    return float(brentq(excess, 1.0, LARGEST_DIMENSION, xtol=1e-6))


def largest_dimension_by_law(tolerance: float, budget: int, corrected: bool = True) -> float:
    """The same from the law of small tolerances, with its next order or without; it needs no exact length."""

    def excess(D):
        s = best_score_deviation(D)
        return length_law(s, D, tolerance) + (next_order(s, D) if corrected else 0) - budget

    return float(brentq(excess, 1.0, LARGEST_DIMENSION))


def effects(*, dim: int, tolerances: Sequence[float], seed: int) -> Comparison:
    """What moves the needed length of a head with random projections, at one query: medians over random heads.

    W_Q, W_K, W_V have variance 1/d, and U = W_K' W_Q / sqrt(d) with the temperature. Tokens have a covariance of trace
    d and the query has norm sqrt(d), unless the row says otherwise.

    Args:
        dim: dimension d, where the row does not say another.
        tolerances: relative tolerances.
        seed: of the random heads.

    Returns:
        A row a case: effect, value, s, output dimension, and a needed length a tolerance. Nothing is judged.
    """
    dims = [d for d in EFFECT_DIMENSIONS if d <= 4 * dim]
    usual = {"dim": dim, "covariance": "isotropic", "temperature": 1 / np.sqrt(dim), "norm": 1.0}
    cases = [("dimension d", f"{d}", usual | {"dim": d, "temperature": 1 / np.sqrt(d)}) for d in dims]
    cases += [("no temperature, d", f"{d}", usual | {"dim": d, "temperature": 1.0}) for d in dims]
    cases += [("anisotropy", name, usual | {"covariance": name}) for name in EFFECT_COVARIANCES]
    cases += [("query norm / √d", f"{norm:g}", usual | {"norm": norm}) for norm in EFFECT_NORMS]
    rows = []
    for effect, value, case in cases:
        found = [_random_head(**case, tolerances=tolerances, seed=seed, number=k) for k in range(RANDOM_HEADS)]
        rows.append([effect, value, *np.median(found, axis=0)])
    names = [f"{tolerance:.0%}" for tolerance in tolerances]
    return Comparison(pd.DataFrame(rows, columns=["effect", "value", "s", "output dimension", *names]))


def _random_head(*, dim, covariance, temperature, norm, tolerances, seed, number) -> list[float]:
    """s, D, and the needed lengths of one random head."""
    rng, gamma = stream(seed, "effects", dim, number), covariance_matrix(covariance, dim)
    W_Q, W_K, V = rng.standard_normal((3, dim, dim)) / np.sqrt(dim)
    z = rng.standard_normal(dim)
    query, U = z * norm * np.sqrt(dim) / np.linalg.norm(z), W_K.T @ W_Q * temperature
    s, dimension = query_numbers(gamma, query, U, V)
    return [s, dimension, *length_for(s, dimension, np.array(tolerances))]
