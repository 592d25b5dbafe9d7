"""Rounding errors of attention in low precision, beside the deviation of a finite prompt, and what predicts them."""

from collections.abc import Sequence
from math import hypot, log, sqrt
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.colors import LogNorm

from lib.experiments.prompt_length.on_prompts import root_mean_square
from lib.finite_prompt import prompt_length_for, tolerance_reached
from lib.finite_prompt.head_file import AttentionHeads
from lib.notebook import figures
from lib.notebook.comparison import Comparison
from lib.prompts.streams import stream
from lib.tokens.families import Gaussian

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COARSE = {"bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}
BFLOAT16_UNIT = 2.0**-8  # half the distance between 1 and the next number
LONGEST_DRAWN = 10**5  # tokens, of a prompt to be drawn
NUMBERS_DRAWN = 2**24  # of the tokens of one prompt
MOST_PANELS = 6  # heads drawn one by one; beyond, as a map


def linear_part(heads: AttentionHeads, number: int) -> float:
    """E|V Gamma U z|^2 over the queries of one head."""
    image = heads.V[number] @ heads.covariance
    return float(np.sum((image @ heads.tilt_moment(number)) * image))


def rounding(*, heads: AttentionHeads, lengths: Sequence[int], n_queries: int, seed: int) -> Comparison:
    """Rounding errors of attention in low precision, relative like the deviation, and the deviation beside them.

    Args:
        heads: h heads, and the covariances of their tokens and queries.
        lengths: tokens L of one prompt each, which all heads see; prompts of more than 2^24 numbers are left out.
        n_queries: queries a prompt.
        seed: of tokens and queries.

    Returns:
        A row a head, length and precision: head (its name), length, precision (of :data:`PRECISIONS`), rounding,
        deviation (exact). Nothing is judged.
    """
    drawn = [length for length in lengths if length * len(heads.covariance) <= NUMBERS_DRAWN]
    names, tables = [f"head {number}" for number in range(len(heads))], []
    reached = [
        tolerance_reached(heads.covariance, heads.query_covariance, U, V, drawn, queries=heads.queries_of(number))
        for number, (U, V) in enumerate(zip(heads.U, heads.V, strict=True))
    ]
    for k, length in enumerate(drawn):
        draw = tokens_and_queries(heads, length=length, n_queries=n_queries, seed=seed)
        for number, name in enumerate(names):
            errors = rounding_errors(heads, number, *draw, precisions=PRECISIONS)
            roots = [float(np.sqrt(squares.mean())) for squares in errors.values()]
            columns = {"head": name, "length": length, "precision": list(errors)}
            tables.append(pd.DataFrame(columns | {"rounding": roots, "deviation": reached[number][k]}))
    return Comparison(pd.concat(tables, ignore_index=True))


def tokens_and_queries(heads: AttentionHeads, *, length: int, n_queries: int, seed: int) -> tuple:
    """Gaussian tokens (L, d), and queries (n, d) of the heads without their shift: the same for every head."""
    rng, queries = stream(seed, "rounding", length), heads.queries
    tokens = Gaussian.centered(heads.covariance).sample(1, length, rng)[0]
    if queries is not None:
        return tokens, queries[rng.integers(len(queries), size=n_queries)]
    return tokens, heads.gaussian_queries(n_queries, rng)


def rounding_errors(
    heads: AttentionHeads, number: int, tokens, queries, *, precisions: dict[str, torch.dtype]
) -> dict[str, np.ndarray]:
    """Squared rounding errors of one head on one prompt, shape (n_queries,) each, relative to E|V Gamma U z|^2.

    PyTorch's scaled_dot_product_attention on the CPU, from U z, x and V x rounded to the precision, against float64. A
    precision that PyTorch does not compute in (float8) only rounds these inputs.

    Args:
        heads, number: the head. tokens: shape (L, d). queries: without a shift, shape (n_queries, d). precisions: by
            name.
    """
    U, V, queries = heads.U[number], heads.V[number], queries + heads.shift(number)
    inputs = [torch.from_numpy(np.ascontiguousarray(x)) for x in (queries @ U.T, tokens, tokens @ V.T)]
    true, variance = _attend(inputs, torch.float64), linear_part(heads, number)
    return {name: ((_attend(inputs, kind) - true) ** 2).sum(1) / variance for name, kind in precisions.items()}


def _attend(inputs: list[torch.Tensor], precision: torch.dtype) -> np.ndarray:
    query, keys, values = (x[None].to(precision) for x in inputs)
    if precision.itemsize == 1:
        query, keys, values = (x.to(torch.float32) for x in (query, keys, values))
    output = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=1.0)
    return output[0].to(torch.float64).numpy()


