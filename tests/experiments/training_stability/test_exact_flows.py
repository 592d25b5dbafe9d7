"""Notebook 03 without prompts, at tiny size: flows, the growth of errors, the limits of risk and parameters."""

import numpy as np
import pytest

from lib.experiments.settings import regression
from lib.experiments.training_stability import flows, gradients, parameters, risk_limit
from lib.regression.best_heads import best_softmax
from lib.regression.flow import Flow
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian


@pytest.fixture(scope="module")
def problem():
    return regression("toeplitz(0.5)", 3, 0.3)


@pytest.fixture(scope="module")
def both(problem):
    return flows.trajectories(problem=problem, lengths=[100, 10_000], alpha=0.5, t_end=20.0, points=40)


def test_longer_prompts_stay_closer(both):
    table = flows.largest_distances(flows=both, horizons=[1.0, 20.0]).table
    sup = table.pivot(index="length", columns="until", values="sup")
    assert (sup.loc[10_000] < 0.5 * sup.loc[100]).all()
    assert (sup["t = 20"] >= sup["t = 1"]).all()


def test_the_distance_is_the_linear_response_to_the_gap(problem):
    far, near = (
        flows.distances(
            flows=flows.trajectories(problem=problem, lengths=[length], alpha=0.5, t_end=20.0, points=80), horizon=5.0
        )
        for length in (10**4, 10**7)
    )
    assert near.measured.value == pytest.approx(1, abs=0.01)
    assert abs(near.measured.value - 1) < abs(far.measured.value - 1) < 0.3  # first order in the distance
    assert abs(near.near_miss.value - 1) > 0.03 and abs(near.control.value - 1) > 0.03
    rows = near.table[near.table["time"] <= 5]
    assert near.measured.value == pytest.approx(rows["distance"].max() / rows["response"].max())


def test_the_envelope_holds_is_met_at_first_and_the_wrong_ones_are_crossed(both):
    found = flows.gronwall(flows=both)
    ratio = found.table["distance"] / found.table["envelope"]
    assert found.measured.value == ratio.max() < 1
    assert ratio.max() > 0.99 and found.table["time"].iloc[int(ratio.argmax())] < 0.01
    assert found.near_miss.value > 1.002 and found.control.value > 1.3


def test_simpsons_rule_is_the_mean_hessian(problem):
    one, other = problem.balanced_init(0.5), problem.optimum()
    nodes, weights = np.polynomial.legendre.leggauss(4)
    points = [one.flat() + (x + 1) / 2 * (other.flat() - one.flat()) for x in nodes]
    mean = sum(
        w / 2 * infinite_hessian(problem, BlockHead.from_flat(point)) for w, point in zip(weights, points, strict=True)
    )
    flow = [
        Flow(np.zeros(1), head.A[None], np.array([head.b]), np.zeros(1), np.zeros(1), False) for head in (one, other)
    ]
    assert flows._growth_between(problem, *flow)[0] == pytest.approx(-np.linalg.eigvalsh(mean)[0], rel=1e-10)


def test_flows_may_be_short(problem):
    flow = flows.trajectories(problem=problem, lengths=[20], alpha=0.5, t_end=1e-3, points=5).softmax[20]
    assert flow.time[0] == 0 and flow.time[-1] == 1e-3 and (np.diff(flow.time) > 0).all()


def test_gradients_along_training_are_the_exact_ones(problem, both):
    found = gradients.along(
        problem=problem, flow=both.limit, times=[0.5, 20.0], lengths=[20, 60], number_budget=1_000_000, seed=0
    )
    assert len(found.table) == 2 * 2 * 2
    pooled = found.pooled()
    assert 0.93 < pooled.measured.value < 1.07
    assert pooled.control.value > 1.5
    assert pooled.near_miss.value > 1.05 * pooled.measured.value


def test_errors_peak_with_the_coupling_and_settle(problem):
    flow = flows.trajectories(problem=problem, lengths=[], alpha=0.8, t_end=300.0, points=40).limit
    found = gradients.growth(problem=problem, flow=flow, lengths=[200, 20_000], points=12, slope_length=1e30)
    assert found.table.groupby("length")["relative"].last().to_numpy() == pytest.approx([1, 1], abs=0.01)
    peaks = found.table.groupby("length", sort=False)["relative"].max()
    assert 1 < peaks.iloc[0] < peaks.iloc[1]
    assert found.measured.value == pytest.approx(1, abs=0.03)
    assert found.near_miss.value > 1.1 and found.control.value < 0.9


def test_risk_limits_fall_as_one_over_length():
    settings = risk_limit.standard_settings(dims=[2], noise_std=0.3)
    assert {"d = 2", "d = 5, condition 10", "d = 5, no noise", "d = 5, noise 1"} == set(settings)
    chosen = {name: settings[name] for name in ("d = 2", "d = 5, condition 10")}
    found = risk_limit.risk_limits(settings=chosen, lengths=[1e4, 1e6])
    assert found.measured.values == pytest.approx([1, 1], abs=1e-3)
    assert (found.near_miss.values > 1.05).all() and found.control.value > 5
    assert found.table["slope"].dropna().to_numpy() == pytest.approx([1, 1], abs=0.01)
    assert found.table["slope at optimum"].iloc[0] < 0.75


def test_the_least_constant_of_isotropic_tokens():
    # d = 5, noise variance 0.1: L risk -> 48.71 at d omega^2 = 0.61567.
    exact, rough = risk_limit.least_constant(regression("isotropic", 5, 0.1**0.5))
    assert exact == pytest.approx(48.712, abs=1e-3)
    omega2 = 0.61567 / 5
    mean = (1 - 2 * omega2) ** -2.5
    assert rough < exact * np.exp(0.61567) / mean * (1 + 1e-6)


def test_the_length_asked_for_reaches_the_risk():
    settings = {"d = 2": regression("isotropic", 2, 0.3)}
    limits = risk_limit.risk_limits(settings=settings, lengths=[1e4, 1e5]).table
    found = risk_limit.lengths_for(settings=settings, limits=limits, tolerances=[0.05]).table
    length = found["ε = 0.05"].iloc[0]
    best = best_softmax(settings["d = 2"], length)
    assert float(settings["d = 2"].softmax_risk(*best, length).value) == pytest.approx(0.05, rel=0.01)


def test_the_limits_do_not_commute():
    found = parameters.order_of_limits(dim=5, noise_std=0.1**0.5, lengths=[1e5], horizons=[10, 400], alpha=0.3)
    values = found.table.set_index("horizon")["value"]
    np.testing.assert_allclose(values[["t = 10", "t = 400", "t = ∞"]], [2.10, 1.11, 0.617], atol=0.005)
    limit, infinite = found.table[["limit", "infinite"]].iloc[0]
    assert (limit, infinite) == (pytest.approx(0.61567, abs=2e-5), pytest.approx(np.sqrt(5)))
    assert found.measured.value == pytest.approx(values["t = ∞"] / limit)
    assert found.control.value == pytest.approx(infinite / limit)
    assert 0.75 < found.near_miss.value < 0.9


def test_only_linear_attention_keeps_its_balance(problem, both):
    found = parameters.balance(problem=problem, lengths=[10, 100], alpha=0.5, t_end=20.0, softmax=both)
    assert found.measured.values.max() == found.table["change"].max() < 1e-9
    assert found.control.value > found.near_miss.value > 1e-4
