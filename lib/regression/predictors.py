"""Predictors on raw prompts of in-context regression, softmax and linear heads and ridge regression, and their risks.

Risks that have no closed form are estimated from prompts, with an interval; several predictors see the same prompts.
All are excess risks, E (prediction - w . x_q)^2 / 2.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import softmax

from lib.prompts.batches import batches
from lib.prompts.estimate import Estimate
from lib.regression.head import check_length
from lib.regression.task import InContextRegression

NUMBERS_IN_MEMORY = 2**22  # random numbers drawn at a time

Predictor = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps tokens (n, L, d + 1) and queries (n, d) to predictions (n,)."""


def softmax_head(A, b) -> Predictor:
    """``b sum_i p_i y_i``, p = softmax(x_i . A x_q)."""

    def predict(tokens, query):
        scores = np.einsum("nld,nd->nl", tokens[..., :-1], query @ np.asarray(A).T)
        return b * np.vecdot(softmax(scores, axis=1), tokens[..., -1])

    return predict


def linear_head(A, b) -> Predictor:
    """``(b / L) sum_i y_i x_i . A x_q``."""

    def predict(tokens, query):
        scores = np.einsum("nld,nd->nl", tokens[..., :-1], query @ np.asarray(A).T)
        return b * np.vecdot(scores, tokens[..., -1]) / tokens.shape[1]

    return predict


def ridge(penalty: float) -> Predictor:
    """``x_q' (X'X + penalty I)^+ X'y``; penalty = sigma_eps^2 / sigma_w^2 is Bayes, 0 is least squares."""
    if not penalty >= 0:
        raise ValueError(f"the penalty of ridge regression must be nonnegative, received {penalty:g}")

    def predict(tokens, query):
        x, y = tokens[..., :-1], tokens[..., -1]
        gram = x.mT @ x + penalty * np.eye(x.shape[-1])
        moment = np.einsum("nld,nl->nd", x, y)
        return np.vecdot(query, (np.linalg.pinv(gram, hermitian=True) @ moment[..., None])[..., 0])

    return predict


def risks_on_prompts(
    problem: InContextRegression, length: int, n_prompts: int, rng, predictors: dict[str, Predictor], measure=None
) -> dict[str, Estimate]:
    """Risks of several predictors on the same raw prompts.

    Args:
        length, n_prompts: tokens a prompt, and how many prompts (at least 2).
        rng: a numpy Generator. predictors: by name. measure: see :meth:`InContextRegression.sample`.

    Cost: n_prompts * length * (d + 1) random numbers, in blocks of bounded memory.
    """
    losses = losses_on_prompts(problem, length, n_prompts, rng, predictors, measure)
    return {name: Estimate.of_losses(each) for name, each in losses.items()}


def losses_on_prompts(
    problem: InContextRegression,
    length: int,
    n_prompts: int,
    rng,
    predictors: dict[str, Predictor],
    measure=None,
    at_once: int = NUMBERS_IN_MEMORY,
) -> dict[str, np.ndarray]:
    """Losses (prediction - w . x_q)^2 / 2 of each prompt, by name, shape (n_prompts,) each.

    Arguments and cost as for :func:`risks_on_prompts`. at_once: random numbers drawn at a time.
    """
    losses = {name: [] for name in predictors}
    for part in batches(n_prompts, int(length) * (problem.dimension + 1), at_once):
        tokens, query, target = problem.sample(part.stop - part.start, length, rng, measure)
        for name, predict in predictors.items():
            losses[name].append((predict(tokens, query) - target) ** 2 / 2)
    return {name: np.concatenate(parts) for name, parts in losses.items()}


def ridge_risk(
    problem: InContextRegression, length: int, n_prompts: int, rng, penalty: float | None = None
) -> Estimate:
    r"""Risk of ridge regression on Gaussian prompts, averaged over w, the noise and the query in closed form.

    With G = X'X + k I it is E 1/2 tr[ Sigma_q G^{-1} (sigma_eps^2 X'X + sigma_w^2 k^2 I) G^{-1} ]; only X'X is drawn, a
    Wishart matrix, from about d^2 / 2 numbers whatever the prompt length.

    Args:
        length, n_prompts: tokens a prompt, and draws of X'X (at least 2).
        penalty: k >= 0; the Bayes-optimal sigma_eps^2 / sigma_w^2 if omitted.

    Cost: n_prompts eigenvalue decompositions of size d. Source: textbook (the posterior covariance of w).
    """
    penalty = problem.noise_std**2 / problem.task_variance if penalty is None else penalty
    if not penalty >= 0:
        raise ValueError(f"the penalty of ridge regression must be nonnegative, received {penalty:g}")
    gram = problem.covariance_root @ _wishart(problem.dimension, length, n_prompts, rng) @ problem.covariance_root
    eigenvalues, vectors = np.linalg.eigh(gram)
    present = eigenvalues > 1e-12 * eigenvalues[:, -1:]  # the others are directions that the prompt never shows
    eigenvalues = np.where(present, eigenvalues, 0.0)
    with np.errstate(invalid="ignore"):
        shrinkage = np.where(present, penalty, 1.0) / np.where(present, eigenvalues + penalty, 1.0)
        variance = np.where(present, eigenvalues / (eigenvalues + penalty) ** 2, 0.0)
    error = problem.task_variance * shrinkage**2 + problem.noise_std**2 * variance
    across = np.einsum("nij,ik,nkj->nj", vectors, problem.query_covariance, vectors)
    return Estimate.of_losses((across * error).sum(1) / 2)


def _wishart(dimension: int, length, n: int, rng) -> np.ndarray:
    """n draws of Z'Z, Z a standard normal matrix of shape (length, dimension): Bartlett's decomposition."""
    length = int(check_length(length))
    if length < dimension:
        z = rng.standard_normal((n, length, dimension))
        return z.mT @ z
    lower = np.tril(rng.standard_normal((n, dimension, dimension)), -1)
    diagonal = np.arange(dimension)
    lower[:, diagonal, diagonal] = np.sqrt(rng.chisquare(length - diagonal, (n, dimension)))
    return lower @ lower.mT
