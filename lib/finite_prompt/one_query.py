r"""Exact error of softmax attention at a fixed query, on prompts of L Gaussian tokens, at every L.

Tokens X_1 .. X_L ~ N(m, Gamma) independent, query z, head (U, V): softmax attention T_L(z) has the infinite-prompt
limit ``T(z) = V m + V Gamma a`` with ``a = U z``. Its error splits into a part along the scores and an independent part
across them, each a function of the standard deviation of the scores ``s = sqrt(a' Gamma a)`` and of L alone, times the
geometry of the head. Everything here is exact in any dimension; notebook 02 derives it.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.special import softmax

from lib.finite_prompt.weight_moments import (
    H2_MINUS_1,
    ONE,
    H,
    SoftmaxFunctionals,
    expected_products,
    softmax_functionals,
)
from lib.prompts.batches import batches
from lib.tokens.covariances import sqrt_psd

Quantity = Literal["output", "value gradient", "score gradient"]


def score_deviation(covariance, query, U) -> np.ndarray:
    """Standard deviation of the scores x . U z of Gaussian tokens, ``s = sqrt(z' U' Gamma U z)``, shape (...)."""
    a = np.asarray(query) @ np.asarray(U).T
    return np.sqrt(np.maximum(np.einsum("...i,ij,...j->...", a, covariance, a), 0.0))


def mean_output(mean, covariance, query, U, V, length) -> np.ndarray:
    """Expectation of finite-prompt attention: the limit's linear part, shrunk by exactly 1 - eta(s, L).

    E[T_L(z)] = V m + (1 - eta(s, L)) V Gamma U z.

    Args:
        mean, covariance: of the tokens, shapes (d,) and (d, d).
        query: z, shape (..., d). U: shape (d, d). V: shape (k, d). length: prompt length L.

    Returns:
        Shape (..., k). Source: exact here (Gaussian integration by parts, notebook 01).
    """
    eta = softmax_functionals(score_deviation(covariance, query, U), length).inverse_participation
    return mean @ V.T + (1 - eta)[..., None] * (query @ U.T @ covariance @ V.T)


def output_error(covariance, query, U, V, length) -> np.ndarray:
    r"""Mean squared output error at a fixed query, exact at every prompt length.

    E|T_L(z) - T(z)|^2 = zeta |V Gamma a|^2 / s^2 + eta ( tr(V Gamma V') - |V Gamma a|^2 / s^2 ),  a = U z,

    with eta and zeta of :func:`softmax_functionals`. At s = 0 it is tr(V Gamma V') / L. The tokens' mean plays no part.

    Args:
        covariance: Gamma, shape (d, d), possibly singular.
        query: z, shape (..., d). U: shape (d, d). V: shape (k, d).
        length: prompt length, scalar or shape (n,).

    Returns:
        Shape ``query.shape[:-1] + length.shape``.

    Raises:
        ValueError: if the shapes do not fit, or the scores or lengths are out of range.

    Cost: about 0.5 ms a query, for all lengths. Source: exact here (notebook 02); the rate is the paper's Prop. 3.1.
    """
    return error_of_weights(softmax_functionals, covariance, query, U, V, length)


def error_of_weights(functionals: Callable[..., SoftmaxFunctionals], covariance, query, U, V, length) -> np.ndarray:
    """:func:`output_error` of other weights: the two functions of (s, L) that decide it, times the head's geometry."""
    covariance, query, U, V, length = checked(covariance, query, U, V, length)
    s, along, total = _geometry(covariance, query, U, V)
    w = functionals(*_outer(s, length))
    along, total = (_column(x, length) for x in (along, total))
    return w.squared_error * along + w.inverse_participation * (total - along)


def value_gradient_error(covariance, query, U, length) -> np.ndarray:
    """Mean squared error of the V-gradient: its Jacobian is the weighted mean of the tokens, so V = I in the output.

    E|sum_i p_i X_i - (m + Gamma a)|^2: the operator norm of the Jacobian's error. In Frobenius norm it counts once for
    each row of V. Arguments, shapes, errors and cost as for :func:`output_error`. Source: exact here; the rate is the
    paper's Prop. 3.4.
    """
    return output_error(covariance, query, U, np.eye(len(covariance)), length)


def score_gradient_error(covariance, query, U, V, length) -> np.ndarray:
    r"""Mean squared error of the U-gradient at a fixed query, exact at every prompt length.

    E |V (C_p - Gamma)|_F^2 |z|^2, with C_p the softmax-weighted covariance of the tokens: in direction H the Jacobian
    in U is V C_p H z, and V Gamma H z in the limit. The Gaussian part across the scores is averaged in closed form,
    and five moments of the softmax weights remain.

    Arguments, shapes and errors as for :func:`output_error`; cost about 1 ms a query. Source: exact here (notebook 02);
    the rate is the paper's Prop. 3.4.
    """
    covariance, query, U, V, length = checked(covariance, query, U, V, length)
    c = query @ U.T @ covariance
    s = score_deviation(covariance, query, U)
    with np.errstate(divide="ignore", invalid="ignore"):
        u = np.where(s[..., None] > 0, c / s[..., None], 0.0)
    P = V.T @ V
    pu, uu = _quadratic(u, P), _quadratic(u, np.eye(len(c.T)))
    pgu = np.einsum("...i,ij,...j->...", u, P @ covariance, u)
    # Traces with the covariance across the scores, Gamma - u u'.
    trace, trace_p = np.trace(covariance) - uu, np.trace(P @ covariance) - pu
    cross = pgu - pu * uu  # u' P (Gamma - u u') u
    trace_p2 = np.trace(P @ covariance @ covariance) - 2 * pgu + pu * uu
    geometry = (
        pu * uu,
        pu * trace + trace_p * uu + 2 * cross,
        trace_p2,
        trace_p * trace + trace_p2,
        -2 * cross,
    )
    moments = covariance_moments(*_outer(s, length))
    error = sum(moment * _column(g, length) for moment, g in zip(moments, geometry, strict=True))
    return error * _column((query**2).sum(-1), length)


def covariance_moments(s, length) -> tuple[np.ndarray, ...]:
    """E[D^2], E[W], E[Y^2], E[Y - 2 S_3 + Y^2], E[D Y] of the weighted covariance C_p.

    With B = sum p h, C = sum p (h^2 - 1), h = g - s: D = C - B^2 is the error of the variance along the scores,
    W = sum p^2 (h - B)^2, Y = sum p^2, S_3 = sum p^3.
    """
    b, c, y = (1, H), (1, H2_MINUS_1), (2, ONE)
    cc, cbb, bbbb, hh, bh, bby, yy, y1, s3, cy = expected_products(
        s,
        length,
        [
            *([c, c], [c, b, b], [b, b, b, b]),
            *([(2, (0.0, 0.0, 1.0))], [b, (2, H)], [b, b, y]),
            *([y, y], [y], [(3, ONE)], [c, y]),
        ],
    )
    return (
        cc - 2 * cbb + bbbb,
        np.maximum(hh - 2 * bh + bby, 0.0),
        yy,
        np.maximum(y1 - 2 * s3 + yy, 0.0),
        cy - bby,
    )


def sharp_constant(covariance, query, U, V, quantity: Quantity = "output") -> np.ndarray:
    r"""Limit of L times the mean squared error at a fixed query, as L grows.

    output:          e^{s^2} ( tr(V Gamma V') + |V Gamma a|^2 )
    value gradient:  the same with V = I
    score gradient:  |z|^2 e^{s^2} { tr(P Gamma) tr Gamma + tr(P Gamma^2) + tr(P Gamma)|c|^2 + (c'Pc) tr Gamma
                     + 2 c' P Gamma c + (c'Pc)|c|^2 },   P = V'V, c = Gamma a

    The 1/L law holds once L >> e^{3 s^2 / 2}. Arguments as for :func:`output_error`; returns shape (...).
    Source: exact here (notebook 02).
    """
    if quantity == "value gradient":
        V, quantity = np.eye(len(covariance)), "output"
    covariance, query, U, V, _ = checked(covariance, query, U, V, 1)
    c = query @ U.T @ covariance
    growth = np.exp(score_deviation(covariance, query, U) ** 2)
    P = V.T @ V
    total, pc = np.trace(P @ covariance), _quadratic(c, P)
    if quantity == "output":
        return growth * (total + pc)
    if quantity != "score gradient":
        raise ValueError(f"quantity must be 'output', 'value gradient' or 'score gradient', received {quantity!r}")
    trace, cc = np.trace(covariance), (c**2).sum(-1)
    pgc = np.einsum("...i,ij,...j->...", c, P @ covariance, c)
    braces = total * trace + np.trace(P @ covariance @ covariance) + total * cc + pc * trace + 2 * pgc + pc * cc
    return (query**2).sum(-1) * growth * braces


def sample_outputs(covariance, query, U, V, length: int, n_prompts: int, rng, mean=None) -> np.ndarray:
    """Exact draws of finite-prompt attention T_L(z), from L scalars a prompt instead of L x d numbers.

    T_L = V m + V u ghat + V xi,  u = Gamma a / s,  ghat = sum p_i g_i,  xi ~ N(0, sum p_i^2 (Gamma - u u')) given the
    scores.

    Args:
        covariance, U, V: as for :func:`output_error`. query: one z, shape (d,). mean: of the tokens; zero if omitted.
        length: tokens a prompt. n_prompts: draws. rng: a numpy Generator.

    Returns:
        Shape (n_prompts, k). Cost: length * n_prompts normal draws, in blocks of bounded memory.
    """
    covariance, query, U, V, _ = checked(covariance, query, U, V, length)
    c, s = query @ U.T @ covariance, float(score_deviation(covariance, query, U))
    u = c / s if s > 0 else np.zeros_like(c)
    A, Y = np.empty(n_prompts), np.empty(n_prompts)
    for part in batches(n_prompts, length):
        g = rng.standard_normal((part.stop - part.start, length))
        p = softmax(s * g, axis=1)
        A[part], Y[part] = (p * g).sum(1), (p**2).sum(1)
    across = rng.standard_normal((n_prompts, len(covariance))) @ sqrt_psd(covariance - np.outer(u, u))
    tokens = (0 if mean is None else mean) + A[:, None] * u + np.sqrt(Y)[:, None] * across
    return tokens @ V.T


def _geometry(covariance, query, U, V):
    """s, |V Gamma a|^2 / s^2 (zero where s is), and tr(V Gamma V'), for each query."""
    s = score_deviation(covariance, query, U)
    along = ((query @ U.T @ covariance @ V.T) ** 2).sum(-1)
    along = np.divide(along, s**2, out=np.zeros_like(along), where=s > 0)
    return s, along, np.full_like(along, np.trace(V @ covariance @ V.T))


def _quadratic(x, matrix):
    return np.einsum("...i,ij,...j->...", x, matrix, x)


def _column(x, length):
    return np.reshape(x, (*np.shape(x), *(1,) * np.ndim(length)))


def _outer(s, length):
    return _column(s, length), length


def check_head(what: str, dim: int, query, U, V) -> None:
    """Raise ValueError, naming all shapes, unless a single query and a head fit tokens of a dimension."""
    if query.shape != (dim,) or U.shape != (dim, dim) or V.ndim != 2 or V.shape[1] != dim:
        raise ValueError(
            f"{what} of dimension {dim} need query (d,), U (d, d), V (k, d), received {query.shape}, {U.shape}, "
            f"{V.shape}"
        )


def checked(covariance, query, U, V, length):
    """The arguments as arrays of floats, once their shapes fit."""
    covariance, query, U, V, length = (np.asarray(x, float) for x in (covariance, query, U, V, length))
    d = len(covariance)
    for name, array, ok in (
        ("covariance", covariance, covariance.shape == (d, d)),
        ("query", query, query.shape[-1:] == (d,)),
        ("U", U, U.shape == (d, d)),
        ("V", V, V.ndim == 2 and V.shape[1] == d),
    ):
        if not ok:
            raise ValueError(f"{name} does not fit tokens of dimension {d}: its shape is {array.shape}")
    return covariance, query, U, V, length
