r"""Expectations of the softmax weights of Gaussian scores, exact at every prompt length.

A prompt of ``L`` Gaussian tokens gives the scores ``s g_i``, with ``g_i ~ N(0, 1)`` independent and ``s`` the standard
deviation of the scores. The softmax weights ``p_i = exp(s g_i) / sum_j exp(s g_j)`` are all that finite-prompt
attention depends on, and the moments of its error are expectations of the form

    E prod_k sum_i p_i^{n_k} f_k(g_i).

Each is a sum of one-dimensional integrals. Write ``1 / Z^n`` as the integral of ``t^{n-1} e^{-tZ} / (n-1)!``: given
``t`` the tokens are independent, so a product of sums factors over the ways in which the factors can share tokens,
that is over the set partitions of the factors (derived in notebook 02).
"""

from dataclasses import dataclass
from functools import lru_cache
from math import factorial, log, log10, pi, sqrt

import numpy as np
from numpy.polynomial import polynomial

TAU_STEP = 0.25  # of the trapezoid rule in tau = log t: its error is about exp(-pi^2 / 0.25) = 1e-17
G_STEP = 0.4  # largest step in g: the error of the Gaussian sum is about exp(-2 pi^2 / 0.4^2) = 1e-53
LARGEST_S, LARGEST_LENGTH = 40.0, 1e40  # the range in which the accuracy below was checked

Factor = tuple[int, tuple[float, ...]]
"""One factor ``sum_i p_i^n f(g_i)``: the power n, and f as polynomial coefficients in h = g - s, constant first."""

ONE, H, H2_MINUS_1 = (1.0,), (0.0, 1.0), (-1.0, 0.0, 1.0)
_CENTERED = H, H2_MINUS_1  # E[f(g) e^{sg}] = 0 for these two: under the tilt by e^{sg}, h is standard normal


@dataclass(frozen=True)
class SoftmaxFunctionals:
    """The two functions of (s, L) that decide the output error of softmax attention on Gaussian tokens.

    Attributes:
        inverse_participation: eta = E[sum_i p_i^2]; its inverse is an effective sample size. Between 1/L and 1.
        squared_error: zeta = E[(ghat - s)^2] with ghat = sum_i p_i g_i, the error along the direction of the scores.
    """

    inverse_participation: np.ndarray
    squared_error: np.ndarray


def softmax_functionals(s, length) -> SoftmaxFunctionals:
    r"""``eta(s, L)`` and ``zeta(s, L)``, inverse participation and squared error of the weights, exactly.

    eta = E[sum_i p_i^2],   zeta = E[(sum_i p_i g_i - s)^2],   p_i = softmax(s g)_i,   g_1 .. g_L ~ N(0, 1) independent.

    Args:
        s: standard deviation of the scores, in [0, 40]; any shape.
        length: prompt length L, whole, in [1, 1e40] (floats are welcome); broadcasts with ``s``.

    Returns:
        SoftmaxFunctionals of arrays of the broadcast shape. Exact at s = 0 and at L = 1; relative accuracy 1e-11 for
        s <= 8 and L <= 1e15, 1e-9 over the whole range.

    Raises:
        ValueError: if an argument is out of its range.

    Cost: about 0.5 ms for each distinct s, for all lengths together. Source: exact here; notebook 02 derives it.
    """
    inverse_participation, squared_error = expected_products(s, length, [[(2, ONE)], [(1, H), (1, H)]])
    s, length = np.broadcast_arrays(np.asarray(s, float), np.asarray(length, float))
    uniform, single = s == 0, length == 1  # closed forms: equal weights, and one token
    inverse_participation = np.where(uniform, 1 / length, np.where(single, 1.0, inverse_participation))
    squared_error = np.where(single, 1 + s**2, np.where(uniform, 1 / length, squared_error))
    return SoftmaxFunctionals(inverse_participation, squared_error)


def expected_products(s, length, products: list[list[Factor]]) -> np.ndarray:
    r"""``E prod_k sum_i p_i^{n_k} f_k(g_i)`` for several products at once, exactly.

    Summed over the set partitions of the factors, with ``n`` the sum of the powers, ``B`` the blocks, ``n_B`` their
    summed power and ``q = t e^{s g}``,

        sum_partitions L (L-1) .. (L-|partition|+1) int t^{n-1}/(n-1)! prod_B t^{-n_B} b_B(t) phi(t)^{L-|partition|} dt,
        b_B(t) = E[q^{n_B} prod_{k in B} f_k(g) e^{-q}],        phi(t) = E e^{-q}.

    Args:
        s, length: as for :func:`softmax_functionals`.
        products: each a list of at most four factors ``(n_k, f_k)``, see :data:`Factor`.

    Returns:
        Array of shape ``(len(products), *broadcast shape)``.

    Cost: about 1 ms for each distinct s and 15 partitions. Source: exact here; notebook 02 derives it.
    """
    s, length = np.broadcast_arrays(np.asarray(s, float), np.asarray(length, float))
    _check_range("s", s, 0.0, LARGEST_S)
    _check_range("prompt length", length, 1.0, LARGEST_LENGTH)
    if np.any(length != np.floor(length)):
        raise ValueError(f"prompt length must be whole, received {length[length != np.floor(length)].flat[0]:g}")
    values = np.empty((len(products), *s.shape))
    lengths, where = np.unique(length, return_inverse=True)
    where = where.reshape(s.shape)
    for s_value in np.unique(s):
        here = s == s_value
        # Without scores the weights are 1/L, which any tiny s gives to the last digit.
        transforms = Transforms(max(s_value, 1e-9), lengths)
        for row, factors in enumerate(products):
            values[row, ...][here] = _moment(transforms, factors)[where[here]]
    return values


