"""The needed length averaged over Gaussian queries: the coupling decides."""

from collections.abc import Sequence
from math import log

import numpy as np
import pandas as pd

from lib.experiments.prompt_length.on_prompts import CONTROL_PART, root_mean_square
from lib.finite_prompt import mean_output_error, prompt_length_for, rate_exponent
from lib.finite_prompt.needed_length import deviation
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.errors import prompt_errors
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.tokens.families import Gaussian

LONGEST_DRAWN = 1e8  # tokens, of a prompt to be drawn
MOST_PROMPTS = 10**5
DOUBLINGS = 16  # of the length, among which half the tolerance is reached
EXPONENT_ERROR = 1e-3  # of the growth over the predicted one, by interpolation


def at_needed_length(
    *, couplings: Sequence[float], dim: int, tolerance: float, number_budget: int, seed: int
) -> Comparison:
    """Deviations over the tolerance on prompts of the length needed over queries, a query a prompt.

    Args:
        couplings: lambda of one random head, scaled; white tokens and queries.
        dim: dimension d.
        tolerance: relative tolerance.
        number_budget: random numbers a length, at most.
        seed: of head, queries and prompts.

    Returns:
        A row a coupling: coupling, length, measured, low, high (over the tolerance, 95 % at each coupling).
        measured: the curve. control: the same on prompts of half the length. near miss: over the deviation of a single
        query of the mean s^2 = tr M, for which rare loud queries do not count.
    """
    parts = {}
    for coupling in couplings:
        U, V = stream(seed, "over queries").standard_normal((2, dim, dim)) / np.sqrt(dim)
        U, eye = U * np.sqrt(coupling) / np.linalg.norm(U, 2), np.eye(dim)
        length = int(prompt_length_for(eye, eye, U, V, tolerance, largest=LONGEST_DRAWN))
        curves = []
        for part in (1, 2):
            rng = stream(seed, "over queries", f"{coupling:g}", part)
            budget = number_budget if part == 1 else number_budget // CONTROL_PART
            curves.append(_deviation(U, V, length // part, budget, rng) / tolerance)
        table = pd.DataFrame({"coupling": coupling, "length": length, **curves[0].columns()})
        typical = _of_one_query(U, V, length) / tolerance
        parts[f"{coupling:g}"] = Comparison(table, *curves, near_miss=curves[0] / typical)
    return Comparison.together(parts)


def _of_one_query(U: np.ndarray, V: np.ndarray, length: int) -> float:
    """The deviation at one query with s^2 and |V U z|^2 as large as they are on average over white queries."""
    s2, linear = (U**2).sum(), ((V @ U) ** 2).sum()
    return float(deviation(np.sqrt(s2), s2 * (V**2).sum() / linear, length))


def _deviation(U: np.ndarray, V: np.ndarray, length: int, number_budget: int, rng) -> Curve:
    """The relative deviation over white queries and prompts, a curve of one point."""
    dim = len(U)
    count = affordable_prompts(length, dim, number_budget, most=MOST_PROMPTS)
    queries = rng.standard_normal((count, dim))
    errors = prompt_errors(Gaussian.centered(np.eye(dim)), queries, U, V, length, count, rng)[:, 0]
    return root_mean_square([errors / ((V @ U) ** 2).sum()], rng)


def coupling_chart(*, couplings: Sequence[float], dimensions: Sequence[int], tolerances: Sequence[float]) -> Comparison:
    """Needed length over queries for white tokens and queries, U = sqrt(lambda) I and V = I.

    Args:
        couplings: lambda.
        dimensions: dimensions d.
        tolerances: relative tolerances.

    Returns:
        A row each: dimension, coupling, tolerance, length (infinite beyond 10^15 tokens). Nothing is judged.

    Cost: half a second a row.
    """
    tables = []
    for d in dimensions:
        eye = np.eye(d)
        for coupling in couplings:
            lengths = prompt_length_for(eye, eye, np.sqrt(coupling) * eye, eye, tolerances)
            columns = {"dimension": d, "coupling": coupling, "tolerance": tolerances, "length": lengths}
            tables.append(pd.DataFrame(columns))
    return Comparison(pd.concat(tables, ignore_index=True))


def halving(*, couplings: Sequence[float], length: float) -> Comparison:
    """By what power of two the needed length grows when the tolerance is halved, for scalar queries at huge lengths.

    Args:
        couplings: lambda.
        length: L from which it grows.

    Returns:
        A row a coupling: coupling, tolerance (reached at ``length``), growth (of the length at which half of it is
        reached, between powers of two by interpolation), predicted (2 / rho(lambda)).
        measured: growth / predicted, the worst of all. control: growth by 2, four times as many tokens, in its place.
        near miss: growth over 2 / min(1, 2 / (1 + 2 lambda)), of typical prompts: at
        s = theta sqrt(2 log L) their squared weights sum to L^{-2 (1 - theta)^2}, and queries cost L^{-theta^2/lambda}.
    """
    one, rows = np.eye(1), []
    doublings = np.arange(DOUBLINGS)
    for coupling in couplings:
        error = mean_output_error(one, one, np.sqrt([[coupling]]), one, length * 2.0**doublings, rtol=1e-5).value
        growth = np.interp(log(4), np.log(error[0] / error), doublings)
        row = {"coupling": coupling, "tolerance": np.sqrt(error[0] / coupling), "growth": growth}
        rows.append(row | {"predicted": 2 / float(rate_exponent(coupling))})
    table = pd.DataFrame(rows)
    measured = Intervals.exact(table["growth"] / table["predicted"], numerical_error=EXPONENT_ERROR)
    typical = table["growth"] * np.minimum(1, 2 / (1 + 2 * table["coupling"])) / 2
    near_miss = Intervals.exact(typical, numerical_error=EXPONENT_ERROR)
    return Comparison(table, measured, Intervals.exact(2 / table["predicted"]), near_miss=near_miss)
