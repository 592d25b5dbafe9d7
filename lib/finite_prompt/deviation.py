r"""How far attention on prompts is from the linear map of its tokens' mean and covariance, and why.

With T_lin = V (m + Gamma U z) and T the infinite-prompt limit of the tokens' own law,

    E|T_L - T_lin|^2 = E|T_L - E T_L|^2 + |E T_L - T|^2 + |T - T_lin|^2 + 2 (E T_L - T).(T - T_lin):

the fluctuation and the bias of a finite prompt, the nonlinearity of the limit, and the cross term of the last two. For
Gaussian tokens the nonlinearity is zero. What real prompts add to it is dependence between their tokens.
"""

from dataclasses import dataclass

import numpy as np

from lib.finite_prompt.any_measure import measure_error
from lib.finite_prompt.empirical import TokensError, tokens_error


@dataclass(frozen=True)
class Deviation:
    """Parts of the squared distance from the linear map, over its squared size: shape (n_lengths,), or one number."""

    fluctuation: np.ndarray
    bias: np.ndarray
    nonlinearity: float
    cross: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """E|T_L - T_lin|^2 / |T_lin|^2."""
        return self.fluctuation + self.bias + self.nonlinearity + self.cross


def tokens_deviation(tokens, query, U, V, length, *, weights=None) -> Deviation:
    """The parts for prompts of independent draws from a list of tokens; arguments as for :func:`tokens_error`.

    Raises:
        ValueError: as there, and if the linear map gives zero.
    """
    found = tokens_error(tokens, query, U, V, length, weights=weights)
    tokens = np.asarray(tokens, float)
    mean = np.average(tokens, axis=0, weights=weights)
    covariance = np.atleast_2d(np.cov(tokens.T, aweights=weights, ddof=0))
    return _parts(found, np.asarray(V) @ (mean + covariance @ np.asarray(U) @ query))


def measure_deviation(measure, query, U, V, length) -> Deviation:
    """The parts for prompts of independent tokens of a measure; arguments as for :func:`measure_error`."""
    found = measure_error(measure, query, U, V, length)
    return _parts(found, np.asarray(V) @ (measure.mean + measure.covariance @ np.asarray(U) @ query))


def _parts(found: TokensError, linear: np.ndarray) -> Deviation:
    size = float(linear @ linear)
    if not size > 0:
        raise ValueError("the linear map gives zero at this query: nothing is relative to it")
    bias, nonlinear = found.mean - found.limit, found.limit - linear
    squares = float(nonlinear @ nonlinear) / size
    return Deviation(found.fluctuation / size, (bias**2).sum(-1) / size, squares, 2 * bias @ nonlinear / size)
