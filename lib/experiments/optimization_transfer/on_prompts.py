"""Training on raw prompts: step rules with noisy gradients, and the prompts that a control variate saves."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.experiments.optimization_transfer.steps import PRECONDITIONED, diverged, tuned_rules
from lib.experiments.optimization_transfer.variance import BOUND, deviations
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.control_variate import mean_gradient, prompt_gradients
from lib.regression.head import BlockHead, Prompts
from lib.regression.hessian import softmax_hessian
from lib.regression.step_rules import Rule, long_prompt, preconditioned
from lib.regression.task import InContextRegression

ARMS = ("plain", "linear", "affine")
RESAMPLES = 1000
SMALLER = 16  # by this factor, batches in which training leaves the linear regime
TUNING_RUNS = 2  # of each rule that is tried on prompts
NODES = (0, 1, 2, 4, 6, 8, 10, 12, 15, 20, 30, 45, 70, 100, 150)  # steps where the gradient's covariance is measured


def stochastic_race(
    *,
    problem: InContextRegression,
    length: int,
    alpha: float,
    n_steps: int,
    batches: list[int],
    seeds: int,
    seed: int,
    change: float,
) -> Comparison:
    """The preconditioner of the limit against tuned rules, with gradients from fresh raw prompts, the same for all.

    Each kind of rule of :func:`tuned_rules` is tuned over the same grid as in the race with exact gradients, on
    TUNING_RUNS runs with prompts of their own: the rule whose worse end is lowest is raced.

    Args:
        problem: the task.
        length: prompt length L.
        alpha: size of the balanced start.
        n_steps: of each rule.
        batches: prompts a step, one race each; the last one is judged.
        seeds: independent runs.
        seed: of the prompts.
        change: the limit of a preconditioned step.

    Returns:
        A row a batch, method and step: batch, method, step, ``risk / best`` (the mean over the seeds of the exact risk
        over the best softmax risk).
        measured: of the preconditioner after the last step, Student's interval. control: of the best tuned rule.
    """
    limit = long_prompt(problem)
    grids = tuned_rules(problem, limit)
    races = {}
    for n in batches:
        rules = {kind: _tuned(problem, length, tries, alpha, n_steps, n, seed) for kind, tries in grids.items()}
        rules[PRECONDITIONED] = lambda: preconditioned(problem, length, limit, change)
        races[n] = _race(problem, length, rules, alpha, n_steps, n, seeds, seed)
    rows = pd.concat([race.assign(batch=f"batch {n}") for n, race in races.items()])
    table = rows.groupby(["batch", "method", "step"], sort=False)["risk / best"].mean().reset_index()
    last = races[batches[-1]]
    ends = {
        name: Estimate.of_mean(rows["risk / best"])
        for name, rows in last[last["step"] == n_steps].groupby("method", sort=False)
    }
    return Comparison(table, ends.pop(PRECONDITIONED), min(ends.values(), key=lambda end: end.value))


def _tuned(problem, length, tries: list[Callable[[], Rule]], alpha, n_steps, batch, seed) -> Callable[[], Rule]:
    """The rule of a grid whose worse end of TUNING_RUNS runs is lowest; their prompts are not raced on."""
    rules = {str(k): make for k, make in enumerate(tries)}
    rows = _race(problem, length, rules, alpha, n_steps, batch, TUNING_RUNS, seed, "stochastic race, tuning")
    ends = rows[rows["step"] == n_steps].groupby("method", sort=False)["risk / best"].max()
    return rules[ends.idxmin()]


def _race(
    problem, length, rules: dict[str, Callable[[], Rule]], alpha, n_steps, batch, seeds, seed, name="stochastic race"
) -> pd.DataFrame:
    smallest = problem.risk_and_gradient("softmax", *best_softmax(problem, length), length)[0]
    rows = []
    for k in range(seeds):
        rng, steppers = stream(seed, name, k), {name: make() for name, make in rules.items()}
        points = dict.fromkeys(rules, problem.balanced_init(alpha).flat())
        for step in range(n_steps + 1):
            prompts = problem.sample(batch, length, rng)
            for name_, point in list(points.items()):
                if diverged(problem, point):  # a step that is too large ends nowhere
                    rows.append({"method": name_, "seed": k, "step": step, "risk / best": np.inf})
                    continue
                risk = problem.risk_and_gradient("softmax", *BlockHead.from_flat(point), length)[0]
                rows.append({"method": name_, "seed": k, "step": step, "risk / best": risk / smallest})
                gradient = prompt_gradients(prompts, *BlockHead.from_flat(point), ("softmax",))["softmax"].mean(0)
                points[name_] = point + steppers[name_](point, gradient)
    return pd.DataFrame(rows)


def savings(
    *,
    problem: InContextRegression,
    length: int,
    alpha: float,
    step_size: float,
    n_steps: int,
    batch: int,
    seeds: int,
    early: int,
    seed: int,
    node_prompts: int,
) -> Comparison:
    """The prompts that a control variate (coefficient 1) saves in stochastic gradient descent, and a prediction of it.

    The squared distance in (A, b) from descent with exact gradients, plain over corrected: where it is linear in the
    noise it is the factor by which the batch may shrink. To this order it is known (:func:`expected_deviations`).

    Args:
        problem: the task.
        length: prompt length L.
        alpha: size of the balanced start.
        step_size: of gradient descent.
        n_steps: of gradient descent, more than ``early``.
        batch: prompts a step and run.
        seeds: independent runs.
        early: the step that counts as early.
        seed: of the prompts.
        node_prompts: prompts at each head of the path where the gradient's covariance is measured, others than those
            of the runs.

    Returns:
        A row a step and control ("linear" or "affine"): step, control, gain, low, high (bootstrap over the runs, step
        by step), predicted; ``distance``: squared distance of the plain runs over the predicted one, and the same in
        batches that are SMALLER times smaller, ``in small batches``, where the noise is no longer small.
        Parts, gain over predicted of the linear control: "early", after ``early`` steps (near miss: over the gain at
        the head of that step; control: over the bound of trained heads); "late", after the last one (near miss: over
        what a random walk without the Hessian would save; control: over the gain at the start).
    """
    deviation = _deviations(problem, length, alpha, step_size, n_steps, batch, seeds, seed)
    small = max(1, batch // SMALLER)
    in_small = _deviations(problem, length, alpha, step_size, n_steps, small, seeds, seed, ("plain",))["plain"]
    found = expected_deviations(problem, length, alpha, step_size, n_steps, node_prompts, seed)
    draws = stream(seed, "savings").multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    tables = []
    for arm in ARMS[1:]:
        plain, other = deviation["plain"][:, 1:], deviation[arm][:, 1:]
        low, high = np.quantile((draws @ plain) / (draws @ other), [0.025, 0.975], axis=0)
        columns = {"step": np.arange(1, n_steps + 1), "control": arm, "gain": plain.mean(0) / other.mean(0)}
        columns |= {"low": low, "high": high, "predicted": found.squares["plain"][1:] / found.squares[arm][1:]}
        distances = {"distance": batch * plain.mean(0), "in small batches": small * in_small[:, 1:].mean(0)}
        columns |= {name: x / found.squares["plain"][1:] for name, x in distances.items()}
        tables.append(pd.DataFrame(columns))
    table = pd.concat(tables, ignore_index=True)
    linear = table[table["control"] == "linear"].set_index("step")
    here, walk = (x["plain"] / x["linear"] for x in (found.noise, {k: v.cumsum() for k, v in found.noise.items()}))
    wrong = {"early": (early, BOUND, here[early - 1]), "late": (n_steps, here[0], walk[-1])}
    parts = {}
    for name, (step, control, near) in wrong.items():
        row = linear.loc[step]
        measured = Estimate(row["gain"], row["low"], row["high"], seeds)
        parts[name] = Comparison(
            table, *(measured.over(x) for x in (row["predicted"], control)), near_miss=measured.over(near)
        )
    return Comparison(table, parts=parts)


class Expected(NamedTuple):
    """By arm, to first order in the noise and for a batch of one prompt: ``squares``, the expected squared distance
    from exact descent, (n_steps + 1,), and ``noise``, the variance of the gradient at each step's head, (n_steps,)."""

    squares: dict[str, np.ndarray]
    noise: dict[str, np.ndarray]


