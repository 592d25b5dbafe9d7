"""Experiments of notebook 07 without prompts: step sizes, the race of rules, and which prompt length to train at."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian, softmax_hessian, stable_step
from lib.regression.step_rules import (
    LongPrompt,
    Rule,
    adam,
    closed_form_momentum,
    constant_step,
    long_prompt,
    momentum,
    optimal_constant_step,
    preconditioned,
    schedule,
)
from lib.regression.task import InContextRegression

LARGEST_COUPLING = 9.0  # where a run is given up: scores this large freeze the softmax on a few tokens


def stable_steps(problems: dict[str, InContextRegression], lengths) -> pd.DataFrame:
    """The largest stable step at the best softmax head of each length: exact, and from the limit's Hessian.

    ``same head`` is the limit's Hessian at that head, ``long prompt`` at the head for L to infinity, ``U*`` at the
    infinite flow's end; ``exact`` is from the Hessian of the softmax risk.
    """
    rows = []
    for name, problem in problems.items():
        at_star, far = problem.optimum(), long_prompt(problem).head
        for length in lengths:
            head = best_softmax(problem, length)
            row = {"covariance": name, "length": length}
            row["exact"] = stable_step(softmax_hessian(problem, head, length))
            for column, where in {"same head": head, "long prompt": far, "U*": at_star}.items():
                row[column] = stable_step(infinite_hessian(problem, where))
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
    ends = (
        stable_step(softmax_hessian(problem, best, length)),
        stable_step(infinite_hessian(problem, problem.optimum())),
    )
    rows = []
    for fraction in fractions:
        step, point, last = ends[0] ** (1 - fraction) * ends[1] ** fraction, problem.balanced_init(alpha).flat(), []
        for _ in range(n_steps):
            gradient = problem.risk_and_gradient("softmax", *BlockHead.from_flat(point), length)[1]
            point = point - step * gradient.flat()
            last = [*last[-1:], point]
        mean = np.mean(last, 0)
        risk = problem.risk_and_gradient("softmax", *BlockHead.from_flat(mean), length)[0]
        sharpness = 2 * step / stable_step(infinite_hessian(problem, BlockHead.from_flat(mean)))
        exact = 2 * step / stable_step(softmax_hessian(problem, BlockHead.from_flat(mean), length))
        row = {"fraction": fraction, "step": step, "sharpness": sharpness, "exact sharpness": exact}
        rows.append(row | {"risk / best": risk / smallest})
    return pd.DataFrame(rows)


def steps_to(problem: InContextRegression, length, rule: Rule, start: BlockHead, target: float, most: int) -> int:
    """Steps of a rule with exact softmax gradients until the risk is at most the target; ``most`` if never.

    A run whose coupling exceeds :data:`LARGEST_COUPLING` has diverged and is given up.
    """
    point, ceiling = start.flat(), 1e2 * max(problem.infinite_risk(*start), problem.task_variance)
    for k in range(most):
        if not (np.isfinite(point).all() and problem.coupling(BlockHead.from_flat(point).A) < LARGEST_COUPLING):
            return most
        risk, gradient = problem.risk_and_gradient("softmax", *BlockHead.from_flat(point), length)
        if risk <= target:
            return k
        if not risk < ceiling:
            return most
        point = point + rule(point, gradient.flat())
    return most


def tuned_rules(problem: InContextRegression, limit: LongPrompt) -> dict[str, list[Callable[[], Rule]]]:
    """What tuning tries, by name: constant steps, heavy ball and Adam; large steps first."""
    unit = stable_step(infinite_hessian(problem, limit.head)) / 2
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
                "constant step, closed form": constant_step(optimal_constant_step(problem, length, limit)),
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


def best_tuned(table: pd.DataFrame) -> pd.DataFrame:
    """One row a covariance and length, one column a method, with ``best tuned`` and ``gain`` of the preconditioner."""
    wide = table.pivot(index=["covariance", "length"], columns="method", values="steps")
    wide["best tuned"] = wide[[column for column in wide if column.endswith(", tuned")]].min(axis=1)
    wide["preconditioned / best tuned"] = wide["preconditioned, closed form"] / wide["best tuned"]
    return wide


def recalibrated(problem: InContextRegression, A, length) -> BlockHead:
    """The head with the b that is best at a prompt length, A given: the exact risk is quadratic in b."""
    at_zero, gradient = problem.risk_and_gradient("softmax", A, 0.0, length)
    slope = gradient.b
    square = problem.risk_and_gradient("softmax", A, 1.0, length)[0] - at_zero - slope
    return BlockHead(np.asarray(A, float), -slope / (2 * square))


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


def _risk(problem: InContextRegression, head: BlockHead, length) -> float:
    return problem.risk_and_gradient("softmax", *head, length)[0]
