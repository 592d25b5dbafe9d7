r"""The law of score and value for tokens with independent coordinates, in any dimension, from its exponential moments.

Coordinates X_j with the moment function m_j(x) = E e^{x X_j} give the score s = sum_j a_j X_j, a = U z, the moments
M(theta) = E e^{theta s} = prod_j m_j(theta a_j) at every complex theta of a strip. All that the exact error needs are
expectations of q^n e^{-q} with q = t e^s, and these are inverse Mellin transforms,

    E[ q^n g e^{-q} ] = 1 / (2 pi i) int Gamma(n + z) t^{-z} E[ g e^{-z s} ] dz        along a vertical line,

where Gamma falls like e^{-pi |Im z| / 2}, so that the trapezoid rule takes a few hundred moments. Moving the line past
the poles of Gamma splits off the first terms of the expansion in t, e^{-q} = 1 - q + .., and what is left is small: the
line that leaves least is chosen for each t. For g = c = V X - T and its square,

    E[ c e^{theta s} ] / M = V rho - T,
    E[ |c|^2 e^{theta s} ] / M = |V rho - T|^2 + sum_j (V'V)_jj ( m_j'' / m_j - rho_j^2 ),

with rho_j = m_j' / m_j at theta a_j, and |.|^2 the sum of squares, of complex numbers too.
"""

import functools
from collections.abc import Callable
from math import factorial, inf, log, pi

import numpy as np
from scipy.special import gammaln, loggamma, polygamma

from lib.finite_prompt.empirical import BEYOND, NEGLIGIBLE, tau_grid
from lib.prompts.batches import MEMORY, batches
from lib.tokens.families import Rademacher, Uniform
from lib.tokens.heavy_tails import Laplace
from lib.tokens.measure import TokenMeasure

LARGEST_S = 12.0  # deviation of the scores
LOUDEST = 64.0  # the furthest line to the right: e^{-q} < 1e-16 from q = 37 on
NEAR = 2.5  # lines this many standard deviations apart leave at most e^{NEAR^2 / 8} = 2.2 times the least
SMALL_TERMS = 75.0  # as fine as keeps a term of order t from entering one of order t^2 at t = 1e-15
SERIES = 0.03  # sinh(u) / u and its slopes by their series below it, to 1e-14
TAIL = 30.0  # Gamma(z) < 1e-17 of its largest value from |Im z| = 30 + 7 sqrt(|Re z|) on