class Rounding(NamedTuple):
    """Relative rounding errors on a long prompt, root mean squares: of the query U z, and of the output."""

    query: float
    output: float

    @property
    def total(self) -> float:
        """Both, which are independent."""
        return hypot(self.query, self.output)


def predicted_rounding(heads: AttentionHeads, number: int, unit: float = BFLOAT16_UNIT) -> Rounding:
    """The rounding error that a long prompt leaves of one head: those of keys and values average out, two do not.

    A number is rounded by an error that is uniform between -u and u times the power of 2 below it. Over all scales
    the mean square of that power over the number is the integral of 4^{-x} over [0, 1], 3 / (4 log 4), so that the
    relative error is r = u / (2 sqrt(log 4)) in root mean square. Independent errors r a_i of the entries of a = U z
    move V Gamma a by r^2 sum_i E a_i^2 |V Gamma e_i|^2; the output is rounded once more, by r.

    Args:
        heads, number: the head. unit: u, of the precision.

    Source: notebook 06; entries are taken to be spread over scales, and errors to be independent.
    """
    image = heads.V[number] @ heads.covariance
    r = unit / (2 * sqrt(log(4)))
    moved = np.diag(heads.tilt_moment(number)) @ (image**2).sum(0)
    return Rounding(r * sqrt(moved / linear_part(heads, number)), r)


def rounding_at_needed_length(*, heads: AttentionHeads, tolerance: float, n_queries: int, seed: int) -> Comparison:
    """Rounding errors of bfloat16 on a prompt of each head's needed length, at most 10^5, over the predicted ones.

    Args:
        heads: h heads, and the covariances of their tokens and queries.
        tolerance: relative tolerance.
        n_queries: queries a prompt.
        seed: of tokens and queries.

    Returns:
        A row a head: head, length, measured, low, high, predicted, float8 (root mean squares, relative).
        measured: the curve over the predicted one, a point a head. control: of inputs rounded to float8. near miss:
        over the error of the output alone, as if the query's averaged out too.
    """
    curves, predicted, rows = {name: [] for name in COARSE}, [], []
    for number, (U, V) in enumerate(zip(heads.U, heads.V, strict=True)):
        head = heads.covariance, heads.query_covariance, U, V
        needed = prompt_length_for(*head, tolerance, queries=heads.queries_of(number), largest=LONGEST_DRAWN)
        length = int(min(needed, LONGEST_DRAWN))
        draw = tokens_and_queries(heads, length=length, n_queries=n_queries, seed=seed)
        squares = rounding_errors(heads, number, *draw, precisions=COARSE)
        for name, found in curves.items():
            found.append(squares[name])
        predicted.append(predicted_rounding(heads, number))
        rows.append({"head": f"head {number}", "length": length})
    fine, coarse = (root_mean_square(found, stream(seed, "rounding", name)) for name, found in curves.items())
    total, output = (np.array([getattr(p, name) for p in predicted]) for name in ("total", "output"))
    table = pd.DataFrame(rows).assign(**fine.columns(), predicted=total, float8=coarse.mean)
    return Comparison(table, fine / total, coarse / total, near_miss=fine / output)


def rounding_figure(table: pd.DataFrame) -> plt.Figure:
    """The table of :func:`rounding`: a panel a head, or beyond six heads a map of all of them against the position."""
    order = list(dict.fromkeys(table["head"]))
    if len(order) > MOST_PANELS:
        return _maps(table, order)
    exact = table.drop_duplicates(["head", "length"]).assign(what="finite prompt", value=lambda x: x["deviation"])
    errors = table.assign(what=table["precision"], value=table["rounding"])
    both = pd.concat([exact, errors], ignore_index=True).sort_values(["what", "length"], kind="stable")
    both = both.sort_values("head", kind="stable", key=lambda names: names.map(order.index))
    labels = ("position, tokens seen", "relative deviation")
    return figures.curves(both, "length", hue="what", panel="head", line="value", labels=labels, height=3.0)


def _maps(table: pd.DataFrame, order: list[str]) -> plt.Figure:
    """The finite prompt's deviation, and the rounding error of bfloat16, of each head (rows) at each position."""
    coarse = table[table["precision"] == "bfloat16"]
    figure, axes = plt.subplots(1, 2, figsize=(figures.WIDTH, 1.4 + 0.3 * len(order)), sharey=True)
    for axis, (title, column) in zip(axes, {"finite prompt": "deviation", "bfloat16": "rounding"}.items(), strict=True):
        grid = coarse.pivot(index="head", columns="length", values=column).loc[order]
        sns.heatmap(grid, annot=True, fmt=".2g", cmap="mako_r", norm=LogNorm(), ax=axis, cbar=False)
        axis.set(title=title, xlabel="position, tokens seen", ylabel="")
        axis.grid(False)
        axis.tick_params(axis="y", rotation=0)
    axes[0].set_ylabel("relative deviation of each head")
    return figure
