"""Linformer: what fixed and learned projections of the length to p rows compute on exchangeable tokens."""

import numpy as np
import pandas as pd

from lib.finite_prompt import output_error
from lib.kernels import Linformer, Softmax
from lib.kernels.exact_errors import moment_softmax_distance
from lib.kernels.linformer import gaussian_projection_error, learn, linear_floor, pooled_error
from lib.notebook.comparison import Comparison
from lib.prompts.curve import Curve
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream

ITSELF = "softmax itself"
POOLING = {"pooling": False, "pooling, corrected": True}  # is it corrected?
GAUSSIAN = {"Gaussian, shared": True, "Gaussian, independent": False}  # one projection for keys and values?
TEST_PROMPTS = 4000  # on which learned projections are tested


def fixed(*, s: float, dim: int, rows: int, lengths: list[int], n_prompts: int, seed: int) -> Comparison:
    """Four fixed projections on isotropic Gaussian tokens: squared errors to the limit, from prompts over the exact.

    Args:
        s: standard deviation of the scores.
        dim: dimension d of the tokens.
        rows: p; it divides every length.
        lengths: prompt lengths L.
        n_prompts: prompts a length, each with its own Gaussian projections.
        seed: of prompts and projections.

    Returns:
        A row a projection and length: projection, length, measured, low, high, exact, with softmax itself for
        comparison. There is a part for each.
        measured: the four curves over the exact ones, joined. control: over softmax's own error at that length.
        near_miss: over what is left without what fluctuates: for Gaussian projections the covariance of the tokens in
        place of the prompt's, for pooling the bias alone; for pooling, corrected, p + 1 rows of the same blocks.
    """
    found = {}
    for length in lengths:
        found[length] = _errors(s, dim, rows, length, n_prompts, stream(seed, "projections", length))
    names = [*POOLING, *GAUSSIAN, ITSELF]
    exact = {name: np.array([found[length][name][1] for length in lengths]) for name in names}
    nearly = _without_fluctuation(s, dim, rows, lengths) | {ITSELF: exact[ITSELF]}
    parts = {}
    for name in names:
        samples = [found[length][name][0] for length in lengths]
        curve = Curve.from_samples(samples, stream(seed, "projections", name))
        columns = {"projection": name, "length": lengths}
        parts[name] = Comparison.of_curve(curve, exact[name], exact[ITSELF], nearly[name], **columns)
    judged = Comparison.together({name: parts[name] for name in names if name != ITSELF})
    return Comparison(Comparison.together(parts).table, judged.measured, judged.control, parts, judged.near_miss)


def _without_fluctuation(s: float, dim: int, rows: int, lengths: list[int]) -> dict[str, np.ndarray]:
    """Nearly the exact errors, as :func:`fixed` says."""
    eye, a = np.eye(dim), s * np.eye(dim)[0]
    ones, lengths = np.ones(len(lengths)), np.array(lengths)
    drawn = {name: gaussian_projection_error(eye, a, eye, eye, rows, a, shared) for name, shared in GAUSSIAN.items()}
    more = np.array([pooled_error(eye, a, eye, eye, x * (rows + 1) / rows, rows + 1) for x in lengths])
    pooled = {name: more if corrected else s**2 * (1 - rows / lengths) ** 2 for name, corrected in POOLING.items()}
    return pooled | {name: error * ones for name, error in drawn.items()}


def _errors(s: float, dim: int, rows: int, length: int, n_prompts: int, rng) -> dict[str, tuple[np.ndarray, float]]:
    """For each projection and softmax itself the squared errors to the limit, one a prompt, and their exact mean."""
    eye, a = np.eye(dim), s * np.eye(dim)[0]
    pooled = {name: Linformer.pooling(length, rows, corrected) for name, corrected in POOLING.items()}
    errors: dict[str, list[float]] = {name: [] for name in (*pooled, *GAUSSIAN, ITSELF)}
    given_prompt: dict[str, list[float]] = {name: [] for name in GAUSSIAN}
    for _ in range(n_prompts):
        tokens = rng.standard_normal((length, dim))
        apart = Linformer.gaussian(length, rows, int(rng.integers(2**32)), shared=False)
        drawn = dict(zip(GAUSSIAN, (Linformer(apart.key_rows, apart.key_rows), apart), strict=True))
        for name, kernel in (pooled | drawn | {ITSELF: Softmax()}).items():
            errors[name].append(((kernel(tokens, a, tokens) - a) ** 2).sum())
        second_moment = tokens.T @ tokens / length
        for name, shared in GAUSSIAN.items():
            given_prompt[name].append(gaussian_projection_error(second_moment, a, eye, eye, rows, a, shared))
    exact = {name: float(np.mean(values)) for name, values in given_prompt.items()}
    exact |= {name: pooled_error(eye, a, eye, eye, length, rows, corrected) for name, corrected in POOLING.items()}
    exact[ITSELF] = float(output_error(eye, a, eye, eye, length))
    return {name: (np.array(values), exact[name]) for name, values in errors.items()}


def learned(*, s: float, dim: int, rows: int, length: int, steps: int, replicates: int, seed: int) -> Comparison:
    """Projections trained to reproduce softmax at one length, for random queries of one score deviation.

    Args:
        s: standard deviation of the scores.
        dim: dimension d of isotropic Gaussian tokens.
        rows: p.
        length: prompt length L.
        steps: of training.
        replicates: trainings, at least 2.
        seed: of all.

    Returns:
        A row a training: rows, length, replicate; squared distance to softmax after training (learned), before
        (start), of the truncated kernel on prompts of half the length (truncated); the predicted one (floor).
        measured: learned over predicted. control: the same before training. near_miss: learned over the prediction for
        p tokens instead of p - 1.
    """
    eye, a = np.eye(dim), s * np.eye(dim)[0]

    def sample(n, rng, length=length):
        tokens, query = rng.standard_normal((n, length, dim), dtype=np.float32), rng.standard_normal((n, dim))
        query *= s / np.linalg.norm(query, axis=1, keepdims=True)
        return tokens, query, tokens, Softmax()(tokens, query[:, None], tokens)[:, 0]

    def error(kernel, rng):
        tokens, query, _, wanted = sample(TEST_PROMPTS, rng, kernel.length)
        return ((kernel(tokens, query[:, None], tokens)[:, 0] - wanted) ** 2).sum(1).mean()

    remainder = float(moment_softmax_distance(eye, a, eye, eye, length))
    floor, nearly = (linear_floor(s**2 * (dim + 1), s**2, remainder, length, x) for x in (rows, rows + 1))
    found = []
    for replicate in range(replicates):
        rng = stream(seed, "learned", replicate)
        start = Linformer.gaussian(length, rows, int(rng.integers(2**32)))
        kernel = learn(start, sample, steps, rng)
        row = {"rows": rows, "length": length, "replicate": replicate, "learned": error(kernel, rng)}
        row |= {"start": error(start, rng), "truncated": error(kernel.truncated(length // 2), rng), "floor": floor}
        found.append(row)
    table = pd.DataFrame(found)
    near_miss = Estimate.of_mean(table["learned"] / nearly)
    return Comparison(table, *(Estimate.of_mean(table[x] / floor) for x in ("learned", "start")), near_miss=near_miss)
