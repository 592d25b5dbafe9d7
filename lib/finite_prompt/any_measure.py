r"""Exact finite-prompt error for independent tokens of a measure: its score law as quadrature nodes, or by moments.

A head sees of a token its score and, given the score, the mean and the variance of its value. For

    Gaussian            scores m.a + s g, g on a trapezoid rule; value V m + V Gamma a g / s, the rest across
    Gaussian mixture    the same for each component, with its weight
    sphere              scores r|a| u, u on a Gauss-Gegenbauer rule; value r u V a/|a|, the rest across

these are nodes and weights for :mod:`lib.finite_prompt.empirical`, which is exact for such a list. Tokens with
independent coordinates (signs, uniform, Laplace) have no such rule beyond a few dimensions, and need none: what is
asked of their law follows from its exponential moments (:mod:`lib.finite_prompt.coordinate_law`).
"""

import functools

import numpy as np
from scipy.special import roots_gegenbauer

from lib.finite_prompt.coordinate_law import CoordinateLaw
from lib.finite_prompt.dependent import NODE_STEP, REACH
from lib.finite_prompt.empirical import Law, ScoredValues, TokensError, error_of
from lib.finite_prompt.one_query import check_head
from lib.tokens.families import Gaussian, GaussianMixture, Sphere
from lib.tokens.measure import TokenMeasure

SPHERE_NODES = 200  # and 8 for each unit of r |a|


def measure_error(measure: TokenMeasure, query, U, V, length, *, target=None) -> TokensError:
    """Softmax attention on prompts of independent tokens of a measure, exactly, at every prompt length.

    Args:
        measure: a Gaussian, a Gaussian mixture, a sphere, or one of independent coordinates: Rademacher, uniform,
            Laplace, in any dimension.
        query: z, shape (d,). U: shape (d, d). V: shape (k, d).
        length: prompt length L, whole, from 1 to 1e15; a number or shape (n,).
        target: T, shape (k,): what the error is measured from; the limit of this measure if omitted.

    Returns:
        TokensError with one entry a length. Relative accuracy 1e-9 up to L = 1e6 and scores of deviation 3.

    Raises:
        ValueError: if shapes do not fit, the tilt is beyond what the measure allows, or nothing is known of it:
            then give samples to :func:`lib.finite_prompt.tokens_error`.

    Cost: milliseconds on lists of nodes; 0.1 s for independent coordinates in a few dimensions, and 1e4 d (k + 5)
    complex multiplications.
    Source: exact here, notebook 08.
    """
    query, U, V = (np.asarray(x, float) for x in (query, U, V))
    check_head("tokens", measure.dim, query, U, V)
    measure.log_mgf(U @ query)  # which says so where there is no limit
    return error_of(law_of(measure, U @ query, V), length, target)


@functools.singledispatch
def law_of(measure: TokenMeasure, tilt: np.ndarray, V: np.ndarray) -> Law:
    """The law of a token's score and value: tilt a = U z, shape (d,), V (k, d)."""
    return CoordinateLaw(measure, tilt, V)


@law_of.register
def _(measure: Gaussian, tilt, V):
    across = float(np.trace(V @ measure.covariance @ V.T))
    s2 = float(tilt @ measure.covariance @ tilt)
    if not s2 > 0:
        return ScoredValues(np.array([tilt @ measure.mean]), np.ones(1), (V @ measure.mean)[None], np.array([across]))
    s = np.sqrt(s2)
    along = V @ measure.covariance @ tilt / s
    g = np.arange(-REACH, 2 * s + REACH, min(NODE_STEP, NODE_STEP / s))
    weights = np.exp(-(g**2) / 2)
    means = V @ measure.mean + g[:, None] * along
    rest = np.full(len(g), max(across - along @ along, 0.0))
    return ScoredValues(tilt @ measure.mean + s * g, weights / weights.sum(), means, rest)


@law_of.register
def _(measure: GaussianMixture, tilt, V):
    parts = [law_of(component, tilt, V) for component in measure.components]
    weights = [weight * part.weights for weight, part in zip(measure.weights, parts, strict=True)]
    names = ("scores", "means", "variances")
    scores, means, variances = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return ScoredValues(scores, np.concatenate(weights), means, variances)


@law_of.register
def _(measure: Sphere, tilt, V):
    size = float(np.linalg.norm(tilt))
    direction = V @ (tilt / size if size > 0 else np.eye(measure.dim)[0])
    # u has density (1 - u^2)^((d - 3) / 2): Gegenbauer's weight of index d/2 - 1, Chebyshev's in dimension two
    count = SPHERE_NODES + int(8 * measure.radius * size)
    if measure.dim == 2:
        u, weights = np.cos(np.pi * (np.arange(count) + 0.5) / count), np.full(count, 1.0 / count)
    else:
        u, weights = roots_gegenbauer(count, measure.dim / 2 - 1)
    across = ((V**2).sum() - direction @ direction) / (measure.dim - 1)
    x = measure.radius * u
    return ScoredValues(size * x, weights / weights.sum(), x[:, None] * direction, (measure.radius**2 - x**2) * across)
