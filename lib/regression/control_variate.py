r"""Linear attention's gradient as a control variate for softmax's, on the same raw prompts of in-context regression.

With p_i the weights of the tokens, of whatever kind, yhat = sum p_i y_i, and e = b yhat - w . x_q the error of the
prediction, a prompt's gradient in (A, b) is e (b J x_q', yhat), where J = d yhat / d(A x_q) is

    softmax    p_i = softmax of x_i . A x_q      J = sum p_i (y_i - yhat) x_i
    linear     p_i = x_i . A x_q / L             J = (1/L) sum y_i x_i
    affine     p_i = (1 + x_i . A x_q) / L       J = (1/L) sum y_i x_i

The means of the last two are exact: the gradients of linear_risk, and of linear_risk + b^2 Var(y) / (2L) (given w the
first and third moments of the tokens vanish). So softmax - c (linear - mean) has the mean of softmax's, whatever c.

To leading order in 1/L a prompt's gradient is its limit plus the mean over tokens of an influence function. As
functions of one token those of linear and affine attention are parts of the chaos expansion of softmax's, so that at a
head with b Sigma A = I the best coefficient c is 1. (Derived in notebook 07.)
"""

import numpy as np
from scipy.special import softmax

from lib.regression.head import BlockHead, Prompts
from lib.regression.task import InContextRegression

KINDS = ("softmax", "linear", "affine")


def prompt_gradients(prompts: Prompts, A, b, kinds: tuple[str, ...] = KINDS) -> dict[str, np.ndarray]:
    """Gradient in (A, b) of each prompt's loss (prediction - target)^2 / 2, for each of the kinds.

    Args:
        prompts: of leading axes (..., n).
        A: (..., d, d).
        b: (...).
        kinds: of :data:`KINDS`.

    Returns:
        By kind, shape (..., n, d^2 + 1): leading axes are broadcast, order as in :meth:`BlockHead.flat`.
    """
    x, y, query = prompts.tokens[..., :-1], prompts.tokens[..., -1], prompts.query
    L, b = x.shape[-2], np.asarray(b)[..., None]
    scores = np.matvec(x, query @ np.swapaxes(A, -1, -2))
    p = softmax(scores, axis=-1)
    yhat, yhat_linear = np.vecdot(p, y), np.vecdot(y, scores) / L
    J, J_linear = np.vecmat(np.stack([p * (y - yhat[..., None]), y / L]), x)
    pairs = {"softmax": (yhat, J), "linear": (yhat_linear, J_linear), "affine": (yhat_linear + y.mean(-1), J_linear)}

    def gradient(yhat, J):
        error = b * yhat - prompts.target
        outer = ((error * b)[..., None] * J)[..., :, None] * query[..., None, :]
        return np.concatenate([outer.reshape(*error.shape, -1), (error * yhat)[..., None]], -1)

    return {kind: gradient(*pairs[kind]) for kind in kinds}


def mean_gradient(problem: InContextRegression, kind: str, head: BlockHead, length) -> np.ndarray:
    """The exact mean of :func:`prompt_gradients`, shape (d^2 + 1,)."""
    gradient = problem.risk_and_gradient("softmax" if kind == "softmax" else "linear", *head, length)[1].flat()
    if kind == "affine":
        gradient[-1] += problem.task_variance * head.b * problem.token_variance / length
    return gradient


