"""Experiments of notebook 05: what may replace softmax and at what error, one function a section.

Random features and projections are in :mod:`lib.experiments.attention_kernels.approximations`, tasks in :mod:`lib.experiments.attention_kernels.tasks`.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
import pandas as pd

from lib.experiments.settings import generic_head, unit_measures
from lib.finite_prompt import output_error, softmax_functionals
from lib.kernels import AttentionKernel, LinearAttention, MomentAttention, Softmax, project, split
from lib.kernels.exact_errors import linear_error, moment_error, moment_softmax_distance
from lib.prompts.attention import limit_attention
from lib.prompts.batches import CACHE as BLOCK_NUMBERS
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve, average, join
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian
from lib.tokens.measure import TokenMeasure

DISTANCES = ("softmax to limit", "moment to limit", "moment to softmax")


def blocks(measure: TokenMeasure, length: int, n_prompts: int, rng) -> Iterator[np.ndarray]:
    """Prompts (n, length, d) in blocks of bounded memory, n_prompts in all."""
    group = max(1, 4 * BLOCK_NUMBERS // (length * measure.dim))
    for start in range(0, n_prompts, group):
        yield measure.sample(min(group, n_prompts - start), length, rng)


class MomentErrors:
    """Squared distances between softmax, moment attention and their common limit, from prompts and exact.

    Args:
        settings: (covariance, dimension) pairs; each has one random query and head.
        deviations: s, the standard deviations of the scores, for queries in one direction. lengths: of prompts.
        budget, coordinates: random numbers a setting and length, and prompts times dimension, at most.

    Attributes:
        table: tidy: setting, s, distance, length, prompts, measured, low, high, exact.
        ratios: {distance: curves measured / exact, one for each s, the mean over settings}.
        wrong: the same over a wrong curve: softmax's error for moment attention's and the other way round, and for
            the distance between the two the sum of both errors, as if they were independent.
    """

    def __init__(self, settings: Sequence[tuple], deviations, lengths: list[int], budget: int, coordinates: int, seed):
        if min(lengths) < 2:
            raise ValueError("on a single token softmax and moment attention agree: prompt lengths must be 2 or more")
        rows, ratios, wrong = [], {}, {}
        for covariance, dim in settings:
            name, gamma = f"{covariance}, d = {dim}", covariance_matrix(covariance, dim)
            query, U, V = generic_head(dim, gamma, 1.0, seed)
            measure = Gaussian(np.zeros(dim), gamma)
            samples = []
            for length in lengths:
                n_prompts = affordable_prompts(length, dim, budget, max(24, coordinates // dim))
                rng = stream(seed, "moments", name, length)
                queries = np.outer(deviations, query)
                samples.append(_distances(measure, queries, U, V, length, n_prompts, rng))
            for j, s in enumerate(deviations):
                exact = exact_distances(gamma, s * query, U, V, lengths)
                against = [exact[1], exact[0], exact[0] + exact[1]]
                for k, distance in enumerate(DISTANCES):
                    rng = stream(seed, "moments", name, "bootstrap", j, k)
                    curve = Curve.from_samples([x[:, j, k] for x in samples], rng)
                    low, high = curve.simultaneous()
                    columns = {"setting": name, "s": s, "distance": distance, "length": lengths}
                    columns |= {"prompts": [len(x) for x in samples], "measured": curve.mean}
                    rows.append(pd.DataFrame(columns | {"low": low, "high": high, "exact": exact[k]}))
                    ratios.setdefault((distance, s), []).append(curve / exact[k])
                    wrong.setdefault((distance, s), []).append(curve / against[k])
        self.table = pd.concat(rows, ignore_index=True)
        self.ratios, self.wrong = (
            {d: join([average(table[d, s]) for s in deviations]) for d in DISTANCES} for table in (ratios, wrong)
        )


def exact_distances(covariance, query, U, V, lengths) -> np.ndarray:
    """The three exact squared distances, shape (3, n), in the order of DISTANCES."""
    return np.stack(
        [f(covariance, query, U, V, lengths) for f in (output_error, moment_error, moment_softmax_distance)]
    )


def _distances(measure, queries, U, V, length, n_prompts, rng) -> np.ndarray:
    K, Q = split(U)
    limit, parts = limit_attention(measure, queries, U, V), []
    for tokens in blocks(measure, length, n_prompts, rng):
        inputs = project(tokens, queries, K, Q, V)
        exact, moment = Softmax()(*inputs), MomentAttention()(*inputs)
        parts.append(
            np.stack([((x - y) ** 2).sum(-1) for x, y in ((exact, limit), (moment, limit), (moment, exact))], -1)
        )
    return np.concatenate(parts)


def closer_to_limit(deviations, multiples, dims) -> pd.DataFrame:
    """Exact error of moment attention over that of softmax, at L = multiple * (1 + s^2), rounded up, isotropic tokens.

    Columns: s, dimension, multiple, length, ratio.
    """
    rows = []
    for dim in dims:
        for s in deviations:
            lengths = np.unique(np.ceil(np.asarray(multiples) * (1 + s**2)))
            w = softmax_functionals(s, lengths)
            softmax = w.squared_error + (dim - 1) * w.inverse_participation
            moment = ((1 + s**2 * (1 - 1 / lengths)) * dim + s**2) / lengths
            columns = {"s": s, "dimension": dim, "multiple": lengths / (1 + s**2), "length": lengths}
            rows.append(pd.DataFrame(columns | {"ratio": moment / softmax}))
    return pd.concat(rows, ignore_index=True)


def centering(dim: int, s: float, lengths: list[int], budget: int, seed: int):
    """Linear and moment attention on tokens whose mean is not zero: errors against the limit, from prompts and exact.

    Returns a tidy table; for linear attention the curve measured / exact, and measured / (the formula for m = 0).
    """
    rng = stream(seed, "centering", "head")
    gamma, mean = np.eye(dim), rng.standard_normal(dim) / np.sqrt(dim)
    query, U, V = generic_head(dim, gamma, s, seed)
    K, Q = split(U)
    measure = Gaussian(mean, gamma)
    limit, samples = limit_attention(measure, query, U, V), []
    for length in lengths:
        n_prompts, errors = affordable_prompts(length, dim, budget, most=20_000), []
        for tokens in blocks(measure, length, n_prompts, stream(seed, "centering", length)):
            inputs = project(tokens, query, K, Q, V)
            outputs = [kernel(*inputs) for kernel in (LinearAttention(), MomentAttention())]
            errors.append(np.stack([((x - limit) ** 2).sum(-1) for x in outputs], -1))
        samples.append(np.concatenate(errors))
    exact = {
        "linear": linear_error(mean, gamma, query, U, V, lengths),
        "moment": moment_error(gamma, query, U, V, lengths),
    }
    curves = [Curve.from_samples([x[:, k] for x in samples], stream(seed, "centering", "boot", k)) for k in (0, 1)]
    parts = []
    for (name, values), curve in zip(exact.items(), curves, strict=True):
        low, high = curve.simultaneous()
        columns = {"kernel": f"{name} attention", "length": lengths, "measured": curve.mean, "low": low, "high": high}
        parts.append(pd.DataFrame(columns | {"exact": values}))
    without = linear_error(0 * mean, gamma, query, U, V, lengths)
    return pd.concat(parts, ignore_index=True), curves[0] / exact["linear"], curves[0] / without


def other_measures(dim: int, s: float, lengths: list[int], budget: int, seed: int):
    """Moment attention's squared distance to softmax on tokens with the same mean and covariance, Gaussian and not.

    The query looks along the first axis. ``predicted`` is exact for Gaussian tokens, and for others the squared
    distance of the limits, |a - grad kappa(a)|^2, where the measured one levels off.

    Returns a tidy table; at the largest length, for Rademacher tokens, the curve measured / predicted, and measured /
    (the exact distance of Gaussian tokens).
    """
    a, eye, tables = s * np.eye(dim)[0], np.eye(dim), []
    gaussian = moment_softmax_distance(eye, a, eye, eye, lengths)
    for name, measure in unit_measures(dim).items():
        floor, means = ((a - measure.tilted_mean(a)) ** 2).sum(), []
        for length in lengths:
            rng = stream(seed, "measures", name, length)
            n_prompts = affordable_prompts(length, dim, budget // (1 if name == "Rademacher" else 8), most=4000)
            errors = _distances(measure, a[None], eye, eye, length, n_prompts, rng)[:, 0, 2]
            means.append(errors.mean())
        if name == "Rademacher":
            curve = Curve.from_samples([errors], stream(seed, "measures", "bootstrap"))
            judged = curve / floor, curve / gaussian[-1]
        predicted = gaussian if name == "Gaussian" else np.full(len(lengths), floor)
        columns = {"tokens": name, "length": lengths, "measured": means, "predicted": predicted}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True), *judged


def costs(kernels: dict[str, AttentionKernel], lengths: list[int], dim: int) -> pd.DataFrame:
    """Operations and kept numbers of a prompt whose tokens are all queries, too, relative to softmax.

    ``shared`` numbers, kept once for all prompts, as they are.
    """
    rows = []
    for length in lengths:
        exact = Softmax().cost(length, dim, dim)
        for name, kernel in kernels.items():
            cost = kernel.cost(length, dim, dim)
            row = {"kernel": name, "length": length, "operations": cost.operations(length) / exact.operations(length)}
            rows.append(row | {"state": cost.state / exact.state, "shared": cost.shared})
    return pd.DataFrame(rows)


def wall_times(kernels: dict[str, AttentionKernel], lengths: list[int], dim: int) -> pd.DataFrame:
    """Seconds of a prompt whose tokens are all queries, the best of three, here and now: to be looked at, not compared.

    ``ratio`` is to softmax.
    """
    rows, rng = [], np.random.default_rng(0)
    for length in lengths:
        tokens = rng.standard_normal((length, dim)) / dim**0.25
        for name, kernel in kernels.items():
            seconds = []
            for _ in range(4):
                start = perf_counter()
                kernel(tokens, tokens, tokens)
                seconds.append(perf_counter() - start)
            rows.append({"kernel": name, "length": length, "seconds": min(seconds[1:])})
    table = pd.DataFrame(rows)
    exact = table[table["kernel"] == "softmax"].set_index("length")["seconds"]
    return table.assign(ratio=table["seconds"] / table["length"].map(exact))
