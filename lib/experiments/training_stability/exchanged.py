r"""The head that exchanges x and y, a saddle of the risk, and the mixed head below it.

The head scores the tokens by y and reads out x: with e the leading eigenvector of Sigma = Sigma_q, gamma its
eigenvalue, and nu, xi two sizes,

    U = [[0], [nu e']],  v = (xi e, 0):   score_i = nu y_i (e . x_q),   prediction = xi e . sum_i p_i x_i.

By symmetry (x_q -> -x_q, and w -> -w) the risk is even in (A, b) there: the head with the best sizes is stationary, and
the Hessian splits. For an infinite prompt and A = sum_i a_i e_i e_i' the risk in (A, b) is to second order

    - b sum_{i != e} gamma_i^2 a_i + (nu xi gamma - 1) gamma^2 b a_e + gamma/2 E[(xi gamma a_e + nu b q)^2],
    q = w' Sigma w + sigma_eps^2,   E q = t,   E q^2 = t^2 + 2 tr Sigma^2,   t = tr Sigma + sigma_eps^2   (unit tasks):

b is coupled with every a_i (i != e), which has no curvature of its own, so that its Hessian is never positive: a saddle
in every dimension d >= 2. At finite L the same curvatures are averages over w and the query, on common draws.
(Found by notebook 03.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import norm, qmc

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.head_risk import head_risks, softmax_losses
from lib.regression.task import InContextRegression

SEARCH_DRAWS, FINAL_DRAWS = 4096, 2**16  # of task and query: while a head is looked for, and where it is judged
CURVATURE_DRAWS = 2**17
NU = (1e-3, 2.0)  # where the size of the exchanged head is looked for
STEP = 0.03  # of second differences, and of the first step down from the saddle


@dataclass(frozen=True)
class Head:
    """Any head: U restricted to the query's x, shape (d + 1, d), and the last row v of V, shape (d + 1,)."""

    U: np.ndarray
    v: np.ndarray

    @classmethod
    def of_block(cls, A, b: float) -> "Head":
        """The head (A, b) in block form."""
        return cls(np.pad(A, ((0, 1), (0, 0))), np.append(np.zeros(len(A)), b))

    def moved(self, along: "Head", step: float) -> "Head":
        """The head a step along a direction."""
        return Head(self.U + step * along.U, self.v + step * along.v)


@dataclass(frozen=True)
class Exchanged:
    """A head that exchanges x and y, along the leading eigenvector of Sigma.

    Attributes:
        problem: the task, with queries of the prompt's covariance and unit tasks.
        nu, xi: its two sizes.
    """

    problem: InContextRegression
    nu: float
    xi: float

    @property
    def head(self) -> Head:
        zero, e = np.zeros_like(self.problem.covariance), np.linalg.eigh(self.problem.covariance)[1][:, -1]
        return Head(np.vstack([zero, self.nu * e]), np.append(self.xi * e, 0.0))

    def limit_hessian(self, *, spread: bool = True) -> np.ndarray:
        """Hessian of the infinite-prompt risk in (a_1, ..., a_d, b), by this module's first lines: (d + 1, d + 1).

        spread: whether w' Sigma w has its variance, 2 tr Sigma^2; without it the formula is wrong by little.
        """
        values = np.linalg.eigvalsh(self.problem.covariance)
        gamma, mean = values[-1], values.sum() + self.problem.noise_std**2
        square = mean**2 + 2 * (values**2).sum() * spread
        hessian = np.zeros((len(values) + 1, len(values) + 1))
        hessian[:-1, -1] = -(values**2)
        hessian[-2, -1] = (self.nu * self.xi * gamma - 1 + self.xi * self.nu * mean) * gamma**2
        hessian[-1, :-1] = hessian[:-1, -1]
        hessian[-2, -2], hessian[-1, -1] = gamma**3 * self.xi**2, gamma * self.nu**2 * square
        return hessian

    @property
    def larger(self) -> Head:
        """The direction, of norm 1, in which nu grows: it stays within the exchanged heads."""
        head = self.head
        return Head(head.U / self.nu, 0 * head.v)

    def way_down(self) -> tuple[Head, float]:
        """The direction (A, b), of norm 1, in which the infinite-prompt risk is curved down most; its curvature."""
        values, vectors = np.linalg.eigh(self.limit_hessian())
        basis = np.linalg.eigh(self.problem.covariance)[1]
        direction = vectors[:, 0] * np.sign(vectors[-1, 0])
        return Head.of_block((basis * direction[:-1]) @ basis.T, direction[-1]), float(values[0])


def best_exchanged(*, problem: InContextRegression, length: float, seed: int) -> Exchanged:
    """The exchanged head of least risk at a prompt length: quadratic in xi, nu by a bounded search over its logarithm.

    The risk is an average over common draws of task and query, and that of the head found is good to about 1 %. For an
    infinite prompt it tends to (tr Sigma - gamma) / 2.
    """

    def fit(log_nu: float) -> tuple[float, float]:
        one = Exchanged(problem, math.exp(log_nu), 1.0).head
        zero, first, second = head_risks(
            problem,
            "softmax",
            np.stack([one.U] * 3),
            np.outer([0.0, 1.0, 2.0], one.v),
            length,
            SEARCH_DRAWS,
            stream(seed, "exchanged"),
        )[0]
        square = (second - 2 * first + zero) / 2
        slope = first - zero - square
        return zero - slope**2 / (4 * square), -slope / (2 * square)

    found = minimize_scalar(lambda x: fit(x)[0], bounds=tuple(np.log(NU)), method="bounded")
    return Exchanged(problem, math.exp(found.x), fit(found.x)[1])


