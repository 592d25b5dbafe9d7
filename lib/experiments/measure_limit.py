"""Experiments of notebook 01: softmax attention as an operator on the token measure, one function a section."""

import numpy as np
import pandas as pd

from lib.experiments.settings import unit_measures
from lib.finite_prompt import coupling, mean_output, score_deviation, softmax_functionals
from lib.notebook.comparison import Comparison
from lib.prompts.attention import softmax_attention
from lib.prompts.batches import CACHE, affordable_prompts, batches
from lib.prompts.curve import Curve
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.online_softmax import SoftmaxAccumulator
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_fits, covariance_matrix
from lib.tokens.families import Gaussian
from lib.tokens.tilted_quadrature import tilted_mean_by_quadrature

TILTS = 0.3, 2.5  # sizes of the smallest and largest random tilt against quadrature, times 1 / sqrt(d) a coordinate


def formula_against_quadrature(*, dims: list[int], covariances: list, tilts: int, seed: int) -> Comparison:
    """The limit formula grad kappa(a) against quadrature, for Gaussians of many shapes and for four other measures.

    Args:
        dims: dimensions d of the tokens.
        covariances: of the Gaussians, by name; one that does not fit a dimension is left out there.
        tilts: random tilts a measure and dimension.
        seed: of tilts, means and axes.

    Returns:
        A row a measure, dimension and tilt: ``error``, relative to the standard deviation of the tokens or to the size
        of the tilted mean if that is larger; the same for ``affine``, m + Gamma a for every measure, and ``control``,
        a formula that forgets to tilt.
        measured: the largest error. near miss: that of affine. control: the smallest of control.
    """
    rows = []
    for dim in dims:
        rng = stream(seed, "quadrature", dim)
        gaussians = {f"Gaussian, {c}": _gaussian(c, dim, rng) for c in covariances if covariance_fits(c, dim)}
        others = {k: m for k, m in unit_measures(dim).items() if k != "Gaussian"} if dim > 1 else {}
        for name, measure in (gaussians | others).items():
            for a in rng.standard_normal((tilts, dim)) * np.linspace(*TILTS, tilts)[:, None] / np.sqrt(dim):
                truth = tilted_mean_by_quadrature(measure, a)
                scale = max(np.linalg.norm(truth), np.sqrt(np.trace(measure.covariance) / dim))
                row = {"measure": name, "dimension": dim, "tilt": np.linalg.norm(a)}
                row["error"] = np.linalg.norm(measure.tilted_mean(a) - truth) / scale
                row["affine"] = np.linalg.norm(measure.mean + measure.covariance @ a - truth) / scale
                row["control"] = np.linalg.norm(measure.mean - truth) / scale
                rows.append(row)
    table = pd.DataFrame(rows)
    measured, affine = (Intervals.exact(table[name]) for name in ("error", "affine"))
    return Comparison(table, measured, Estimate.exact(table["control"].min()), near_miss=affine)


def departure_from_affine(*, dim: int, sizes: list[float], directions: int, seed: int) -> Comparison:
    """How far each limit map is from the affine map of its mean and covariance, as the tilt grows, by quadrature.

    The departure is |T(a) - m - Gamma a| / |Gamma a|, zero for an affine map. T(a) is computed from the density alone
    (:mod:`lib.tokens.tilted_quadrature`), so that no formula can be affine by construction.

    Args:
        dim: dimension d of the tokens.
        sizes: of the tilt, |a|.
        directions: random directions that are averaged over.
        seed: of these.

    Returns:
        A row a measure and size: measure, size, departure (the mean over directions), largest.
        measured: the largest departure of the Gaussian at each size. near miss: that of the mixture, unbounded and the
        nearest to a Gaussian. control: the largest of Rademacher tokens.
    """
    units = stream(seed, "directions").standard_normal((directions, dim))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    rows = []
    for name, measure in unit_measures(dim).items():
        for size in sizes:
            linear = size * units @ measure.covariance
            means = np.array([tilted_mean_by_quadrature(measure, size * unit) for unit in units])
            departure = np.linalg.norm(means - measure.mean - linear, axis=1) / np.linalg.norm(linear, axis=1)
            rows.append({"measure": name, "size": size, "departure": departure.mean(), "largest": departure.max()})
    table = pd.DataFrame(rows)
    largest = {name: found["largest"] for name, found in table.groupby("measure")}
    measured, nearly = (Intervals.exact(largest[name]) for name in ("Gaussian", "mixture"))
    return Comparison(table, measured, Estimate.exact(largest["Rademacher"].max()), near_miss=nearly)


