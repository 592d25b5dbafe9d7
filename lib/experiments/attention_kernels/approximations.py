"""Experiments of notebook 05 with kernels that approximate softmax: random features and projections of the length."""

from functools import lru_cache

import numpy as np
import pandas as pd

from lib.finite_prompt import output_error
from lib.kernels import Linformer, Performer, Softmax, project, split
from lib.kernels.exact_errors import moment_softmax_distance
from lib.kernels.linformer import gaussian_projection_error, learn, linear_floor, pooled_error
from lib.kernels.performer import log_features, output_constant, random_directions, relative_variance
from lib.prompts.curve import Curve, join
from lib.prompts.streams import stream

ITSELF = "softmax itself"


def kernel_values(squared_norms: list[float], features: int, dim: int, draws: int, seed: int):
    """Squared relative errors of the kernel value phi(x).phi(y) against exp(x.y), for both kinds of directions.

    Returns a tidy table, and for each kind the curve measured / exact and the same over a wrong formula: |x + y|^2 / m
    without the exponential for independent directions, the formula of independent ones for orthogonal ones.
    """
    tables, judged = [], {}
    for kind in ("independent", "orthogonal"):
        samples = []
        for z2 in squared_norms:
            rng = stream(seed, kind, round(1000 * z2))
            z, apart = rng.standard_normal((2, dim))
            z *= np.sqrt(z2) / np.linalg.norm(z)
            x, y = z / 2 + apart / np.linalg.norm(apart), z / 2 - apart / np.linalg.norm(apart)
            directions = random_directions(features, dim, rng, kind == "orthogonal", size=(draws,))
            product = np.exp(log_features(x, directions) + log_features(y, directions)).mean(-1)
            samples.append((product / np.exp(x @ y) - 1) ** 2)
        curve = Curve.from_samples(samples, stream(seed, kind, "bootstrap"))
        exact, wrong = (relative_variance(squared_norms, features, x) for x in (dim, None))
        if kind == "independent":
            exact, wrong = wrong, np.array(squared_norms) / features
        low, high = curve.simultaneous()
        columns = {"directions": kind, "squared_norm": squared_norms, "measured": curve.mean, "low": low, "high": high}
        tables.append(pd.DataFrame(columns | {"exact": exact}))
        judged[kind] = curve / exact, curve / wrong
    return pd.concat(tables, ignore_index=True), judged


def isotropic_constant(s: float, variance: float, dim: int) -> float:
    """`output_constant` for tokens N(0, I), V = I, and keys sqrt(variance) x: the query is then Uz / sqrt(variance)."""
    root, eye = np.sqrt(variance), np.eye(dim)
    return output_constant(np.zeros(dim), variance * eye, root * eye, s / root * eye[0])


@lru_cache
def best_key_variance(s: float, dim: int) -> float:
    """The variance of the keys that makes `isotropic_constant` smallest, to within 5 %."""
    variances = np.geomspace(1e-3, 0.95, 140)
    return float(variances[np.argmin([isotropic_constant(s, c, dim) for c in variances])])


def splits(s: float, dim: int, variances: list[float], length: int, features: int, draws: int, seed: int):
    """m E|Performer - softmax|^2 for one U split in several ways, from fresh prompts and directions, and its limit.

    Each draw is a prompt, its directions, and queries along every axis both ways.

    Returns a tidy table and the curve measured / limit; the same over the limit for keys of variance 1/2, the control.
    """
    samples, eye = [], np.eye(dim)
    for c in variances:
        K, Q = split(eye, np.sqrt(c))
        rng, errors = stream(seed, "splits", round(1000 * c)), []
        for _ in range(draws):
            tokens = rng.standard_normal((length, dim))
            inputs = project(tokens, s * np.concatenate([eye, -eye]), K, Q, eye)
            kernel = Performer(features, orthogonal=False, seed=int(rng.integers(2**32)))
            errors.append(((kernel(*inputs) - Softmax()(*inputs)) ** 2).sum(-1).mean())
        samples.append(features * np.array(errors))
    curve = Curve.from_samples(samples, stream(seed, "splits", "bootstrap"))
    low, high = curve.simultaneous()
    limit = np.array([isotropic_constant(s, c, dim) for c in variances])
    columns = {"variance": variances, "measured": curve.mean, "low": low, "high": high, "limit": limit}
    return pd.DataFrame(columns), curve / limit, curve / isotropic_constant(s, 0.5, dim)


