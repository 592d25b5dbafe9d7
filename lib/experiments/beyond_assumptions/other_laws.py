"""Independent tokens that are not Gaussian: each law has its own limit, and prompts follow its own exact curve."""

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

from lib.experiments.settings import generic_head, unit_measures
from lib.finite_prompt import measure_deviation, measure_error, output_error
from lib.notebook.comparison import Comparison
from lib.prompts.batches import CACHE, affordable_prompts, batches
from lib.prompts.curve import Curve
from lib.prompts.errors import prompt_errors
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.online_softmax import SoftmaxAccumulator
from lib.prompts.streams import stream
from lib.tokens.families import GaussianMixture, Sphere
from lib.tokens.heavy_tails import Laplace, StudentT
from lib.tokens.measure import TokenMeasure

PLANE = 2  # dimension of the tokens: nothing depends on it, and a direction is two numbers
FOURTH_CUMULANT = {"Rademacher": -2.0, "uniform": -1.2, "Laplace": 3.0}  # of a coordinate of variance one
ACROSS = 2.0, 1.0  # a direction that is no axis and does not have its coordinates alike
LONGEST = 1e15


def plane_measures() -> dict[str, TokenMeasure]:
    """Five laws in the plane with mean zero and covariance the identity, none of them Gaussian."""
    return {k: m for k, m in unit_measures(PLANE).items() if k != "Gaussian"} | {"Laplace": Laplace(PLANE)}


