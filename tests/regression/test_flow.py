"""Population gradient flows: reference end points, conserved quantities, symmetry, limits, and recording."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.coordinates import HeadCoordinates, common_eigenbasis
from lib.regression.flow import gradient_flow
from lib.regression.head import BlockHead
from lib.regression.sgd import factored_start
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

TOEPLITZ = covariance_matrix("toeplitz(0.5)", 5)
ISOTROPIC = InContextRegression(np.eye(5), np.sqrt(0.1))


def test_the_reference_end_point():
    flow = gradient_flow(
        ISOTROPIC, "softmax", ISOTROPIC.balanced_init(0.3), np.inf, length=400, gradient_tolerance=1e-8
    )
    assert flow.stopped
    assert flow.gradient_norm[-1] < 1e-8
    A, b = flow.end
    assert np.linalg.norm(A) ** 2 == pytest.approx(0.71330, abs=5e-6)
    assert b == pytest.approx(2.54789, abs=5e-6)
    assert flow.risk[-1] == pytest.approx(0.112141, abs=5e-7)
    assert np.all(np.diff(flow.risk) < 0)
    best = best_softmax(ISOTROPIC, 400)
    np.testing.assert_allclose(A, best.A, atol=2e-6)


def test_the_drift_at_a_long_prompt_depends_on_the_horizon():
    times = [10.0, 400.0, 2e4]
    flow = gradient_flow(ISOTROPIC, "softmax", ISOTROPIC.balanced_init(0.3), 2e4, length=1e5, times=times)
    np.testing.assert_array_equal(flow.time, times)
    np.testing.assert_allclose((flow.A**2).sum((1, 2)), [2.10, 1.11, 0.62], atol=5e-3)
    assert flow.imbalance[-1] < -5


@pytest.mark.parametrize("alpha", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("name", ["toeplitz(0.5)", "spiked(10)", "power_law(1)"])
def test_the_infinite_flow_reaches_the_optimum_and_keeps_the_balance(name, alpha):
    problem = InContextRegression(covariance_matrix(name, 5), 0.3)
    flow = gradient_flow(problem, "infinite", problem.balanced_init(alpha), np.inf, gradient_tolerance=1e-10)
    np.testing.assert_allclose(flow.end.A, problem.optimum().A, atol=1e-7)
    assert flow.end.b == pytest.approx(problem.optimum().b, abs=1e-7)
    assert np.ptp(flow.imbalance) < 1e-9


def test_a_general_start_keeps_the_balance_and_reaches_the_optimum():
    problem = InContextRegression(TOEPLITZ, 0.3)
    start = problem.balanced_init(0.2, np.random.default_rng(0).normal(size=(5, 5)))
    flow = gradient_flow(problem, "infinite", start, np.inf, gradient_tolerance=1e-9)
    np.testing.assert_allclose(flow.end.A, problem.optimum().A, atol=1e-6)
    assert np.ptp(flow.imbalance) < 1e-9


def test_an_unbalanced_start_ends_elsewhere():
    problem = InContextRegression(TOEPLITZ, 0.3)
    flow = gradient_flow(problem, "infinite", BlockHead(0.3 * np.eye(5), 1.5), np.inf, gradient_tolerance=1e-9)
    assert flow.risk[-1] < 1e-15
    assert abs(flow.end.b - problem.optimum().b) > 0.1
    assert flow.imbalance[-1] == pytest.approx(0.45 - 2.25, abs=1e-9)


def test_linear_attention_keeps_the_balance_where_softmax_does_not():
    problem = InContextRegression(TOEPLITZ, 0.3)
    start = problem.balanced_init(0.3)
    linear = gradient_flow(problem, "linear", start, np.inf, length=50, gradient_tolerance=1e-9)
    best = best_linear(problem, 50)
    np.testing.assert_allclose(linear.end.A, best.A, atol=1e-7)
    assert np.ptp(linear.imbalance) < 1e-9
    softmax = gradient_flow(problem, "softmax", start, 20.0, length=50)
    assert np.ptp(softmax.imbalance) > 0.1


def test_eigendirections_follow_their_own_equations():
    """The infinite flow of the eigenvalues: a_i' = b s_i^2 (1 - b s_i a_i), b' = sum s_i^2 a_i (1 - b s_i a_i)."""
    problem = InContextRegression(TOEPLITZ, 0.3)
    s, basis = np.linalg.eigh(TOEPLITZ)
    start = problem.balanced_init(0.3)

    def velocity(_, state):
        a, b = state[:-1], state[-1]
        gap = s**2 * (1 - b * s * a)
        return np.append(b * gap, a @ gap)

    times = [0.5, 2.0, 8.0]
    plain = solve_ivp(velocity, (0, 8), np.append(np.full(5, start.A[0, 0]), 0.3), t_eval=times, rtol=1e-10, atol=1e-12)
    flow = gradient_flow(problem, "infinite", start, 8.0, times=times)
    np.testing.assert_allclose(np.einsum("ji,tjk,ki->ti", basis, flow.A, basis), plain.y[:-1].T, rtol=1e-7)
    np.testing.assert_allclose(flow.b, plain.y[-1], rtol=1e-7)


def test_the_eigenbasis_and_all_entries_give_the_same_flow(monkeypatch):
    problem = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.3, 1.3, np.eye(3))
    times = [1.0, 10.0]
    fast = gradient_flow(problem, "softmax", problem.balanced_init(0.4), 10.0, length=30, times=times, rtol=1e-9)
    monkeypatch.setattr("lib.regression.coordinates.common_eigenbasis", lambda matrices: None)
    slow = gradient_flow(problem, "softmax", problem.balanced_init(0.4), 10.0, length=30, times=times, rtol=1e-9)
    np.testing.assert_allclose(fast.A, slow.A, atol=1e-8)
    np.testing.assert_allclose(fast.risk, slow.risk, rtol=1e-8)


def test_flow_time_is_learning_rate_times_steps():
    """Gradient descent approaches the flow at first order in the step."""
    problem = InContextRegression(TOEPLITZ, 0.3, 0.5)
    end = gradient_flow(problem, "softmax", problem.balanced_init(0.5), 2.0, length=20).end
    errors = []
    for step in (0.02, 0.01):
        A, b = problem.balanced_init(0.5)
        for _ in range(round(2 / step)):
            gradient = problem.risk_and_gradient("softmax", A, b, 20)[1]
            A, b = A - step * gradient.A, b - step * gradient.b
        errors.append(np.linalg.norm(A - end.A))
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.15)


def test_longer_prompts_stay_closer_to_the_infinite_flow():
    times = np.linspace(0, 10, 21)
    start = ISOTROPIC.balanced_init(0.3)
    limit = gradient_flow(ISOTROPIC, "infinite", start, 10.0, times=times)
    distances = []
    for length in (1e4, 1e6):
        flow = gradient_flow(ISOTROPIC, "softmax", start, 10.0, length=length, times=times, rtol=1e-9)
        distances.append(np.max(np.abs(flow.A - limit.A)))
    # The coupling, 0.42 by then, is close to 1/2: far slower than the eventual 1/L.
    assert 5 < distances[0] / distances[1] < 50


def test_recording():
    problem = InContextRegression(TOEPLITZ, 0.3)
    start = problem.balanced_init(0.3)
    flow = gradient_flow(problem, "linear", start, 3.0, length=9)
    assert flow.time[0] == 0
    assert flow.time[-1] == 3
    assert not flow.stopped
    assert flow.risk[0] == pytest.approx(problem.linear_risk(*start, 9))
    nothing = gradient_flow(problem, "linear", start, 0.0, length=9)
    assert len(nothing.time) == 1
    np.testing.assert_allclose(nothing.A[0], start.A, atol=1e-15)
    early = gradient_flow(problem, "linear", start, 1e6, length=9, times=[0.0, 1.0, 1e6], gradient_tolerance=1e-6)
    assert early.stopped
    assert len(early.time) == 3
    assert early.time[-1] < 1e3


def test_distinct_eigenvalues_are_the_variables():
    assert len(HeadCoordinates(ISOTROPIC, 0.3 * np.eye(5)).multiplicity) == 2
    spiked = InContextRegression(covariance_matrix("spiked(4)", 6), 0.3)
    np.testing.assert_array_equal(np.sort(HeadCoordinates(spiked, np.eye(6)).multiplicity), [1, 1, 5])
    skew = np.eye(5) + np.eye(5, k=1)
    assert len(HeadCoordinates(ISOTROPIC, skew).multiplicity) == 26
    assert common_eigenbasis([np.diag([1.0, 2.0]), np.eye(2), np.array([[1.0, 0.5], [0.5, 1.0]])]) is None


def test_bad_input():
    start = ISOTROPIC.balanced_init(0.3)
    with pytest.raises(ValueError, match="horizon T of a flow must be nonnegative, received -1"):
        gradient_flow(ISOTROPIC, "infinite", start, -1.0)
    with pytest.raises(ValueError, match="needs a gradient tolerance"):
        gradient_flow(ISOTROPIC, "infinite", start, np.inf)
    with pytest.raises(ValueError, match="increase strictly"):
        gradient_flow(ISOTROPIC, "infinite", start, 1.0, times=[0.5, 2.0])
    with pytest.raises(ValueError, match=r"A must have shape"):
        gradient_flow(ISOTROPIC, "infinite", BlockHead(np.eye(4), 1.0), 1.0)
    with pytest.raises(ValueError, match="needs one prompt length"):
        gradient_flow(ISOTROPIC, "softmax", start, 1.0)
    with pytest.raises(ValueError, match="whole and at least 1"):
        gradient_flow(ISOTROPIC, "softmax", start, 1.0, length=0)


def test_the_flow_through_factors_is_the_chain_rule():
    """A tiny step of Q, K, V, O down the risk moves A = K'Q / sqrt(d + 1) and b = O V as the flow says: no symmetry."""
    problem = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.3, 1.3)
    head, tiny = BlockHead(np.array([[0.5, 0.2, 0.0], [-0.3, 0.4, 0.1], [0.1, 0.0, 0.2]]), 1.2), 1e-5
    start = {name: value[..., :3] if name == "Q" else value for name, value in factored_start(head).items()}
    K, Q, o, v = start["K"], start["Q"], start["O"][-1, -1], start["V"][-1, -1]
    gradient = problem.risk_and_gradient("infinite", *head)[1]
    in_U = np.pad(gradient.A, ((0, 1), (0, 0)))
    K, Q = K - tiny * Q @ in_U.T / 2, Q - tiny * K @ in_U / 2
    o, v = o - tiny * v * gradient.b, v - tiny * o * gradient.b
    moved = gradient_flow(problem, "infinite", head, tiny, times=[tiny], factored=True).end
    np.testing.assert_allclose(((K.T @ Q)[:3] / 2 - head.A) / tiny, (moved.A - head.A) / tiny, rtol=1e-3, atol=1e-4)
    assert (o * v - head.b) / tiny == pytest.approx((moved.b - head.b) / tiny, rel=1e-3)
