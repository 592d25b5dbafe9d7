"""Experiments of notebook 04 on training at a finite prompt length: where the population flow ends."""

import numpy as np
import pandas as pd

from lib.experiments.anisotropic_regression.infinite_flow import learned
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals
from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.flow import Flow, gradient_flow
from lib.regression.task import InContextRegression

TRAINED = 1e-8  # norm of the gradient at which a flow has ended


def end_of_training(*, problems: dict[str, InContextRegression], lengths: list[int], alpha: float) -> Comparison:
    """Where the population flow ends at each prompt length, for softmax and linear attention.

    Args:
        problems: regressions by name of their data; the first is judged.
        lengths: prompt lengths L.
        alpha: size of the balanced start, from the identity.

    Returns:
        A row a flow: data, attention, length, risk, ``time`` until the gradient is below 1e-8, coupling (of the queries
        at the trained head).

        Two parts: "softmax", the final risk over that of the best head of the length, its control that of (A*, b*) over
        the best; and "linear", the learned fractions over those of the best head, which has a closed form, its control
        over the form without the variance of the labels. Both are the worst over the lengths.

    Cost: about a second a length and problem.
    """
    flows = {
        (data, attention, length): gradient_flow(
            problem, attention, problem.balanced_init(alpha), np.inf, length=length, gradient_tolerance=TRAINED
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
        "softmax": _over_best_risk(problem, {length: flows[first, "softmax", length] for length in lengths}),
        "linear": _over_closed_form(problem, {length: flows[first, "linear", length] for length in lengths}),
    }
    return Comparison(pd.DataFrame(rows), parts=parts)


def _over_best_risk(problem: InContextRegression, flows: dict[int, Flow]) -> Comparison:
    def risks(heads) -> np.ndarray:
        return np.array([float(problem.softmax_risk(*heads[length], length).value) for length in flows])

    best = risks({length: best_softmax(problem, length) for length in flows})
    star = risks(dict.fromkeys(flows, problem.optimum()))
    ends = np.array([flow.risk[-1] for flow in flows.values()])
    return Comparison(measured=Intervals.exact(ends / best), control=Intervals.exact(star / best))


def _over_closed_form(problem: InContextRegression, flows: dict[int, Flow]) -> Comparison:
    ends = np.stack([learned(problem, *flow.end) for flow in flows.values()])
    closed = np.stack([learned(problem, *best_linear(problem, length)) for length in flows])
    without_labels = 1 / (1 + 1 / np.array(list(flows)))[:, None]
    return Comparison(measured=Intervals.exact(ends / closed), control=Intervals.exact(ends / without_labels))
