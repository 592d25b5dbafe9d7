r"""Linformer: keys and values projected along the length, from L tokens to p rows, then softmax over the rows.

    softmax(query . (E keys)) (F values),        E and F of shape (p, L), the same for all prompts.

The projections are fixed before the prompt is seen, so where a token stands decides what becomes of it; on exchangeable
tokens nothing favors one place over another. What each choice of E and F computes on Gaussian tokens is known:

    gaussian, shared         E = F = R, entries N(0, 1/L): softmax attention on p fresh tokens, whatever L
    gaussian, independent    keys and values of different tokens: no attention at all
    pooling                  E = F = means of L/p tokens: scores too small by L/p, hence the same factor in the limit
    pooling, corrected       keys summed, values averaged: the right limit, with score variance s^2 L/p on p tokens
    centered                 softmax attention on p fresh tokens, less the mean of their values; with small keys and
                             large values the linear attention of p - 1 tokens
    learned                  towards that: about the linear attention of p - 1 tokens, shrunk (see `linear_floor`)

Source: Wang et al., arXiv 2006.04768; the rest is derived in notebook 05.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from lib.finite_prompt import output_error, score_deviation, softmax_functionals
from lib.kernels.interface import AttentionKernel, Cost

Batch = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Keys (n, L, r), a query for each (n, r), values (n, L, k) and the outputs wanted (n, k)."""


