"""What the theory says of given heads, and whether prompts of Gaussian tokens with their covariance agree."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.experiments.prompt_length.rounding import linear_part, predicted_rounding
from lib.finite_prompt import coupling, mean_output_drift, prompt_length_for, tolerance_reached
from lib.finite_prompt.head_file import AttentionHeads
from lib.finite_prompt.needed_length import query_numbers
from lib.finite_prompt.weight_moments import LARGEST_S, softmax_functionals
from lib.notebook.comparison import Comparison
from lib.prompts.attention import softmax_attention
from lib.prompts.batches import MEMORY, affordable_prompts, batches
from lib.prompts.curve import Curve
from lib.prompts.streams import stream
from lib.tokens.covariances import sqrt_psd
from lib.tokens.families import Gaussian

LONGER = (1.5, 4.0)  # times as many tokens, of the near miss and of the control
LOUDEST = 4.0  # s of a head: beyond, more tokens change little


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
        s = _over_queries(heads, U)
        rounded = predicted_rounding(heads, number).total
        lengths = prompt_length_for(*head, [*tolerances, rounded])
        row = {"head": number, "queries": "all", "coupling": strength, "s": s, **dict(zip(names, lengths, strict=True))}
        moved = mean_output_drift(*head, context, 2 * context, rtol=1e-3).value / linear_part(heads, number)
        row |= {"bfloat16": rounded, "at context": tolerance_reached(*head, context)}
        rows.append(row | {"when it doubles": np.sqrt(moved)})
        if heads.query is not None:
            s = query_numbers(heads.covariance, heads.query, U, V)[0]
            lengths = [*prompt_length_for(*head, tolerances, query=heads.query), np.nan]
            row = {"head": number, "queries": "yours", "s": s, **dict(zip(names, lengths, strict=True))}
            rows.append(row | {"at context": tolerance_reached(*head, context, query=heads.query)})
    return Comparison(pd.DataFrame(rows))


def on_prompts(
    *, heads: AttentionHeads, length: int, n_queries: int, number_budget: int, most: int, seed: int
) -> Comparison:
    """Squared deviations of each head on prompts of Gaussian tokens with its covariance, over the exact ones.

    Queries are Gaussian, the same in every prompt; each one's error is relative to its own exact error, so that no loud
    query outweighs the others. All heads see the same prompts.

    Args:
        heads: h heads, and the covariances of their tokens and queries.
        length: tokens a prompt, L.
        n_queries: queries a prompt; those beyond the theory's reach are scaled down to it, s = 40.
        number_budget, most: random numbers, and prompts, at most.
        seed: of tokens and queries.

    Returns:
        A row a head: head (its name), s (root mean square over queries), measured, low, high (over the exact
        ones; all intervals hold at once). measured: the curve, a point a head of s up to 4; all heads if there is none.
        near miss and control: over the exact ones of prompts half as long again, and of four times as many tokens.
    """
    rng = stream(seed, "own heads", length)
    z = rng.standard_normal((n_queries, len(heads.covariance))) @ sqrt_psd(heads.query_covariance)
    tokens, d = Gaussian.centered(heads.covariance), len(heads.covariance)
    lengths = [length, *(round(times * length) for times in LONGER)]
    n_prompts = affordable_prompts(length, d, number_budget, most)
    cases = [_exact(heads, U, V, z, lengths) for U, V in zip(heads.U, heads.V, strict=True)]
    ratios = np.empty((len(heads), len(lengths), n_prompts))
    for part in batches(n_prompts, length * d, MEMORY):
        prompts = tokens.sample(part.stop - part.start, length, rng)
        for number, (queries, limit, exact) in enumerate(cases):
            output = softmax_attention(prompts, queries, heads.U[number], heads.V[number])
            errors = ((output - limit) ** 2).sum(-1)
            ratios[number, :, part] = np.mean(errors / exact[:, None], axis=-1)
    curves = [Curve.from_samples(list(ratios[:, k]), stream(seed, "bootstrap")) for k in range(len(lengths))]
    s = np.array([_over_queries(heads, U) for U in heads.U])
    judged = (s <= LOUDEST) | (s.min() > LOUDEST)
    table = pd.DataFrame({"head": [f"head {k}" for k in range(len(heads))], "s": s, **curves[0].columns()})
    measured, near_miss, control = (curve.at(judged) for curve in curves)
    return Comparison(table, measured, control, near_miss=near_miss)


def quietest(heads: AttentionHeads) -> float:
    """The smallest s, root mean square over queries, of the heads."""
    return min(_over_queries(heads, U) for U in heads.U)


def _over_queries(heads: AttentionHeads, U) -> float:
    return float(np.sqrt(np.trace(U.T @ heads.covariance @ U @ heads.query_covariance)))


def _exact(heads: AttentionHeads, U, V, z, lengths) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries as they are asked (n, d), their limits (n, k), and their exact mean squared errors (n_lengths, n)."""
    a = z @ U.T
    s2 = ((a @ heads.covariance) * a).sum(1)
    within = np.minimum(1.0, LARGEST_S / np.sqrt(s2))
    z, s2 = z * within[:, None], s2 * within**2
    limit = z @ U.T @ heads.covariance @ V.T
    along, total = (limit**2).sum(1) / s2, np.trace(V @ heads.covariance @ V.T)
    w = softmax_functionals(np.sqrt(s2), np.array(lengths, float)[:, None])
    return z, limit, w.squared_error * along + w.inverse_participation * (total - along)
