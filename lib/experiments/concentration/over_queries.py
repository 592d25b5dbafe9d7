"""Averages over Gaussian queries: from prompts, the rate at which they fall, and the shape of the paper's bound."""

import numpy as np
import pandas as pd

from lib.finite_prompt import decades, mean_output_error, output_error, rate_exponent, slopes_over_decades
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.errors import prompt_errors
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.tokens.families import Gaussian

CONTROL_COUPLING = 0.5
JUDGED_FROM = 1.0  # the coupling from which on the rate is judged: near 1/2 logarithms delay it


def query_averages(
    *, inflations: dict[float, float], dim: int, lengths: list[int], number_budget: int, seed: int
) -> Comparison:
    """The error averaged over queries, from prompts with a query each, against the exact average.

    Args:
        inflations: for each coupling, the factor by which the variance of the queries is inflated; they are weighted
            back, so that the rare queries that dominate the average are met. A factor of 1 is plain sampling.
        dim: dimension d of isotropic tokens and queries.
        lengths: prompt lengths L.
        number_budget: random numbers a length.
        seed: of queries and prompts.

    Returns:
        A part for each coupling. A row a coupling and length: coupling, length, measured, low, high, exact.
        measured: the curves over the exact averages, joined. control: over that at a coupling of 1/2. near_miss: over
        the error at one query of average s^2, as if the average could be taken inside.
    """
    eye, parts = np.eye(dim), {}
    wrong = mean_output_error(eye, eye, np.sqrt(CONTROL_COUPLING) * eye, eye, lengths).value
    for coupling, inflation in inflations.items():
        U, samples = np.sqrt(coupling) * eye, []
        for length in lengths:
            rng = stream(seed, "average", f"{coupling:g}", length)
            count = affordable_prompts(length, dim, number_budget, most=400_000)
            queries = np.sqrt(inflation) * rng.standard_normal((count, dim))
            log_weights = (dim * np.log(inflation) - (queries**2).sum(1) * (1 - 1 / inflation)) / 2
            errors = prompt_errors(Gaussian.centered(eye), queries, U, eye, length, count, rng)[:, 0]
            samples.append(np.exp(log_weights) * errors)
        curve = Curve.from_samples(samples, stream(seed, "average", f"{coupling:g}", "bootstrap"))
        exact, name = mean_output_error(eye, eye, U, eye, lengths).value, f"λ = {coupling:g}"
        typical = output_error(eye, np.ones(dim), U, eye, lengths)
        parts[name] = Comparison.of_curve(curve, exact, wrong, typical, coupling=name, length=lengths)
    return Comparison.together(parts)


def rate_atlas(*, couplings: list[float], lengths: list[float]) -> Comparison:
    """Exact averages for scalar queries over huge lengths: the error, and its local slope over the decade from L.

    Args:
        couplings: lambda.
        lengths: prompt lengths L at which the decades begin.

    Returns:
        A row a coupling and length: coupling, length, error, slope, exponent (rho(lambda)), quenched (the exponent that
        typical instead of rare prompts would give, 2 / (1 + 2 lambda) where that is below one), numerical_error.
        measured: slope less exponent at the largest length, for couplings of at least 1. control: less 1, the rate of
        every single query. near_miss: less the quenched exponent.
    """
    one, tables = np.eye(1), []
    for coupling in couplings:
        ends = decades(lengths)
        average = mean_output_error(one, one, np.sqrt([[coupling]]), one, ends)
        columns = {"coupling": coupling, "length": lengths, "error": average.value[::2]}
        slopes = slopes_over_decades(ends, average.value)
        columns |= {"slope": slopes, "exponent": float(rate_exponent(coupling))}
        columns |= {"quenched": min(1.0, 2 / (1 + 2 * coupling))}
        columns |= {"numerical_error": (average.numerical_error / average.value)[::2]}
        tables.append(pd.DataFrame(columns))
    table = pd.concat(tables, ignore_index=True)
    last = table[(table["coupling"] >= JUDGED_FROM) & (table["length"] == max(lengths))]
    error = 2 * last["numerical_error"].max() / np.log(10)  # of a slope over a decade
    gaps = last["slope"] - last["exponent"], last["slope"] - 1, last["slope"] - last["quenched"]
    measured, control, near_miss = (Intervals.exact(gap, numerical_error=error) for gap in gaps)
    return Comparison(table, measured, control, near_miss=near_miss)


def bound_shape(*, norm: float, sigmas: list[float], rates: list[float], lengths: list[float]) -> Comparison:
    """Which (c1, c2) satisfy E <= c1 sigma^6 ln(L) / L^{c2 / sigma^2} for all sigma and all L >= 2 up to some length.

    Args:
        norm: |U|; tokens are scalar, N(0, sigma^2), queries N(0, 1), V = 1.
        sigmas: sigma, at least 1.
        rates: c2.
        lengths: prompt lengths L, from 2.

    Returns:
        A row a rate and length: c2, length, and c1, the smallest that holds up to there. It levels off where c2 is
        admissible and grows without end where not. Nothing is judged.
    """
    one, rows = np.eye(1), []
    lengths = np.array(lengths, float)
    errors = {x: mean_output_error(x**2 * one, one, norm * one, one, lengths).value for x in sigmas}
    for c2 in rates:
        needed = [e * lengths ** (c2 / x**2) / (x**6 * np.log(lengths)) for x, e in errors.items()]
        c1 = np.maximum.accumulate(np.max(needed, axis=0))
        rows.append(pd.DataFrame({"c2": c2, "length": lengths, "c1": c1}))
    return Comparison(pd.concat(rows, ignore_index=True))
