"""Softmax flows at finite prompt lengths against the infinite flow, without Monte Carlo noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.integrate import cumulative_trapezoid
from scipy.linalg import expm

from lib.finite_prompt import local_slope
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate
from lib.regression.flow import Flow, gradient_flow
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian
from lib.regression.task import InContextRegression

SOFTMAX_RTOL = 1e-8  # of the integrator
INTEGRATED = 1e-7  # to which the integrators are good, in (A, b)
RESOLVED = 1e-5  # smallest distance that is looked at
ENVELOPE_ERROR = 1e-3  # of the ratio of distance and envelope at short times, from the steps of the recorded times
FIRST = 1e-3  # the first time recorded: before it the envelope is nearly an equality


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
    *, problem: InContextRegression, lengths: Sequence[int], alpha: float, t_end: float, points: int = 160
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
    start, times = problem.balanced_init(alpha), np.append(0, np.geomspace(min(FIRST, t_end / 100), t_end, points))
    limit = gradient_flow(problem, "infinite", start, t_end, times=times)
    softmax = {
        length: gradient_flow(problem, "softmax", start, t_end, length=length, times=times, rtol=SOFTMAX_RTOL)
        for length in lengths
    }
    return Trajectories(problem, limit, softmax)


def distances(*, flows: Trajectories, horizon: float) -> Comparison:
    r"""How far each softmax flow gets from the infinite one in (A, b), judged at the longest prompt.

    While the distance is small it is the linear response to the gap of the gradients, c_L = grad (R_L - R_inf): along
    the infinite flow theta, with H the Hessian of R_inf,

        delta' = -H(theta(t)) delta - c_L(theta(t)),   delta(0) = 0,

    up to terms of second order in delta and in c_L. As c_L vanishes with growing L, so does delta at any fixed time.

    Args:
        flows: from :func:`trajectories`, of at least one length.
        horizon: flow time up to which the distance is judged.

    Returns:
        Columns length, time; distance, and largest, its largest value so far; response, the linear one; risk of the
        softmax flow, "limit risk" of the infinite one; imbalance |A|^2 - b^2 of the softmax flow.
        measured: the largest distance up to the horizon at the longest prompt, over the largest linear response. near
        miss: over the response without the second derivatives of the residual in H, as in Gauss-Newton. control: over
        that with the Hessian of the optimum throughout.
    """
    limit, tables = flows.limit, []
    for length, flow in flows.softmax.items():
        distance = _distance(flow, limit)
        columns = {"length": length, "time": flow.time, "distance": distance}
        columns |= {"largest": np.maximum.accumulate(distance), "response": _response(flows, length)}
        columns |= {"risk": flow.risk, "limit risk": limit.risk, "imbalance": flow.imbalance}
        tables.append(pd.DataFrame(columns))
    table, longest = pd.concat(tables, ignore_index=True), max(flows.softmax)
    early = (table["time"] <= horizon) & (table["length"] == longest)
    within = limit.time <= horizon
    largest, response = table[early]["distance"].max(), table[early]["response"].max()
    coarse = _response(flows, longest, every=2)[: -(-np.sum(within) // 2)].max()
    error = abs(coarse / response - 1) + INTEGRATED / largest  # halving the steps divides their error by four
    nearly = _response(flows, longest, hessian=_gauss_newton)[within].max()
    star = flows.problem.optimum()
    wrong = _response(flows, longest, hessian=lambda problem, _: infinite_hessian(problem, star))[within].max()
    sides = {"measured": response, "near_miss": nearly, "control": wrong}
    return Comparison(table, **{side: Estimate.exact(largest / x, error * largest / x) for side, x in sides.items()})


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
    r"""A Gronwall envelope of the distance of each softmax flow from the infinite one.

    With delta the difference of the flows and c_L = grad (R_L - R_inf) on the softmax flow,

        delta' = -mean(H) delta - c_L,      mean(H) = int_0^1 H(theta + x delta) dx,

    H the Hessian of R_inf, quadratic in (A, b): Simpson's rule with the two ends and the middle of the segment is its
    exact mean. With growth(t) the largest eigenvalue of -mean(H) therefore

        |delta|' <= growth |delta| + |c_L|,

    and the distance stays below the solution of the equation, the envelope, to which it is equal as t -> 0.

    Args:
        flows: from :func:`trajectories`.

    Returns:
        Columns length ("L = 100"), time, distance, envelope; where the distance is above 1e-5.
        measured: the largest distance / envelope. near miss: over the envelope for labels without noise. control: over
        that for prompts twice as long.

    Cost: three evaluations of the Hessian and three of the gradient a time.
    """
    tables, problem = [], flows.problem
    noiseless = InContextRegression(problem.covariance, 0.0, problem.task_variance, problem.query_covariance)
    for length, flow in flows.softmax.items():
        growth, distance = _growth_between(problem, flow, flows.limit), _distance(flow, flows.limit)
        gaps = {"envelope": (problem, length), "noiseless": (noiseless, length), "twice": (problem, 2 * length)}
        columns = {"length": f"L = {length:,}", "time": flow.time, "distance": distance}
        columns |= {name: _envelope(flow.time, _gradient_gap(of, flow, L), growth) for name, (of, L) in gaps.items()}
        tables.append(pd.DataFrame(columns)[distance > RESOLVED])
    table = pd.concat(tables, ignore_index=True)
    sides = {"measured": "envelope", "near_miss": "noiseless", "control": "twice"}
    ratios = {side: (table["distance"] / table[name]).max() for side, name in sides.items()}
    shown = table.drop(columns=["noiseless", "twice"])
    return Comparison(shown, **{side: Estimate.exact(ratio, ENVELOPE_ERROR) for side, ratio in ratios.items()})


def _heads(flow: Flow) -> list[BlockHead]:
    return [BlockHead(A, b) for A, b in zip(flow.A, flow.b, strict=True)]


def _distance(flow: Flow, limit: Flow) -> np.ndarray:
    """Distance in (A, b) at each time, shape (n,)."""
    return np.array([one.distance(other) for one, other in zip(_heads(flow), _heads(limit), strict=True)])


def _gradient_gap(problem: InContextRegression, flow: Flow, length: int) -> np.ndarray:
    """|grad R_L - grad R_inf| along a flow, shape (n,)."""
    return np.array([problem.excess_and_gradient("softmax", head, length)[1].norm() for head in _heads(flow)])


def _growth_between(problem: InContextRegression, flow: Flow, limit: Flow) -> np.ndarray:
    """Largest eigenvalue of minus the mean Hessian of R_inf on the segment between two flows, at each time: (n,)."""

    def largest(one: BlockHead, other: BlockHead) -> float:
        middle = BlockHead.from_flat((one.flat() + other.flat()) / 2)
        ends, inside = (sum(infinite_hessian(problem, x) for x in heads) for heads in ([one, other], [middle]))
        return -np.linalg.eigvalsh((ends + 4 * inside) / 6)[0]

    return np.array([largest(one, other) for one, other in zip(_heads(flow), _heads(limit), strict=True)])


def _gauss_newton(problem: InContextRegression, head: BlockHead) -> np.ndarray:
    """The Hessian of R_inf without the second derivatives of its residual b Sigma A - I."""
    A, b = head
    S, hessian = problem.covariance, infinite_hessian(problem, head)
    second = problem.task_variance * (S @ (b * S @ A - np.eye(len(S))) @ problem.query_covariance).ravel()
    hessian[:-1, -1] -= second
    hessian[-1, :-1] -= second
    return hessian


def _response(flows: Trajectories, length: int, *, every: int = 1, hessian: Callable = infinite_hessian) -> np.ndarray:
    """|delta| of :func:`distances` at every so many of the recorded times, by exponentials of constant steps."""
    problem, time, heads = flows.problem, flows.limit.time[::every], _heads(flows.limit)[::every]
    gaps = [problem.excess_and_gradient("softmax", head, length)[1].flat() for head in heads]
    hessians = [hessian(problem, head) for head in heads]
    state, norms = np.append(0 * gaps[0], 1.0), [0.0]
    for k, step in enumerate(np.diff(time)):
        generator = np.zeros((len(state), len(state)))
        generator[:-1, :-1] = -step * (hessians[k] + hessians[k + 1]) / 2
        generator[:-1, -1] = -step * (gaps[k] + gaps[k + 1]) / 2
        state = expm(generator) @ state
        norms.append(float(np.linalg.norm(state[:-1])))
    return np.array(norms)


def _envelope(time, gap, growth) -> np.ndarray:
    """Solution of envelope' = growth envelope + gap from 0, by the trapezoid rule."""
    exponent = np.append(0, cumulative_trapezoid(growth, time))
    return np.exp(exponent) * np.append(0, cumulative_trapezoid(gap * np.exp(-exponent), time))
