r"""Rules for gradient steps on the softmax risk, some of them in closed form from the infinite-prompt limit.

The infinite-prompt risk depends on b A alone, and has risk 0 on the valley (A, b) = (Sigma^-1 / b, b). Its Hessian has
one flat direction there, f = (-A, b): only the prompt's finite length tells the heads of the valley apart, by

    C(b) = lim L R_L(Sigma^-1 / b, b),        closed in b (:meth:`InContextRegression.long_prompt_constant`).

The closed forms for softmax are computed from these two, without a prompt and without softmax.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar

from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian, stable_step
from lib.regression.task import InContextRegression

# Both are what the pilot of notebook 07 chooses, on other tasks than those that it judges.
SCHEDULE = 1.75  # step x largest curvature of the limit, between the safe 1 and the unstable 2
LARGEST_CHANGE = 0.4  # of the head in one preconditioned step, relative to its norm

Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps a head and its gradient, both flat, to the step; a rule may have a memory and serves for one run."""


class LongPrompt(NamedTuple):
    """What the trained heads tend to as L grows, and how strongly they are held there.

    Attributes:
        head: (A, b), the head of the valley with the smallest C.
        constant: its C, the limit of L x best risk.
        curvature: C'', the second derivative of C by log b.
    """

    head: BlockHead
    constant: float
    curvature: float


def long_prompt(problem: InContextRegression) -> LongPrompt:
    """Limit of the best softmax heads for L to infinity, from one scalar minimization.

    Source: exact here (notebook 07): on the valley b A = Sigma^-1 the risk is C(b) / L to leading order.
    """
    inverse = np.linalg.inv(problem.covariance)

    def constant(log_b):
        b = np.exp(log_b)
        return problem.long_prompt_constant(inverse / b, b)

    lowest = np.log(2 * problem.coupling(inverse)) / 2  # coupling 1/2, where C is infinite
    found = minimize_scalar(constant, bounds=(lowest + 1e-3, lowest + 3), method="bounded", options={"xatol": 1e-9}).x
    step = 1e-3
    curvature = (constant(found + step) - 2 * constant(found) + constant(found - step)) / step**2
    b = float(np.exp(found))
    return LongPrompt(BlockHead(inverse / b, b), float(constant(found)), float(curvature))


def curvatures(problem: InContextRegression, length, limit: LongPrompt) -> tuple[float, float]:
    """h_max and h_min at the head for L to infinity: the largest curvature, and C'' / (L |f|^2) along f."""
    return 2 / stable_step(infinite_hessian(problem, limit.head)), limit.curvature / (length * limit.head.norm() ** 2)


def constant_step(step: float) -> Rule:
    """Gradient descent."""
    return lambda point, gradient: -step * gradient


def momentum(step: float, decay: float) -> Rule:
    """Heavy ball: the last step, times the decay, is added to the gradient's. Source: Polyak (1964)."""
    velocity = 0.0

    def rule(point, gradient):
        nonlocal velocity
        velocity = decay * velocity - step * gradient
        return velocity

    return rule


def adam(step: float, first: float = 0.9, second: float = 0.999) -> Rule:
    """Adam with its usual decays of the first and second moment. Source: Kingma and Ba (2015)."""
    mean, square, k = 0.0, 0.0, 0

    def rule(point, gradient):
        nonlocal mean, square, k
        mean, square, k = first * mean + (1 - first) * gradient, second * square + (1 - second) * gradient**2, k + 1
        return -step * mean / (1 - first**k) / (np.sqrt(square / (1 - second**k)) + 1e-8)

    return rule


def schedule(problem: InContextRegression, factor: float = SCHEDULE) -> Rule:
    """Gradient descent with the step factor / h_max of the limit, at the current head."""
    return lambda point, gradient: (
        -factor / 2 * stable_step(infinite_hessian(problem, BlockHead.from_flat(point))) * gradient
    )


def preconditioned(
    problem: InContextRegression, length, limit: LongPrompt | None = None, largest_change: float = LARGEST_CHANGE
) -> Rule:
    r"""Gradient steps with the inverse of a matrix known in closed form from the limit.

    P = sigma_w^2 J'J + (C'' / L) f f' / |f|^4: J the Jacobian of b Sigma A Sigma_q^{1/2}, so that the first term is the
    Gauss-Newton matrix of the infinite-prompt risk; f = (-A, b) its flat direction, with the curvature that a prompt of
    length L gives it. A step changes the head by at most ``largest_change`` of its norm. Source: ours (notebook 07).
    """
    limit = limit or long_prompt(problem)

    def rule(point, gradient):
        step = -cho_solve(cho_factor(preconditioner(problem, BlockHead.from_flat(point), length, limit)), gradient)
        return step * min(1.0, largest_change * np.linalg.norm(point) / np.linalg.norm(step))

    return rule


def preconditioner(problem: InContextRegression, head: BlockHead, length, limit: LongPrompt) -> np.ndarray:
    """The matrix P of :func:`preconditioned` at a head, shape (d^2 + 1, d^2 + 1)."""
    (A, b), S, R = head, problem.covariance, problem.query_root
    J = np.column_stack([b * np.kron(S, R), (S @ A @ R).ravel()])
    f = np.append(-A, b)
    return problem.task_variance * J.T @ J + limit.curvature / length * np.outer(f, f) / (f @ f) ** 2


def closed_form_momentum(problem: InContextRegression, length, limit: LongPrompt | None = None) -> Rule:
    """Heavy ball with the step and decay that are optimal for curvatures between h_min and h_max of the limit.

    Both at the head for L to infinity (:func:`curvatures`). Source: Polyak (1964), with our curvatures put in.
    """
    limit = limit or long_prompt(problem)
    largest, smallest = curvatures(problem, length, limit)
    root = np.sqrt(largest) + np.sqrt(smallest)
    return momentum(4 / root**2, ((np.sqrt(largest) - np.sqrt(smallest)) / root) ** 2)


def optimal_constant_step(problem: InContextRegression, length, limit: LongPrompt) -> float:
    """2 / (h_max + h_min) of the limit, at the head for L to infinity."""
    largest, smallest = curvatures(problem, length, limit)
    return 2 / (largest + smallest)
