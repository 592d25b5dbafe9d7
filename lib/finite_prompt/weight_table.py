r"""Moments of the softmax weights, interpolated in the score deviation s: for averages over it.

With eta(s, L) and zeta(s, L) of :func:`lib.finite_prompt.weight_moments.softmax_functionals`, an average over
queries or a risk needs eta and

    W = (zeta - eta) / s^2 - 2 eta,

at many s and the same prompt lengths, over and over along a flow. Both are read here off splines of log(L eta) / s^2
and log(zeta / eta) / s^2, which are smooth and even in s and of order one at every length.

Beyond the largest s of the table nearly all weight lies on one token, and the two have expansions in 1/s,

    s (1 - eta) = a + b / s^2 + ...,        s^2 (W + 1) = c + d / s^2 + ...,

since two largest scores compete where they differ by less than 1/s; a to d are fitted at the end of the table.
"""

from functools import lru_cache
from math import asinh

import numpy as np
from scipy.interpolate import make_interp_spline

from lib.finite_prompt.weight_moments import LARGEST_S, softmax_functionals

NODES, BEND, DEGREE = 261, 6.0, 9  # nodes are even in t, s = BEND sinh(t / BEND): at large s the functions vary slowly
STEP = BEND * asinh(LARGEST_S / BEND) / (NODES - 1)
FITTED_AT = LARGEST_S / 2**0.5, LARGEST_S  # s, for the expansions beyond
FROZEN_ERROR = 5e-5  # of eta and W there: what the same fit from half these s is off at 40, at lengths up to 1e40
PANEL = 16  # nodes that are computed, and kept, at a time


def weights_excess(lengths: tuple[float, ...], s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """eta - 1/L and W + 1/L, which vanish like s^2 at 0, for several prompt lengths.

    Args:
        lengths: prompt lengths L, hashable, since their table is kept. s: positive, shape (n,).

    Returns:
        Two arrays of shape (n, n_lengths). Relative accuracy of eta and zeta: 3e-12 for L up to 1e15, 3e-10 up to 1e40;
        beyond s = 40 both are within :data:`FROZEN_ERROR`.

    Cost: 40 ms once for s up to 6 and 0.6 s up to 40, for all lengths together; then microseconds.
    """
    frozen = s > LARGEST_S
    if frozen.any():
        inside, ends = weights_excess(lengths, np.where(frozen, 1.0, s)), weights_excess(lengths, np.array(FITTED_AT))
        return tuple(
            np.where(frozen[:, None], beyond, known)
            for beyond, known in zip(_frozen(lengths, s, *ends), inside, strict=True)
        )
    t = BEND * np.arcsinh(s / BEND)
    n_panels = int(t.max() / STEP) // PANEL + 2  # at least one panel beyond the last point
    growth, ratio = np.moveaxis(_table(lengths, min(n_panels, -(-NODES // PANEL)))(t), 1, 0)
    L, x = np.array(lengths), s[:, None] ** 2
    excess = np.expm1(x * growth) / L
    eta = excess + 1 / L
    return excess, eta * np.expm1(x * ratio) / x - 2 * eta + 1 / L


def _frozen(lengths: tuple[float, ...], s: np.ndarray, excess: np.ndarray, W: np.ndarray):
    """The two of :func:`weights_excess` by their expansions in 1/s, from their values at FITTED_AT, shape (2, n)."""
    x, y, L = (1 / np.array(FITTED_AT) ** 2)[:, None], 1 / s[:, None] ** 2, np.array(lengths)

    def line(values):
        return values[0] + (values[1] - values[0]) * (y - x[0]) / (x[1] - x[0])

    missing = line((1 - 1 / L - excess) / np.sqrt(x))
    return 1 - 1 / L - missing * np.sqrt(y), line((W - 1 / L + 1) / x) * y - 1 + 1 / L


@lru_cache(maxsize=256)
def _table(lengths: tuple[float, ...], n_panels: int):
    """Splines in t of log(L eta) / s^2 and log(zeta / eta) / s^2 over so many panels: (n,) -> (n, 2, n_lengths)."""
    values = np.concatenate([_panel(lengths, k) for k in range(n_panels)])
    t = STEP * np.arange(len(values))
    mirrored = slice(DEGREE, 0, -1)
    return make_interp_spline(np.append(-t[mirrored], t), np.append(values[mirrored], values, 0), k=DEGREE)


@lru_cache(maxsize=4096)
def _panel(lengths: tuple[float, ...], k: int) -> np.ndarray:
    """The two functions of :func:`_table` at its nodes number k PANEL and following."""
    t, L = STEP * np.arange(NODES)[k * PANEL : (k + 1) * PANEL], np.array(lengths)
    s = np.minimum(BEND * np.sinh(t / BEND), LARGEST_S)
    w = softmax_functionals(s[:, None], L)
    with np.errstate(divide="ignore", invalid="ignore"):  # at s = 0, set below
        growth, ratio = (
            np.log(f) / s[:, None] ** 2
            for f in (L * w.inverse_participation, w.squared_error / w.inverse_participation)
        )
    growth[s == 0], ratio[s == 0] = 1 - 1 / L, 1.0
    return np.stack([growth, ratio], 1)