def predicted_gains(problem: InContextRegression, head: BlockHead, lengths, rng, n_draws: int = 2**18):
    """Variance ratios for the coefficient 1, to leading order in 1/L.

    [ limit + |softmax|^2 / L ] / [ |softmax - control|^2 / L ]: limit is the variance of the infinite-prompt gradient
    over tasks and queries, |.|^2 the mean square of influence functions over task, query and one token, drawn from
    mixtures of the laws tilted by the weights e^{s^2} and e^{2 scores} that make them large.

    Args:
        problem: the task.
        head: (A, b).
        lengths: prompt lengths L, which may be infinite.
        rng: of the draws.
        n_draws: tasks, each with one query and one token.

    Returns:
        "linear" and "affine", each of the shape of lengths; NaN for a coupling of 1/2 or more, where the mean squares
        are infinite, and infinite or NaN so near to it that they overflow.

    Cost: 0.2 s for 1e5 draws at d = 5. Source: exact here (notebook 07).
    """
    lengths = np.asarray(lengths, float)
    if problem.coupling(head.A) >= 0.5:
        return {kind: np.full(lengths.shape, np.nan) for kind in KINDS[1:]}
    rows = min(n_draws, 2**16)
    parts = [_mean_squares(problem, head, rows, rng) for _ in range(-(-n_draws // rows))]
    limit, softmax, linear, affine = np.mean(parts, 0)
    limit = 0.0 if abs(limit) < 1e-12 * softmax else limit
    with np.errstate(invalid="ignore"):
        above = np.where(limit > 0, limit * lengths, 0.0) + softmax
        return {"linear": above / linear, "affine": above / affine}


def _mean_squares(problem: InContextRegression, head: BlockHead, n: int, rng):
    """Variance of the limit's gradient; mean squares of the influence of softmax, and of softmax less its controls."""
    A, b = head
    d, S, R = problem.dimension, problem.covariance, problem.query_root
    M = R @ A.T @ S @ A @ R
    white = rng.standard_normal((n, d))
    tilted = white @ np.linalg.cholesky(np.linalg.inv(np.eye(d) - 2 * M)).T
    white = np.where(rng.random((n, 1)) < 0.5, white, tilted)
    log_ratio = np.linalg.slogdet(np.eye(d) - 2 * M)[1] / 2 + np.einsum("ni,ij,nj->n", white, M, white)
    query_weight = 2 / (1 + np.exp(log_ratio))
    query, w = white @ R, np.sqrt(problem.task_variance) * rng.standard_normal((n, d))
    tilt = query @ A.T
    s2 = np.einsum("ni,ij,nj->n", tilt, S, tilt)
    x = rng.standard_normal((n, d)) @ problem.covariance_root + rng.integers(0, 3, (n, 1)) * (tilt @ S)
    y = np.vecdot(x, w) + problem.noise_std * rng.standard_normal(n)
    score = np.vecdot(x, tilt)
    weight = query_weight * 3 / (1 + np.exp(score - s2 / 2) + np.exp(2 * score - 2 * s2))

    J = w @ S  # of the infinite prompt, whose yhat is chi, the covariance of label and score
    chi = np.vecdot(J, tilt)
    error, ratio = b * chi - np.vecdot(w, query), np.exp(score - s2 / 2)

    # A gradient, b u x_q' in A and u_b in b, has the square norm b^2 |u|^2 |x_q|^2 + u_b^2: rows (u, u_b) are enough.
    size = np.append(np.full(d, b), 1.0) ** 2

    def mean_square(weights, gradients):
        with np.errstate(over="ignore", invalid="ignore"):  # next to a coupling of 1/2 draws lie too far out: unknown
            squares = gradients**2 * size
            return float(weights @ (squares[:, :-1].sum(1) * np.vecdot(query, query) + squares[:, -1]) / n)

    def influence(d_yhat, d_J):
        return (b * d_yhat)[:, None] * np.column_stack([J, chi]) + error[:, None] * np.column_stack([d_J, d_yhat])

    softmax = influence(ratio * (y - chi), ratio[:, None] * ((x - tilt @ S) * (y - chi)[:, None] - J))
    d_yhat, d_J = y * score - chi, x * y[:, None] - J
    controls = influence(d_yhat, d_J), influence(d_yhat + y, d_J)
    gradient = problem.risk_and_gradient("infinite", *head)[1].flat()
    limit = mean_square(query_weight, error[:, None] * np.column_stack([J, chi])) - float(gradient @ gradient)
    return limit, mean_square(weight, softmax), *(mean_square(weight, softmax - value) for value in controls)
