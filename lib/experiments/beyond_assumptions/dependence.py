"""Prompts whose tokens depend on each other, against exact curves: what is their effective length?"""

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from lib.experiments.settings import generic_head
from lib.finite_prompt import (
    ar1_output_error,
    long_run_error,
    markov_long_run_error,
    markov_output_error,
    mean_output,
    output_error,
    sharp_constant,
    tokens_error,
)
from lib.finite_prompt.dependent import stationary_law
from lib.notebook.comparison import Comparison
from lib.prompts.attention import softmax_attention
from lib.prompts.batches import affordable_prompts, batches
from lib.prompts.curve import Curve
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream

DIM = 3  # of the tokens: nothing depends on it but the geometry of the head
STATES, STICKY = 12, 0.85  # of the Markov chain, and the probability by which a state is kept
JUDGED = -0.5, 0.5  # correlations at which the law of long prompts is judged
LONG = 100_000  # tokens, where the law of long prompts is held against the exact error


def _errors(draw, target, query, U, V, lengths, number_budget, rng_of) -> list[np.ndarray]:
    """Squared distances from a target at each length, of prompts from ``draw(count, length, rng)``."""
    samples = []
    for length in lengths:
        count, rows, rng = affordable_prompts(length, DIM, number_budget, most=20_000), [], rng_of(length)
        for part in batches(count, length * DIM):
            outputs = softmax_attention(draw(part.stop - part.start, length, rng), query, U, V)
            rows.append(((outputs - target) ** 2).sum(-1))
        samples.append(np.concatenate(rows))
    return samples