def outputs_along_a_line(*, covariance, dim: int, lengths: list[int], reach: float, seed: int) -> Comparison:
    """One growing prompt seen by queries t z on a line: the output along the limit's direction, at each length.

    The queries are scaled so that the scores have standard deviation |t|, and the output, projected on Gamma U z, so
    that its limit is t itself. The prompts are nested: each extends the one before.

    Args:
        covariance: of the tokens, by name or as a matrix. dim: their dimension d.
        lengths: prompt lengths L.
        reach: the largest |t|.
        seed: of the head and the tokens.

    Returns:
        A row a length, t and curve ("one prompt", or "exact mean" over prompts): prompt (its name), t, limit, curve,
        along. Nothing is judged.
    """
    gamma = covariance_matrix(covariance, dim)
    rng = stream(seed, "line")
    U, z = rng.standard_normal((2, dim, dim))[0], rng.standard_normal(dim)
    U = U / score_deviation(gamma, z, U)
    t, measure = np.linspace(-reach, reach, 121), Gaussian.centered(gamma)
    c = gamma @ U @ z
    moments = SoftmaxAccumulator(t[:, None] * (U @ z))
    tables, tokens = [], stream(seed, "line", "tokens")
    for length in sorted(lengths):
        for block in batches(length - moments.count, 4 * dim, CACHE):
            moments.update(measure.sample(1, block.stop - block.start, tokens)[0])
        shrunk = mean_output(np.zeros(dim), gamma, t[:, None] * z, U, np.eye(dim), length)
        for curve, outputs in {"one prompt": moments.mean, "exact mean": shrunk}.items():
            columns = {"prompt": f"L = {length:,}", "t": t, "limit": t, "curve": curve, "along": outputs @ c / (c @ c)}
            tables.append(pd.DataFrame(columns))
    return Comparison(pd.concat(tables, ignore_index=True))


def shrinkage(*, dim: int, deviations: list[float], lengths: list[int], number_budget: int, seed: int) -> Comparison:
    """By how much the mean output falls short of the limit, from prompts, against the inverse participation eta(s, L).

    Args:
        dim: dimension d of isotropic tokens.
        deviations: standard deviations s of the scores, one query each.
        lengths: prompt lengths L.
        number_budget: random numbers a length.
        seed: of the head and the prompts.

    Returns:
        A row an s and length: s, length, measured, low, high, exact.
        measured: the curves over eta(s, L), joined over s. near miss: over eta(s, L - 1). control: over 1 / L, as if
        the weights were equal.
    """
    rng = stream(seed, "shrinkage", "head")
    measure, U = Gaussian.centered(np.eye(dim)), rng.standard_normal((dim, dim))
    z = rng.standard_normal(dim)
    a = (U @ z) / np.linalg.norm(U @ z) * np.array(deviations)[:, None]
    samples = [_shortfalls(measure, a, L, number_budget, stream(seed, "shrinkage", L)) for L in lengths]
    found = {}
    for k, s in enumerate(deviations):
        curve = Curve.from_samples([x[:, k] for x in samples], stream(seed, "shrinkage", "bootstrap", k))
        equal, name = 1 / np.array(lengths), f"s = {s:g}"
        exact, shorter = (
            softmax_functionals(s, x).inverse_participation for x in (lengths, np.maximum(np.array(lengths) - 1, 1))
        )
        found[name] = Comparison.of_curve(curve, exact, equal, shorter, s=name, length=lengths)
    return Comparison.together(found)


def _shortfalls(measure, a, length, number_budget, rng) -> np.ndarray:
    """1 - (component of the output along the limit) / (the limit), one row a prompt, one column a query."""
    rows = []
    n_prompts = affordable_prompts(length, measure.dim, number_budget, most=10**6)
    for part in batches(n_prompts, length * measure.dim, CACHE):
        tokens = measure.sample(part.stop - part.start, length, rng)
        outputs = SoftmaxAccumulator(a).update(tokens).mean
        rows.append(1 - (outputs * a).sum(-1) / (a**2).sum(-1))
    return np.concatenate(rows)


