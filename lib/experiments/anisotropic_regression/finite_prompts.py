"""Experiments of notebook 04 on finite prompts: risks of attention and of ridge, exact and on raw prompts."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import LogNorm

from lib.experiments.anisotropic_regression.infinite_flow import learned
from lib.finite_prompt import local_slope, rate_exponent
from lib.notebook.comparison import Comparison
from lib.notebook.figures import WIDTH
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.head import BlockHead
from lib.regression.predictors import ridge_risk, risks_on_prompts, softmax_head
from lib.regression.task import InContextRegression

NUMBERS_AT_ONCE = 2**21  # of raw prompts
CRITICAL_DIMENSION = 4  # where the coupling 1 / sqrt(d) is 1/2


def risk_curves(*, problem: InContextRegression, lengths: list[int], draws: int, seed: int) -> Comparison:
    """Risks against prompt length: softmax and linear attention, each at (A*, b*) and at its own best head, and ridge.

    Those of attention are exact. Ridge with the noise level is Bayes-optimal; its risk is a mean over draws of X'X.

    Args:
        problem: the regression.
        lengths: prompt lengths L.
        draws: of X'X a length.
        seed: of these.

    Returns:
        A row a predictor and length: predictor, length, risk. Nothing is judged.
    """
    star, rows = problem.optimum(), []
    for length in lengths:
        rng = stream(seed, "ridge", int(length))
        risks = {
            "softmax at (A*, b*)": float(problem.softmax_risk(*star, length).value),
            "softmax, best": float(problem.softmax_risk(*best_softmax(problem, length), length).value),
            "linear at (A*, b*)": problem.linear_risk(*star, length),
            "linear, best": problem.linear_risk(*best_linear(problem, length), length),
            "ridge (Bayes)": ridge_risk(problem, int(length), draws, rng).value,
        }
        rows += [{"predictor": name, "length": length, "risk": float(risk)} for name, risk in risks.items()]
    return Comparison(pd.DataFrame(rows).sort_values(["predictor", "length"], ignore_index=True))


def risk_on_prompts(
    *, problem: InContextRegression, head: BlockHead, lengths: list[int], number_budget: int, seed: int
) -> Comparison:
    """The softmax risk of a head on raw prompts, over the exact one.

    Args:
        problem: the regression.
        head: (A, b).
        lengths: prompt lengths L.
        number_budget: random numbers a length; at least 1000 prompts, at most 10^6.
        seed: of the prompts.

    Returns:
        A row a length: length, prompts, measured, low, high, exact.
        measured: the curve over the exact risk. control: over that of linear attention.
    """
    samples, numbers_each = [], problem.dimension + 1
    for length in lengths:
        count = affordable_prompts(length, numbers_each, number_budget, most=10**6, fewest=1000)
        rng, losses = stream(seed, "raw prompts", length), []
        for part in np.array_split(np.arange(count), 1 + count * length * numbers_each // NUMBERS_AT_ONCE):
            tokens, query, target = problem.sample(len(part), length, rng)
            losses.append((softmax_head(*head)(tokens, query) - target) ** 2 / 2)
        samples.append(np.concatenate(losses))
    curve = Curve.from_samples(samples, stream(seed, "raw prompts", "bootstrap"))
    exact, linear = problem.softmax_risk(*head, lengths).value, problem.linear_risk(*head, lengths)
    return Comparison.of_curve(curve, exact, linear, length=lengths, prompts=[len(x) for x in samples])


def critical_dimension(*, dims: list[int], lengths: list[float], noise_std: float) -> Comparison:
    """Local slopes of the softmax risk at (A*, b*) for isotropic x, over the decade from each length.

    The coupling there is d^{-1/2}: at most 1/2, the threshold of notebook 02, from dimension 4 on.

    Args:
        dims: dimensions d of x.
        lengths: prompt lengths L at which the decades begin.
        noise_std: sigma_eps.

    Returns:
        A row a dimension and length: dimension, length, slope, exponent (rho of the coupling).
        measured: the slope at the largest length less the exponent, the worst of all dimensions but the critical one,
        which converges too slowly. control: less 1.
    """
    rows, ends = [], np.ravel([[x, 10 * x] for x in lengths])
    for d in dims:
        problem = InContextRegression(np.eye(d), noise_std)
        slopes = local_slope(ends, problem.softmax_risk(*problem.optimum(), ends).value)[::2]
        exponent = float(rate_exponent(problem.coupling(problem.optimum().A)))
        rows += [
            {"dimension": d, "length": x, "slope": slope, "exponent": exponent}
            for x, slope in zip(lengths, slopes, strict=True)
        ]
    table = pd.DataFrame(rows)
    last = table[(table["length"] == max(lengths)) & (table["dimension"] != CRITICAL_DIMENSION)]
    gaps = (last["slope"] - limit for limit in (last["exponent"], 1))
    return Comparison(table, *(Intervals.exact(gap) for gap in gaps))


def spectra(*, problem: InContextRegression, lengths: list[int], draws: int, seed: int) -> Comparison:
    """How far each eigendirection is learned at finite L: the best heads against ridge's shrinkage.

    For ridge it is the diagonal of E[(X'X + k I)^{-1} X'X], k the noise variance over the task variance.

    Args:
        problem: the regression.
        lengths: prompt lengths L.
        draws: of X a length, for ridge.
        seed: of these.

    Returns:
        A row a length, predictor and direction: predictor, length (its name), eigenvalue (gamma_i), learned, and
        ``penalty``, the ridge penalty that would shrink the direction as much: L gamma_i (1 / learned - 1).
        Nothing is judged.
    """
    gamma, vectors = np.linalg.eigh(problem.covariance)
    tables = []
    for length in lengths:
        heads = {"softmax": best_softmax(problem, length), "linear": best_linear(problem, length)}
        fractions = {name: learned(problem, *head) for name, head in heads.items()}
        fractions["ridge"] = _ridge_shrinkage(problem, vectors, length, draws, stream(seed, "spectra", length))
        for name, values in fractions.items():
            columns = {"predictor": name, "length": f"L = {length:,}", "eigenvalue": gamma, "learned": values}
            tables.append(pd.DataFrame(columns | {"penalty": length * gamma * (1 - values) / values}))
    return Comparison(pd.concat(tables, ignore_index=True))


def _ridge_shrinkage(problem: InContextRegression, vectors: np.ndarray, length: int, draws: int, rng) -> np.ndarray:
    x = rng.standard_normal((draws, length, problem.dimension)) @ problem.covariance_root @ vectors
    gram = x.mT @ x
    penalty = problem.noise_std**2 / problem.task_variance * np.eye(problem.dimension)
    return np.einsum("nii->ni", np.linalg.solve(gram + penalty, gram)).mean(0)


def covariate_shift(*, problems: dict[str, InContextRegression], length: int, n_prompts: int, seed: int) -> Comparison:
    """A head trained for each covariance, the best softmax head of the length, used on every other.

    Args:
        problems: regressions by name, at least two.
        length: prompt length L.
        n_prompts: raw prompts that check the exact risk of the first head on the second covariance.
        seed: of these.

    Returns:
        A row a pair: trained on, used on, risk (exact), and ``relative``, over that of predicting zero, which is
        sigma_w^2 tr(Sigma) / 2 on the covariance of use.
        measured: the first head's risk on prompts of the second covariance, over the exact one. control: over its risk
        on the covariance of its training.
    """
    heads = {name: best_softmax(problem, length) for name, problem in problems.items()}
    rows = []
    for used, problem in problems.items():
        zero = problem.task_variance * np.trace(problem.query_covariance) / 2
        for trained, head in heads.items():
            risk = float(problem.softmax_risk(*head, length).value)
            rows.append({"trained on": trained, "used on": used, "risk": risk, "relative": risk / zero})
    table = pd.DataFrame(rows)

    own, other, *_ = problems
    predictors, rng = {"softmax": softmax_head(*heads[own])}, stream(seed, "shift", length)
    measured = risks_on_prompts(problems[other], length, n_prompts, rng, predictors)["softmax"]
    risks = table[table["trained on"] == own].set_index("used on")["risk"]
    return Comparison(table, measured.over(risks[other]), measured.over(risks[own]))


def shift_figure(table: pd.DataFrame) -> plt.Figure:
    """The relative risks of :func:`covariate_shift` as a heat map: trained on (rows) against used on (columns)."""
    grid = table.pivot(index="trained on", columns="used on", values="relative")
    order = list(dict.fromkeys(table["used on"]))
    figure, axis = plt.subplots(figsize=(WIDTH, 3.8))
    label = {"label": "risk / risk of predicting zero"}
    sns.heatmap(grid.loc[order, order], annot=True, fmt=".2f", cmap="mako_r", norm=LogNorm(), ax=axis, cbar_kws=label)
    axis.grid(False)
    return figure
