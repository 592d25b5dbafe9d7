"""Experiments of notebook 03: does the closeness of softmax to its limit survive training? One function a section."""

import numpy as np
import pandas as pd
from scipy.integrate import cumulative_trapezoid
from scipy.optimize import minimize_scalar

from lib.experiments.settings import regression
from lib.finite_prompt import local_slope, mean_score_gradient_error, mean_value_gradient_error
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve, join
from lib.prompts.errors import prompt_errors
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.flow import Flow, gradient_flow
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian
from lib.regression.task import InContextRegression
from lib.tokens.families import Gaussian


def flows(problem: InContextRegression, lengths: list[int], alpha: float, horizon: float, points: int = 120):
    """The infinite flow and the softmax flow at each length, from the same balanced start, at the same times.

    Returns {None: infinite flow, L: softmax flow}.
    """
    start, times = problem.balanced_init(alpha), np.append(0, np.geomspace(min(1e-2, horizon / 100), horizon, points))
    found: dict[int | None, Flow] = {None: gradient_flow(problem, "infinite", start, horizon, times=times)}
    for length in lengths:
        found[length] = gradient_flow(problem, "softmax", start, horizon, length=length, times=times, rtol=1e-8)
    return found


def distances(found: dict) -> pd.DataFrame:
    """Distance of each softmax flow from the infinite one in (A, b), its largest value so far, and both risks."""
    limit, tables = found[None], []
    for length, flow in found.items():
        if length is None:
            continue
        gap = np.sqrt(((flow.A - limit.A) ** 2).sum((1, 2)) + (flow.b - limit.b) ** 2)
        columns = {"length": length, "time": flow.time, "distance": gap, "largest": np.maximum.accumulate(gap)}
        columns |= {"risk": flow.risk, "limit risk": limit.risk, "imbalance": flow.imbalance}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def largest_distances(table: pd.DataFrame, horizons: list[float]) -> pd.DataFrame:
    """The sup over [0, T] of the distance for each T and L, with the slope in L from one length to the next."""
    rows = []
    for horizon in horizons:
        sup = table[table["time"] <= horizon * (1 + 1e-12)].groupby("length")["distance"].max()
        slopes = np.append(local_slope(sup.index.to_numpy(float), sup.to_numpy()), np.nan)
        rows.append(pd.DataFrame({"T": f"T = {horizon:g}", "length": sup.index, "sup": sup.values, "slope": slopes}))
    return pd.concat(rows, ignore_index=True)


def gronwall(problem: InContextRegression, found: dict) -> pd.DataFrame:
    """A Gronwall envelope of the distance of each softmax flow from the infinite one.

    With eps(t) = |grad R_L - grad R_inf| on the softmax flow and mu(t) the largest eigenvalue of minus the Hessian of
    R_inf on the segment between the two flows (sampled at five points, ends included), the distance D satisfies
    D' <= mu D + eps, so it stays below the solution of D' = mu D + eps. The control takes a tenth of eps and no mu.

    Returns columns length, time, distance, envelope, control.
    """
    limit, tables = found[None], []
    for length, flow in found.items():
        if length is None:
            continue
        eps, mu = np.empty(len(flow.time)), np.empty(len(flow.time))
        for k in range(len(flow.time)):
            _, change = problem.excess_and_gradient("softmax", BlockHead(flow.A[k], flow.b[k]), length)
            eps[k] = np.hypot(np.linalg.norm(change.A), change.b)
            segment = [(1 - x) * np.append(flow.A[k], flow.b[k]) + x * np.append(limit.A[k], limit.b[k])
                       for x in np.linspace(0, 1, 5)]  # fmt: skip
            mu[k] = max(
                -np.linalg.eigvalsh(infinite_hessian(problem, BlockHead.from_flat(point)))[0] for point in segment
            )
        gap = np.sqrt(((flow.A - limit.A) ** 2).sum((1, 2)) + (flow.b - limit.b) ** 2)
        columns = {"length": f"L = {length:,}", "time": flow.time, "distance": gap}
        columns |= {"envelope": _envelope(flow.time, eps, mu), "control": _envelope(flow.time, eps / 10, 0 * mu)}
        tables.append(pd.DataFrame(columns)[gap > 1e-5])  # the integrators are good to about 1e-7
    return pd.concat(tables, ignore_index=True)


