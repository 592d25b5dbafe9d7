"""Experiments of notebook 01: softmax attention as an operator on the token measure, one function a section."""

import numpy as np
import pandas as pd

from lib.experiments.settings import unit_measures
from lib.finite_prompt import mean_output, score_deviation, softmax_functionals
from lib.prompts.batches import CACHE as BLOCK_NUMBERS
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve
from lib.prompts.online_softmax import SoftmaxAccumulator
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix, sqrt_psd
from lib.tokens.families import Gaussian
from lib.tokens.tilted_quadrature import tilted_mean_by_quadrature


def formula_against_quadrature(dims: list[int], covariances: list, tilts: int, seed: int) -> pd.DataFrame:
    """The limit formula grad kappa(a) against quadrature, for Gaussians of many shapes and for the other measures.

    Returns a table with one row a measure, dimension and tilt: ``error``, the distance relative to the standard
    deviation of the tokens or to the size of the tilted mean if that is larger, and ``untilted``, the same for a
    formula that forgets to tilt (the mean of the tokens).
    """
    rows = []
    for dim in dims:
        rng = stream(seed, "quadrature", dim)
        gaussians = {f"Gaussian, {c}": _gaussian(c, dim, rng) for c in covariances if _fits(c, dim)}
        others = {k: m for k, m in unit_measures(dim).items() if k != "Gaussian"} if dim > 1 else {}
        for name, measure in (gaussians | others).items():
            for a in rng.standard_normal((tilts, dim)) * np.linspace(0.3, 2.5, tilts)[:, None] / np.sqrt(dim):
                truth = tilted_mean_by_quadrature(measure, a)
                scale = max(np.linalg.norm(truth), np.sqrt(np.trace(measure.covariance) / dim))
                row = {"measure": name, "dimension": dim, "tilt": np.linalg.norm(a)}
                row["error"] = np.linalg.norm(measure.tilted_mean(a) - truth) / scale
                row["untilted"] = np.linalg.norm(measure.mean - truth) / scale
                rows.append(row)
    return pd.DataFrame(rows)


def departure_from_affine(dim: int, sizes: list[float], directions: int, seed: int) -> pd.DataFrame:
    """How far each limit map is from the affine map with its value and slope at zero, as the tilt grows.

    ``departure`` is |T(a) - T(0) - J a| / |J a|, the mean over random directions, for |a| in ``sizes``: zero for an
    affine map. The five measures share mean and covariance, hence J.
    """
    units = stream(seed, "directions").standard_normal((directions, dim))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    rows = []
    for name, measure in unit_measures(dim).items():
        for size in sizes:
            linear = size * units @ measure.tilted_covariance(np.zeros(dim))
            gap = measure.tilted_mean(size * units) - measure.tilted_mean(np.zeros(dim)) - linear
            departure = np.linalg.norm(gap, axis=1) / np.linalg.norm(linear, axis=1)
            rows.append({"measure": name, "size": size, "departure": departure.mean(), "largest": departure.max()})
    return pd.DataFrame(rows)