def ar1(*, correlations: list[float], s: float, lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """Squared output errors on Gaussian AR(1) prompts, Cov(X_0, X_k) = r^k I, from prompts and exact.

    Args:
        correlations: r. s: standard deviation of the scores. lengths: prompt lengths L.
        number_budget: random numbers a correlation and length. seed: of the head and the prompts.

    Returns:
        A part and a row a correlation and length: prompt (its name), length, measured, low, high, exact.
        measured: the curves over the exact ones. near_miss: over the error of L (1 - r) / (1 + r) independent tokens,
        the effective length of an average. control: over that of L independent tokens.
    """
    query, U, V = generic_head(DIM, np.eye(DIM), s, seed)
    target, found = V @ U @ query, {}
    independent = output_error(np.eye(DIM), query, U, V, np.array(lengths))
    for r in correlations:
        name = f"r = {r:g}"

        def draw(count, length, rng, r=r):
            noise = rng.standard_normal((count, length, DIM))
            noise[:, 1:] *= np.sqrt(1 - r**2)
            return lfilter([1.0], [1.0, -r], noise, axis=1)

        samples = _errors(draw, target, query, U, V, lengths, number_budget, lambda n, k=name: stream(seed, k, n))
        exact = ar1_output_error(np.eye(DIM), r, query, U, V, lengths)
        shorter = np.maximum(np.round(np.array(lengths) * (1 - r) / (1 + r)), 1.0)
        effective = output_error(np.eye(DIM), query, U, V, shorter)
        curve = Curve.from_samples(samples, stream(seed, name, "bootstrap"))
        found[name] = Comparison.of_curve(curve, exact, independent, effective, prompt=name, length=lengths)
    return Comparison.together(found)


def chain(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States (N, d), standard normal, and a sticky transition matrix (N, N), at random."""
    rng = stream(seed, "chain")
    P = STICKY * np.eye(STATES) + (1 - STICKY) * rng.dirichlet(np.ones(STATES), STATES)
    return rng.standard_normal((STATES, DIM)), P


def markov(*, s: float, lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """Squared output errors on Markov prompts over a dozen states, from prompts and exact.

    Args:
        s: size of the tilt, |U z|. lengths: prompt lengths L. number_budget: random numbers a length.
        seed: of the chain, the head and the prompts.

    Returns:
        A row a length: prompt, length, measured, low, high, exact.
        measured: the curve over the exact one. near_miss: over its law for long prompts, a constant over L. control:
        over the error of independent tokens of the stationary law.
    """
    (states, P), (query, U, V) = chain(seed), generic_head(DIM, np.eye(DIM), s, seed)
    law, steps = stationary_law(P), P.cumsum(1)

    def draw(count, length, rng):
        path = np.empty((count, length), int)
        path[:, 0] = np.minimum(np.searchsorted(law.cumsum(), rng.random(count)), STATES - 1)
        for t in range(1, length):
            path[:, t] = np.minimum((steps[path[:, t - 1]] < rng.random((count, 1))).sum(1), STATES - 1)
        return states[path]

    independent = tokens_error(states, query, U, V, lengths, weights=law)
    samples = _errors(draw, independent.limit, query, U, V, lengths, number_budget, lambda n: stream(seed, "markov", n))
    exact = markov_output_error(states, P, query, U, V, lengths)
    long = markov_long_run_error(states, P, query, U, V) / np.array(lengths)
    curve = Curve.from_samples(samples, stream(seed, "markov", "bootstrap"))
    return Comparison.of_curve(curve, exact, independent.squared_error, long, prompt="Markov", length=lengths)


def effective_length(*, correlations: list[float], deviations: list[float], seed: int) -> Comparison:
    """The effective length of a long AR(1) prompt, over its length: independent tokens with the same error.

    Args:
        correlations: r. deviations: score deviations s. seed: of the head.

    Returns:
        A row an s and r: s, correlation, ratio, quiet, (1 - r) / (1 + r).
        measured: the exact error of a prompt of 100,000 tokens over the sum over its lags, at the smallest s and the r
        in JUDGED. near_miss: over the law of an average, the sharp constant times (1 + r) / (1 - r). control: over
        the sharp constant.
    """
    rows, sides, lags = [], [], np.arange(LONG)
    for s in deviations:
        query, U, V = generic_head(DIM, np.eye(DIM), s, seed)
        sharp = float(sharp_constant(np.eye(DIM), query, U, V)) / LONG
        for r in sorted({*correlations, *JUDGED}):
            long, quiet = float(long_run_error(np.eye(DIM), r**lags, query, U, V)), (1 - r) / (1 + r)
            rows.append({"s": f"s = {s:g}", "correlation": r, "ratio": sharp / long, "quiet": quiet})
            if s == min(deviations) and r in JUDGED:
                exact = float(ar1_output_error(np.eye(DIM), r, query, U, V, LONG))
                sides.append([exact / long, exact / sharp, exact / (sharp / quiet)])
    measured, control, near_miss = (Intervals.exact(side, 1e-6) for side in np.array(sides).reshape(-1, 3).T)
    return Comparison(pd.DataFrame(rows), measured, control, near_miss=near_miss)


def exchangeable(*, share: float, s: float, lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """Prompts with a topic: X_i = theta + xi_i, theta drawn once a prompt, against the linear map of the whole law.

    theta ~ N(0, c I) and xi_i ~ N(0, (1 - c) I). Given theta attention has the limit V theta + (1 - c) V U z, so that

        E|T_L - V U z|^2 = c tr(V V') + E|A_L - V U z|^2,   A_L the output on the xi alone,

    which ends at c tr(V V') + c^2 |V U z|^2.

    Args:
        share: c. s: score deviation. lengths: prompt lengths L. number_budget: random numbers a length.
        seed: of the head and the prompts.

    Returns:
        A row a length: prompt, length, measured, low, high, exact, floor.
        measured: the curve over the exact one. near_miss: over one of a share larger by a fifth. control: over that of
        independent tokens.
    """
    query, U, V = generic_head(DIM, np.eye(DIM), s, seed)
    target = V @ U @ query

    def draw(count, length, rng):
        topic = np.sqrt(share) * rng.standard_normal((count, 1, DIM))
        return topic + np.sqrt(1 - share) * rng.standard_normal((count, length, DIM))

    samples = _errors(draw, target, query, U, V, lengths, number_budget, lambda n: stream(seed, "topic", n))
    exact, more = (_with_topic(c, query, U, V, lengths) for c in (share, 1.2 * share))
    independent = output_error(np.eye(DIM), query, U, V, np.array(lengths))
    curve = Curve.from_samples(samples, stream(seed, "topic", "bootstrap"))
    found = Comparison.of_curve(curve, exact, independent, more, prompt="with a topic", length=lengths)
    floor = share * (V**2).sum() + share**2 * (target @ target)
    return replace(found, table=found.table.assign(floor=floor))


def _with_topic(share: float, query, U, V, lengths) -> np.ndarray:
    """The squared distance from the linear map: the topic's, and that of the other part of the tokens."""
    inner, target = (1 - share) * np.eye(DIM), V @ U @ query
    means = np.array([mean_output(np.zeros(DIM), inner, query, U, V, length) for length in lengths])
    limit, own = V @ inner @ U @ query, output_error(inner, query, U, V, np.array(lengths))
    # E|A_L - target|^2 from E|A_L - limit|^2 by moving what it is measured from
    return share * (V**2).sum() + own + ((means - target) ** 2).sum(1) - ((means - limit) ** 2).sum(1)


def long_memory(*, power: float, s: float, lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """Gaussian prompts with correlations (1 + k)^-b, b < 1: the error falls like L^-b, slower than 1 / L.

    Args:
        power: b. s: standard deviation of the scores. lengths: prompt lengths L. number_budget: random numbers a
            length. seed: of the head and the prompts.

    Returns:
        A row a length: prompt, length, measured, low, high, exact (to leading order: the double sum over the lags).
        measured: the curve over that, at the longest length. near_miss: over the double sum with a power larger by a
        fifth. control: over the error of independent tokens.
    """
    query, U, V = generic_head(DIM, np.eye(DIM), s, seed)

    def draw(count, length, rng):
        r = (1.0 + np.arange(length)) ** -power
        spectrum = np.sqrt(np.maximum(np.fft.fft(np.concatenate([r, r[-2:0:-1]])).real, 0.0))
        shape = (count, len(spectrum), DIM)
        noise = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        return np.fft.fft(spectrum[:, None] * noise / np.sqrt(len(spectrum)), axis=1).real[:, :length]

    samples = _errors(draw, V @ U @ query, query, U, V, lengths, number_budget, lambda n: stream(seed, "memory", n))
    leading = [
        np.array([float(long_run_error(np.eye(DIM), (1.0 + np.arange(n)) ** -b, query, U, V)) for n in lengths])
        for b in (power, 1.2 * power)
    ]
    independent = output_error(np.eye(DIM), query, U, V, np.array(lengths))
    curve = Curve.from_samples(samples, stream(seed, "memory", "bootstrap"))
    columns = {"prompt": "long memory", "length": lengths}
    found = Comparison.of_curve(curve, leading[0], independent, leading[1], **columns)
    last = [side.at(slice(-1, None)) for side in (found.measured, found.control, found.near_miss)]
    return Comparison(found.table, *last[:2], near_miss=last[2])