def _envelope(time, eps, mu) -> np.ndarray:
    """Solution of D' = mu D + eps, D(0) = 0, by the trapezoid rule."""
    growth = np.append(0, cumulative_trapezoid(mu, time))
    return np.exp(growth) * np.append(0, cumulative_trapezoid(eps * np.exp(-growth), time))


def gradients_along(problem: InContextRegression, flow: Flow, times: list[float], lengths, budget: int, seed: int):
    """Errors of the V- and U-gradient along training, averaged over queries: from prompts, and exact.

    At each time the head's tokens are those of one task w: Gaussian in dimension d + 1. The exact averages are those
    of notebook 02. Returns a table and the joined curves measured / exact and measured / (exact without any tilt).
    """
    d = problem.dimension
    w = np.sqrt(problem.task_variance) * stream(seed, "task").standard_normal(d)
    Sw = problem.covariance @ w
    gamma = np.block([[problem.covariance, Sw[:, None]], [Sw[None], np.array([[w @ Sw + problem.noise_std**2]])]])
    query_covariance = np.pad(problem.query_covariance, (0, 1))
    tables, ratios, untilted = [], [], []
    for time in times:
        k = int(np.argmin(np.abs(flow.time - time)))
        U, V = np.pad(flow.A[k], (0, 1)), np.pad([[flow.b[k]]], ((0, 0), (d, 0)))
        exact = {
            "V-gradient": mean_value_gradient_error(gamma, query_covariance, U, lengths).value,
            "U-gradient": mean_score_gradient_error(gamma, query_covariance, U, V, lengths).value,
        }
        flat = {
            "V-gradient": mean_value_gradient_error(gamma, query_covariance, 0 * U, lengths).value,
            "U-gradient": mean_score_gradient_error(gamma, query_covariance, 0 * U, V, lengths).value,
        }
        samples = {name: [] for name in exact}
        for length in lengths:
            rng = stream(seed, "along", int(1000 * time), length)
            count = affordable_prompts(length, d + 1, budget, most=100_000)
            queries = np.pad(rng.standard_normal((count, d)) @ problem.query_root, ((0, 0), (0, 1)))
            errors = prompt_errors(Gaussian(np.zeros(d + 1), gamma), queries, U, V, length, count, rng)
            samples["V-gradient"].append(errors[:, 1])
            samples["U-gradient"].append(errors[:, 2])
        for name in exact:
            curve = Curve.from_samples(samples[name], stream(seed, "along", "bootstrap", name, int(1000 * time)))
            low, high = curve.simultaneous()
            columns = {"quantity": name, "time": flow.time[k], "length": [f"L = {x:,}" for x in lengths]}
            columns |= {"measured": curve.mean, "low": low, "high": high, "exact": exact[name], "untilted": flat[name]}
            tables.append(pd.DataFrame(columns))
            ratios.append(curve / exact[name])
            untilted.append(curve / flat[name])
    return pd.concat(tables, ignore_index=True), join(ratios), join(untilted)


def growth_of_gradient_errors(problem: InContextRegression, flow: Flow, length: int, points: int) -> pd.DataFrame:
    """The exact V-gradient error along a flow, over its value at the infinite optimum, averaged over queries."""

    def error(A):
        return float(mean_value_gradient_error(problem.covariance, problem.query_covariance, A, length).value)

    chosen = np.unique(np.linspace(0, len(flow.time) - 1, points).astype(int))
    at_star = error(problem.optimum().A)
    return pd.DataFrame({"time": flow.time[chosen], "relative": [error(flow.A[k]) / at_star for k in chosen]})


