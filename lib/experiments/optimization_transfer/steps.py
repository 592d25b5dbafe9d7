"""Step sizes from the limit, with exact gradients: the edge of stability, the pilot and the race."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import eigh

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import NORMAL, Estimate, Intervals
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
    preconditioner,
    schedule,
)
from lib.regression.task import InContextRegression

LARGEST_COUPLING = 9.0  # where a run is given up: scores this large freeze the softmax on a few tokens
EDGE_ERROR = 1e-3  # of the sharpness at the edge, where heads keep jumping
EDGE = 2.0  # step x largest curvature at the edge of stability
CLOSED, TUNED = ", closed form", ", tuned"
PRECONDITIONED = "preconditioned" + CLOSED
CHANGES = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)  # of the head in one preconditioned step: what the pilot tries, ascending
FACTORS = (1.0, 1.25, 1.5, 1.75, 1.9)  # of the schedule: what the pilot tries, ascending
ROUNDING = np.sqrt(1 / 12)  # standard deviation of a number of steps that is rounded up
SMALLER = np.geomspace(1 / 2, 1 / 200, 10)  # sizes of smaller starts, relative to alpha
LONG_FROM = 100  # tokens from which on the law of small starts is judged


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
        measured: the exact sharpness of positive fractions. near miss: that of the limit. control: the exact one of
        negative fractions.
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
    above, below = (table[side] for side in (table["fraction"] > 0, table["fraction"] < 0))
    own, wrong, nearly = (
        Intervals.exact(x, numerical_error=EDGE_ERROR)
        for x in (above["exact sharpness"], below["exact sharpness"], above["sharpness"])
    )
    return Comparison(table, own, wrong, near_miss=nearly)


def _last_two(problem: InContextRegression, length, rule: Rule, alpha: float, n_steps: int) -> list[np.ndarray]:
    point, last = problem.balanced_init(alpha).flat(), []
    for _ in range(n_steps):
        gradient = problem.risk_and_gradient("softmax", *BlockHead.from_flat(point), length)[1]
        point = point + rule(point, gradient.flat())
        last = [*last[-1:], point]
    return last


def diverged(problem: InContextRegression, point: np.ndarray) -> bool:
    """Whether a head, flat, is no longer finite or its coupling exceeds :data:`LARGEST_COUPLING`."""
    return not (np.isfinite(point).all() and problem.coupling(BlockHead.from_flat(point).A) < LARGEST_COUPLING)


def best_and_target(problem: InContextRegression, length, tolerance: float) -> tuple[BlockHead, float]:
    """The best softmax head of a length, and the risk at which a race to it has ended."""
    best = best_softmax(problem, length)
    return best, (1 + tolerance) * float(problem.softmax_risk(*best, length).value)


def steps_to(problem: InContextRegression, length, rule: Rule, start: BlockHead, target: float, most: int) -> int:
    """Steps of a rule with exact softmax gradients until the risk is at most the target; ``most`` if never.

    A run that has :func:`diverged` is given up.
    """
    point, ceiling = start.flat(), 1e2 * max(problem.infinite_risk(*start), problem.task_variance)
    for k in range(most):
        if diverged(problem, point):
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


class Constants(NamedTuple):
    """What the closed forms leave open: ``factor`` of the schedule, ``change`` of the head in a preconditioned step."""

    factor: float
    change: float


def pilot(
    *, problems: dict[str, InContextRegression], lengths: list[int], alpha: float, tolerance: float, most_steps: int
) -> tuple[pd.DataFrame, Constants]:
    """Choose the two constants on tasks that are not raced: step up while the total number of steps falls.

    Args:
        problems, lengths, alpha, tolerance, most_steps: as for :func:`race`, but other tasks.

    Returns:
        A row a constant and value: constant, value, ``total steps``, ``given up`` (how many runs); and the choice.
    """
    totals = {(name, x): [] for name, tried in (("factor", FACTORS), ("change", CHANGES)) for x in tried}
    for problem in problems.values():
        limit, start = long_prompt(problem), problem.balanced_init(alpha)
        for length in lengths:
            _, target = best_and_target(problem, length, tolerance)
            for (name, x), found in totals.items():
                rule = schedule(problem, x) if name == "factor" else preconditioned(problem, length, limit, x)
                found.append(steps_to(problem, length, rule, start, target, most_steps))
    rows = [
        {"constant": name, "value": x, "total steps": sum(found), "given up": sum(n >= most_steps for n in found)}
        for (name, x), found in totals.items()
    ]
    table = pd.DataFrame(rows)
    return table, Constants(**{name: _step_up(rows) for name, rows in table.groupby("constant")})


def _step_up(rows: pd.DataFrame) -> float:
    values, totals = rows["value"].to_numpy(), rows["total steps"].to_numpy()
    rises = np.flatnonzero(np.diff(totals) >= 0)
    return float(values[rises[0]] if len(rises) else values[-1])


def race(
    *,
    problems: dict[str, InContextRegression],
    lengths: list[int],
    alpha: float,
    tolerance: float,
    most_steps: int,
    constants: Constants,
) -> Comparison:
    """Steps with exact softmax gradients until the risk is within the tolerance of the best softmax risk.

    Args:
        problems: tasks by the name of their covariance, "isotropic" among them.
        lengths: prompt lengths L.
        alpha: size of the balanced start.
        tolerance: relative, of the risk.
        most_steps: where a run is given up; it stands for this many or more.
        constants: of the closed forms, from the :func:`pilot`.

    Returns:
        A row a covariance, length and method: covariance, length, method, steps, ``given up``, tried (how many runs
        the tuning took), travel (:func:`travel`).
        Methods in closed form run as they are, others are tuned for each task and length. Parts, each a ratio and its
        control: "schedule" and "momentum", :func:`typical_ratio` to the tuned method (control: the constant step in
        closed form, the least that its ratio can be); "gain", steps of the preconditioner over the best tuned method's
        at the longest prompt, one a covariance (control: isotropic, shortest prompt).
    """
    rows = []
    for name, problem in problems.items():
        limit, start = long_prompt(problem), problem.balanced_init(alpha)
        for length in lengths:
            best, target = best_and_target(problem, length, tolerance)
            closed = {
                "constant step" + CLOSED: constant_step(optimal_constant_step(problem, length, limit)),
                "schedule" + CLOSED: schedule(problem, constants.factor),
                "momentum" + CLOSED: closed_form_momentum(problem, length, limit),
                PRECONDITIONED: preconditioned(problem, length, limit, constants.change),
            }
            steps = {m: (steps_to(problem, length, rule, start, target, most_steps), 1) for m, rule in closed.items()}
            for method, tries in tuned_rules(problem, limit).items():
                fewest = most_steps
                for make in tries:  # a run is given up where it is slower than the best so far
                    fewest = min(fewest, steps_to(problem, length, make(), start, target, fewest))
                steps[method] = fewest, len(tries)
            row = {"covariance": name, "length": length, "travel": travel(start, best, constants.change)}
            rows += [
                row | {"method": method, "steps": n, "given up": n >= most_steps, "tried": tried}
                for method, (n, tried) in steps.items()
            ]
    table = pd.DataFrame(rows)
    return Comparison(table, parts=_verdicts(table, lengths, most_steps))


def travel(start: BlockHead, end: BlockHead, change: float) -> float:
    """Steps that the limit of a preconditioned step asks for: log(|end| / |start|) / log(1 + change)."""
    return float(np.log(end.norm() / start.norm()) / np.log1p(change))


def _verdicts(table: pd.DataFrame, lengths: list[int], most: int) -> dict[str, Comparison]:
    wide = by_method(table)
    gain, constant = (wide[PRECONDITIONED] / wide["best tuned"]).unstack(), "constant step" + CLOSED
    arrived = (wide[PRECONDITIONED] < most).unstack()[max(lengths)]
    longest = gain[max(lengths)].where(arrived, np.inf)  # not to arrive is no gain
    ratios = {
        name: [typical_ratio(table, m, f"{rival}{TUNED}", most) for m in (f"{name}{CLOSED}", constant)]
        for name, rival in (("schedule", "constant step"), ("momentum", "momentum"))
    }
    shortest = Estimate.exact(gain.loc["isotropic", min(lengths)])
    parts = {name: Comparison(table, own, Estimate.exact(wrong.low)) for name, (own, wrong) in ratios.items()}
    return parts | {"gain": Comparison(table, Intervals.exact(longest), shortest)}


def typical_ratio(table: pd.DataFrame, method: str, against: str, most: int) -> Estimate:
    """Steps of a method over those of another, the geometric mean over tasks and lengths where one of them arrives.

    A run that was given up took ``most`` steps or more: where the other one is given up, the ratio is at most what it
    says, where the method is, at least; the interval says so.
    """
    wide = by_method(table)
    wide = wide[(wide[method] < most) | (wide[against] < most)]
    if not len(wide):
        return Estimate.unknown()
    ratio = float(np.exp(np.log(wide[method] / wide[against]).mean()))
    low = 0.0 if (wide[against] >= most).any() else ratio
    return Estimate(ratio, low, np.inf if (wide[method] >= most).any() else ratio, len(wide))


def undecided(table: pd.DataFrame, methods: list[str]) -> list[str]:
    """The tasks and lengths where every one of some methods is given up, by name."""
    given_up = table[table["method"].isin(methods)].groupby(["covariance", "length"], sort=False)["given up"].all()
    return [f"{covariance} at L = {length:,}" for (covariance, length), all_ in given_up.items() if all_]


def by_method(table: pd.DataFrame) -> pd.DataFrame:
    """One row a covariance and length, one column a method, and ``best tuned``."""
    wide = table.pivot(index=["covariance", "length"], columns="method", values="steps")
    return wide.assign(**{"best tuned": wide[[column for column in wide if column.endswith(TUNED)]].min(axis=1)})


def small_starts(
    *, problems: dict[str, InContextRegression], lengths: list[int], alpha: float, tolerance: float, most_steps: int,
    change: float,
) -> Comparison:  # fmt: skip
    """What a smaller start costs the preconditioner: 1 / log(1 + change) steps for each factor e.

    Where every step changes a small head by the largest allowed share of its norm, the number of steps is
    log(1 / alpha) / log(1 + change) plus a constant, whatever the task and the length.

    Args:
        problems, lengths, alpha, tolerance, most_steps: as for :func:`race`; the starts are SMALLER times alpha.
        change: the limit of a step.

    Returns:
        A row a covariance and length: covariance, length, ``smallest start``, ``steps from it``, ``steps per e`` (the
        least-squares slope of steps against log(1 / alpha)), ``law``.
        measured: the mean of steps per e over the law, from LONG_FROM tokens on, with an interval from the rounding of
        steps. near miss: over 1 / change. control: of momentum in closed form.
    """
    rows, others, logs = [], [], -np.log(SMALLER)
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    starts = SMALLER * alpha
    for name, problem in problems.items():
        limit = long_prompt(problem)
        for length in lengths:
            _, target = best_and_target(problem, length, tolerance)

            def counts(make, problem=problem, length=length, target=target):
                run = [(problem.balanced_init(x), target, most_steps) for x in starts]
                return np.array([steps_to(problem, length, make(), *x) for x in run])

            found = counts(lambda: preconditioned(problem, length, limit, change))  # noqa: B023
            row = {"covariance": name, "length": length, "smallest start": starts[-1], "steps from it": found[-1]}
            rows.append(row | {"steps per e": weights @ found, "law": 1 / np.log1p(change)})
            if length == max(lengths) and name == next(iter(problems)):
                others = weights @ counts(lambda: closed_form_momentum(problem, length, limit))  # noqa: B023
    table = pd.DataFrame(rows)
    long = table[table["length"] >= LONG_FROM]
    error = NORMAL * ROUNDING * np.linalg.norm(weights)  # of one slope: those of several tasks are rounded alike
    slope, law = long["steps per e"].mean(), long["law"].mean()
    own, wrong, nearly = (
        replace(Estimate.exact(x, error * y), cases=len(long))
        for x, y in ((slope / law, 1 / law), (others / law, 1 / law), (slope * change, change))
    )
    return Comparison(table, own, wrong, near_miss=nearly)


def preconditioner_range(
    *,
    problems: dict[str, InContextRegression],
    lengths: list[int],
    alpha: float,
    tolerance: float,
    most_steps: int,
    change: float,
) -> pd.DataFrame:
    """Where the preconditioner serves and where it does not: steps, and how far it is from Newton's at the best head.

    Args:
        problems, lengths, alpha, tolerance, most_steps, change: as for :func:`small_starts`.

    Returns:
        A row a covariance and length: covariance, length, steps, ``given up``, travel (:func:`travel`), ``lowest`` and
        ``highest``, the extreme eigenvalues of P^-1 times the exact softmax Hessian at the best head, which tend to 1
        for L to infinity; beyond 2 a full step is unstable there.
    """
    rows = []
    for name, problem in problems.items():
        limit, start = long_prompt(problem), problem.balanced_init(alpha)
        for length in lengths:
            best, target = best_and_target(problem, length, tolerance)
            steps = steps_to(problem, length, preconditioned(problem, length, limit, change), start, target, most_steps)
            P = preconditioner(problem, best, length, limit)
            ratios = eigh(softmax_hessian(problem, best, length), P, eigvals_only=True)
            row = {"covariance": name, "length": length, "steps": steps, "given up": steps >= most_steps}
            rows.append(row | {"travel": travel(start, best, change), "lowest": ratios[0], "highest": ratios[-1]})
    return pd.DataFrame(rows)