def _moment(transforms: "Transforms", factors: list[Factor]) -> np.ndarray:
    """One product of factors at one s, for every length of the transforms."""
    lengths = transforms.lengths
    total = np.zeros(len(lengths))
    for partition in _set_partitions(len(factors)):
        ordered_choices = np.prod([np.maximum(lengths - i, 0.0) for i in range(len(partition))], axis=0)
        integrand = np.ones(len(transforms.tau))
        for block in partition:
            integrand = integrand * transforms.block(tuple(factors[k] for k in block))
        # A product of integrands that underflows next to coefficients as large as L^4 would be lost: share the log.
        rest = np.maximum(lengths - len(partition), 0.0)
        weight = np.exp(np.outer(rest, transforms.log_phi) + np.log(np.maximum(ordered_choices, 1e-300))[:, None])
        total += np.where(ordered_choices > 0, weight @ integrand, 0.0)
    power = sum(n for n, _ in factors)
    return total * TAU_STEP / factorial(power - 1)


class Transforms:
    """The one-token expectations at one s, on a grid of tau = log t that serves every length.

    The arguments tau + s g lie on a lattice when the step in g is TAU_STEP / s, so an expectation over g is a
    correlation of a function on that lattice with Gaussian weights: exponentials are taken once a lattice point.
    For small s that lattice would be too coarse in g, and the expectation is a small matrix product.
    """

    def __init__(self, s: float, lengths: np.ndarray):
        self.s, self.lengths = s, lengths
        log_length = log(lengths.max())
        # Below tau_low the integrand is under 1e-17 of 1/L, the smallest possible inverse participation, since
        # E[q^2 e^{-q}] is at most e^{2 tau + 2 s^2} and, for -tau <= 2 s^2, about e^{-tau^2 / (2 s^2)}.
        reach = s * sqrt(4 * log_length + 90)
        tau_low = -(reach + 5 if reach <= 2 * s**2 else log_length + s**2 + 25)
        tau_high = 9.5 * s + 6
        self.tau = tau_low + TAU_STEP * np.arange(int((tau_high - tau_low) / TAU_STEP) + 2)

        self._on_lattice = s * G_STEP >= TAU_STEP
        g_step = TAU_STEP / s if self._on_lattice else G_STEP
        # Up to q^4 e^{-q} tilts the Gaussian by 4 s, but never beyond q of about 60.
        g_low, g_high = -9.5, min(4 * s + 9.5, max(9.5, (6 - tau_low) / s))
        self.h = g_low + g_step * np.arange(int((g_high - g_low) / g_step) + 2) - s
        self._density = np.exp(-((self.h + s) ** 2) / 2) * g_step / sqrt(2 * pi)
        if self._on_lattice:
            first = self.tau[0] + s * (self.h[0] + s)
            self._log_q = first + TAU_STEP * np.arange(len(self.tau) + len(self.h) - 1)
        else:
            self._log_q = self.tau[:, None] + s * (self.h + s)
        with np.errstate(over="ignore"):
            self._q = np.exp(self._log_q)
        self._weights: dict = {}
        self._blocks: dict = {}
        absent = self._expect(-np.expm1(-self._q), ONE)  # 1 - phi, accurate where phi is close to 1
        self.log_phi = log_of(self._expect(np.exp(-self._q), ONE), absent)

    def _expect(self, kernel: np.ndarray, f: tuple[float, ...]) -> np.ndarray:
        """E[kernel(q) f(g)] on the grid of tau."""
        if f not in self._weights:
            self._weights[f] = self._density * polynomial.polyval(self.h, f)
        weights = self._weights[f]
        return np.correlate(kernel, weights, "valid") if self._on_lattice else kernel @ weights

    def block(self, factors: tuple[Factor, ...]) -> np.ndarray:
        """b(tau) = E[q^n f(g) e^{-q}], with n the sum of the powers and f the product of the polynomials."""
        power, f = key = _merged(factors)
        if key not in self._blocks:
            plain = self._expect(np.exp(power * self._log_q - self._q), f)
            if power == 1 and f in _CENTERED:
                # E[f q] = 0, so that e^{-q} may be replaced by e^{-q} - 1: nothing cancels where q is small.
                small = self._expect(self._q * np.expm1(-np.minimum(self._q, 700.0)), f)
                plain = np.where(self.tau < -(self.s**2), small, plain)
            self._blocks[key] = plain
        return self._blocks[key]


def log_of(phi: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """log phi, from phi and from 1 - phi where phi is close to 1: either is accurate where the other is not."""
    return np.where(absent < 0.5, np.log1p(-np.minimum(absent, 0.5)), np.log(np.maximum(phi, 1e-300)))


@lru_cache
def _merged(factors: tuple[Factor, ...]) -> Factor:
    """The one factor that several become when they share a token: powers add, polynomials multiply."""
    f = ONE
    for _, coefficients in factors:
        f = tuple(polynomial.polymul(f, coefficients))
    return sum(n for n, _ in factors), f


@lru_cache
def _set_partitions(n: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """All ways to split 0 .. n-1 into nonempty blocks."""
    if n == 0:
        return ((),)
    found = []
    for partition in _set_partitions(n - 1):
        found.append((*partition, (n - 1,)))
        found.extend((*partition[:i], (*partition[i], n - 1), *partition[i + 1 :]) for i in range(len(partition)))
    return tuple(found)


def _check_range(name: str, values: np.ndarray, low: float, high: float) -> None:
    wrong = ~((values >= low) & (values <= high))
    if np.any(wrong):
        shown = f"1e{log10(high):.0f}" if high > 1e6 else f"{high:g}"
        raise ValueError(f"{name} must be between {low:g} and {shown}, received {values[wrong].flat[0]:g}")
