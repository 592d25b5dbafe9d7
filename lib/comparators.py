r"""What softmax in-context regression is compared with: the best heads at a prompt length, and ridge regression.

Risks that have no closed form are estimated from prompts, with a standard error; several predictors can see the same
prompts. All are excess risks, E (prediction - w . x_q)^2 / 2.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize, root

from .flow import HeadCoordinates, head_norm
from .regression import Head, InContextRegression, balanced, check_length

NUMBERS_IN_MEMORY = 2**22  # random numbers drawn at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over independent prompts and its standard error."""

    value: float
    standard_error: float


Predictor = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps tokens (n, L, d + 1) and queries (n, d) to predictions (n,)."""


def softmax_head(A, b) -> Predictor:
    """``b sum_i p_i y_i``, p = softmax(x_i . A x_q)."""

    def predict(tokens, query):
        scores = np.einsum("nld,nd->nl", tokens[..., :-1], query @ np.asarray(A).T)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        return b * np.vecdot(weights, tokens[..., -1]) / weights.sum(1)

    return predict


def linear_head(A, b) -> Predictor:
    """``(b / L) sum_i y_i x_i . A x_q``."""

    def predict(tokens, query):
        scores = np.einsum("nld,nd->nl", tokens[..., :-1], query @ np.asarray(A).T)
        return b * np.vecdot(scores, tokens[..., -1]) / tokens.shape[1]

    return predict


def ridge(penalty: float) -> Predictor:
    """``x_q' (X'X + penalty I)^+ X'y``; penalty = noise variance / task variance is Bayes, 0 is least squares."""
    if not penalty >= 0:
        raise ValueError(f"the penalty of ridge regression must be nonnegative, got {penalty:g}")

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
    block = max(1, NUMBERS_IN_MEMORY // (int(length) * (problem.dimension + 1)))
    losses = {name: [] for name in predictors}
    for start in range(0, n_prompts, block):
        tokens, query, target = problem.sample(min(block, n_prompts - start), length, rng, measure)
        for name, predict in predictors.items():
            losses[name].append((predict(tokens, query) - target) ** 2 / 2)
    return {name: _estimate(np.concatenate(parts)) for name, parts in losses.items()}


def ridge_risk(
    problem: InContextRegression, length: int, n_prompts: int, rng, penalty: float | None = None
) -> Estimate:
    r"""Risk of ridge regression on Gaussian prompts, averaged over w, the noise and the query in closed form.

    With G = X'X + k I it is E 1/2 tr[ Sigma_q G^{-1} (noise^2 X'X + task_variance k^2 I) G^{-1} ]; only X'X is drawn, a
    Wishart matrix, from about d^2 / 2 numbers whatever the prompt length.

    Args:
        length, n_prompts: tokens a prompt, and draws of X'X (at least 2).
        penalty: k >= 0; the Bayes-optimal noise_std^2 / task_variance if omitted.

    Cost: n_prompts eigenvalue decompositions of size d. Source: textbook (the posterior covariance of w).
    """
    penalty = problem.noise_std**2 / problem.task_variance if penalty is None else penalty
    if not penalty >= 0:
        raise ValueError(f"the penalty of ridge regression must be nonnegative, got {penalty:g}")
    gram = problem.covariance_root @ _wishart(problem.dimension, length, n_prompts, rng) @ problem.covariance_root
    eigenvalues, vectors = np.linalg.eigh(gram)
    present = eigenvalues > 1e-12 * eigenvalues[:, -1:]  # the others are directions that the prompt never shows
    eigenvalues = np.where(present, eigenvalues, 0.0)
    with np.errstate(invalid="ignore"):
        shrinkage = np.where(present, penalty, 1.0) / np.where(present, eigenvalues + penalty, 1.0)
        variance = np.where(present, eigenvalues / (eigenvalues + penalty) ** 2, 0.0)
    error = problem.task_variance * shrinkage**2 + problem.noise_std**2 * variance
    across = np.einsum("nij,ik,nkj->nj", vectors, problem.query_covariance, vectors)
    return _estimate((across * error).sum(1) / 2)


def best_linear(problem: InContextRegression, length) -> Head:
    r"""The linear attention with the smallest risk at a prompt length, balanced.

    b A = [ (1 + 1/L) Sigma + (tr Sigma + noise^2 / task_variance) / L I ]^{-1},  |A|_F = b.

    Source: Zhang, Frei and Bartlett, JMLR 25 (2024); it is the stationary point of the exact risk.
    """
    length = float(check_length(length))
    spread = problem.token_variance / length * np.eye(problem.dimension)
    return balanced(np.linalg.inv((1 + 1 / length) * problem.covariance + spread))


def best_softmax(problem: InContextRegression, length, start: Head | None = None) -> Head:
    """The softmax attention with the smallest risk at a prompt length, to a gradient of about 1e-10.

    A local minimum, from ``start``, by default :func:`best_linear`; among the matrices that commute with the
    covariances if the start is one and they commute with each other. The flow of notebook 03 ends there, too. With one
    token a prompt, b = 0 is best, whatever A.

    Raises:
        RuntimeError: if no stationary point is found.

    Cost: about 150 evaluations of the gradient, 0.1 s at d = 5. Source: exact here.
    """
    length = float(check_length(length))
    start = problem.check_head(*(start or best_linear(problem, length)))
    if length == 1:
        return Head(start.A, 0.0)
    coordinates = HeadCoordinates(problem, start.A)
    scale = 0.1 / head_norm(problem.risk_and_gradient("softmax", *start, min(length, 1000.0))[1])

    def objective(variables):  # scaled so that the first step of the minimizer is short
        value, gradient = problem.risk_and_gradient("softmax", *coordinates.head(variables), min(length, 1000.0))
        return scale * value, scale * coordinates.pack(gradient) * coordinates.multiplicity

    # In b A the risk is curved, along the head (A / k, k b) its curvature is only of order 1/L. So solve for these two
    # separately, the second relative to the excess, and approach long prompts step by step.
    def head_of(unknowns):
        b = np.exp(unknowns[-1])
        return coordinates.head(np.append(unknowns[:-1] / b, b))

    def equations(unknowns, length):
        head = head_of(unknowns)
        excess, change = problem.excess_and_gradient("softmax", head, length)
        gradient = problem.risk_and_gradient("infinite", *head)[1]
        along_A = coordinates.pack(Head(gradient.A + change.A, 0.0)) / (head.b * problem.task_variance)
        along_A[-1] = (head.b * change.b - np.vdot(head.A, change.A)) / excess
        return along_A

    found = minimize(objective, coordinates.pack(start), jac=True, method="BFGS", options={"gtol": 1e-6}).x
    unknowns = np.append(found[:-1] * found[-1], np.log(found[-1]))
    steps = np.geomspace(min(length, 1000.0), length, 1 + int(np.ceil(max(np.log10(length / 1000), 0))))
    for step in steps.round():
        unknowns = root(equations, unknowns, args=(step,), tol=1e-12).x
    if not np.abs(equations(unknowns, length)).max() < 1e-8:
        raise RuntimeError(f"no stationary head was found at prompt length {length:g}")
    return head_of(unknowns)


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


def _estimate(losses: np.ndarray) -> Estimate:
    if len(losses) < 2:
        raise ValueError(f"a standard error needs at least 2 prompts, got {len(losses)}")
    return Estimate(float(losses.mean()), float(losses.std(ddof=1) / np.sqrt(len(losses))))
