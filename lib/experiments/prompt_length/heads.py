"""What the theory says of given heads, and the rounding errors of low precision beside it."""

from collections.abc import Sequence
from math import hypot, log, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from lib.experiments.prompt_length.on_prompts import root_mean_square
from lib.finite_prompt import coupling, mean_output_drift, prompt_length_for, tolerance_reached
from lib.finite_prompt.head_file import AttentionHeads
from lib.finite_prompt.needed_length import query_numbers
from lib.notebook.comparison import Comparison
from lib.prompts.streams import stream
from lib.tokens.covariances import sqrt_psd
from lib.tokens.families import Gaussian

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COARSE = {"bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}
BFLOAT16_UNIT = 2.0**-8  # half the distance between 1 and the next number
LONGEST_DRAWN = 10**5  # tokens, of a prompt to be drawn


def answers(*, heads: AttentionHeads, tolerances: Sequence[float], context: int) -> Comparison:
    """What the exact theory says of each head over its queries, and at its one query if it has one.

    Args:
        heads: h heads, and the covariances of their tokens and queries.
        tolerances: relative tolerances.
        context: tokens L at which heads are judged.

    Returns:
        A row a head and kind of queries: head, queries (all or yours), coupling, s (root mean square), a needed length
        a tolerance, "bfloat16" (the predicted rounding error of long prompts), "L for bfloat16" (from which length on
        it is larger than the deviation), "at context" (the deviation with so many tokens), "when it doubles" (how far
        the output then moves, nested, relative). Nothing is judged.

    Cost: 3 s a head.
    """
    names, rows = [f"L for {tolerance:.0%}" for tolerance in tolerances] + ["L for bfloat16"], []
    for number, (U, V) in enumerate(zip(heads.U, heads.V, strict=True)):
        head = heads.covariance, heads.query_covariance, U, V
        strength = coupling(heads.covariance, heads.query_covariance, U)
        s = np.sqrt(np.trace(U.T @ heads.covariance @ U @ heads.query_covariance))
        rounded = predicted_rounding(heads, number).total
        lengths = prompt_length_for(*head, [*tolerances, rounded])
        row = {"head": number, "queries": "all", "coupling": strength, "s": s, **dict(zip(names, lengths, strict=True))}
        moved = mean_output_drift(*head, context, 2 * context, rtol=1e-3).value / _linear_part(heads, number)
        row |= {"bfloat16": rounded, "at context": tolerance_reached(*head, context)}
        rows.append(row | {"when it doubles": np.sqrt(moved)})
        if heads.query is not None:
            s = query_numbers(heads.covariance, heads.query, U, V)[0]
            lengths = [*prompt_length_for(*head, tolerances, query=heads.query), np.nan]
            row = {"head": number, "queries": "yours", "s": s, **dict(zip(names, lengths, strict=True))}
            rows.append(row | {"at context": tolerance_reached(*head, context, query=heads.query)})
    return Comparison(pd.DataFrame(rows))


def _linear_part(heads: AttentionHeads, number: int) -> float:
    """E|V Gamma U z|^2 over the queries of one head."""
    linear = heads.V[number] @ heads.covariance @ heads.U[number]
    return np.trace(linear @ heads.query_covariance @ linear.T)


def rounding(*, heads: AttentionHeads, lengths: Sequence[int], n_queries: int, seed: int) -> Comparison:
    """Rounding errors of attention in low precision, relative like the deviation, and the deviation beside them.

    Args:
        heads: h heads, and the covariances of their tokens and queries.
        lengths: tokens L of one prompt each.
        n_queries: queries a prompt.
        seed: of tokens and queries.

    Returns:
        A row a head, length and precision: head (its name), length, precision (of :data:`PRECISIONS`), rounding,
        deviation (exact). Nothing is judged.
    """
    tables = []
    for number, (U, V) in enumerate(zip(heads.U, heads.V, strict=True)):
        reached = tolerance_reached(heads.covariance, heads.query_covariance, U, V, lengths)
        for length, deviation in zip(lengths, reached, strict=True):
            errors = rounding_errors(
                heads, number, length=length, n_queries=n_queries, seed=seed, precisions=PRECISIONS
            )
            roots = [float(np.sqrt(squares.mean())) for squares in errors.values()]
            columns = {"head": f"head {number}", "length": length, "precision": list(errors)}
            tables.append(pd.DataFrame(columns | {"rounding": roots, "deviation": deviation}))
    return Comparison(pd.concat(tables, ignore_index=True))


def rounding_errors(
    heads: AttentionHeads, number: int, *, length: int, n_queries: int, seed: int, precisions: dict[str, torch.dtype]
) -> dict[str, np.ndarray]:
    """Squared rounding errors of one head on one prompt, shape (n_queries,) each, relative to E|V Gamma U z|^2.

    PyTorch's scaled_dot_product_attention on the CPU, from U z, x and V x rounded to the precision, against float64. A
    precision that PyTorch does not compute in (float8) only rounds these inputs.
    """
    U, V, rng = heads.U[number], heads.V[number], stream(seed, "rounding", length)
    tokens = Gaussian.centered(heads.covariance).sample(1, length, rng)[0]
    z = rng.standard_normal((n_queries, len(U))) @ sqrt_psd(heads.query_covariance)
    inputs = [torch.from_numpy(np.ascontiguousarray(x)) for x in (z @ U.T, tokens, tokens @ V.T)]
    true, variance = _attend(inputs, torch.float64), _linear_part(heads, number)
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
    U, image = heads.U[number], heads.V[number] @ heads.covariance
    r = unit / (2 * sqrt(log(4)))
    moved = np.diag(U @ heads.query_covariance @ U.T) @ (image**2).sum(0)
    return Rounding(r * sqrt(moved / _linear_part(heads, number)), r)


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
        needed = prompt_length_for(heads.covariance, heads.query_covariance, U, V, tolerance, largest=LONGEST_DRAWN)
        length = int(min(needed, LONGEST_DRAWN))
        squares = rounding_errors(heads, number, length=length, n_queries=n_queries, seed=seed, precisions=COARSE)
        for name, found in curves.items():
            found.append(squares[name])
        predicted.append(predicted_rounding(heads, number))
        rows.append({"head": f"head {number}", "length": length})
    fine, coarse = (root_mean_square(found, stream(seed, "rounding", name)) for name, found in curves.items())
    total, output = (np.array([getattr(p, name) for p in predicted]) for name in ("total", "output"))
    table = pd.DataFrame(rows).assign(**fine.columns(), predicted=total, float8=coarse.mean)
    return Comparison(table, fine / total, coarse / total, near_miss=fine / output)


def chart(rounded: pd.DataFrame, most: int = 4) -> pd.DataFrame:
    """The table of :func:`rounding` with its quantities one below the other, for a figure of few heads.

    Args:
        rounded: the table.
        most: heads that are kept, the first ones.

    Returns:
        Columns head, length, what, value.
    """
    exact = rounded.drop_duplicates(["head", "length"]).assign(what="finite prompt", value=lambda x: x["deviation"])
    errors = rounded.assign(what=rounded["precision"], value=rounded["rounding"])
    both = pd.concat([exact, errors], ignore_index=True)
    both = both[both["head"].isin(both["head"].unique()[:most])]
    return both.sort_values(["head", "what", "length"], kind="stable")[["head", "length", "what", "value"]]
