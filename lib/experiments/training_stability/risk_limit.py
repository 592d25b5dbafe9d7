"""The risk at the end of training: it vanishes as 1/L, and says how long a prompt must be."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.experiments.settings import regression
from lib.finite_prompt import local_slope
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.regression.best_heads import best_softmax
from lib.regression.task import InContextRegression

SLOW = "d = 2"  # the setting in which (A*, b*) has a slower rate than 1/L
STEPS, CLOSE = 6, 1e-3  # of the search for a prompt length, and where it ends


def standard_settings(*, dims: Sequence[int], noise_std: float) -> dict[str, InContextRegression]:
    """Dimensions, a condition number and noise levels, by name; always with dimension 2, which is the control's."""
    return {f"d = {d}": regression("isotropic", d, noise_std) for d in sorted({2, *dims})} | {
        "d = 5, condition 10": regression("condition(10)", 5, noise_std),
        "d = 5, no noise": regression("isotropic", 5, 0.0),
        "d = 5, noise 1": regression("isotropic", 5, 1.0),
    }


def risk_limits(*, settings: dict[str, InContextRegression], lengths: Sequence[float]) -> Comparison:
    """lim_t R_L, the risk of the best softmax head of each length, with its slope to the next length.

    Args:
        settings: regressions by name; "d = 2" must be among them.
        lengths: prompt lengths L, in tokens, increasing; at least 2.

    Returns:
        Columns setting, length; risk, and "at optimum", that of (A*, b*); slope and "slope at optimum" of -log risk in
        log L to the next length (the last has none).
        measured: the worst slope at the largest lengths. control: that of (A*, b*) in dimension 2.
    """
    tables = []
    for name, problem in settings.items():
        risks = np.array([float(problem.softmax_risk(*best_softmax(problem, L), L).value) for L in lengths])
        at_optimum = problem.softmax_risk(*problem.optimum(), lengths).value
        columns = {"setting": name, "length": lengths, "risk": risks, "at optimum": at_optimum}
        columns |= {"slope": np.append(local_slope(lengths, risks), np.nan)}
        columns |= {"slope at optimum": np.append(local_slope(lengths, at_optimum), np.nan)}
        tables.append(pd.DataFrame(columns))
    table = pd.concat(tables, ignore_index=True)
    last = table.dropna().groupby("setting").last()
    return Comparison(table, Intervals.exact(last["slope"]), Estimate.exact(last.loc[SLOW, "slope at optimum"]))


def lengths_for(
    *, settings: dict[str, InContextRegression], limits: pd.DataFrame, tolerances: Sequence[float]
) -> Comparison:
    """L(eps): the prompt length at which lim_t R_L = eps, to about 0.1 %, from the table of the limits.

    The risk is nearly proportional to 1/L: a step from the last row of the table divides the error by ten and more.

    Args:
        settings: regressions by name.
        limits: the table of :func:`risk_limits` of the same settings.
        tolerances: risks eps.

    Returns:
        A row a setting: its name, and the length in tokens for each "ε = 0.01". Nothing is judged.
    """
    rows = []
    for name, problem in settings.items():
        row, known = {"setting": name}, limits[limits["setting"] == name].iloc[-1]
        for eps in tolerances:
            length, ratio = known["length"], known["risk"] / eps
            for _ in range(STEPS):
                length = max(np.ceil(length * ratio), 2.0)
                ratio = problem.risk_and_gradient("softmax", *best_softmax(problem, length), length)[0] / eps
                if abs(ratio - 1) < CLOSE:
                    break
            row[f"ε = {eps:g}"] = int(length)
        rows.append(row)
    return Comparison(pd.DataFrame(rows))
