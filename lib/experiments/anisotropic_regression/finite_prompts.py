"""Experiments of notebook 04 on finite prompts: risks of attention and of ridge, exact and on raw prompts."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import LogNorm
from scipy.optimize import minimize_scalar

from lib.experiments.anisotropic_regression.infinite_flow import learned
from lib.finite_prompt import decades, rate_exponent, slopes_over_decades
from lib.finite_prompt.weight_table import weights_excess
from lib.notebook.comparison import Comparison
from lib.notebook.figures import WIDTH
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.regression import softmax_risk
from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.head import BlockHead
from lib.regression.predictors import ridge_risk, risks_on_prompts, softmax_head
from lib.regression.task import InContextRegression

NUMBERS_AT_ONCE = 2**21  # of raw prompts
CRITICAL_DIMENSION = 4  # where the coupling 1 / sqrt(d) is 1/2
RELATIVE = 1e-8  # precision of the integrals


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


def price_constant(traces: float, dim: int, coupling: float, dim_in_power: int | None = None) -> float:
    r"""Limit of L times the risk of a softmax head with b Sigma A = I, over that of linear attention.

        (1 - 2 lambda)^{-d/2} { t / lambda + 1 / (1 - 2 lambda) } / (d t + 1),
        t = 1 + sigma_eps^2 / (sigma_w^2 tr Sigma)

    Args:
        traces: t. dim: d. coupling: lambda of the queries, below 1/2: A = lambda^{1/2} Sigma^{-1}.
        dim_in_power: another d in the exponent.

    Source: notebook 04, from :meth:`lib.regression.task.InContextRegression.long_prompt_constant`.
    """
    return float(np.exp(_log_price(traces, dim, coupling, dim_in_power)))


def _log_price(traces: float, dim: int, coupling: float, dim_in_power: int | None = None) -> float:
    grown = 1 / (1 - 2 * coupling)
    return (dim_in_power or dim) / 2 * np.log(grown) + np.log((traces / coupling + grown) / (dim * traces + 1))


def price_of_softmax(traces: float, dim: int, dim_in_power: int | None = None) -> float:
    """The smallest :func:`price_constant` over the coupling: how much larger the risk of the best softmax head is.

    It depends on the covariance through t alone, and tends to e in high dimension.
    """
    # the smallest is at a coupling of order 1 / d: sought on a logarithmic scale
    found = minimize_scalar(
        lambda log_coupling: _log_price(traces, dim, np.exp(log_coupling), dim_in_power),
        bounds=(np.log(1e-3 / dim), np.log(0.5 - 1e-9)),
        method="bounded",
    )
    return float(np.exp(found.fun))


def softmax_over_linear(*, problems: dict[str, InContextRegression], length: float) -> Comparison:
    """Risk of the best softmax head over that of the best linear one, on a very long prompt, against its limit.

    Args:
        problems: regressions by name.
        length: prompt length L.

    Returns:
        A row a problem: covariance, ratio (of the exact risks), limit, see :func:`price_of_softmax`; "no noise", the
        limit without the noise of the labels; "d + 1", with d + 1 in place of d in the exponent.
        measured: the ratio over the limit. near miss: over that without noise. control: the ratio itself, as if softmax
        approached linear attention.
    """
    rows, errors = [], []
    for name, problem in problems.items():
        risk = problem.softmax_risk(*best_softmax(problem, length), length)
        ratio = float(risk.value) / problem.linear_risk(*best_linear(problem, length), length)
        traces, d = problem.token_variance / np.trace(problem.covariance), problem.dimension
        row = {"covariance": name, "ratio": ratio, "limit": price_of_softmax(traces, d)}
        rows.append(row | {"no noise": price_of_softmax(1.0, d), "d + 1": price_of_softmax(traces, d, d + 1)})
        errors.append(float(risk.numerical_error / risk.value))
    table = pd.DataFrame(rows)
    sides = (table["ratio"] / against for against in (table["limit"], 1.0, table["no noise"]))
    measured, control, near_miss = (Intervals.exact(side, np.array(errors) * side.to_numpy()) for side in sides)
    return Comparison(table, measured, control, near_miss=near_miss)


def at_the_mean_score(problem: InContextRegression, head: BlockHead, lengths) -> np.ndarray:
    """The exact softmax risk with one mistake: the variance of the scores is the same for every query, its mean.

    lengths: prompt lengths, shape (n,). Returns shape (n,).
    """
    A, b = head
    S, Q, L = problem.covariance, problem.query_covariance, np.asarray(lengths, float)
    image = S @ A
    tables = weights_excess(tuple(L), np.sqrt([np.trace(A.T @ image @ Q)]))
    eta, W = (np.ravel(table) + sign / L for table, sign in zip(tables, (1, -1), strict=True))
    squared, crossed = np.trace(image @ Q @ image.T), np.trace(image @ Q)
    twice = b**2 * (problem.token_variance * eta + W * squared) + 2 * b * eta * crossed
    return problem.infinite_risk(*head) + problem.task_variance * twice / 2


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
        measured: the curve over the exact risk. near miss: over :func:`at_the_mean_score`. control: over the risk of
        linear attention. The part "one token less" has the same but for its near miss: over the exact risk at L - 1.
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
    shorter = problem.softmax_risk(*head, np.maximum(np.array(lengths) - 1, 1)).value
    columns = {"length": lengths, "prompts": [len(x) for x in samples]}
    wrong, less = (
        Comparison.of_curve(curve, exact, linear, nearly, **columns)
        for nearly in (at_the_mean_score(problem, head, lengths), shorter)
    )
    return Comparison(wrong.table, wrong.measured, wrong.control, {"one token less": less}, wrong.near_miss)


def log_power(dim: int) -> float:
    """p of the risk L^{-rho} (log L)^p of softmax at (A*, b*) for isotropic x.

    d / 2 below d = 4, (d + 2) / 2 at it, 0 above. Source: heuristic, notebook 04.
    """
    return dim / 2 if dim < CRITICAL_DIMENSION else (dim + 2) / 2 if dim == CRITICAL_DIMENSION else 0.0


def critical_dimension(*, dims: list[int], lengths: list[float], noise_std: float) -> Comparison:
    """Local slopes of the softmax risk at (A*, b*) for isotropic x, over the decade from each length.

    The coupling there is d^{-1/2}: at most 1/2, the threshold of notebook 02, from dimension 4 on. The derived slope is
    that of L^{-rho} (log L)^p between the same two lengths.

    Args:
        dims: dimensions d of x.
        lengths: prompt lengths L at which the decades begin.
        noise_std: sigma_eps.

    Returns:
        A row a dimension and length: dimension, length, slope, exponent (rho of the coupling), derived (see
        :func:`log_power`).
        measured: the slope at the largest length less the derived one, in every dimension. near miss: less the
        exponent, without the logarithm. control: less 1. The intervals are the errors of the integrals.
    """
    rows, ends = [], decades(lengths)
    for d in dims:
        problem = InContextRegression(np.eye(d), noise_std)
        risk = softmax_risk.excess(problem, problem.optimum(), ends, RELATIVE)  # the infinite risk there is exactly 0
        slopes = slopes_over_decades(ends, risk.value)
        errors = (risk.numerical_error / risk.value)[::2] + (risk.numerical_error / risk.value)[1::2]
        exponent = float(rate_exponent(problem.coupling(problem.optimum().A)))
        for x, slope, error in zip(lengths, slopes, errors / np.log(10), strict=True):
            derived = exponent - log_power(d) * np.log10(np.log(10 * x) / np.log(x))
            row = {"dimension": d, "length": x, "slope": slope, "exponent": exponent, "derived": derived}
            rows.append(row | {"error": error})
    table = pd.DataFrame(rows)
    last = table[table["length"] == max(lengths)]
    gaps = (last["slope"] - limit for limit in (last["derived"], 1, last["exponent"]))
    measured, control, near_miss = (Intervals.exact(gap, last["error"].to_numpy()) for gap in gaps)
    return Comparison(table.drop(columns="error"), measured, control, near_miss=near_miss)


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
        measured: the first head's risk on prompts of the second covariance, over the exact one. near miss: over
        :func:`at_the_mean_score`. control: over its risk on the covariance of its training.
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
    (nearly,) = at_the_mean_score(problems[other], heads[own], [length])
    over = (measured.over(float(risk)) for risk in (risks[other], risks[own], nearly))
    found, control, near_miss = over
    return Comparison(table, found, control, near_miss=near_miss)


def shift_figure(table: pd.DataFrame) -> plt.Figure:
    """The relative risks of :func:`covariate_shift` as a heat map: trained on (rows) against used on (columns)."""
    grid = table.pivot(index="trained on", columns="used on", values="relative")
    order = list(dict.fromkeys(table["used on"]))
    figure, axis = plt.subplots(figsize=(WIDTH, 3.8))
    label = {"label": "risk / risk of predicting zero"}
    sns.heatmap(grid.loc[order, order], annot=True, fmt=".2f", cmap="mako_r", norm=LogNorm(), ax=axis, cbar_kws=label)
    axis.grid(False)
    return figure
