r"""The exact risk of softmax attention in in-context regression, for any head, with its gradient.

Given the query x the scores x_i . A x are Gaussian with variance s^2 = x' A' Sigma A x. Averaging the squared error
over the tokens by the finite-prompt theory, over w and over the noise in closed form leaves, for unit tasks,

    R_L(A, b) = 1/2 { tr[(b Sigma A - I) Sigma_q (b Sigma A - I)'] + b^2 (tr Sigma + sigma_eps^2) E[eta]
                      + b^2 E[W |Sigma A x|^2] + 2 b E[eta x' Sigma A x] },        W = (zeta - eta) / s^2 - 2 eta,

with eta(s, L) and zeta(s, L) of :mod:`lib.finite_prompt.weight_moments`. Only the query is left, and it enters through
functions of s times a quadratic form: one integral over s for each, with the density of
:class:`lib.finite_prompt.score_law.ScoreLaw`. In the gradient the derivatives of eta and W by s^2
are moved onto that density. (Derived in notebook 03.)

The limits of eta and W at s = 0, 1/L and -1/L, are taken out and averaged in closed form: what is left vanishes like
s^2 there, so that the fine structure of the density at small s, where M is nearly singular, does not matter.
"""

from functools import lru_cache
from math import log

import numpy as np

from lib.finite_prompt.score_law import Average, ScoreLaw, settled
from lib.finite_prompt.weight_moments import LARGEST_S
from lib.finite_prompt.weight_table import FROZEN_ERROR, weights_excess
from lib.regression.head import BlockHead

VALUE_NODES, VALUE_CONTOUR = (
    (48, 96, 192, 384, 768),
    {"step": 0.2, "end": 8.5},
)  # in s, at least; densities within 1e-11
BEYOND_NODES = 192  # for the probability beyond the table
FLOW_NODES, FLOW_CONTOUR = 44, {"step": 0.25, "end": 8.0}  # gradients within 1e-8, and 1e-12 for most heads


def excess(problem, head: BlockHead, length: np.ndarray, rtol: float) -> Average:
    """R_L - R_inf at one or several prompt lengths; the error is the change when the number of nodes doubles."""
    query = _QueryAverage(problem, head, tuple(length.ravel()))
    beyond = query.error_beyond_table()
    found = settled(lambda n_nodes: (query.value(n_nodes), beyond), VALUE_NODES, rtol)
    return Average(found.value.reshape(length.shape), found.numerical_error.reshape(length.shape))


def excess_and_gradient(problem, head: BlockHead, length: float) -> tuple[float, BlockHead]:
    """R_L - R_inf and its gradient at one prompt length, with a fixed number of nodes: for flows and minimizers."""
    return _QueryAverage(problem, head, (length,)).value_and_gradient(FLOW_NODES)


def long_prompt_constant(problem, head: BlockHead) -> float:
    """Limit of L (R_L - R_inf), where eta L -> e^{s^2} and W L -> -e^{s^2}: the query is tilted by e^{s^2}."""
    query = _QueryAverage(problem, head, (1.0,))
    if not query.law or query.law.coupling >= 0.5:
        return np.inf if query.law else problem.task_variance * head.b**2 * problem.token_variance / 2
    # R diagonalizes M, so the variances of the tilted query, 1 / (1 - 2 lambda_i), follow from R' A' Sigma A R.
    variances = 1 / (1 - 2 * np.diag(query.R.T @ head.A.T @ query.SA @ query.R))
    with_b2, with_b = query.y_variance - variances @ np.diag(query.n1), variances @ np.diag(query.n2)
    return float(query.task_variance * np.sqrt(variances.prod()) * (query.b**2 * with_b2 / 2 + query.b * with_b))


