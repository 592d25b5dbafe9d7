"""How many examples an in-context regression needs for a given excess risk, exactly and on prompts."""

from collections.abc import Sequence
from math import inf, log

import numpy as np
import pandas as pd

from lib.experiments.prompt_length.on_prompts import CONTROL_PART
from lib.experiments.settings import regression
from lib.finite_prompt import mean_output_error, rate_exponent
from lib.finite_prompt.smallest_length import smallest_length
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.predictors import risks_on_prompts, softmax_head
from lib.regression.task import InContextRegression

LARGEST = 1e12  # examples: the end of the search
MOST_PROMPTS = 10**6
EXPONENT_ERROR = 1e-6  # of the growth over the predicted one: risks are exact to 1e-9


def examples(*, dimensions: Sequence[int], risks: Sequence[float], noise_std: float) -> Comparison:
    """Number of examples for an excess risk, as a share of that of predicting zero (d / 2), on white inputs.

    Args:
        dimensions: dimensions d of x.
        risks: excess risks, as such shares.
        noise_std: sigma_eps.

    Returns:
        A row each: dimension, risk, and the examples of optimum (the paper's optimal head), quieter (the same map with
        half the scores, :func:`quieter`), trained (the best head of that number of examples, where training ends), and
        linear (linear attention at the optimum). Nothing is judged.

    Cost: about ten minimizations a row, for the trained head.
    """
    tables = []
    for d in dimensions:
        problem, targets = regression("isotropic", d, noise_std), _targets(d, risks)
        head = problem.optimum()
        columns = {"dimension": d, "risk": risks, "optimum": examples_for(problem, head, targets)}
        columns["quieter"] = examples_for(problem, quieter(head), targets)
        columns["trained"] = [examples_when_trained(problem, target) for target in targets]
        columns["linear"] = smallest_length(lambda L, p=problem, h=head: np.array(p.linear_risk(*h, L)), targets)
        tables.append(pd.DataFrame(columns))
    return Comparison(pd.concat(tables, ignore_index=True))


def price(*, dimensions: Sequence[int], length: float) -> Comparison:
    """By what power of two the examples of the paper's optimum grow when the risk is halved, at huge lengths.

    On white inputs the optimum is A* = d^{-1/4} I, the end of the balanced flow, so that the coupling is d^{-1/2}. The
    excess risk falls like L^{-rho}: halving it multiplies the examples by 2^{1/rho}.

    Args:
        dimensions: dimensions d of x.
        length: L, after which the exponent is taken over one doubling.

    Returns:
        A row a dimension: dimension, coupling, growth (the exponent), predicted (1 / rho).
        measured: growth / predicted, the worst of all. control: over 1, the exponent of quiet heads. near miss: growth
        over 1 / min(1, 2 / (1 + 2 lambda)), of typical prompts (:func:`.over_queries.halving`).
    """
    rows = []
    for d in dimensions:
        problem = regression("isotropic", d, 0.0)
        head = problem.optimum()
        now, later = problem.softmax_risk(*head, np.array([length, 2 * length])).value
        coupling = problem.coupling(head.A)
        row = {"dimension": d, "coupling": coupling, "growth": log(2) / log(now / later)}
        rows.append(row | {"predicted": 1 / float(rate_exponent(coupling))})
    table = pd.DataFrame(rows)
    growth, error = table["growth"], EXPONENT_ERROR
    typical = growth * np.minimum(1, 2 / (1 + 2 * table["coupling"]))
    sides = (Intervals.exact(x, numerical_error=error) for x in (growth / table["predicted"], 1 / table["predicted"]))
    return Comparison(table, *sides, near_miss=Intervals.exact(typical, numerical_error=error))


