"""Errors of the gradients along a flow: they concentrate on the whole trajectory."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.finite_prompt import mean_score_gradient_error, mean_value_gradient_error
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.errors import prompt_errors
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.regression.flow import Flow
from lib.regression.task import InContextRegression
from lib.tokens.families import Gaussian

PROMPTS_AT_MOST = 100_000  # a time and length


def along(
    *,
    problem: InContextRegression,
    flow: Flow,
    times: Sequence[float],
    lengths: Sequence[int],
    number_budget: int,
    seed: int,
) -> Comparison:
    """Errors of the V- and U-gradient along training, averaged over queries: on prompts, and exact.

    At each time the head's tokens are those of one task w: Gaussian in dimension d + 1. The exact averages are those
    of notebook 02.

    Args:
        problem: the task.
        flow: whose heads are looked at.
        times: flow times, the nearest recorded ones are taken.
        lengths: prompt lengths L, in tokens.
        number_budget: random numbers a time and length.
        seed: root of the random draws.

    Returns:
        Columns quantity ("V-gradient" or "U-gradient"), time, length ("L = 30"), measured, low, high, exact, control.
        measured: the curve measured / exact, over all times, quantities and lengths. control: the same over the exact
        error without tilt, of U = 0.
    """
    gamma = _token_covariance(problem, seed)
    parts = {}
    for time in times:
        k = int(np.argmin(np.abs(flow.time - time)))
        U, V = np.pad(flow.A[k], (0, 1)), np.pad([[flow.b[k]]], ((0, 0), (problem.dimension, 0)))
        exact = _exact_errors(problem, gamma, U, V, lengths)
        control = _exact_errors(problem, gamma, 0 * U, V, lengths)
        samples = _measured_errors(problem, gamma, U, V, lengths, number_budget, time, seed)
        for name in exact:
            curve = Curve.from_samples(samples[name], stream(seed, "along", "bootstrap", name, int(1000 * time)))
            columns = {"quantity": name, "time": flow.time[k], "length": [f"L = {length:,}" for length in lengths]}
            columns |= {**curve.columns(), "exact": exact[name], "control": control[name]}
            parts[f"{name}, t = {time:g}"] = Comparison(
                pd.DataFrame(columns), curve / exact[name], curve / control[name]
            )
    return Comparison.together(parts)


def growth(*, problem: InContextRegression, flow: Flow, length: int, points: int, settled: float) -> Comparison:
    """The exact V-gradient error along a flow, over its value at (A*, b*), averaged over queries.

    Args:
        problem: the task.
        flow: whose heads are looked at.
        length: prompt length L, in tokens.
        points: how many of the recorded times, about.
        settled: flow time from which on the error should be that of the optimum.

    Returns:
        Columns time, relative. measured: the worst of the settled times. control: the largest before.
    """

    def error(A):
        return float(mean_value_gradient_error(problem.covariance, problem.query_covariance, A, length).value)

    chosen = np.unique(np.linspace(0, len(flow.time) - 1, points).astype(int))
    at_optimum = error(problem.optimum().A)
    table = pd.DataFrame({"time": flow.time[chosen], "relative": [error(flow.A[k]) / at_optimum for k in chosen]})
    late, early = (table[side]["relative"] for side in (table["time"] >= settled, table["time"] < settled))
    return Comparison(table, Intervals.exact(late), Estimate.exact(early.max()))


def _token_covariance(problem: InContextRegression, seed: int) -> np.ndarray:
    """Covariance of the tokens (x, y) given one random task w, shape (d + 1, d + 1)."""
    w = np.sqrt(problem.task_variance) * stream(seed, "task").standard_normal(problem.dimension)
    cross = problem.covariance @ w
    return np.block(
        [[problem.covariance, cross[:, None]], [cross[None], np.array([[w @ cross + problem.noise_std**2]])]]
    )


def _exact_errors(problem: InContextRegression, gamma, U, V, lengths) -> dict[str, np.ndarray]:
    query_covariance = np.pad(problem.query_covariance, (0, 1))
    return {
        "V-gradient": mean_value_gradient_error(gamma, query_covariance, U, lengths).value,
        "U-gradient": mean_score_gradient_error(gamma, query_covariance, U, V, lengths).value,
    }


def _measured_errors(
    problem: InContextRegression, gamma, U, V, lengths, number_budget: int, time: float, seed: int
) -> dict[str, list[np.ndarray]]:
    """Squared errors of both gradients on prompts: an array (prompts,) a length."""
    d, samples = problem.dimension, {"V-gradient": [], "U-gradient": []}
    for length in lengths:
        rng = stream(seed, "along", int(1000 * time), length)
        count = affordable_prompts(length, d + 1, number_budget, most=PROMPTS_AT_MOST)
        queries = np.pad(rng.standard_normal((count, d)) @ problem.query_root, ((0, 0), (0, 1)))
        errors = prompt_errors(Gaussian.centered(gamma), queries, U, V, length, count, rng)
        samples["V-gradient"].append(errors[:, 1])
        samples["U-gradient"].append(errors[:, 2])
    return samples
