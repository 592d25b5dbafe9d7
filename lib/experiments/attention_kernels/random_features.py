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
        A row a kind and norm: directions, squared_norm, measured, low, high, exact. Parts: independent, orthogonal.
        measured: the curve over the exact variance. control: over |k + q|^2 / m, without the exponential, for
        independent directions; over the variance of independent ones for orthogonal ones.
    """
    independent = relative_variance(squared_norms, features)
    exact = {"independent": independent, "orthogonal": relative_variance(squared_norms, features, dim)}
    wrong = {"independent": np.array(squared_norms) / features, "orthogonal": independent}
    parts = {}
    for kind in exact:
        samples = []
        for squared_norm in squared_norms:
            rng = stream(seed, kind, round(1000 * squared_norm))
            total, apart = rng.standard_normal((2, dim))
            total *= np.sqrt(squared_norm) / np.linalg.norm(total)
            apart /= np.linalg.norm(apart)
            key, query = total / 2 + apart, total / 2 - apart
            directions = random_directions(features, dim, rng, kind == "orthogonal", size=(draws,))
            product = np.exp(log_features(key, directions) + log_features(query, directions)).mean(-1)
            samples.append((product / np.exp(key @ query) - 1) ** 2)
        curve = Curve.from_samples(samples, stream(seed, kind, "bootstrap"))
        columns = {"directions": kind, "squared_norm": squared_norms}
        parts[kind] = Comparison.of_curve(curve, exact[kind], wrong[kind], **columns)
    return Comparison.together(parts)


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
    return Comparison(table, curve / limit, curve / isotropic_constant(s, WRONG_VARIANCE, dim))
