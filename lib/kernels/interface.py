"""What an attention kernel is: keys, a query and values in, an output out, and what that costs.

A head gives every token x a key K x and a value V x, and the query token z a query Q z. The score of a token is
key . query = x . U z with U = K'Q, any 1/sqrt(d) inside. Softmax attention depends on U alone; random features depend
on how it is split into K and Q, so a kernel takes keys and queries and not U.

Axes, as in :mod:`lib.prompts.attention`. keys (n, L, r) and values (n, L, k), n prompts, or (L, r) and (L, k), one.
query is (r,) or (q, r), the same for every prompt, or (n, q, r), its own for each. The output has
the axes of the prompts, then those of the queries, then k. Everything is float64.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np


class Cost(NamedTuple):
    """What a kernel needs for one prompt of one head: counts of operations and of numbers.

    A multiplication with its addition counts as two operations, an exponential as one.

    Attributes:
        build: operations to read the prompt, once.
        query: operations for each query after that.
        state: numbers kept of the prompt, for all queries to come.
        shared: numbers kept once for all prompts, such as random directions.
    """

    build: int
    query: int
    state: int
    shared: int

    def operations(self, queries: int = 1) -> int:
        """All operations for a number of queries."""
        return self.build + queries * self.query


class AttentionKernel(ABC):
    """A rule that turns keys, queries and values into outputs. Immutable: the same input gives the same output."""

    def __call__(self, keys, query, values) -> np.ndarray:
        """Output of every query on every prompt; axes as in this module's first lines.

        Raises:
            ValueError: with both shapes, where they do not fit.
        """
        keys, values, single = prompt_arrays(keys, values)
        queries, squeeze = query_arrays(query, len(keys), keys.shape[-1], single)
        return squeeze(self.attend(keys, queries, values))

    @abstractmethod
    def attend(self, keys: np.ndarray, queries: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Keys (n, L, r), queries (n or 1, q, r), values (n, L, k) to outputs (n, q, k)."""

    @abstractmethod
    def cost(self, length: int, key_dim: int, value_dim: int) -> Cost:
        """Operations and memory for one prompt of this many tokens."""


class PromptState(ABC):
    """A prompt read once, block after block, of which a fixed number of numbers is kept."""

    count = 0
    _single = False

    def update(self, keys, values) -> "PromptState":
        """Take in a block of tokens, keys (n, block, r) and values (n, block, k), or without n; returns itself."""
        keys, values, single = prompt_arrays(keys, values)
        shapes = len(keys), keys.shape[-1], values.shape[-1], single
        if self.count == 0:
            self._shapes, self._single = shapes, single
            self._start(*shapes[:3])
        elif shapes != self._shapes:
            n, r, k, _ = self._shapes
            raise ValueError(
                f"a block must fit those before it, keys ({n}, block, {r}) and values ({n}, block, {k}): "
                f"received {keys.shape} and {values.shape}"
            )
        self._add(keys, values)
        self.count += keys.shape[1]
        return self

    def read(self, query) -> np.ndarray:
        """Output of every query on what was read so far; axes as in this module's first lines."""
        if self.count == 0:
            raise ValueError("no tokens yet: call update first")
        queries, squeeze = query_arrays(query, *self._shapes[:2], self._single)
        return squeeze(self._read(queries))

    @abstractmethod
    def _start(self, n: int, key_dim: int, value_dim: int) -> None: ...

    @abstractmethod
    def _add(self, keys: np.ndarray, values: np.ndarray) -> None: ...

    @abstractmethod
    def _read(self, queries: np.ndarray) -> np.ndarray: ...

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many numbers are kept of each prompt."""


class StreamingKernel(AttentionKernel):
    """A kernel that needs to see each token once, and keeps a state whose size does not depend on the length."""

    @abstractmethod
    def state(self) -> PromptState:
        """An empty state: `update` it with blocks of keys and values, then `read` it with queries."""

    def attend(self, keys, queries, values):
        state = self.state().update(keys, values)
        return state._read(queries)


def split(U, key_scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices K (r, d) and Q (r, e) with K'Q = U, the singular values shared evenly between them.

    Args:
        U: shape (d, e); r is the smaller of the two.
        key_scale: K is multiplied and Q divided by it: the same attention, but not the same random features.
    """
    if not (key_scale > 0 and np.isfinite(key_scale)):
        raise ValueError(f"key_scale must be positive, received {key_scale:g}")
    left, singular, right = np.linalg.svd(np.asarray(U, float), full_matrices=False)
    root = np.sqrt(singular)
    return key_scale * (left * root).T, right * (root / key_scale)[:, None]


def project(tokens, query, K, Q, V) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys K x, query Q z and values V x: tokens (..., L, d), query (..., e), K (r, d), Q (r, e), V (k, d)."""
    tokens, query, K, Q, V = (np.asarray(x, float) for x in (tokens, query, K, Q, V))
    for name, matrix, wanted in (("K", K, tokens.shape[-1]), ("V", V, tokens.shape[-1]), ("Q", Q, query.shape[-1])):
        if matrix.ndim != 2 or matrix.shape[1] != wanted:
            raise ValueError(f"{name}: expected shape (., {wanted}), received {matrix.shape}")
    return tokens @ K.T, query @ Q.T, tokens @ V.T


def prompt_arrays(keys, values) -> tuple[np.ndarray, np.ndarray, bool]:
    """Keys (n, L, r) and values (n, L, k), and whether the prompts' axis was added here."""
    keys, values = np.asarray(keys, float), np.asarray(values, float)
    fit = keys.ndim in (2, 3) and keys.ndim == values.ndim and keys.shape[:-1] == values.shape[:-1]
    if not fit or 0 in keys.shape or 0 in values.shape:
        raise ValueError(
            f"expected keys (n, L, r) and values (n, L, k), or (L, r) and (L, k), none of them empty: "
            f"received {keys.shape} and {values.shape}"
        )
    single = keys.ndim == 2
    return (keys[None], values[None], single) if single else (keys, values, single)


def query_arrays(query, n: int, key_dim: int, single: bool):
    """Queries (n or 1, q, r), and a function that takes the axes added here out of a result (n, q, k)."""
    query = np.asarray(query, float)
    own = query.ndim == 3 and not single and len(query) == n
    if query.shape[-1:] != (key_dim,) or not (query.ndim in (1, 2) or own):
        raise ValueError(
            f"query: expected shape (r,), (q, r) or (n, q, r) with r = {key_dim} and n = {n} as the keys, "
            f"received {query.shape}"
        )
    where = (0 if single else slice(None), 0 if query.ndim == 1 else slice(None))
    return query.reshape(-1, *np.atleast_2d(query).shape[-2:]), lambda result: result[where]