class CoordinateLaw:
    """The law of score and value of a token with independent coordinates: tilt a = U z, shape (d,), V (k, d).

    It answers as :class:`lib.finite_prompt.empirical.ScoredValues` does.

    Attributes:
        limit: the infinite-prompt attention, shape (k,).
    """

    def __init__(self, measure: TokenMeasure, tilt: np.ndarray, V: np.ndarray):
        self._measure, self._tilt, self._V = measure, tilt, V
        self._end = largest_power(measure, tilt)  # moments E e^{theta s} exist for |theta| below it
        self._variance = self._curvature(0.0)  # of the score
        if not (s := np.sqrt(self._variance)) <= LARGEST_S:
            raise ValueError(
                f"scores of deviation up to {LARGEST_S:g} are exact for independent coordinates, received {s:g}; give "
                "samples to tokens_error"
            )
        self.limit = V @ measure.tilted_mean(tilt)

    def tau_grid(self, longest: float) -> np.ndarray:
        """tau from where the longest prompt's integrand begins to where that of a single token ends."""
        lines, lowest = self._lines(2), 0.0
        lines = lines[lines > 0]
        size = gammaln(2 + lines) + self._cumulant(-lines)
        while (size - lines * (BEYOND - lowest)).min() > -NEGLIGIBLE:
            lowest -= 1.0
        return tau_grid(lowest, self._cumulant(1.0), longest)

    def transforms(self, target: np.ndarray, tau: np.ndarray) -> tuple[np.ndarray, ...]:
        """log phi, E[q c e^{-q}], E[q^2 |c|^2 e^{-q}] and E[q^2 e^{-q}] on the grid of tau; the second (n, k)."""
        off, squares = self.limit - target, (self._V**2).sum(0)

        def centered(rho, _):
            return rho @ self._V.T - self.limit

        def square(rho, second):
            c = rho @ self._V.T - target
            return np.stack([(c**2).sum(1) + (second - rho**2) @ squares, np.ones(len(c))], 1)

        first = self._along(tau, 1, centered, vanishing=True)[0]
        if off.any():
            first = first + off * self._along(tau, 1, _one)[0]
        second, plain = self._along(tau, 2, square)[0].T
        phi, less_one = (x.squeeze() for x in self._along(tau, 0, _one, vanishing=True))
        log_phi = np.where(less_one, np.log1p(np.where(less_one, phi, 0.0)), np.log(np.maximum(phi, 1e-300)))
        return log_phi, first, second, plain

    def _along(self, tau, power: int, values: Callable, vanishing: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """E[q^power g e^{-q}] on the grid of tau, shape (n, k), each from the line that leaves least.

        Args:
            values: E[g e^{theta s}] / M of the moment ratios (rho, m'' / m) at theta a, of shape (n, d): (n, k).
            vanishing: leave the first term of the expansion in t away where a line has passed it: it is exactly zero,
                or wanted apart.

        Returns:
            The values, and where the first pole was passed, shape (n,).
        """
        lines = self._lines(power)
        size = gammaln(power + lines) + self._cumulant(-lines)
        chosen = (size[:, None] - np.outer(lines, tau)).argmin(0)
        found, passed = None, np.zeros(len(tau), bool)
        for i in np.unique(chosen):
            here, line = chosen == i, lines[i]
            n = max(0, int(np.ceil(-line - power)))  # poles of Gamma(power + z) to the right of the line
            passed[here] = n > 0
            part = self._on_line(tau[here], power, line, n, values)
            for j in range(1 if vanishing else 0, n):
                theta = float(power + j)
                cumulant, *ratios = self._moments(np.array([theta]))
                term = np.exp(theta * tau[here] + cumulant) * (-1) ** j / factorial(j)
                part += term[:, None] * values(*ratios)
            if found is None:
                found = np.empty((len(tau), part.shape[1]))
            found[here] = part
        return found, passed

    def _on_line(self, tau, power: int, line: float, n: int, values: Callable) -> np.ndarray:
        to_pole = min(power + line + n, 1 - power - line - n) if n else power + line
        spread = max(self._variance, self._curvature(line))  # beside it the integrand grows like e^{spread x^2/2}
        digits = SMALL_TERMS if n else NEGLIGIBLE + 3
        aside = min(0.8 * to_pole, 0.8 * (self._end - abs(line)), np.sqrt(2 * digits / max(spread, 1e-300)), 1.0)
        step = 2 * pi * aside / (digits + spread * aside**2 / 2)
        y = np.arange(0.0, TAIL + 7 * np.sqrt(max(power + line, 0.0)), step)
        z, result, log_size = line + 1j * y, 0.0, gammaln(power + line) + self._cumulant(-line)
        for part in batches(len(y), 8 * (len(tau) + len(self._tilt)), MEMORY):
            cumulants, *ratios = self._moments(-z[part])
            logs = loggamma(power + z[part]) + cumulants - log_size
            weights = np.exp(logs) * (step / pi) * np.where(y[part] == 0, 0.5, 1.0)
            turn = np.exp(-1j * np.outer(tau, y[part]))
            result = result + (turn @ (weights[:, None] * values(*ratios))).real
        return np.exp(log_size - line * tau)[:, None] * result

    def _lines(self, power: int) -> np.ndarray:
        """Where the lines may run: between poles of Gamma and inside the strip where moments exist, so near each other
        that one of them is near the saddle of every t."""
        edge = min(self._end - min(0.2, self._end / 10), LOUDEST)
        lines, first = [], 0.5 / max(1.0, np.sqrt(self._variance))
        low, high = max(-power + first, -edge), edge
        while low < high:
            lines.append(low)
            low += NEAR / np.sqrt(polygamma(1, power + low) + self._curvature(low))
        lines.append(edge)
        for pole in (-power, -power - 1):  # to its left, as far as moments exist
            low, high = max(pole - 1, -self._end) + first, pole - first
            if self._end + pole < 0.02:  # moments end there, or so close that nothing is won
                continue
            if low > high:
                low = high = (max(pole - 1, -self._end) + pole) / 2
            while low <= high:
                lines.append(low)
                low += NEAR / np.sqrt((low - pole + 1) ** -2.0 + (pole - low) ** -2.0 + self._curvature(low))
        return np.array(lines)

    def _curvature(self, line: float) -> float:
        """The variance of the score under the tilt by -line: the second derivative of the cumulants."""
        _, rho, second = coordinate_moments(self._measure, -line * self._tilt)
        return float(np.maximum(second - rho**2, 0.0) @ self._tilt**2)

    def _cumulant(self, theta) -> np.ndarray:
        """log E e^{theta s}."""
        return self._moments(theta)[0]

    def _moments(self, theta) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log E e^{theta s}, and the ratios m' / m and m'' / m of each coordinate at theta a, shape (..., d)."""
        logs, rho, second = coordinate_moments(self._measure, np.multiply.outer(theta, self._tilt))
        return logs.sum(-1), rho, second


def _one(rho, _) -> np.ndarray:
    return np.ones((len(rho), 1))


@functools.singledispatch
def largest_power(measure: TokenMeasure, tilt: np.ndarray) -> float:
    """The theta below which E e^{theta s} exists, s = tilt . X: infinite for bounded coordinates."""
    return inf


@largest_power.register
def _(measure: Laplace, tilt):
    largest = np.abs(tilt).max()
    return 1 / (measure.scale * largest) if largest > 0 else inf


@functools.singledispatch
def coordinate_moments(measure, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log m(x), m'(x) / m(x) and m''(x) / m(x), elementwise, m(x) = E e^{x X_j}; x real or complex."""
    raise ValueError(f"no rule is known for {type(measure).__name__}; give samples to tokens_error")


@coordinate_moments.register
def _(measure: Rademacher, x):
    c = measure.scale
    u = np.where(np.real(x) < 0, -c * x, c * x)  # cosh is even
    decay = np.exp(-2 * u)
    sign = np.where(np.real(x) < 0, -c, c)
    return u + np.log1p(decay) - log(2), sign * (1 - decay) / (1 + decay), np.full(np.shape(x), c**2)


@coordinate_moments.register
def _(measure: Uniform, x):
    c = measure.half_width
    sign = np.where(np.real(x) < 0, -1.0, 1.0)
    u = sign * c * x
    near = np.abs(u) < SERIES
    v, w = np.where(near, 1.0, u), np.where(near, u, 0.0)
    decay = np.exp(-2 * v)
    value = np.where(near, np.log1p(w**2 / 6 + w**4 / 120 + w**6 / 5040), v + np.log1p(-decay) - np.log(2 * v))
    slope = np.where(near, w / 3 - w**3 / 45 + 2 * w**5 / 945, (1 + decay) / (1 - decay) - 1 / v)
    second = np.where(near, 1 / 3 + 2 * w**2 / 45 - 4 * w**4 / 945, 1 - 2 * slope / v)
    return value, c * sign * slope, c**2 * second


@coordinate_moments.register
def _(measure: Laplace, x):
    u = measure.scale * x
    rest = 1 - u**2
    return -np.log(rest), 2 * measure.scale * u / rest, measure.scale**2 * (2 + 6 * u**2) / rest**2