def own_limits(*, s: float, lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """Squared output errors to each law's own limit, from prompts, against its exact curve.

    Args:
        s: standard deviation of the scores. lengths: prompt lengths L.
        number_budget: random numbers a law and length. seed: of the head and the prompts.

    Returns:
        A part and a row a law and length: tokens, length, measured, low, high, exact.
        measured: the curves over the exact ones, all but that of Laplace tokens, whose mean error rare prompts carry.
        near_miss: over the Gaussian formula with the same covariance. control: over the error of equal weights,
        tr(V V') / L.
    """
    query, U, V = generic_head(PLANE, np.eye(PLANE), s, seed)
    gaussian, found = output_error(np.eye(PLANE), query, U, V, np.array(lengths)), {}
    for name, measure in plane_measures().items():
        exact = measure_error(measure, query, U, V, lengths).squared_error
        found[name] = prompts_against(
            measure, query, U, V, exact, gaussian, lengths=lengths, number_budget=number_budget, most=40_000,
            key=(seed, name), tokens=name,
        )  # fmt: skip
    judged = Comparison.together({name: part for name, part in found.items() if name != "Laplace"})
    return replace(judged, table=Comparison.together(found).table)


def prompts_against(
    measure: TokenMeasure,
    query,
    U,
    V,
    exact,
    nearly,
    *,
    lengths: list[int],
    number_budget: int,
    most: int,
    key,
    **columns,
) -> Comparison:
    """Squared output errors on prompts of a measure with covariance I, over an exact curve, a near one, equal weights.

    Args:
        exact, nearly: errors, shape (n_lengths,). number_budget: random numbers a length, for at most so many prompts.
        key: of the random streams. columns: of the table, before ``length``.
    """
    samples = []
    for length in lengths:
        count = affordable_prompts(length, measure.dim, number_budget, most)
        samples.append(prompt_errors(measure, query, U, V, length, count, stream(*key, length))[:, 0])
    curve, equal = Curve.from_samples(samples, stream(*key, "bootstrap")), (V**2).sum() / np.array(lengths)
    return Comparison.of_curve(curve, exact, equal, nearly, **columns, length=lengths)


def causes(*, s: float, lengths: list[float], seed: int) -> Comparison:
    """The squared distance from the linear map by its causes, exact, relative to the map's output.

    Returns:
        A row a law, length and cause (fluctuation, bias, nonlinearity): tokens, length, cause, share, total.
    """
    query, U, V = generic_head(PLANE, np.eye(PLANE), s, seed)
    rows = []
    for name, measure in plane_measures().items():
        parts = measure_deviation(measure, query, U, V, lengths)
        for cause in ("fluctuation", "bias", "nonlinearity"):
            share = np.broadcast_to(getattr(parts, cause), len(lengths))
            columns = {"tokens": name, "length": lengths, "cause": cause, "share": share, "total": parts.total}
            rows.append(pd.DataFrame(columns))
    return Comparison(pd.concat(rows, ignore_index=True))


def crossing(*, sizes: list[float]) -> Comparison:
    """The prompt length at which the error of finite prompts equals the nonlinearity of the limit, by size of the tilt.

    For independent coordinates of variance 1 and fourth cumulant k, and V the identity, the limit leaves the linear map
    by k a_j^3 / 6 a coordinate, so that for quiet queries L = 36 d / (k^2 sum_j a_j^6).

    Args:
        sizes: |a|, from small to large, along ACROSS.

    Returns:
        A row a law and size: tokens, size, length (nan where there is none from 1 to 1e15), law, alike.
        measured: length over law at the smallest size, for each law. near_miss: over that of directions all alike, with
        |a|^6 / d^2 for the sum. control: over 36 d / (k^2 sum_j a_j^4).
    """
    rows, direction = [], np.array(ACROSS) / np.linalg.norm(ACROSS)
    for name, measure in plane_measures().items():
        if name not in FOURTH_CUMULANT:  # its coordinates depend on each other
            continue
        for size in sizes:
            a, base = size * direction, 36 * PLANE / FOURTH_CUMULANT[name] ** 2
            row = {"tokens": name, "size": size, "length": _crossing(measure, a), "law": base / (a**6).sum()}
            rows.append(row | {"alike": base * PLANE**2 / size**6, "fourth": base / (a**4).sum()})
    table = pd.DataFrame(rows)
    first = table[table["size"] == min(sizes)]
    sides = [Intervals.exact(first["length"] / first[name], 1e-4) for name in ("law", "fourth", "alike")]
    return Comparison(table, *sides[:2], near_miss=sides[2])


def _crossing(measure: TokenMeasure, a: np.ndarray) -> float:
    unit, lengths = np.eye(PLANE), np.unique(np.round(np.geomspace(1, LONGEST, 150)))
    errors = measure_error(measure, a, unit, unit, lengths).squared_error  # all lengths cost as much as one
    excess = np.log(errors / ((measure.tilted_mean(a) - a) ** 2).sum())
    found = CubicSpline(np.log(lengths), excess).roots(extrapolate=False)
    return float(np.exp(found[-1])) if len(found) else np.nan


def elliptical(*, dim: int, sizes: list[float], length: int, number_budget: int, seed: int) -> Comparison:
    """The length of the output on elliptical tokens over that of the linear map, from long prompts and exact.

    By symmetry the limit points along Gamma U z; its length is that times a factor of s. Both laws have covariance I.
    ``exact`` is the mean output at this prompt length, ``limit`` the factor of an infinite prompt.

    Args:
        dim: dimension d. sizes: score deviations s. length: of the prompts. number_budget: random numbers a law.
        seed: of the directions and the prompts.

    Returns:
        A part and a row a law and s: tokens, s, limit, measured, low, high, exact.
        measured: factors over the exact ones. near_miss: over those in one dimension more, of the sphere's factors.
        control: over 1, as if the limit were linear for every elliptical law.
    """
    spread = np.array([0.25, 1.75])
    two = GaussianMixture(np.full(2, 0.5), np.zeros((2, dim)), spread[:, None, None] * np.eye(dim))
    unit = stream(seed, "elliptical").standard_normal(dim)
    tilts, found = np.outer(sizes, unit / np.linalg.norm(unit)), {}
    for name, measure in {"sphere": Sphere(dim, dim**0.5), "two sizes": two}.items():
        along = _along(measure, tilts, length, number_budget, stream(seed, name))
        curve = Curve.from_samples(list(along.T), stream(seed, name, "bootstrap"))
        exact = _factors(measure, sizes, length)
        larger = _factors(Sphere(dim + 1, (dim + 1) ** 0.5), sizes, length) if name == "sphere" else exact
        columns = {"tokens": name, "s": sizes, "limit": _factors(measure, sizes, LONGEST)}
        found[name] = Comparison.of_curve(curve, exact, np.ones(len(sizes)), larger, **columns)
    return Comparison.together(found)


def _factors(measure, sizes, length) -> np.ndarray:
    """The mean output along the tilt over the tilt, for a law with covariance I, exact."""
    axis, unit = np.eye(measure.dim)[0], np.eye(measure.dim)
    return np.array([measure_error(measure, s * axis, unit, unit, length).mean[0, 0] / s for s in sizes])


def _along(measure, tilts, length, number_budget, rng) -> np.ndarray:
    """Outputs along the tilt, over the tilt: a row a prompt, a column a tilt."""
    rows, count = [], affordable_prompts(length, measure.dim, number_budget, most=10**5)
    for part in batches(count, length * measure.dim, CACHE):
        mean = SoftmaxAccumulator(tilts).update(measure.sample(part.stop - part.start, length, rng)).mean
        rows.append(np.vecdot(mean, tilts) / (tilts**2).sum(-1))
    return np.concatenate(rows)


def no_limit(*, df: float, s: float, lengths: list[int], prompts: int, seed: int) -> Comparison:
    """Student t tokens, one coordinate: growing prompts whose output follows their largest token, without end.

    The largest of L tokens grows like L^(1/df) and so do the gaps below it, so that its weight tends to one.

    Args:
        df: degrees of freedom. s: the tilt. lengths: prompt lengths L, rising. prompts: nested ones. seed: of these.

    Returns:
        A row a length: length, output (geometric mean), largest (token, the same), participation (mean of sum p^2).
        measured: slope of log output in log L, a mean over prompts. near_miss: over the exponent 1 / (df + 1), beside
        it. control: beside no growth.
    """
    measure, rng = StudentT(1, df), stream(seed, "student")
    values = np.empty((prompts, len(lengths), 3))
    for k in range(prompts):
        x = measure.sample(1, max(lengths), rng)[0, :, 0]
        for j, length in enumerate(lengths):
            w = np.exp(s * (x[:length] - x[:length].max()))
            p = w / w.sum()
            values[k, j] = max(p @ x[:length], 1e-3), x[:length].max(), (p**2).sum()
    log_length = np.log(lengths) - np.log(lengths).mean()
    slopes = np.log(values[..., 0]) @ log_length / (log_length @ log_length)
    columns = {"length": lengths, "output": np.exp(np.log(values[..., 0]).mean(0))}
    columns |= {"largest": np.exp(np.log(values[..., 1]).mean(0)), "participation": values[..., 2].mean(0)}
    sides = [Estimate.of_mean(slopes - exponent) for exponent in (1 / df, 0.0, 1 / (df + 1))]
    return Comparison(pd.DataFrame(columns), *sides[:2], near_miss=sides[2])
