"""What notebook 06 measures on prompts: the deviation at the needed length, drift, causal prefixes, rounding."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy import stats
from scipy.interpolate import PchipInterpolator

from lib.experiments.prompt_length.exact import examples_for, quieter
from lib.experiments.settings import generic_head
from lib.finite_prompt import mean_output_error, output_error
from lib.finite_prompt.drift import drift_bound, output_drift
from lib.finite_prompt.head_file import AttentionHeads
from lib.finite_prompt.needed_length import deviation, length_for, prompt_length_for, query_numbers, tolerance_reached
from lib.prompts.batches import CACHE as BLOCK_NUMBERS
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve, join
from lib.prompts.errors import prompt_errors
from lib.prompts.estimate import Estimate
from lib.prompts.online_softmax import SoftmaxAccumulator
from lib.prompts.streams import stream
from lib.regression.predictors import risks_on_prompts, softmax_head
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix, sqrt_psd
from lib.tokens.families import Gaussian

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class AtNeededLength:
    """Deviations measured on prompts exactly as long as :func:`lib.finite_prompt.needed_length.prompt_length_for` says.

    Args:
        settings: (covariance, dimension) pairs, each with a random query and head for every s.
        deviations: score deviations s. tolerances: relative tolerances.
        budget: random numbers a case, at most. most: prompts a case, at most.

    Attributes:
        table: tidy: setting, s, output dimension, tolerance, length, prompts, measured (relative RMS), low, high.
        ratio, halved: curves of measured / tolerance, at the needed length and at half of it (the control).
    """

    def __init__(self, settings, deviations, tolerances, budget: int, most: int, seed: int):
        rows, ratios, halved = [], [], []
        for covariance, dim in settings:
            gamma, name = covariance_matrix(covariance, dim), f"{covariance}, d = {dim}"
            for s in deviations:
                head = generic_head(dim, gamma, s, seed)
                dimension = query_numbers(gamma, *head)[1]
                for tolerance in tolerances:
                    length, key = int(length_for(s, dimension, tolerance)), (name, f"{s:g}", f"{tolerance:g}")
                    curve, errors = _relative(gamma, head, length, budget, most, seed, key)
                    low, high = curve.simultaneous()
                    row = {"setting": name, "s": s, "output dimension": dimension, "tolerance": tolerance}
                    row |= {"length": length, "prompts": len(errors), "measured": curve.mean[0]}
                    rows.append(row | {"low": low[0], "high": high[0]})
                    ratios.append(curve / tolerance)
                    halved.append(
                        _relative(gamma, head, length // 2, budget, most, seed, (*key, "half"))[0] / tolerance
                    )
        self.table, self.ratio, self.halved = pd.DataFrame(rows), join(ratios), join(halved)


def _relative(gamma, head, length: int, budget: int, most: int, seed: int, key: tuple):
    """Relative root-mean-square deviation over prompts as a one-point curve, and each prompt's squared one."""
    query, U, V = head
    measure, rng = Gaussian(np.zeros(len(gamma)), gamma), stream(seed, *key)
    n_prompts = affordable_prompts(length, len(gamma), budget, most)
    errors = prompt_errors(measure, query, U, V, length, n_prompts, rng)[:, 0]
    errors = errors / ((V @ gamma @ U @ query) ** 2).sum()
    squared = Curve.from_samples([errors], rng)
    return Curve(np.sqrt(squared.mean), np.sqrt(squared.resampled)), errors


def at_length(length: int, dimensions: Sequence[int], deviations: Sequence[float], budget: int, most: int, seed: int):
    """Relative deviations on prompts of one length over s: white tokens, U and V multiples of the identity, D = d.

    Returns a tidy table: dimension, s, measured, low, high (95 % at each point), exact.
    """
    rows = []
    for d in dimensions:
        query, eye = np.eye(d)[0], np.eye(d)
        for s in deviations:
            key = ("at length", d, f"{s:.6f}")
            curve, _ = _relative(eye, (query, s * eye, eye), length, budget, most, seed, key)
            low, high = curve.simultaneous()
            row = {"dimension": f"D = {d}", "s": s, "measured": curve.mean[0], "low": low[0], "high": high[0]}
            rows.append(row | {"exact": float(deviation(s, d, length))})
    return pd.DataFrame(rows)