def expected_deviations(
    problem: InContextRegression, length, alpha: float, step_size: float, n_steps: int, node_prompts: int, seed: int
) -> Expected:
    """How far runs get from descent with exact gradients, linearized along it.

    S' = (I - step H) S (I - step H) + step^2 C: S the covariance of the distance, H the exact softmax Hessian and C the
    covariance of one prompt's gradient at the head of exact descent, the latter measured at NODES and interpolated.
    Source: ours (notebook 07). Cost: 30 ms a step, and the gradients of node_prompts prompts at each node.
    """
    point, path = problem.balanced_init(alpha).flat(), []
    for _ in range(n_steps):
        path.append(BlockHead.from_flat(point))
        point = point - step_size * problem.risk_and_gradient("softmax", *path[-1], length)[1].flat()
    nodes = [k for k in NODES if k < n_steps - 1] + [n_steps - 1]
    at_nodes = {arm: [] for arm in ARMS}
    for k in nodes:
        found = deviations(problem, path[k], length, node_prompts, stream(seed, "path", k))
        for arm in ARMS:
            noise = found["softmax"] - (0 if arm == "plain" else found[arm])
            at_nodes[arm].append(noise.T @ noise / len(noise))
    shrink = [np.eye(len(point)) - step_size * softmax_hessian(problem, head, length) for head in path]
    squares, variances = {}, {}
    for arm in ARMS:
        covariances = [_between(nodes, at_nodes[arm], k) for k in range(n_steps)]
        S, traces = np.zeros_like(shrink[0]), [0.0]
        for M, C in zip(shrink, covariances, strict=True):
            S = M @ S @ M.T + step_size**2 * C
            traces.append(np.trace(S))
        squares[arm], variances[arm] = np.array(traces), np.array([np.trace(C) for C in covariances])
    return Expected(squares, variances)


