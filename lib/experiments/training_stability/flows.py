"""Softmax flows at finite prompt lengths against the infinite flow, without Monte Carlo noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.integrate import cumulative_trapezoid

from lib.finite_prompt import local_slope
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate
from lib.regression.best_heads import best_softmax
from lib.regression.flow import Flow, gradient_flow
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian
from lib.regression.task import InContextRegression

SOFTMAX_RTOL = 1e-8  # of the integrator
RESOLVED = 1e-5  # smallest distance that is looked at: the integrators are good to about 1e-7
SEGMENT_POINTS = 5  # between two flows, both ends included


@dataclass(frozen=True)
class Trajectories:
    """The infinite flow and softmax flows from the same start, recorded at the same times.

    Attributes:
        problem: the task. limit: the infinite flow. softmax: the flows by prompt length.
    """

    problem: InContextRegression
    limit: Flow
    softmax: dict[int, Flow]


def trajectories(
    *, problem: InContextRegression, lengths: Sequence[int], alpha: float, t_end: float, points: int = 120
) -> Trajectories:
    """Follow the infinite flow, and the softmax flow at each prompt length.

    Args:
        problem: the task.
        lengths: prompt lengths L, in tokens; may be empty.
        alpha: size of the balanced start.
        t_end: flow time at which all of them end.
        points: times recorded, in geometric progression, besides 0.

    Cost: see :func:`lib.regression.flow.gradient_flow`; about a second a length.
    """
    start, times = problem.balanced_init(alpha), np.append(0, np.geomspace(min(1e-2, t_end / 100), t_end, points))
    limit = gradient_flow(problem, "infinite", start, t_end, times=times)
    softmax = {
        length: gradient_flow(problem, "softmax", start, t_end, length=length, times=times, rtol=SOFTMAX_RTOL)
        for length in lengths
    }
    return Trajectories(problem, limit, softmax)


def distances(*, flows: Trajectories, horizon: float) -> Comparison:
    """How far each softmax flow gets from the infinite one in (A, b), judged at the longest prompt.

    Args:
        flows: from :func:`trajectories`, of at least one length.
        horizon: flow time up to which the distance is judged.

    Returns:
        Columns length, time; distance, and largest, its largest value so far; risk of the softmax flow, "limit risk" of
        the infinite one; imbalance |A|^2 - b^2 of the softmax flow.
        measured: the largest distance up to the horizon at the longest prompt, relative to |(A*, b*)|. control: the
        same without a horizon, that is of the best head of that length.
    """
    limit, tables = flows.limit, []
    for length, flow in flows.softmax.items():
        distance = _distance(flow, limit)
        columns = {"length": length, "time": flow.time, "distance": distance}
        columns |= {"largest": np.maximum.accumulate(distance)}
        columns |= {"risk": flow.risk, "limit risk": limit.risk, "imbalance": flow.imbalance}
        tables.append(pd.DataFrame(columns))
    table, longest, star = pd.concat(tables, ignore_index=True), max(flows.softmax), flows.problem.optimum()
    early = table[(table["time"] <= horizon) & (table["length"] == longest)]["distance"].max() / star.norm()
    best = best_softmax(flows.problem, longest)
    return Comparison(table, Estimate.exact(early, 1e-4), Estimate.exact(best.distance(star) / star.norm()))


def largest_distances(*, flows: Trajectories, horizons: Sequence[float]) -> Comparison:
    """The largest distance over [0, t_end] for each t_end and L, with its slope from one length to the next.

    Args:
        flows: from :func:`trajectories`.
        horizons: flow times t_end.

    Returns:
        Columns until ("t = 10"), length, sup, slope of -log sup in log L. Nothing is judged.
    """
    table, tables = distances(flows=flows, horizon=max(horizons)).table, []
    for horizon in horizons:
        sup = table[table["time"] <= horizon * (1 + 1e-12)].groupby("length")["distance"].max()
        slopes = np.append(local_slope(sup.index.to_numpy(float), sup.to_numpy()), np.nan)
        columns = {"until": f"t = {horizon:g}", "length": sup.index, "sup": sup.values, "slope": slopes}
        tables.append(pd.DataFrame(columns))
    return Comparison(pd.concat(tables, ignore_index=True))


def gronwall(*, flows: Trajectories) -> Comparison:
    """A Gronwall envelope of the distance of each softmax flow from the infinite one.

    With gap(t) = |grad R_L - grad R_inf| on the softmax flow and growth(t) the largest eigenvalue of minus the Hessian
    of R_inf on the segment between the two flows (sampled at five points, ends included),

        distance' <= growth distance + gap,

    so that the distance stays below the solution of the equation, the envelope.

    Args:
        flows: from :func:`trajectories`.

    Returns:
        Columns length ("L = 100"), time, distance, envelope, control; where the distance is above 1e-5.
        measured: the largest distance / envelope. control: the same with a tenth of the gap, no growth.

    Cost: six evaluations of the Hessian or gradient a time.
    """
    tables = []
    for length, flow in flows.softmax.items():
        gap = _gradient_gap(flows.problem, flow, length)
        growth = _growth_between(flows.problem, flow, flows.limit)
        distance = _distance(flow, flows.limit)
        columns = {"length": f"L = {length:,}", "time": flow.time, "distance": distance}
        columns |= {
            "envelope": _envelope(flow.time, gap, growth),
            "control": _envelope(flow.time, gap / 10, 0 * growth),
        }
        tables.append(pd.DataFrame(columns)[distance > RESOLVED])
    table = pd.concat(tables, ignore_index=True)
    ratio, control = table["distance"] / table["envelope"], table["distance"] / table["control"]
    return Comparison(table, Estimate.exact(ratio.max(), 1e-3), Estimate.exact(control.max()))


def _heads(flow: Flow) -> list[BlockHead]:
    return [BlockHead(A, b) for A, b in zip(flow.A, flow.b, strict=True)]


def _distance(flow: Flow, limit: Flow) -> np.ndarray:
    """Distance in (A, b) at each time, shape (n,)."""
    return np.array([one.distance(other) for one, other in zip(_heads(flow), _heads(limit), strict=True)])


def _gradient_gap(problem: InContextRegression, flow: Flow, length: int) -> np.ndarray:
    """|grad R_L - grad R_inf| along a flow, shape (n,)."""
    return np.array([problem.excess_and_gradient("softmax", head, length)[1].norm() for head in _heads(flow)])


def _growth_between(problem: InContextRegression, flow: Flow, limit: Flow) -> np.ndarray:
    """Largest eigenvalue of minus the Hessian of R_inf on the segment between two flows, at each time, shape (n,)."""

    def largest(one: BlockHead, other: BlockHead) -> float:
        shares = np.linspace(0, 1, SEGMENT_POINTS)
        segment = [BlockHead.from_flat((1 - share) * one.flat() + share * other.flat()) for share in shares]
        return max(-np.linalg.eigvalsh(infinite_hessian(problem, head))[0] for head in segment)

    return np.array([largest(one, other) for one, other in zip(_heads(flow), _heads(limit), strict=True)])


def _envelope(time, gap, growth) -> np.ndarray:
    """Solution of envelope' = growth envelope + gap from 0, by the trapezoid rule."""
    exponent = np.append(0, cumulative_trapezoid(growth, time))
    return np.exp(exponent) * np.append(0, cumulative_trapezoid(gap * np.exp(-exponent), time))
