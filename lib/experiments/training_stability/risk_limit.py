"""The risk at the end of training: it vanishes as 1/L, and says how long a prompt must be."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

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
    r"""lim_t R_L, the risk of the best softmax head of each length, against its derived 1/L law.

    With R_L = R_inf + C / L + ... the best heads tend to one without infinite-prompt risk, A = Sigma^{-1} / b, of the
    least C(Sigma^{-1} / b, b) over b (C is :meth:`InContextRegression.long_prompt_constant`): L lim_t R_L -> min_b C.

    Args:
        settings: regressions by name; "d = 2" must be among them.
        lengths: prompt lengths L, in tokens, increasing; at least 2.

    Returns:
        Columns setting, length; risk, and "at optimum", that of (A*, b*); constant, min_b C; slope and "slope at
        optimum" of -log risk in log L to the next length (the last has none).
        measured: L lim_t R_L / min_b C at the largest L, in every setting. near miss: over the constant with the
        variance of the scores averaged before its exponential. control: the same of (A*, b*) in dimension 2.
    """
    tables, measured, nearly, errors = [], [], [], []
    for name, problem in settings.items():
        found = [problem.softmax_risk(*best_softmax(problem, L), L) for L in lengths]
        risks, at_optimum = np.array([x.value for x in found]), problem.softmax_risk(*problem.optimum(), lengths).value
        constant, rough = least_constant(problem)
        columns = {"setting": name, "length": lengths, "risk": risks, "at optimum": at_optimum, "constant": constant}
        columns |= {"slope": np.append(local_slope(lengths, risks), np.nan)}
        columns |= {"slope at optimum": np.append(local_slope(lengths, at_optimum), np.nan)}
        tables.append(pd.DataFrame(columns))
        measured.append(lengths[-1] * risks[-1] / constant)
        nearly.append(lengths[-1] * risks[-1] / rough)
        errors.append(lengths[-1] * found[-1].numerical_error / constant)
    table = pd.concat(tables, ignore_index=True)
    slow = table[table["setting"] == SLOW].iloc[-1]
    control = Estimate.exact(slow["length"] * slow["at optimum"] / slow["constant"])
    error = float(np.max(errors))
    return Comparison(table, Intervals.exact(measured, error), control, near_miss=Intervals.exact(nearly, error))


def least_constant(problem: InContextRegression) -> tuple[float, float]:
    r"""min_b C(Sigma^{-1} / b, b), and the same with e^{E s^2} in place of E e^{s^2}, which is wrong by little.

    Both for queries of the prompt's covariance, where M = I / b^2: C is finite for b^2 > 2, and has the factor
    E e^{s^2} = (1 - 2 / b^2)^{-d/2}, while E s^2 = d / b^2.
    """
    inverse, d = np.linalg.inv(problem.covariance), problem.dimension

    def constant(log_b: float, rough: bool) -> float:
        b = np.exp(log_b)
        exact = problem.long_prompt_constant(inverse / b, b)
        return exact * np.exp(d / b**2) * (1 - 2 / b**2) ** (d / 2) if rough else exact

    bounds = 0.5 * np.log(2) + 1e-6, 0.5 * np.log(2) + 3.0
    options = {"bounds": bounds, "method": "bounded", "options": {"xatol": 1e-9}}
    exact, rough = (minimize_scalar(constant, args=(rough,), **options) for rough in (False, True))
    return float(exact.fun), float(rough.fun)


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
