"""Several layers and heads: how far a finite stack is from the stack of its limits, with and without normalization."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib.finite_prompt import coupling, local_slope, output_error, score_deviation, tokens_deviation, tokens_error
from lib.notebook.comparison import Comparison
from lib.prompts.attention import softmax_attention
from lib.prompts.batches import batches
from lib.prompts.curve import Curve
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream

LONGER = 8  # times as many tokens, for a slope
DRAWN = 64  # tokens of a prompt drawn from a layer


def stacks(*, dim: int, strength: float, heads: int, depth: int, length: int, replicates: int, seed: int) -> Comparison:
    """Attention-only stacks with residual, x <- x + sum_h V_h T_h(x), beside the limit's maps on the same tokens.

    In the limit the covariance of the tokens goes on as B Gamma B', B = I + sum_h V_h Gamma U_h, and each token as B x.

    Args:
        dim: dimension d. strength: coupling of every head. heads: in a layer. depth: layers. length: tokens L of a
            stack, and eight times as many. replicates: stacks. seed: of tokens and heads.

    Returns:
        A row a length and layer: length, layer, distance (mean squared, of the tokens, relative; a mean over stacks),
        apart (what it would be if the layers' errors, each as in the first, only added up).
        measured: slope of the squared distance in L at the last layer, beside -1. near_miss: beside -4/5. control:
        beside -1/2, of a distance that is not squared.
    """
    found = np.array(
        [
            [_distances(dim, strength, heads, depth, n, stream(seed, "stack", k)) for n in (length, LONGER * length)]
            for k in range(replicates)
        ]
    )  # (replicates, lengths, layers)
    slopes = -local_slope([length, LONGER * length], found[:, :, -1])[:, 0]  # at the last layer
    layer, tables = np.arange(1, depth + 1), []
    for n, mean in zip((length, LONGER * length), found.mean(0), strict=True):
        columns = {"length": f"L = {n:,}", "layer": layer, "distance": mean, "apart": mean[0] * layer}
        tables.append(pd.DataFrame(columns))
    sides = [Estimate.of_mean(slopes - law) for law in (-1.0, -0.5, -0.8)]
    return Comparison(pd.concat(tables, ignore_index=True), *sides[:2], near_miss=sides[2])


def _distances(dim, strength, heads, depth, length, rng) -> np.ndarray:
    gamma, drawn = np.eye(dim), rng.standard_normal((depth, 2, heads, dim, dim)) / np.sqrt(dim)  # alike at every length
    x = ideal = rng.standard_normal((length, dim))
    distances = []
    for U, V in drawn:
        V = V / np.sqrt(heads * depth)  # as large as keeps the tokens at their size through all layers
        for u in U:
            u *= np.sqrt(strength / coupling(gamma, gamma, u))
        x = x + sum(softmax_attention(x, x, u, v) for u, v in zip(U, V, strict=True))
        B = np.eye(dim) + sum(v @ gamma @ u for u, v in zip(U, V, strict=True))
        ideal, gamma = ideal @ B.T, B @ gamma @ B.T
        distances.append(((x - ideal) ** 2).sum() / (ideal**2).sum())
    return np.array(distances)


def normalized(*, dim: int, s: float, depth: int, length: int, prompts: int, seed: int) -> Comparison:
    """A stack whose layers normalize each token to length sqrt(d): its tokens are no longer Gaussian, nor a sphere's.

    Args:
        dim: dimension d. s: score deviation of the first layer's typical query. depth: layers. length: tokens that pass
            through. prompts: drawn from the tokens of each layer, independently. seed: of all draws.

    Returns:
        A row a layer: layer, measured, low, high, exact (squared output errors on prompts of 64 draws from the layer's
        tokens), nonlinearity (of their limit, relative), gaussian.
        measured: the curve over layers over the exact one for that list of tokens. near_miss: over the Gaussian formula
        with their covariance. control: over the error of equal weights.
    """
    rng = stream(seed, "normalized")
    x, samples, rows = _on_sphere(rng.standard_normal((length, dim))), [], []
    for layer in range(1, depth + 1):
        gamma, (U, V) = np.cov(x.T), rng.standard_normal((2, dim, dim)) / np.sqrt(dim)
        query = x[0]
        U *= s / score_deviation(gamma, query, U)
        exact, parts = tokens_error(x, query, U, V, DRAWN), tokens_deviation(x, query, U, V, DRAWN)
        draws = (x[rng.integers(length, size=(b.stop - b.start, DRAWN))] for b in batches(prompts, DRAWN * dim))
        errors = [((softmax_attention(drawn, query, U, V) - exact.limit) ** 2).sum(-1) for drawn in draws]
        samples.append(np.concatenate(errors))
        row = {"layer": layer, "exact": exact.squared_error[0], "nonlinearity": parts.nonlinearity}
        row |= {"gaussian": float(output_error(gamma, query, U, V, DRAWN))}
        rows.append(row | {"equal": np.trace(V @ gamma @ V.T) / DRAWN})
        x = _on_sphere(x + softmax_attention(x, x, U, V))
    table = pd.DataFrame(rows)
    curve = Curve.from_samples(samples, stream(seed, "normalized", "bootstrap"))
    exact, equal, gaussian = (table[name].to_numpy() for name in ("exact", "equal", "gaussian"))
    found = Comparison.of_curve(curve, exact, equal, gaussian, layer=table["layer"])
    return replace(found, table=found.table.assign(nonlinearity=table["nonlinearity"], gaussian=gaussian))


def three_errors(table: pd.DataFrame) -> pd.DataFrame:
    """The table of :func:`normalized` with a row for each of three errors, for a figure: from, layer, error."""
    names = {"measured": "prompts", "exact": "their list", "gaussian": "Gaussian"}
    long = table.melt("layer", list(names), var_name="from", value_name="error")
    return long.assign(**{"from": long["from"].map(names)})


def _on_sphere(x: np.ndarray) -> np.ndarray:
    return x * np.sqrt(x.shape[-1]) / np.linalg.norm(x, axis=-1, keepdims=True)