def over_queries(couplings: Sequence[float], dim: int, tolerance: float, budget: int, seed: int) -> tuple[Curve, Curve]:
    """Measured deviation / tolerance at the length needed over queries, a query a prompt; and at half that length."""
    eye, ratios = np.eye(dim), {1: [], 2: []}
    for coupling in couplings:
        U, V = stream(seed, "over queries").standard_normal((2, dim, dim)) / np.sqrt(dim)
        U = U * np.sqrt(coupling) / np.linalg.norm(U, 2)
        length = int(prompt_length_for(eye, eye, U, V, tolerance, largest=1e8))
        for part, curves in ratios.items():
            rng = stream(seed, "over queries", f"{coupling:g}", part)
            count = affordable_prompts(length // part, dim, budget, most=10**5)
            queries = rng.standard_normal((count, dim))
            errors = prompt_errors(Gaussian(np.zeros(dim), eye), queries, U, V, length // part, count, rng)[:, 0]
            squared = Curve.from_samples([errors / ((V @ U) ** 2).sum() / tolerance**2], rng)
            curves.append(Curve(np.sqrt(squared.mean), np.sqrt(squared.resampled)))
    return join(ratios[1]), join(ratios[2])


def share_beyond(setting, s: float, tolerance: float, confidence: float, budget: int, seed: int):
    """The share of prompts farther than the tolerance from the limit, at Markov's length for the confidence and at the
    length for the root mean square alone: two Estimates with exact binomial intervals, and both lengths.
    """
    covariance, dim = setting
    gamma = covariance_matrix(covariance, dim)
    query, U, V = head = generic_head(dim, gamma, s, seed)
    found, lengths = [], []
    for level in (confidence, None):
        length = int(prompt_length_for(gamma, None, U, V, tolerance, query=query, confidence=level))
        _, errors = _relative(gamma, head, length, budget, 4000, seed, ("beyond", str(level)))
        interval = stats.binomtest(int((errors > tolerance**2).sum()), len(errors)).proportion_ci()
        found.append(Estimate(float((errors > tolerance**2).mean()), interval.low, interval.high))
        lengths.append(length)
    return found, lengths


def drift(setting, s: float, first: int, seconds: Sequence[int], budget: int, seed: int):
    """How far the output moves from a prompt of ``first`` tokens to longer ones, nested and fresh, against the theory.

    Returns a tidy table (prompts, length, measured, low, high, exact, bound; all relative root mean squares), and for
    each kind of prompts the curves of measured / exact and of measured / exact of the other kind.
    """
    covariance, dim = setting
    gamma = covariance_matrix(covariance, dim)
    query, U, V = generic_head(dim, gamma, s, seed)
    outputs = _growing_outputs(gamma, query, U, V, [first, *seconds], budget, stream(seed, "drift"))
    linear, half = ((V @ gamma @ U @ query) ** 2).sum(), len(outputs) // 2
    start, ends = outputs[:, 0], np.swapaxes(outputs[:, 1:], 0, 1)
    moves = {"nested": [end - start for end in ends], "fresh": [end[half : 2 * half] - start[:half] for end in ends]}
    exact = {
        kind: np.array([output_drift(gamma, query, U, V, first, second, kind) for second in seconds]) for kind in moves
    }
    errors = output_error(gamma, query, U, V, [first, *seconds])
    tables, ratios = [], {}
    for kind, other in (("nested", "fresh"), ("fresh", "nested")):
        squared = Curve.from_samples([(move**2).sum(1) for move in moves[kind]], stream(seed, "drift", kind))
        curve = Curve(np.sqrt(squared.mean / linear), np.sqrt(squared.resampled / linear))
        low, high = curve.simultaneous()
        columns = {"prompts": kind, "length": seconds, "measured": curve.mean, "low": low, "high": high}
        columns |= {"exact": np.sqrt(exact[kind] / linear)}
        tables.append(pd.DataFrame(columns | {"bound": np.sqrt(drift_bound(errors[0], errors[1:]) / linear)}))
        ratios[kind] = tuple(curve / np.sqrt(exact[k] / linear) for k in (kind, other))
    return pd.concat(tables, ignore_index=True), ratios


def _growing_outputs(gamma, query, U, V, lengths: list[int], budget: int, rng) -> np.ndarray:
    """Outputs of growing prompts at each length, (prompts, lengths, k)."""
    measure = Gaussian(np.zeros(len(gamma)), gamma)
    n_prompts = affordable_prompts(lengths[-1], len(gamma), budget, most=20_000)
    group, parts = max(1, BLOCK_NUMBERS // (lengths[0] * len(gamma))), []
    for start in range(0, n_prompts, group):
        moments, outputs, count = SoftmaxAccumulator(U @ query), [], min(group, n_prompts - start)
        for length in lengths:
            while (missing := length - moments.count) > 0:
                block = max(1, BLOCK_NUMBERS // (count * len(gamma)))
                moments.update(measure.sample(count, min(missing, block), rng))
            outputs.append(moments.mean @ V.T)
        parts.append(np.stack(outputs, axis=1))
    return np.concatenate(parts)


def causal_prefix(dim: int, coupling: float, length: int, sequences: int, seed: int):
    """Causal self-attention, where the token at position L sees L tokens, itself included, against prompts of length L.

    White tokens. For a random head, and for one whose tokens attend to themselves (U a multiple of the identity).
    Returns a tidy table (head, position, measured, low, high, exact; mean squared deviations averaged over octaves of
    positions) and, for each head, the curve of measured / exact from position 4 on.
    """
    random_U, V = stream(seed, "causal").standard_normal((2, dim, dim)) / np.sqrt(dim)
    scale = {"random head": random_U / np.linalg.norm(random_U, 2), "self-attending head": np.eye(dim)}
    positions, edges = np.arange(1, length + 1), 2 ** np.arange(int(np.log2(length)) + 1)
    octave = np.searchsorted(edges, positions, side="right") - 1
    keep = [k for k in range(len(edges)) if 2 * edges[k] <= length + 1]
    tables, ratios = [], {}
    for name, direction in scale.items():
        U, rng = np.sqrt(coupling) * direction, stream(seed, "causal", name)
        some = np.unique(np.round(np.geomspace(1, length, 40)))
        exact = mean_output_error(np.eye(dim), np.eye(dim), U, V, some).value
        exact = np.exp(PchipInterpolator(np.log(some), np.log(exact))(np.log(positions)))  # within 1e-5
        measured = np.array([_causal_errors(rng.standard_normal((length, dim)), U, V) for _ in range(sequences)])
        share = [(measured / exact)[:, octave == k].mean(1) for k in keep]
        curve = Curve.from_samples(share, rng)
        middle = np.array([exact[octave == k].mean() for k in keep])
        low, high = curve.simultaneous()
        columns = {"head": name, "position": np.sqrt(2) * edges[keep], "measured": curve.mean * middle}
        columns |= {"low": low * middle, "high": high * middle, "exact": middle}
        tables.append(pd.DataFrame(columns))
        ratios[name] = Curve(curve.mean[2:], curve.resampled[:, 2:])
    return pd.concat(tables, ignore_index=True), ratios


def _causal_errors(x: np.ndarray, U, V) -> np.ndarray:
    """Squared distance of causal self-attention from its limit, at each position."""
    scores = x @ U.T @ x.T
    scores[np.triu_indices(len(x), 1)] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    outputs = weights @ x / weights.sum(1, keepdims=True)
    return (((outputs - x @ U.T) @ V.T) ** 2).sum(1)


def rounding(heads: AttentionHeads, lengths: Sequence[int], n_queries: int, seed: int) -> pd.DataFrame:
    """Rounding error of softmax attention in low precision, relative like the deviation, and the deviation beside it.

    Columns: head, length, precision (of :data:`PRECISIONS`), rounding, deviation (exact).
    """
    rows = []
    for k, (U, V) in enumerate(zip(heads.U, heads.V, strict=True)):
        reached = tolerance_reached(heads.covariance, heads.query_covariance, U, V, np.array(lengths))
        for length, deviation_there in zip(lengths, reached, strict=True):
            errors = rounding_errors(heads, k, length, n_queries, seed, PRECISIONS)
            for name, error in errors.items():
                row = {"head": f"head {k}", "length": length, "precision": name, "rounding": error}
                rows.append(row | {"deviation": deviation_there})
    return pd.DataFrame(rows)


def rounding_errors(
    heads: AttentionHeads, k: int, length: int, n_queries: int, seed: int, precisions: dict[str, torch.dtype]
) -> dict[str, float]:
    """Root mean square rounding errors of head k on one prompt, over queries, relative to its limit's linear part.

    PyTorch's scaled_dot_product_attention on the CPU, from U z, x and V x rounded to the precision, against float64. A
    precision that PyTorch does not compute in (float8) only rounds these inputs.
    """
    U, V, rng = heads.U[k], heads.V[k], stream(seed, "rounding", length)
    tokens = Gaussian(np.zeros(len(U)), heads.covariance).sample(1, length, rng)[0]
    z = rng.standard_normal((n_queries, len(U))) @ sqrt_psd(heads.query_covariance)
    linear = V @ heads.covariance @ U
    variance = np.trace(linear @ heads.query_covariance @ linear.T)
    inputs = [torch.from_numpy(np.ascontiguousarray(x)) for x in (z @ U.T, tokens, tokens @ V.T)]
    true = _attend(inputs, torch.float64)
    squared = {name: ((_attend(inputs, precision) - true) ** 2).sum(1).mean() for name, precision in precisions.items()}
    return {name: float(np.sqrt(value / variance)) for name, value in squared.items()}


def rounding_at_needed_length(heads: AttentionHeads, tolerance: float, n_queries: int, seed: int) -> pd.DataFrame:
    """Rounding error / tolerance at each head's needed length: one row a head, columns bfloat16 and float8."""
    precisions, rows = {"bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}, []
    for k, (U, V) in enumerate(zip(heads.U, heads.V, strict=True)):
        length = prompt_length_for(heads.covariance, heads.query_covariance, U, V, tolerance, largest=1e6)
        errors = rounding_errors(heads, k, length, n_queries, seed, precisions)
        rows.append({"length": length} | {name: error / tolerance for name, error in errors.items()})
    return pd.DataFrame(rows)


def _attend(inputs: list[torch.Tensor], precision: torch.dtype) -> np.ndarray:
    query, keys, values = (x[None].to(precision) for x in inputs)
    if precision.itemsize == 1:
        query, keys, values = (x.to(torch.float32) for x in (query, keys, values))
    output = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=1.0)
    return output[0].to(torch.float64).numpy()


def examples_on_prompts(dim: int, risks: Sequence[float], noise_std: float, budget: int, seed: int):
    """Risk of an optimal head with exactly the needed number of examples, on prompts, over the target.

    The head is :func:`lib.experiments.prompt_length.exact.quieter`, since the risk of the paper's optimum has no finite
    variance over queries. Returns Estimates of the mean over the risks, and of the same with half as many examples.
    """
    problem, found = InContextRegression(np.eye(dim), noise_std), []
    head, targets = quieter(problem.optimum()), np.array(risks) * dim / 2
    lengths = examples_for(problem, head, targets)
    for part in (1, 2):
        ratios, errors = [], []
        for length, target in zip(lengths // part, targets, strict=True):
            count, rng = affordable_prompts(int(length), dim + 1, budget, 10**6), stream(seed, "few-shot", part)
            measured = risks_on_prompts(problem, int(length), count, rng, {"": softmax_head(*head)})[""]
            ratios.append(measured.value / target)
            errors.append(measured.standard_error / target)
        mean, width = np.mean(ratios), 1.96 * np.linalg.norm(errors) / len(errors)
        found.append(Estimate(mean, mean - width, mean + width))
    return found