def on_prompts(*, dim: int, risks: Sequence[float], noise_std: float, number_budget: int, seed: int) -> Comparison:
    """Risk of an optimal head with exactly the needed number of examples, on prompts, over the target.

    The head is :func:`quieter` than the paper's optimum, whose risk has no finite variance over queries.

    Args:
        dim: dimension d of x.
        risks: excess risks, as shares of that of predicting zero.
        noise_std: sigma_eps.
        number_budget: random numbers a risk, at most.
        seed: of the prompts.

    Returns:
        A row a risk: risk, length (examples), measured, low, high (over the target).
        measured: the mean of these ratios. control: the mean with half as many examples. near miss: measured risks over
        those without the larger error along the scores, zeta = eta in the formula of notebook 04.
    """
    problem, targets = regression("isotropic", dim, noise_std), _targets(dim, risks)
    head = quieter(problem.optimum())
    lengths = examples_for(problem, head, targets).astype(int)
    ratios = {1: [], 2: []}
    for part, found in ratios.items():
        for length, target in zip(lengths // part, targets, strict=True):
            rng, predictors = stream(seed, "few-shot", part), {"softmax": softmax_head(*head)}
            budget = number_budget if part == 1 else number_budget // CONTROL_PART
            count = affordable_prompts(length, dim + 1, budget, MOST_PROMPTS)
            found.append(risks_on_prompts(problem, length, count, rng, predictors)["softmax"].over(target))
    table = pd.DataFrame({"risk": risks, "length": lengths})
    table[["measured", "low", "high"]] = [tuple(ratio) for ratio in ratios[1]]
    alike = targets / _error_alike(problem, head, lengths)
    near_miss = [ratio.over(1 / x) for ratio, x in zip(ratios[1], alike, strict=True)]
    return Comparison(table, *map(_mean, ratios.values()), near_miss=_mean(near_miss))


def _error_alike(problem: InContextRegression, head: BlockHead, lengths: np.ndarray) -> np.ndarray:
    """b^2 (d + sigma_eps^2) E eta / 2 on white inputs: the excess risk if zeta were eta, at optimal heads."""
    d = problem.dimension
    eye, U = np.eye(d + 1), np.zeros((d + 1, d + 1))
    U[:d, :d] = head.A
    eta = mean_output_error(eye, eye, U, eye[d:], lengths).value  # values across the scores: the error is eta
    return head.b**2 * problem.token_variance * eta / 2


def _mean(estimates: list[Estimate]) -> Estimate:
    """The mean of independent estimates: their standard errors add up in squares."""
    mean = float(np.mean([estimate.value for estimate in estimates]))
    width = float(np.linalg.norm([estimate.half_width for estimate in estimates])) / len(estimates)
    return Estimate(mean, mean - width, mean + width)


def _targets(dim: int, risks: Sequence[float]) -> np.ndarray:
    """Excess risks from shares of that of predicting zero, E (w . x_q)^2 / 2 = d / 2."""
    return np.array(risks) * dim / 2


def quieter(head: BlockHead) -> BlockHead:
    """(A / 2, 2 b): the same infinite-prompt map, hence optimal where (A, b) is, with scores half as large."""
    return BlockHead(head.A / 2, 2 * head.b)


def examples_for(problem: InContextRegression, head: BlockHead, risk) -> np.ndarray:
    """The smallest number of examples with which a head has at most these excess risks, exactly.

    Args:
        problem: the regression.
        head: (A, b).
        risk: shape (n,), above the head's risk at infinite prompts.

    Returns:
        Shape (n,); infinite beyond :data:`LARGEST`.
    """
    return smallest_length(lambda L: problem.softmax_risk(*head, L).value, np.atleast_1d(risk), LARGEST)


def examples_when_trained(problem: InContextRegression, risk: float) -> float:
    """The same for the best head of each number of examples, which is where training at that number ends.

    By interpolation of log risk in log L between whole numbers, a dozen minimizations in all.
    """

    def log_excess(length):
        return log(problem.softmax_risk(*best_softmax(problem, length), length).value / risk)

    high = float(examples_for(problem, problem.optimum(), risk)[0])  # the best head needs no more than this one
    if high == inf or high <= 2:
        return high
    low = max(2.0, np.ceil(high / 16))
    at_low, at_high = log_excess(low), log_excess(high)
    while at_low <= 0 and low > 2:
        low = max(2.0, low // 4)
        at_low = log_excess(low)
    if at_low <= 0:
        return low
    while high - low > 1:
        share = at_low / (at_low - at_high)
        length = np.round(np.exp(log(low) + share * log(high / low)))
        length = float(np.clip(length, low + 1, high - 1))
        value = log_excess(length)
        low, at_low, high, at_high = (length, value, high, at_high) if value > 0 else (low, at_low, length, value)
    return high