def projections(s: float, dim: int, rows: int, lengths: list[int], n_prompts: int, seed: int):
    """Four Linformers of p rows on isotropic Gaussian tokens: squared errors against the limit, measured and exact.

    Returns a tidy table (with softmax itself for comparison), the curves measured / exact joined, and the same over
    softmax's own error at that length, the control.
    """
    eye, a = np.eye(dim), s * np.eye(dim)[0]
    samples, exact = {}, {}
    for length in lengths:
        rng = stream(seed, "projections", length)
        fixed = {f"pooling{x}": Linformer.pooling(length, rows, bool(x)) for x in ("", ", corrected")}
        for _ in range(n_prompts):
            tokens, draw = rng.standard_normal((length, dim)), int(rng.integers(2**32))
            second = tokens.T @ tokens / length
            kernels = dict(fixed)
            drawn = Linformer.gaussian(length, rows, draw, shared=False)
            kernels["Gaussian, independent"] = drawn
            kernels["Gaussian, shared"] = Linformer(drawn.key_rows, drawn.key_rows)
            for name, shared in (("Gaussian, shared", True), ("Gaussian, independent", False)):
                error = gaussian_projection_error(second, a, eye, eye, rows, a, shared)
                exact.setdefault((name, length), []).append(error)
            for name, kernel in kernels.items():
                samples.setdefault((name, length), []).append(((kernel(tokens, a, tokens) - a) ** 2).sum())
            samples.setdefault((ITSELF, length), []).append(((Softmax()(tokens, a, tokens) - a) ** 2).sum())
        for name, corrected in (("pooling", False), ("pooling, corrected", True)):
            exact[name, length] = [pooled_error(eye, a, eye, eye, length, rows, corrected)]
        exact[ITSELF, length] = [float(output_error(eye, a, eye, eye, length))]
    tables, ratios, wrong = [], [], []
    for name in (*fixed, "Gaussian, shared", "Gaussian, independent", ITSELF):
        curve = Curve.from_samples([samples[name, x] for x in lengths], stream(seed, "projections", name))
        low, high = curve.simultaneous()
        expected, softmax = (np.array([np.mean(exact[k, x]) for x in lengths]) for k in (name, ITSELF))
        columns = {"projection": name, "length": lengths, "measured": curve.mean, "low": low, "high": high}
        tables.append(pd.DataFrame(columns | {"exact": expected}))
        if name != ITSELF:
            ratios.append(curve / expected)
            wrong.append(curve / softmax)
    return pd.concat(tables, ignore_index=True), join(ratios), join(wrong)


def learned_projections(s: float, dim: int, rows: int, length: int, steps: int, replicates: int, seed: int):
    """Projections trained to reproduce softmax at one length, for random queries of one score deviation.

    Returns one row a replicate: squared distance to softmax after training (``learned``) and before (``start``), of the
    truncated kernel on prompts of half the length (``half``), and the predicted `linear_floor`.
    """
    eye, a = np.eye(dim), s * np.eye(dim)[0]

    def sample(n, rng, length=length):
        tokens, query = rng.standard_normal((n, length, dim), dtype=np.float32), rng.standard_normal((n, dim))
        query *= s / np.linalg.norm(query, axis=1, keepdims=True)
        return tokens, query, tokens, Softmax()(tokens, query[:, None], tokens)[:, 0]

    def error(kernel, rng, length=length):
        tokens, query, _, wanted = sample(4000, rng, length)
        return ((kernel(tokens, query[:, None], tokens)[:, 0] - wanted) ** 2).sum(1).mean()

    remainder = float(moment_softmax_distance(eye, a, eye, eye, length))
    floor, result = linear_floor(s**2 * (dim + 1), s**2, remainder, length, rows), []
    for replicate in range(replicates):
        rng = stream(seed, "learned", replicate)
        start = Linformer.gaussian(length, rows, int(rng.integers(2**32)))
        kernel = learn(start, sample, steps, rng)
        row = {"rows": rows, "length": length, "replicate": replicate, "learned": error(kernel, rng)}
        row |= {"start": error(start, rng), "half": error(kernel.truncated(length // 2), rng, length // 2)}
        result.append(row | {"floor": floor})
    return pd.DataFrame(result)
