"""High dimension, exact: which quantity must stay fixed for "a large prompt" to keep its meaning.

Isotropic tokens, V the identity, and queries N(0, I): U = u I has the coupling u^2 and scores of variance u^2 |z|^2.
"""

import numpy as np
import pandas as pd

from lib.finite_prompt import Average, mean_output_error, output_error
from lib.finite_prompt.needed_length import length_for, length_law
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals

HUGE = 1e15  # prompt length, at which L times an average error has reached its constant for the couplings here
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
    d, found = np.array(dims, float), [_over_queries(n, coupling**0.5, HUGE) for n in dims]
    constant = HUGE * np.array([average.value for average in found])
    law = (1 - 2 * coupling) ** (-d / 2) * d * (1 + coupling / (1 - 2 * coupling))
    typical = np.exp(coupling * d) * d * (1 + coupling)
    table = pd.DataFrame({"dimension": dims, "constant": constant, "law": law, "typical": typical})
    error = max(HUGE * average.numerical_error / x for average, x in zip(found, law, strict=True))
    measured, control, near_miss = (Intervals.exact(constant / x, error) for x in (law, d, typical))
    return Comparison(table, measured, control, near_miss=near_miss)


def temperature(*, dims: list[int], s: float) -> Comparison:
    """U = s I / sqrt(d): over queries the scores have deviation s, and in high dimension all queries are alike.

    Returns:
        A row a dimension from 64 on: dimension, ratio (error averaged over queries over that at score deviation s).
        measured: the ratios over 1 + s^4 / d. near_miss: the ratios. control: with U = s I / d^(1/4).
    """
    dims = [d for d in dims if d >= FROM]
    d, one = np.array(dims, float), np.array([_at_score(n, s, HUGE) for n in dims])
    found = np.array([[_over_queries(n, s * n**-power, HUGE).value for n in dims] for power in (0.5, 0.25)]) / one
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
            error = float(_over_queries(d, u, length).value) / (u**2 * d)
            rows.append({"scaling": name, "dimension": d, "error": error})
        rows.append({"scaling": "fixed s", "dimension": d, "error": _at_score(d, s, length) / s**2})
    return Comparison(pd.DataFrame(rows))


def _over_queries(dim: int, u: float, length: float) -> Average:
    return mean_output_error(np.eye(dim), np.eye(dim), u * np.eye(dim), np.eye(dim), length)


def _at_score(dim: int, s: float, length: float) -> float:
    return float(output_error(np.eye(dim), s * np.eye(dim)[0], np.eye(dim), np.eye(dim), length))
