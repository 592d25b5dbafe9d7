"""High dimension, exact: which quantity must stay fixed for "a large prompt" to keep its meaning.

Isotropic tokens, V the identity, and queries N(0, I): U = u I has the coupling u^2 and scores of variance u^2 |z|^2.
"""

import numpy as np
import pandas as pd
from scipy.special import gammaln

from lib.finite_prompt import softmax_functionals
from lib.finite_prompt.needed_length import length_for, length_law
from lib.finite_prompt.weight_table import weights_excess
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals

HUGE = 1e15  # prompt length, at which L times an average error has reached its constant for the couplings here
REACH, RADII = 12.0, 400  # of Gauss' rule for |z|, in standard deviations, and its nodes
FROM = 64  # the dimension from which the next order is small


def fixed_score(*, dims: list[int], s: float, tolerance: float) -> Comparison:
    """Tokens needed for a tolerance at a fixed score deviation: they grow in proportion to the dimension.

    Returns:
        A row a dimension: dimension, length, law, alone.
        measured: exact over e^{s^2} (d + s^2) / (s^2 tolerance^2). near_miss: over the same without s^2 beside d.
        control: over a law without d.
    """
    exact = np.array([length_for(s, d, tolerance) for d in dims])
    law = np.array([float(length_law(s, d, tolerance)) for d in dims])
    alone, flat = law * np.array(dims) / (np.array(dims) + s**2), np.full(len(dims), law[0])
    table = pd.DataFrame({"dimension": dims, "length": exact, "law": law, "alone": alone})
    measured, control, near_miss = (Intervals.exact(exact / x) for x in (law, flat, alone))
    return Comparison(table, measured, control, near_miss=near_miss)


def fixed_coupling(*, dims: list[int], coupling: float) -> Comparison:
    """L times the error averaged over queries, at a fixed coupling: it grows exponentially in the dimension.

    Returns:
        A row a dimension: dimension, constant, law, typical.
        measured: exact over (1 - 2 c)^{-d/2} d (1 + c / (1 - 2 c)), c the coupling. near_miss: over e^{s^2} (d + s^2)
        at the typical query, s^2 = c d. control: over d.
    """
    d, constant = np.array(dims, float), HUGE * np.array([over_queries(n, coupling**0.5, HUGE) for n in dims])
    law = (1 - 2 * coupling) ** (-d / 2) * d * (1 + coupling / (1 - 2 * coupling))
    typical = np.exp(coupling * d) * d * (1 + coupling)
    table = pd.DataFrame({"dimension": dims, "constant": constant, "law": law, "typical": typical})
    measured, control, near_miss = (Intervals.exact(constant / x, 1e-5) for x in (law, d, typical))
    return Comparison(table, measured, control, near_miss=near_miss)


def temperature(*, dims: list[int], s: float) -> Comparison:
    """U = s I / sqrt(d): over queries the scores have deviation s, and in high dimension all queries are alike.

    Returns:
        A row a dimension from 64 on: dimension, ratio (error averaged over queries over that at score deviation s).
        measured: the ratios over 1 + s^4 / d. near_miss: the ratios. control: with U = s I / d^(1/4).
    """
    dims = [d for d in dims if d >= FROM]
    d, one = np.array(dims, float), np.array([_at_score(n, s, HUGE) for n in dims])
    found = np.array([[over_queries(n, s * n**-power, HUGE) for n in dims] for power in (0.5, 0.25)]) / one
    table = pd.DataFrame({"dimension": dims, "ratio": found[0]})
    measured, near_miss, control = (Intervals.exact(x, 1e-5) for x in (found[0] / (1 + s**4 / d), found[0], found[1]))
    return Comparison(table, measured, control, near_miss=near_miss)


def scalings(*, dims: list[int], s: float, coupling: float, length: float) -> Comparison:
    """The relative squared error at one prompt length, against the dimension, for three ways to scale the scores.

    Returns:
        A row a scaling and dimension: scaling, dimension, error (over the mean squared output of the limit).
    """
    rows = []
    for d in dims:
        for name, u in {"fixed coupling": coupling**0.5, "temperature √d": s * d**-0.5}.items():
            error = over_queries(d, u, length) / (u**2 * d)
            rows.append({"scaling": name, "dimension": d, "error": error})
        rows.append({"scaling": "fixed s", "dimension": d, "error": _at_score(d, s, length) / s**2})
    return Comparison(pd.DataFrame(rows))


def over_queries(dim: int, u: float, length: float) -> float:
    """:func:`lib.finite_prompt.mean_output_error` of U = u I on isotropic tokens and queries, in any dimension.

    The score deviation is u |z|, so that one integral over |z| is left, and no matrix of the dimension's size is made.
    Relative accuracy 1e-8 for u up to 1.
    """
    stretch = 1 / np.sqrt(max(1 - 2 * u**2, 0.1))  # e^{s^2} moves the queries that count outward, as far as L lets it
    low, high = max(0.0, np.sqrt(dim) - REACH), stretch * (np.sqrt(dim) + REACH)
    x, weights = np.polynomial.legendre.leggauss(RADII)
    r, weights = low + (high - low) * (x + 1) / 2, weights * (high - low) / 2
    density = np.exp((dim - 1) * np.log(r) - r**2 / 2 - (dim / 2 - 1) * np.log(2) - gammaln(dim / 2))
    excess, W = (table[:, 0] for table in weights_excess((float(length),), u * r))
    eta = excess + 1 / length
    zeta = eta + (u * r) ** 2 * (W - 1 / length + 2 * eta)
    return float((weights * density) @ (eta * (dim - 1) + zeta))


def _at_score(dim: int, s: float, length: float) -> float:
    """:func:`lib.finite_prompt.output_error` on isotropic tokens at a query of this score deviation, V the identity."""
    w = softmax_functionals(s, length)
    return float(w.squared_error + w.inverse_participation * (dim - 1))