def risk_limits(settings: dict[str, InContextRegression], lengths: list[float]) -> pd.DataFrame:
    """lim_t R_L, the risk of the best softmax head of each length, with its slope to the next length."""
    tables = []
    for name, problem in settings.items():
        risks = np.array([float(problem.softmax_risk(*best_softmax(problem, x), x).value) for x in lengths])
        star = problem.softmax_risk(*problem.optimum(), lengths).value
        columns = {"setting": name, "length": lengths, "risk": risks, "at U*": star}
        columns |= {"slope": np.append(local_slope(lengths, risks), np.nan)}
        columns |= {"slope at U*": np.append(local_slope(lengths, star), np.nan)}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def lengths_for(settings: dict[str, InContextRegression], limits: pd.DataFrame, tolerances: list[float]):
    """L(eps): the prompt length at which lim_t R_L = eps, to about 0.1 %, from the table of the limits.

    The risk is nearly proportional to 1 / L: a step from the last row of the table divides the error by ten and more.
    """
    rows = []
    for name, problem in settings.items():
        row, known = {"setting": name}, limits[limits["setting"] == name].iloc[-1]
        for eps in tolerances:
            length, ratio = known["length"], known["risk"] / eps
            for _ in range(6):
                length = max(np.ceil(length * ratio), 2.0)
                ratio = problem.risk_and_gradient("softmax", *best_softmax(problem, length), length)[0] / eps
                if abs(ratio - 1) < 1e-3:
                    break
            row[f"ε = {eps:g}"] = int(length)
        rows.append(row)
    return pd.DataFrame(rows).set_index("setting")


def order_of_limits(dim: int, noise_std: float, lengths: list[float], horizons: list[float], alpha: float):
    """d omega^2 of isotropic heads A = omega I: flows stopped at T, for each L, and the minimizers.

    Returns a table (length, horizon, value; horizon infinite for the minimizer), the limit of the minimizers as L grows
    (of the constant of L R_L) and the end of the infinite flow, sqrt(d).
    """
    problem, rows = InContextRegression(np.eye(dim), noise_std), []
    for length in lengths:
        flow = gradient_flow(
            problem, "softmax", problem.balanced_init(alpha), max(horizons), length=length, times=np.array(horizons)
        )
        for time, A in zip(flow.time, flow.A, strict=True):
            rows.append({"length": length, "horizon": f"T = {time:g}", "value": dim * A[0, 0] ** 2})
        rows.append({"length": length, "horizon": "T = ∞", "value": dim * best_softmax(problem, length).A[0, 0] ** 2})

    def constant(log_omega):
        omega = np.exp(log_omega)
        return problem.long_prompt_constant(omega * np.eye(dim), 1 / omega)

    found = minimize_scalar(constant, bounds=(np.log(0.05), np.log(0.7)), method="bounded", options={"xatol": 1e-10})
    table = pd.DataFrame(rows).sort_values(["horizon", "length"], ignore_index=True)
    return table, dim * float(np.exp(found.x)) ** 2, float(np.sqrt(dim))


def balance_of_linear(problem: InContextRegression, lengths: list[int], alpha: float, horizon: float) -> float:
    """Largest change of |A|_F^2 - b^2 along the flows of linear attention at these lengths."""
    start = problem.balanced_init(alpha)
    runs = [gradient_flow(problem, "linear", start, horizon, length=x) for x in lengths]
    return max(float(np.abs(run.imbalance - run.imbalance[0]).max()) for run in runs)


def relative_distance_to_best(problem: InContextRegression, length: float) -> float:
    """Distance of the best softmax head of a length from the infinite optimum, relative to the size of the latter."""
    best, star = best_softmax(problem, length), problem.optimum()
    gap = np.hypot(np.linalg.norm(best.A - star.A), best.b - star.b)
    return float(gap / np.hypot(np.linalg.norm(star.A), star.b))


def standard_settings(dims: list[int], noise_std: float) -> dict[str, InContextRegression]:
    """Dimensions, a condition number and noise levels for the limit of the risk; dimension 2 is the control's."""
    return {f"d = {d}": regression("isotropic", d, noise_std) for d in sorted({2, *dims})} | {
        "d = 5, condition 10": regression("condition(10)", 5, noise_std),
        "d = 5, no noise": regression("isotropic", 5, 0.0),
        "d = 5, noise 1": regression("isotropic", 5, 1.0),
    }
