"""Where linear and moment attention fail: tokens that are not centered, and tokens that are not Gaussian."""

import numpy as np
import pandas as pd

from lib.experiments.attention_kernels.moments import DISTANCES, squared_distances
from lib.experiments.settings import generic_head, unit_measures
from lib.kernels import LinearAttention, MomentAttention, project, split
from lib.kernels.exact_errors import linear_error, moment_error, moment_softmax_distance
from lib.notebook.comparison import Comparison
from lib.prompts.attention import limit_attention
from lib.prompts.batches import affordable_prompts, batches
from lib.prompts.curve import Curve
from lib.prompts.streams import stream
from lib.tokens.families import Gaussian

JUDGED = "Rademacher"
TILT_OF_MEAN = 0.5  # m . a, in the setting that is not centered: linear attention's bias is |V m|^2 / 4
SHOWN_ONLY = 8  # other tokens than these get so many times fewer random numbers


def not_centered(*, dim: int, s: float, lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """Linear and moment attention on Gaussian tokens N(m, I): squared errors to the limit, from prompts and exact.

    Args:
        dim: dimension d of the tokens.
        s: standard deviation of the scores.
        lengths: prompt lengths L.
        number_budget: random numbers a length, at most.
        seed: of the mean, the head and the prompts.

    Returns:
        A row a kernel and length: kernel, length, measured, low, high, exact.
        measured: the curve of linear attention over the exact one. control: over the formula for m = 0. near_miss: over
        the formula without the cross term of mean and tilt, 2 (m . a) (V m) . (V Gamma a) / L.
    """
    gamma, mean = np.eye(dim), stream(seed, "centering", "head").standard_normal(dim) / np.sqrt(dim)
    query, U, V = generic_head(dim, gamma, s, seed)
    mean += (TILT_OF_MEAN - mean @ U @ query) / s**2 * (U @ query)
    K, Q = split(U)
    measure = Gaussian(mean, gamma)
    limit, samples = limit_attention(measure, query, U, V), []
    for length in lengths:
        n_prompts, errors = affordable_prompts(length, dim, number_budget, most=20_000), []
        rng = stream(seed, "centering", length)
        for part in batches(n_prompts, length * dim):
            inputs = project(measure.sample(part.stop - part.start, length, rng), query, K, Q, V)
            outputs = [kernel(*inputs) for kernel in (LinearAttention(), MomentAttention())]
            errors.append(np.stack([((x - limit) ** 2).sum(-1) for x in outputs], -1))
        samples.append(np.concatenate(errors))
    linear, moment = (
        Curve.from_samples([x[:, k] for x in samples], stream(seed, "centering", "boot", k)) for k in (0, 1)
    )
    exact = linear_error(mean, gamma, query, U, V, lengths)
    centered = linear_error(0 * mean, gamma, query, U, V, lengths)
    shown = {
        "linear attention": (linear, exact),
        "moment attention": (moment, moment_error(gamma, query, U, V, lengths)),
    }
    tables = [
        pd.DataFrame({"kernel": name, "length": lengths, **curve.columns(), "exact": values})
        for name, (curve, values) in shown.items()
    ]
    nearly = exact - 2 * TILT_OF_MEAN * (V @ mean) @ (V @ U @ query) / np.array(lengths)
    shown = pd.concat(tables, ignore_index=True)
    return Comparison(shown, linear / exact, linear / centered, near_miss=linear / nearly)


def not_gaussian(*, dim: int, s: float, lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """Moment attention's squared distance to softmax on tokens of mean 0 and covariance I, Gaussian and not.

    The query looks along the first axis. For other than Gaussian tokens the distance levels off at that of the limits,
    |a - grad kappa(a)|^2.

    Args:
        dim: dimension d of the tokens.
        s: standard deviation of the scores.
        lengths: prompt lengths L, the largest last.
        number_budget: random numbers a length for Rademacher tokens, an eighth of it for others, at most.
        seed: of the prompts.

    Returns:
        A row a kind of tokens and length: tokens, length, measured, predicted (exact for Gaussian tokens, for others
        the distance of the limits).
        measured: the distance on Rademacher tokens at the last length, over that of the limits, (s - tanh s)^2.
        control: over the exact one of Gaussian tokens. near_miss: with tanh s up to s^7, as eight cumulants give it.
    """
    a, eye, tables = s * np.eye(dim)[0], np.eye(dim), []
    gaussian = moment_softmax_distance(eye, a, eye, eye, lengths)
    for name, measure in unit_measures(dim).items():
        floor, means = ((a - measure.tilted_mean(a)) ** 2).sum(), []
        budget = number_budget if name == JUDGED else number_budget // SHOWN_ONLY
        for length in lengths:
            n_prompts = affordable_prompts(length, dim, budget, most=4000)
            rng = stream(seed, "measures", name, length)
            found = squared_distances(measure, a[None], eye, eye, length, n_prompts, rng)
            errors = found[:, 0, DISTANCES.index("moment to softmax")]
            means.append(errors.mean())
        if name == JUDGED:
            curve = Curve.from_samples([errors], stream(seed, "measures", "bootstrap"))
            series = (s**3 / 3 - 2 * s**5 / 15 + 17 * s**7 / 315) ** 2
            judged, nearly = (curve / floor, curve / gaussian[-1]), curve / series
        predicted = gaussian if name == "Gaussian" else floor
        tables.append(pd.DataFrame({"tokens": name, "length": lengths, "measured": means, "predicted": predicted}))
    return Comparison(pd.concat(tables, ignore_index=True), *judged, near_miss=nearly)
