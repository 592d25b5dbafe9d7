r"""The law of the score deviation over Gaussian queries, jointly with quadratic forms of the query.

For a query ``z = Gamma_z^{1/2} xi``, ``xi`` standard normal, the variance of the scores is a quadratic form,
``s^2 = xi^T M xi`` with ``M = Gamma_z^{1/2} U^T Gamma U Gamma_z^{1/2}``. Every average over queries in this collection
is of the form ``E[ g(s) Q_1 .. Q_k ]`` with ``Q_i = xi^T N_i xi``: one integral over ``s``, once the density

    p(s; N_1 .. N_k) = E[ Q_1 .. Q_k ; s ]

is known. It is the inverse Laplace transform of ``det(I - 2uM)^{-1/2} E_u[Q_1 .. Q_k]``, the last factor a moment of
the complex Gaussian ``N(0, (I - 2uM)^{-1})``. Taken along a parabola through the saddle point, the trapezoid rule gives
it to about 1e-12 *relative* accuracy arbitrarily far in the tail, where the rare queries that dominate an average live
and where neither sampling nor cubature finds them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np

CONTOUR_STEP, CONTOUR_END = 0.14, 10.6  # the integrand decays at least like e^{-t^2 / 3} along the parabola
NODES_PER_PANEL = 16


@dataclass(frozen=True)
class Average:
    """An average over queries.

    Attributes:
        value: the average.
        numerical_error: absolute, from refining the quadrature and from the tail left out; it bounds no model error.
    """

    value: np.ndarray
    numerical_error: np.ndarray


@dataclass(frozen=True)
class Inversion:
    """Inverse Laplace transform by a sum along a contour: ``E[h(xi); s] = sum_t Im( weights E_t[h] )``.

    ``E_t`` is the moment of the complex Gaussian N(0, diag(variances_t)) in the eigenbasis of M. A factor ``u`` under
    the sum is minus the derivative of the density of x = s^2 by x: by parts, the average of ``f'(s^2) h`` is the
    integral over s of ``f(s^2) sum_t Im( u weights E_t[h] )``.

    Attributes:
        points: u on the contour, shape (n, t).
        weights: transform, contour element and dx/ds, shape (n, t).
        variances: 1 / (1 - 2 u lambda_i), shape (n, t, d).
    """

    points: np.ndarray
    weights: np.ndarray
    variances: np.ndarray


class ScoreLaw:
    """The law of ``s = sqrt(xi^T M xi)``, xi standard normal in R^d.

    Args:
        matrix: M, shape (d, d), symmetric positive semidefinite and not zero.

    Attributes:
        coupling: the largest eigenvalue of M; the tail of s^2 is exp(-s^2 / (2 coupling)).
        basis: eigenvectors of M, one a column, in which :meth:`inversion` gives its moments.
    """

    def __init__(self, matrix: np.ndarray):
        eigenvalues, self.basis = np.linalg.eigh((matrix + matrix.T) / 2)
        self.coupling = float(eigenvalues[-1])
        if not self.coupling > 0:
            raise ValueError("the law of the scores needs a matrix M that is not zero")
        self._eigenvalues = np.maximum(eigenvalues, 0.0)

    def density(self, s: np.ndarray, *forms: np.ndarray) -> np.ndarray:
        """``E[Q_1 .. Q_k ; s]``, the density of s weighted by up to three quadratic forms.

        Args:
            s: positive, shape (n,).
            forms: matrices N_i, each (d, d) and symmetric; none gives the density of s itself.

        Returns:
            Shape (n,).

        Cost: about 80 n d operations; times d^2 with two forms and d^3 with three.
        """
        forms = [self.basis.T @ form @ self.basis for form in forms]
        return np.concatenate([self._density(part, forms) for part in np.array_split(s, 1 + len(s) // 64)])

    def inversion(self, s: np.ndarray, step: float = CONTOUR_STEP, end: float = CONTOUR_END) -> Inversion:
        """The rule that inverts the Laplace transform at each s, for E[h(xi); s] with any even polynomial h.

        Args:
            s: positive, shape (n,).
            step, end: of the contour's parameter; 0.2 and 8.5 give 1e-11 in two thirds of the time.

        Cost: about (end / step) n d operations, and as many complex numbers in memory.
        """
        x = s**2
        points, derivative = self._contour(x, np.arange(0, end, step))
        factors = 1 - 2 * self._eigenvalues * points[..., None]
        # The logarithm of their product, by real functions and a matrix product: several times faster than log and sum.
        log_size, angle = np.log(factors.real**2 + factors.imag**2), np.arctan2(factors.imag, factors.real)
        halves = np.full(len(self._eigenvalues), 0.5)
        log_transform = -(log_size @ halves) / 2 - 1j * (angle @ halves) - points * x[:, None]
        # The two halves of the contour are complex conjugates; dx = 2 s ds.
        element = derivative * (2 * s[:, None] * step / np.pi)
        element[:, 0] /= 2
        return Inversion(points, element * np.exp(log_transform), 1 / factors)

    def _density(self, s: np.ndarray, forms: list[np.ndarray]) -> np.ndarray:
        rule = self.inversion(s)
        return (rule.weights * _moments(rule.variances, forms)).imag.sum(1)

    def _contour(self, x: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Points u(t) = u* + i sigma t + a t^2 and u'(t) for each x: tangent to steepest descent."""
        eigenvalues = self._eigenvalues[self._eigenvalues > 0]
        # 1/K' is concave and decreasing (K the log of the transform), so Newton's method on 1/K'(u) = 1/x
        # descends to the saddle point without a safeguard from the bound that keeps only the largest eigenvalue.
        u = (1 - self.coupling / x) / (2 * self.coupling)
        for _ in range(100):
            c = eigenvalues / (1 - 2 * eigenvalues * u[:, None])
            first, second = c.sum(1), 2 * (c**2).sum(1)
            step = (first - first**2 / x) / second  # negative
            u = u + step
            if np.all(np.abs(step) * np.sqrt(second) < 1e-3):  # of the width of the saddle: any path near it will do
                break
        c = eigenvalues / (1 - 2 * eigenvalues * u[:, None])
        second, third = 2 * (c**2).sum(1), 8 * (c**3).sum(1)
        sigma, bend = (1 / np.sqrt(second))[:, None], (third / (6 * second**2))[:, None]
        return u[:, None] + 1j * sigma * t + bend * t**2, 1j * sigma + 2 * bend * t

    def _panels(self, s_end: float, n_panels: int) -> np.ndarray:
        """Equal panels, the first halved until it resolves the smallest direction: near zero its law is narrow."""
        edges = np.linspace(0, s_end, n_panels + 1)
        narrow = np.sqrt(self._eigenvalues[self._eigenvalues > 1e-12 * self.coupling].min())
        halvings = int(np.clip(np.log2(edges[1] / narrow), 0, 20))
        return np.concatenate([[0], edges[1] / 2.0 ** np.arange(halvings, 0, -1), edges[1:]])

    def tail_point(self, log_probability: float) -> float:
        """A value of s beyond which the law has at most this probability, by Chernoff's bound."""
        # At u = (1 - eps) / (2 coupling) the bound is explicit; the best of a few eps is close to optimal.
        u = (1 - np.logspace(-3, -0.05, 60)) / (2 * self.coupling)
        log_transform = -np.log1p(-2 * self._eigenvalues * u[:, None]).sum(1) / 2
        return float(np.sqrt(np.min((log_transform - log_probability) / u)))

    def average(
        self,
        terms: Callable[[np.ndarray], np.ndarray],
        forms: list[tuple[np.ndarray, ...]],
        *,
        log_smallest: float,
        largest_s: float,
        rtol: float = 1e-4,
    ) -> Average:
        """``sum_j E[ g_j(s) Q_j1 .. Q_jk ]`` by composite Gauss-Legendre quadrature in s, refined until it settles.

        Args:
            terms: maps s of shape (n,) to the g_j, shape (n_terms, n, n_lengths).
            forms: for each term its quadratic forms, possibly none.
            log_smallest: a guess of the logarithm of the smallest value relative to a typical g_j: it decides
                how far in the tail of s to go.
            largest_s: the end of the range of s for which ``terms`` can be evaluated.
            rtol: relative accuracy asked for.

        Returns:
            Average of shape (n_lengths,). The numerical error says if ``rtol`` was not reached.
        """
        s_end = min(self.tail_point(log_smallest + log(rtol) - 12), largest_s)
        nodes, weights = np.polynomial.legendre.leggauss(NODES_PER_PANEL)

        def on_panels(n_panels: int) -> tuple[np.ndarray, np.ndarray]:
            edges = self._panels(s_end, n_panels)
            s = (edges[:-1, None] + np.diff(edges)[:, None] * (nodes + 1) / 2).ravel()
            ds = (np.diff(edges)[:, None] * weights / 2).ravel()
            densities = np.stack([self.density(s, *form) for form in forms])
            contributions = np.einsum("jn,jnl,n->nl", densities, terms(s), ds)
            value = contributions.sum(0)
            last_two = np.abs(contributions[-2 * NODES_PER_PANEL :]).reshape(2, NODES_PER_PANEL, -1).sum(1)
            beyond = _tail(*last_two) if s_end == largest_s else 0.0
            return value, beyond + 1e-11 * np.abs(value)  # the densities are good to 1e-12

        return settled(on_panels, (4, 8, 16, 32, 64), rtol)


