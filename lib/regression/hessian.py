"""Hessians of the risks at a head, in (A, b) flattened, and the largest step that gradient descent can take there."""

import numpy as np

from lib.regression.head import BlockHead
from lib.regression.task import InContextRegression


def infinite_hessian(problem: InContextRegression, head: BlockHead) -> np.ndarray:
    """Hessian of the infinite-prompt risk, shape (d^2 + 1, d^2 + 1), in the order of :meth:`BlockHead.flat`."""
    d, S, Q = problem.dimension, problem.covariance, problem.query_covariance
    A, b = head
    hessian = np.empty((d * d + 1, d * d + 1))
    hessian[:-1, :-1] = b**2 * np.kron(S @ S, Q)
    mixed = 2 * b * S @ S @ A @ Q - S @ Q
    hessian[:-1, -1] = hessian[-1, :-1] = mixed.ravel()
    hessian[-1, -1] = np.trace(S @ A @ Q @ A.T @ S)
    return problem.task_variance * hessian


def softmax_hessian(problem: InContextRegression, head: BlockHead, length, step: float = 1e-4) -> np.ndarray:
    """Hessian of the exact softmax risk at a prompt length, from central differences of its exact gradient.

    Shape and order as for :func:`infinite_hessian`. Cost: 2 (d^2 + 1) gradients, 30 ms at d = 5.
    """
    return infinite_hessian(problem, head) + excess_hessian(problem, head, length, step)


def excess_hessian(problem: InContextRegression, head: BlockHead, length, step: float = 1e-4) -> np.ndarray:
    """Hessian of what finite prompts add to the infinite-prompt risk of softmax: accurate where it is tiny."""
    point = head.flat()

    def gradient(x):
        return problem.excess_and_gradient("softmax", BlockHead.from_flat(x), float(length))[1].flat()

    rows = [(gradient(point + step * e) - gradient(point - step * e)) / (2 * step) for e in np.eye(len(point))]
    return (np.array(rows) + np.array(rows).T) / 2


def stable_step(hessian: np.ndarray) -> float:
    """Largest stable step of gradient descent, ``2 / (largest eigenvalue)``."""
    return float(2 / np.linalg.eigvalsh(hessian)[-1])