def curvature(problem: InContextRegression, head: Head, along: Head, length: float, seed: int) -> Estimate:
    """Second derivative of the risk along a direction: a second difference on common draws, with its interval."""
    draws = _draws(problem, CURVATURE_DRAWS, stream(seed, "curvature"))
    before, at, after = (
        softmax_losses(problem, moved.U, moved.v, length, *draws)[0]
        for moved in (head.moved(along, step) for step in (-STEP, 0.0, STEP))
    )
    return Estimate.of_losses((before - 2 * at + after) / STEP**2)


def saddle(*, problem: InContextRegression, lengths: Sequence[float], seed: int) -> Comparison:
    """The curvature of the risk at the best exchanged heads along the way down, against its infinite-prompt value.

    Args:
        problem: the task.
        lengths: prompt lengths L, in tokens, increasing.
        seed: root of the random draws.

    Returns:
        Columns length; risk of the best exchanged head, limit, that of an infinite prompt; measured curvature, low,
        high (95 % each), and exact, that of an infinite prompt at the same head.
        measured: measured / exact at the longest prompt. near miss: over the exact curvature without the variance of
        w' Sigma w. control: the same direction at the best softmax head. One part, "short": the curvature at the
        shortest prompt; near miss, along the size nu, within the exchanged heads; control, at the best softmax head.
    """
    rows, found = [], {}
    limit = (np.trace(problem.covariance) - np.linalg.eigvalsh(problem.covariance)[-1]) / 2
    for length in lengths:
        exchanged = best_exchanged(problem=problem, length=length, seed=seed)
        along, exact = exchanged.way_down()
        block = Head.of_block(*best_softmax(problem, length))
        where = {"measured": (exchanged.head, along), "near_miss": (exchanged.head, exchanged.larger)}
        where |= {"control": (block, along)}
        found[length] = {side: curvature(problem, *at, length, seed) for side, at in where.items()}
        value, low, high = found[length]["measured"]
        columns = {"length": length, "risk": float(_risk(problem, exchanged.head, length, seed)), "limit": limit}
        rows.append(columns | {"measured": value, "low": low, "high": high, "exact": exact})
    down = np.linalg.eigh(exchanged.limit_hessian())[1][:, 0]
    nearly = down @ exchanged.limit_hessian(spread=False) @ down
    last = found[lengths[-1]]
    sides = {"control": _over(last["control"], exact), "near_miss": _over(last["measured"], nearly)}
    short = Comparison(**found[lengths[0]])
    return Comparison(pd.DataFrame(rows), _over(last["measured"], exact), parts={"short": short}, **sides)


def descend(problem: InContextRegression, head: Head, length: float, seed: int) -> Head:
    """Down the softmax risk in all of U and v from a head, to a local minimum of its mean over common draws.

    The draws of task and query are of a scrambled Sobol sequence, whose mean is nearer to the risk than that of random
    ones. Cost: a few hundred gradients, 1.5 s at d = 5.
    """
    draws, shape = _sobol(problem, SEARCH_DRAWS, seed), head.U.shape

    def objective(point):
        U, v = point[: head.U.size].reshape(shape), point[head.U.size :]
        losses, by_U, by_v = softmax_losses(problem, U, v, length, *draws)
        return losses.mean(), np.append(by_U.ravel(), by_v)

    options = {"gtol": 1e-4, "ftol": 1e-8, "maxiter": 1000, "maxfun": 2000}
    start = np.append(head.U.ravel(), head.v)
    end = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    return Head(end[: head.U.size].reshape(shape), end[head.U.size :])


def mixed_head(problem: InContextRegression, exchanged: Exchanged, length: float, seed: int) -> Head:
    """Where the risk leads from an exchanged head, a small step along its way down."""
    along, _ = exchanged.way_down()
    return descend(problem, exchanged.head.moved(along, STEP), length, seed)


def relative_risks(problem: InContextRegression, heads: list[Head], reference: Head, length, seed: int) -> Intervals:
    """Risks of heads over that of a reference, on common draws, with 95 % intervals that hold for all of them."""
    if not heads:
        return Intervals.exact([])
    draws = _draws(problem, FINAL_DRAWS, stream(seed, "ends"))
    base = softmax_losses(problem, reference.U, reference.v, length, *draws)[0]
    losses = np.array([softmax_losses(problem, head.U, head.v, length, *draws)[0] for head in heads])
    ratios = losses.mean(1) / base.mean()
    errors = (losses - ratios[:, None] * base).std(1, ddof=1) / np.sqrt(len(base)) / base.mean()
    width = norm.ppf(1 - 0.025 / len(heads)) * errors
    return Intervals(ratios, ratios - width, ratios + width)


def _risk(problem, head: Head, length, seed: int) -> np.ndarray:
    return head_risks(problem, "softmax", head.U, head.v, length, FINAL_DRAWS, stream(seed, "exchanged"))[0]


def _over(found: Estimate, exact: float) -> Estimate:
    """An estimate relative to an exact number of any sign."""
    ends = sorted((found.low / exact, found.high / exact))
    return Estimate(found.value / exact, *ends, found.cases)


def _draws(problem, n: int, rng) -> tuple[np.ndarray, np.ndarray]:
    w = np.sqrt(problem.task_variance) * rng.standard_normal((n, problem.dimension))
    return w, rng.standard_normal((n, problem.dimension)) @ problem.query_root


def _sobol(problem, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    d = problem.dimension
    normal = norm.ppf(qmc.Sobol(2 * d, rng=stream(seed, "sobol")).random(n))
    return np.sqrt(problem.task_variance) * normal[:, :d], normal[:, d:] @ problem.query_root
