r"""Errors of attention measured on prompts, with intervals from resampling the prompts.

Uncertainty comes from a bootstrap over prompts, never from the residuals of a fit, and an interval about a curve is
simultaneous: with 95 % confidence the whole curve lies inside.
"""

import numpy as np

from lib.prompts.batches import CACHE, batches
from lib.prompts.online_softmax import SoftmaxAccumulator
from lib.tokens.measure import TokenMeasure

QUANTITIES = ("output", "value gradient", "score gradient")


def prompt_errors(measure: TokenMeasure, query, U, V, length: int, n_prompts: int, rng) -> np.ndarray:
    """Squared errors of softmax attention against its infinite-prompt limit, one row a prompt.

    Args:
        measure: what the tokens are drawn from.
        query: z, shape (d,), or (n_prompts, d) for a query of its own in every prompt.
        U, V: the head. length: tokens a prompt. rng: a numpy Generator.

    Returns:
        Shape (n_prompts, 3), in the order of :data:`QUANTITIES`: |T_L - T|^2; the same with V = I;
        |V (C_p - C)|_F^2 |z|^2 with C_p and C the weighted and the tilted covariance.

    Cost: length * n_prompts * d normal draws, in blocks of bounded memory whatever the length.
    """
    query = np.broadcast_to(query, (n_prompts, measure.dim))
    tilts = query @ U.T
    errors = np.empty((n_prompts, len(QUANTITIES)))
    for part in batches(n_prompts, length * measure.dim, CACHE):
        moments = SoftmaxAccumulator(tilts[part, None], second_moment=True)
        count = part.stop - part.start
        for tokens in batches(length, count * measure.dim, CACHE):
            moments.update(measure.sample(count, tokens.stop - tokens.start, rng))
        deviation = moments.mean[:, 0] - measure.tilted_mean(tilts[part])
        spread = V @ (moments.covariance[:, 0] - measure.tilted_covariance(tilts[part]))
        errors[part, 0] = ((deviation @ V.T) ** 2).sum(-1)
        errors[part, 1] = (deviation**2).sum(-1)
        errors[part, 2] = (spread**2).sum((-2, -1)) * (query[part] ** 2).sum(-1)
    return errors
