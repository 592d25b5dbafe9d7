r"""Exact finite-prompt error for independent tokens of any law: an empirical measure, a list of tokens with weights.

The Gaussian theory rests on one trick, which needs no Gaussian. With x_j the tokens of the list, w_j their weights,
scores s_j = x_j . U z, values r_j = V x_j, and c_j = r_j - T for any constant vector T, a prompt of L independent draws
has

    1 / Z^2 = int t e^{-tZ} dt,   Z = sum_i e^{s_i},   phi(t) = E e^{-t e^s},   q = t e^s,

    E T_L - T      = L int E[q c e^{-q}] phi^{L-1} dtau,                                            tau = log t,
    E|T_L - T|^2   = L int E[q^2 |c|^2 e^{-q}] phi^{L-1} dtau + L (L-1) int |E[q c e^{-q}]|^2 phi^{L-2} dtau,
    eta(L)         = L int E[q^2 e^{-q}] phi^{L-1} dtau,                     the inverse participation E sum_i p_i^2.

Expectations are sums over the list, and L is a power: a prompt of 1e15 tokens costs as much as one of ten. They see a
token's score, and of its value the mean and the variance given the score: a law with a density is a list of quadrature
nodes (:mod:`lib.finite_prompt.any_measure`). Integrands are analytic for |Im tau| < pi / 2 and decay at both ends, so
that the trapezoid rule converges exponentially.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lib.finite_prompt.weight_moments import TAU_STEP, log_of
from lib.prompts.batches import MEMORY, batches

LARGEST_LENGTH = 1e15
NEGLIGIBLE = 37.0  # below its peak the integrand of the mean falls like e^tau, to 1e-16; the others like e^{2 tau}
BEYOND = 4.0  # and like exp(-e^tau) above it: q e^{-q} < 1e-21 from q = e^4 on


@dataclass(frozen=True)
class TokensError:
    """What prompts of independent draws from a list of tokens do, at each prompt length.

    Attributes:
        mean: E T_L, shape (n_lengths, k).
        squared_error: E|T_L - target|^2, shape (n_lengths,).
        inverse_participation: E sum_i p_i^2, shape (n_lengths,); its inverse is the effective sample size.
        limit: the infinite-prompt attention of the list, its tilted mean times V, shape (k,).
        target: what the error is measured from, shape (k,).
    """

    mean: np.ndarray
    squared_error: np.ndarray
    inverse_participation: np.ndarray
    limit: np.ndarray
    target: np.ndarray

    @property
    def fluctuation(self) -> np.ndarray:
        """E|T_L - E T_L|^2: the part of the error that averages out over prompts, shape (n_lengths,)."""
        bias = ((self.mean - self.target) ** 2).sum(-1)
        return np.maximum(self.squared_error - bias, 0.0)


@dataclass(frozen=True)
class ScoredValues:
    """A law of tokens as a head sees it: atoms of the score, with the value's conditional mean and variance at each.

    Attributes:
        scores: shape (N,), up to a common constant. weights: probabilities, positive with sum 1, shape (N,).
        means: E[V x | score], shape (N, k). variances: E|V x - E[V x | score]|^2, shape (N,); zero for a list.
    """

    scores: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray | float = 0.0

    @property
    def tilted(self) -> np.ndarray:
        """The weights times e^score, the largest score being zero, shape (N,): what long prompts draw from."""
        return self.weights * np.exp(self.scores - self.scores.max())

    @property
    def limit(self) -> np.ndarray:
        """The infinite-prompt attention, shape (k,)."""
        return self.tilted @ self.means / self.tilted.sum()

    def tau_grid(self, longest: float) -> np.ndarray:
        """tau from where the integrand of a prompt of that length begins to where that of a single token ends."""
        lowest = self.scores.min() - self.scores.max()
        return tau_grid(lowest, float(np.log(self.tilted.sum())), longest)

    def transforms(self, target: np.ndarray, tau: np.ndarray) -> tuple[np.ndarray, ...]:
        """log phi, E[q c e^{-q}], E[q^2 |c|^2 e^{-q}] and E[q^2 e^{-q}], c = value - target, on a grid of tau.

        Each of shape (n,), the second (n, k); the largest score is taken as zero.
        """
        scores = self.scores - self.scores.max()  # nothing overflows
        return _transforms(scores, self.means - target, self.variances, self.weights, tau)


class Law(Protocol):
    """What a head sees of a law of independent tokens: :class:`ScoredValues`, or what answers as it does."""

    limit: np.ndarray

    def tau_grid(self, longest: float) -> np.ndarray: ...
    def transforms(self, target: np.ndarray, tau: np.ndarray) -> tuple[np.ndarray, ...]: ...


def tokens_error(tokens, query, U, V, length, *, weights=None, target=None) -> TokensError:
    """Softmax attention on prompts of independent draws from a list of tokens, exactly, at every prompt length.

    Args:
        tokens: the list, shape (N, d): a vocabulary, the tokens of a text, atoms of any law.
        query: z, shape (d,). U: shape (d, d). V: shape (k, d).
        length: prompt length L, whole, from 1 to 1e15; a number or shape (n,).
        weights: probabilities of the tokens up to a factor, nonnegative, shape (N,); equal if omitted.
        target: T, shape (k,): what the error is measured from; the limit of this list if omitted.

    Returns:
        TokensError with one entry a length. Relative accuracy 1e-11 where the error is more than 1e-20 of the values.

    Raises:
        ValueError: if shapes do not fit, an entry is not finite, no weight is positive, or a length is out of range.

    Cost: N k times a few hundred, for all lengths together: 0.5 s for 1e4 tokens, k = 384. Memory is bounded.
    Source: exact here; derived in this module's first lines.
    """
    tokens, query, U, V = (np.asarray(x, float) for x in (tokens, query, U, V))
    weights = _checked(tokens, query, U, V, weights)
    chosen = weights > 0
    law = ScoredValues(tokens[chosen] @ (U @ query), weights[chosen], tokens[chosen] @ V.T)
    return error_of(law, length, target)


def error_of(law: Law, length, target=None) -> TokensError:
    """What prompts of independent tokens of a law do, at each prompt length: see :func:`tokens_error`."""
    lengths, limit = np.atleast_1d(checked_lengths(length, LARGEST_LENGTH)), law.limit
    target = limit if target is None else np.asarray(target, float)
    if target.shape != limit.shape:
        raise ValueError(f"target: expected shape {limit.shape}, the rows of V, received {target.shape}")
    log_phi, first, second, plain = law.transforms(target, law.tau_grid(float(lengths.max())))
    L = lengths[:, None]
    with np.errstate(under="ignore"):
        one = L * np.exp((L - 1) * log_phi) * TAU_STEP
        two = L * (L - 1) * np.exp(np.maximum(L - 2, 0.0) * log_phi) * TAU_STEP
    squared = one @ second + two @ (first**2).sum(-1)
    return TokensError(target + one @ first, squared, one @ plain, limit, target)


def tokens_output_error(tokens, query, U, V, length, *, weights=None, target=None) -> np.ndarray:
    """``E|T_L(z) - target|^2`` on prompts of independent draws from a list of tokens: see :func:`tokens_error`.

    Returns:
        The shape of length.
    """
    found = tokens_error(tokens, query, U, V, length, weights=weights, target=target)
    return found.squared_error.reshape(np.shape(length))


def checked_lengths(length, largest: float) -> np.ndarray:
    """Prompt lengths as floats, of the shape given. Raises ValueError unless all are whole, from 1 to the largest."""
    lengths = np.asarray(length, float)
    if not np.all((lengths >= 1) & (lengths <= largest) & (lengths == np.floor(lengths))):
        shown = f"{largest:,}" if largest < 1e9 else f"{largest:g}"
        raise ValueError(f"prompt length must be whole and between 1 and {shown}, received {length}")
    return lengths


def tau_grid(lowest: float, log_mean: float, longest: float) -> np.ndarray:
    """tau from where the longest prompt's integrand begins to where that of a single token ends.

    Args:
        lowest: the lowest score that counts. log_mean: log E e^s. longest: prompt length.
    """
    low = -(np.log(longest) + log_mean) - NEGLIGIBLE
    high = BEYOND - lowest
    return low + TAU_STEP * np.arange(int(np.ceil((high - low) / TAU_STEP)) + 1)


def _transforms(scores, centered, variances, weights, tau) -> tuple[np.ndarray, ...]:
    """log phi, E[q c e^{-q}], E[q^2 |c|^2 e^{-q}] and E[q^2 e^{-q}] on the grid of tau; the second of shape (n, k)."""
    absent, present = np.empty(len(tau)), np.empty(len(tau))
    first, seconds = np.empty((len(tau), centered.shape[1])), np.empty((len(tau), 2))
    squares = np.stack([(centered**2).sum(1) + variances, np.ones(len(scores))], 1) * weights[:, None]
    weighted = centered * weights[:, None]
    for part in batches(len(tau), len(scores), MEMORY):
        log_q = tau[part, None] + scores
        with np.errstate(over="ignore", under="ignore"):
            q = np.exp(np.minimum(log_q, 7.0))  # e^{-q} is zero long before
            decay = np.exp(-q)
            kernel = q * decay
            first[part], seconds[part] = kernel @ weighted, (q * kernel) @ squares
            absent[part], present[part] = -np.expm1(-q) @ weights, decay @ weights
    return log_of(present, absent), first, *seconds.T


def _checked(tokens, query, U, V, weights) -> np.ndarray:
    """The weights, normalized, once everything fits."""
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise ValueError(f"tokens: expected shape (N, d), not empty, received {tokens.shape}")
    n, d = tokens.shape
    weights = np.ones(n) if weights is None else np.asarray(weights, float)
    for name, array, ok in (
        ("query", query, query.shape == (d,)),
        ("U", U, U.shape == (d, d)),
        ("V", V, V.ndim == 2 and V.shape[1] == d),
        ("weights", weights, weights.shape == (n,)),
    ):
        if not ok:
            raise ValueError(f"{name} does not fit {n} tokens of dimension {d}: received shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: its entries must be finite")
    if not np.isfinite(tokens).all():
        raise ValueError("tokens: their entries must be finite")
    if (weights < 0).any() or not weights.sum() > 0:
        raise ValueError("weights: none may be negative, and one must be positive")
    return weights / weights.sum()
