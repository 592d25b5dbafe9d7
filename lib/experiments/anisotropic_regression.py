"""Experiments of notebook 04: in-context regression with an anisotropic covariance, one function a section."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lib.finite_prompt import local_slope, rate_exponent
from lib.notebook.figures import WIDTH
from lib.prompts.curve import Curve
from lib.prompts.streams import stream
from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.flow import Flow, gradient_flow
from lib.regression.head import BlockHead
from lib.regression.predictors import ridge_risk, risks_on_prompts, softmax_head
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix


def tasks(covariances: list, dim: int, noise_std: float, seed: int) -> dict[str, InContextRegression]:
    """A regression for each named covariance, and one for a random covariance in random axes."""
    root = stream(seed, "random covariance").standard_normal((dim, 3 * dim))
    matrices = {str(name): covariance_matrix(name, dim) for name in covariances}
    matrices["random"] = root @ root.T / (3 * dim)
    return {name: InContextRegression(matrix, noise_std) for name, matrix in matrices.items()}


def infinite_flows(problems: dict[str, InContextRegression], fractions: list[float], seed: int) -> pd.DataFrame:
    """The infinite-prompt flow from the paper's eq. (9), for alphas inside its interval and beyond.

    ``fractions`` are alpha over the end of the interval; Theta is the identity and a random matrix. One row a flow:
    ``distance`` of its end from (A*, b*), relative; ``imbalance``, the largest change of |A|_F^2 - b^2 on the way;
    ``time`` until the gradient is below 1e-11.
    """
    rows = []
    for name, problem in problems.items():
        d, limit = problem.dimension, problem.optimum()
        for theta_name, theta in (("identity", None), ("random", stream(seed, "theta", name).standard_normal((d, d)))):
            for fraction in fractions:
                start = problem.balanced_init(fraction * problem.largest_alpha(), theta)
                flow = gradient_flow(problem, "infinite", start, np.inf, gradient_tolerance=1e-11)
                row = {"covariance": name, "theta": theta_name, "alpha / largest": fraction, "time": flow.time[-1]}
                row["distance"] = distance(flow.end, limit)
                row["imbalance"] = np.abs(flow.imbalance - flow.imbalance[0]).max()
                rows.append(row)
    return pd.DataFrame(rows)


def unbalanced_end(problem: InContextRegression, alpha: float) -> float:
    """Relative distance from (A*, b*) of the flow that starts with A twice as large as balance asks."""
    start = problem.balanced_init(alpha)
    flow = gradient_flow(problem, "infinite", BlockHead(2 * start.A, start.b), np.inf, gradient_tolerance=1e-11)
    return distance(flow.end, problem.optimum())


def distance(head: BlockHead, other: BlockHead) -> float:
    """Distance of two heads, relative to the size of the second."""
    gap = np.hypot(np.linalg.norm(head.A - other.A), head.b - other.b)
    return float(gap / np.hypot(np.linalg.norm(other.A), other.b))


def modes(problem: InContextRegression, alpha: float, points: int = 160) -> pd.DataFrame:
    """The infinite flow mode by mode: b s_i a_i against time, s_i the eigenvalues of the covariance; 1 is learned."""
    start = problem.balanced_init(alpha)
    horizon = gradient_flow(problem, "infinite", start, np.inf, gradient_tolerance=1e-6).time[-1]
    flow = gradient_flow(problem, "infinite", start, horizon, times=np.geomspace(1e-2, horizon, points))
    values, vectors = np.linalg.eigh(problem.covariance)
    along = np.einsum("ik,tij,jk->tk", vectors, flow.A, vectors) * flow.b[:, None] * values
    return pd.DataFrame(
        {
            "time": np.repeat(flow.time, len(values)),
            "eigenvalue": np.tile([f"s = {value:.2g}" for value in values], len(flow.time)),
            "size": np.tile(values, len(flow.time)),
            "learned": along.ravel(),
        }
    )


def order_of_learning(table: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
    """When each mode reaches the level, from the largest eigenvalue to the smallest."""
    reached = table[table["learned"] >= level].groupby("size")["time"].min()
    return reached.sort_index(ascending=False).rename("time").reset_index()


def risk_curves(problem: InContextRegression, lengths: list[int], draws: int, seed: int) -> pd.DataFrame:
    """Exact risks against prompt length: softmax and linear attention, each at U* and at its own optimum, and ridge.

    Ridge with the noise level is Bayes-optimal; its risk is a mean over ``draws`` of X'X. Columns: predictor, length,
    risk.
    """
    star, rows = problem.optimum(), []
    for length in lengths:
        rng = stream(seed, "ridge", int(length))
        risks = {
            "softmax at U*": float(problem.softmax_risk(*star, length).value),
            "softmax, best": float(problem.softmax_risk(*best_softmax(problem, length), length).value),
            "linear at U*": problem.linear_risk(*star, length),
            "linear, best": problem.linear_risk(*best_linear(problem, length), length),
            "ridge (Bayes)": ridge_risk(problem, int(length), draws, rng).value,
        }
        rows += [{"predictor": name, "length": length, "risk": float(risk)} for name, risk in risks.items()]
    return pd.DataFrame(rows).sort_values(["predictor", "length"], ignore_index=True)


def risks_against_prompts(problem: InContextRegression, head: BlockHead, lengths: list[int], budget: int, seed: int):
    """The exact softmax risk of a head against raw prompts: curves measured / exact, and measured / linear's risk."""
    samples = []
    for length in lengths:
        count = int(np.clip(budget // (length * (problem.dimension + 1)), 1000, 10**6))
        rng, losses = stream(seed, "raw prompts", length), []
        for block in np.array_split(np.arange(count), 1 + count * length * (problem.dimension + 1) // 2**21):
            tokens, query, target = problem.sample(len(block), length, rng)
            losses.append((softmax_head(*head)(tokens, query) - target) ** 2 / 2)
        samples.append(np.concatenate(losses))
    curve = Curve.from_samples(samples, stream(seed, "raw prompts", "bootstrap"))
    return curve / problem.softmax_risk(*head, lengths).value, curve / problem.linear_risk(*head, np.array(lengths))


def critical_dimension(dims: list[int], lengths: list[float], noise_std: float) -> pd.DataFrame:
    """Local slopes of the softmax risk at U* for isotropic x, over the decade from each length, in each dimension.

    The coupling there is d^{-1/2}: at most 1/2, the threshold of notebook 02, from dimension 4 on.
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
    return pd.DataFrame(rows)


def public_experiment(dim: int, rho: float, noise_std: float, task_variance: float) -> dict[str, InContextRegression]:
    """The regression of the authors' public driver: as intended, and as its covariance is applied there.

    Intended: x and query N(0, Sigma), Sigma Toeplitz. In the driver the prompt's x go through the lower Cholesky factor
    C twice, so that their covariance is (C C)(C C)', and the query's never.
    """
    sigma = covariance_matrix(f"toeplitz({rho})", dim)
    C = np.linalg.cholesky(sigma)
    twice = C @ C @ (C @ C).T
    return {
        "covariance applied once": InContextRegression(sigma, noise_std, task_variance),
        "applied twice to the prompt, never to the query": InContextRegression(
            (twice + twice.T) / 2, noise_std, task_variance, query_covariance=np.eye(dim)
        ),
    }


def trained_risks(problem: InContextRegression, lengths: list[int], alpha: float) -> tuple[pd.DataFrame, dict]:
    """End of the population flow (gradient below 1e-8) at each prompt length, for softmax and linear attention.

    Returns a table (attention, length, risk, time, coupling of the trained head) and the flows by (attention, length).
    """
    flows: dict[tuple[str, int], Flow] = {}
    rows = []
    for attention in ("softmax", "linear"):
        for length in lengths:
            start = problem.balanced_init(alpha)
            flow = gradient_flow(problem, attention, start, np.inf, length=length, gradient_tolerance=1e-8)
            row = {"attention": attention, "length": length, "risk": flow.risk[-1], "time": flow.time[-1]}
            rows.append(row | {"coupling": problem.coupling(flow.end.A)})
            flows[attention, length] = flow
    return pd.DataFrame(rows), flows


def spectra(problem: InContextRegression, lengths: list[int], draws: int, seed: int) -> pd.DataFrame:
    """How far each eigendirection is learned at finite L: eigenvalues of b Sigma A, against ridge's mean shrinkage.

    For ridge it is the diagonal of E[(X'X + k I)^{-1} X'X], k the noise variance over the task variance.
    ``penalty`` is the ridge penalty that would shrink the direction as much, s (1 - e) / e, times L.
    """
    values, vectors = np.linalg.eigh(problem.covariance)
    tables = []
    for length in lengths:
        heads = {"softmax": best_softmax(problem, length), "linear": best_linear(problem, length)}
        learned = {k: h.b * values * np.einsum("ik,ij,jk->k", vectors, h.A, vectors) for k, h in heads.items()}
        learned["ridge"] = _ridge_shrinkage(problem, vectors, length, draws, stream(seed, "spectra", length))
        for name, eigenvalues in learned.items():
            columns = {"predictor": name, "length": f"L = {length:,}", "eigenvalue": values, "learned": eigenvalues}
            columns["penalty"] = length * values * (1 - eigenvalues) / eigenvalues
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def _ridge_shrinkage(problem, vectors, length, draws, rng) -> np.ndarray:
    x = rng.standard_normal((draws, length, problem.dimension)) @ problem.covariance_root @ vectors
    gram = x.mT @ x
    penalty = problem.noise_std**2 / problem.task_variance * np.eye(problem.dimension)
    return np.einsum("nii->ni", np.linalg.solve(gram + penalty, gram)).mean(0)


def linear_shrinkage(problem: InContextRegression, lengths: list[int]) -> np.ndarray:
    """The closed form of linear attention's eigenvalues, s / ((1 + 1/L) s + (tr Sigma + noise^2 / tau) / L)."""
    s = np.linalg.eigvalsh(problem.covariance)
    return np.stack([s / ((1 + 1 / x) * s + problem.token_variance / x) for x in lengths])


def covariate_shift(problems: dict[str, InContextRegression], length: int) -> pd.DataFrame:
    """A head trained for each covariance (best softmax at this length), used on every other, exactly.

    ``relative`` is the risk over that of predicting zero, tau tr(Sigma) / 2, on the covariance of use.
    """
    heads = {name: best_softmax(problem, length) for name, problem in problems.items()}
    rows = []
    for used, problem in problems.items():
        zero = problem.task_variance * np.trace(problem.query_covariance) / 2
        for trained, head in heads.items():
            risk = float(problem.softmax_risk(*head, length).value)
            rows.append({"trained on": trained, "used on": used, "risk": risk, "relative": risk / zero})
    return pd.DataFrame(rows)


def shift_against_prompts(trained: InContextRegression, used: InContextRegression, length: int, n: int, seed: int):
    """Risk of a head trained on one covariance and used on another, from raw prompts, over the exact one.

    Returns it as (value, low, high) with a 95 % interval, and over the risk on the covariance it was trained for.
    """
    head = best_softmax(trained, length)
    predictors = {"softmax": softmax_head(*head)}
    measured = risks_on_prompts(used, length, n, stream(seed, "shift", length), predictors)["softmax"]
    interval = np.array([0.0, -1.96, 1.96]) * measured.standard_error + measured.value
    exact, own = (float(p.softmax_risk(*head, length).value) for p in (used, trained))
    return interval / exact, interval / own


def shift_figure(table: pd.DataFrame) -> plt.Figure:
    """The relative risks as a heat map: trained on (rows) against used on (columns)."""
    grid = table.pivot(index="trained on", columns="used on", values="relative")
    order = list(dict.fromkeys(table["used on"]))
    figure, axis = plt.subplots(figsize=(WIDTH, 3.8))
    sns.heatmap(
        grid.loc[order, order],
        annot=True,
        fmt=".2f",
        cmap="mako_r",
        norm=plt.matplotlib.colors.LogNorm(),
        ax=axis,
        cbar_kws={"label": "risk / risk of predicting zero"},
    )
    axis.grid(False)
    return figure


def against_best(problem: InContextRegression, flows: dict) -> tuple[list[float], list[float]]:
    """Risk at the end of each softmax flow over that of the best softmax head; and that of U* over the best."""
    lengths = [length for attention, length in flows if attention == "softmax"]
    best = [float(problem.softmax_risk(*best_softmax(problem, x), x).value) for x in lengths]
    ends = [flows["softmax", x].risk[-1] for x in lengths]
    stars = [float(problem.softmax_risk(*problem.optimum(), x).value) for x in lengths]
    return list(np.divide(ends, best)), list(np.divide(stars, best))


def against_closed_form(problem: InContextRegression, flows: dict) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of b Sigma A at the end of each linear flow over the closed form, and over s / ((1 + 1/L) s)."""
    lengths = [length for attention, length in flows if attention == "linear"]
    ends = [flows["linear", x].end for x in lengths]
    learned = np.stack([np.sort(np.linalg.eigvals(head.b * problem.covariance @ head.A).real) for head in ends])
    return learned / linear_shrinkage(problem, lengths), learned * (1 + 1 / np.array(lengths)[:, None])
