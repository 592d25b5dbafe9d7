"""The deviation measured on prompts at one query: of a given length, of the needed one, and its tail."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from lib.experiments.prompt_length.tail import deviation_weights, quantile
from lib.experiments.settings import generic_head, setting_name
from lib.finite_prompt.needed_length import deviation, length_for, query_numbers
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.errors import prompt_errors
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian

CONTROL_PART = 8  # of the budget goes to a control, which is far off


def squared_deviations(gamma, head, *, length: int, number_budget: int, most: int, rng) -> np.ndarray:
    """|T_L - T|^2 / |V Gamma U z|^2 on each of as many prompts as a budget allows, shape (n,).

    Args:
        gamma: covariance of the tokens, shape (d, d).
        head: the query z, shape (d,), and U and V, shape (d, d).
        length: tokens a prompt, L.
        number_budget, most: random numbers, and prompts, at most.
        rng: a numpy Generator.
    """
    query, U, V = head
    n_prompts = affordable_prompts(length, len(gamma), number_budget, most)
    errors = prompt_errors(Gaussian.centered(gamma), query, U, V, length, n_prompts, rng)[:, 0]
    return errors / ((V @ gamma @ U @ query) ** 2).sum()


def root_mean_square(squares: list[np.ndarray], rng) -> Curve:
    """Root mean squares from independent samples of the squares, an array a point, as a curve."""
    mean = Curve.from_samples(squares, rng)
    return Curve(np.sqrt(mean.mean), np.sqrt(mean.resampled))


def deviation_on_prompts(gamma, head, *, length: int, number_budget: int, most: int, rng) -> Curve:
    """The relative deviation measured on prompts, a curve of one point; arguments as for :func:`squared_deviations`."""
    squares = squared_deviations(gamma, head, length=length, number_budget=number_budget, most=most, rng=rng)
    return root_mean_square([squares], rng)


def at_length(
    *, length: int, dimensions: Sequence[int], deviations: Sequence[float], number_budget: int, most: int, seed: int
) -> Comparison:
    """Relative deviations on prompts of one length over s: white tokens, U and V multiples of the identity, D = d.

    Args:
        length: tokens a prompt, L.
        dimensions: dimensions d of the tokens, which are the output dimensions.
        deviations: score deviations s.
        number_budget: random numbers a point, at most.
        most: prompts a point, at most.
        seed: of the prompts.

    Returns:
        A row a point: dimension (its name), s, measured, low, high (95 % at each point), exact. Nothing is judged.
    """
    draw, tables = {"length": length, "number_budget": number_budget, "most": most}, []
    for d in dimensions:
        query, eye = np.eye(d)[0], np.eye(d)
        for s in deviations:
            rng = stream(seed, "at length", d, f"{s:.6f}")
            curve = deviation_on_prompts(eye, (query, s * eye, eye), rng=rng, **draw)
            columns = {"dimension": f"D = {d}", "s": s, **curve.columns()}
            tables.append(pd.DataFrame(columns | {"exact": float(deviation(s, d, length))}))
    return Comparison(pd.concat(tables, ignore_index=True))


def at_needed_length(
    *,
    settings: Sequence,
    deviations: Sequence[float],
    tolerances: Sequence[float],
    number_budget: int,
    most: int,
    seed: int,
) -> Comparison:
    """Relative deviations on prompts exactly as long as the theory says is needed, over the tolerance.

    Args:
        settings: pairs (covariance, dimension), each with a random query and head for every s.
        deviations: score deviations s.
        tolerances: relative tolerances.
        number_budget: random numbers a case, at most.
        most: prompts a case, at most.
        seed: of heads and prompts.

    Returns:
        A row a case: setting, s, output dimension, tolerance, length, prompts, measured, low, high (95 % at each case).
        measured: the curve over the tolerance, a point a case. control: the same on prompts of half the length. near
        miss: over the deviation that D + 1 in place of D gives for these prompts.
    """
    parts = {}
    for covariance, dim in settings:
        gamma, name = covariance_matrix(covariance, dim), setting_name(covariance, dim)
        for s in deviations:
            head = generic_head(dim, gamma, s, seed)
            dimension = query_numbers(gamma, *head)[1]
            for tolerance in tolerances:
                length, key = int(length_for(s, dimension, tolerance)), (name, f"{s:g}", f"{tolerance:g}")
                needed, halved = (
                    deviation_on_prompts(gamma, head, length=L, number_budget=budget, most=most, rng=rng)
                    for L, budget, rng in (
                        (length, number_budget, stream(seed, *key)),
                        (length // 2, number_budget // CONTROL_PART, stream(seed, *key, "half")),
                    )
                )
                prompts = affordable_prompts(length, dim, number_budget, most)
                columns = {"setting": name, "s": s, "output dimension": dimension, "tolerance": tolerance}
                table = pd.DataFrame(columns | {"length": length, "prompts": prompts, **needed.columns()})
                nearly = needed / float(deviation(s, dimension + 1, length))
                parts[", ".join(key)] = Comparison(table, needed / tolerance, halved / tolerance, near_miss=nearly)
    return Comparison.together(parts)


def at_confidence(
    *, settings: Sequence, s: float, tolerance: float, confidence: float, number_budget: int, most: int, seed: int
) -> Comparison:
    """The share of prompts farther than the tolerance, at the length that long prompts need for a confidence.

    Their squared deviation over its mean is a weighted sum of chi squares (:mod:`lib.experiments.prompt_length.tail`);
    the length is the one whose exact mean puts the quantile for the confidence at tolerance^2.

    Args:
        settings: pairs (covariance, dimension), each with a random query and head.
        s: score deviation.
        tolerance: relative tolerance.
        confidence: asked for, in (0, 1).
        number_budget, most: random numbers and prompts a setting, at most.
        seed: of heads and prompts.

    Returns:
        A row a setting: setting, length (for the root mean square), times (its multiple for the confidence), markov
        (the multiple that Markov's inequality asks for), prompts, measured (the share), low, high (exact binomial).
        measured: the share of all prompts over 1 - confidence. control: the share beyond Markov's quantile of
        the squared deviation, 1 / (1 - confidence) times its exact mean, in its place. near miss: beyond the quantile
        of a chi square with as many equal directions as tokens have.
    """
    beyond, rows, share = [], [], 1 - confidence
    for covariance, dim in settings:
        gamma, name = covariance_matrix(covariance, dim), setting_name(covariance, dim)
        head = generic_head(dim, gamma, s, seed)
        dimension, level = query_numbers(gamma, *head)[1], quantile(deviation_weights(gamma, *head), share)
        short = length_for(s, dimension, tolerance)
        length = int(length_for(s, dimension, tolerance / np.sqrt(level)))
        rng = stream(seed, "confidence", name)
        squares = squared_deviations(gamma, head, length=length, number_budget=number_budget, most=most, rng=rng)
        mean = float(deviation(s, dimension, length)) ** 2
        levels = (tolerance**2, mean / share, mean * stats.chi2(dim).isf(share) / dim)
        beyond.append([squares > limit for limit in levels])
        found = _share(beyond[-1][0])
        rows.append([name, short, length / short, 1 / share, len(squares), *found])
    names = ["setting", "length", "times", "markov", "prompts", "measured", "low", "high"]
    measured, control, near = (_share(np.concatenate(far)).over(share) for far in zip(*beyond, strict=True))
    return Comparison(pd.DataFrame(rows, columns=names), measured, control, near_miss=near)


def _share(far: np.ndarray) -> Estimate:
    """The share of prompts of which something is true, with Clopper and Pearson's interval."""
    ends = stats.binomtest(int(far.sum()), len(far)).proportion_ci()
    return Estimate(float(far.mean()), ends.low, ends.high, len(far))
