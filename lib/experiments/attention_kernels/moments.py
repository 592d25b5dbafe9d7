"""Moment attention on Gaussian tokens: its distances to the limit and to softmax, from prompts and exact."""

import numpy as np
import pandas as pd

from lib.experiments.settings import generic_head, setting_name
from lib.finite_prompt import output_error, score_deviation
from lib.kernels import MomentAttention, Softmax, project, split
from lib.kernels.exact_errors import moment_error, moment_softmax_distance
from lib.notebook.comparison import Comparison
from lib.prompts.attention import limit_attention
from lib.prompts.batches import affordable_prompts, batches
from lib.prompts.curve import Curve
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian
from lib.tokens.measure import TokenMeasure

DISTANCES = ("softmax to limit", "moment to limit", "moment to softmax")
FEWEST = 24  # prompts a setting and length, whatever the budget


def distances(
    *,
    settings: list[tuple],
    deviations: list[float],
    lengths: list[int],
    number_budget: int,
    coordinates: int,
    seed: int,
) -> Comparison:
    """Squared distances between softmax, moment attention and their common limit, from prompts over the exact ones.

    Args:
        settings: (covariance, dimension) pairs; each has one random query and head.
        deviations: s, standard deviations of the scores, for queries in one direction.
        lengths: prompt lengths L, from 2.
        number_budget: random numbers a setting and length, at most.
        coordinates: prompts times dimension, at most.
        seed: of heads and prompts.

    Returns:
        A row a setting, s, distance and length: s, distance, setting, length, prompts, measured, low, high, exact.
        There is a part for each of DISTANCES. measured: curves over the exact ones, the mean over settings, joined over
        s. control: over a wrong curve, softmax's error for moment attention's and the other way round, and for the
        distance between the two the sum of both errors, as if they were independent. near_miss: over a curve that is
        wrong in the next order, see :func:`nearly_exact`.

    Raises:
        ValueError: for a length below 2.
    """
    if min(lengths) < 2:
        raise ValueError("on a single token softmax and moment attention agree: prompt lengths must be 2 or more")
    found = {
        setting_name(*setting): _of_setting(*setting, deviations, lengths, number_budget, coordinates, seed)
        for setting in settings
    }
    parts = {}
    for distance in DISTANCES:
        same = {s: {name: of_setting[s, distance] for name, of_setting in found.items()} for s in deviations}
        parts[distance] = Comparison.together({f"s = {s:g}": Comparison.averaged(same[s]) for s in deviations})
    tables = [comparison.table for of_setting in found.values() for comparison in of_setting.values()]
    return Comparison(pd.concat(tables, ignore_index=True), parts=parts)


