"""Exact tables of notebook 06: how many tokens a prompt needs, one function a section.

What is measured on prompts is in :mod:`lib.experiments.prompt_length.on_prompts`.
"""

from collections.abc import Sequence
from math import inf, log

import numpy as np
import pandas as pd
from scipy.optimize import brentq, minimize_scalar

from lib.finite_prompt import coupling, mean_output_error, rate_exponent
from lib.finite_prompt.drift import mean_output_drift
from lib.finite_prompt.head_file import AttentionHeads
from lib.finite_prompt.needed_length import (
    best_score_deviation,
    deviation,
    length_for,
    length_law,
    prompt_length_for,
    query_numbers,
    tolerance_reached,
)
from lib.finite_prompt.smallest_length import smallest_length
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

RANDOM_HEADS = 9  # their median is shown
FEW_HUNDRED = 999  # tokens: "a few hundred", read generously


def u_shape(deviations: Sequence[float], dimensions: Sequence[float], tolerances: Sequence[float]) -> pd.DataFrame:
    """Needed length at one query over s, for each output dimension and tolerance.

    Columns: dimension, s, tolerance, length (exact), law (for small tolerances), moment (of moment attention, which has
    no exponential: error [ (1 + s^2 (1 - 1/L)) tr(V Gamma V') + |V Gamma a|^2 ] / L).
    """
    rows = []
    for D in dimensions:
        for s in deviations:
            lengths = length_for(s, D, tolerances)
            moment = smallest_length(
                lambda L, s=s, D=D: ((1 + s**2 * (1 - 1 / L)) * D / s**2 + 1) / L, np.array(tolerances) ** 2
            )
            columns = {"dimension": D, "s": s, "tolerance": tolerances, "length": lengths, "moment": moment}
            rows.append(pd.DataFrame(columns | {"law": length_law(s, D, tolerances)}))
    return pd.concat(rows, ignore_index=True)


def turning_points(values: Sequence[float]) -> int:
    """How often a sequence turns from falling to rising or back; equal neighbors and infinities do not count."""
    signs = np.sign(np.diff(np.asarray(values)[np.isfinite(values)]))
    signs = signs[signs != 0]
    return int((signs[1:] != signs[:-1]).sum())


def best_scores(dimensions: Sequence[float], tolerance: float) -> pd.DataFrame:
    """The s at which the fewest tokens are needed, and their number, against the minimum of the law."""
    rows = []
    for D in dimensions:
        found = minimize_scalar(
            lambda x, D=D: log(length_for(np.exp(x), D, tolerance)), bounds=(-1.5, 1.0), method="bounded"
        )
        predicted = float(best_score_deviation(D))
        row = {"dimension": D, "s": np.exp(found.x), "predicted_s": predicted, "length": np.exp(found.fun)}
        rows.append(row | {"predicted_length": float(length_law(predicted, D, tolerance))})
    return pd.DataFrame(rows)


def best_at_length(dimension: float, length: float) -> tuple[float, float]:
    """The smallest deviation that any s reaches with so many tokens, and that s."""
    found = minimize_scalar(
        lambda x: log(deviation(np.exp(x), dimension, length)), bounds=(-2.0, 3.0), method="bounded"
    )
    return float(np.exp(found.fun)), float(np.exp(found.x))


def windows(budgets: Sequence[int], dimensions: Sequence[float], tolerances: Sequence[float]) -> pd.DataFrame:
    """For which s a budget of tokens is enough: the interval [low, high] of s for each tolerance, NaN if there is none.

    Columns: budget, dimension, best (smallest deviation over s), best_s, tolerance, low, high.
    """
    rows = []
    for budget in budgets:
        for D in dimensions:
            best, at = best_at_length(D, budget)
            for tolerance in tolerances:
                row = {"budget": budget, "dimension": D, "best": best, "best_s": at, "tolerance": tolerance}
                if best <= tolerance:
                    gap = lambda s, D=D, L=budget, tol=tolerance: deviation(s, D, L) - tol  # noqa: E731
                    row |= {"low": brentq(gap, 1e-4, at), "high": brentq(gap, at, 39.0)}
                rows.append(row)
    return pd.DataFrame(rows, columns=["budget", "dimension", "best", "best_s", "tolerance", "low", "high"])


def largest_dimension(tolerance: float, budget: int) -> float:
    """The largest output dimension for which a budget of tokens reaches a tolerance, at the best s."""
    return float(brentq(lambda D: best_at_length(D, budget)[0] - tolerance, 1.0, 1e4, xtol=1e-6))


