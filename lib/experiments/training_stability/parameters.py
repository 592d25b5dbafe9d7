"""Where the parameters go: they depend on the order of two limits, and only linear attention keeps its balance."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

from lib.experiments.training_stability.flows import Trajectories
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.regression.best_heads import best_softmax
from lib.regression.flow import gradient_flow
from lib.regression.task import InContextRegression

OMEGA = (0.05, 0.7)  # where the minimizer of lim L R_L is looked for
FOREVER = "t = ∞"
HEAD_ERROR = 1e-7  # of the best head, whose gradient is about 1e-10


def order_of_limits(
    *, dim: int, noise_std: float, lengths: Sequence[float], horizons: Sequence[float], alpha: float
) -> Comparison:
    """d omega^2 of isotropic heads A = omega I: of flows stopped at t_end, for each L, and of the best heads.

    Args:
        dim: dimension d of x.
        noise_std: standard deviation of the label noise.
        lengths: prompt lengths L, in tokens.
        horizons: flow times t_end, increasing.
        alpha: size of the balanced start.

    Returns:
        Columns length, horizon ("t = 10", or "t = ∞" for the best head), value; and, the same in every row, limit, the
        minimizer of lim_L L R_L, and infinite, the end sqrt(d) of the infinite flow.
        measured: the best head at the largest length over the limit. near miss: over the minimizer of the same constant
        with e^{E s^2} in place of E e^{s^2}. control: the infinite flow over the limit.
    """
    problem, rows = InContextRegression(np.eye(dim), noise_std), []
    start, times = problem.balanced_init(alpha), np.array(horizons)
    for length in lengths:
        flow = gradient_flow(problem, "softmax", start, max(horizons), length=length, times=times)
        for time, A in zip(flow.time, flow.A, strict=True):
            rows.append({"length": length, "horizon": f"t = {time:g}", "value": dim * A[0, 0] ** 2})
        rows.append({"length": length, "horizon": FOREVER, "value": dim * best_softmax(problem, length).A[0, 0] ** 2})
    limit, infinite = dim * _best_omega(problem) ** 2, float(np.sqrt(dim))
    table = pd.DataFrame(rows).sort_values(["horizon", "length"], ignore_index=True)
    best = table[table["horizon"] == FOREVER]["value"].iloc[-1]
    table = table.assign(limit=limit, infinite=infinite)
    nearly = dim * _best_omega(problem, rough=True) ** 2
    sides = {"control": Estimate.exact(infinite / limit), "near_miss": Estimate.exact(best / nearly)}
    return Comparison(table, Estimate.exact(best / limit, HEAD_ERROR), **sides)


def balance(
    *, problem: InContextRegression, lengths: Sequence[int], alpha: float, t_end: float, softmax: Trajectories
) -> Comparison:
    """Largest change of |A|_F^2 - b^2 along flows of linear attention.

    Args:
        problem: the task.
        lengths: prompt lengths L of linear attention, in tokens.
        alpha: size of the balanced start.
        t_end: flow time at which linear attention ends.
        softmax: flows of softmax attention.

    Returns:
        Columns length, change. measured: the largest change, for every length. near miss: softmax at its longest
        prompt. control: softmax at its shortest.
    """
    start = problem.balanced_init(alpha)
    runs = [gradient_flow(problem, "linear", start, t_end, length=length) for length in lengths]
    changes = [float(np.abs(run.imbalance - run.imbalance[0]).max()) for run in runs]
    near_miss, control = (
        Estimate.exact(np.abs(softmax.softmax[which(softmax.softmax)].imbalance).max()) for which in (max, min)
    )
    table = pd.DataFrame({"length": lengths, "change": changes})
    return Comparison(table, Intervals.exact(changes), control, near_miss=near_miss)


def _best_omega(problem: InContextRegression, rough: bool = False) -> float:
    """The omega of the head (omega I, 1 / omega) with the least lim_L L R_L; rough: with e^{E s^2} for E e^{s^2}."""
    d = problem.dimension

    def constant(log_omega):
        omega = np.exp(log_omega)
        exact = problem.long_prompt_constant(omega * np.eye(d), 1 / omega)
        return exact * np.exp(d * omega**2) * (1 - 2 * omega**2) ** (d / 2) if rough else exact

    found = minimize_scalar(constant, bounds=tuple(np.log(OMEGA)), method="bounded", options={"xatol": 1e-10})
    return float(np.exp(found.x))
