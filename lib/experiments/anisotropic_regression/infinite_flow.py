"""Experiments of notebook 04 on an infinite prompt: the optimum, the flow that ends there, and its modes."""

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.regression.flow import Flow, gradient_flow
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian
from lib.regression.task import InContextRegression

AT_THE_LIMIT, NEARLY_THERE = 1e-11, 1e-6  # norms of the gradient at which a flow has ended
FIRST_TIME = 1e-2  # of the modes' curves
LEFT = 1e-3, 1e-6  # of a direction, where its rate is measured: late, and well above the errors of the flow
FLOW_ERROR = 1e-10  # of a learned fraction, absolute


def optima(*, problems: dict[str, InContextRegression]) -> Comparison:
    """What the theorem's pair (A*, b*) is for each covariance.

    Args:
        problems: regressions by name.

    Returns:
        A row a problem: covariance, condition number, coupling (of the queries at A*), b*, risk (of an infinite prompt,
        0 up to rounding). Nothing is judged.
    """
    rows = []
    for name, problem in problems.items():
        star = problem.optimum()
        row = {"covariance": name, "condition number": np.linalg.cond(problem.covariance)}
        row |= {"coupling": problem.coupling(star.A), "b*": star.b, "risk": problem.infinite_risk(*star)}
        rows.append(row)
    return Comparison(pd.DataFrame(rows))


def flows(
    *,
    problems: dict[str, InContextRegression],
    fractions: list[float],
    unbalanced_fraction: float,
    finite_alpha: float,
    finite_lengths: tuple[int, int],
    finite_time: float,
    seed: int,
) -> Comparison:
    """The infinite-prompt flow from the paper's eq. (9), for alphas inside its interval and beyond.

    Args:
        problems: regressions by name; the first is that of the controls.
        fractions: alpha over the end of the interval, positive. Theta is the identity, and a random matrix.
        unbalanced_fraction: the same of the control of the limit, whose A is then doubled.
        finite_alpha, finite_lengths, finite_time: start, two L and horizon of the softmax flows that control
            conservation, the longer prompt as its near miss.
        seed: of the random Theta.

    Returns:
        A row a flow: covariance, theta, alpha / largest; ``time`` until the gradient is below 1e-11; ``distance`` of
        its end from (A*, b*), relative; ``error``, of that number: what is left of the gradient over the smallest
        curvature across the minima, and the imbalance; ``imbalance``, the largest change of |A|_F^2 - b^2, relative;
        ``mean``, the distance from the pair whose b^2 is sqrt(d) times the mean eigenvalue of the inverse covariance,
        in place of its Frobenius norm, which is no less.

        Three parts: "limit" and "beyond", the distances inside the interval and beyond it, their near miss the
        distance from that other pair, their control a start out of balance; and "conserved", the largest imbalance,
        near miss and control the softmax flow at the two prompt lengths.
    """
    rows = []
    for name, problem in problems.items():
        d, largest = problem.dimension, problem.largest_alpha()
        for theta_name, theta in (("identity", None), ("random", stream(seed, "theta", name).standard_normal((d, d)))):
            for fraction in fractions:
                flow = _to_the_limit(problem, problem.balanced_init(fraction * largest, theta))
                row = {"covariance": name, "theta": theta_name, "alpha / largest": fraction, "time": flow.time[-1]}
                rows.append(row | _from_optimum(problem, flow))
    table, first = pd.DataFrame(rows), next(iter(problems.values()))

    balanced = first.balanced_init(unbalanced_fraction * first.largest_alpha())
    unbalanced = _from_optimum(first, _to_the_limit(first, BlockHead(2 * balanced.A, balanced.b)))
    inside = table["alpha / largest"] < 1
    parts = {"limit": _limits(table[inside], unbalanced), "beyond": _limits(table[~inside], unbalanced)}

    start = first.balanced_init(finite_alpha)
    size = first.optimum().norm() ** 2
    shorter, longer = (
        _change(gradient_flow(first, "softmax", start, finite_time, length=length)) / size
        for length in sorted(finite_lengths)
    )
    kept = Intervals.exact(table["imbalance"])
    parts["conserved"] = Comparison(table, kept, Estimate.exact(shorter), near_miss=Estimate.exact(longer))
    return Comparison(table, parts=parts)


