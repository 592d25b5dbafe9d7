"""Attention heads from a file: the arrays of an .npz, checked, as the (U, V) that everything here works with.

    Gamma      (d, d)             covariance of the tokens; or, in its place,
    tokens     (n, d)             tokens themselves, in their order: their covariance, and what is exact for them
    Gamma_z    (d, d)             covariance of the queries; Gamma if it is missing (self-attention); or, in its place,
    queries    (n', d)            queries themselves, one by one; tokens if those are given (self-attention)
    query      (d,)               one query to answer for, besides the average over queries; optional

and either the two matrices of the heads, or the projections of a transformer layer, h heads at once or one:

    U, V       (h, d, d), (h, k, d)          or (d, d), (k, d): the score of a token x is x . U z
    W_Q, W_K   (h, e, d)                     or the heads below each other, (h e, d), as in torch.nn.Linear
    W_V        (h, e_v, d)                   or (h e_v, d)
    W_O        (h, k, e_v)                   or the heads side by side, (k, h e_v); optional
    head_dim   a number, e: the scores are (W_K x + b_K) . (W_Q z + b_Q) / sqrt(e)
    b_Q, b_K   (h, e)             or (h e,): biases; optional. So is
    b_V        (h, e_v)           or (h e_v,)

W_K and W_V may have fewer heads than W_Q (grouped queries): each then serves h / h' heads in a row. A transformer's
token here is what its projections act on, after the layer's normalization.

Of the biases one matters: b_K adds the same to all scores of a query and b_V the same to all outputs, and softmax
weights sum to 1. b_Q shifts the query by W_Q^+ b_Q, in each head by another vector.

>>> np.savez("head.npz", Gamma=np.eye(4), W_Q=W_Q, W_K=W_K, W_V=W_V, head_dim=2)  # doctest: +SKIP
>>> heads = load_heads("head.npz")  # doctest: +SKIP
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.prompts.streams import stream
from lib.tokens.array_file import load_arrays
from lib.tokens.covariances import check_covariance, covariance_matrix, sqrt_psd

PROJECTIONS = ("W_Q", "W_K", "W_V")
BIASES = {"b_Q": "W_Q", "b_K": "W_K", "b_V": "W_V"}
KNOWN = ("Gamma", "tokens", "Gamma_z", "queries", "query", "U", "V", *PROJECTIONS, "W_O", "head_dim", *BIASES)
DRAWN = 2**14  # Gaussian queries with a mean are drawn, so many


@dataclass(frozen=True, eq=False)
class AttentionHeads:
    """Heads on tokens of one covariance.

    Attributes:
        covariance, query_covariance: of tokens and queries, shape (d, d); that of queries about their mean.
        U, V: shapes (h, d, d) and (h, k, d).
        query: one query of the user's, without a shift, shape (d,), or None.
        tokens: the tokens, in their order, shape (n, d), or None where only their covariance is known.
        queries: a list of queries, without a shift, shape (n', d), or None where they are Gaussian with mean zero.
        shifts: what the bias of the queries adds to them in each head, shape (h, d); zero without one.
    """

    covariance: np.ndarray
    query_covariance: np.ndarray
    U: np.ndarray
    V: np.ndarray
    query: np.ndarray | None = None
    tokens: np.ndarray | None = None
    queries: np.ndarray | None = None
    shifts: np.ndarray | float = 0.0

    def __len__(self) -> int:
        return len(self.U)

    def shift(self, number: int) -> np.ndarray:
        """What the bias of the queries adds to them in one head, shape (d,)."""
        return np.broadcast_to(self.shifts, (len(self), len(self.covariance)))[number]

    def queries_of(self, number: int) -> np.ndarray | None:
        """The queries of one head, with their shift, shape (n', d), or None: Gaussian, with mean zero.

        Gaussian queries with a shift are drawn, 2^14 of them, always the same.
        """
        shift, queries = self.shift(number), self.queries
        if queries is None and not shift.any():
            return None
        if queries is None:
            queries = self.gaussian_queries(DRAWN, stream(0, "queries with a mean"))
        return queries + shift

    def gaussian_queries(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Queries of mean zero and their covariance, without a shift, shape (count, d)."""
        return rng.standard_normal((count, len(self.covariance))) @ sqrt_psd(self.query_covariance)

    def tilt_moment(self, number: int) -> np.ndarray:
        """E a a' of the tilts a = U z of one head, shape (d, d): U Gamma_z U' where queries have mean zero."""
        queries, U = self.queries_of(number), self.U[number]
        if queries is None:
            return U @ self.query_covariance @ U.T
        tilts = queries @ U.T
        return tilts.T @ tilts / len(tilts)

    def score_deviation(self, number: int) -> float:
        """The standard deviation s of the scores of one head, root mean square over its queries."""
        return float(np.sqrt(np.sum(self.covariance * self.tilt_moment(number))))


def load_heads(path) -> AttentionHeads:
    """The heads of an .npz file, whose arrays are listed in this module's first lines.

    Raises:
        ValueError: one line that names the file, the array, its shape and what is expected.
    """
    try:
        arrays = load_arrays(path)
        if "" in arrays:
            raise ValueError("it is one array without a name")
    except FileNotFoundError:
        raise ValueError(f"there is no file {str(path)!r}") from None
    except ValueError as error:
        raise ValueError(f"{Path(path).name} cannot be read as an .npz of arrays: {error}") from None
    try:
        return heads_from_arrays(**arrays)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{Path(path).name}: {error}") from None


def heads_from_arrays(**arrays) -> AttentionHeads:
    """The heads that named arrays describe, with the names, shapes and errors of :func:`load_heads`."""
    if unknown := [name for name in arrays if name not in KNOWN]:
        raise ValueError(f"unknown array {unknown[0]!r}; known: {', '.join(KNOWN)}")
    arrays = {name: _numbers(name, array) for name, array in arrays.items()}
    covariance, tokens = _either("Gamma", "tokens", arrays)
    d = len(covariance)
    if {"Gamma_z", "queries"} & arrays.keys():
        query_covariance, queries = _either("Gamma_z", "queries", arrays, d)
    else:
        query_covariance, queries = covariance, tokens
    query = arrays.get("query")
    if query is not None and query.shape != (d,):
        raise ValueError(f"query has shape {query.shape}, expected {(d,)}, as tokens have dimension {d}")
    given = [name for name in (*PROJECTIONS, "U", "V") if name in arrays]
    if sorted(given) == ["U", "V"]:
        U, V = _stack("U", arrays["U"], d, d), _stack("V", arrays["V"], None, d)
        if len(U) != len(V):
            raise ValueError(f"V has shape {arrays['V'].shape}, expected as many heads as U of {arrays['U'].shape}")
        if biases := [name for name in BIASES if name in arrays]:
            raise ValueError(f"{biases[0]} is a bias of {BIASES[biases[0]]}, which is missing beside it")
        shifts = 0.0
    elif given == list(PROJECTIONS):
        U, V, shifts = _from_projections(arrays, d)
    else:
        raise ValueError(f"give either U and V, or W_Q, W_K, W_V and head_dim; received {', '.join(given) or 'none'}")
    return AttentionHeads(covariance, query_covariance, U, V, query, tokens, queries, shifts)


def example_heads(seed: int, dim: int = 16, gains=(0.5, 2.0)) -> AttentionHeads:
    """A small layer with random projections, one head a gain, its scores that many times as large as at initialization.

    Tokens of covariance toeplitz(0.5); head dimension dim / 4; W_Q, W_K and W_V of variance 1 / dim.
    """
    rng, count, e = stream(seed, "example heads"), len(gains), max(1, dim // 4)
    W_Q, W_K, W_V = rng.standard_normal((3, count, e, dim)) / np.sqrt(dim)
    W_Q = W_Q * np.array(gains)[:, None, None]
    return heads_from_arrays(Gamma=covariance_matrix("toeplitz(0.5)", dim), W_Q=W_Q, W_K=W_K, W_V=W_V, head_dim=e)


def _either(matrix: str, samples: str, arrays: dict, dim: int | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """A covariance, and the list that it is the covariance of if that was given in its place."""
    if matrix in arrays and samples in arrays:
        raise ValueError(f"give either {matrix} or {samples}, whose covariance it would be, not both")
    if matrix in arrays:
        return check_covariance(matrix, arrays[matrix], dim), None
    if samples not in arrays:
        raise ValueError(f"the array {matrix} is missing: the covariance, shape (d, d); or {samples}, shape (n, d)")
    found = arrays[samples]
    if found.ndim != 2 or len(found) < 2 or not found.shape[1] or dim not in (None, found.shape[1]):
        raise ValueError(f"{samples} has shape {found.shape}, expected (n, {dim or 'd'}), at least two of them")
    return np.atleast_2d(np.cov(found.T, ddof=0)), found


def _from_projections(arrays: dict[str, np.ndarray], d: int) -> tuple[np.ndarray, ...]:
    if "head_dim" not in arrays:
        raise ValueError("the number head_dim is missing: the scores are (W_K x) . (W_Q z) / sqrt(head_dim)")
    size = arrays["head_dim"]
    if size.size != 1 or size.item() < 1 or size.item() != int(size.item()):
        raise ValueError(f"head_dim must be one whole number from 1, received {size.tolist()}")
    e = int(size.item())
    W_Q, W_K = (_split(name, arrays[name], e, d) for name in ("W_Q", "W_K"))
    heads = len(W_Q)
    given = arrays["W_V"]
    rows = given.shape[-2] if given.ndim == 3 else given.shape[0] // len(W_K) if given.ndim == 2 else 1
    W_V = _split("W_V", given, rows, d)
    for name, W in (("W_K", W_K), ("W_V", W_V)):
        if heads % len(W):
            raise ValueError(f"{name} holds {len(W)} heads, expected a divisor of the {heads} heads of W_Q")
    W_K, W_V = (np.repeat(W, heads // len(W), axis=0) for W in (W_K, W_V))
    V = W_V if "W_O" not in arrays else _output(arrays["W_O"], heads, W_V.shape[1]) @ W_V
    for name, heads_of in BIASES.items():
        rows = arrays[name].size if name in arrays else 0
        expected = {"W_Q": W_Q, "W_K": arrays["W_K"], "W_V": arrays["W_V"]}[heads_of]
        if rows and rows != np.prod(expected.shape) // d:
            shape = arrays[name].shape
            raise ValueError(f"{name} has shape {shape}, expected a number for each row of {heads_of}")
    return np.matrix_transpose(W_K) @ W_Q / np.sqrt(e), V, _query_shifts(W_Q, arrays.get("b_Q"))


def _query_shifts(W_Q: np.ndarray, b_Q: np.ndarray | None) -> np.ndarray | float:
    """W_Q^+ b_Q of each head, shape (h, d): what W_Q makes the bias of."""
    if b_Q is None:
        return 0.0
    b_Q = b_Q.reshape(W_Q.shape[:2])
    shifts = np.matvec(np.linalg.pinv(W_Q), b_Q)
    if not np.allclose(np.matvec(W_Q, shifts), b_Q, rtol=1e-6, atol=1e-9 * np.abs(b_Q).max()):
        raise ValueError("b_Q is not in the range of W_Q, whose rows depend on each other: leave out what is redundant")
    return shifts


def _output(W_O: np.ndarray, heads: int, rows: int) -> np.ndarray:
    if W_O.ndim == 2 and W_O.shape[1] == heads * rows:
        return W_O.reshape(len(W_O), heads, rows).swapaxes(0, 1)
    if W_O.ndim == 3 and W_O.shape[::2] == (heads, rows):
        return W_O
    raise ValueError(f"W_O has shape {W_O.shape}, expected (k, {heads * rows}) or ({heads}, k, {rows})")


def _split(name: str, W: np.ndarray, rows: int, d: int) -> np.ndarray:
    """(h, rows, d) from itself or from (h rows, d)."""
    if W.ndim == 2 and W.shape[1] == d and rows > 0 and len(W) % rows == 0 and len(W) > 0:
        return W.reshape(-1, rows, d)
    if W.ndim == 3 and W.shape[1:] == (rows, d) and len(W) > 0:
        return W
    raise ValueError(
        f"{name} has shape {W.shape}, expected (heads, {rows}, {d}) or (heads * {rows}, {d}), "
        f"as Gamma has shape {(d, d)} and a head {rows} rows"
    )


def _stack(name: str, matrix: np.ndarray, rows: int | None, d: int) -> np.ndarray:
    stacked = matrix[None] if matrix.ndim == 2 else matrix
    if stacked.ndim != 3 or 0 in stacked.shape or stacked.shape[2] != d or rows not in (None, stacked.shape[1]):
        expected = f"{'k' if rows is None else rows}, {d}"
        raise ValueError(
            f"{name} has shape {matrix.shape}, expected ({expected}) or (heads, {expected}), "
            f"as Gamma has shape {(d, d)}"
        )
    return stacked


def _numbers(name: str, array) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} of shape {array.shape} must hold real numbers, received {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} of shape {array.shape} must hold finite numbers")
    return array if name in ("Gamma", "Gamma_z") else array.astype(float)
