"""Attention heads from a file: the arrays of an .npz, checked, as the (U, V) that everything here works with.

    Gamma      (d, d)             covariance of the tokens
    Gamma_z    (d, d)             covariance of the queries; Gamma if it is missing (self-attention)
    query      (d,)               one query to answer for, besides the average over queries; optional

and either the two matrices of the heads, or the projections of a transformer layer, h heads at once or one:

    U, V       (h, d, d), (h, k, d)          or (d, d), (k, d): the score of a token x is x . U z
    W_Q, W_K   (h, e, d)                     or the heads below each other, (h e, d), as in torch.nn.Linear
    W_V        (h, e_v, d)                   or (h e_v, d)
    W_O        (h, k, e_v)                   or the heads side by side, (k, h e_v); optional
    head_dim   a number, e: the scores are (W_K x) . (W_Q z) / sqrt(e)

W_K and W_V may have fewer heads than W_Q (grouped queries): each then serves h / h' heads in a row. Biases are not
covered. A transformer's token here is what its projections act on, after the layer's normalization.

>>> np.savez("head.npz", Gamma=np.eye(4), W_Q=W_Q, W_K=W_K, W_V=W_V, head_dim=2)  # doctest: +SKIP
>>> heads = load_heads("head.npz")  # doctest: +SKIP
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.prompts.streams import stream
from lib.tokens.array_file import load_arrays
from lib.tokens.covariances import check_covariance, covariance_matrix

PROJECTIONS = ("W_Q", "W_K", "W_V")
KNOWN = ("Gamma", "Gamma_z", "query", "U", "V", *PROJECTIONS, "W_O", "head_dim")


@dataclass(frozen=True, eq=False)
class AttentionHeads:
    """Heads on tokens of one covariance: covariance, query_covariance (d, d), U (h, d, d), V (h, k, d), query (d,)."""

    covariance: np.ndarray
    query_covariance: np.ndarray
    U: np.ndarray
    V: np.ndarray
    query: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.U)


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
    if "Gamma" not in arrays:
        raise ValueError("the array Gamma is missing: the covariance of the tokens, shape (d, d)")
    covariance = check_covariance("Gamma", arrays["Gamma"])
    d = len(covariance)
    query_covariance = check_covariance("Gamma_z", arrays.get("Gamma_z", covariance), d)
    query = arrays.get("query")
    if query is not None and query.shape != (d,):
        raise ValueError(f"query has shape {query.shape}, expected {(d,)}, as Gamma has shape {(d, d)}")
    given = [name for name in (*PROJECTIONS, "U", "V") if name in arrays]
    if sorted(given) == ["U", "V"]:
        U, V = _stack("U", arrays["U"], d, d), _stack("V", arrays["V"], None, d)
        if len(U) != len(V):
            raise ValueError(f"V has shape {arrays['V'].shape}, expected as many heads as U of {arrays['U'].shape}")
    elif given == list(PROJECTIONS):
        U, V = _from_projections(arrays, d)
    else:
        raise ValueError(f"give either U and V, or W_Q, W_K, W_V and head_dim; received {', '.join(given) or 'none'}")
    return AttentionHeads(covariance, query_covariance, U, V, query)


def example_heads(seed: int, dim: int = 16, gains=(0.5, 2.0)) -> AttentionHeads:
    """A small layer with random projections, one head a gain, its scores that many times as large as at initialization.

    Tokens of covariance toeplitz(0.5); head dimension dim / 4; W_Q, W_K and W_V of variance 1 / dim.
    """
    rng, count, e = stream(seed, "example heads"), len(gains), max(1, dim // 4)
    W_Q, W_K, W_V = rng.standard_normal((3, count, e, dim)) / np.sqrt(dim)
    W_Q = W_Q * np.array(gains)[:, None, None]
    return heads_from_arrays(Gamma=covariance_matrix("toeplitz(0.5)", dim), W_Q=W_Q, W_K=W_K, W_V=W_V, head_dim=e)


def _from_projections(arrays: dict[str, np.ndarray], d: int) -> tuple[np.ndarray, np.ndarray]:
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
    return np.matrix_transpose(W_K) @ W_Q / np.sqrt(e), V


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
