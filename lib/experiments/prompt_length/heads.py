"""What the theory says of given heads, and whether prompts agree: of Gaussian tokens, or of the user's own."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.experiments.prompt_length.rounding import linear_part, predicted_rounding
from lib.finite_prompt import (
    coupling,
    mean_output_drift,
    output_drift,
    output_error,
    prompt_length_for,
    score_deviation,
    tokens_error,
    tolerance_reached,
)
from lib.finite_prompt.head_file import AttentionHeads
from lib.finite_prompt.needed_length import query_numbers
from lib.finite_prompt.weight_moments import LARGEST_S
from lib.notebook.comparison import Comparison
from lib.prompts.attention import softmax_attention
from lib.prompts.batches import MEMORY, affordable_prompts, batches
from lib.prompts.curve import Curve
from lib.prompts.streams import stream
from lib.tokens.families import Gaussian

LONGER = (1.5, 4.0)  # times as many tokens, of the near miss and of the control
LOUDEST = 4.0  # s of a head: beyond, more tokens change little
DRIFTING = 64  # queries of a list whose drift is averaged


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
        head, queries = (heads.covariance, heads.query_covariance, U, V), heads.queries_of(number)
        rounded = predicted_rounding(heads, number).total
        lengths = prompt_length_for(*head, [*tolerances, rounded], queries=queries)
        row = {"head": number, "queries": "all", "coupling": coupling(heads.covariance, heads.query_covariance, U)}
        row |= {"s": heads.score_deviation(number), **dict(zip(names, lengths, strict=True))}
        row |= {"bfloat16": rounded, "at context": tolerance_reached(*head, context, queries=queries)}
        rows.append(row | {"when it doubles": np.sqrt(_doubled(heads, number, context) / linear_part(heads, number))})
        if heads.query is not None:
            query = heads.query + heads.shift(number)
            s = query_numbers(heads.covariance, query, U, V)[0]
            lengths = [*prompt_length_for(*head, tolerances, query=query), np.nan]
            row = {"head": number, "queries": "yours", "s": s, **dict(zip(names, lengths, strict=True))}
            rows.append(row | {"at context": tolerance_reached(*head, context, query=query)})
    return Comparison(pd.DataFrame(rows))


def _doubled(heads: AttentionHeads, number: int, context: int) -> float:
    """E|T_2L - T_L|^2 over the queries of one head, of a list over some."""
    head, queries = (heads.U[number], heads.V[number], context, 2 * context), heads.queries_of(number)
    if queries is None:
        return float(mean_output_drift(heads.covariance, heads.query_covariance, *head, rtol=1e-3).value)
    some = queries[:: max(1, len(queries) // DRIFTING)]
    return float(np.mean([output_drift(heads.covariance, query, *head) for query in _within(heads, number, some)]))


def on_prompts(
    *, heads: AttentionHeads, length: int, n_queries: int, number_budget: int, most: int, seed: int
) -> Comparison:
    """Squared deviations of each head on prompts of independent tokens, over the exact ones.

    Tokens are drawn from the list of the heads' own if there is one, and Gaussian if not; so are the queries, which are
    the same in every prompt. Each one's error is relative to its own exact error, so that no loud
    query outweighs the others. All heads see the same prompts.

    Args:
        heads: h heads, with their tokens and queries or the covariances of these.
        length: tokens a prompt, L.
        n_queries: queries a prompt; those beyond the theory's reach are scaled down to it, s = 40.
        number_budget, most: random numbers, and prompts, at most.
        seed: of tokens and queries.

    Returns:
        A row a head: head (its name), s (root mean square over queries), measured, low, high (over the exact
        ones; all intervals hold at once). measured: the curve, a point a head of s up to 4; all heads if there is none.
        near miss and control: over the exact ones of prompts half as long again, and of four times as many tokens.
    """
    rng, d = stream(seed, "own heads", length), len(heads.covariance)
    lengths = [length, *(round(times * length) for times in LONGER)]
    n_prompts = affordable_prompts(length, d, number_budget, most)
    cases = [_exact(heads, number, n_queries, lengths, seed) for number in range(len(heads))]
    ratios = np.empty((len(heads), len(lengths), n_prompts))
    for part in batches(n_prompts, length * d, MEMORY):
        prompts = _prompts(heads, part.stop - part.start, length, rng)
        for number, (queries, limit, exact) in enumerate(cases):
            output = softmax_attention(prompts, queries, heads.U[number], heads.V[number])
            errors = ((output - limit) ** 2).sum(-1)
            ratios[number, :, part] = np.mean(errors / exact[:, None], axis=-1)
    curves = [Curve.from_samples(list(ratios[:, k]), stream(seed, "bootstrap")) for k in range(len(lengths))]
    s = np.array([heads.score_deviation(number) for number in range(len(heads))])
    judged = (s <= LOUDEST) | (s.min() > LOUDEST)
    table = pd.DataFrame({"head": [f"head {k}" for k in range(len(heads))], "s": s, **curves[0].columns()})
    measured, near_miss, control = (curve.at(judged) for curve in curves)
    return Comparison(table, measured, control, near_miss=near_miss)


def quietest(heads: AttentionHeads) -> float:
    """The smallest s, root mean square over queries, of the heads."""
    return min(heads.score_deviation(number) for number in range(len(heads)))


def _prompts(heads: AttentionHeads, count: int, length: int, rng) -> np.ndarray:
    """Independent tokens, shape (count, length, d): draws from the heads' own, or Gaussian ones."""
    if heads.tokens is None:
        return Gaussian.centered(heads.covariance).sample(count, length, rng)
    return heads.tokens[rng.integers(len(heads.tokens), size=(count, length))]


def _within(heads: AttentionHeads, number: int, queries: np.ndarray) -> np.ndarray:
    """Queries, those beyond the theory's reach, s = 40, scaled down to it."""
    s, largest = score_deviation(heads.covariance, queries, heads.U[number]), LARGEST_S * (1 - 1e-9)  # up to rounding
    return queries * (largest / np.maximum(s, largest))[:, None]


def _exact(heads: AttentionHeads, number: int, count: int, lengths: list[int], seed: int) -> tuple[np.ndarray, ...]:
    """Queries as they are asked (n, d), their limits (n, k), and their exact mean squared errors (n_lengths, n)."""
    rng, U, V = stream(seed, "own queries"), heads.U[number], heads.V[number]
    queries = heads.queries_of(number)
    z = heads.gaussian_queries(count, rng) if queries is None else queries[rng.integers(len(queries), size=count)]
    z = _within(heads, number, z)
    if heads.tokens is None:
        return z, z @ U.T @ heads.covariance @ V.T, output_error(heads.covariance, z, U, V, lengths).T
    found = [tokens_error(heads.tokens, query, U, V, lengths) for query in z]
    return z, np.array([x.limit for x in found]), np.transpose([x.squared_error for x in found])
