r"""The heads with the smallest risk at a prompt length: in closed form for linear attention, by search for softmax."""

import numpy as np
from scipy.optimize import minimize, root

from lib.regression.coordinates import HeadCoordinates
from lib.regression.head import BlockHead, check_length
from lib.regression.task import InContextRegression


def best_linear(problem: InContextRegression, length) -> BlockHead:
    r"""The linear attention with the smallest risk at a prompt length, balanced.

    b A = [ (1 + 1/L) Sigma + (tr Sigma + sigma_eps^2 / sigma_w^2) / L I ]^{-1},  |A|_F = b.

    Source: Zhang, Frei and Bartlett, JMLR 25 (2024); it is the stationary point of the exact risk.
    """
    length = float(check_length(length))
    spread = problem.token_variance / length * np.eye(problem.dimension)
    return BlockHead.balanced(np.linalg.inv((1 + 1 / length) * problem.covariance + spread))


def best_softmax(problem: InContextRegression, length, start: BlockHead | None = None) -> BlockHead:
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
        return BlockHead(start.A, 0.0)
    coordinates = HeadCoordinates(problem, start.A)
    scale = 0.1 / problem.risk_and_gradient("softmax", *start, min(length, 1000.0))[1].norm()

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
        along_A = coordinates.pack(BlockHead(gradient.A + change.A, 0.0)) / (head.b * problem.task_variance)
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
