r"""In-context linear regression: the data, the heads, and the risks that have closed forms.

A prompt holds L tokens (x_i, y_i), x_i ~ N(0, Sigma), y_i = w . x_i + noise of variance sigma_eps^2, with its own
w ~ N(0, sigma_w^2 I); the query is (x_q, 0), x_q ~ N(0, Sigma_q), and the target w . x_q. A head in the
block form of the paper's eq. (9),

    U = [[A, 0], [0, 0]],  last row of V = (0, b):      prediction  b sum_i p_i y_i,  p = softmax(x_i . A x_q),

is two parameters (A, b). All risks are excess risks, the target carries no noise. Sigma_q is Sigma unless it is given.
"""

import numpy as np

from lib.finite_prompt.score_law import Average
from lib.regression import softmax_risk
from lib.regression.head import Attention, BlockHead, Prompts, check_length
from lib.tokens.covariances import as_covariance, sqrt_psd


class InContextRegression:
    """The regression task, its optimum and its exact risks.

    Args:
        covariance: Sigma of the prompt's x, shape (d, d), symmetric positive definite.
        noise_std: sigma_eps, standard deviation of the noise of y in the prompt, nonnegative.
        task_variance: sigma_w^2, variance of each coordinate of w, positive. Every risk is sigma_w^2 times that of the
            problem with task variance 1 and noise variance sigma_eps^2 / sigma_w^2.
        query_covariance: Sigma_q of x_q, shape (d, d), positive semidefinite; Sigma if omitted.

    Raises:
        ValueError: if an argument is out of its range or a shape does not fit.
    """

    def __init__(self, covariance, noise_std: float, task_variance: float = 1.0, query_covariance=None):
        self.covariance = as_covariance(covariance)
        eigenvalues = np.linalg.eigvalsh(self.covariance)
        if not eigenvalues[0] > 1e-13 * eigenvalues[-1]:
            raise ValueError(
                f"the covariance must be positive definite: its eigenvalues lie between {eigenvalues[0]:.3g} and "
                f"{eigenvalues[-1]:.3g}"
            )
        if not (noise_std >= 0 and np.isfinite(noise_std)):
            raise ValueError(f"noise_std must be nonnegative, received {noise_std:g}")
        if not (task_variance > 0 and np.isfinite(task_variance)):
            raise ValueError(f"task_variance must be positive, received {task_variance:g}")
        self.noise_std, self.task_variance = float(noise_std), float(task_variance)
        self.dimension = len(self.covariance)
        given = self.covariance if query_covariance is None else query_covariance
        self.query_covariance = as_covariance(given, self.dimension)
        self.covariance_root, self.query_root = sqrt_psd(self.covariance), sqrt_psd(self.query_covariance)

    @property
    def token_variance(self) -> float:
        """tr Sigma + sigma_eps^2 / sigma_w^2: the variance of y in units of the task variance."""
        return float(np.trace(self.covariance)) + self.noise_std**2 / self.task_variance

    def sample(self, n_prompts: int, length: int, rng, measure=None) -> Prompts:
        """Independent prompts of the task, each with its own w.

        Args:
            n_prompts, length: how many, and L.
            rng: a numpy Generator.
            measure: law of the x and x_q before Sigma^{1/2} is applied, a :class:`lib.tokens.measure.TokenMeasure`
                with mean 0 and covariance I; standard normal if omitted.

        Cost: n_prompts * length * (d + 1) random numbers, all in memory.
        """
        n, L, d = n_prompts, check_length(length), self.dimension
        if measure is None:
            x, query = rng.standard_normal((n, int(L), d)), rng.standard_normal((n, d))
        else:
            check_whitened(measure, d)
            x, query = measure.sample(n, int(L), rng), measure.sample(n, 1, rng)[:, 0]
        x, query = x @ self.covariance_root, query @ self.query_root
        w = np.sqrt(self.task_variance) * rng.standard_normal((n, d))
        y = np.einsum("nld,nd->nl", x, w) + self.noise_std * rng.standard_normal(x.shape[:2])
        return Prompts(np.concatenate([x, y[..., None]], -1), query, np.vecdot(query, w))

    def infinite_risk(self, A, b) -> float:
        """Risk of the infinite-prompt limit, ``1/2 tr( (b Sigma A - I) Sigma_q (b Sigma A - I)' )`` for unit tasks.

        A of shape (d, d), b a number. Zero at :meth:`optimum`. Source: the paper's Section 5.
        """
        return self._infinite(self.check_head(A, b))[0]

    def linear_risk(self, A, b, length):
        r"""Risk of linear attention ``(b / L) sum_i y_i x_i . A x_q``, exact at every prompt length.

        infinite_risk + b^2 / (2L) [ (tr Sigma + sigma_eps^2) tr(Sigma A Sigma_q A') + tr(Sigma^2 A Sigma_q A') ]
        for unit tasks. length: a number or shape (n,). Returns its shape. Source: exact here (notebook 04).
        """
        head, length = self.check_head(A, b), check_length(length)
        return self._infinite(head)[0] + self._fluctuation(head)[0] / length

    def moment_risk(self, A, b, length):
        r"""Risk of moment attention, the plug-in limit of :mod:`lib.kernels.moment`, exact at every prompt length.

        1/2 { tr[((1 - 1/L) b Sigma A - I) Sigma_q (...)'] + b^2 t / L
              + b^2 (L - 1) / L^2 [ t tr(Sigma A Sigma_q A') + tr(Sigma^2 A Sigma_q A') ] }

        for unit tasks, t = tr Sigma + sigma_eps^2: linear attention with L - 1 tokens and the mean of the
        labels, which is pure noise here.
        length: a number or shape (n,). Returns its shape. Source: exact here (notebook 05).
        """
        (A, b), L = self.check_head(A, b), check_length(length)
        Q, variance, SA = self.query_covariance, self.token_variance, self.covariance @ A
        form = variance * np.trace(SA @ Q @ A.T) + np.trace(SA @ Q @ SA.T)
        shrunk = 1 - 1 / L
        # tr[(t M - I) Q (t M - I)'] at t = 1 - 1/L, M = b Sigma A
        bias = b**2 * np.trace(SA @ Q @ SA.T) * shrunk**2 - 2 * b * np.trace(SA @ Q) * shrunk + np.trace(Q)
        return self.task_variance / 2 * (bias + b**2 * variance / L + b**2 * shrunk / L * form)

    def softmax_risk(self, A, b, length, *, rtol: float = 1e-8) -> Average:
        """Risk of softmax attention ``b sum_i p_i y_i``, exact at every L; see :mod:`lib.regression.softmax_risk`.

        length: a number or shape (n,), whole, in [1, 1e40]. Returns an Average of its shape: value, numerical error.
        Cost: about 50 ms the first time for given lengths, then a few ms a head.
        """
        head = self.check_head(A, b)
        excess = softmax_risk.excess(self, head, check_length(length), rtol)
        return Average(self._infinite(head)[0] + excess.value, excess.numerical_error)

    def long_prompt_constant(self, A, b) -> float:
        r"""Limit of ``L (softmax_risk - infinite_risk)``: finite for a coupling below 1/2, infinite from there on.

        det(I - 2M)^{-1/2} { b^2 [tr Sigma + sigma_eps^2 - tr(C A' Sigma^2 A)] / 2 + b tr(C Sigma A) } for unit tasks,
        C = Sigma_q^{1/2} (I - 2M)^{-1} Sigma_q^{1/2}, M = Sigma_q^{1/2} A' Sigma A Sigma_q^{1/2}. Close to coupling 1/2
        it takes very long prompts: at d = 5 and :meth:`optimum` a quarter of it is reached at L = 1e12.
        Source: exact here (notebook 04).
        """
        return softmax_risk.long_prompt_constant(self, self.check_head(A, b))

    def risk_and_gradient(self, attention: Attention, A, b, length=None) -> tuple[float, BlockHead]:
        """Any of the three risks at one prompt length, with its exact gradient in (A, b).

        Cost: for softmax 0.6 ms at d = 5 and 30 ms at d = 64, far less for the others.
        """
        head = self.check_head(A, b)
        risk, gradient = self._infinite(head)
        if attention == "infinite":
            return risk, gradient
        if attention not in ("softmax", "linear"):
            raise ValueError(f"attention must be 'infinite', 'softmax' or 'linear', received {attention!r}")
        if length is None or np.ndim(length) > 0:
            raise ValueError(f"{attention} attention needs one prompt length, received {length}")
        excess, change = self.excess_and_gradient(attention, head, float(check_length(length)))
        return risk + excess, BlockHead(gradient.A + change.A, gradient.b + change.b)

    def excess_and_gradient(self, attention: Attention, head: BlockHead, length: float) -> tuple[float, BlockHead]:
        """What finite prompts add to the infinite-prompt risk, and its gradient: accurate where it is 1e-16 of it."""
        if attention == "softmax":
            return softmax_risk.excess_and_gradient(self, head, length)
        excess, gradient = self._fluctuation(head)
        return excess / length, BlockHead(gradient.A / length, gradient.b / length)

    def optimum(self) -> BlockHead:
        """Limit of the infinite-prompt flow from a balanced start, at risk 0.

        ``A* = tr(Sigma^-2)^{-1/4} Sigma^-1``, ``b* = tr(Sigma^-2)^{1/4}``. Source: the paper's Thm 5.1 (v1), 5.2 (v2).
        """
        return BlockHead.balanced(np.linalg.inv(self.covariance))

    def largest_alpha(self) -> float:
        """The end of the interval of the paper's eq. (9): ``alpha < sqrt(2) / (d^{1/4} |Sigma|_op)``."""
        return float(np.sqrt(2) / (self.dimension**0.25 * np.linalg.norm(self.covariance, 2)))

    def balanced_init(self, alpha: float, theta=None) -> BlockHead:
        """The paper's eq. (9): ``A = alpha Theta Theta' / |Theta Theta'|_F``, ``b = alpha``.

        alpha > 0 is all that is enforced: the paper's theorem asks for less than :meth:`largest_alpha`.
        theta: shape (d, d), not zero; the identity if omitted.
        """
        if not (alpha > 0 and np.isfinite(alpha)):
            interval = f"0 < alpha < {self.largest_alpha():.4g}"
            raise ValueError(f"alpha must be positive, received {alpha:g}; the paper's interval here is {interval}")
        theta = np.eye(self.dimension) if theta is None else np.asarray(theta, float)
        if theta.shape != self.covariance.shape:
            raise ValueError(f"theta must have shape {self.covariance.shape}, received {theta.shape}")
        product = theta @ theta.T
        if not np.linalg.norm(product) > 0:
            raise ValueError("theta must not be zero")
        return BlockHead(alpha * product / np.linalg.norm(product), float(alpha))

    def coupling(self, A) -> float:
        """lambda_max of ``Sigma_q^{1/2} A' Sigma A Sigma_q^{1/2}``: over queries s^2 has tail exp(-s^2 / 2 lambda)."""
        A = self.check_head(A, 0.0).A
        return float(np.linalg.norm(self.covariance_root @ A @ self.query_root, 2) ** 2)

    def check_head(self, A, b) -> BlockHead:
        """The head as arrays of floats, or a ValueError that says what does not fit."""
        A = np.asarray(A, float)
        if A.shape != self.covariance.shape:
            raise ValueError(f"A must have shape {self.covariance.shape}, received {A.shape}")
        if np.ndim(b) or not (np.isfinite(b) and np.all(np.isfinite(A))):
            raise ValueError("A must hold finite numbers and b be one")
        return BlockHead(A, float(b))

    def _infinite(self, head: BlockHead) -> tuple[float, BlockHead]:
        A, b = head
        S, Q = self.covariance, self.query_covariance
        gap = b * S @ A - np.eye(self.dimension)
        weighted = self.task_variance * gap @ Q
        return float(np.vdot(weighted, gap) / 2), BlockHead(b * S @ weighted, float(np.vdot(weighted, S @ A)))

    def _fluctuation(self, head: BlockHead) -> tuple[float, BlockHead]:
        """L times the excess of the linear risk over its limit."""
        A, b = head
        weighted = self.task_variance * self.covariance @ (self.token_variance * A + self.covariance @ A)
        weighted = weighted @ self.query_covariance
        form = float(np.vdot(weighted, A))
        return b**2 * form / 2, BlockHead(b**2 * weighted, b * form)


def check_whitened(measure, dimension: int) -> None:
    if measure.dim != dimension:
        raise ValueError(f"the measure must have dimension {dimension}, received {measure.dim}")
    if not (np.allclose(measure.mean, 0) and np.allclose(measure.covariance, np.eye(dimension))):
        raise ValueError("the measure must have mean 0 and covariance I: the covariance is the regression's own")
