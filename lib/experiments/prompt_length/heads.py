"""What the theory says of given heads, and the rounding errors of low precision beside it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from lib.finite_prompt import coupling, mean_output_drift, prompt_length_for, tolerance_reached
from lib.finite_prompt.head_file import AttentionHeads
from lib.finite_prompt.needed_length import query_numbers
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.tokens.covariances import sqrt_psd
from lib.tokens.families import Gaussian

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COARSE = {"bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}
LONGEST_DRAWN = 1e6  # tokens, of a prompt to be drawn


def answers(*, heads: AttentionHeads, tolerances: Sequence[float], context: int) -> Comparison:
    """What the exact theory says of each head over its queries, and at its one query if it has one.

    Args:
        heads: h heads, and the covariances of their tokens and queries.
        tolerances: relative tolerances.
        context: tokens L at which heads are judged.

    Returns:
        A row a head and kind of queries: head, queries (all or yours), coupling, s (root mean square), a needed length
        a tolerance, "at context" (the deviation with so many tokens), "when it doubles" (how far the output then moves,
        nested, relative). Nothing is judged.

    Cost: 3 s a head.
    """
    names, rows = [f"L for {tolerance:.0%}" for tolerance in tolerances], []
    for number, (U, V) in enumerate(zip(heads.U, heads.V, strict=True)):
        head = heads.covariance, heads.query_covariance, U, V
        strength = coupling(heads.covariance, heads.query_covariance, U)
        s = np.sqrt(np.trace(U.T @ heads.covariance @ U @ heads.query_covariance))
        lengths = prompt_length_for(*head, tolerances)
        row = {"head": number, "queries": "all", "coupling": strength, "s": s, **dict(zip(names, lengths, strict=True))}
        moved = mean_output_drift(*head, context, 2 * context, rtol=1e-3).value / _linear_part(heads, number)
        rows.append(row | {"at context": tolerance_reached(*head, context), "when it doubles": np.sqrt(moved)})
        if heads.query is not None:
            s = query_numbers(heads.covariance, heads.query, U, V)[0]
            lengths = prompt_length_for(*head, tolerances, query=heads.query)
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
            columns = {"head": f"head {number}", "length": length, "precision": list(errors)}
            tables.append(pd.DataFrame(columns | {"rounding": errors.values(), "deviation": deviation}))
    return Comparison(pd.concat(tables, ignore_index=True))


def rounding_errors(
    heads: AttentionHeads, number: int, *, length: int, n_queries: int, seed: int, precisions: dict[str, torch.dtype]
) -> dict[str, float]:
    """Root mean square rounding errors of one head on one prompt, over queries, relative to E|V Gamma U z|^2.

    PyTorch's scaled_dot_product_attention on the CPU, from U z, x and V x rounded to the precision, against float64. A
    precision that PyTorch does not compute in (float8) only rounds these inputs.
    """
    U, V, rng = heads.U[number], heads.V[number], stream(seed, "rounding", length)
    tokens = Gaussian.centered(heads.covariance).sample(1, length, rng)[0]
    z = rng.standard_normal((n_queries, len(U))) @ sqrt_psd(heads.query_covariance)
    inputs = [torch.from_numpy(np.ascontiguousarray(x)) for x in (z @ U.T, tokens, tokens @ V.T)]
    true, variance = _attend(inputs, torch.float64), _linear_part(heads, number)
    squares = {name: ((_attend(inputs, precision) - true) ** 2).sum(1).mean() for name, precision in precisions.items()}
    return {name: float(np.sqrt(square / variance)) for name, square in squares.items()}


def _attend(inputs: list[torch.Tensor], precision: torch.dtype) -> np.ndarray:
    query, keys, values = (x[None].to(precision) for x in inputs)
    if precision.itemsize == 1:
        query, keys, values = (x.to(torch.float32) for x in (query, keys, values))
    output = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=1.0)
    return output[0].to(torch.float64).numpy()


def rounding_at_needed_length(*, heads: AttentionHeads, tolerance: float, n_queries: int, seed: int) -> Comparison:
    """Rounding errors over the tolerance on a prompt of each head's needed length.

    Args:
        heads: h heads, and the covariances of their tokens and queries.
        tolerance: relative tolerance.
        n_queries: queries a prompt.
        seed: of tokens and queries.

    Returns:
        A row a head: length, bfloat16, float8 (the errors over the tolerance).
        measured: bfloat16, the largest of all heads. control: inputs rounded to float8, the smallest.
    """
    rows = []
    for number, (U, V) in enumerate(zip(heads.U, heads.V, strict=True)):
        length = prompt_length_for(heads.covariance, heads.query_covariance, U, V, tolerance, largest=LONGEST_DRAWN)
        errors = rounding_errors(heads, number, length=length, n_queries=n_queries, seed=seed, precisions=COARSE)
        rows.append({"length": length} | {name: error / tolerance for name, error in errors.items()})
    table = pd.DataFrame(rows)
    return Comparison(table, Intervals.exact(table["bfloat16"]), Estimate.exact(table["float8"].min()))


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