def _between(nodes: list[int], values: list[np.ndarray], k: int) -> np.ndarray:
    """A matrix at step k, linear between the nodes."""
    after = int(np.searchsorted(nodes, k))
    if nodes[after] == k:
        return values[after]
    share = (k - nodes[after - 1]) / (nodes[after] - nodes[after - 1])
    return (1 - share) * values[after - 1] + share * values[after]


def _deviations(
    problem, length, alpha, step_size, n_steps, batch, seeds, seed, arms: tuple[str, ...] = ARMS
) -> dict[str, np.ndarray]:
    """Squared distance in (A, b) from gradient descent with exact gradients, by arm, (seeds, n_steps + 1)."""
    rng, exact = stream(seed, "noise", length), problem.balanced_init(alpha).flat()
    points = {arm: np.tile(exact, (seeds, 1)) for arm in arms}
    d, found = problem.dimension, {arm: [] for arm in arms}
    for _ in range(n_steps + 1):
        for arm in arms:
            found[arm].append(((points[arm] - exact) ** 2).sum(1))
        prompts = problem.sample(seeds * batch, length, rng)
        prompts = Prompts(*(part.reshape(seeds, batch, *part.shape[1:]) for part in prompts))
        for arm in arms:
            gradients = prompt_gradients(prompts, points[arm][:, :-1].reshape(seeds, d, d), points[arm][:, -1])
            used = gradients["softmax"].mean(1)
            if arm != "plain":
                means = [mean_gradient(problem, arm, BlockHead.from_flat(point), length) for point in points[arm]]
                used = used - gradients[arm].mean(1) + np.array(means)
            points[arm] = points[arm] - step_size * used
        gradient = problem.risk_and_gradient("softmax", *BlockHead.from_flat(exact), length)[1]
        exact = exact - step_size * gradient.flat()
    return {arm: np.stack(rows, 1) for arm, rows in found.items()}
