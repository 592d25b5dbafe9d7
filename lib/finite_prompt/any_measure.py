r"""Exact finite-prompt error for independent tokens of a measure: its score law as a list of quadrature nodes.

A head sees of a token its score and, given the score, the mean and the variance of its value. For

    Gaussian            scores m.a + s g, g on a trapezoid rule; value V m + V Gamma a g / s, the rest across
    Gaussian mixture    the same for each component, with its weight
    sphere              scores r|a| u, u on a Gauss-Gegenbauer rule; value r u V a/|a|, the rest across
    independent         a tensor rule over the coordinates: signs, Gauss-Legendre (uniform), and panels that follow the
    coordinates         exponential tail (Laplace); as many nodes as the dimension allows

these are nodes and weights for :func:`lib.finite_prompt.empirical.scored_error`, which is exact for such a list.
"""

import functools
from math import prod

import numpy as np
from scipy.special import roots_gegenbauer

from lib.finite_prompt.dependent import NODE_STEP, REACH
from lib.finite_prompt.empirical import ScoredValues, TokensError, scored_error
from lib.finite_prompt.one_query import check_head
from lib.tokens.families import Gaussian, GaussianMixture, Rademacher, Sphere, Uniform
from lib.tokens.heavy_tails import Laplace
from lib.tokens.measure import TokenMeasure

MOST_NODES = 2**20  # of a tensor rule
SPHERE_NODES = 200  # and 8 for each unit of r |a|
LEGENDRE_NODES = 24  # a coordinate
LAPLACE_END, LAPLACE_PANELS, LAPLACE_ORDER = 45.0, 12, 10  # in units of the tilted scale, each side


def measure_error(measure: TokenMeasure, query, U, V, length, *, target=None) -> TokensError:
    """Softmax attention on prompts of independent tokens of a measure, exactly, at every prompt length.

    Args:
        measure: a Gaussian, a Gaussian mixture, a sphere, or one of independent coordinates: Rademacher, uniform,
            Laplace, in dimension up to 20, 4 and 2.
        query: z, shape (d,). U: shape (d, d). V: shape (k, d).
        length: prompt length L, whole, from 1 to 1e15; a number or shape (n,).
        target: T, shape (k,): what the error is measured from; the limit of this measure if omitted.

    Returns:
        TokensError with one entry a length. Relative accuracy 1e-9 up to L = 1e6 and scores of deviation 3.

    Raises:
        ValueError: if shapes do not fit, the tilt is beyond what the measure allows, or the dimension is too large for
            a tensor rule: then give samples to :func:`lib.finite_prompt.tokens_error`.

    Cost: a few hundred operations a node; milliseconds where scores have one dimension.
    Source: exact here, notebook 08.
    """
    query, U, V = (np.asarray(x, float) for x in (query, U, V))
    check_head("tokens", measure.dim, query, U, V)
    measure.log_mgf(U @ query)  # which says so where there is no limit
    return scored_error(scored_values(measure, U @ query, V), length, target)


@functools.singledispatch
def scored_values(measure: TokenMeasure, tilt: np.ndarray, V: np.ndarray) -> ScoredValues:
    """The law of a token's score and value: tilt a = U z, shape (d,), V (k, d)."""
    try:
        rules = [coordinate_rule(measure, a) for a in tilt]
    except TypeError:
        raise ValueError(f"no rule is known for {type(measure).__name__}; give samples to tokens_error") from None
    if (count := prod(len(nodes) for nodes, _ in rules)) > MOST_NODES:
        raise ValueError(
            f"{type(measure).__name__} in dimension {measure.dim} needs {count:,} nodes, at most {MOST_NODES:,} are "
            "made; give samples to tokens_error"
        )
    tokens = np.stack(np.meshgrid(*(nodes for nodes, _ in rules), indexing="ij"), -1).reshape(-1, measure.dim)
    weights = functools.reduce(np.multiply.outer, (weights for _, weights in rules)).ravel()
    return ScoredValues(tokens @ tilt, weights, tokens @ V.T)


@scored_values.register
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


@scored_values.register
def _(measure: GaussianMixture, tilt, V):
    parts = [scored_values(component, tilt, V) for component in measure.components]
    weights = [weight * part.weights for weight, part in zip(measure.weights, parts, strict=True)]
    names = ("scores", "means", "variances")
    scores, means, variances = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return ScoredValues(scores, np.concatenate(weights), means, variances)


@scored_values.register
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


@functools.singledispatch
def coordinate_rule(measure, tilt: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and probabilities of one of the independent coordinates of a measure, fine enough for a tilt."""
    raise TypeError


@coordinate_rule.register
def _(measure: Rademacher, tilt):
    return measure.scale * np.array([-1.0, 1.0]), np.full(2, 0.5)


@coordinate_rule.register
def _(measure: Uniform, tilt):
    nodes, weights = np.polynomial.legendre.leggauss(LEGENDRE_NODES)
    return measure.half_width * nodes, weights / 2


@coordinate_rule.register
def _(measure: Laplace, tilt):
    nodes, weights = np.polynomial.legendre.leggauss(LAPLACE_ORDER)
    edges = LAPLACE_END / (1 - measure.scale * abs(tilt)) * np.linspace(0, 1, LAPLACE_PANELS + 1) ** 2
    x = (edges[:-1, None] + np.diff(edges)[:, None] * (nodes + 1) / 2).ravel()
    density = (np.diff(edges)[:, None] * weights / 2).ravel() * np.exp(-x) / 2
    return measure.scale * np.concatenate([-x[::-1], x]), np.concatenate([density[::-1], density])
