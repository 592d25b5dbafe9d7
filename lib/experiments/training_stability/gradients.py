"""Errors of the gradients along a flow: they concentrate on the whole trajectory."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.finite_prompt import (
    local_slope,
    mean_score_gradient_error,
    mean_value_gradient_error,
    rate_exponent,
    score_gradient_error,
    value_gradient_error,
)
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.errors import prompt_errors
from lib.prompts.estimate import Estimate
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
        measured: the curve measured / exact, over all times, quantities and lengths. near miss: over the exact error
        for queries of the same covariance, all of the same length. control: over the error without tilt, of U = 0.
    """
    gamma = _token_covariance(problem, seed)
    parts = {}
    for time in times:
        k = int(np.argmin(np.abs(flow.time - time)))
        U, V = np.pad(flow.A[k], (0, 1)), np.pad([[flow.b[k]]], ((0, 0), (problem.dimension, 0)))
        exact = _exact_errors(problem, gamma, U, V, lengths)
        control = _exact_errors(problem, gamma, 0 * U, V, lengths)
        nearly = _errors_on_a_sphere(problem, gamma, U, V, lengths)
        samples = _measured_errors(problem, gamma, U, V, lengths, number_budget, time, seed)
        for name in exact:
            curve = Curve.from_samples(samples[name], stream(seed, "along", "bootstrap", name, int(1000 * time)))
            columns = {"quantity": name, "time": flow.time[k], "length": [f"L = {length:,}" for length in lengths]}
            columns |= {**curve.columns(), "exact": exact[name], "control": control[name]}
            sides = {"control": curve / control[name], "near_miss": curve / nearly[name]}
            parts[f"{name}, t = {time:g}"] = Comparison(pd.DataFrame(columns), curve / exact[name], **sides)
    return Comparison.together(parts)


def growth(
    *, problem: InContextRegression, flow: Flow, lengths: Sequence[float], points: int, slope_length: float
) -> Comparison:
    r"""The exact V-gradient error along a flow, over its value at (A*, b*), averaged over queries.

    Where the coupling lambda of the head is above 1/2 the error falls as L^{-rho(lambda)} only, see notebook 02.

    Args:
        problem: the task.
        flow: whose heads are looked at.
        lengths: prompt lengths L, in tokens.
        points: how many of the recorded times, about.
        slope_length: L from which on, to a thousand times as long, the slope is taken at the largest coupling.

    Returns:
        Columns length ("L = 200"), time, coupling, relative.
        measured: the slope of -log error in log L at the time of the largest coupling, over rho(lambda). near miss:
        over 1 / (2 lambda), from the probability that e^{s^2} is above L. control: over 1, the slope at the optimum.
    """

    def error(A, length):
        return np.asarray(mean_value_gradient_error(problem.covariance, problem.query_covariance, A, length).value)

    chosen = np.unique(np.linspace(0, len(flow.time) - 1, points).astype(int))
    couplings = np.array([problem.coupling(A) for A in flow.A])
    relative = np.array([error(flow.A[k], lengths) for k in chosen]) / error(problem.optimum().A, lengths)
    columns = {"time": flow.time[chosen], "coupling": couplings[chosen]}
    tables = [
        pd.DataFrame({"length": f"L = {length:,.0f}", **columns, "relative": values})
        for length, values in zip(lengths, relative.T, strict=True)
    ]
    top, span = int(np.argmax(couplings)), np.array([slope_length, 1000 * slope_length])
    (slope,) = local_slope(span, error(flow.A[top], span))
    predicted = {
        "measured": float(rate_exponent(couplings[top])),
        "near_miss": 1 / (2 * couplings[top]),
        "control": 1.0,
    }
    sides = {side: Estimate.exact(slope / exponent) for side, exponent in predicted.items()}
    return Comparison(pd.concat(tables, ignore_index=True), **sides)


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


def _errors_on_a_sphere(problem: InContextRegression, gamma, U, V, lengths) -> dict[str, np.ndarray]:
    """The same for the 2 d queries +- sqrt(d) Sigma_q^{1/2} e_k, whose covariance is Sigma_q, too."""
    d, L = problem.dimension, np.asarray(lengths, float)
    queries = [np.append(np.sqrt(d) * column, 0.0) for column in problem.query_root.T]
    return {
        "V-gradient": np.mean([value_gradient_error(gamma, query, U, L) for query in queries], 0),
        "U-gradient": np.mean([score_gradient_error(gamma, query, U, V, L) for query in queries], 0),
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
