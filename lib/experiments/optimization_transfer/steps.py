"""Step sizes from the limit, with exact gradients: the largest stable step, the edge of stability, the race."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
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
HESSIAN_ERROR = 1e-5  # of a stable step, from differences of the gradient
EDGE_ERROR = 1e-3  # of the sharpness at the edge, where heads keep jumping
EDGE = 2.0  # step x largest curvature at the edge of stability
CLOSED, TUNED = ", closed form", ", tuned"
PRECONDITIONED, MISMATCHED = "preconditioned" + CLOSED, "mismatched"


def stable_steps(*, problems: dict[str, InContextRegression], lengths: list[int]) -> Comparison:
    """The largest stable step at the best softmax head of each length: exact, and from the limit's Hessian.

    Args:
        problems: tasks by the name of their covariance.
        lengths: prompt lengths L.

    Returns:
        A row a covariance and length: covariance, length, exact (from the Hessian of the softmax risk), and from the
        limit's Hessian at ``same head``, at the head for L to infinity (``long prompt``), and at ``(A*, b*)``.
        measured: same head over exact, the worst. control: (A*, b*) over exact.
    """
    rows = []
    for name, problem in problems.items():
        at_star, far = problem.optimum(), long_prompt(problem).head
        for length in lengths:
            head = best_softmax(problem, length)
            row = {"covariance": name, "length": length}
            row["exact"] = stable_step(softmax_hessian(problem, head, length))
            for column, where in {"same head": head, "long prompt": far, "(A*, b*)": at_star}.items():
                row[column] = stable_step(infinite_hessian(problem, where))
            rows.append(row)
    table = pd.DataFrame(rows)
    same, star = table["same head"] / table["exact"], table["(A*, b*)"] / table["exact"]
    return Comparison(table, Intervals.exact(same, numerical_error=HESSIAN_ERROR), Intervals.exact(star))


def edge_of_stability(
    *, problem: InContextRegression, length: int, fractions: list[float], alpha: float, n_steps: int
) -> Comparison:
    """Where gradient descent on the exact softmax risk ends for constant steps around the stable ones.

    Args:
        problem: the task.
        length: prompt length L.
        fractions: where the step lies between the stable step of the trained head (0) and that of (A*, b*) (1),
            geometrically; below 0 it is stable at both.
        alpha: size of the balanced start.
        n_steps: of gradient descent.

    Returns:
        A row a fraction: fraction, step, ``sharpness`` (step x largest curvature of the limit at the end, the mean head
        of the last two steps, between which one at the edge jumps), ``exact sharpness`` (of the softmax risk) and
        ``risk / best``.
        measured: the sharpness of positive fractions farthest from 2. control: of negative ones.
    """
    best = best_softmax(problem, length)
    smallest = float(problem.softmax_risk(*best, length).value)
    trained = stable_step(softmax_hessian(problem, best, length))
    star = stable_step(infinite_hessian(problem, problem.optimum()))
    rows = []
    for fraction in fractions:
        step = trained ** (1 - fraction) * star**fraction
        mean = BlockHead.from_flat(np.mean(_last_two(problem, length, constant_step(step), alpha, n_steps), 0))
        row = {"fraction": fraction, "step": step}
        row["sharpness"] = 2 * step / stable_step(infinite_hessian(problem, mean))
        row["exact sharpness"] = 2 * step / stable_step(softmax_hessian(problem, mean, length))
        rows.append(row | {"risk / best": problem.risk_and_gradient("softmax", *mean, length)[0] / smallest})
    table = pd.DataFrame(rows)
    above, below = (table[side]["sharpness"] for side in (table["fraction"] > 0, table["fraction"] < 0))
    return Comparison(table, Intervals.exact(above, numerical_error=EDGE_ERROR), Intervals.exact(below))


def _last_two(problem: InContextRegression, length, rule: Rule, alpha: float, n_steps: int) -> list[np.ndarray]:
    point, last = problem.balanced_init(alpha).flat(), []
    for _ in range(n_steps):
        gradient = problem.risk_and_gradient("softmax", *BlockHead.from_flat(point), length)[1]
        point = point + rule(point, gradient.flat())
        last = [*last[-1:], point]
    return last


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
        "constant step" + TUNED: [lambda c=c: constant_step(c * unit) for c in np.geomspace(8, 1, 7)],
        "momentum" + TUNED: [
            lambda c=c, k=k: momentum(c * unit, k) for c, k in product(np.geomspace(4, 0.5, 4), (0.5, 0.8, 0.9, 0.95))
        ],
        "Adam" + TUNED: [lambda c=c: adam(c) for c in np.geomspace(1, 0.03, 7)],
    }


def race(
    *, problems: dict[str, InContextRegression], lengths: list[int], alpha: float, tolerance: float, most_steps: int
) -> Comparison:
    """Steps with exact softmax gradients until the risk is within the tolerance of the best softmax risk.

    Args:
        problems: tasks by the name of their covariance, at least two, "isotropic" among them.
        lengths: prompt lengths L.
        alpha: size of the balanced start.
        tolerance: relative, of the risk.
        most_steps: where a run is given up; it stands for this many or more.

    Returns:
        A row a covariance, length and method: covariance, length, method, steps, tried (how many runs the tuning took).
        Methods in closed form run as they are, others are tuned for each task and length; ``mismatched`` is the
        preconditioner of another covariance. Parts, each a ratio or number of steps and its control:
        "schedule" and "momentum", total steps over those of the tuned method, where that arrives (control: the constant
        step in closed form); "most", of the preconditioner (control: the fewest of the mismatched one); "gain", its
        steps over the best tuned at the longest prompt, the worst covariance (control: isotropic, shortest prompt).
    """
    rows = []
    for name, problem in problems.items():
        limit, start = long_prompt(problem), problem.balanced_init(alpha)
        other = next(p for other, p in problems.items() if other != name)
        for length in lengths:
            target = (1 + tolerance) * float(problem.softmax_risk(*best_softmax(problem, length), length).value)
            closed = {
                "constant step" + CLOSED: constant_step(optimal_constant_step(problem, length, limit)),
                "schedule" + CLOSED: schedule(problem),
                "momentum" + CLOSED: closed_form_momentum(problem, length, limit),
                PRECONDITIONED: preconditioned(problem, length, limit),
                MISMATCHED: preconditioned(other, length),
            }
            steps = {m: (steps_to(problem, length, rule, start, target, most_steps), 1) for m, rule in closed.items()}
            for method, tries in tuned_rules(problem, limit).items():
                fewest = most_steps
                for make in tries:  # a run is given up where it is slower than the best so far
                    fewest = min(fewest, steps_to(problem, length, make(), start, target, fewest))
                steps[method] = fewest, len(tries)
            rows += [
                {"covariance": name, "length": length, "method": method, "steps": n, "tried": tried}
                for method, (n, tried) in steps.items()
            ]
    table = pd.DataFrame(rows)
    return Comparison(table, parts=_verdicts(table, lengths, most_steps))


def _verdicts(table: pd.DataFrame, lengths: list[int], most: int) -> dict[str, Comparison]:
    wide = by_method(table)
    gain, constant = (wide[PRECONDITIONED] / wide["best tuned"]).unstack(), "constant step" + CLOSED
    pairs = {
        "schedule": [total_ratio(table, m, "constant step" + TUNED, most) for m in ("schedule" + CLOSED, constant)],
        "momentum": [total_ratio(table, m, "momentum" + TUNED, most) for m in ("momentum" + CLOSED, constant)],
        "most": [wide[PRECONDITIONED].max(), wide[MISMATCHED].min()],
        "gain": [gain[max(lengths)].max(), gain.loc["isotropic", min(lengths)]],
    }
    return {name: Comparison(table, *map(Estimate.exact, pair)) for name, pair in pairs.items()}


def total_ratio(table: pd.DataFrame, method: str, against: str, most: int) -> float:
    """Steps of a method over those of another, summed over the tasks and lengths where the other arrives."""
    wide = by_method(table)
    arrived = wide[wide[against] < most]
    return float(arrived[method].sum() / arrived[against].sum()) if len(arrived) else np.nan


def by_method(table: pd.DataFrame) -> pd.DataFrame:
    """One row a covariance and length, one column a method, and ``best tuned``."""
    wide = table.pivot(index=["covariance", "length"], columns="method", values="steps")
    return wide.assign(**{"best tuned": wide[[column for column in wide if column.endswith(TUNED)]].min(axis=1)})
