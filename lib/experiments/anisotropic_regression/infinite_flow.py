"""Experiments of notebook 04 on an infinite prompt: the optimum, the flow that ends there, and its modes."""

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.regression.flow import Flow, gradient_flow
from lib.regression.head import BlockHead
from lib.regression.task import InContextRegression

AT_THE_LIMIT, NEARLY_THERE = 1e-11, 1e-6  # norms of the gradient at which a flow has ended
FIRST_TIME = 1e-2  # of the modes' curves


def optima(*, problems: dict[str, InContextRegression]) -> Comparison:
    """The risk of an infinite prompt at (A*, b*), which is zero for every covariance.

    Args:
        problems: regressions by name.

    Returns:
        A row a problem: covariance, condition number, coupling (of the queries at A*), risk.
        measured: the largest risk. control: the smallest with I / b* in place of A*.
    """
    rows, wrong = [], []
    for name, problem in problems.items():
        star = problem.optimum()
        row = {"covariance": name, "condition number": np.linalg.cond(problem.covariance)}
        rows.append(row | {"coupling": problem.coupling(star.A), "risk": problem.infinite_risk(*star)})
        wrong.append(problem.infinite_risk(np.eye(problem.dimension) / star.b, star.b))
    table = pd.DataFrame(rows)
    return Comparison(table, Intervals.exact(table["risk"]), Estimate.exact(min(wrong)))


def flows(
    *,
    problems: dict[str, InContextRegression],
    fractions: list[float],
    unbalanced_fraction: float,
    finite_alpha: float,
    finite_length: int,
    finite_time: float,
    seed: int,
) -> Comparison:
    """The infinite-prompt flow from the paper's eq. (9), for alphas inside its interval and beyond.

    Args:
        problems: regressions by name; the first is that of the controls.
        fractions: alpha over the end of the interval, positive. Theta is the identity, and a random matrix.
        unbalanced_fraction: the same of the control of the limit, whose A is then doubled.
        finite_alpha, finite_length, finite_time: start, L and horizon of the softmax flow that controls conservation.
        seed: of the random Theta.

    Returns:
        A row a flow: covariance, theta, alpha / largest; ``time`` until the gradient is below 1e-11; ``distance`` of
        its end from (A*, b*), relative; ``imbalance``, the largest change of |A|_F^2 - b^2 on the way.

        Two parts: "limit", the largest distance, its control a start out of balance; and "conserved", the largest
        imbalance, its control the softmax flow at a finite prompt length.
    """
    rows = []
    for name, problem in problems.items():
        d = problem.dimension
        for theta_name, theta in (("identity", None), ("random", stream(seed, "theta", name).standard_normal((d, d)))):
            for fraction in fractions:
                flow = _to_the_limit(problem, problem.balanced_init(fraction * problem.largest_alpha(), theta))
                row = {"covariance": name, "theta": theta_name, "alpha / largest": fraction, "time": flow.time[-1]}
                rows.append(row | {"distance": _from_optimum(problem, flow), "imbalance": _change(flow)})
    table, first = pd.DataFrame(rows), next(iter(problems.values()))

    balanced = first.balanced_init(unbalanced_fraction * first.largest_alpha())
    unbalanced = _to_the_limit(first, BlockHead(2 * balanced.A, balanced.b))
    finite = gradient_flow(first, "softmax", first.balanced_init(finite_alpha), finite_time, length=finite_length)
    found = {"limit": ("distance", _from_optimum(first, unbalanced)), "conserved": ("imbalance", _change(finite))}
    parts = {
        name: Comparison(table, Intervals.exact(table[column]), Estimate.exact(control))
        for name, (column, control) in found.items()
    }
    return Comparison(table, parts=parts)


def _to_the_limit(problem: InContextRegression, start: BlockHead) -> Flow:
    return gradient_flow(problem, "infinite", start, np.inf, gradient_tolerance=AT_THE_LIMIT)


def _from_optimum(problem: InContextRegression, flow: Flow) -> float:
    star = problem.optimum()
    return flow.end.distance(star) / star.norm()


def _change(flow: Flow) -> float:
    return float(np.abs(flow.imbalance - flow.imbalance[0]).max())


def learned(problem: InContextRegression, A: np.ndarray, b) -> np.ndarray:
    """The learned fraction b gamma_i omega_i of each eigendirection of Sigma: 1 where b A inverts Sigma.

    omega_i is A along the i-th eigenvector, an eigenvalue where A and Sigma commute.

    Args:
        A, b: a head, or those along a flow, shapes (..., d, d) and (...).

    Returns:
        Shape (..., d), from the smallest gamma_i to the largest.
    """
    gamma, vectors = np.linalg.eigh(problem.covariance)
    return np.multiply.outer(b, gamma) * np.einsum("ik,...ij,jk->...k", vectors, A, vectors)


def modes(*, problem: InContextRegression, alpha: float, points: int = 160, level: float = 0.9) -> Comparison:
    """The infinite flow mode by mode, b gamma_i omega_i against time: the largest eigenvalue is learned first.

    Args:
        problem: the regression.
        alpha: size of the balanced start, from the identity.
        points: of each curve.
        level: the learned fraction at which a mode counts as learned.

    Returns:
        A row a time and mode: time, mode (the name of its eigenvalue), eigenvalue (gamma_i), learned.
        measured: the share of neighbors among the eigenvalues of which the larger is learned first. control: of which
        the smaller is. The part "order" is a table of the time at which each eigenvalue is learned, the largest first.
    """
    start, gamma = problem.balanced_init(alpha), np.linalg.eigvalsh(problem.covariance)
    horizon = gradient_flow(problem, "infinite", start, np.inf, gradient_tolerance=NEARLY_THERE).time[-1]
    flow = gradient_flow(problem, "infinite", start, horizon, times=np.geomspace(FIRST_TIME, horizon, points))
    columns = {"mode": [f"γ = {value:.2g}" for value in gamma], "eigenvalue": gamma}
    columns = {name: np.tile(values, len(flow.time)) for name, values in columns.items()}
    time, fraction = np.repeat(flow.time, len(gamma)), learned(problem, flow.A, flow.b).ravel()
    table = pd.DataFrame({"time": time, **columns, "learned": fraction})

    reached = table[table["learned"] >= level].groupby("eigenvalue")["time"].min()
    order = reached.sort_index(ascending=False).reset_index()
    in_order = (np.diff(order["time"]) > 0).mean()
    return Comparison(table, Estimate.exact(in_order), Estimate.exact(1 - in_order), {"order": Comparison(order)})
