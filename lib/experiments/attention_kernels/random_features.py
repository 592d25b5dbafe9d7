"""Performer: the variance of its kernel values, and how its error depends on the split of U into K and Q."""

from functools import lru_cache

import numpy as np
import pandas as pd

from lib.kernels import Performer, Softmax, project, split
from lib.kernels.performer import log_features, output_constant, random_directions, relative_variance
from lib.notebook.comparison import Comparison
from lib.prompts.curve import Curve
from lib.prompts.streams import stream

KEY_VARIANCES = np.geomspace(1e-3, 0.95, 140)  # tried for the best split; from 1 on the error is infinite
WRONG_VARIANCE = 0.5  # of the keys, in the control of the splits


def kernel_values(*, squared_norms: list[float], features: int, dim: int, draws: int, seed: int) -> Comparison:
    """Squared relative errors of the kernel value phi(k).phi(q) against e^{k.q}, for two kinds of directions.

    Args:
        squared_norms: |k + q|^2, on which alone the error depends.
        features: m, directions a draw.
        dim: of keys and queries.
        draws: of the directions, for each of the norms.
        seed: of these.

    Returns:
        A row a kind and norm: directions, squared_norm, measured, low, high, exact.
        measured, of the part ``independent``: the curve over the exact variance. control: over |k + q|^2 / m, without
        the exponential. near_miss: over the variance with m - 1 for m.
        Of the part ``saving``: what pairs of orthogonal directions take off the variance, the sum over the norms over
        the exact one. control: what pairs of independent ones do. near_miss: over the exact one to leading order, n^2 /
        (2 (d + 2)) for 1 - C e^{-n}.
    """
    independent = relative_variance(squared_norms, features)
    exact = {"independent": independent, "orthogonal": relative_variance(squared_norms, features, dim)}
    wrong, nearly = np.array(squared_norms) / features, independent * features / (features - 1)
    parts, savings = {}, {}
    for kind in exact:
        samples, pairs = [], []
        for squared_norm in squared_norms:
            rng = stream(seed, kind, round(1000 * squared_norm))
            total, apart = rng.standard_normal((2, dim))
            total *= np.sqrt(squared_norm) / np.linalg.norm(total)
            apart /= np.linalg.norm(apart)
            key, query = total / 2 + apart, total / 2 - apart
            directions = random_directions(features, dim, rng, kind == "orthogonal", size=(draws,))
            products = np.exp(log_features(key, directions) + log_features(query, directions))
            errors = products / np.exp(key @ query) - 1  # of each direction; those of a pair are what is saved
            samples.append(errors.mean(-1) ** 2)
            pairs.append((errors**2).sum(-1) / features**2 - samples[-1])
        curve = Curve.from_samples(samples, stream(seed, kind, "bootstrap"))
        columns = {"directions": kind, "squared_norm": squared_norms}
        parts[kind] = Comparison.of_curve(curve, exact[kind], wrong, nearly, **columns)
        savings[kind] = Curve.from_samples(pairs, stream(seed, kind, "bootstrap", "pairs")).pooled()
    saved = (independent - exact["orthogonal"]).mean()
    sizes = np.diff([*range(0, features, dim), features])
    share = (sizes * (sizes - 1)).sum() / features**2
    leading = (share * np.array(squared_norms) ** 2 / (2 * (dim + 2))).mean()
    sides = [savings["orthogonal"].over(saved), savings["independent"].over(saved)]
    saving = Comparison(pd.DataFrame(), *sides, near_miss=savings["orthogonal"].over(leading))
    shown = Comparison.together(parts)
    return Comparison(shown.table, shown.measured, shown.control, parts | {"saving": saving}, shown.near_miss)


def isotropic_constant(s: float, variance: float, dim: int) -> float:
    """`output_constant` for tokens N(0, I), V = I, keys sqrt(variance) x, and a query of length s / sqrt(variance)."""
    root, eye = np.sqrt(variance), np.eye(dim)
    return output_constant(np.zeros(dim), variance * eye, root * eye, s / root * eye[0])


@lru_cache
def best_key_variance(s: float, dim: int) -> float:
    """The variance of the keys that makes :func:`isotropic_constant` smallest, to within 5 %."""
    return float(KEY_VARIANCES[np.argmin([isotropic_constant(s, x, dim) for x in KEY_VARIANCES])])


def features_needed(*, deviations: list[float], dim: int, tolerance: float) -> Comparison:
    """Random features that bring Performer, at its best split, within a relative deviation from a long softmax prompt.

    Args:
        deviations: s, standard deviations of the scores, which is also the size of the output.
        dim: d of isotropic Gaussian tokens.
        tolerance: deviation from softmax, relative to the output.

    Returns:
        A row an s: s, key_variance (the best), features. Nothing is judged.
    """
    table = pd.DataFrame({"s": deviations})
    table["key_variance"] = [best_key_variance(s, dim) for s in deviations]
    constants = [isotropic_constant(s, x, dim) for s, x in zip(deviations, table["key_variance"], strict=True)]
    table["features"] = constants / (tolerance * table["s"]) ** 2
    return Comparison(table)


def splits(
    *, s: float, dim: int, variances: list[float], length: int, features: int, draws: int, seed: int
) -> Comparison:
    """m E|Performer - softmax|^2 for U = I split in several ways, from prompts, over its limit.

    Each draw is a prompt of isotropic tokens, its directions, and queries along every axis both ways.

    Args:
        s: standard deviation of the scores.
        dim: dimension d of the tokens.
        variances: of the keys, one a split.
        length: prompt length L.
        features: m, independent directions a draw.
        draws: a split.
        seed: of prompts and directions.

    Returns:
        A row a split: variance, measured, low, high, limit.
        measured: the curve over the limit m, then L to infinity. control: over the limit for keys of variance 1/2.
        near_miss: over the limit to leading order in the variance nu of the keys, e^{s^2 / nu} (d nu + s^2).
    """
    samples, eye = [], np.eye(dim)
    for variance in variances:
        K, Q = split(eye, np.sqrt(variance))
        rng, errors = stream(seed, "splits", round(1000 * variance)), []
        for _ in range(draws):
            tokens = rng.standard_normal((length, dim))
            inputs = project(tokens, s * np.concatenate([eye, -eye]), K, Q, eye)
            kernel = Performer(features, orthogonal=False, seed=int(rng.integers(2**32)))
            errors.append(((kernel(*inputs) - Softmax()(*inputs)) ** 2).sum(-1).mean())
        samples.append(features * np.array(errors))
    curve = Curve.from_samples(samples, stream(seed, "splits", "bootstrap"))
    limit = np.array([isotropic_constant(s, x, dim) for x in variances])
    table = pd.DataFrame({"variance": variances, **curve.columns(), "limit": limit})
    wrong = isotropic_constant(s, WRONG_VARIANCE, dim)
    nearly = np.array([np.exp(s**2 / x) * (dim * x + s**2) for x in variances])
    return Comparison(table, curve / limit, curve / wrong, near_miss=curve / nearly)