def settled(evaluate: Callable[[int], tuple[np.ndarray, np.ndarray]], sizes: tuple[int, ...], rtol: float) -> Average:
    """A quadrature refined until it settles: the numerical error is its last change, and what else is uncertain.

    Args:
        evaluate: maps the size of a rule to its value, of any shape, and to an error that no refinement takes away.
        sizes: of the rules, increasing, at least two.
        rtol: relative accuracy asked for; the error says if it was not reached.
    """
    value, _ = evaluate(sizes[0])
    for size in sizes[1:]:
        previous, (value, uncertain) = value, evaluate(size)
        error = np.abs(value - previous) + uncertain
        if np.all(error <= rtol * np.abs(value) / 4):
            break
    return Average(value, error)


def _tail(before: np.ndarray, last: np.ndarray) -> np.ndarray:
    """A bound on all that follows the last two of equal panels: each next one is at least by their ratio smaller.

    The law is log-concave in its tail, so that ratios fall. Infinite where the tail has not begun: nothing is known.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(last == 0, 0.0, np.where(last < before, last**2 / (before - last), np.inf))


def _moments(variances: np.ndarray, forms: list[np.ndarray]) -> np.ndarray:
    """E[Q_1 .. Q_k] under N(0, diag(variances)), by Isserlis' theorem, for k up to three."""
    traces = [variances @ np.diag(form) for form in forms]

    def pair(a, b):  # tr(C N_a C N_b)
        return np.einsum("...i,ij,...j->...", variances, forms[a] * forms[b], variances, optimize=True)

    match len(forms):
        case 0:
            return np.ones(variances.shape[:-1])
        case 1:
            return traces[0]
        case 2:
            return traces[0] * traces[1] + 2 * pair(0, 1)
        case 3:
            scaled = [variances[..., :, None] * form for form in forms]
            triple = np.einsum("...ij,...jk,...ki->...", *scaled, optimize=True)
            pairs = traces[0] * pair(1, 2) + traces[1] * pair(0, 2) + traces[2] * pair(0, 1)
            return traces[0] * traces[1] * traces[2] + 2 * pairs + 8 * triple
    raise ValueError(f"at most three quadratic forms, received {len(forms)}")
