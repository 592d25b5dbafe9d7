"""Experiments of notebook 07 with gradients from raw prompts: with a control variate, and by several step rules."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.control_variate import mean_gradient, prompt_gradients
from lib.regression.head import BlockHead, Prompts
from lib.regression.step_rules import Rule
from lib.regression.task import InContextRegression


def noise_in_training(
    problem: InContextRegression,
    length: int,
    alpha: float,
    step: float,
    n_steps: int,
    batch: int,
    seeds: int,
    seed: int,
) -> pd.DataFrame:
    """Stochastic gradient descent on raw prompts, plain and with a control variate (coefficient 1), on the same ones.

    One row an arm, seed and step: ``deviation``, the squared distance in (A, b) from gradient descent with exact
    gradients and the same steps, and ``risk``, the exact risk of gradient descent.
    """
    arms, rng = ("plain", "linear", "affine"), stream(seed, "noise", length)
    start = problem.balanced_init(alpha)
    exact = start.flat()
    points = {arm: np.tile(exact, (seeds, 1)) for arm in arms}
    d, tables = problem.dimension, []
    for k in range(n_steps + 1):
        risk, gradient = problem.risk_and_gradient("softmax", *BlockHead.from_flat(exact), length)
        for arm in arms:
            columns = {"arm": arm, "seed": np.arange(seeds), "step": k, "risk": risk}
            tables.append(pd.DataFrame(columns | {"deviation": ((points[arm] - exact) ** 2).sum(1)}))
        prompts = problem.sample(seeds * batch, length, rng)
        prompts = Prompts(*(part.reshape(seeds, batch, *part.shape[1:]) for part in prompts))
        for arm in arms:
            A, b = points[arm][:, :-1].reshape(seeds, d, d), points[arm][:, -1]
            gradients = prompt_gradients(prompts, A, b)
            used = gradients["softmax"].mean(1)
            if arm != "plain":
                means = [mean_gradient(problem, arm, BlockHead.from_flat(point), length) for point in points[arm]]
                used = used - gradients[arm].mean(1) + np.array(means)
            points[arm] = points[arm] - step * used
        exact = exact - step * gradient.flat()
    return pd.concat(tables, ignore_index=True)


def savings(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Mean squared deviation of plain training over that with a control variate, at every step: the prompts saved.

    Columns: step, control, gain, low, high (bootstrap over seeds, pointwise).
    """
    tables, rng = [], stream(seed, "savings")
    wide = {arm: rows.pivot(index="seed", columns="step", values="deviation") for arm, rows in table.groupby("arm")}
    n = len(wide["plain"])
    draws = rng.multinomial(n, np.full(n, 1 / n), size=1000)
    steps = [k for k in wide["plain"] if k > 0]
    for arm in ("linear", "affine"):
        plain, other = (wide[name][steps].to_numpy() for name in ("plain", arm))
        low, high = np.quantile((draws @ plain) / (draws @ other), [0.025, 0.975], axis=0)
        columns = {"step": steps, "control": arm, "gain": plain.mean(0) / other.mean(0), "low": low, "high": high}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def stochastic_race(
    problem: InContextRegression,
    length: int,
    rules: dict[str, Callable[[], Rule]],
    alpha: float,
    n_steps: int,
    batch: int,
    seeds: int,
    seed: int,
) -> pd.DataFrame:
    """Rules with gradients from fresh raw prompts: exact risk over the best one, at each step and for each seed."""
    best = best_softmax(problem, length)
    smallest = problem.risk_and_gradient("softmax", *best, length)[0]
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


def settled(table: pd.DataFrame, method: str, step: int) -> Estimate:
    """Mean over seeds of risk / best of a method at a step, with Student's interval."""
    return Estimate.of_mean(table[(table["method"] == method) & (table["step"] == step)]["risk / best"])