def outputs_along_a_line(covariance, dim: int, lengths: list[int], reach: float, seed: int) -> pd.DataFrame:
    """One growing prompt seen by queries on a line: the output along the limit's direction, at each prompt length.

    The queries are ``t z`` for t in [-reach, reach], scaled so that the scores have standard deviation |t|. The output
    is projected on Gamma U z and scaled so that the limit is t itself. The prompts are nested: each extends the one
    before. Columns: length, t, output, mean (the exact average over prompts) and limit.
    """
    gamma = covariance_matrix(covariance, dim)
    rng = stream(seed, "line")
    U, z = rng.standard_normal((2, dim, dim))[0], rng.standard_normal(dim)
    U = U / score_deviation(gamma, z, U)
    t, measure = np.linspace(-reach, reach, 121), Gaussian(np.zeros(dim), gamma)
    c = gamma @ U @ z
    moments = SoftmaxAccumulator(t[:, None] * (U @ z))
    tables, tokens = [], stream(seed, "line", "tokens")
    for length in sorted(lengths):
        while (missing := length - moments.count) > 0:
            moments.update(measure.sample(1, min(missing, BLOCK_NUMBERS // (4 * dim)), tokens)[0])
        shrunk = mean_output(np.zeros(dim), gamma, t[:, None] * z, U, np.eye(dim), length) @ c / (c @ c)
        output = moments.mean @ c / (c @ c)
        tables.append(pd.DataFrame({"length": length, "t": t, "output": output, "mean": shrunk, "limit": t}))
    return pd.concat(tables, ignore_index=True)


def shrinkage(dim: int, deviations: list[float], lengths: list[int], budget: int, seed: int):
    """By how much the mean output falls short of the limit, from prompts, against the exact inverse participation y(s, L).

    Returns a tidy table and, for each s, the curve of measured / exact and of measured / (1/L): the second is what
    equal weights would give, the control.
    """
    rng = stream(seed, "shrinkage", "head")
    measure, U = Gaussian(np.zeros(dim), np.eye(dim)), rng.standard_normal((dim, dim))
    z = rng.standard_normal(dim)
    a = (U @ z) / np.linalg.norm(U @ z) * np.array(deviations)[:, None]
    samples = {length: _shortfalls(measure, a, length, budget, stream(seed, "shrinkage", length)) for length in lengths}
    tables, ratios, controls = [], [], []
    for k, s in enumerate(deviations):
        exact = softmax_functionals(s, lengths).inverse_participation
        curve = Curve.from_samples([samples[x][:, k] for x in lengths], stream(seed, "shrinkage", "bootstrap", k))
        low, high = curve.simultaneous()
        columns = {"measured": curve.mean, "low": low, "high": high, "exact": exact}
        tables.append(pd.DataFrame({"s": f"s = {s:g}", "length": lengths, **columns}))
        ratios.append(curve / exact)
        controls.append(curve / (1 / np.array(lengths)))
    return pd.concat(tables, ignore_index=True), ratios, controls


def _shortfalls(measure, a, length, budget, rng) -> np.ndarray:
    """1 - (component of the output along the limit) / (the limit), one row a prompt, one column a query."""
    n_prompts = affordable_prompts(length, measure.dim, budget, most=10**6)
    group = max(1, BLOCK_NUMBERS // (length * measure.dim))
    rows = []
    for start in range(0, n_prompts, group):
        tokens = measure.sample(min(group, n_prompts - start), length, rng)
        outputs = SoftmaxAccumulator(a).update(tokens).mean
        rows.append(1 - (outputs * a).sum(-1) / (a**2).sum(-1))
    return np.concatenate(rows)


def layers(dim: int, coupling: float, depth: int, length: int, replicates: int, seed: int) -> pd.DataFrame:
    """A stack of attention-only layers with residual on Gaussian tokens, against the recursion of the covariances.

    Each layer maps every token x to ``x + V T_L(x)``, its own prompt being the layer's input. In the limit tokens
    stay Gaussian, with covariance M Gamma M', M = I + V Gamma U. U is scaled so that every layer has the same coupling,
    lambda_max(Gamma^{1/2} U' Gamma U Gamma^{1/2}), the queries being the tokens themselves.

    Returns one row a replicate and layer: ``error``, of the empirical covariance, relative in Frobenius norm;
    ``sampling``, what as many independent Gaussian tokens would show on average; ``kurtosis``, Mardia's, over its
    Gaussian value.
    """
    rows = []
    for replicate in range(replicates):
        rng = stream(seed, "layers", replicate)
        gamma, x = np.eye(dim), rng.standard_normal((length, dim))
        for layer in range(1, depth + 1):
            U, V = rng.standard_normal((2, dim, dim)) / np.sqrt(dim)
            root = sqrt_psd(gamma)
            U *= np.sqrt(coupling / np.linalg.eigvalsh(root @ U.T @ gamma @ U @ root)[-1])
            x = x + _self_attention(x, U, V)
            M = np.eye(dim) + V @ gamma @ U
            gamma = M @ gamma @ M.T
            empirical = np.cov(x.T)
            whitened = x - x.mean(0)
            radii = np.einsum("ni,ij,nj->n", whitened, np.linalg.inv(empirical), whitened)
            sampling = np.sqrt((np.trace(gamma) ** 2 + (gamma**2).sum()) / (gamma**2).sum() / length)
            row = {"replicate": replicate, "layer": layer, "sampling": sampling}
            row["error"] = np.linalg.norm(empirical - gamma) / np.linalg.norm(gamma)
            row["kurtosis"] = (radii**2).mean() / (dim * (dim + 2))
            rows.append(row)
    return pd.DataFrame(rows)


def stack(by_coupling: dict[float, pd.DataFrame]) -> pd.DataFrame:
    """Several tables of :func:`layers` as one."""
    return pd.concat([rows.assign(coupling=f"coupling {c:g}") for c, rows in by_coupling.items()], ignore_index=True)


def _self_attention(x: np.ndarray, U, V) -> np.ndarray:
    """Softmax attention of every token on all of them, a block of queries at a time."""
    block = max(1, 4 * BLOCK_NUMBERS // len(x))
    outputs = [SoftmaxAccumulator(q @ U.T).update(x).mean for q in np.array_split(x, -(-len(x) // block))]
    return np.concatenate(outputs) @ V.T


def _gaussian(covariance, dim: int, rng) -> Gaussian:
    """N(m, Gamma) in random axes."""
    Q, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    gamma = Q @ covariance_matrix(covariance, dim) @ Q.T
    return Gaussian(rng.standard_normal(dim), (gamma + gamma.T) / 2)


def _fits(covariance, dim: int) -> bool:
    try:
        covariance_matrix(covariance, dim)
    except ValueError:
        return False
    return True