def largest_dimension_by_law(tolerance: float, budget: int) -> float:
    """The same from the law of small tolerances."""
    return float(brentq(lambda D: length_law(best_score_deviation(D), D, tolerance) - budget, 1.0, 1e4))


def coupling_chart(
    couplings: Sequence[float], dimensions: Sequence[int], tolerances: Sequence[float], largest: float = 1e15
) -> pd.DataFrame:
    """Needed length averaged over queries, for white tokens and queries, U = sqrt(coupling) I and V = I."""
    rows = []
    for d in dimensions:
        for x in couplings:
            eye = np.eye(d)
            lengths = prompt_length_for(eye, eye, np.sqrt(x) * eye, eye, np.array(tolerances), largest=largest)
            rows.append(pd.DataFrame({"dimension": d, "coupling": x, "tolerance": tolerances, "length": lengths}))
    return pd.concat(rows, ignore_index=True)


def halving(couplings: Sequence[float], length: float) -> pd.DataFrame:
    """By what power of two the needed length grows when the tolerance is halved, for scalar queries at huge lengths.

    Columns: coupling, tolerance (reached at ``length``), growth (of the length at which half of it is reached, between
    powers of two by interpolation), predicted (2 / rho of the coupling).
    """
    one, rows = np.eye(1), []
    lengths = length * 2.0 ** np.arange(16)
    for x in couplings:
        error = mean_output_error(one, one, np.sqrt([[x]]), one, lengths, rtol=1e-5).value
        growth = np.interp(log(4), np.log(error[0] / error), np.arange(len(lengths)))
        row = {"coupling": x, "tolerance": np.sqrt(error[0] / x), "growth": growth}
        rows.append(row | {"predicted": 2 / float(rate_exponent(x))})
    return pd.DataFrame(rows)


def effects(dimension: int, tolerances: Sequence[float], seed: int) -> pd.DataFrame:
    """What moves the needed length of a head with random projections, at one query: medians over random heads.

    W_Q, W_K, W_V have variance 1/d, and U = W_K' W_Q / sqrt(d) with the temperature; tokens have trace d and the query
    norm sqrt(d), unless the row says otherwise. Columns: effect, value, s, dimension, and a column a tolerance.
    """
    d, small = dimension, [x for x in (4, 16, 64, 256) if x <= 4 * dimension]
    cases = [("dimension d", f"{x}", (x, "isotropic", 1 / np.sqrt(x), 1.0)) for x in small]
    cases += [("no temperature, d", f"{x}", (x, "isotropic", 1.0, 1.0)) for x in small]
    cases += [("anisotropy", c, (d, c, 1 / np.sqrt(d), 1.0)) for c in ("condition(10)", "condition(100)", "rank(2)")]
    cases += [("query norm / √d", f"{x:g}", (d, "isotropic", 1 / np.sqrt(d), x)) for x in (0.1, 0.25, 0.5, 2, 4)]
    rows = []
    for effect, value, case in cases:
        found = np.array([_random_head(*case, tolerances, seed, k) for k in range(RANDOM_HEADS)])
        rows.append([effect, value, *np.median(found, axis=0)])
    return pd.DataFrame(rows, columns=["effect", "value", "s", "output dimension", *(f"{t:.0%}" for t in tolerances)])


def _random_head(d, covariance, temperature, norm, tolerances, seed, number) -> list[float]:
    rng, gamma = stream(seed, "effects", d, number), covariance_matrix(covariance, d)
    W_Q, W_K, V = rng.standard_normal((3, d, d)) / np.sqrt(d)
    z = rng.standard_normal(d)
    query, U = z * norm * np.sqrt(d) / np.linalg.norm(z), W_K.T @ W_Q * temperature
    s, dimension = query_numbers(gamma, query, U, V)
    return [s, dimension, *length_for(s, dimension, np.array(tolerances))]


def answers(heads: AttentionHeads, tolerances: Sequence[float], context: int) -> pd.DataFrame:
    """What the exact theory says of each head, averaged over its queries (and at its one query, if it has one).

    Columns: head, queries, coupling, s (root mean square), a needed length a tolerance, the deviation reached at the
    context length, and how far the output moves, relative too, when the context doubles (nested prompts).
    """
    rows = []
    for k, (U, V) in enumerate(zip(heads.U, heads.V, strict=True)):
        head = heads.covariance, heads.query_covariance, U, V
        linear = V @ heads.covariance @ U
        variance = np.trace(linear @ heads.query_covariance @ linear.T)
        moved = mean_output_drift(*head, context, 2 * context, rtol=1e-3).value / variance
        s = np.sqrt(np.trace(U.T @ heads.covariance @ U @ heads.query_covariance))
        row = {"head": k, "queries": "all", "coupling": coupling(heads.covariance, heads.query_covariance, U), "s": s}
        row |= dict(zip(_names(tolerances), prompt_length_for(*head, np.array(tolerances)), strict=True))
        rows.append(row | {"at context": tolerance_reached(*head, context), "when it doubles": np.sqrt(moved)})
        if heads.query is not None:
            s = query_numbers(heads.covariance, heads.query, U, V)[0]
            lengths = prompt_length_for(*head, np.array(tolerances), query=heads.query)
            row = {"head": k, "queries": "yours", "s": s} | dict(zip(_names(tolerances), lengths, strict=True))
            rows.append(row | {"at context": tolerance_reached(*head, context, query=heads.query)})
    return pd.DataFrame(rows)


