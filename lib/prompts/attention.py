"""Softmax, linear and limit attention of a single head, with their Jacobians.

A head is two matrices: U = K^T Q, (d, e), and V, (k, d). A query z, (e,), gives the token x the score x.Uz (any
1/sqrt(d) is inside U), and

    softmax   V sum_i p_i x_i,  p = softmax_i(x_i.Uz)      linear   (1/L) sum_i V x_i (x_i.Uz)
    limit     V grad kappa(Uz), the infinite prompt of a token measure (Lemma 2.1)

Axes. tokens is (n, L, d), n prompts, or (L, d), one. query is (e,) or (q, e), the same for every prompt, or
(n, q, e), its own for each. A result has the axes of the prompts, then those of the queries, then its own:

    tokens (L, d)      query (e,)        ->  (k,)            tokens (n, L, d)   query (e,)        ->  (n, k)
    tokens (L, d)      query (q, e)      ->  (q, k)          tokens (n, L, d)   query (q, e)      ->  (n, q, k)
                                                             tokens (n, L, d)   query (n, q, e)   ->  (n, q, k)

One query for each prompt is query[:, None, :]. Shapes that disagree are a ValueError with both shapes. Everything is
float64 and stable for scores of any finite size; temporary memory stays near max_block_bytes, whatever n, q and L.
A prompt too long to hold goes through `SoftmaxAccumulator` block by block.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from lib.prompts.online_softmax import SoftmaxAccumulator

MAX_BLOCK_BYTES = 2**21  # tokens and scores of a block: they stay in cache from the first pass to the last
_QUERIES_AT_ONCE = 256


class DenseJacobian(NamedTuple):
    """U: d output_i / d U_jl, (..., k, d, e). V: d output_i / d V_jl, (..., k, k, d)."""

    U: np.ndarray
    V: np.ndarray


@dataclass(frozen=True, eq=False)
class AttentionJacobian:
    """Derivatives of an attention output, from a mean m (..., d) and a covariance C (..., d, d).

        in V, direction H: H m,        in U, direction H: V C H z.

    The three kinds of attention differ only in m and C: weighted mean and covariance (softmax), tilted mean and
    covariance (limit), S U z and S = (1/L) sum_i x_i x_i^T (linear). Nothing of size d^3 is formed but by `dense`.
    """

    query: np.ndarray
    V: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray

    def apply_V(self, H) -> np.ndarray:
        """Derivative along V + t H: H (k, d) to (..., k)."""
        return self.mean @ _matrix("H", H, self.V.shape).T

    def apply_U(self, H) -> np.ndarray:
        """Derivative along U + t H: H (d, e) to (..., k)."""
        H = _matrix("H", H, (self.V.shape[1], self.query.shape[-1]))
        return np.matvec(self.covariance, self.query @ H.T) @ self.V.T

    def dense(self) -> DenseJacobian:
        """Both Jacobians as arrays, of sizes k d e and k^2 d for each query."""
        in_U = (self.V @ self.covariance)[..., None] * self.query[..., None, None, :]
        return DenseJacobian(in_U, np.eye(len(self.V))[..., None] * self.mean[..., None, None, :])


def softmax_weights(tokens, query, U) -> np.ndarray:
    """Softmax weights p_i = exp(x_i.Uz) / sum_j exp(x_j.Uz), (..., L), the maximum subtracted first."""
    tokens, tilts, squeeze = _arrange(tokens, query, U)
    return squeeze(softmax(tilts @ np.matrix_transpose(tokens), axis=-1))


def softmax_attention(tokens, query, U, V, max_block_bytes: int = MAX_BLOCK_BYTES) -> np.ndarray:
    """Softmax attention V sum_i p_i x_i, (..., k). Cost: O(n q L d)."""
    tokens, tilts, squeeze = _arrange(tokens, query, U)
    V = _matrix("V", V, (None, tokens.shape[-1]))
    return squeeze(_softmax_moments(tokens, tilts, False, max_block_bytes)[0]) @ V.T


def softmax_jacobian(tokens, query, U, V, max_block_bytes: int = MAX_BLOCK_BYTES) -> AttentionJacobian:
    """Jacobian of softmax attention: weighted mean and covariance of the tokens. Cost: O(n q L d^2)."""
    tokens, tilts, squeeze = _arrange(tokens, query, U)
    V = _matrix("V", V, (None, tokens.shape[-1]))
    mean, covariance = _softmax_moments(tokens, tilts, True, max_block_bytes)
    return AttentionJacobian(np.asarray(query, dtype=float), V, squeeze(mean), squeeze(covariance))


def linear_attention(tokens, query, U, V, max_block_bytes: int = MAX_BLOCK_BYTES) -> np.ndarray:
    """Linear attention (1/L) sum_i V x_i (x_i.Uz), (..., k): not centered, no softmax. Cost: O(n q L d)."""
    tokens, tilts, squeeze = _arrange(tokens, query, U)
    V = _matrix("V", V, (None, tokens.shape[-1]))
    total = np.zeros((len(tokens), *tilts.shape[1:]))
    for prompts, queries, blocks in _pieces(tokens, tilts, max_block_bytes):
        for block in blocks:
            scores = _of(tilts, prompts, queries) @ np.matrix_transpose(block)
            total[prompts, queries] += scores @ block
    return squeeze(total / tokens.shape[1]) @ V.T


def linear_jacobian(tokens, query, U, V, max_block_bytes: int = MAX_BLOCK_BYTES) -> AttentionJacobian:
    """Jacobian of linear attention: S U z and S = (1/L) sum_i x_i x_i^T, the same for all queries. O(n L d^2)."""
    tokens, tilts, squeeze = _arrange(tokens, query, U)
    V = _matrix("V", V, (None, tokens.shape[-1]))
    moment = np.zeros((len(tokens), 1, *tokens.shape[-1:] * 2))
    for prompts, _, blocks in _pieces(tokens, tilts[:, :1], max_block_bytes):
        for block in blocks:
            moment[prompts, 0] += np.matrix_transpose(block) @ block
    moment /= tokens.shape[1]
    mean = np.matvec(moment, tilts)
    moment = np.broadcast_to(moment, (*mean.shape, mean.shape[-1]))
    return AttentionJacobian(np.asarray(query, dtype=float), V, squeeze(mean), squeeze(moment))


def limit_attention(measure, query, U, V) -> np.ndarray:
    """Attention over the infinite prompt of a token measure, V grad kappa(Uz): query (..., e) to (..., k)."""
    tilts = _tilts(query, U, measure.dim)
    return measure.tilted_mean(tilts) @ _matrix("V", V, (None, measure.dim)).T


def limit_jacobian(measure, query, U, V) -> AttentionJacobian:
    """Jacobian of limit attention: tilted mean and covariance at Uz; query (..., e)."""
    tilts = _tilts(query, U, measure.dim)
    V = _matrix("V", V, (None, measure.dim))
    query = np.asarray(query, dtype=float)
    return AttentionJacobian(query, V, measure.tilted_mean(tilts), measure.tilted_covariance(tilts))


def _softmax_moments(tokens, tilts, second_moment, max_block_bytes):
    n, q, d = len(tokens), *tilts.shape[1:]
    mean = np.empty((n, q, d))
    covariance = np.empty((n, q, d, d)) if second_moment else None
    for prompts, queries, blocks in _pieces(tokens, tilts, max_block_bytes):
        accumulator = SoftmaxAccumulator(_of(tilts, prompts, queries), second_moment)
        for block in blocks:
            accumulator.update(block)
        mean[prompts, queries] = accumulator.mean
        if second_moment:
            covariance[prompts, queries] = accumulator.covariance
    return mean, covariance


def _pieces(tokens, tilts, max_block_bytes):
    """Cut into slices of prompts and of queries and, for each, blocks of tokens along the length."""
    n, length, dim = tokens.shape
    queries_at_once = min(tilts.shape[1], _QUERIES_AT_ONCE)
    budget = max(1, max_block_bytes // (8 * (dim + queries_at_once)))  # tokens a block, with their scores
    prompts_at_once, step = max(1, budget // length), min(budget, length)
    for p in range(0, n, prompts_at_once):
        prompts = slice(p, p + prompts_at_once)
        for q in range(0, tilts.shape[1], queries_at_once):
            blocks = (np.asarray(tokens[prompts, i : i + step], dtype=float) for i in range(0, length, step))
            yield prompts, slice(q, q + queries_at_once), blocks


def _of(tilts, prompts, queries):
    return tilts[0, queries] if len(tilts) == 1 else tilts[prompts, queries]


def _arrange(tokens, query, U):
    """Tokens (n, L, d), tilts Uz (n or 1, q, d), and a function that takes the axes added here out of a result."""
    tokens, ndim = np.asarray(tokens), np.ndim(query)
    if tokens.ndim not in (2, 3) or 0 in tokens.shape:
        raise ValueError(f"tokens: expected shape (n, L, d) or (L, d), none of them 0, received {tokens.shape}")
    tilts = _tilts(query, U, tokens.shape[-1])
    if ndim > 3 or (ndim == 3 and (tokens.ndim == 2 or len(tilts) != len(tokens))):
        raise ValueError(
            f"query: expected shape (e,), (q, e) or (n, q, e) with the n of the tokens {tokens.shape}, "
            f"received {np.shape(query)}"
        )
    where = (0 if tokens.ndim == 2 else slice(None), 0 if ndim == 1 else slice(None))
    tokens = tokens[None] if tokens.ndim == 2 else tokens
    return tokens, tilts.reshape(-1, *np.atleast_2d(tilts).shape[-2:]), lambda result: result[where]


def _tilts(query, U, dim):
    query = np.asarray(query, dtype=float)
    if query.ndim == 0:
        raise ValueError("query: expected a vector or an array of vectors, received a number")
    return query @ _matrix("U", U, (dim, query.shape[-1])).T


def _matrix(name, matrix, shape):
    matrix = np.asarray(matrix, dtype=float)
    if matrix.ndim != 2 or any(
        want not in (None, received) for want, received in zip(shape, matrix.shape, strict=True)
    ):
        expected = "(" + ", ".join("k" if want is None else str(want) for want in shape) + ")"
        raise ValueError(f"{name}: expected shape {expected}, received {matrix.shape}")
    return matrix
