"""Heads in pairs of opposite signs: what they cancel, and what that is worth in in-context regression."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import roots_genlaguerre

from lib.experiments.settings import generic_head, regression
from lib.finite_prompt import (
    SoftmaxFunctionals,
    output_error,
    pair_functionals,
    pair_output_error,
    pair_sharp_constant,
    sharp_constant,
    softmax_functionals,
)
from lib.notebook.comparison import Comparison
from lib.prompts.batches import MEMORY, affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.regression import best_linear, softmax_head
from lib.regression.predictors import Predictor, losses_on_prompts

DIM, NOISE = 5, 0.3  # of the tokens, and standard deviation of the labels' noise
HUGE = 1e15  # prompt length, at which L times the error has reached its constant
KINDS = "one head", "sign pair"
QUERY_NODES, RARE = 16, 1e-12  # of Gauss' rule for |x|^2 of a query, and a weight too small to count


def law(*, deviations: list[float], lengths: list[float], seed: int) -> Comparison:
    """The squared error of a sign pair over that of one of its heads, and the pair's law for long prompts.

    Args:
        deviations: s. lengths: prompt lengths L. seed: of the head.

    Returns:
        A row an s and length: s, length, ratio.
        measured: L times the pair's error at a huge length, over tr(V V') sinh s^2 + |V U z|^2 cosh s^2, at every s.
        near_miss: over half of one head's constant, as if two heads erred independently. control: over one head's.
    """
    rows, sides, unit = [], [], np.eye(DIM)
    for s in deviations:
        head = generic_head(DIM, unit, s, seed)
        ratio = pair_output_error(unit, *head, lengths) / output_error(unit, *head, lengths)
        rows.append(pd.DataFrame({"s": f"s = {s:g}", "length": lengths, "ratio": ratio}))
        constant, one = HUGE * float(pair_output_error(unit, *head, HUGE)), float(sharp_constant(unit, *head))
        sides.append([constant / float(pair_sharp_constant(unit, *head)), constant / one, constant / (one / 2)])
    measured, control, near_miss = (Intervals.exact(side, 1e-6) for side in np.array(sides).T)
    return Comparison(pd.concat(rows, ignore_index=True), measured, control, near_miss=near_miss)


def risks(*, scales: list[float], length: int, number_budget: int, seed: int) -> Comparison:
    """Risk of in-context regression with scores u x . x_query, by scale u, at the best gain: one head and a sign pair.

    Unit tasks and isotropic tokens in five dimensions.

    Args:
        scales: u. length: examples L of a prompt. number_budget: random numbers a scale. seed: of the prompts.

    Returns:
        A row a kind of head and scale: heads, scale, measured, low, high, exact, quiet
        (the limit of small scales: the best linear attention of L - 1 tokens, since covariances lose one to the mean).
        measured: the pair's risks over the exact ones. near_miss: over those of two heads whose errors are independent.
        control: over those of one head, with the same gain.
    """
    problem, found = regression("isotropic", DIM, NOISE), {}
    quiet = float(problem.linear_risk(*best_linear(problem, length - 1), length - 1))
    count = affordable_prompts(length, DIM + 1, number_budget, most=10**5)
    moments = [{name: _moments(functionals, u, length) for name, functionals in HEADS.items()} for u in scales]
    for name in KINDS:
        losses, exact = [], []  # exact: of the head, of one head, of two that are independent, at the same gain
        for u, at in zip(scales, moments, strict=True):
            gain, rng = at[name].gain, stream(seed, name, u)
            predictors = {name: _predictor(name, u, gain)}
            losses.append(losses_on_prompts(problem, length, count, rng, predictors, at_once=MEMORY)[name])
            exact.append([at[kind].risk(gain) for kind in (name, "one head", "independent")])
        curve = Curve.from_samples(losses, stream(seed, name, "bootstrap"))
        found[name] = Comparison.of_curve(curve, *np.transpose(exact), heads=name, scale=scales)
    table = Comparison.together(found).table.assign(quiet=quiet)
    return replace(found["sign pair"], table=table)


@dataclass(frozen=True)
class _Moments:
    """Of a prediction w . (sum_i p_i x_i) + noise of unit gain and the target w . x_q, over tasks, prompts, queries."""

    square: float  # E prediction^2
    product: float  # E prediction target

    @property
    def gain(self) -> float:
        return self.product / self.square

    def risk(self, gain: float) -> float:
        return (gain**2 * self.square - 2 * gain * self.product + DIM) / 2


def _moments(functionals, u: float, length: int) -> _Moments:
    # Along the query the weighted mean of the tokens has mean s (1 - eta) with the eta of one head, of any sign.
    half, weights = roots_genlaguerre(QUERY_NODES, DIM / 2 - 1)
    size, weights = np.sqrt(2 * half)[weights > RARE], weights[weights > RARE] / weights.sum()
    s, w = u * size, functionals(u * size, length)
    mean = s * (1 - softmax_functionals(s, length).inverse_participation)
    along = w.squared_error + 2 * s * mean - s**2
    return _Moments(weights @ (along + (DIM - 1 + NOISE**2) * w.inverse_participation), weights @ (size * mean))


def _as_if_independent(s, length) -> SoftmaxFunctionals:
    """The weights of two heads whose errors are independent: half the spread, the bias as it is."""
    one = softmax_functionals(s, length)
    bias = (s * one.inverse_participation) ** 2
    return SoftmaxFunctionals(one.inverse_participation / 2, (one.squared_error + bias) / 2)


HEADS = {"one head": softmax_functionals, "sign pair": pair_functionals, "independent": _as_if_independent}


def _predictor(name: str, u: float, gain: float) -> Predictor:
    A = u * np.eye(DIM)
    if name == "one head":
        return softmax_head(A, gain)
    heads = softmax_head(A, gain / 2), softmax_head(-A, -gain / 2)
    return lambda tokens, query: sum(predict(tokens, query) for predict in heads)