@dataclass(frozen=True, eq=False)
class Linformer(AttentionKernel):
    """Softmax attention over p projected keys and values.

    Attributes:
        key_rows, value_rows: E and F, shape (p, L). It reads prompts of exactly L tokens.
    """

    key_rows: np.ndarray
    value_rows: np.ndarray

    def __post_init__(self):
        E, F = (np.asarray(x, float) for x in (self.key_rows, self.value_rows))
        if E.ndim != 2 or E.shape != F.shape or E.size == 0:
            raise ValueError(f"key_rows and value_rows must both have shape (p, L), received {E.shape} and {F.shape}")
        object.__setattr__(self, "key_rows", E)
        object.__setattr__(self, "value_rows", F)

    @classmethod
    def gaussian(cls, length: int, rows: int, seed: int = 0, shared: bool = True) -> "Linformer":
        """Random projections with entries N(0, 1/L); shared: the same one for keys and values."""
        _check_rows(length, rows)
        draws = np.random.default_rng(seed).standard_normal((2, rows, length)) / np.sqrt(length)
        return cls(draws[0], draws[0] if shared else draws[1])

    @classmethod
    def pooling(cls, length: int, rows: int, corrected: bool = True) -> "Linformer":
        """Means over consecutive tokens, L/p each; corrected: keys are summed instead, which restores the limit."""
        _check_rows(length, rows)
        if length % rows:
            raise ValueError(f"pooling needs a length that the rows divide, received {length} tokens and {rows} rows")
        means = np.kron(np.eye(rows), np.full((1, length // rows), rows / length))
        return cls(means * (length // rows) if corrected else means, means)

    @classmethod
    def centered(cls, length: int, rows: int, key_scale: float, seed: int = 0) -> "Linformer":
        """E = key_scale R, F = R / key_scale: R a random projection to p - 1 dimensions, spread evenly over p rows.

        R' R is the projection, and the rows of R sum to zero. On centered Gaussian tokens the p rows of R keys are p
        fresh tokens less their mean, which shifts every score alike: softmax attention with its scores times key_scale
        on p tokens, less the mean of their values, over key_scale.
        """
        _check_rows(length, rows)
        basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((length, rows - 1)))[0]
        spread = np.linalg.qr(np.column_stack([np.ones(rows), np.eye(rows)[:, 1:]]))[0][:, 1:]
        projection = spread @ basis.T
        return cls(key_scale * projection, projection / key_scale)

    @property
    def length(self) -> int:
        return self.key_rows.shape[1]

    def truncated(self, length: int) -> "Linformer":
        """The same kernel for shorter prompts, as its authors do: later columns are left out."""
        if not 1 <= length <= self.length:
            raise ValueError(f"a Linformer of length {self.length} reads prompts of 1 to that many, not {length}")
        return Linformer(self.key_rows[:, :length], self.value_rows[:, :length])

    def attend(self, keys, queries, values):
        if keys.shape[1] != self.length:
            raise ValueError(f"this Linformer reads prompts of {self.length} tokens, received {keys.shape[1]}")
        weights = softmax(queries @ (self.key_rows @ keys).mT, axis=-1)
        return weights @ (self.value_rows @ values)

    def cost(self, length, key_dim, value_dim):
        p = len(self.key_rows)
        width = key_dim + value_dim
        return Cost(2 * p * length * width, p * (2 * width + 1), p * width, 2 * p * length)


def learn(
    start: Linformer,
    sample: Callable[[int, np.random.Generator], Batch],
    steps: int,
    rng: np.random.Generator,
    batch: int = 64,
    rate: float = 0.01,
) -> Linformer:
    """Projections learned on a task at one length: Adam with a cosine schedule on fresh prompts at every step.

    Args:
        start: where to start, which fixes the length and the rows.
        sample: (n, rng) to a batch of n prompts with the outputs wanted; the loss is the mean squared distance to them.
        steps, batch, rate: of Adam. rng: a numpy Generator, of the prompts.

    Cost: about 6 p L (r + k) batch operations a step, in single precision.
    """
    import torch

    rows = [torch.tensor(x, dtype=torch.float32, requires_grad=True) for x in (start.key_rows, start.value_rows)]
    first, second = ([torch.zeros_like(x) for x in rows] for _ in range(2))
    for step in range(steps):
        keys, query, values, wanted = (torch.from_numpy(np.asarray(x, np.float32)) for x in sample(batch, rng))
        weights = torch.softmax((rows[0] @ keys) @ query[..., None], dim=1)
        outputs = (weights * (rows[1] @ values)).sum(1)
        gradients = torch.autograd.grad(((outputs - wanted) ** 2).sum(1).mean(), rows)
        # Adam by hand: importing torch.optim takes longer than most trainings here.
        now = rate * (1 + np.cos(np.pi * step / steps)) / 2
        with torch.no_grad():
            for x, m, v, gradient in zip(rows, first, second, gradients, strict=True):
                m.lerp_(gradient, 0.1)
                v.lerp_(gradient**2, 0.001)
                x -= now * (m / (1 - 0.9 ** (step + 1))) / ((v / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
    return Linformer(*(x.detach().double().numpy() for x in rows))


def gaussian_projection_error(second_moment, query, U, V, rows: int, limit, shared: bool = True) -> float:
    r"""E|Linformer - limit|^2 over Gaussian projections, given a prompt: exact.

    Shared: given the prompt the projected tokens are p independent draws of N(0, S), S = (1/L) sum x x', so this is the
    finite-prompt theory with S for Gamma and p for L. Independent: the weights know nothing of the values.

    Args:
        second_moment: S of the prompt, shape (d, d). query (d,), U (d, d), V (k, d), rows: p.
        limit: the point that the distance is taken from, shape (k,).
    """
    s = float(score_deviation(second_moment, query, U))
    eta = float(softmax_functionals(s, rows).inverse_participation)
    if not shared:
        return float(limit @ limit + eta * np.trace(V @ second_moment @ V.T))
    center = V @ second_moment @ U @ query
    gap = center - limit  # the mean of the output is (1 - eta) center
    return float(output_error(second_moment, query, U, V, rows) - 2 * eta * center @ gap + gap @ gap)


def pooled_error(covariance, query, U, V, length: int, rows: int, corrected: bool = True) -> float:
    r"""E|pooled attention - V Gamma U z|^2 on Gaussian tokens, exact: means of B = L/p tokens are N(0, Gamma/B).

    Corrected, the tilt is B U z, and the score variance B s^2. Uncorrected the limit is V Gamma U z / B.
    The tokens' mean plays no part. Arguments as for :func:`lib.finite_prompt.output_error`, query (d,).
    """
    covariance, size = np.asarray(covariance, float), length / rows
    tilt = size * np.asarray(U, float) if corrected else np.asarray(U, float)
    error = float(output_error(covariance / size, query, tilt, V, rows))
    if corrected:
        return error
    eta = float(softmax_functionals(score_deviation(covariance / size, query, U), rows).inverse_participation)
    limit, short = V @ covariance @ U @ query, 1 - 1 / size
    return error + float(limit @ limit) * (2 * eta * short / size + short**2)


def linear_floor(noise: float, signal: float, remainder: float, length: int, rows: int) -> float:
    r"""The error to softmax that learned projections of p rows can reach while the softmax over rows is linear.

    The output is then f'v + query' keys' G values with any f and any G of rank p - 1. On exchangeable tokens the best
    is the prompt's mean and G = g times a projection, to be compared with linear attention's (I - 11'/L) / L:

        min_g  (p-1) (g - 1/L)^2 noise + (L-p) / L^2 noise + ((p-1) g - (L-1)/L)^2 signal  + remainder.

    Args:
        noise: s^2 tr(V Gamma V') + |V Gamma a|^2. signal: |V Gamma a|^2. remainder: the squared distance of moment
            attention from softmax. All averaged over queries.

    Source: heuristic (nothing proves that a nonlinear solution is not better), confirmed numerically in notebook 05.
    """
    _check_rows(length, rows)
    rank, scale = rows - 1, (length - 1) / length
    g = (noise / length + signal * scale) / (noise + rank * signal)
    lost = (rank * (g - 1 / length) ** 2 + (length - rows) / length**2) * noise
    return lost + (rank * g - scale) ** 2 * signal + remainder


def _check_rows(length: int, rows: int) -> None:
    if not 1 <= rows <= length:
        raise ValueError(f"rows must be between 1 and the length {length}, received {rows}")
