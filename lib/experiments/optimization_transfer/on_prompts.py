"""Training on raw prompts: step rules with noisy gradients, and the prompts that a control variate saves."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.control_variate import mean_gradient, prompt_gradients
from lib.regression.head import BlockHead, Prompts
from lib.regression.step_rules import Rule, adam, preconditioned
from lib.regression.task import InContextRegression

ARMS = ("plain", "linear", "affine")
RESAMPLES = 1000
PRECONDITIONED = "preconditioned"


def stochastic_race(
    *,
    problem: InContextRegression,
    length: int,
    adam_steps: list[float],
    alpha: float,
    n_steps: int,
    batches: list[int],
    seeds: int,
    seed: int,
) -> Comparison:
    """The preconditioner of the limit against Adam, with gradients from fresh raw prompts, the same for all.

    Args:
        problem: the task.
        length: prompt length L.
        adam_steps: step sizes of Adam, one run each.
        alpha: size of the balanced start.
        n_steps: of each rule.
        batches: prompts a step, one race each; the last one is judged.
        seeds: independent runs.
        seed: of the prompts.

    Returns:
        A row a batch, method and step: batch, method, step, ``risk / best`` (the mean over the seeds of the exact risk
        over the best softmax risk).
        measured: of the preconditioner after the last step, Student's interval. control: of the best Adam.
    """
    rules = {f"Adam {step:g}": (lambda step=step: adam(step)) for step in adam_steps}
    rules[PRECONDITIONED] = lambda: preconditioned(problem, length)
    races = {n: _race(problem, length, rules, alpha, n_steps, n, seeds, seed) for n in batches}
    rows = pd.concat([race.assign(batch=f"batch {n}") for n, race in races.items()])
    table = rows.groupby(["batch", "method", "step"], sort=False)["risk / best"].mean().reset_index()
    last = races[batches[-1]]
    ends = {
        name: Estimate.of_mean(rows["risk / best"])
        for name, rows in last[last["step"] == n_steps].groupby("method", sort=False)
    }
    return Comparison(table, ends.pop(PRECONDITIONED), min(ends.values()))


def _race(problem, length, rules: dict[str, Callable[[], Rule]], alpha, n_steps, batch, seeds, seed) -> pd.DataFrame:
    smallest = problem.risk_and_gradient("softmax", *best_softmax(problem, length), length)[0]
    rows = []
    for k in range(seeds):
        rng, steppers = stream(seed, "stochastic race", k), {name: make() for name, make in rules.items()}
        points = dict.fromkeys(rules, problem.balanced_init(alpha).flat())
        for step in range(n_steps + 1):
            prompts = problem.sample(batch, length, rng)
            for name, point in points.items():
                risk = problem.risk_and_gradient("softmax", *BlockHead.from_flat(point), length)[0]
                rows.append({"method": name, "seed": k, "step": step, "risk / best": risk / smallest})
                gradient = prompt_gradients(prompts, *BlockHead.from_flat(point), ("softmax",))["softmax"].mean(0)
                points[name] = point + steppers[name](point, gradient)
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
) -> Comparison:
    """The prompts that a control variate (coefficient 1) saves in stochastic gradient descent, at every step.

    The squared distance in (A, b) from descent with exact gradients is proportional to the variance over the batch
    size, so its ratio, plain over corrected, is the factor by which the batch may shrink.

    Args:
        problem: the task.
        length: prompt length L.
        alpha: size of the balanced start.
        step_size: of gradient descent.
        n_steps: of gradient descent, 1 or more.
        batch: prompts a step and run.
        seeds: independent runs.
        early: the step that counts as early.
        seed: of the prompts.

    Returns:
        A row a step and control ("linear" or "affine"): step, control, gain, low, high (bootstrap over the runs, step
        by step).
        Parts: "early" and "late", the gain of the linear control after ``early`` steps and after the last one, each the
        control of the other.
    """
    deviation = _deviations(problem, length, alpha, step_size, n_steps, batch, seeds, seed)
    draws = stream(seed, "savings").multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    tables = []
    for arm in ARMS[1:]:
        plain, other = deviation["plain"][:, 1:], deviation[arm][:, 1:]
        low, high = np.quantile((draws @ plain) / (draws @ other), [0.025, 0.975], axis=0)
        columns = {"step": np.arange(1, n_steps + 1), "control": arm, "gain": plain.mean(0) / other.mean(0)}
        tables.append(pd.DataFrame(columns | {"low": low, "high": high}))
    table = pd.concat(tables, ignore_index=True)
    linear = table[table["control"] == "linear"].set_index("step")[["gain", "low", "high"]]
    first, last = (Estimate(*linear.loc[step]) for step in (min(early, n_steps), n_steps))
    return Comparison(table, parts={"early": Comparison(table, first, last), "late": Comparison(table, last, first)})


def _deviations(problem, length, alpha, step_size, n_steps, batch, seeds, seed) -> dict[str, np.ndarray]:
    """Squared distance in (A, b) from gradient descent with exact gradients, by arm, (seeds, n_steps + 1)."""
    rng, exact = stream(seed, "noise", length), problem.balanced_init(alpha).flat()
    points = {arm: np.tile(exact, (seeds, 1)) for arm in ARMS}
    d, found = problem.dimension, {arm: [] for arm in ARMS}
    for _ in range(n_steps + 1):
        for arm in ARMS:
            found[arm].append(((points[arm] - exact) ** 2).sum(1))
        prompts = problem.sample(seeds * batch, length, rng)
        prompts = Prompts(*(part.reshape(seeds, batch, *part.shape[1:]) for part in prompts))
        for arm in ARMS:
            gradients = prompt_gradients(prompts, points[arm][:, :-1].reshape(seeds, d, d), points[arm][:, -1])
            used = gradients["softmax"].mean(1)
            if arm != "plain":
                means = [mean_gradient(problem, arm, BlockHead.from_flat(point), length) for point in points[arm]]
                used = used - gradients[arm].mean(1) + np.array(means)
            points[arm] = points[arm] - step_size * used
        gradient = problem.risk_and_gradient("softmax", *BlockHead.from_flat(exact), length)[1]
        exact = exact - step_size * gradient.flat()
    return {arm: np.stack(rows, 1) for arm, rows in found.items()}
