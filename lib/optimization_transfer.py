r"""Experiments of notebook 07 without prompts: step sizes, a preconditioner, and which prompt length to train at.

The infinite-prompt risk depends on b A alone, and has risk 0 on the valley (A, b) = (Sigma^-1 / b, b). Its Hessian has
one flat direction there, t = (-A, b): only the prompt's finite length tells the heads of the valley apart, by

    C(b) = lim L R_L(Sigma^-1 / b, b),        closed in b (:meth:`InContextRegression.long_prompt_constant`).

Everything used for softmax here is computed from these two, without a prompt and without softmax.
"""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq, minimize_scalar

from .comparators import best_softmax
from .regression import Head, InContextRegression
from .training_stability import infinite_hessian

SCHEDULE = 1.5  # step x largest curvature of the limit, halfway between the safe 1 and the unstable 2
LARGEST_COUPLING = 9.0  # where a run is given up: scores this large freeze the softmax on a few tokens
LARGEST_CHANGE = 0.2  # of the head in one preconditioned step, relative to its norm

Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps a head and its gradient, both flat, to the step; a rule may have a memory and serves for one run."""


class LongPrompt(NamedTuple):
    """What the trained heads tend to as L grows, and how strongly they are held there.

    Attributes:
        head: the head of the valley with the smallest C. constant: its C, the limit of L x best risk.
        curvature: second derivative of C by log b.
    """

    head: Head
    constant: float
    curvature: float


def flat(head: Head) -> np.ndarray:
    """(A, b) as one vector of d^2 + 1 entries."""
    return np.append(head.A, head.b)


def unflat(point: np.ndarray) -> Head:
    d = round(np.sqrt(len(point) - 1))
    return Head(point[:-1].reshape(d, d), float(point[-1]))


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
    return LongPrompt(Head(inverse / b, b), float(constant(found)), float(curvature))


def stable_step(hessian: np.ndarray) -> float:
    """Largest stable step of gradient descent, 2 / (largest eigenvalue)."""
    return float(2 / np.linalg.eigvalsh(hessian)[-1])


def softmax_hessian(problem: InContextRegression, head: Head, length, step: float = 1e-4) -> np.ndarray:
    """Hessian of the exact softmax risk, from central differences of its exact gradient; (d^2 + 1, d^2 + 1)."""
    point = flat(head)

    def gradient(x):
        return flat(problem.risk_and_gradient("softmax", *unflat(x), length)[1])

    rows = [(gradient(point + step * e) - gradient(point - step * e)) / (2 * step) for e in np.eye(len(point))]
    return (np.array(rows) + np.array(rows).T) / 2


def stable_steps(problems: dict[str, InContextRegression], lengths) -> pd.DataFrame:
    """The largest stable step at the best softmax head of each length: exact, and from the limit's Hessian.

    ``same head`` is the limit's Hessian at that head, ``long prompt`` at the head for L to infinity, ``U*`` at the
    infinite flow's end; ``exact`` is from the Hessian of the softmax risk.
    """
    rows = []
    for name, problem in problems.items():
        at_star, far = flat(problem.optimum()), flat(long_prompt(problem).head)
        for length in lengths:
            head = best_softmax(problem, length)
            row = {"covariance": name, "length": length}
            row["exact"] = stable_step(softmax_hessian(problem, head, length))
            for column, point in {"same head": flat(head), "long prompt": far, "U*": at_star}.items():
                row[column] = stable_step(infinite_hessian(problem, point))
            rows.append(row)
    return pd.DataFrame(rows)


def edge_of_stability(problem: InContextRegression, length, fractions, alpha: float, n_steps: int) -> pd.DataFrame:
    """Where gradient descent on the exact softmax risk ends for constant steps around the stable ones.

    ``fractions`` place the step between the stable step of the trained head (0) and that of U* (1), geometrically.
    ``sharpness`` is step x largest curvature of the limit at the last head: at the edge of stability it is 2. The mean
    over the last two steps, between which a head at the edge jumps. ``risk`` is over the best risk.
    """
    best = best_softmax(problem, length)
    smallest = float(problem.softmax_risk(*best, length).value)
    ends = stable_step(softmax_hessian(problem, best, length)), problem.stable_step()
    rows = []
    for fraction in fractions:
        step, point, last = ends[0] ** (1 - fraction) * ends[1] ** fraction, flat(problem.balanced_init(alpha)), []
        for _ in range(n_steps):
            gradient = problem.risk_and_gradient("softmax", *unflat(point), length)[1]
            point = point - step * flat(gradient)
            last = [*last[-1:], point]
        mean = np.mean(last, 0)
        risk = problem.risk_and_gradient("softmax", *unflat(mean), length)[0]
        sharpness = 2 * step / stable_step(infinite_hessian(problem, mean))
        exact = 2 * step / stable_step(softmax_hessian(problem, unflat(mean), length))
        row = {"fraction": fraction, "step": step, "sharpness": sharpness, "exact sharpness": exact}
        rows.append(row | {"risk / best": risk / smallest})
    return pd.DataFrame(rows)


def constant_step(step: float) -> Rule:
    return lambda point, gradient: -step * gradient


def momentum(step: float, decay: float) -> Rule:
    """Heavy ball."""
    velocity = 0.0

    def rule(point, gradient):
        nonlocal velocity
        velocity = decay * velocity - step * gradient
        return velocity

    return rule


def adam(step: float, first: float = 0.9, second: float = 0.999) -> Rule:
    mean, square, k = 0.0, 0.0, 0

    def rule(point, gradient):
        nonlocal mean, square, k
        mean, square, k = first * mean + (1 - first) * gradient, second * square + (1 - second) * gradient**2, k + 1
        return -step * mean / (1 - first**k) / (np.sqrt(square / (1 - second**k)) + 1e-8)

    return rule


def schedule(problem: InContextRegression, factor: float = SCHEDULE) -> Rule:
    """Gradient descent with the step factor / (largest curvature of the limit at the current head)."""
    return lambda point, gradient: -factor / 2 * stable_step(infinite_hessian(problem, point)) * gradient


def preconditioned(
    problem: InContextRegression, length, limit: LongPrompt | None = None, largest_change: float = LARGEST_CHANGE
) -> Rule:
    r"""Gradient steps with the inverse of a matrix known in closed form from the limit.

    P = J'J + (C'' / L) t t' / |t|^4: J the Jacobian of b Sigma A Sigma_q^{1/2}, the Gauss-Newton matrix of the
    infinite-prompt risk; t = (-A, b) its flat direction, with the curvature that a prompt of length L gives it. A step
    changes the head by at most ``largest_change`` of its norm. Source: ours (notebook 07).
    """
    limit = limit or long_prompt(problem)
    S, R, tau = problem.covariance, problem.query_root, problem.task_variance

    def rule(point, gradient):
        A, b = unflat(point)
        J = np.column_stack([b * np.kron(S, R), (S @ A @ R).ravel()])
        t = np.append(-A, b)
        P = tau * J.T @ J + limit.curvature / length * np.outer(t, t) / (t @ t) ** 2
        step = -cho_solve(cho_factor(P), gradient)
        return step * min(1.0, largest_change * np.linalg.norm(point) / np.linalg.norm(step))

    return rule


def steps_to(problem: InContextRegression, length, rule: Rule, start: Head, target: float, most: int) -> int:
    """Steps of a rule with exact softmax gradients until the risk is at most the target; ``most`` if never.

    A run whose coupling exceeds :data:`LARGEST_COUPLING` has diverged and is given up.
    """
    point, ceiling = flat(start), 1e2 * max(problem.infinite_risk(*start), problem.task_variance)
    for k in range(most):
        if not (np.isfinite(point).all() and problem.coupling(unflat(point).A) < LARGEST_COUPLING):
            return most
        risk, gradient = problem.risk_and_gradient("softmax", *unflat(point), length)
        if risk <= target:
            return k
        if not risk < ceiling:
            return most
        point = point + rule(point, flat(gradient))
    return most


def closed_form_momentum(problem: InContextRegression, length, limit: LongPrompt | None = None) -> Rule:
    """Heavy ball with the step and decay that are optimal for the curvatures of the limit, between the flat direction's
    C'' / (L |t|^2) and the largest one, at the head for L to infinity. Source: Polyak (1964), with ours put in.
    """
    limit = limit or long_prompt(problem)
    head = flat(limit.head)
    largest, smallest = 2 / stable_step(infinite_hessian(problem, head)), limit.curvature / (length * (head @ head))
    root = np.sqrt(largest) + np.sqrt(smallest)
    return momentum(4 / root**2, ((np.sqrt(largest) - np.sqrt(smallest)) / root) ** 2)


def tuned_rules(problem: InContextRegression, limit: LongPrompt) -> dict[str, list[Callable[[], Rule]]]:
    """What tuning tries, by name: constant steps, heavy ball and Adam; large steps first."""
    unit = stable_step(infinite_hessian(problem, flat(limit.head))) / 2
    return {
        "constant step, tuned": [lambda c=c: constant_step(c * unit) for c in np.geomspace(8, 1, 7)],
        "momentum, tuned": [
            lambda c=c, k=k: momentum(c * unit, k) for c, k in product(np.geomspace(4, 0.5, 4), (0.5, 0.8, 0.9, 0.95))
        ],
        "Adam, tuned": [lambda c=c: adam(c) for c in np.geomspace(1, 0.03, 7)],
    }


def race(
    problems: dict[str, InContextRegression], lengths, alpha: float, tolerance: float, most: int, largest_change: float
) -> pd.DataFrame:
    """Steps with exact softmax gradients until the risk is within the tolerance of the best softmax risk.

    Methods in closed form, as they are, against methods tuned for each task and length by their number of steps;
    ``mismatched`` is the preconditioner of another covariance. ``most`` stands for most or more.
    Columns: covariance, length, method, steps, tried (how many runs the tuning took).
    """
    rows = []
    for name, problem in problems.items():
        limit, start = long_prompt(problem), problem.balanced_init(alpha)
        other = next(p for other, p in problems.items() if other != name)
        for length in lengths:
            target = (1 + tolerance) * float(problem.softmax_risk(*best_softmax(problem, length), length).value)
            run = (problem, length)
            closed = {
                "constant step, closed form": constant_step(_optimal_constant_step(problem, length, limit)),
                "schedule, closed form": schedule(problem),
                "momentum, closed form": closed_form_momentum(problem, length, limit),
                "preconditioned, closed form": preconditioned(problem, length, limit, largest_change),
                "mismatched": preconditioned(other, length, None, largest_change),
            }
            steps = {method: (steps_to(*run, rule, start, target, most), 1) for method, rule in closed.items()}
            for method, tries in tuned_rules(problem, limit).items():
                fewest = most
                for make in tries:  # a run is given up where it is slower than the best so far
                    fewest = min(fewest, steps_to(*run, make(), start, target, fewest))
                steps[method] = fewest, len(tries)
            rows += [
                {"covariance": name, "length": length, "method": method, "steps": n, "tried": tried}
                for method, (n, tried) in steps.items()
            ]
    return pd.DataFrame(rows)


def total_ratio(table: pd.DataFrame, method: str, against: str, most: int) -> float:
    """Steps of a method over those of another, summed over the tasks and lengths where the other arrives."""
    wide = best_tuned(table)
    arrived = wide[wide[against] < most]
    return float(arrived[method].sum() / arrived[against].sum()) if len(arrived) else np.nan


def _optimal_constant_step(problem: InContextRegression, length, limit: LongPrompt) -> float:
    head = flat(limit.head)
    largest, smallest = 2 / stable_step(infinite_hessian(problem, head)), limit.curvature / (length * (head @ head))
    return 2 / (largest + smallest)


def best_tuned(table: pd.DataFrame) -> pd.DataFrame:
    """One row a covariance and length, one column a method, with ``best tuned`` and ``gain`` of the preconditioner."""
    wide = table.pivot(index=["covariance", "length"], columns="method", values="steps")
    wide["best tuned"] = wide[[column for column in wide if column.endswith(", tuned")]].min(axis=1)
    wide["preconditioned / best tuned"] = wide["preconditioned, closed form"] / wide["best tuned"]
    return wide


def recalibrated(problem: InContextRegression, A, length) -> Head:
    """The head with the b that is best at a prompt length, A given: the exact risk is quadratic in b."""
    at_zero, gradient = problem.risk_and_gradient("softmax", A, 0.0, length)
    slope = gradient.b
    square = problem.risk_and_gradient("softmax", A, 1.0, length)[0] - at_zero - slope
    return Head(np.asarray(A, float), -slope / (2 * square))


def transfer(problem: InContextRegression, trained_lengths, used_lengths) -> pd.DataFrame:
    """Risk of the best softmax head of L1 used at L2, over the best risk at L2: exact.

    Rows ``trained at`` hold a length, "limit" (the head for L to infinity, in closed form) or "U*". ``penalty`` is as
    trained, ``recalibrated`` with the b that is best at L2.
    """
    heads = {f"L₁ = {x:,.0f}": best_softmax(problem, x) for x in trained_lengths}
    heads |= {"limit": long_prompt(problem).head, "U*": problem.optimum()}
    rows = []
    for used in used_lengths:
        best = _risk(problem, best_softmax(problem, used), used)
        for name, head in heads.items():
            adapted = _risk(problem, recalibrated(problem, head.A, used), used)
            row = {"trained at": name, "used at": used, "penalty": _risk(problem, head, used) / best}
            rows.append(row | {"recalibrated": adapted / best})
    return pd.DataFrame(rows)


def reach(problem: InContextRegression, trained_lengths, penalty: float = 2.0) -> pd.DataFrame:
    """The largest L2 up to which a head trained at L1 costs at most the penalty, with its slope to the next L1.

    Solved in log L2 to 0.1 %, around C / (infinite-prompt risk of the head), where it is to leading order.
    """
    found, limit = [], long_prompt(problem)
    for trained in trained_lengths:
        head = best_softmax(problem, trained)
        guess = np.log(limit.constant / ((penalty - 1) * problem.infinite_risk(*head)))

        def excess(log_length, head=head):
            used = float(round(np.exp(log_length)))
            # the head for infinite L is within 1e-3 of the best risk from 1e5 tokens on, and costs nothing
            best = limit.head if used > 1e5 else best_softmax(problem, used)
            return np.log(_risk(problem, head, used) / _risk(problem, best, used) / penalty)

        found.append(np.exp(brentq(excess, guess - 1.5, guess + 1.0, xtol=1e-3)))
    slopes = np.append(np.diff(np.log(found)) / np.diff(np.log(trained_lengths)), np.nan)
    return pd.DataFrame({"trained at": trained_lengths, "reach": found, "slope": slopes})


def advice(gains: dict[str, float | str]) -> pd.DataFrame:
    """The table of when each trick pays: what was measured, and the rule to take away."""
    return pd.DataFrame([(trick, measured, rule) for (trick, rule), measured in gains.items()],
                        columns=["trick", "measured here", "when it pays"])  # fmt: skip


def _risk(problem: InContextRegression, head: Head, length) -> float:
    return problem.risk_and_gradient("softmax", *head, length)[0]
