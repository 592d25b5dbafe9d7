r"""Population gradient flows of in-context regression, as deterministic differential equations.

    A' = -dR/dA,   b' = -dR/db,        time = learning rate x steps,

for the exact risk R of softmax attention at a prompt length, of linear attention, or of the infinite-prompt limit. No
prompt is sampled. In the limit and for linear attention the risk depends on b A alone, and the imbalance |A|_F^2 - b^2
is conserved; for softmax at a finite prompt length it is not.

A head trained through all of U and V moves in the same way once it is in block form. Through four matrices,
U = K' Q / sqrt(d + 1) and O V, it descends in another metric, which for balanced factors depends on the head alone:

    A' = -[ (A A')^{1/2} dR/dA + dR/dA (A' A)^{1/2} ] / sqrt(d + 1),      b' = -2 |b| dR/db.
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import LSODA

from lib.regression.coordinates import HeadCoordinates
from lib.regression.head import Attention, BlockHead
from lib.regression.task import InContextRegression


@dataclass(frozen=True)
class Flow:
    """A trajectory of the gradient flow.

    Attributes:
        time: learning rate x steps, shape (n,).
        A, b: the head along it, shapes (n, d, d) and (n,).
        risk, gradient_norm: exact, of shape (n,); the norm is over A and b together.
        stopped: whether the gradient fell below the tolerance before the horizon; the last time is then that moment.
    """

    time: np.ndarray
    A: np.ndarray
    b: np.ndarray
    risk: np.ndarray
    gradient_norm: np.ndarray
    stopped: bool

    @property
    def imbalance(self) -> np.ndarray:
        """|A|_F^2 - b^2, shape (n,)."""
        return (self.A**2).sum((1, 2)) - self.b**2

    @property
    def end(self) -> BlockHead:
        return BlockHead(self.A[-1], float(self.b[-1]))


def gradient_flow(
    problem: InContextRegression,
    attention: Attention,
    start: BlockHead,
    horizon: float,
    *,
    length: float | None = None,
    times=None,
    gradient_tolerance: float = 0.0,
    factored: bool = False,
    rtol: float | None = None,
) -> Flow:
    """Follow the gradient flow of a risk from a head until the horizon, or until the gradient is small.

    Args:
        problem: the task.
        attention: "infinite", "softmax" or "linear"; the last two need ``length``.
        start: the head (A, b) at time 0, for instance ``problem.balanced_init(alpha)``.
        horizon: flow time T >= 0 = learning rate x steps; may be infinite where a gradient tolerance is given.
        length: prompt length L.
        times: where to record, increasing in [0, T], shape (n,). If omitted, steps of the integrator, each at least a
            tenth later than the last, and the end.
        gradient_tolerance: stop when the norm of the gradient is below it.
        factored: through the four matrices of :func:`lib.regression.sgd.factored_start`, balanced.
        rtol: of the integrator (and a hundredth of it is its absolute tolerance). 1e-6 for softmax and 1e-12 for the
            others if omitted; their conserved quantity is then kept to 1e-9.

    Returns:
        Flow. Where it stopped before the horizon the last entry is that moment.

    Raises:
        ValueError: if an argument is out of its range or a shape does not fit. RuntimeError: if the integrator fails.

    Cost: about 1000 evaluations of the gradient (0.6 s for softmax at d = 5) where A commutes with the covariances; a
    few times more otherwise. Each distinct eigenvalue of A, or else each entry, is one variable of a stiff system.
    """
    times = _checked_times(times, horizon, gradient_tolerance)
    start = problem.check_head(*start)
    coordinates = HeadCoordinates(problem, start.A)

    def gradient(state):
        return coordinates.pack(problem.risk_and_gradient(attention, *coordinates.head(state), length)[1])

    def velocity(_, state):
        if not factored:
            return -gradient(state)
        head = coordinates.head(state)
        return -coordinates.pack(_through_factors(head, problem.risk_and_gradient(attention, *head, length)[1]))

    def small(vector):
        return np.sqrt(coordinates.multiplicity @ vector**2) < gradient_tolerance

    state = coordinates.pack(start)
    stopped = bool(small(gradient(state)))
    recorded = [(0.0, state)] if times is None or stopped or 0 in times else []
    if horizon > 0 and not stopped:
        rtol = rtol or (1e-6 if attention == "softmax" else 1e-12)
        solver = LSODA(velocity, 0.0, state, horizon, rtol=rtol, atol=rtol / 100)
        while solver.status == "running" and not stopped:
            before = solver.y.copy()
            if (message := solver.step()) or solver.status == "failed":
                raise RuntimeError(f"the flow could not be integrated beyond time {solver.t:g}: {message}")
            # The mean speed of a step tells, at no cost, when the gradient is worth evaluating.
            mean_speed = (solver.y - before) / solver.step_size
            stopped = bool(small(mean_speed) and small(gradient(solver.y)))
            if times is None and solver.t > 1.1 * recorded[-1][0]:
                recorded.append((solver.t, solver.y.copy()))
            if times is not None:
                interpolate = solver.dense_output()
                inside = times[(times > solver.t_old) & (times <= solver.t)]
                recorded.extend((time, interpolate(time)) for time in inside)
        if (stopped or times is None) and (not recorded or recorded[-1][0] < solver.t):
            recorded.append((solver.t, solver.y.copy()))
    return _evaluated(problem, attention, length, recorded, coordinates, stopped)


def _through_factors(head: BlockHead, gradient: BlockHead) -> BlockHead:
    left, values, right = np.linalg.svd(head.A)
    before, after = (left * values) @ left.T, (right.T * values) @ right  # (A A')^{1/2}, (A' A)^{1/2}
    return BlockHead(
        (before @ gradient.A + gradient.A @ after) / np.sqrt(len(before) + 1), 2 * abs(head.b) * gradient.b
    )


def _checked_times(times, horizon: float, gradient_tolerance: float) -> np.ndarray | None:
    if not horizon >= 0:
        raise ValueError(f"the horizon T of a flow must be nonnegative, received {horizon:g}")
    if not gradient_tolerance >= 0:
        raise ValueError(f"the gradient tolerance must be nonnegative, received {gradient_tolerance:g}")
    if np.isinf(horizon) and gradient_tolerance == 0:
        raise ValueError("a flow without a horizon needs a gradient tolerance to stop at")
    if times is None:
        return None
    times = np.atleast_1d(np.asarray(times, float))
    if times.ndim > 1 or np.any(np.diff(times) <= 0) or np.any((times < 0) | (times > horizon)):
        raise ValueError(f"times must increase strictly within [0, {horizon:g}]")
    return times


def _evaluated(problem, attention, length, recorded, coordinates: "HeadCoordinates", stopped: bool) -> Flow:
    heads = [coordinates.head(state) for _, state in recorded]
    risks, gradients = zip(*(problem.risk_and_gradient(attention, *head, length) for head in heads), strict=True)
    A, b = (np.array(part) for part in zip(*heads, strict=True))
    norms = np.array([gradient.norm() for gradient in gradients])
    return Flow(np.array([time for time, _ in recorded]), A, b, np.array(risks), norms, stopped)