def chart_of_heads(rounding: pd.DataFrame, most: int = 4) -> pd.DataFrame:
    """The table of :func:`lib.experiments.prompt_length.on_prompts.rounding` with its quantities one below the other, for a figure.

    Columns: head (the first ``most``), length, what, value.
    """
    exact = rounding.drop_duplicates(["head", "length"]).assign(what="finite prompt", value=lambda x: x["deviation"])
    rounded = rounding.assign(what=rounding["precision"], value=rounding["rounding"])
    both = pd.concat([exact, rounded], ignore_index=True)
    both = both[both["head"].isin(both["head"].unique()[:most])]
    return both.sort_values(["head", "what", "length"], kind="stable")[["head", "length", "what", "value"]]


def examples_for(problem: InContextRegression, head, risk, largest: float = 1e12) -> np.ndarray:
    """The smallest number of examples with which a head in block form has at most these excess risks, exactly.

    Args:
        problem: the regression task. head: (A, b). risk: shape (n,), above the head's risk at infinite prompts.
    """
    return smallest_length(lambda L: problem.softmax_risk(*head, L).value, np.atleast_1d(risk), largest)


def examples_when_trained(problem: InContextRegression, risk: float) -> float:
    """The same for the best head of each number of examples, which is where training at that number ends.

    By interpolation of log risk in log L between whole numbers, a dozen minimizations in all.
    """

    def log_excess(length):
        return log(problem.softmax_risk(*best_softmax(problem, length), length).value / risk)

    high = float(examples_for(problem, problem.optimum(), risk)[0])  # the best head needs no more than this one
    if high == inf or high <= 2:
        return high
    low = max(2.0, np.ceil(high / 16))
    at_low, at_high = log_excess(low), log_excess(high)
    while at_low <= 0 and low > 2:
        low = max(2.0, low // 4)
        at_low = log_excess(low)
    if at_low <= 0:
        return low
    while high - low > 1:
        share = at_low / (at_low - at_high)
        length = np.round(np.exp(log(low) + share * log(high / low)))
        length = float(np.clip(length, low + 1, high - 1))
        value = log_excess(length)
        low, at_low, high, at_high = (length, value, high, at_high) if value > 0 else (low, at_low, length, value)
    return high


def most_examples(dimensions: Sequence[int], risks: Sequence[float], noise_std: float) -> np.ndarray:
    """The most examples that the paper's optimum needs over dimensions, for each risk as a share of the null risk."""
    problems = {d: InContextRegression(np.eye(d), noise_std) for d in dimensions}
    needed = [examples_for(p, p.optimum(), np.array(risks) * d / 2) for d, p in problems.items()]
    return np.max(needed, axis=0)


def few_shot(dimensions: Sequence[int], risks: Sequence[float], noise_std: float) -> pd.DataFrame:
    """Number of examples for an excess risk, as a share of that of predicting zero, on white inputs.

    Columns: dimension, risk, optimum (the paper's optimal head), quieter (the same map with half the scores, see
    :func:`quieter`), trained (the head that training at that number of examples finds), linear (linear attention).
    """
    rows = []
    for d in dimensions:
        problem = InContextRegression(np.eye(d), noise_std)
        head, targets = problem.optimum(), np.array(risks) * d / 2
        columns = {"dimension": d, "risk": risks, "optimum": examples_for(problem, head, targets)}
        columns["quieter"] = examples_for(problem, quieter(head), targets)
        columns["trained"] = [examples_when_trained(problem, target) for target in targets]
        columns["linear"] = smallest_length(lambda L, p=problem, h=head: np.array(p.linear_risk(*h, L)), targets)
        rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True)


def quieter(head: BlockHead) -> BlockHead:
    """(A / 2, 2 b): the same infinite-prompt map, hence optimal where (A, b) is, with scores half as large."""
    return BlockHead(head.A / 2, 2 * head.b)


def _names(tolerances) -> list[str]:
    return [f"L for {t:.0%}" for t in tolerances]
