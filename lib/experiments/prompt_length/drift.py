"""How far an output moves while its prompt grows, on nested and on fresh prompts."""

from collections.abc import Sequence

import numpy as np

from lib.experiments.prompt_length.on_prompts import root_mean_square
from lib.experiments.settings import generic_head, setting_name
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
    *, settings: Sequence, s: float, first: int, seconds: Sequence[int], number_budget: int, seed: int
) -> Comparison:
    """How far the output moves from L_1 tokens to L_2, nested (the same prompt grows) and fresh (other tokens).

    Both are measured on the same prompts: fresh, the long prompts of one half against the short ones of the other.

    Args:
        settings: pairs (covariance, dimension), each with a random query and head.
        s: score deviation.
        first: L_1.
        seconds: L_2, increasing from L_1 on.
        number_budget: random numbers a setting, at most.
        seed: of heads and prompts.

    Returns:
        A row each: setting, prompts (nested or fresh), length (L_2), bound (for any dependence), measured, low, high,
        exact; all are root mean squares relative to |V Gamma U z|.
        Parts "nested" and "fresh", of all settings: measured is the curve over the exact one, control over that of the
        other kind. near miss: nested, over the difference of both squared errors, as if the longer prompt's error were
        uncorrelated with the movement; fresh, over their sum, without the bias that both share.
    """
    parts = {kind: {} for kind in OTHER}
    for covariance, dim in settings:
        gamma, name = covariance_matrix(covariance, dim), setting_name(covariance, dim)
        head = query, U, V = generic_head(dim, gamma, s, seed)
        lengths, linear, rng = [first, *seconds], ((V @ gamma @ U @ query) ** 2).sum(), stream(seed, "drift", name)
        outputs = _outputs(gamma, head, lengths=lengths, number_budget=number_budget, rng=rng)
        error = output_error(gamma, query, U, V, lengths) / linear
        exact = {
            kind: [output_drift(gamma, query, U, V, first, second, kind) / linear for second in seconds]
            for kind in parts
        }
        nearly = {"nested": error[0] - error[1:], "fresh": error[0] + error[1:]}
        for kind in parts:
            squares = [(move**2).sum(1) / linear for move in _moves(outputs, kind)]
            curve = root_mean_square(squares, stream(seed, "drift", name, kind))
            columns = {"setting": name, "prompts": kind, "length": list(seconds)}
            columns["bound"] = np.sqrt(drift_bound(error[0], error[1:]))
            values = (np.sqrt(x) for x in (exact[kind], exact[OTHER[kind]], nearly[kind]))
            parts[kind][name] = Comparison.of_curve(curve, *values, **columns)
    return Comparison.together({kind: Comparison.together(found) for kind, found in parts.items()})


def _moves(outputs: np.ndarray, kind: str) -> list[np.ndarray]:
    """From outputs (prompts, lengths, k): how those of the first length move to each other one, (prompts, k) each."""
    short, *long = np.moveaxis(outputs, 1, 0)
    half = len(short) // 2
    if kind == "nested":
        return [moved - short for moved in long]
    return [moved[half : 2 * half] - short[:half] for moved in long]


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