class _QueryAverage:
    """The averages over the query for one head, as averages over xi, x_q = R xi, with M diagonal in the basis of R."""

    def __init__(self, problem, head, lengths: tuple[float, ...]):
        self.A, self.b = self.head = head
        self.S, self.Q, self.task_variance = problem.covariance, problem.query_covariance, problem.task_variance
        self.y_variance, self.lengths = problem.token_variance, lengths
        self.SA, self.R = self.S @ self.A, problem.query_root
        M = self.R @ self.A.T @ self.SA @ self.R
        self.law = ScoreLaw(M) if np.trace(M) > 1e-200 else None  # None: every score is zero
        if self.law:
            self.R = self.R @ self.law.basis
            # Beyond s_end lies a probability of 1e-13 / L, and no risk is much below 1 / L.
            self.s_end = self.law.tail_point(-log(max(lengths)) - 30)
        image = self.SA @ self.R
        self.n1 = image.T @ image  # |Sigma A x|^2 = xi' n1 xi
        self.n2 = (self.R.T @ image + image.T @ self.R) / 2  # x' Sigma A x = xi' n2 xi

    def value(self, n_nodes: int) -> np.ndarray:
        """R_L - R_inf at each length."""
        L, b = np.array(self.lengths), self.b
        twice = (b**2 * (self.y_variance - np.trace(self.n1)) + 2 * b * np.trace(self.n2)) / L
        if self.law:
            s, ds = _nodes(self.s_end, n_nodes)
            eta, W = weights_excess(self.lengths, s)
            rule = self.law.inversion(s, **VALUE_CONTOUR)
            weights = rule.weights * ds[:, None]
            plain = weights.imag.sum(1)
            first, second = ((weights * (rule.variances @ np.diag(n))).imag.sum(1) for n in (self.n1, self.n2))
            twice += (b**2 * self.y_variance * plain + 2 * b * second) @ eta + b**2 * first @ W
        return self.task_variance * twice / 2

    def value_and_gradient(self, n_nodes: int):
        """R_L - R_inf and its gradient at the one length."""
        (L,), b, S, SA, n1, n2 = self.lengths, self.b, self.S, self.SA, self.n1, self.n2
        with_b2, with_b = (self.y_variance - np.trace(n1)) / L, np.trace(n2) / L
        from_A = b / L * S @ (np.eye(len(S)) - b * SA) @ self.Q
        if self.law:
            s, ds = _nodes(self.s_end, n_nodes)
            (eta,), (W,) = (table.T for table in weights_excess((L,), s))
            rule = self.law.inversion(s, **FLOW_CONTOUR)
            variances = rule.variances.reshape(-1, len(S))
            eta_weights, W_weights = ((rule.weights * (f * ds)[:, None]).ravel() for f in (eta, W))
            eta_xx, W_xx = (weights @ variances for weights in (eta_weights, W_weights))  # E[f xi_i^2]
            with_b2 += self.y_variance * eta_weights.sum().imag + W_xx.imag @ np.diag(n1)
            with_b += eta_xx.imag @ np.diag(n2)

            # K = dR/dM: the averages with f' in place of f, times xi xi'.
            u = rule.points.ravel()
            eta_pairs, W_pairs = (
                (variances.T @ ((u * weights)[:, None] * variances)).imag for weights in (eta_weights, W_weights)
            )  # E[f' xi_i^2 xi_j^2], a third of it on the diagonal
            diagonal = b**2 * self.y_variance * ((u * eta_weights) @ variances).imag
            diagonal += b**2 * W_pairs @ np.diag(n1) + 2 * b * eta_pairs @ np.diag(n2)
            K = np.diag(diagonal) / 2 + b**2 * n1 * W_pairs + 2 * b * n2 * eta_pairs
            lifted = [(self.R * f) @ self.R.T for f in (eta_xx.imag, W_xx.imag)]  # E[f x x']
            from_A = from_A + 2 * SA @ (self.R @ K @ self.R.T) + b * S @ lifted[0] + b**2 * S @ SA @ lifted[1]
        value, from_b = b**2 * with_b2 / 2 + b * with_b, b * with_b2 + with_b
        gradient = BlockHead(self.task_variance * from_A, self.task_variance * float(from_b))
        return self.task_variance * float(value), gradient

    def error_beyond_table(self) -> float:
        """A bound on the error of eta and W where s > LARGEST_S."""
        if self.law is None or self.s_end < LARGEST_S:
            return 0.0
        s, ds = _nodes(LARGEST_S, BEYOND_NODES)
        identity = np.eye(len(self.R))
        mass = abs(1 - self.law.density(s) @ ds)
        second = abs(len(self.R) - self.law.density(s, identity) @ ds)  # of |xi|^2
        forms = self.b**2 * np.linalg.norm(self.n1, 2) + 2 * abs(self.b) * np.linalg.norm(self.n2, 2)
        return self.task_variance * FROZEN_ERROR * (self.b**2 * self.y_variance * mass + forms * second) / 2


def _nodes(end: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on (0, end), denser at the beginning: s = end t^2, t Gauss-Legendre."""
    t, weights = _legendre(n)
    return end * t**2, end * 2 * t * weights


@lru_cache
def _legendre(n: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (nodes + 1) / 2, weights / 2