def layers(*, dim: int, couplings: list[float], depth: int, length: int, replicates: int, seed: int) -> Comparison:
    """A stack of attention-only layers with residual on Gaussian tokens, against the recursion of the covariances.

    Each layer maps every token x to ``x + V T_L(x)``, its own prompt being the layer's input. In the limit tokens
    stay Gaussian, with covariance B Gamma B', B = I + V Gamma U. U is scaled so that every layer has the same coupling,
    the largest eigenvalue of Gamma^{1/2} U' Gamma U Gamma^{1/2}, the queries being the tokens themselves.

    A finite stack starts from the empirical covariance of its tokens, which misses Gamma by a sampling error of order
    1 / sqrt(L). To leading order the recursion carries that error on, through the map B as well, as all tokens share
    the prompt: what the last covariance misses is what the recursion from the empirical one misses, plus a rest that
    comes from sample cumulants of higher order, which are uncorrelated with it. So the slope of the one in the other
    is 1.

    Args:
        dim: dimension d of the tokens.
        couplings: one weak and one strong, in this order.
        depth: layers.
        length: tokens L in a stack; costs its square.
        replicates: independent stacks.
        seed: of tokens and heads.

    Returns:
        A row a coupling, replicate and layer: ``error`` of the empirical covariance, relative in Frobenius norm;
        ``carried``, that of the recursion from the empirical covariance of the first tokens; ``rest``, between these
        two; ``kurtosis``, Mardia's, over its Gaussian value; and slopes of the error in ``carried on``, in ``stale``,
        the same with Gamma of the first layer in all maps B, and in ``fresh``, the error of other tokens.
        measured: the slope at the last layer and the weak coupling, a mean over stacks. near miss: stale. control:
        fresh.
    """
    stacks = [
        _stack(dim, strength, depth, length, stream(seed, "layers", k)).assign(
            replicate=k, coupling=f"coupling {strength:g}"
        )
        for strength in couplings
        for k in range(replicates)
    ]
    table = pd.concat(stacks, ignore_index=True)
    last = table[(table["layer"] == depth) & (table["coupling"] == f"coupling {couplings[0]:g}")]
    measured, stale, fresh = (Estimate.of_mean(last[name]) for name in ("carried on", "stale", "fresh"))
    return Comparison(table, measured, fresh, near_miss=stale)


def _stack(dim: int, strength: float, depth: int, length: int, rng) -> pd.DataFrame:
    rows, gamma, x = [], np.eye(dim), rng.standard_normal((length, dim))
    carried, other = np.cov(x.T), np.cov(rng.standard_normal((length, dim)).T)
    stale, first = carried, gamma
    for layer in range(1, depth + 1):
        U, V = rng.standard_normal((2, dim, dim)) / np.sqrt(dim)
        U *= np.sqrt(strength / coupling(gamma, gamma, U))
        x = x + softmax_attention(x, x, U, V)
        stale = _pushed(stale, U, V, first)
        gamma, carried, other = (_pushed(g, U, V) for g in (gamma, carried, other))
        empirical, centered, size = np.cov(x.T), x - x.mean(0), np.linalg.norm(gamma)
        radii = np.einsum("ni,ij,nj->n", centered, np.linalg.inv(empirical), centered)
        off = empirical - gamma
        row = {"layer": layer, "error": np.linalg.norm(off) / size, "carried": np.linalg.norm(carried - gamma) / size}
        row |= {"rest": np.linalg.norm(empirical - carried) / size, "kurtosis": (radii**2).mean() / (dim * (dim + 2))}
        for name, found in {"carried on": carried, "stale": stale, "fresh": other}.items():
            row[name] = (off * (found - gamma)).sum() / ((found - gamma) ** 2).sum()
        rows.append(row)
    return pd.DataFrame(rows)


def _pushed(gamma: np.ndarray, U, V, seen: np.ndarray | None = None) -> np.ndarray:
    """B Gamma B' with B = I + V Gamma U, or with another covariance in B that attention sees."""
    B = np.eye(len(gamma)) + V @ (gamma if seen is None else seen) @ U
    return B @ gamma @ B.T


def _gaussian(covariance, dim: int, rng) -> Gaussian:
    """N(m, Gamma) in random axes."""
    Q, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    gamma = Q @ covariance_matrix(covariance, dim) @ Q.T
    return Gaussian(rng.standard_normal(dim), (gamma + gamma.T) / 2)
