"""Notebook 03 without prompts, at tiny size: flows, the growth of errors, the limits of risk and parameters."""

import numpy as np
import pytest
from statistics_checks import worst

from lib.experiments.settings import regression
from lib.experiments.training_stability import flows, gradients, parameters, risk_limit
from lib.regression.best_heads import best_softmax


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


def test_over_a_fixed_time_a_flow_stays_close_and_without_a_horizon_it_does_not(problem, both):
    found = flows.distances(flows=both, horizon=5.0)
    star = problem.optimum()
    longest = found.table[(found.table["length"] == 10_000) & (found.table["time"] <= 5)]
    assert found.measured.value == pytest.approx(longest["distance"].max() / star.norm())
    assert (longest["largest"] >= longest["distance"]).all()
    assert found.control.value == pytest.approx(best_softmax(problem, 10_000).distance(star) / star.norm())
    assert found.measured.value < 0.1 < found.control.value


def test_the_envelope_holds_and_a_tenth_of_it_does_not(both):
    found = flows.gronwall(flows=both)
    assert found.measured.value == (found.table["distance"] / found.table["envelope"]).max() < 1
    assert found.control.value == (found.table["distance"] / found.table["control"]).max() > 1


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


def test_errors_at_the_end_are_those_of_the_optimum(problem):
    flow = flows.trajectories(problem=problem, lengths=[], alpha=0.5, t_end=300.0, points=20).limit
    found = gradients.growth(problem=problem, flow=flow, length=200, points=6, settled=100.0)
    assert found.table["relative"].iloc[-1] == pytest.approx(1, abs=1e-3)
    assert worst(found.measured) == pytest.approx(1, abs=0.01)
    assert found.control.value == found.table[found.table["time"] < 100]["relative"].max()


def test_risk_limits_fall_as_one_over_length():
    settings = risk_limit.standard_settings(dims=[2], noise_std=0.3)
    assert {"d = 2", "d = 5, condition 10", "d = 5, no noise", "d = 5, noise 1"} == set(settings)
    found = risk_limit.risk_limits(settings={"d = 2": settings["d = 2"]}, lengths=[1e4, 1e5])
    assert worst(found.measured) == found.table["slope"].iloc[0] == pytest.approx(1, abs=0.01)
    assert found.control.value == found.table["slope at optimum"].iloc[0] < 0.75


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


def test_only_linear_attention_keeps_its_balance(problem, both):
    found = parameters.balance(problem=problem, lengths=[10, 100], alpha=0.5, t_end=20.0, softmax=both)
    assert found.measured.value == found.table["change"].max() < 1e-9
    assert found.control.value > 1e-3
