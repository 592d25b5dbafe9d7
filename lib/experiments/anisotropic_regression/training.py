"""Experiments of notebook 04 on training at a finite prompt length: where the population flow ends."""

import numpy as np
import pandas as pd

from lib.experiments.anisotropic_regression.infinite_flow import learned
from lib.experiments.training_stability.random_starts import random_starts
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals
from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.flow import Flow, gradient_flow
from lib.regression.head import BlockHead
from lib.regression.hessian import softmax_hessian
from lib.regression.task import InContextRegression

TRAINED = 1e-8  # norm of the gradient, in units of the task variance, at which a flow has ended


def end_of_training(*, problems: dict[str, InContextRegression], lengths: list[int], alpha: float) -> Comparison:
    """Where the population flow ends at each prompt length, for softmax and linear attention.

    Args:
        problems: regressions by name of their data; the first is judged.
        lengths: prompt lengths L.
        alpha: size of the balanced start, from the identity.

    Returns:
        A row a flow: data, attention, length, risk, ``time`` until the gradient is below 1e-8 task variances, coupling
        (of the queries at the trained head).

        Two parts, at every length: "softmax", the distance of the final head from the best one of its length, relative
        to the norm of that (its table: length, distance, error, curvature, the smallest of the Hessian), its near miss
        the distance from the best head of one token less, its control that from (A*, b*); and "linear", the learned
        fractions over their closed form, its near miss over the form with 1 for 1 + 1/L, its control over the form
        without the variance of the labels. The intervals are what is left of the gradient, over the curvature.

    Cost: about a second a length and problem.
    """
    flows = {
        (data, attention, length): gradient_flow(
            problem,
            attention,
            problem.balanced_init(alpha),
            np.inf,
            length=length,
            gradient_tolerance=TRAINED * problem.task_variance,
        )
        for data, problem in problems.items()
        for attention in ("softmax", "linear")
        for length in lengths
    }
    rows = [
        {"data": data, "attention": attention, "length": length, "risk": flow.risk[-1], "time": flow.time[-1]}
        | {"coupling": problems[data].coupling(flow.end.A)}
        for (data, attention, length), flow in flows.items()
    ]
    first, problem = next(iter(problems.items()))
    parts = {
        "softmax": _from_the_best(problem, {length: flows[first, "softmax", length] for length in lengths}),
        "linear": _over_closed_form(problem, {length: flows[first, "linear", length] for length in lengths}),
    }
    return Comparison(pd.DataFrame(rows), parts=parts)


def from_driver_start(
    *,
    problem: InContextRegression,
    length: int,
    step_size: float,
    n_steps: int,
    starts: int,
    batch: int,
    seed: int,
) -> Comparison:
    """Softmax SGD of Q, K, V, O from PyTorch's default, as in the authors' driver, and the minima below its heads.

    Args:
        problem, length, step_size, n_steps, starts, batch, seed: as for
            :func:`lib.experiments.training_stability.random_starts.random_starts`.

    Returns:
        The table of random_starts. measured: exact risks of the minima below the heads that read out y, over that of
        the best head in block form, where the balanced flow ends. near miss: over that of the best head with one token
        less. control: over that of the infinite prompt's optimum.
    """
    found = random_starts(
        problem=problem, length=length, step_size=step_size, n_steps=n_steps, starts=starts, batch=batch, seed=seed
    )
    best, star = (
        problem.risk_and_gradient("softmax", *head, length)[0]
        for head in (best_softmax(problem, length), problem.optimum())
    )
    minima = found["y"].measured
    control = Intervals(*(end * best / star for end in (minima.values, minima.low, minima.high)))
    return Comparison(found.table, minima, control, near_miss=found["y"].near_miss)


def _from_the_best(problem: InContextRegression, flows: dict[int, Flow]) -> Comparison:
    best = {length: best_softmax(problem, length) for length in flows}
    curvature = [np.linalg.eigvalsh(softmax_hessian(problem, best[length], length))[0] for length in flows]
    norms = np.array([head.norm() for head in best.values()])
    error = TRAINED * problem.task_variance / np.array(curvature) / norms

    def distances(heads: list[BlockHead]) -> np.ndarray:
        return np.array([flow.end.distance(head) for flow, head in zip(flows.values(), heads, strict=True)]) / norms

    measured = distances([*best.values()])
    shorter = distances([best_softmax(problem, max(length - 1, 1)) for length in flows])
    star = distances([problem.optimum()] * len(flows))
    table = pd.DataFrame({"length": [*flows], "distance": measured, "error": error, "curvature": curvature})
    sides = (Intervals.exact(side, error) for side in (measured, star, shorter))
    measured, control, near_miss = sides
    return Comparison(table, measured, control, near_miss=near_miss)


def _over_closed_form(problem: InContextRegression, flows: dict[int, Flow]) -> Comparison:
    gamma, variance = np.linalg.eigvalsh(problem.covariance), problem.token_variance
    length, b = (np.array(x, float)[:, None] for x in ([*flows], [flow.end.b for flow in flows.values()]))
    ends = np.stack([learned(problem, *flow.end) for flow in flows.values()])
    closed = np.stack([learned(problem, *best_linear(problem, length)) for length in flows])
    # In b omega_i the risk is quadratic, of curvature sigma_w^2 gamma_i^3 / closed, and its slope is dR/domega_i / b.
    error = TRAINED * closed / (b * gamma**2)
    nearly, without_labels = gamma / (gamma + variance / length), 1 / (1 + 1 / length)
    sides = (Intervals.exact(ends / form, np.ravel(error / form)) for form in (closed, without_labels, nearly))
    measured, control, near_miss = sides
    return Comparison(measured=measured, control=control, near_miss=near_miss)
