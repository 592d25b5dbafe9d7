"""Tokens that are not centered, and scores that grow with the prompt."""

import numpy as np
import pandas as pd

from lib.experiments.beyond_assumptions.other_laws import prompts_against
from lib.experiments.settings import generic_head
from lib.finite_prompt import local_slope, output_error, softmax_functionals
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.tokens.families import Gaussian

DIM = 4
DECADES = 4.0  # over which the local slope is taken


def shifted(*, size: float, s: float, lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """Squared output errors on Gaussian tokens N(m, I), from prompts and exact: m plays no part.

    Args:
        size: |m|. s: standard deviation of the scores. lengths: prompt lengths L. number_budget: random numbers a
            length. seed: of the head and the prompts.

    Returns:
        A row a length: tokens, length, measured, low, high, exact.
        measured: the curve over the exact one. near_miss: over the formula with the second moments I + m m' for the
        covariance. control: over the error of equal weights.
    """
    gamma, mean = np.eye(DIM), stream(seed, "mean").standard_normal(DIM)
    mean *= size / np.linalg.norm(mean)
    query, U, V = generic_head(DIM, gamma, s, seed)
    exact, moments = (output_error(g, query, U, V, np.array(lengths)) for g in (gamma, gamma + np.outer(mean, mean)))
    return prompts_against(
        Gaussian(mean, gamma), query, U, V, exact, moments, lengths=lengths, number_budget=number_budget, most=20_000,
        key=(seed, "shifted"), tokens=f"|m| = {size:g}",
    )  # fmt: skip


def growing(*, rates: list[float], longest: float) -> Comparison:
    """Scores of deviation s = c sqrt(ln L): the exponent of the inverse participation, exact, against the derived one.

    The sum of e^{s g} is typical while c < sqrt 2, that of e^{2 s g} while c < 1 / sqrt 2; beyond, the largest token
    carries it. So eta ~ L^(c^2 - 1), then L^-(sqrt 2 - c)^2, and from sqrt 2 on it stays: the weights are frozen.

    Args:
        rates: c. longest: prompt length L at the end of four decades over which the local slope is taken.

    Returns:
        A row a c: rate, slope, exponent, typical (c^2 - 1 throughout).
        measured: slope less exponent. near_miss: slope less c^2 - 1 at every c. control: slope less -1, of equal
        weights.
    """
    lengths = longest / 10.0 ** np.array([DECADES, 0.0])
    rows = []
    for c in rates:
        eta = [float(softmax_functionals(c * np.sqrt(np.log(n)), n).inverse_participation) for n in lengths]
        slope = -local_slope(lengths, eta)[0]
        exponent = c**2 - 1 if c < 0.5**0.5 else -(max(2**0.5 - c, 0.0) ** 2)
        rows.append({"rate": c, "slope": slope, "exponent": exponent, "typical": c**2 - 1})
    table = pd.DataFrame(rows)
    sides = [Intervals.exact(table["slope"] - x, 1e-6) for x in (table["exponent"], -1.0, table["typical"])]
    return Comparison(table, *sides[:2], near_miss=sides[2])