def _of_setting(covariance, dim, deviations, lengths, number_budget, coordinates, seed) -> dict[tuple, Comparison]:
    """The comparison of each (s, distance)."""
    name, gamma = setting_name(covariance, dim), covariance_matrix(covariance, dim)
    query, U, V = generic_head(dim, gamma, 1.0, seed)
    measure, queries, samples = Gaussian.centered(gamma), np.outer(deviations, query), []
    for length in lengths:
        n_prompts = affordable_prompts(length, dim, number_budget, max(FEWEST, coordinates // dim), FEWEST)
        rng = stream(seed, "moments", name, length)
        samples.append(squared_distances(measure, queries, U, V, length, n_prompts, rng))
    columns = {"setting": name, "length": lengths, "prompts": [len(x) for x in samples]}
    found = {}
    for j, s in enumerate(deviations):
        exact = exact_distances(gamma, s * query, U, V, lengths)
        wrong = exact[1], exact[0], exact[0] + exact[1]
        nearly = nearly_exact(gamma, s * query, U, V, lengths)
        for k, distance in enumerate(DISTANCES):
            losses, rng = [x[:, j, k] for x in samples], stream(seed, "moments", name, "bootstrap", j, k)
            curve = Curve.from_samples(losses, rng)
            what = {"s": s, "distance": distance} | columns
            found[s, distance] = Comparison.of_curve(curve, exact[k], wrong[k], nearly[k], **what)
    return found


def exact_distances(covariance, query, U, V, lengths) -> np.ndarray:
    """The three exact squared distances, shape (3, n), in the order of DISTANCES; arguments as for `output_error`."""
    return np.stack(
        [f(covariance, query, U, V, lengths) for f in (output_error, moment_error, moment_softmax_distance)]
    )


def nearly_exact(covariance, query, U, V, lengths) -> np.ndarray:
    """Three formulas that are wrong in the next order in 1/L, shape (3, n), in the order of DISTANCES.

    Softmax's error by the law of long prompts, e^{s^2} (tr V Gamma V' + |V Gamma a|^2) / L; moment attention's with the
    covariance divided by L - 1, [tr + (s^2 tr + |V Gamma a|^2) L / (L - 1)] / L; and for their distance the difference
    of their errors, which it is in the limit alone.
    """
    softmax, moment, _ = exact_distances(covariance, query, U, V, lengths)
    L, total = np.asarray(lengths, float), np.trace(V @ covariance @ V.T)
    s2 = float(score_deviation(covariance, query, U)) ** 2
    along = ((V @ covariance @ U @ query) ** 2).sum()
    unbiased = (total + (s2 * total + along) * L / (L - 1)) / L
    return np.stack([np.exp(s2) * (total + along) / L, unbiased, softmax - moment])


def squared_distances(measure: TokenMeasure, queries, U, V, length: int, n_prompts: int, rng) -> np.ndarray:
    """The three squared distances on fresh prompts, shape (n_prompts, q, 3): queries (q, d), U (d, d), V (k, d)."""
    K, Q = split(U)
    limit, found = limit_attention(measure, queries, U, V), []
    for part in batches(n_prompts, length * measure.dim):
        tokens = measure.sample(part.stop - part.start, length, rng)
        inputs = project(tokens, queries, K, Q, V)
        exact, moment = Softmax()(*inputs), MomentAttention()(*inputs)
        pairs = (exact, limit), (moment, limit), (moment, exact)
        found.append(np.stack([((x - y) ** 2).sum(-1) for x, y in pairs], -1))
    return np.concatenate(found)


def isotropic(dim: int, s: float) -> tuple:
    """Arguments (covariance, query, U, V) of the exact errors, for tokens N(0, I) in any dimension, U = V = I, |z| = s.

    All that is across the scores enters by its trace: two dimensions stand for all.
    """
    return np.diag([1.0, dim - 1]), np.array([s, 0.0]), np.eye(2), np.eye(2)


def closer_to_limit(*, deviations: list[float], multiples: list[float], dims: list[int]) -> Comparison:
    """Exact squared error of moment attention beside that of softmax, isotropic tokens, L = multiple * (1 + s^2).

    Args:
        deviations: s, standard deviations of the scores.
        multiples: of 1 + s^2, prompt lengths being rounded up.
        dims: dimensions d of the tokens.

    Returns:
        A row a dimension, s and length: s, dimension, multiple, length, and ``gain``, by which moment attention's error
        is smaller, relative to that of softmax. Nothing is judged.
    """
    tables = []
    for dim in dims:
        for s in deviations:
            lengths = np.unique(np.ceil(np.asarray(multiples) * (1 + s**2)))
            columns = {"s": s, "dimension": dim, "multiple": lengths / (1 + s**2), "length": lengths}
            softmax = output_error(*isotropic(dim, s), lengths)
            tables.append(pd.DataFrame(columns | {"gain": errors_gap(dim, s, lengths) / softmax}))
    return Comparison(pd.concat(tables, ignore_index=True))


def errors_gap(dim: int, s: float, lengths) -> np.ndarray:
    """Softmax's exact squared error less that of moment attention, isotropic tokens."""
    return output_error(*isotropic(dim, s), lengths) - moment_error(*isotropic(dim, s), lengths)


def equal_at(dim: int, s: float) -> float:
    """The prompt length, interpolated, from which on moment attention is closer to the limit, for weak scores.

    L^3 (softmax's error - moment attention's) / (L - 1) is linear in L up to O(s^2).

    Raises:
        ValueError: if it is not between 2 and 20.
    """
    lengths = np.arange(2.0, 21.0)
    scaled = errors_gap(dim, s, lengths) * lengths**3 / (lengths - 1)
    last = int(np.flatnonzero(scaled < 0)[-1]) if scaled[0] < 0 < scaled[-1] else -1
    if last < 0:
        raise ValueError(f"at s = {s:g} and d = {dim} the errors are not equal at any length from 2 to 20")
    return float(lengths[last] - scaled[last] / (scaled[last + 1] - scaled[last]))


def equal_errors(*, s: float, dims: list[int]) -> Comparison:
    """The prompt length at which both errors are equal, for weak scores, over the predicted 6.

    From exact errors at s and at s/2, by Richardson's rule: the length is 6 + O(s^2).

    Args:
        s: standard deviation of the scores, small.
        dims: dimensions d of isotropic tokens.

    Returns:
        A row a dimension: dimension, equal at s, at s/2, and the limit.
        measured: the limits over 6, with the last change divided by ten as their numerical error. control: over the
        length 1 + s^2 where strong scores cross. near_miss: over (7 + sqrt(53)) / 2, which the fourth cumulant of L
        tokens, -6 (L - 1) / L^2, gives to leading order in 1/L.
    """
    table = pd.DataFrame({"dimension": dims})
    for name, deviation in (("equal at s", s), ("equal at s/2", s / 2)):
        table[name] = [equal_at(dim, deviation) for dim in dims]
    table["limit"] = (4 * table["equal at s/2"] - table["equal at s"]) / 3
    error = float((table["limit"] - table["equal at s/2"]).abs().max()) / 10
    sides = [Intervals.exact(table["limit"] / x, error / x) for x in (6.0, 1 + s**2, (7 + np.sqrt(53)) / 2)]
    return Comparison(table, sides[0], sides[1], near_miss=sides[2])