def _to_the_limit(problem: InContextRegression, start: BlockHead) -> Flow:
    return gradient_flow(problem, "infinite", start, np.inf, gradient_tolerance=AT_THE_LIMIT)


def _from_optimum(problem: InContextRegression, flow: Flow) -> dict[str, float]:
    star, change = problem.optimum(), _change(flow)
    curvature = np.linalg.eigvalsh(infinite_hessian(problem, star))[1]  # the first is 0, along (A / k, k b)
    inverse = np.linalg.inv(problem.covariance)
    b = np.sqrt(np.trace(inverse) / np.sqrt(problem.dimension))
    return {
        "distance": flow.end.distance(star) / star.norm(),
        "error": AT_THE_LIMIT / curvature / star.norm() + change / star.norm() ** 2,
        "imbalance": change / star.norm() ** 2,
        "mean": flow.end.distance(BlockHead(inverse / b, b)) / star.norm(),
    }


def _limits(rows: pd.DataFrame, unbalanced: dict[str, float]) -> Comparison:
    error = rows["error"].to_numpy()
    return Comparison(
        rows,
        Intervals.exact(rows["distance"], error),
        Estimate.exact(unbalanced["distance"], unbalanced["error"]),
        near_miss=Intervals.exact(rows["mean"], error),
    )


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
        A row a time and mode: time, mode (the name of its eigenvalue), eigenvalue (gamma_i), learned. Nothing is
        judged. The part "order" is a table of the time at which each eigenvalue is learned, the largest first.
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
    return Comparison(table, parts={"order": Comparison(order)})


def last_rate(problem: InContextRegression) -> float:
    r"""The rate at which the infinite flow from the identity learns its last direction, that of the smallest gamma_i.

    Close to the end the unlearned fractions delta_i = 1 - b gamma_i omega_i obey

        delta_i' = -b*^2 gamma_i^3 delta_i - b*^{-2} sum_j gamma_j delta_j,

    the second term because b is common to all; it is the smallest eigenvalue of this system. Eigenvalues gamma_i that
    are equal move together, so that each distinct one counts with its multiplicity. Source: notebook 04.
    """
    gamma, counts = np.unique(np.round(np.linalg.eigvalsh(problem.covariance), 9), return_counts=True)
    b2 = problem.optimum().b ** 2
    system = np.diag(b2 * gamma**3) + counts * gamma / b2
    return float(np.linalg.eigvals(system).real.min())


def last_direction(*, problems: dict[str, InContextRegression], alpha: float, points: int = 400) -> Comparison:
    """How long the infinite flow takes for the last direction, where 1e-3 to 1e-6 of it are left.

    Args:
        problems: regressions by name.
        alpha: size of the balanced start, from the identity.
        points: times of each flow.

    Returns:
        A row a problem: covariance, ``gamma``, the smallest eigenvalue; ``rate``, measured between the two moments;
        ``predicted``, see :func:`last_rate`; ``alone``, b*^2 gamma^3, as if b had already settled; "gamma ^ 2".
        measured: the rate over the predicted. near miss: over the mode's own. control: over gamma^2.
    """
    rows = []
    for name, problem in problems.items():
        start, gamma = problem.balanced_init(alpha), np.linalg.eigvalsh(problem.covariance)[0]
        horizon = _to_the_limit(problem, start).time[-1]
        flow = gradient_flow(problem, "infinite", start, horizon, times=np.linspace(0, horizon, points))
        left = 1 - learned(problem, flow.A, flow.b)[:, 0]
        moments = np.interp(-np.log(LEFT), -np.log(left), flow.time)
        row = {"covariance": name, "gamma": gamma, "rate": np.log(LEFT[0] / LEFT[1]) / np.diff(moments)[0]}
        alone = problem.optimum().b ** 2 * gamma**3
        rows.append(row | {"predicted": last_rate(problem), "alone": alone, "gamma ^ 2": gamma**2})
    table = pd.DataFrame(rows)
    error = FLOW_ERROR / LEFT[1]  # of the logarithm of what is left, and so of the rate, relative
    over = {name: table["rate"] / table[name] for name in ("predicted", "alone", "gamma ^ 2")}
    measured, nearly, wrong = (Intervals.exact(ratio, error * ratio.to_numpy()) for ratio in over.values())
    return Comparison(table, measured, wrong, near_miss=nearly)
