"""How far an output moves while its prompt grows, on nested and on fresh prompts."""

from collections.abc import Sequence

import numpy as np

from lib.experiments.prompt_length.on_prompts import root_mean_square
from lib.experiments.settings import generic_head
from lib.finite_prompt import drift_bound, output_drift, output_error
from lib.notebook.comparison import Comparison
from lib.prompts.batches import CACHE, affordable_prompts, batches
from lib.prompts.online_softmax import SoftmaxAccumulator
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian

MOST_PROMPTS = 20_000
OTHER = {"nested": "fresh", "fresh": "nested"}  # whose formula is the control


def growing_prompts(
    *, setting: Sequence, s: float, first: int, seconds: Sequence[int], number_budget: int, seed: int
) -> Comparison:
    """How far the output moves from L_1 tokens to L_2, nested (the same prompt grows) and fresh (other tokens).

    Both are measured on the same prompts: fresh, the long prompts of one half against the short ones of the other.

    Args:
        setting: (covariance, dimension), with a random query and head.
        s: score deviation.
        first: L_1.
        seconds: L_2, increasing from L_1 on.
        number_budget: random numbers, at most.
        seed: of head and prompts.

    Returns:
        A row each: prompts (nested or fresh), length (L_2), bound (for any dependence), measured, low, high, exact; all
        are root mean squares relative to |V Gamma U z|.
        Parts "nested" and "fresh": measured is the curve over the exact one, control over that of the other kind.
    """
    covariance, dim = setting
    gamma = covariance_matrix(covariance, dim)
    query, U, V = head = generic_head(dim, gamma, s, seed)
    linear, seconds = ((V @ gamma @ U @ query) ** 2).sum(), list(seconds)
    short, *long = np.moveaxis(
        _outputs(gamma, head, lengths=[first, *seconds], number_budget=number_budget, rng=stream(seed, "drift")), 1, 0
    )
    half = len(short) // 2
    moves = {
        "nested": [outputs - short for outputs in long],
        "fresh": [outputs[half : 2 * half] - short[:half] for outputs in long],
    }
    exact = {
        kind: np.sqrt([output_drift(gamma, query, U, V, first, second, kind) / linear for second in seconds])
        for kind in moves
    }
    error = output_error(gamma, query, U, V, [first, *seconds])
    bound, parts = np.sqrt(drift_bound(error[0], error[1:]) / linear), {}
    for kind in moves:
        squares = [(move**2).sum(1) / linear for move in moves[kind]]
        curve = root_mean_square(squares, stream(seed, "drift", kind))
        columns = {"prompts": kind, "length": seconds, "bound": bound}
        parts[kind] = Comparison.of_curve(curve, exact[kind], exact[OTHER[kind]], **columns)
    return Comparison.together(parts)


def _outputs(gamma, head, *, lengths: list[int], number_budget: int, rng) -> np.ndarray:
    """Outputs of growing prompts at each length, shape (prompts, lengths, d)."""
    query, U, V = head
    measure, dim, parts = Gaussian.centered(gamma), len(gamma), []
    n_prompts = affordable_prompts(lengths[-1], dim, number_budget, most=MOST_PROMPTS)
    for part in batches(n_prompts, lengths[0] * dim, CACHE):
        moments, outputs, count = SoftmaxAccumulator(U @ query), [], part.stop - part.start
        for more in np.diff([0, *lengths]):
            for tokens in batches(more, count * dim, CACHE):
                moments.update(measure.sample(count, tokens.stop - tokens.start, rng))
            outputs.append(moments.mean @ V.T)
        parts.append(np.stack(outputs, axis=1))
    return np.concatenate(parts)
